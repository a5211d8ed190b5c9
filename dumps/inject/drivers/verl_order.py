"""Where in a run's data set the rows of a recorded order stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from align.core.errors import RunError
from dumps.inject.drivers.verl_prompts import Templating
from dumps.inject.order_data import OwnData, different, of_files, read_order_data
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, prompt_of, read_step, recorded_steps
from dumps.inject.replay import Replay


def ordered_positions(replay: Replay, dataset: Any, makes: Templating) -> list[int]:
    """Return positions of the data set, step after step.

    A row with a prompt is found by its content, one that is only a number by its number in the
    data set as it is on disk, whatever was filtered out.

    Raises:
        ReplayRefused: A row is not in the data set, or the data set is another.
    """
    data = read_order_data(replay.plan.folder)
    if data is not None:
        replay.refuse_unless_allowed(different(data, lambda: _on_disk(dataset)))
    steps = [read_step(replay.plan.order, n) for n in recorded_steps(replay.plan.order)]
    wanted = [(step.number, prompt_of(record)) for step in steps for record in step.records]
    by_row: dict[int | None, int] = {
        row: position for position, row in enumerate(_rows_on_disk(dataset))
    }
    by_content: dict[Hashable, list[int]] = defaultdict(list)
    own: list[Prompt] = []
    if any(prompt.ids is not None or prompt.text is not None for _, prompt in wanted):
        own = [makes.prompt(dataset[position]) for position in range(len(dataset))]
        for position, prompt in enumerate(own):
            by_content[prompt.ids].append(position)
            by_content[prompt.plain].append(position)
    found: list[int] = []
    lost: list[Problem] = []
    for number, prompt in wanted:
        if prompt.ids is None and prompt.text is None:
            place = by_row.get(prompt.dataset_index)
        else:
            key = prompt.ids if prompt.ids is not None else prompt.plain
            place = _nearest(by_content.get(key, []), own, prompt)
        if place is None:
            lost.append(Problem(f"--order: not in this data set: {prompt.shown}", number))
        else:
            found.append(place)
    if lost:
        replay.refuse(lost)
    return found


def _on_disk(dataset: Any) -> OwnData:
    files = getattr(dataset, "data_files", None)
    if not files:
        raise RunError(
            where=type(dataset).__name__, problem="names no files", fix="use verl's data set"
        )
    return of_files([Path(str(file)) for file in files], getattr(dataset, "prompt_key", None))


def _nearest(positions: list[int], own: list[Prompt], prompt: Prompt) -> int | None:
    same = [p for p in positions if own[p].dataset_index == prompt.dataset_index]
    return next(iter(same or positions), None)


def _rows_on_disk(dataset: Any) -> list[int]:
    """Return the row of each position, before filtering; Hugging Face data sets keep it."""
    frame = getattr(dataset, "dataframe", None)
    kept = getattr(frame, "_indices", None)
    if kept is None:
        return list(range(len(dataset)))
    return [int(row) for row in kept.column(0).to_pylist()]
