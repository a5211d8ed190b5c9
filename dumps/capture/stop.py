"""End a run whose invariants do not hold, with a message that says which."""

from __future__ import annotations

from collections.abc import Iterable

from dumps.capture.failures import RunStopped
from dumps.capture.session import Session


def stop(session: Session, step: int, broken: Iterable[str]) -> None:
    """Raise where an invariant is broken; what was recorded is written first.

    Raises:
        RunStopped: There is a broken invariant.
    """
    reasons = list(broken)
    if reasons:
        session.drain()
        raise RunStopped(
            f"align capture --stop-on error: step {step}: {'; '.join(reasons)}. "
            f"The step is recorded in {session.plan.run}."
        )
