"""The distributed optimizer of verl's Megatron engine on NPU has three switches.

Source: Qwen3-235B report, section on the distributed optimizer; verl's performance guide for Ascend
(the switch in override_transformer_config).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_KEYS = {
    "actor.parallel_options.use_distributed_optimizer": "actor.megatron.use_distributed_optimizer",
    "ref.megatron.use_distributed_optimizer": "ref.megatron.use_distributed_optimizer",
    "actor.parallel_options.transformer_optimizer": (
        "actor.megatron.override_transformer_config.use_distributed_optimizer"
    ),
}
_SWITCHES = tuple(_KEYS)


def check(run: OneRun) -> Iterator[Finding]:
    """Report it where only some switches are on."""
    megatron = run.framework == "verl" and run.value("actor.strategy") == "megatron"
    switches = [s for s in _SWITCHES if "ref." not in s or run.is_on("ref.used")]
    missing = [s for s in switches if not run.is_on(s)]
    if not megatron or not run.on_npu or not missing or len(missing) == len(switches):
        return
    names = ", ".join(_KEYS[name] for name in missing)
    yield problem(
        run,
        "distributed_optimizer",
        Severity.INFO,
        Effect(Rung.OPTIMIZER, Strength.NUMERIC),
        run.known(*switches),
        Text(
            f"the distributed optimizer is only partly switched on: {names} is not",
            f"分布式优化器只开启了一部分：未开启 {names}",
        ),
        Text(
            "MindSpeed then keeps whole optimizer states on every card: memory and communication "
            "are higher than planned, numbers differ by rounding alone.",
            "MindSpeed 会在每张卡上保留完整的优化器状态：显存与通信高于预期，数值只有舍入差异。",
        ),
        Text(
            "Set actor.megatron.use_distributed_optimizer, ref.megatron.use_distributed_optimizer "
            "and +actor.megatron.override_transformer_config.use_distributed_optimizer to True.",
            "将 actor.megatron.use_distributed_optimizer、"
            "ref.megatron.use_distributed_optimizer 与 "
            "+actor.megatron.override_transformer_config.use_distributed_optimizer 都设为 True。",
        ),
    )


_MEGATRON: Settings = {"actor.strategy": "megatron", "trainer.device": "npu", "ref.used": True}
_ALL = dict.fromkeys(_SWITCHES, True)
FIRES = (Example(_MEGATRON | {_SWITCHES[0]: True}, Severity.INFO),)
SILENT = (
    Example(_MEGATRON | _ALL),
    Example(_MEGATRON | {"trainer.device": "cuda", _SWITCHES[0]: True}),
    Example(_MEGATRON),
)
