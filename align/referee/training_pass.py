"""Does the model give in training the log_probs it gave before, with the same weights?

Before a step's first update old_log_probs and log_probs are two passes of one model over the same
tokens. They differ by the rounding of other batch shapes, and by what only one of them does:
dropout, a mode that was left on, another kernel or mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.objective.log_prob_limits import APART, EXACT, TIMES
from align.referee.update import Update

_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Apart:
    """Mean absolute difference of the two passes, nats, at a step's first update."""

    mean: float
    step: int
    source: str


def passes_apart(update: Update) -> Apart | None:
    """Measure a step's first update; None for a later one, and for one without tokens."""
    own = update.mask != 0
    if update.number or not bool(own.any()):
        return None
    mean = float((update.log_probs - update.old_log_probs)[own].abs().mean())
    return Apart(mean, update.step, str(update.source))


def training_pass_finding(passes: Mapping[Side, Apart | None]) -> Finding | None:
    """Name the run whose two passes differ where the other run's agree.

    Args:
        passes: of both runs; None where a run records no update.
    """
    found = {side: apart for side, apart in passes.items() if apart is not None}
    if len(found) < len(passes):
        return None
    side = max(found, key=lambda each: found[each].mean)
    other = next(each for each in found if each is not side)
    worse, better = found[side], found[other]
    if not worse.mean > max(TIMES * better.mean, EXACT.value):
        return None
    return Finding(
        id="loss.training_pass",
        rung=Rung.LOSS,
        severity=Severity.ERROR if worse.mean > APART.value else Severity.WARNING,
        title=Text(
            f"the {side.value}'s log_probs move by {worse.mean:.2g} nats before any update of step "
            f"{worse.step}, from old_log_probs to training; the {other.value}'s by "
            f"{better.mean:.2g}",
            f"{_ZH[side]}在第 {worse.step} 步的任何更新之前，训练时的 log_probs 与 old_log_probs "
            f"平均相差 {worse.mean:.2g} nat，而{_ZH[other]}为 {better.mean:.2g}",
        ),
        reference=found[Side.REFERENCE].mean,
        candidate=found[Side.CANDIDATE].mean,
        evidence=tuple(
            Evidence(apart.source, each, key=f"step {apart.step}, update 0", values=(apart.mean,))
            for each, apart in found.items()
        ),
        why=Text(
            "Both passes have the same weights and tokens, so the ratio is 1 but for rounding. "
            "One of them does what the other does not: dropout, train or eval mode, another "
            "attention kernel, mask or dtype.",
            "两次前向的权重与 token 相同，因此除舍入外 ratio 应为 1。"
            "其中一次多做了另一次没有做的事："
            "dropout、train/eval 模式、不同的注意力算子、mask 或数据类型。",
        ),
        fix=Text(
            "Compare dropout rates, module.training and the attention implementation of the pass "
            "for old_log_probs and of the update.",
            "请对照计算 old_log_probs 的前向与更新时前向的 dropout、module.training 与注意力实现。",
        ),
        mechanism=Mechanism(Rung.LOSS, Strength.SEMANTIC, ("actor/ppo_kl", "actor/pg_clipfrac*")),
    )
