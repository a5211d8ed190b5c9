"""verl on GPUs against MindSpeed-RL on NPUs: every known difference is found, with both values.

The differences are those of facts/mindspeed_rl.md and of the notes in facts/msrl_verl_mapping.tsv.
The pair is MindSpeed-RL's own 7B recipe, and the verl run that does the same.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from omegaconf import OmegaConf

from align.config.rung import compare_raw
from align.core.config_value import ConfigLeaf, RawConfig
from align.core.finding import Finding, Severity
from align.core.run import RunManifest
from align.core.rung import RungResult
from dumps.store.discover import discover
from dumps.store.run_data import RunData

# config.json as published (Apache-2.0), the keys that describe the architecture.
QWEN_7B: dict[str, object] = {
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN_MOE: dict[str, object] = {
    **QWEN_7B,
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "vocab_size": 151936,
}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
AS_MINDSPEED_RL = (
    "data.train_batch_size=32",
    "data.max_prompt_length=2048",
    "data.max_response_length=2048",
    "data.seed=1",
    "data.dataloader_num_workers=0",
    "data.filter_overlong_prompts=true",
    "actor_rollout_ref.model.path=/models/Qwen2.5-7B",
    "actor_rollout_ref.model.use_remove_padding=false",
    f"{ACTOR}.ppo_mini_batch_size=32",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ACTOR}.use_kl_loss=true",
    f"{ACTOR}.optim.betas=[0.9,0.95]",
    f"{ROLLOUT}.n=8",
    f"{ROLLOUT}.max_model_len=4096",
    "algorithm.adv_estimator=grpo",
    "trainer.n_gpus_per_node=16",
    "trainer.total_training_steps=500",
)
TRAINING, ACTOR_CONFIG, RL = "megatron_training", "actor_config", "rl_config"
GENERATE, SAMPLING = "generate_config", "generate_config.sampling_config"


@dataclass(frozen=True)
class Planted:
    """A difference: what is changed on either side, and what must be reported.

    ``~key`` takes a key away. ``verl`` and ``npu`` are overrides; ``moe`` takes the MoE models.
    """

    fact: str
    finding: str
    values: tuple[ConfigLeaf, ConfigLeaf]
    verl: Sequence[str] = ()
    npu: Sequence[str] = ()
    moe: bool = False
    version: str = "2.3.0"

    def __str__(self) -> str:
        return self.fact


OFF_POLICY = (f"{ACTOR}.ppo_mini_batch_size=16",), (f"{RL}.mini_batch_size=16",)
PPO = ("algorithm.adv_estimator=gae",), (f"{RL}.adv_estimator=gae", f"{TRAINING}.stage=ray_ppo")
DAPO = (f"{ACTOR}.use_kl_loss=false",), (f"{TRAINING}.stage=ray_dapo",)
DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=true",), (f"{RL}.use_dynamic_bsz=true",)


def missing(key: str, finding: str, values: tuple[ConfigLeaf, ConfigLeaf], **more) -> Planted:
    """Leave a key out on the NPU, so that its default applies."""
    return Planted(f"{key.rpartition('.')[2]} left out", finding, values, npu=(f"~{key}",), **more)


def both(change: tuple[tuple[str, ...], tuple[str, ...]], planted: Planted) -> Planted:
    """Plant a difference in a pair that is changed alike on both sides."""
    return replace(planted, verl=(*change[0], *planted.verl), npu=(*change[1], *planted.npu))


CODE = "done by the code: "
PLANTED = (
    # dangerous defaults
    missing("model.norm_epsilon", "model.rms_norm_eps", (1e-6, 1e-5)),
    missing("model.rotary_base", "model.rope_theta", (1e6, 1e4)),
    missing(f"{TRAINING}.attention_dropout", "model.attention_dropout", (0.0, 0.1)),
    missing(f"{TRAINING}.hidden_dropout", "model.hidden_dropout", (0.0, 0.1)),
    missing(f"{SAMPLING}.temperature", "rollout.temperature", (1.0, 0.2)),
    missing(f"{SAMPLING}.top_k", "rollout.top_k", (-1, 50)),
    missing(f"{SAMPLING}.max_tokens", "data.max_response_length", (2048, 128)),
    missing(f"{ACTOR_CONFIG}.lr_decay_style", "actor.lr_schedule", ("constant", "linear")),
    missing(f"{ACTOR_CONFIG}.adam_beta2", "actor.adam_beta2", (0.95, 0.999)),
    missing(f"{RL}.guarantee_order", "data.guarantee_order", (True, False)),
    missing(f"{RL}.init_kl_coef", "loss.kl_coef", (0.001, 0.01)),
    missing(f"{RL}.verifier_function", "reward.rules", ("chosen by data_source", "[base_acc]")),
    missing(f"{TRAINING}.seed", "data.seed", (1, 1234)),
    missing(f"{GENERATE}.max_model_len", "rollout.max_model_len", (4096, 2048)),
    missing(f"{GENERATE}.max_num_seqs", "rollout.max_num_seqs", (256, 1)),
    missing(f"{GENERATE}.max_num_batched_tokens", "rollout.max_num_batched_tokens", (8192, 2048)),
    missing(f"{GENERATE}.infer_tensor_parallel_size", "rollout.tensor_parallel_size", (2, 8)),
    Planted("no graphs by default", "rollout.enforce_eager", (False, True)),
    Planted("no prefix caching by default", "rollout.prefix_caching", (True, False)),
    Planted("sync engine by default", "rollout.mode", ("async", "sync")),
    both(PPO, missing(f"{RL}.lam", "advantage.lam", (1.0, 0.95))),
    both(
        DAPO,
        Planted(
            "clip_ratio_low",
            "loss.clip_ratio_low",
            (0.2, 0.1),
            npu=(f"{RL}.clip_higher_enable=true",),
        ),
    ),
    both(
        DAPO,
        Planted(
            "clip_ratio_high",
            "loss.clip_ratio_high",
            (0.2, 0.1),
            npu=(f"{RL}.clip_higher_enable=true",),
        ),
    ),
    # architecture that the YAML spells out
    Planted("num_layers", "model.num_layers", (28, 27), npu=("model.num_layers=27",)),
    Planted("hidden_size", "model.hidden_size", (3584, 4096), npu=("model.hidden_size=4096",)),
    Planted(
        "ffn_hidden_size",
        "model.intermediate_size",
        (18944, 18432),
        npu=("model.ffn_hidden_size=18432",),
    ),
    Planted(
        "num_attention_heads",
        "model.num_attention_heads",
        (28, 32),
        npu=("model.num_attention_heads=32",),
    ),
    missing("model.group_query_attention", "model.num_key_value_heads", (4, 28)),
    missing("model.num_query_groups", "model.num_key_value_heads", (4, 1)),
    Planted(
        "max_position_embeddings",
        "model.max_position_embeddings",
        (32768, 131072),
        npu=("model.max_position_embeddings=131072",),
    ),
    Planted(
        "padded_vocab_size",
        "model.vocab_size",
        (152064, 152192),
        npu=("model.padded_vocab_size=152192",),
    ),
    missing(
        "model.untie_embeddings_and_output_weights", "model.tie_word_embeddings", (False, True)
    ),
    missing("model.add_qkv_bias", "model.qkv_bias", (True, False)),
    missing("model.disable_bias_linear", "model.linear_bias", (False, True)),
    missing("model.normalization", "model.normalization", ("rmsnorm", "layernorm")),
    missing("model.swiglu", "model.activation", ("silu", "gelu")),
    missing(
        "model.position_embedding_type", "model.position_embedding", ("rope", "learned_absolute")
    ),
    missing("model.kv_channels", "model.head_dim", (128, 64), moe=True),
    missing("model.qk_layernorm", "model.qk_norm", (True, False), moe=True),
    missing("model.moe_router_topk", "model.num_experts_per_token", (8, 2), moe=True),
    missing("model.norm_topk_prob", "model.norm_topk_prob", (True, False), moe=True),
    missing("model.moe_aux_loss_coeff", "model.moe_aux_loss_coef", (0.0, 0.001), moe=True),
    Planted("epsilon that the model file forgets", "model.rms_norm_eps", (1e-6, 1e-5), moe=True),
    Planted(
        "attention_softmax_in_fp32 left out",
        "model.softmax_in_fp32",
        (True, False),
        npu=("~model.attention_softmax_in_fp32", f"~{TRAINING}.attention_softmax_in_fp32"),
    ),
    # what the code does and no key sets
    both(OFF_POLICY, Planted(CODE + "dual clip", "loss.dual_clip", (3.0, "none"))),
    Planted(
        CODE + "KL always in the loss",
        "loss.use_kl",
        (False, True),
        verl=(f"{ACTOR}.use_kl_loss=false",),
    ),
    Planted(
        CODE + "weight decay of 1-D parameters",
        "actor.weight_decay_exempt",
        ("nothing", "one-dimensional parameters and biases"),
    ),
    both(
        OFF_POLICY,
        Planted(
            CODE + "warmup per optimizer step",
            "actor.lr_advances",
            ("per training step", "per optimizer step"),
            verl=(f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1",),
            npu=(f"{ACTOR_CONFIG}.lr_warmup_fraction=0.1",),
        ),
    ),
    both(OFF_POLICY, Planted(CODE + "V1 balances", "trainer.balance_batch", (True, False))),
    Planted(
        CODE + "strict length filter",
        "data.length_filter",
        ("length <= max_prompt_length", "length < max_prompt_length"),
    ),
    Planted(
        CODE + "sampler",
        "data.sampler",
        ("torchdata", "torch"),
        verl=("data.dataloader_num_workers=8",),
    ),
    Planted(
        CODE + "text to vLLM since cb82020",
        "rollout.prompt_form",
        ("token ids", "text without special tokens"),
        version="master",
    ),
    Planted(CODE + "loss per micro-batch", "loss.normalization", ("mini-batch", "micro-batch")),
    Planted(CODE + "group statistics in float64", "advantage.dtype", ("float32", "float64")),
    Planted(
        CODE + "division by the deviation",
        "advantage.normalize_by_std",
        (False, True),
        verl=("algorithm.norm_adv_by_std_in_grpo=false",),
    ),
    Planted(
        CODE + "eos where a response never ended",
        "rollout.response_end",
        ("as generated", "first pad"),
    ),
    Planted(CODE + "pad id 0", "data.pad_zero_is_unset", (False, True)),
    Planted(CODE + "template applied offline", "data.templating", ("online", "offline")),
    # a key with another meaning or under another name
    Planted(
        "seq_length cuts prompts",
        "data.prompt_cut_length",
        (2048, 1024),
        npu=(f"{TRAINING}.seq_length=1024",),
    ),
    Planted("seed null", "data.seed", (67280421310721, 1), verl=("data.seed=null",)),
    Planted("no_shuffle", "data.shuffle", (True, False), npu=(f"{TRAINING}.no_shuffle=true",)),
    Planted(
        "template replaces eos",
        "data.eos_source",
        ("tokenizer", "end of turn"),
        npu=(f"{TRAINING}.prompt_type=qwen",),
    ),
    both(
        DYNAMIC,
        Planted(
            "max_packing_token_size alone",
            "actor.max_tokens_per_micro_batch",
            (16384, 4096),
            npu=(f"{RL}.max_packing_token_size=16384",),
        ),
    ),
    Planted(
        "mini_batch_size in prompts",
        "actor.mini_batch_size",
        (32, 256),
        npu=(f"{RL}.mini_batch_size=256", f"{TRAINING}.global_batch_size=32"),
    ),
    Planted(
        "mini_batch_size in sequences before 2025-05-15",
        "actor.mini_batch_size",
        (32, 4),
        version="2025-04",
    ),
    Planted(
        "rows shuffled by numpy before 2025-05-16",
        "data.sampler",
        ("torchdata", "numpy"),
        version="2025-04",
    ),
    Planted(
        "no length filter before 2.0.0",
        "data.length_filter",
        ("length <= max_prompt_length", "no filter"),
        version="2025-04",
    ),
    Planted(
        "global_batch_size",
        "data.train_batch_size",
        (32, 64),
        npu=(f"{TRAINING}.global_batch_size=64",),
    ),
    Planted("n_samples_per_prompt", "rollout.n", (8, 4), npu=(f"{RL}.n_samples_per_prompt=4",)),
    Planted(
        "micro_batch_size",
        "actor.micro_batch_size",
        (4, 2),
        npu=(f"{ACTOR_CONFIG}.micro_batch_size=2",),
    ),
    Planted(
        "actor_forward_micro_batch_size",
        "old_log_prob.micro_batch_size",
        (8, 4),
        verl=(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",),
    ),
    Planted(
        "ref_forward_micro_batch_size",
        "ref.micro_batch_size",
        (8, 4),
        verl=("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",),
    ),
    Planted(
        "use_dynamic_bsz", "actor.dynamic_batch", (False, True), npu=(f"{RL}.use_dynamic_bsz=true",)
    ),
    Planted(
        "use_remove_padding",
        "model.remove_padding",
        (True, False),
        verl=("actor_rollout_ref.model.use_remove_padding=true",),
    ),
    Planted("epochs are ppo_epochs", "actor.ppo_epochs", (1, 2), npu=(f"{RL}.epochs=2",)),
    Planted(
        "shuffle_mini_batch",
        "actor.shuffle_mini_batches",
        (False, True),
        npu=(f"{RL}.shuffle_mini_batch=true",),
    ),
    both(
        OFF_POLICY,
        Planted(
            "train_iters with a schedule",
            "trainer.total_steps",
            (500, 1000),
            verl=(f"{ACTOR}.optim.lr_scheduler_type=cosine",),
            npu=(f"{ACTOR_CONFIG}.lr_decay_style=cosine", f"{TRAINING}.train_iters=1000"),
        ),
    ),
    Planted(
        "max_prompt_length",
        "data.max_prompt_length",
        (2048, 1024),
        npu=(f"{RL}.max_prompt_length=1024",),
    ),
    Planted("top_p", "rollout.top_p", (1, 0.9), npu=(f"{SAMPLING}.top_p=0.9",)),
    Planted("min_p", "rollout.min_p", (0.0, 0.05), npu=(f"{SAMPLING}.min_p=0.05",)),
    Planted(
        "dtype of the engine",
        "rollout.dtype",
        ("bfloat16", "float16"),
        npu=(f"{GENERATE}.dtype=float16",),
    ),
    Planted("lr", "actor.lr", (1e-6, 1e-7), npu=(f"{ACTOR_CONFIG}.lr=1e-7",)),
    Planted(
        "lr_warmup_fraction",
        "actor.lr_warmup_fraction",
        (0.0, 0.1),
        npu=(f"{ACTOR_CONFIG}.lr_warmup_fraction=0.1",),
    ),
    Planted("min_lr", "actor.min_lr", (0.0, 1e-7), npu=(f"{ACTOR_CONFIG}.min_lr=1e-7",)),
    Planted(
        "weight_decay", "actor.weight_decay", (0.01, 0.1), npu=(f"{ACTOR_CONFIG}.weight_decay=0.1",)
    ),
    Planted(
        "clip_grad", "actor.clip_grad", (1.0, 10000.0), npu=(f"{ACTOR_CONFIG}.clip_grad=10000.0",)
    ),
    Planted(
        "adam_eps cannot be set on the NPU",
        "actor.adam_eps",
        (1e-6, 1e-8),
        verl=(f"{ACTOR}.optim.override_optimizer_config.eps=1e-6",),
    ),
    Planted("bf16", "actor.dtype", ("bfloat16", "float32"), npu=(f"{TRAINING}.bf16=false",)),
    Planted("kl_penalty", "loss.kl_type", ("low_var_kl", "kl"), npu=(f"{RL}.kl_penalty=kl",)),
    Planted("clip_ratio", "loss.clip_ratio_high", (0.2, 0.3), npu=(f"{RL}.clip_ratio=0.3",)),
    Planted("entropy_coeff", "loss.entropy_coef", (0, 0.01), npu=(f"{RL}.entropy_coeff=0.01",)),
    Planted(
        "adv_estimator",
        "advantage.estimator",
        ("gae", "grpo"),
        verl=("algorithm.adv_estimator=gae",),
    ),
    both(
        PPO,
        Planted(
            "use_kl_in_reward",
            "reward.use_kl_in_reward",
            (True, False),
            verl=("algorithm.use_kl_in_reward=true",),
        ),
    ),
    both(
        PPO,
        Planted(
            "cliprange_value", "critic.clip_range", (0.5, 0.2), npu=(f"{RL}.cliprange_value=0.2",)
        ),
    ),
    both(
        DAPO,
        Planted(
            "token_level_loss",
            "loss.aggregation",
            ("token-mean", "seq-mean-token-mean"),
            npu=(f"{RL}.token_level_loss=false",),
        ),
    ),
    both(
        DAPO,
        Planted(
            "filter_groups",
            "reward.filter_groups",
            (False, True),
            npu=(f"{RL}.filter_groups_enable=true",),
        ),
    ),
    both(
        DAPO,
        Planted(
            "overlong_buffer",
            "reward.overlong_penalty",
            (False, True),
            npu=(f"{RL}.overlong_buffer_enable=true",),
        ),
    ),
    Planted(
        "context_parallel_size",
        "actor.context_parallel_size",
        (1, 2),
        npu=(f"{ACTOR_CONFIG}.context_parallel_size=2",),
    ),
    Planted("num_npus", "trainer.world_size", (16, 8), npu=(f"{RL}.actor_resource.num_npus=8",)),
    Planted(
        "npu_deterministic",
        "actor.deterministic",
        (False, True),
        npu=(f"{TRAINING}.npu_deterministic=true",),
    ),
    Planted(
        "lora",
        "model.lora_rank",
        (0, 8),
        npu=(f"{TRAINING}.lora_target_modules=[linear_qkv]",),
        version="master",
    ),
    Planted("offload_train_optimizer", "actor.offload.optimizer", (False, True)),
    Planted(
        "tokenizer_name_or_path",
        "model.name",
        ("/models/Qwen2.5-7B", "./Qwen2.5-7B-Instruct"),
        npu=(f"{TRAINING}.tokenizer_name_or_path=./Qwen2.5-7B-Instruct",),
    ),
)


@pytest.fixture(scope="module")
def verl_base(reference_runs: Path) -> dict[str, Any]:
    """Give verl 0.9's whole configuration."""
    composed = OmegaConf.load(reference_runs / "ppo_trainer.resolved.yaml")
    return cast("dict[str, Any]", OmegaConf.to_container(composed))


