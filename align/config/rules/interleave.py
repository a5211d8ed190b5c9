"""Prompts and responses must be repeated the same way.

Source: field report of the Qwen3-235B runs: the reward fell to 0 after the input batch alone was
repeated without interleaving. In verl both are calls ``batch.repeat(n, interleave=True)`` in the
trainer; only a changed copy has a key for it.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import EffectiveConfig
from align.core.text import Text

FIELDS = ("rollout.interleave.*",)


def rule(case: Case) -> Ruling | None:
    """Name the side on which two switches of it do not agree."""
    sides = (case.reference_config, case.candidate_config)
    apart = [len(_switches(side)) > 1 for side in sides]
    if not any(apart):
        return None
    side = Text("reference", "参考") if apart[0] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"In the {side.en} input and output batch do not agree: every response is scored "
            "against another prompt. In the field the reward fell to 0.",
            f"{side.zh}的输入与输出 batch 排布不一致：每条回复都按另一个 prompt 打分。"
            "实践中 reward 跌至 0。",
        ),
        instead=True,
        fix=Text(
            "Set both to the same value. Both false was reported to help against HCCL timeouts of "
            "long responses.",
            "将两者设为同一值。有报告称均设为 False 可避免长回复的 HCCL 超时。",
        ),
    )


def _switches(config: EffectiveConfig) -> set[str]:
    return {
        str(value.value)
        for name, value in config.values.items()
        if name.startswith("rollout.interleave.")
    }


_OUTPUT = {"rollout.interleave.output": True}
FIRES = (Example("rollout.interleave.input", (True, False), both=_OUTPUT),)
SILENT = (
    Example("rollout.interleave.input", (True, False)),
    Example(
        "rollout.interleave.input",
        (True, False),
        reference=_OUTPUT,
        candidate={"rollout.interleave.output": False},
    ),
)
