"""Hold every recorded loss of a DPO run against the one that its configuration declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from align.config.normalise import effective
from align.core.finding import Side
from align.core.text import Text
from align.referee.preference_hypotheses import PreferenceHypothesis, fits, preference_hypotheses
from align.referee.preference_loss import (
    PreferenceObjective,
    declared_preference,
    recompute_preference,
)
from align.referee.preference_passes import PreferencePass
from align.referee.recompute import Amount
from dumps.store.run_data import RunData

_KEPT = 4  # misfits that settings are found from, those that are farthest off


@dataclass(frozen=True, slots=True)
class PreferenceMisfit:
    """A micro-batch whose loss is not the declared one."""

    given: PreferencePass
    declared: Amount


@dataclass(frozen=True, slots=True)
class ExaminedPreferences:
    """One run's micro-batches beside its declared loss.

    Args:
        num_judged: micro-batches whose loss could be recomputed.
        misfits: those with another loss.
        found: hypotheses that give every loss, where the declared one does not.
    """

    side: Side
    objective: PreferenceObjective
    num_judged: int
    misfits: tuple[PreferenceMisfit, ...]
    found: tuple[PreferenceHypothesis, ...]

    @property
    def cause(self) -> PreferenceHypothesis | None:
        """The one explanation that fits; None where none does, or different ones do."""
        return self.found[0] if len({each.id for each in self.found}) == 1 else None


def examine_preferences(
    side: Side, run: RunData, passes: Sequence[PreferencePass]
) -> ExaminedPreferences | Text:
    """Judge a run's losses, or say why that is not possible."""
    objective = declared_preference(effective(run.configs, run.run.manifest))
    if isinstance(objective, Text):
        return objective
    judged = [
        (given, amount)
        for given in passes
        if (amount := recompute_preference(given, objective)) is not None
    ]
    if not judged:
        return Text("the reference's log_probs are not recorded", "未记录参考模型的 log_probs")
    misfits = [
        PreferenceMisfit(given, amount)
        for given, amount in judged
        if not amount.is_met_by(given.loss)
    ]
    found: tuple[PreferenceHypothesis, ...] = ()
    if misfits:
        farthest = sorted(misfits, key=lambda m: -abs(m.given.loss - m.declared.value))
        found = _explaining(objective, [each.given for each in farthest], passes)
    return ExaminedPreferences(side, objective, len(judged), tuple(misfits), found)


def _explaining(
    objective: PreferenceObjective,
    misfits: Sequence[PreferencePass],
    passes: Sequence[PreferencePass],
) -> tuple[PreferenceHypothesis, ...]:
    """Return the hypotheses that give every loss of a run."""
    return tuple(
        hypothesis
        for hypothesis in preference_hypotheses(objective, misfits[:_KEPT])
        if all(fits(given, hypothesis.objective) for given in passes)
    )
