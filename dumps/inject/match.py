"""Which recorded group answers which prompt of the candidate: by content, never by position."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dumps.inject.recorded import Group, Prompt, Step


def assign(step: Step, asked: Sequence[Prompt], taken: Collection[int] = ()) -> list[int | None]:
    """Return each prompt's group, by its place in ``step.groups``; None where there is none left.

    Of several groups that answer the same prompt the one of the same data set row is taken, then
    the first. A group is given once.

    Args:
        taken: groups given before, by an earlier generation of the same step.
    """
    free = [place for place in range(len(step.groups)) if place not in set(taken)]
    by_ids: dict[object, list[int]] = {}
    by_text: dict[object, list[int]] = {}
    for place in free:
        prompt = step.groups[place].prompt
        if prompt.ids is not None:
            by_ids.setdefault(prompt.ids, []).append(place)
        elif prompt.plain is not None:
            by_text.setdefault(prompt.plain, []).append(place)
    given: set[int] = set()
    found: list[int | None] = [None] * len(asked)
    # rows whose data set index is recorded choose first, so that no other takes their group
    for same_row in (True, False):
        for i, prompt in enumerate(asked):
            if found[i] is not None:
                continue
            fitting = [*by_ids.get(prompt.ids, ()), *by_text.get(prompt.plain, ())]
            left = [place for place in fitting if place not in given]
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
    left: dict[int, list[int]] = {}
    for group in step.groups:
        for row in group.rows:
            left.setdefault(id(group), []).append(row)
    found: list[int | None] = [None] * len(rows)
    for exactly in (True, False):
        for i, (prompt, ids) in enumerate(rows):
            if found[i] is not None:
                continue
            fitting = [group for group in step.groups if group.prompt.asks_what(prompt)]
            fitting.sort(key=lambda group: not _same_row(group, prompt))
            for group in fitting:
                place = _row(step, left[id(group)], tuple(ids) if exactly else None)
                if place is not None:
                    left[id(group)].remove(place)
                    found[i] = place
                    break
    return found


def _row(step: Step, rows: Sequence[int], ids: tuple[int, ...] | None) -> int | None:
    return next((r for r in rows if ids is None or step.records[r].response_ids == ids), None)