def overridden(base: dict[str, Any], changes: Sequence[str]) -> dict:
    """Return a configuration with ``key=value`` set and ``~key`` taken away."""
    taken = [change[1:] for change in changes if change.startswith("~")]
    config = OmegaConf.create(base)
    config.merge_with_dotlist([change for change in changes if not change.startswith("~")])
    made = cast("dict[str, Any]", OmegaConf.to_container(config))
    for key in taken:
        *parents, last = key.split(".")
        section = made
        for parent in parents:
            section = section[parent]
        del section[last]
    return made


def read(folder: Path) -> tuple[RawConfig, ...]:
    data = RunData(discover([folder]))
    assert data.configs and not data.problems
    return data.configs


def verl_run(
    folder: Path, base: dict, changes: Sequence[str], model: dict
) -> tuple[RawConfig, ...]:
    folder.mkdir()
    config = overridden(base, (*AS_MINDSPEED_RL, *changes))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    return read(folder)


def npu_run(
    folder: Path, corpus: Path, changes: Sequence[str], model: str
) -> tuple[RawConfig, ...]:
    """Write MindSpeed-RL's 7B recipe with changes; ``model.`` changes go to the model's file."""
    source = corpus / "mindspeed_rl"
    main = yaml.safe_load((source / "grpo_qwen25_7b_A3.yaml").read_text(encoding="utf-8"))
    part = yaml.safe_load((source / "model" / f"{model}.yaml").read_text(encoding="utf-8"))
    of_model = [c for c in changes if c.lstrip("~").startswith("model.")]
    changed = overridden({"model": part[model]}, of_model)["model"]
    main["defaults"] = [{"model": [model]}]
    main["megatron_training"]["model"] = main["actor_config"]["model"] = model
    main = overridden(main, [change for change in changes if change not in of_model])
    (folder / "model").mkdir(parents=True)
    (folder / "grpo.yaml").write_text(yaml.safe_dump(main), encoding="utf-8")
    (folder / "model" / f"{model}.yaml").write_text(yaml.safe_dump({model: changed}))
    return read(folder)


