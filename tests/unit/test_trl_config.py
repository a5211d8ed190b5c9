"""TRL's configuration, from every file that can hold it, in the common schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.diff import compare_configs
from align.config.normalise import effective
from align.config.schema import field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.errors import AlignError
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from dumps.readers import trl_call, trl_command, trl_files, trl_printed
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import discover
from dumps.store.run_data import RunData

# As TRL 1.16 prints GRPOConfig(per_device_train_batch_size=4, generation_batch_size=64, …).
PRINTED = """\
(main) loading
GRPOConfig(
accelerator_config={'split_batches': False, 'gradient_accumulation_kwargs': None},
adam_beta1=0.9,
beta=0.04,
bf16=True,
debug=[],
epsilon=0.2,
epsilon_high=0.28,
fp16=False,
generation_batch_size=64,
gradient_accumulation_steps=2,
hub_token=<HUB_TOKEN>,
learning_rate=1e-06,
loss_type=dr_grpo,
lr_scheduler_type=SchedulerType.COSINE,
max_completion_length=512,
max_steps=-1,
num_generations=8,
num_iterations=2,
optim=OptimizerNames.ADAMW_TORCH_FUSED,
output_dir=/data/run, with a comma,
per_device_train_batch_size=4,
scale_rewards=none,
seed=42,
steps_per_generation=4,
temperature=0.9,
top_k=0,
use_vllm=False,
warmup_ratio=0.1,
warmup_steps=0,
)
next line
"""


def resolve(
    values: dict[str, ConfigLeaf], version: str | None = "1.16.0", **more: ConfigLeaf
) -> EffectiveConfig:
    place = Provenance(ProvenanceKind.FILE, "test")
    leaves = {k: ConfigValue(k, v, place) for k, v in {**values, **more}.items()}
    raw = RawConfig("test", "test", "trl", leaves)
    return effective([raw], RunManifest(framework="trl", framework_version=version))


def value(config: EffectiveConfig, name: str) -> object:
    return config.values[name].value if name in config.values else "unknown"


def of_folder(folder: Path) -> EffectiveConfig:
    data = RunData(discover([folder]))
    assert data.problems == []
    assert data.framework == "trl"
    return effective(data.configs, RunManifest(framework=data.framework))


def test_every_key_of_the_table_names_a_field_of_the_schema() -> None:
    tables = config_tables("trl")
    assert tables is not None
    for name in (*tables.keys.values(), *(formula.field for formula in tables.formulas)):
        field_named(name.replace("*", "x"))  # raises KeyError otherwise


def test_a_printed_configuration_gives_every_quantity_in_the_common_unit(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(PRINTED)
    config = of_folder(tmp_path)
    assert config.unmatched == ()
    # By hand: 64 completions are 8 prompts; an update sees 4 × 4 processes × 2 = 32 of them.
    assert value(config, "trainer.world_size") == 4
    assert value(config, "data.train_batch_size") == 8
    assert value(config, "actor.mini_batch_size") == 4
    assert value(config, "actor.ppo_epochs") == 2
    assert value(config, "derived.optimizer_steps_per_iteration") == 4
    assert value(config, "loss.aggregation") == "seq-mean-token-sum-norm"
    assert value(config, "loss.scale_factor") == 512
    assert value(config, "loss.clip_ratio_high") == 0.28
    assert value(config, "loss.use_kl") is True and value(config, "loss.kl_coef") == 0.04
    assert value(config, "advantage.normalize_by_std") is False
    assert value(config, "actor.lr_schedule") == "cosine"
    assert value(config, "actor.lr_warmup_fraction") == 0.1
    assert value(config, "actor.optimizer") == "adamw"
    assert value(config, "rollout.top_k") == -1
    assert value(config, "rollout.engine") == "transformers"
    line = PRINTED.split("\n").index("temperature=0.9,") + 1
    assert config.values["rollout.temperature"].raw.provenance.line == line


def test_a_yaml_a_command_and_a_script_of_one_recipe_do_not_differ(tmp_path: Path) -> None:
    recipe = {
        "learning_rate": 1e-6,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 8,
        "max_completion_length": 512,
        "beta": 0.001,
        "scale_rewards": False,
        "bf16": True,
    }
    folders = [tmp_path / name for name in ("yaml", "command", "script", "json")]
    for folder in folders:
        folder.mkdir()
    lines = [f"{k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in recipe.items()]
    (folders[0] / "grpo.yaml").write_text("\n".join(lines))
    flags = " \\\n  ".join(f"--{k} {v}" for k, v in recipe.items())
    (folders[1] / "run.sh").write_text(
        f"#!/bin/bash\nLR=1e-6\naccelerate launch --num_processes 8 grpo.py \\\n  {flags}\n"
    )
    keywords = ", ".join(f"{k}={v!r}" for k, v in recipe.items())
    (folders[2] / "train.py").write_text(
        f"from trl import GRPOConfig\nc = GRPOConfig({keywords})\n"
    )
    (folders[3] / "training_args.json").write_text(json.dumps(recipe, indent=1))
    configs = [of_folder(folder) for folder in folders]
    for config in configs[1:]:
        diff = compare_configs(configs[0], config)
        assert [row.name for row in diff.compared if not row.same] == []
        assert len(diff.compared) > 60
    assert value(configs[1], "data.train_batch_size") == 8  # 4 × 8 × 2 / 8
    assert value(configs[0], "data.train_batch_size") == "unknown"  # nobody says how many processes


def test_the_number_of_processes_of_accelerate_s_own_file_counts(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 2\n"
        "deepspeed_config:\n  zero_stage: 2\nnum_processes: 16\n"
    )
    (tmp_path / "grpo.yaml").write_text(
        "per_device_train_batch_size: 4\nnum_generations: 8\nlearning_rate: 1e-6\n"
    )
    config = of_folder(tmp_path)
    assert value(config, "trainer.world_size") == 16
    assert value(config, "trainer.num_nodes") == 2
    assert value(config, "actor.strategy") == "deepspeed"
    assert value(config, "data.train_batch_size") == 8
    assert config.unmatched == ()


@pytest.mark.parametrize(
    ("version", "field", "expected"),
    [
        ("0.18.2", "loss.kl_coef", 0.04),
        ("0.19.0", "loss.kl_coef", 0.0),
        ("0.18.2", "loss.use_kl", True),
        ("0.19.0", "loss.use_kl", False),
        ("0.15.2", "loss.aggregation", "seq-mean-token-mean"),
        ("0.16.1", "loss.aggregation", "token-mean"),
        ("0.21.0", "loss.normalization", "micro-batch"),
        ("0.22.0", "loss.normalization", "mini-batch"),
        ("0.17.0", "rollout.temperature", 0.9),
        ("0.18.0", "rollout.temperature", 1.0),
        ("1.9.0", "data.max_response_length", 256),
        ("1.10.0", "data.max_response_length", 512),
        ("0.16.0", "rollout.top_k", 50),
        ("0.18.0", "rollout.top_k", -1),
    ],
)
def test_a_default_is_that_of_the_run_s_version(version: str, field: str, expected: object) -> None:
    config = resolve({"num_generations": 8}, version)
    assert value(config, field) == expected
    assert config.values[field].assumption is None


def test_version_0_14_counts_prompts_and_later_ones_completions() -> None:
    sizes: dict[str, ConfigLeaf] = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_processes": 2,
    }
    old, new = resolve(sizes, "0.14.0"), resolve(sizes, "0.15.0")
    assert (value(old, "data.train_batch_size"), value(old, "actor.micro_batch_size")) == (32, 32)
    assert (value(new, "data.train_batch_size"), value(new, "actor.micro_batch_size")) == (8, 8)


def test_a_run_without_version_is_taken_for_the_newest_its_keys_allow_and_says_so() -> None:
    config = resolve({"num_generations": 8, "vllm_device": "cuda:0"}, None)
    assert config.framework_version == "0.17"  # the key was taken away in 0.18
    assert value(config, "loss.kl_coef") == 0.04
    free = resolve({"num_generations": 8}, None)
    assert free.framework_version == "1.16"
    assert free.values["loss.kl_coef"].assumption is not None
    assert free.values["actor.adam_beta1"].assumption is None


def test_dpo_and_grpo_mean_another_thing_by_beta() -> None:
    dpo = resolve({"precompute_ref_log_probs": False, "beta": 0.1, "loss_type": "sigmoid"})
    assert value(dpo, "loss.options.dpo_beta") == 0.1
    assert value(dpo, "loss.kl_coef") == "unknown"
    assert value(dpo, "loss.options.dpo_loss_type") == "sigmoid"
    assert value(dpo, "trainer.implementation") == "DPOConfig"


def test_ppo_has_its_kl_in_the_reward_and_a_critic() -> None:
    config = resolve({"num_ppo_epochs": 4, "total_episodes": 1000, "num_processes": 2}, "0.24.0")
    assert value(config, "reward.use_kl_in_reward") is True
    assert value(config, "reward.kl_coef") == 0.05
    assert value(config, "reward.kl_penalty") == "kl"
    assert value(config, "advantage.estimator") == "gae"
    assert value(config, "advantage.lam") == 0.95
    assert value(config, "critic.used") is True
    assert value(config, "critic.lr") == 5e-5
    assert value(config, "actor.ppo_epochs") == 4
    assert value(config, "data.train_batch_size") == 16  # 8 × 2 × 1
    assert value(config, "trainer.total_steps") == 63  # 1000 / 16, rounded up


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"warmup_steps": 10}, (10, "unknown")),
        ({"warmup_ratio": 0.1}, ("unknown", 0.1)),
        ({"warmup_steps": 0.05}, ("unknown", 0.05)),  # transformers 5: below 1 it is a fraction
        ({"warmup_steps": 10, "lr_scheduler_type": "constant"}, (0, "unknown")),
        ({"warmup_steps": 10, "lr_scheduler_type": "constant_with_warmup"}, (10, "unknown")),
    ],
)
def test_warmup_is_steps_or_a_fraction_and_none_with_a_constant_rate(
    keys: dict[str, ConfigLeaf], expected: tuple[object, object]
) -> None:
    config = resolve({"num_generations": 8, **keys})
    found = (value(config, "actor.lr_warmup_steps"), value(config, "actor.lr_warmup_fraction"))
    assert found == expected


def test_total_steps_are_counted_in_iterations_and_not_in_updates() -> None:
    # 4 updates an iteration: 8 steps of generation, 4 accumulated, each batch used twice.
    config = resolve(
        {
            "num_generations": 8,
            "max_steps": 100,
            "steps_per_generation": 8,
            "gradient_accumulation_steps": 4,
            "num_iterations": 2,
        }
    )
    assert value(config, "trainer.total_steps") == 25


def test_engine_settings_do_not_count_where_transformers_generates() -> None:
    config = resolve({"num_generations": 8, "vllm_tensor_parallel_size": 4, "use_vllm": False})
    assert value(config, "rollout.tensor_parallel_size") == "unknown"
    assert "vllm_tensor_parallel_size" not in {v.key for v in config.unmatched}


def test_an_unknown_key_surfaces() -> None:
    config = resolve({"num_generations": 8, "betta": 0.1})
    assert [v.key for v in config.unmatched] == ["betta"]


def test_what_only_the_shell_or_the_script_knows_is_unknown_and_has_no_default(
    tmp_path: Path,
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "BETA=0.01\ntrl grpo --beta $BETA --learning_rate $LR --num_generations 8 \\\n"
        "  --reward_weights 0.5 1.0 --no_shuffle_dataset --temperature=0.7 2>&1 | tee log\n"
    )
    raw = trl_command.READER.read(script, no_progress)
    assert raw.values["beta"].value == 0.01
    assert raw.unknown == ("learning_rate",)
    assert raw.values["reward_weights"].value == (0.5, 1.0)
    assert raw.values["shuffle_dataset"].value is False
    assert raw.values["temperature"].value == 0.7
    assert raw.values["config_class"].value == "GRPOConfig"
    assert "actor.lr" not in effective([raw], RunManifest()).values

    code = tmp_path / "train.py"
    code.write_text(
        "import torch\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(\n    learning_rate=base / 2,\n    num_generations=8,\n"
        "    model_init_kwargs={'torch_dtype': torch.bfloat16},\n    report_to=[])\n"
        "trainer = GRPOTrainer(model='Qwen/Qwen3-8B', args=args)\n"
    )
    read = trl_call.READER.read(code, no_progress)
    assert read.unknown == ("learning_rate",)
    config = effective([read], RunManifest())
    assert value(config, "actor.master_dtype") == "bfloat16"
    assert value(config, "model.name") == "Qwen/Qwen3-8B"
    assert config.values["rollout.n"].raw.provenance.line == 5


def test_a_script_is_never_run(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text(
        "from trl import GRPOConfig\nraise SystemExit\n"
        "GRPOConfig(num_generations=__import__('os').getpid(), beta=0.1)\n"
    )
    read = trl_call.READER.read(code, no_progress)
    assert read.unknown == ("num_generations",) and read.values["beta"].value == 0.1


def test_a_repr_on_one_line_is_read_and_a_cut_one_keeps_what_is_certain(tmp_path: Path) -> None:
    text = "args: GRPOConfig(beta=0.04, output_dir='a, b', num_generations=8, top_p=1.0)\n"
    path = tmp_path / "log"
    path.write_text(text)
    whole = trl_printed.READER.read(path, no_progress)
    assert whole.values["num_generations"].value == 8 and whole.truncated_at is None
    path.write_text(text[: text.index("top_p") + 7])
    cut = trl_printed.READER.read(path, no_progress)
    assert cut.values["num_generations"].value == 8
    assert cut.truncated_at == "num_generations" and "top_p" not in cut.values


@pytest.mark.parametrize("end", range(30, len(PRINTED), 37))
def test_a_printed_configuration_cut_anywhere_gives_a_part_of_the_truth(
    tmp_path: Path, end: int
) -> None:
    path = tmp_path / "log"
    path.write_text(PRINTED)
    truth = {k: v.value for k, v in trl_printed.READER.read(path, no_progress).values.items()}
    path.write_text(PRINTED[:end])
    try:
        found = trl_printed.READER.read(path, no_progress)
    except AlignError as error:
        assert error.fix
        return
    assert {k: v.value for k, v in found.values.items()}.items() <= truth.items()


@given(data=st.binary(max_size=300))
def test_any_bytes_give_values_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    heads = (b"GRPOConfig(\nbeta=", b"trl grpo --beta ", b"from trl import x\nGRPOConfig(beta=")
    readers = (trl_printed.READER, trl_command.READER, trl_call.READER, *trl_files.READERS)
    for head in heads:
        path.write_bytes(head + data)
        for reader in readers:
            reader.sniff(Glimpse(path, path.stat().st_size))
            try:
                reader.read(path, no_progress)
            except AlignError:
                continue
