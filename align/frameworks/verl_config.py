"""verl's configuration keys, 0.2 to 0.9, FSDP and Megatron trainers.

Sources: the composed configurations of the tags v0.3.0 to v0.9.0 and the code that reads them;
0.9.1 was run.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.core.text import Text
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Formula,
    NotSet,
    number,
    version_tuple,
)
from align.frameworks.verl_defaults import config_defaults as config_defaults
from align.frameworks.verl_harmless import CONFIG_IGNORED as CONFIG_IGNORED
from align.frameworks.verl_keys import CONFIG_KEYS as CONFIG_KEYS

READS_MODEL_CONFIG = True

CONFIG_SIGNS = (
    "actor_rollout_ref.*",
    "algorithm.adv_estimator",
    "trainer.n_gpus_per_node",
)

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"


def _if_set(value: ConfigLeaf) -> ConfigLeaf | NotSet:
    return NOT_SET if value is None else value


def _warmup_steps(steps: ConfigLeaf) -> ConfigLeaf | NotSet:
    count = number(steps)
    return NOT_SET if count is None or count <= 0 else steps


def _warmup_fraction(steps: ConfigLeaf, ratio: ConfigLeaf) -> ConfigLeaf | NotSet:
    count = number(steps)
    return NOT_SET if count is not None and count > 0 else ratio


def _min_lr(ratio: ConfigLeaf, lr: ConfigLeaf) -> float | NotSet:
    peak = number(lr)
    return NOT_SET if peak is None else (number(ratio) or 0.0) * peak


def _world_size(nodes: ConfigLeaf, per_node: ConfigLeaf) -> float | NotSet:
    a, b = number(nodes), number(per_node)
    return NOT_SET if a is None or b is None else int(a * b)


def _optimizer(name: ConfigLeaf) -> ConfigLeaf:
    # Megatron's "adam" decouples weight decay, as AdamW does.
    return "adamw" if str(name).lower() in ("adam", "adamw") else name


CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "data.gen_batch_size",
        ("data.gen_batch_size",),
        _if_set,
        "gen_batch_size",
    ),
    Formula(
        "data.seed",
        ("data.seed",),
        lambda seed: 67280421310721 if seed is None else seed,
        "data.seed; null leaves torch.Generator at its constant seed 67280421310721",
    ),
    Formula(
        "data.length_filter",
        ("data.filter_overlong_prompts",),
        lambda on: "length <= max_prompt_length" if str(on).lower() == "true" else "no filter",
        "filter_overlong_prompts keeps length <= max_prompt_length",
    ),
    Formula(
        "model.tokenizer",
        (f"{_MODEL}.tokenizer_path",),
        _if_set,
        "tokenizer_path",
    ),
    Formula(
        "actor.lr_warmup_steps",
        (f"{_ACTOR}.optim.lr_warmup_steps",),
        _warmup_steps,
        "lr_warmup_steps where it is above 0",
    ),
    Formula(
        "actor.lr_warmup_fraction",
        (f"{_ACTOR}.optim.lr_warmup_steps", f"{_ACTOR}.optim.lr_warmup_steps_ratio"),
        _warmup_fraction,
        "lr_warmup_steps_ratio where lr_warmup_steps is not above 0",
    ),
    Formula(
        "actor.lr_schedule",
        (f"{_ACTOR}.optim.lr_scheduler_type", f"{_ACTOR}.optim.warmup_style"),
        lambda kind, style: kind if style is None else style,
        "warmup_style (its old name) where it is set, else lr_scheduler_type",
    ),
    *(
        Formula("actor.lr_schedule", (f"{_ACTOR}.optim.{key}",), lambda style: style, key)
        for key in ("lr_scheduler_type", "lr_decay_style", "warmup_style")
    ),
    Formula(
        "actor.min_lr",
        (f"{_ACTOR}.optim.min_lr_ratio", f"{_ACTOR}.optim.lr"),
        _min_lr,
        "min_lr_ratio × lr",
    ),
    Formula("actor.min_lr", (f"{_ACTOR}.optim.min_lr",), lambda lr: lr, "min_lr"),
    Formula("actor.adam_beta1", (f"{_ACTOR}.optim.betas",), lambda betas: betas[0], "betas[0]"),
    Formula("actor.adam_beta2", (f"{_ACTOR}.optim.betas",), lambda betas: betas[1], "betas[1]"),
    Formula(
        "actor.optimizer",
        (f"{_ACTOR}.optim.optimizer",),
        _optimizer,
        "adam and AdamW both decouple weight decay",
    ),
    Formula(
        "critic.optimizer",
        ("critic.optim.optimizer",),
        _optimizer,
        "adam and AdamW both decouple weight decay",
    ),
    Formula(
        "trainer.world_size",
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
        _world_size,
        "nnodes × n_gpus_per_node",
    ),
    Formula(
        "critic.used",
        ("critic.enable", "algorithm.adv_estimator"),
        lambda enable, estimator: estimator == "gae" if enable is None else enable,
        "critic.enable, else adv_estimator is gae",
    ),
    Formula(
        "critic.used",
        ("algorithm.adv_estimator",),
        lambda estimator: estimator == "gae",
        "adv_estimator is gae",
    ),
    Formula(
        "ref.used",
        (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"),
        lambda in_loss, in_reward: bool(in_loss) or bool(in_reward),
        "use_kl_loss or use_kl_in_reward",
    ),
)


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Leave out keys that this version, engine or loss does not read.

    Source: `actor.grad_clip` is read by the FSDP workers up to 0.7 and by nothing from 0.8 on,
    where `optim.clip_grad` is; the vanilla loss takes clip_ratio_low and clip_ratio_high where
    they are set.
    """
    dead: dict[str, Text] = {}
    strategy = values.get(f"{_ACTOR}.strategy")
    megatron = strategy is not None and strategy.value == "megatron"
    for key in values:
        if megatron and key.startswith(f"{_ACTOR}.fsdp_config."):
            dead[key] = _engine("megatron")
        elif strategy and not megatron and key.startswith(f"{_ACTOR}.megatron."):
            dead[key] = _engine(str(strategy.value))
    _dead_clip_grad(values, version, dead)
    _dead_clip_ratio(values, dead)
    return ConfigView({k: v for k, v in values.items() if k not in dead}, dead)


