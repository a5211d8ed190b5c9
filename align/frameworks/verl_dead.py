"""verl keys that a version, an engine or another key leaves without effect.

Sources: the workers, engines, loaders and losses of the tags v0.3.0.post1 to v0.9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from align.core.config_value import ConfigValue
from align.core.text import Text
from align.frameworks.verl_versions import before, numbers

_ACTOR = "actor_rollout_ref.actor"
_ROLES = {
    "actor": (_ACTOR,),
    "ref": ("actor_rollout_ref.ref",),
    "critic": ("critic", "critic.model"),
}
# parts of a role's section that belong to one engine
_PARTS = {"fsdp": ("fsdp_config.",), "megatron": ("megatron.",)}


def engine_of(values: Mapping[str, ConfigValue]) -> str:
    """Return the actor's engine by the trainer whose defaults apply to it: fsdp or megatron."""
    strategy = values.get(f"{_ACTOR}.strategy")
    return "megatron" if strategy is not None and strategy.value == "megatron" else "fsdp"


def engine_workers(values: Mapping[str, ConfigValue], version: str | None) -> bool:
    """Tell whether the engine workers train: from 0.8 on, in 0.7 where the old ones are disabled.

    They clip by `optim.clip_grad`, shuffle mini-batches themselves and divide the loss by the
    tokens of the whole mini-batch.
    """
    old = values.get("trainer.use_legacy_worker_impl")
    disabled = old is not None and str(old.value) == "disable"
    return not before(version, "0.8.0" if not disabled else "0.7.0")


def dead_keys(
    keys: Iterable[str], values: Mapping[str, ConfigValue], version: str | None
) -> dict[str, Text]:
    """Say which of these keys are not read, given what is set.

    Args:
        keys: to judge: those that are set, or those with a default.
        values: what is set.
        version: of verl, None where it is not known; then only what holds in any version, or
            what two keys that are both there decide, is dead.
    """
    keys = set(keys)
    dead: dict[str, Text] = {}
    strategy = values.get(f"{_ACTOR}.strategy")
    if strategy is not None:
        engine = "megatron" if strategy.value == "megatron" else "fsdp"
        other = "fsdp" if engine == "megatron" else "megatron"
        for key in keys:
            if _belongs_to(other, key):
                dead[key] = _engine(str(strategy.value))
    _clipping(keys, values, version, dead)
    _schedule(keys, values, version, dead)
    _batches(keys, values, version, dead)
    _clip_ratio(keys, values, dead)
    return dead


def _belongs_to(engine: str, key: str) -> bool:
    sections = (section for roles in _ROLES.values() for section in roles)
    return any(key.startswith(f"{s}.{part}") for s in sections for part in _PARTS[engine])


def _engine(name: str) -> Text:
    return Text(f"the engine is {name}", f"训练引擎为 {name}")


def _clipping(
    keys: set[str], values: Mapping[str, ConfigValue], version: str | None, dead: dict[str, Text]
) -> None:
    """`actor.grad_clip` counts for the FSDP workers up to 0.7, `optim.clip_grad` elsewhere."""
    old, new = f"{_ACTOR}.grad_clip", f"{_ACTOR}.optim.clip_grad"
    if engine_of(values) == "megatron":
        if old in keys:
            dead[old] = Text(
                "Megatron clips by optim.clip_grad", "Megatron 按 optim.clip_grad 裁剪"
            )
    elif engine_workers(values, version):
        if old in keys and (new in keys or numbers(version or "")):
            dead[old] = Text(
                "verl from 0.8 on clips by optim.clip_grad", "verl 0.8 起按 optim.clip_grad 裁剪"
            )
    elif new in keys:
        dead[new] = Text(
            f"verl {version} clips by actor.grad_clip", f"verl {version} 按 actor.grad_clip 裁剪"
        )


def _schedule(
    keys: set[str], values: Mapping[str, ConfigValue], version: str | None, dead: dict[str, Text]
) -> None:
    """FSDP reads warmup_style from 0.4 and lr_scheduler_type from 0.6 on, Megatron neither."""
    style, kind = f"{_ACTOR}.optim.warmup_style", f"{_ACTOR}.optim.lr_scheduler_type"
    if engine_of(values) == "megatron":
        reason = Text("Megatron reads lr_decay_style", "Megatron 读取 lr_decay_style")
        dead.update({key: reason for key in (style, kind) if key in keys})
    elif before(version, "0.4.0") and style in keys:
        dead[style] = Text(
            "verl before 0.4 has a constant learning rate only", "verl 0.4 之前学习率只有 constant"
        )
    elif before(version, "0.6.0") and kind in keys:
        dead[kind] = Text("verl before 0.6 reads warmup_style", "verl 0.6 之前读取 warmup_style")


def _batches(
    keys: set[str], values: Mapping[str, ConfigValue], version: str | None, dead: dict[str, Text]
) -> None:
    """Shuffled mini-batches, truncation and balancing have each a time and a trainer."""
    if engine_of(values) == "fsdp" and not engine_workers(values, version):
        reason = Text(
            "the FSDP workers up to 0.7 split a batch in order",
            "0.7 及以前的 FSDP worker 按顺序切分 batch",
        )
        dead.update(
            {k: reason for k in (f"{_ACTOR}.shuffle", f"{_ACTOR}.data_loader_seed") if k in keys}
        )
    if numbers(version or "") and not before(version, "0.7.0") and "data.truncation" in keys:
        dead["data.truncation"] = Text(
            "verl from 0.7 on does not tokenise in the data set",
            "verl 0.7 起不再在数据集中进行分词",
        )
    v1 = values.get("trainer.use_v1")
    on = v1.value is True if v1 is not None else numbers(version or "") is not None
    if on and not before(version, "0.9.0") and "trainer.balance_batch" in keys:
        dead["trainer.balance_batch"] = Text(
            "the V1 trainer always balances", "V1 训练流程总是均衡"
        )


def _clip_ratio(keys: set[str], values: Mapping[str, ConfigValue], dead: dict[str, Text]) -> None:
    """The vanilla loss takes clip_ratio_low and clip_ratio_high where both are set."""
    bounds = (values.get(f"{_ACTOR}.clip_ratio_low"), values.get(f"{_ACTOR}.clip_ratio_high"))
    mode = values.get(f"{_ACTOR}.policy_loss.loss_mode")
    vanilla = mode is None or mode.value == "vanilla"
    key = f"{_ACTOR}.clip_ratio"
    set_both = all(bound is not None and bound.value is not None for bound in bounds)
    if vanilla and set_both and key in keys:
        dead[key] = Text(
            "the vanilla loss takes clip_ratio_low and clip_ratio_high",
            "vanilla 损失采用 clip_ratio_low 与 clip_ratio_high",
        )
