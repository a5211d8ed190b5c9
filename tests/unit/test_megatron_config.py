"""Megatron's and MindSpeed-LLM's arguments: from a command line, from a log, and where left out.

Expected values are those of Megatron core_v0.12.1's parser, read by hand.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.diff import compare_configs
from align.config.normalise import effective
from align.core.config_value import ConfigLeaf, EffectiveConfig, ProvenanceKind
from align.core.errors import AlignError, ConfigError
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from align.frameworks.megatron_arguments import arguments, by_flag
from align.frameworks.megatron_keys import ARGUMENT_IGNORED, ARGUMENT_KEYS
from dumps.readers.launch_command import READER as LAUNCH_COMMAND
from dumps.readers.megatron_command import READER, read_megatron_command
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import discover
from dumps.store.run_data import RunData

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NPUS_PER_NODE=8
NNODES=2
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
TP=4
SEQ_LEN=4096
DATA_PATH="/data/alpaca"
# LR=9
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES
"
GPT_ARGS="
    --use-mcore-models \\
    --tensor-model-parallel-size ${TP} \\
    --num-layers 28 \\
    --hidden-size 3584 \\
    --num-attention-heads 28 \\
    --group-query-attention --num-query-groups 4 \\
    --seq-length ${SEQ_LEN} \\
    --disable-bias-linear \\
    --swiglu \\
    --normalization RMSNorm \\
    --norm-epsilon 1e-6 \\
    --rotary-base 1000000 \\
    --micro-batch-size 1 \\
    --adam-beta2=0.95 \\
    --no-masked-softmax-fusion \\
    --bf16
"
DATA_ARGS=(
    --data-path "$DATA_PATH" 0.7 /data/other  # two data sets
    --split 100,0,0
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    $GPT_ARGS \\
    "${DATA_ARGS[@]}" \\
    --lr 1.25e-6 \\
    --seed $SEED \\
    --world-size-of-mine $WORLD_SIZE \\
    --my-own-flag 3 \\
    | tee --append logs/x.log
echo --lr 9
"""
STATED: dict[str, tuple[ConfigLeaf, int]] = {
    "nproc_per_node": (8, 11),
    "nnodes": (2, 12),
    "use_mcore_models": (True, 15),
    "tensor_model_parallel_size": (4, 16),
    "num_layers": (28, 17),
    "hidden_size": (3584, 18),
    "num_attention_heads": (28, 19),
    "group_query_attention": (True, 20),
    "num_query_groups": (4, 20),
    "seq_length": (4096, 21),
    "add_bias_linear": (False, 22),
    "swiglu": (True, 23),
    "normalization": ("RMSNorm", 24),
    "norm_epsilon": (1e-6, 25),
    "rotary_base": (1000000, 26),
    "micro_batch_size": (1, 27),
    "adam_beta2": (0.95, 28),
    "masked_softmax_fusion": (False, 29),
    "bf16": (True, 30),
    "data_path": (("/data/alpaca", 0.7, "/data/other"), 33),
    "split": ("100,0,0", 34),
    "lr": (1.25e-6, 39),
    "my_own_flag": (3, 42),
}


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def written(folder: Path, text: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def resolved(path: Path) -> EffectiveConfig:
    return effective(RunData(discover([path])).configs, RunManifest())


def values_of(config: EffectiveConfig) -> dict[str, ConfigLeaf]:
    return {name: value.value for name, value in config.values.items()}


def test_a_script_gives_its_arguments_with_the_line_that_sets_them(tmp_path: Path) -> None:
    path = written(tmp_path, SCRIPT)
    assert READER.sniff(glimpse(path)) and not LAUNCH_COMMAND.sniff(glimpse(path))
    config = read_megatron_command(path, no_progress)
    assert {k: (v.value, v.provenance.line) for k, v in config.values.items()} == STATED
    assert {v.provenance.kind for v in config.values.values()} == {ProvenanceKind.OVERRIDE}
    assert config.framework == "megatron"
    assert config.unknown == ("seed", "world_size_of_mine")
    assert "line 40: the value of seed is not known from here" in [n.en for n in config.notes]


def test_the_command_that_a_log_traces_is_read(tmp_path: Path) -> None:
    text = "some line\n+ torchrun --nproc_per_node 8 pretrain_gpt.py --lr 1e-6 --bf16\nstep 1\n"
    path = written(tmp_path, text, "train.log")
    assert READER.sniff(glimpse(path))
    config = read_megatron_command(path, no_progress)
    assert {k: v.value for k, v in config.values.items()} == {
        "nproc_per_node": 8,
        "lr": 1e-6,
        "bf16": True,
    }


def test_a_variable_that_is_set_twice_is_unknown_and_takes_no_default(tmp_path: Path) -> None:
    text = "EPS=1e-6\nEPS=1e-5\ntorchrun pretrain_gpt.py --norm-epsilon $EPS --lr 1e-6\n"
    path = written(tmp_path, text)
    config = read_megatron_command(path, no_progress)
    assert config.unknown == ("norm_epsilon",)
    assert "model.rms_norm_eps" not in resolved(path).values


def test_the_last_of_two_flags_counts(tmp_path: Path) -> None:
    path = written(tmp_path, "python pretrain_gpt.py --lr 1 --lr 2\n")
    assert read_megatron_command(path, no_progress).values["lr"].value == 2


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\necho torchrun pretrain_gpt.py --lr 1\n",
        "#!/bin/bash\n# torchrun pretrain_gpt.py --lr 1\n",
        "#!/bin/bash\npython3 -m verl.trainer.main_ppo data.seed=1\n",
        "a note on pretrain_gpt.py\n",
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    assert not READER.sniff(glimpse(written(tmp_path, text)))


def test_a_command_without_arguments_is_an_error_with_a_fix(tmp_path: Path) -> None:
    path = written(tmp_path, "torchrun pretrain_gpt.py\n")
    with pytest.raises(ConfigError, match="no training command with arguments"):
        read_megatron_command(path, no_progress)


@given(st.text(max_size=400))
def test_no_text_stops_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("x") / "x.sh"
    path.write_text(f"A='{text}\ntorchrun pretrain_gpt.py {text}", encoding="utf-8")
    READER.sniff(glimpse(path))
    with contextlib.suppress(AlignError):
        read_megatron_command(path, no_progress)


NAMES = st.sampled_from(
    sorted(n for n, a in arguments().items() if a.action == "store" and a.flags)
)
NUMBERS = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False))