def compared(planted: Planted, base: dict, corpus: Path, folder: Path) -> RungResult:
    model = ("qwen3_30b_a3b", QWEN_MOE) if planted.moe else ("qwen25_7b", QWEN_7B)
    return compare_raw(
        (
            verl_run(folder / "gpu", base, planted.verl, model[1]),
            RunManifest(framework="verl", framework_version="0.9.1"),
        ),
        (
            npu_run(folder / "npu", corpus, planted.npu, model[0]),
            RunManifest(framework="mindspeed_rl", framework_version=planted.version),
        ),
    )


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_every_listed_difference_is_found_with_both_effective_values(
    planted: Planted, verl_base: dict, corpus: Path, tmp_path: Path
) -> None:
    result = compared(planted, verl_base, corpus, tmp_path)
    found = {finding.id: finding for finding in result.findings}
    finding = found[f"config.{planted.finding}"]
    assert (finding.reference, finding.candidate) == planted.values
    assert len(finding.evidence) == 2 and finding.why.zh and finding.fix.zh


ALIGNED = Planted("aligned", "", (None, None), npu=(f"{RL}.guarantee_order=true",))


def test_the_aligned_pair_has_no_error(verl_base: dict, corpus: Path, tmp_path: Path) -> None:
    result = compared(ALIGNED, verl_base, corpus, tmp_path)
    assert [f.id for f in result.findings if f.severity is Severity.ERROR] == []
    # 64 sequences a rank in micro-batches of 4: the two average over other batches
    assert [f.id for f in result.findings if f.severity is Severity.WARNING] == [
        "config.loss.normalization"
    ]


