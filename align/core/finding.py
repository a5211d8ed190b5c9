"""A difference between two runs, with its evidence, its reason and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.rung import Rung
from align.core.text import Text

Scalar = str | int | float | bool | None


class Severity(str, Enum):
    """How much a finding matters."""

    ERROR = "error"  # known to change results; by itself enough to call the runs different
    WARNING = "warning"  # can change results, or a symptom without a cause
    INFO = "info"  # worth knowing, not expected to change results

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)


class Side(str, Enum):
    """Which run a piece of evidence comes from."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"
    BOTH = "both"


class Strength(str, Enum):
    """What a difference does to the quantities downstream of it."""

    SEMANTIC = "semantic"  # another quantity is computed: any size of effect is possible
    NUMERIC = "numeric"  # same mathematics, other rounding or sample: noise-sized effects only
    NONE = "none"  # no effect on numbers is known


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a difference can act, so that it is never blamed for what it cannot do.

    Args:
        acts_on: first rung whose quantities it changes within one training step. In the first
            recorded step it explains only metrics of that rung or later ones; from the second
            step on the trained weights close the loop and it can explain any metric.
        strength: size of effect it can have.
        signature: metric name patterns (fnmatch) it explains at any size, whatever its strength;
            a rollout dtype explains ``training/rollout_probs_diff*``, for example.
    """

    acts_on: Rung
    strength: Strength
    signature: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a finding shows of a divergence in time, so that causes can be tested against it.

    Args:
        metric: vocabulary name of the diverging quantity.
        rung: link of the chain on which the quantity is computed.
        step: first step at which it diverges.
        first_recorded_step: first step both runs recorded.
        noise_sized: the size lies within what rounding or another sample can produce.
        step_uncertainty: how many steps later it can have begun: 0 for an exact event such as the
            first NaN, half the window for an onset read off a smoothed curve.
    """

    metric: str
    rung: Rung
    step: int
    first_recorded_step: int
    noise_sized: bool
    step_uncertainty: int = 0

    @property
    def begun_by(self) -> int:
        """Last step at which it can have begun."""
        return self.step + self.step_uncertainty


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a reader can check a finding for himself."""

    source: str  # file as given by the user, or "default of verl 0.9.1", or a formula
    side: Side
    line: int | None = None  # 1-based
    key: str | None = None
    text: str | None = None  # quoted, at most 200 characters
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. ``id`` is stable and dotted, such as "config.model.rms_norm_eps".

    A finding with a ``mechanism`` can be named as a cause; one with a ``symptom`` wants one. Most
    have one of the two, some have neither.
    """

    id: str
    rung: Rung
    severity: Severity
    title: Text
    reference: Scalar
    candidate: Scalar
    evidence: tuple[Evidence, ...]
    why: Text
    fix: Text
    mechanism: Mechanism | None = None
    symptom: Symptom | None = None
