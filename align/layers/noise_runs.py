"""Measure noise on further runs given with the pair: repeats, perturbed runs, or a referee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from align.core.errors import RunError
from align.layers.captured import CapturedStep
from align.layers.noise import Noise, observed, refereed
from align.layers.start import pairs
from dumps.store.run_data import RunData


@dataclass(frozen=True, slots=True, eq=False)
class NoiseRuns:
    """Further runs of the same steps.

    Args:
        repeats: the reference again, as it was or with embeddings perturbed by one rounding.
        referee: the same steps in a finer dtype.
    """

    repeats: Sequence[RunData] = ()
    referee: RunData | None = None


def observed_noise(reference: RunData, candidate: RunData, runs: NoiseRuns) -> Noise | None:
    """Measure the noise between two sound runs, None where no run was given for it.

    Raises:
        RunError: A run has no step that can be compared with the reference's.
    """
    if runs.repeats:
        shared = [pair for repeat in runs.repeats for pair in _steps(reference, repeat)]
        return observed(shared, f"{len(runs.repeats)} more runs of the reference")
    if runs.referee is not None:
        source = f"both runs against the referee {runs.referee.run.label}"
        return refereed(
            observed(_steps(runs.referee, reference), source),
            observed(_steps(runs.referee, candidate), source),
        )
    return None


def _steps(one: RunData, other: RunData) -> Iterator[tuple[CapturedStep, CapturedStep]]:
    count = 0
    for pair in pairs(one, other):
        if pair.reference is not None and pair.candidate is not None:
            count += 1
            yield pair.reference, pair.candidate
    if not count:
        raise RunError(
            where=other.run.label,
            problem=f"has no step with the same tokens and weights as {one.run.label}",
            fix="record the same first steps, from the same weights and tokens",
        )
