"""Advice on speed, as data: each piece says when it holds, what it gained, and what it trades.

Each module of the folder has a tuple ``ADVICE``; the folder is the registry.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from align.doctor.advice.advice import Advice, Judged, State
from align.doctor.case import Case

__all__ = ["Advice", "Judged", "State", "advise", "all_advice"]


@cache
def all_advice() -> tuple[Advice, ...]:
    """Return every piece of advice, in order of module and place."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "advice")
    modules = (import_module(f"{__name__}.{name}") for name in names)
    return tuple(each for module in modules for each in module.ADVICE)


def advise(case: Case) -> tuple[Judged, ...]:
    """Judge every piece for one run: what shortens the slowest stage first.

    What is on already, or cannot apply, is left out; what cannot be told says what is unknown.
    """
    judged = [Judged(each, each.answer(case)) for each in all_advice()]
    useful = [j for j in judged if j.answer.state in (State.ADVISED, State.UNKNOWN)]
    return tuple(sorted(useful, key=lambda j: _rank(j, case)))


def _rank(judged: Judged, case: Case) -> tuple[bool, float, float]:
    stage, time = judged.advice.stage, case.time
    share = 1.0 if stage is None else (time.share_of(stage) or 0.0) if time else 0.5
    gain = max(judged.advice.gain_percent, default=0.0)
    return judged.answer.state is State.UNKNOWN, -share * gain, -share