@given(st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=12))
def test_every_argument_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, float]
) -> None:
    flags = " \\\n  ".join(f"{arguments()[n].flags[0]} {v!r}" for n, v in values.items())
    path = tmp_path_factory.mktemp("x") / "x.sh"
    path.write_text(f'ARGS="\n  {flags}\n"\ntorchrun pretrain_gpt.py $ARGS\n', encoding="utf-8")
    config = read_megatron_command(path, no_progress)
    assert {name: value.value for name, value in config.values.items()} == values


FIELDS: dict[str, ConfigLeaf] = {
    "model.rms_norm_eps": 1e-6,
    "model.rope_theta": 1000000,
    "model.num_key_value_heads": 4,
    "model.head_dim": 128,
    "model.linear_bias": False,
    "model.activation": "silu",
    "model.intermediate_size": 9536,  # int(4 × 3584 × 2 / 3 / 64) × 64
    "model.tie_word_embeddings": True,
    "model.attention_dropout": 0.1,
    "model.hidden_dropout": 0.1,
    "actor.dtype": "bfloat16",
    "actor.reduce_dtype": "float32",
    "actor.lr": 1.25e-6,
    "actor.lr_schedule": "linear",
    "actor.adam_beta1": 0.9,
    "actor.adam_beta2": 0.95,
    "actor.adam_eps": 1e-8,
    "actor.weight_decay": 0.01,
    "actor.weight_decay_exempt": "one-dimensional parameters and biases",
    "actor.clip_grad": 1.0,
    "actor.tensor_parallel_size": 4,
    "actor.precision_options.masked_softmax_fusion": False,
    "actor.precision_options.gradient_accumulation_fusion": True,
    "trainer.world_size": 16,
}


@pytest.mark.parametrize("field", FIELDS)
def test_arguments_and_their_defaults_are_effective_values(field: str, tmp_path: Path) -> None:
    assert values_of(resolved(written(tmp_path, SCRIPT)))[field] == FIELDS[field]


def test_an_unknown_flag_is_shown_and_never_dropped(tmp_path: Path) -> None:
    unmatched = [value.key for value in resolved(written(tmp_path, SCRIPT)).unmatched]
    assert unmatched == ["my_own_flag"]


@pytest.mark.parametrize(
    ("name", "megatron", "mindspeed_llm"),
    [
        ("norm_epsilon", 1e-5, 1e-5),
        ("rotary_base", 10000, 10000),
        ("lr_decay_style", "linear", "linear"),
        ("adam_beta2", 0.999, 0.999),
        ("hidden_dropout", 0.1, 0.1),
        ("seed", 1234, 1234),
        ("rope_scaling_factor", 8.0, 1.0),
        ("transformer_impl", "transformer_engine", "local"),
        ("moe_layer_freq", 1, None),
        ("use_distributed_optimizer", False, False),
        ("gradient_accumulation_fusion", True, True),
    ],
)
def test_defaults_are_those_of_the_parser_that_is_in_use(
    name: str, megatron: ConfigLeaf, mindspeed_llm: ConfigLeaf
) -> None:
    argument = arguments()[name]
    assert (argument.megatron, argument.mindspeed_llm) == (megatron, mindspeed_llm)


