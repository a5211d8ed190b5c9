"""Which recorded group answers which prompt of the candidate: by content, never by position."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dumps.inject.recorded import Group, Prompt, Step


def assign(step: Step, asked: Sequence[Prompt], taken: Collection[int] = ()) -> list[int | None]:
    """Return each prompt's group, by its place in ``step.groups``; None where there is none left.

    Of several groups that answer the same prompt the one of the same data set row is taken, then
    the first. A group is given once.

    Args:
        taken: groups given before, by an earlier generation of the same step.
    """
    gone = set(taken)
    free = [place for place in range(len(step.groups)) if place not in gone]
    places = _Places(step, free)
    given: set[int] = set()
    found: list[int | None] = [None] * len(asked)
    # rows whose data set index is recorded choose first, so that no other takes their group
    for same_row in (True, False):
        for i, prompt in enumerate(asked):
            if found[i] is not None:
                continue
            left = [place for place in places.fitting(prompt) if place not in given]
            if same_row:
                left = [p for p in left if _same_row(step.groups[p], prompt)]
            if left:
                found[i] = left[0]
                given.add(left[0])
    return found


def _same_row(group: Group, prompt: Prompt) -> bool:
    index = group.prompt.dataset_index
    return index is not None and index == prompt.dataset_index


def place_rows(step: Step, rows: Sequence[tuple[Prompt, Sequence[int]]]) -> list[int | None]:
    """Return the recorded row that each trained row is, by its place in ``step.records``.

    A row whose response none of its prompt's recorded ones equals takes one that is left over, so
    that it counts as unequal and not as generated; None where its prompt has none left.
    """
    left = [list(group.rows) for group in step.groups]
    places = _Places(step, range(len(step.groups)))
    found: list[int | None] = [None] * len(rows)
    for exactly in (True, False):
        for i, (prompt, ids) in enumerate(rows):
            if found[i] is not None:
                continue
            fitting = places.fitting(prompt)
            for group in sorted(fitting, key=lambda g: not _same_row(step.groups[g], prompt)):
                place = _row(step, left[group], tuple(ids) if exactly else None)
                if place is not None:
                    left[group].remove(place)
                    found[i] = place
                    break
    return found


class _Places:
    """Groups by what they answer."""

    def __init__(self, step: Step, places: Iterable[int]) -> None:
        self._by_ids: dict[object, list[int]] = {}
        self._by_text: dict[object, list[int]] = {}
        for place in places:
            prompt = step.groups[place].prompt
            if prompt.ids is not None:
                self._by_ids.setdefault(prompt.ids, []).append(place)
            elif prompt.plain is not None:
                self._by_text.setdefault(prompt.plain, []).append(place)

    def fitting(self, prompt: Prompt) -> list[int]:
        """Return the groups that answer a prompt."""
        return [*self._by_ids.get(prompt.ids, ()), *self._by_text.get(prompt.plain, ())]


def _row(step: Step, rows: Sequence[int], ids: tuple[int, ...] | None) -> int | None:
    return next((r for r in rows if ids is None or step.records[r].response_ids == ids), None)
