"""Find the changes that turn a verdict, with few trials: delta debugging over prefixes.

The changes stand in a row. A binary search finds the shortest prefix whose verdict is bad: its last
change is needed. With that change kept, the search goes on among those before it, until what is
kept is bad alone. One cause of n takes about log2 n trials, two that interact about 2 log2 n, and a
knob with ordered values (versions, commits) is searched by the same halving.

Source: the minimal failing set of Zeller and Hildebrandt, Simplifying and Isolating
Failure-Inducing Input (2002), found by halving as in Junker's QuickXplain (2004).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum

from align.bisect.knob import Change, Knob, Setting, changes_of, setting_of, without


class Outcome(str, Enum):
    """What a setting showed."""

    GOOD = "good"  # as the reference
    BAD = "bad"  # as the candidate
    UNRESOLVED = "unresolved"  # the trial does not tell: it failed for another reason


@dataclass(frozen=True, slots=True)
class Ask:
    """Settings to be tried next; those of one question can run at the same time.

    Args:
        suspects: changes one of which matters, by what is known so far.
        kept: changes found to matter already.
    """

    settings: tuple[Setting, ...]
    suspects: tuple[Change, ...]
    kept: tuple[Change, ...] = ()


Answers = Mapping[Setting, Outcome]
Asking = Generator[Ask, Answers, None]


class Ending(str, Enum):
    """How a search ended."""

    FOUND = "found"
    REFERENCE_IS_BAD = "reference_is_bad"  # with every knob at the reference's value
    CANDIDATE_IS_GOOD = "candidate_is_good"  # with every knob at the candidate's value
    UNRESOLVED = "unresolved"  # one of the two ends could not be judged
    BUDGET = "budget"  # stopped before the end


@dataclass(slots=True)
class Search:
    """The state of a search.

    Args:
        width: settings that may be tried at the same time.
        sets: minimal sets of changes found, each bad alone on the reference's settings.
        outcomes: everything that was tried.
        complete: without the sets found, the candidate's settings are good.
    """

    changes: tuple[Change, ...]
    num_knobs: int
    width: int
    sets: list[tuple[Change, ...]]
    outcomes: dict[Setting, Outcome]
    ending: Ending = Ending.BUDGET
    complete: bool = False

    def outcome(self, changes: tuple[Change, ...]) -> Outcome | None:
        """Return what the reference's settings with these changes showed, None if not tried."""
        return self.outcomes.get(setting_of(changes, self.num_knobs))


def new_search(knobs: tuple[Knob, ...], width: int = 1) -> Search:
    """Start a search over all knobs of a plan."""
    return Search(changes_of(knobs), len(knobs), max(1, width), [], {})


def run(search: Search) -> Asking:
    """Yield what has to be tried until the search has ended; send back the outcomes."""
    yield from _try(search, [(), search.changes], search.changes, ())
    reference, candidate = search.outcome(()), search.outcome(search.changes)
    if Outcome.UNRESOLVED in (reference, candidate):
        search.ending = Ending.UNRESOLVED
        return
    if reference is Outcome.BAD:
        search.ending = Ending.REFERENCE_IS_BAD
        return
    if candidate is Outcome.GOOD:
        search.ending = Ending.CANDIDATE_IS_GOOD
        return
    yield from _all_sets(search)


def _all_sets(search: Search) -> Asking:
    """Find one minimal set after another until the candidate without them is good."""
    left = search.changes
    while search.outcome(left) is Outcome.BAD:
        found = yield from _minimal(search, left)
        search.sets.append(found)
        search.ending = Ending.FOUND
        left = without(left, found)
        yield from _try(search, [left], left, ())
    search.complete = search.outcome(left) is Outcome.GOOD


def _minimal(
    search: Search, bad: tuple[Change, ...]
) -> Generator[Ask, Answers, tuple[Change, ...]]:
    """Return a set of changes that is bad alone and of which none can be spared."""
    kept: tuple[Change, ...] = ()
    pool = bad
    while search.outcome(kept) is not Outcome.BAD:
        low, high = yield from _boundary(search, kept, pool)
        kept = (*pool[low:high], *kept)
        pool = tuple(c for c in pool[:low] if c.knob not in {k.knob for k in kept})
        yield from _try(search, [kept], pool, kept)
    return (yield from _reduced(search, kept))


def _boundary(
    search: Search, kept: tuple[Change, ...], pool: tuple[Change, ...]
) -> Generator[Ask, Answers, tuple[int, int]]:
    """Return (low, high): with ``pool[:high]`` the verdict is bad, with ``pool[:low]`` it is not.

    They are neighbours unless no setting between them can be judged.
    """
    low, high = 0, len(pool)
    tried: set[int] = set()
    while untried := [i for i in range(low + 1, high) if i not in tried]:
        chosen = _spread(untried, low, high, search.width)
        prefixes = [(*pool[:i], *kept) for i in chosen]
        yield from _try(search, prefixes, pool[low:high], kept)
        tried.update(chosen)
        outcomes = {i: search.outcome(p) for i, p in zip(chosen, prefixes, strict=True)}
        high = min([i for i in chosen if outcomes[i] is Outcome.BAD], default=high)
        low = max([i for i in chosen if i < high and outcomes[i] is Outcome.GOOD], default=low)
    return low, high


def _spread(untried: list[int], low: int, high: int, width: int) -> list[int]:
    """Choose places that cut the range into equal parts."""
    wanted = [low + (high - low) * part / (width + 1) for part in range(1, width + 1)]
    return sorted({_nearest(untried, place) for place in wanted})


def _nearest(places: list[int], wanted: float) -> int:
    return min(places, key=lambda place: (abs(place - wanted), place))


def _reduced(
    search: Search, kept: tuple[Change, ...]
) -> Generator[Ask, Answers, tuple[Change, ...]]:
    """Leave out every change without which the rest is bad still."""
    for change in kept:
        rest = tuple(c for c in kept if c != change)
        if not rest:
            break
        yield from _try(search, [rest], kept, ())
        if search.outcome(rest) is Outcome.BAD:
            kept = rest
    return kept


def _try(
    search: Search,
    wanted: list[tuple[Change, ...]],
    suspects: tuple[Change, ...],
    kept: tuple[Change, ...],
) -> Asking:
    """Ask for the settings that were not tried yet."""
    settings = dict.fromkeys(setting_of(changes, search.num_knobs) for changes in wanted)
    new = tuple(s for s in settings if s not in search.outcomes)
    if new:
        answers = yield Ask(new, suspects, kept)
        search.outcomes.update({setting: answers[setting] for setting in new})