def test_a_planted_key_is_silent_where_both_sides_agree(
    verl_base: dict, corpus: Path, tmp_path: Path
) -> None:
    clean = {f.id for f in compared(ALIGNED, verl_base, corpus, tmp_path).findings}
    of_code = {f"config.{p.finding}" for p in PLANTED if not p.verl and not p.npu}
    of_code |= {f"config.{p.finding}" for p in PLANTED if p.fact.startswith(CODE)}
    engine = ("config.rollout.max_num_seqs", "config.rollout.tensor_parallel_size")
    unset = ("config.old_log_prob.micro_batch_size", "config.ref.micro_batch_size")
    planted = {f"config.{p.finding}" for p in PLANTED} - of_code - {*engine, *unset}
    assert planted & clean == {"config.reward.rules"}  # names of rules are never comparable


def test_what_no_key_sets_names_the_code_and_does_not_ask_to_set_it(
    verl_base: dict, corpus: Path, tmp_path: Path
) -> None:
    result = compared(Planted("", "", (None, None), version="master"), verl_base, corpus, tmp_path)
    finding = next(f for f in result.findings if f.id == "config.rollout.prompt_form")
    assert finding.evidence[1].source == "code of MindSpeed-RL master"
    assert "No key" in finding.fix.en and "Write" not in finding.fix.en
    assert finding.severity is Severity.ERROR


