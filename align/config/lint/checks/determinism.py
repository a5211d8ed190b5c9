"""Determinism on NPU needs all of its switches.

Source: verl's precision guide for Ascend (section 4.2: CLOSE_MATMUL_K_SHIFT, ATB_MATMUL_SHUFFLE_K_
ENABLE, HCCL_DETERMINISTIC, with AIV expansion LCCL_DETERMINISTIC and ATB_LLM_LCOC_ENABLE);
MindSpeed-RL's npu_deterministic sets them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_HCCL = {
    "env.CLOSE_MATMUL_K_SHIFT": ("1",),
    "env.ATB_MATMUL_SHUFFLE_K_ENABLE": ("0",),
    "env.HCCL_DETERMINISTIC": ("true", "strict", "1"),
}
_AIV = {"env.LCCL_DETERMINISTIC": ("1",), "env.ATB_LLM_LCOC_ENABLE": ("0",)}


def check(run: OneRun) -> Iterator[Finding]:
    """Report where some switches are on and others are not, or not recorded."""
    if not run.on_npu or (run.framework == "mindspeed_rl" and run.is_on("actor.deterministic")):
        return
    wanted = _HCCL | (_AIV if run.fact("env.HCCL_OP_EXPANSION_MODE") == "AIV" else {})
    right = [name for name, values in wanted.items() if (run.fact(name) or "").lower() in values]
    wrong = [name for name in wanted if name not in right]
    meant = right or run.is_on("actor.deterministic")
    if not meant or not wrong:
        return
    names = ", ".join(f"{name.removeprefix('env.')}={wanted[name][0]}" for name in wrong)
    yield problem(
        run,
        "determinism",
        Severity.INFO,
        Effect(Rung.FORWARD, Strength.NUMERIC),
        (*run.seen_facts(*wanted), *run.known("actor.deterministic")),
        Text(
            f"determinism is only partly switched on; not seen: {names}",
            f"确定性只开启了一部分；未见：{names}",
        ),
        Text(
            "Two runs of one configuration still differ by rounding, so a small difference says "
            "nothing about the device.",
            "同一配置的两次运行仍有舍入差异，因此微小差异不能说明设备有问题。",
        ),
        Text(f"export {names.replace(',', '')}", f"export {names.replace(',', '')}"),
    )


_ALL = {"env.CLOSE_MATMUL_K_SHIFT": "1", "env.ATB_MATMUL_SHUFFLE_K_ENABLE": "0"}
_NPU = {"device": "npu", "env.HCCL_DETERMINISTIC": "true"}
FIRES = (
    Example(facts=_NPU, severity=Severity.INFO),
    Example(facts=_NPU | _ALL | {"env.HCCL_OP_EXPANSION_MODE": "AIV"}, severity=Severity.INFO),
    Example({"actor.deterministic": True}, Severity.INFO, facts={"device": "npu"}),
)
SILENT = (
    Example(facts=_NPU | _ALL),
    Example(facts={"device": "npu"}),
    Example(facts=_NPU | {"device": "cuda"}),
    Example({"actor.deterministic": True}, framework="mindspeed_rl", facts=_NPU),
)
