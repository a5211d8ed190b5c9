"""One poll after the other: what is new, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.metric import MetricLog
from align.core.watch_record import Alarm, Trace
from align.curves.pair import Pairing, pair_logs
from align.watch.follow import Follower
from align.watch.observed import Observed
from align.watch.sequential import alarms, trace, watched

_EVERY_STEP = -(2**62)
_NO_STEP = 2**62


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the candidate stands after a poll.

    Args:
        step: last common step, as the reference numbers it; None where there is none.
        last_step: of the reference.
        tested: metrics that are tested.
        alarms: of the first step that has any; () without.
        has_news: the poll brought something.
    """

    step: int | None
    last_step: int
    tested: tuple[str, ...]
    alarms: tuple[Alarm, ...]
    has_news: bool

    @property
    def is_finished(self) -> bool:
        """The candidate has reached the reference's last step."""
        return self.step is not None and self.step >= self.last_step


class Watch:
    """Compares a growing candidate with a finished reference, every step once.

    What is decided depends on the recorded values alone, not on when they were seen: after a gap
    or a restart of the watch itself the same steps give the same alarms.
    """

    def __init__(
        self, reference: MetricLog, follower: Follower, names: tuple[str, ...] = ()
    ) -> None:
        self._reference, self._follower, self._names = reference, follower, names
        self._observed = Observed()
        self._shift: int | None = None
        self._traces: dict[str, Trace] = {}
        self._untraced = _EVERY_STEP
        steps = reference.step_range
        self._standing = Standing(None, steps[1] if steps else 0, (), (), False)

    def poll(self) -> Standing:
        """Read what is new and judge it."""
        changed = self._observed.add(self._follower.poll())
        if changed is None:
            old = self._standing
            return Standing(old.step, old.last_step, old.tested, old.alarms, False)
        with np.errstate(all="ignore"):
            pairing = pair_logs(self._reference, self._observed.log())
            metrics = watched(pairing, self._names)
            begin = self._from_step(pairing, changed)
            found = alarms(pairing, metrics, begin)
        self._untraced = min(self._untraced, begin)
        self._standing = Standing(
            step=max((int(m.steps[-1]) for m in pairing.training), default=None),
            last_step=self._standing.last_step,
            tested=tuple(metric.name for metric in metrics),
            alarms=tuple(found),
            has_news=True,
        )
        return self._standing

    def traces(self) -> tuple[Trace, ...]:
        """Return how far every tested metric has been from the reference, step by step.

        What an earlier call found is kept, so that a look costs what is new.
        """
        with np.errstate(all="ignore"):
            pairing = pair_logs(self._reference, self._observed.log())
            metrics = watched(pairing, self._names)
            for metric in metrics:
                known = self._traces.get(metric.name)
                found = trace(metric, len(metrics), self._untraced, known)
                if found is not None:
                    self._traces[metric.name] = found
        self._untraced = _NO_STEP
        return tuple(self._traces[m.name] for m in metrics if m.name in self._traces)

    def _from_step(self, pairing: Pairing, changed: int) -> int:
        """Return the first step to judge: the first new one, or all where steps move."""
        shift = pairing.step_shift.by if pairing.step_shift else 0
        known, self._shift = self._shift, shift
        return changed + shift if known == shift else _EVERY_STEP