def test_the_configuration_that_verl_prints_gives_the_same_findings(
    verl_base: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    planted = Planted("", "", (None, None), npu=("~model.norm_epsilon", f"~{SAMPLING}.temperature"))
    composed = compared(planted, verl_base, corpus, tmp_path)
    text = pprint.pformat(overridden(verl_base, AS_MINDSPEED_RL))
    lines = [f"\x1b[36m(TaskRunner pid=7)\x1b[0m {line}" for line in text.splitlines()]
    (tmp_path / "gpu" / "config.yaml").unlink()
    (tmp_path / "gpu" / "train.log").write_text("\n".join(lines), encoding="utf-8")
    printed = compare_raw(
        (read(tmp_path / "gpu"), RunManifest(framework_version="0.9.1")),
        (read(tmp_path / "npu"), RunManifest(framework_version="2.3.0")),
    )
    assert ids(printed.findings) == ids(composed.findings)
    assert len(printed.findings) > 20


def test_a_key_that_is_never_read_is_no_difference(
    verl_base: dict, corpus: Path, tmp_path: Path
) -> None:
    changes = (
        f"{RL}.advantage_whiten=false",
        f"{TRAINING}.full_shuffle_instruction_dataset=true",
        f"{RL}.max_packing_token_size=1",
    )
    clean = compared(ALIGNED, verl_base, corpus, tmp_path)
    (tmp_path / "again").mkdir()
    dead = replace(ALIGNED, npu=(*ALIGNED.npu, *changes))
    again = compared(dead, verl_base, corpus, tmp_path / "again")
    assert ids(again.findings) == ids(clean.findings)


def ids(findings: Sequence[Finding]) -> list[tuple[str, object, object]]:
    return [(f.id, f.reference, f.candidate) for f in findings if f.id != "config.notes"]