def test_a_flag_of_mindspeed_llm_brings_its_defaults_and_their_source(tmp_path: Path) -> None:
    plain = resolved(written(tmp_path, "torchrun pretrain_gpt.py --lr 1e-6\n"))
    llm = resolved(written(tmp_path, "torchrun pretrain_gpt.py --lr 1e-6 --use-fused-rmsnorm\n"))
    scaling = "model.rope_scaling_factor"
    assert (plain.values[scaling].value, llm.values[scaling].value) == (8.0, 1.0)
    assert plain.values[scaling].raw.provenance.source == "default of Megatron core_v0.12.1"
    assert llm.values[scaling].raw.provenance.source == "default of MindSpeed-LLM 2.2.0"
    assert "does not state" in str(llm.values[scaling].assumption)


def test_every_argument_is_a_field_or_harmless_with_a_reason() -> None:
    tables = config_tables("megatron")
    assert tables is not None
    in_formulas = {key for formula in tables.formulas for key in formula.keys}
    assert len(arguments()) == 815
    assert sum(argument.is_megatron for argument in arguments().values()) == 455
    for name in arguments():
        assert name in tables.keys or name in tables.ignored or name in in_formulas, name


def test_flags_that_switch_off_name_the_argument_they_switch_off() -> None:
    for flag, name in (
        ("--disable-bias-linear", "add_bias_linear"),
        ("--no-gradient-accumulation-fusion", "gradient_accumulation_fusion"),
        ("--no-bias-swiglu-fusion", "bias_swiglu_fusion"),
        ("--no-rope-fusion", "apply_rope_fusion"),
    ):
        assert (by_flag()[flag].name, by_flag()[flag].action) == (name, "store_false")


def test_mindspeed_rl_takes_the_actors_arguments_from_the_same_table() -> None:
    tables = config_tables("mindspeed_rl")
    assert tables is not None
    shared = [name for name in ARGUMENT_KEYS if f"actor.{name}" in tables.keys]
    assert len(shared) > 450
    assert all(tables.keys[f"actor.{name}"] == ARGUMENT_KEYS[name] for name in shared)
    assert all(f"actor.{name}" in tables.ignored for name in ARGUMENT_IGNORED)


def printed(**values: ConfigLeaf) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    return "\n".join(
        [
            "------------------------ arguments ------------------------",
            *lines,
            "-------------------- end of arguments ---------------------",
        ]
    )


def test_a_printed_block_and_the_command_of_one_run_agree(tmp_path: Path) -> None:
    text = printed(
        add_bias_linear=False,
        bf16=True,
        hidden_size=3584,
        lr=1.25e-6,
        norm_epsilon=1e-6,
        num_attention_heads=28,
        group_query_attention=True,
        num_query_groups=4,
        seq_length=4096,
        swiglu=True,
        world_size=16,
    )
    log = written(tmp_path, text, "train.log")
    config = resolved(log)
    assert config.framework == "megatron"
    command = resolved(written(tmp_path, SCRIPT))
    for name in ("model.rms_norm_eps", "model.linear_bias", "model.head_dim", "trainer.world_size"):
        assert values_of(config)[name] == values_of(command)[name]


def test_what_mindspeed_rls_actor_printed_counts_before_its_yaml(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(
        "megatron_training:\n  stage: ray_grpo\n  norm_epsilon: 1e-6\n  global_batch_size: 32\n"
        "  hidden_size: 64\nactor_config:\n  lr: 1e-6\nrl_config:\n  n_samples_per_prompt: 8\n"
        "  mini_batch_size: 32\n"
    )
    block = printed(stage="ray_grpo", norm_epsilon=1e-5, global_batch_size=256, lr=1e-6)
    (tmp_path / "worker.log").write_text(block)
    values = values_of(resolved(tmp_path))
    assert values["model.rms_norm_eps"] == 1e-5
    assert values["data.train_batch_size"] == 32  # the worker's 256 are sequences


PLANTED = {
    "--norm-epsilon 1e-6": ("", "config.model.rms_norm_eps", (1e-6, 1e-5)),
    "--rotary-base 1000000": ("", "config.model.rope_theta", (1000000, 10000)),
    "--adam-beta2=0.95": ("", "config.actor.adam_beta2", (0.95, 0.999)),
    "--lr 1.25e-6": ("--lr 1e-5", "config.actor.lr", (1.25e-6, 1e-5)),
    "--disable-bias-linear": ("", "config.model.linear_bias", (False, True)),
    "--num-query-groups 4": ("", "config.model.num_key_value_heads", (4, 1)),
}


@pytest.mark.parametrize("flag", PLANTED)
def test_a_planted_difference_is_named_first_and_the_clean_pair_is_silent(
    flag: str, tmp_path: Path
) -> None:
    replacement, finding, values = PLANTED[flag]
    reference = resolved(written(tmp_path, SCRIPT, "a.sh"))
    assert compare_configs(reference, reference).findings == ()
    candidate = resolved(written(tmp_path, SCRIPT.replace(flag, replacement), "b.sh"))
    first, *others = compare_configs(reference, candidate).findings
    assert first.id == finding
    assert (first.reference, first.candidate) == values
    assert others == []
