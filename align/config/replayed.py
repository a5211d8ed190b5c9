"""What a replay leaves of a difference: rows that were given do not follow a setting.

A run under `align replay` trained on the rows and responses of another one, and its manifest says
whether they were the same, row by row. What draws rows or samples responses had no say in it: it
acts when the run does so for itself.
"""

from __future__ import annotations

from dataclasses import replace

from align.core.finding import Finding, Severity, Strength
from align.core.run import RunManifest
from align.core.rung import Rung
from align.core.text import Text

_DRAWS = ("config.data.", "config.rollout.", "config.trainer.mode.sampler.")
# a model's settings act on rollouts, and train
_TRAINED_WITH_TOO = ("config.rollout.temperature",)  # the trainer divides its logits by it
_WHY = Text(
    "It had no say here: this run was given the recorded rows and responses, all of them the same "
    "(align-run.json). It acts when the run draws its own.",
    "此处不起作用：该次运行使用已记录的行与回复，且全部一致（见 align-run.json）。"
    "当运行自行取数据或采样时它才起作用。",
)


def rows_were_given(manifest: RunManifest) -> bool:
    """Tell whether a run trained on recorded rows alone, in their order."""
    proof = manifest.replay
    others = ("mismatches", "generated", "left_over", "out_of_order")
    rows = proof.get("rows")
    return bool(rows) and proof.get("identical") == rows and not any(map(proof.get, others))


def moot(finding: Finding) -> Finding:
    """Return what a difference is in a run that was given its rows; as it was if it trains too."""
    mechanism = finding.mechanism
    draws = finding.id.startswith(_DRAWS) and finding.id not in _TRAINED_WITH_TOO
    if mechanism is None or not draws:
        return finding
    if mechanism.strength is Strength.NONE or mechanism.acts_on not in (Rung.DATA, Rung.ROLLOUT):
        return finding
    samples = mechanism.acts_on is Rung.ROLLOUT and finding.severity is Severity.ERROR
    return replace(
        finding,
        severity=Severity.WARNING if samples else Severity.INFO,
        why=Text(f"{finding.why.en} {_WHY.en}", f"{finding.why.zh}{_WHY.zh}"),
        mechanism=replace(mechanism, strength=Strength.NONE, signature=()),
    )
