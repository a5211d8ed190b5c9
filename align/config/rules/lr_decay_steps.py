"""Megatron counts lr_decay_steps from the start of training, warmup included.

Source: AReaL#1289: a caller subtracted the warmup, and the learning rate was 0 from step 198 of
220 on, for as many steps as the warmup had (22).
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("actor.lr_options.decay_steps",)


def rule(case: Case) -> Ruling | None:
    """Recognise a difference of exactly the warmup."""
    steps = number(case.reference.value), number(case.candidate.value)
    if steps[0] is None or steps[1] is None:
        return None
    missing = abs(steps[0] - steps[1])
    if missing == 0 or missing not in case.numbers("derived.warmup_steps"):
        return None
    side = Text("reference", "参考") if steps[0] < steps[1] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"They differ by the warmup: the {side.en} seems to have subtracted it, so its "
            f"learning rate reaches the minimum {missing:g} steps before the end (AReaL#1289).",
            f"两者恰好相差预热步数：{side.zh}似乎减去了预热，其学习率提前 {missing:g} 步"
            "降到最小值（AReaL#1289）。",
        ),
        Severity.ERROR,
        fix=Text(
            "lr_decay_steps is counted from step 0: do not subtract the warmup.",
            "lr_decay_steps 从第 0 步算起：不要减去预热步数。",
        ),
    )


_WARMUP = {"actor.lr_warmup_steps": 22}
FIRES = (Example("actor.lr_options.decay_steps", (220, 198), both=_WARMUP),)
SILENT = (Example("actor.lr_options.decay_steps", (220, 200), both=_WARMUP),)