def _engine(name: str) -> Text:
    return Text(f"the engine is {name}", f"训练引擎为 {name}")


def _dead_clip_grad(
    values: Mapping[str, ConfigValue], version: str | None, dead: dict[str, Text]
) -> None:
    old, new = f"{_ACTOR}.grad_clip", f"{_ACTOR}.optim.clip_grad"
    if old in values and new in values:
        known = version_tuple(version)
        if known is not None and known < (0, 8):
            dead[new] = Text(
                f"verl {version} clips by actor.grad_clip",
                f"verl {version} 按 actor.grad_clip 裁剪",
            )
        else:
            dead[old] = Text(
                "verl from 0.8 on clips by optim.clip_grad", "verl 0.8 起按 optim.clip_grad 裁剪"
            )


def _dead_clip_ratio(values: Mapping[str, ConfigValue], dead: dict[str, Text]) -> None:
    bounds = (values.get(f"{_ACTOR}.clip_ratio_low"), values.get(f"{_ACTOR}.clip_ratio_high"))
    mode = values.get(f"{_ACTOR}.policy_loss.loss_mode")
    vanilla = mode is None or mode.value == "vanilla"
    if vanilla and all(bound is not None and bound.value is not None for bound in bounds):
        key = f"{_ACTOR}.clip_ratio"
        if key in values:
            dead[key] = Text(
                "the vanilla loss takes clip_ratio_low and clip_ratio_high",
                "vanilla 损失采用 clip_ratio_low 与 clip_ratio_high",
            )


# Keys that tell the oldest version that can have printed them.
_FIRST_SEEN = (("trainer.use_v1", "0.9"), (f"{_ROLLOUT}.logprobs_mode", "0.7"))


def config_version(values: Mapping[str, ConfigValue]) -> str | None:
    """Guess the oldest version that has these keys; a caller must state it as an assumption."""
    return next((version for key, version in _FIRST_SEEN if key in values), None)
