"""Fields that MindSpeed-RL makes from several keys, or keeps in another unit or sense."""

from __future__ import annotations

from align.core.config_value import ConfigLeaf
from align.core.text import Text
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number
from align.frameworks.megatron_formulas import formulas, negated

IN_SEQUENCES = "rl_config.mini_batch_size (sequences)"
ONE_BUDGET = "rl_config.max_packing_token_size (every pass)"
"""Keys under which the view keeps what an old version means otherwise."""

_SINCE = Text(
    "mini_batch_size is in prompts, as since 2025-05-15 (61effad); before that it was in sequences",
    "mini_batch_size 以 prompt 计，2025-05-15（61effad）起如此；此前以序列计",
)
_BEFORE = Text(
    "mini_batch_size is in sequences, as before 2025-05-15 (61effad)",
    "mini_batch_size 以序列计，2025-05-15（61effad）之前如此",
)


def _mode(mode: ConfigLeaf) -> str:
    return "async" if mode else "sync"


def _estimator(name: ConfigLeaf) -> ConfigLeaf:
    return "grpo" if name == "group_norm" else name


def _kl_in_loss(stage: ConfigLeaf) -> bool | NotSet:
    if stage not in ("ray_grpo", "ray_dapo"):
        return NOT_SET
    return stage == "ray_grpo"


def _clip(bound: str) -> Formula:
    def convert(stage: ConfigLeaf, higher: ConfigLeaf, own: ConfigLeaf, both: ConfigLeaf) -> object:
        return own if stage == "ray_dapo" and higher else both

    return Formula(
        f"loss.clip_ratio_{bound}",
        (
            "actor.stage",
            "rl_config.clip_higher_enable",
            f"rl_config.clip_ratio_{bound}",
            "rl_config.clip_ratio",
        ),
        convert,
        f"clip_ratio_{bound} with clip_higher_enable (stage ray_dapo), else clip_ratio",
    )


def _aggregation(stage: ConfigLeaf, by_token: ConfigLeaf) -> str:
    return "token-mean" if stage != "ray_dapo" or by_token else "seq-mean-token-mean"


def _shorter(length: ConfigLeaf, limit: ConfigLeaf) -> float | NotSet:
    cut, longest = number(length), number(limit)
    if cut is None or longest is None:
        return NOT_SET
    return int(min(cut, longest))


def _prompts(sequences: ConfigLeaf, n: ConfigLeaf) -> float | NotSet:
    count, group = number(sequences), number(n)
    if count is None or not group:
        return NOT_SET
    return int(count / group) if (count / group).is_integer() else count / group


CONFIG_FORMULAS: tuple[Formula, ...] = (
    *formulas("actor."),
    Formula(
        "model.linear_bias", ("actor.disable_bias_linear",), negated, "not disable_bias_linear"
    ),
    Formula(
        "actor.dtype",
        ("actor.bf16",),
        lambda bf16: "bfloat16" if bf16 else "float32",
        "bfloat16 with bf16",
    ),
    Formula(
        "actor.master_dtype",
        ("actor.bf16",),
        lambda bf16: "float32",
        "Megatron's optimizer keeps float32 main parameters",
    ),
    Formula(
        "actor.lr_warmup_fraction",
        ("actor.lr_warmup_fraction",),
        lambda fraction: 0.0 if fraction is None else fraction,
        "lr_warmup_fraction, else 0",
    ),
    *(
        Formula(f"actor.precision_options.{name}", (f"actor.no_{name}",), negated, f"not no_{name}")
        for name in (
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "gradient_accumulation_fusion",
        )
    ),
    Formula("data.shuffle", ("actor.no_shuffle",), negated, "not no_shuffle"),
    Formula(
        "data.prompt_cut_length",
        ("actor.seq_length", "rl_config.max_prompt_length"),
        _shorter,
        "min(seq_length, max_prompt_length)",
    ),
    Formula(
        "actor.mini_batch_size",
        (IN_SEQUENCES, "rl_config.n_samples_per_prompt"),
        _prompts,
        "mini_batch_size / n_samples_per_prompt",
        _BEFORE,
    ),
    Formula(
        "actor.mini_batch_size",
        ("rl_config.mini_batch_size",),
        lambda size: size,
        "mini_batch_size",
        _SINCE,
    ),
    *(
        Formula(
            field,
            (ONE_BUDGET,),
            lambda size: size,
            "max_packing_token_size, the one budget of every pass up to 2.1.0",
        )
        for field in (
            "actor.max_tokens_per_micro_batch",
            "old_log_prob.max_tokens",
            "ref.max_tokens",
        )
    ),
    Formula(
        "old_log_prob.micro_batch_size",
        ("rl_config.actor_forward_micro_batch_size", "actor.micro_batch_size"),
        lambda own, update: update if own is None else own,
        "actor_forward_micro_batch_size, else micro_batch_size",
    ),
    Formula("advantage.estimator", ("rl_config.adv_estimator",), _estimator, "group_norm is grpo"),
    Formula(
        "reward.rules",
        ("rl_config.verifier_function",),
        lambda names: names,
        "verifier_function",
    ),
    Formula(
        "critic.used",
        ("rl_config.adv_estimator",),
        lambda name: name == "gae",
        "adv_estimator is gae",
    ),
    _clip("low"),
    _clip("high"),
    Formula(
        "loss.aggregation",
        ("actor.stage", "rl_config.token_level_loss"),
        _aggregation,
        "token-mean per micro-batch; with stage ray_dapo as token_level_loss says",
    ),
    Formula(
        "loss.use_kl", ("actor.stage",), _kl_in_loss, "always with ray_grpo, never with ray_dapo"
    ),
    Formula(
        "loss.kl_coef",
        ("actor.stage", "rl_config.init_kl_coef"),
        lambda stage, coefficient: coefficient if stage == "ray_grpo" else NOT_SET,
        "init_kl_coef with stage ray_grpo",
    ),
    Formula(
        "loss.kl_type",
        ("actor.stage", "rl_config.kl_penalty"),
        lambda stage, kind: kind if stage == "ray_grpo" else NOT_SET,
        "kl_penalty with stage ray_grpo",
    ),
    Formula(
        "reward.kl_coef",
        ("actor.stage", "rl_config.init_kl_coef"),
        lambda stage, coefficient: coefficient if stage == "ray_ppo" else NOT_SET,
        "init_kl_coef with stage ray_ppo",
    ),
    Formula(
        "reward.kl_penalty",
        ("actor.stage", "rl_config.kl_penalty"),
        lambda stage, kind: kind if stage == "ray_ppo" else NOT_SET,
        "kl_penalty with stage ray_ppo",
    ),
    Formula(
        "ref.used",
        ("actor.stage",),
        lambda stage: True if stage == "ray_grpo" else NOT_SET,
        "stage ray_grpo",
    ),
    Formula("rollout.mode", ("rl_config.async_engine",), _mode, "async with async_engine"),
)
