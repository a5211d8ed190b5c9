"""Prompts that only one of two runs has at a common step, for the report."""

from __future__ import annotations

import numpy as np

from align.core.figure import Cell, Column, Table
from align.core.finding import Side
from align.core.text import Text
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows

_SHOWN = 20
_QUOTE = 200
_NAMES = {Side.REFERENCE: Text("reference", "参考"), Side.CANDIDATE: Text("candidate", "被测")}


def unpaired_table(pair: RolloutPair) -> Table | None:
    """List the first prompts without a twin on the other side; None where all are paired."""
    rows: list[tuple[Cell, ...]] = []
    for side, own, other in (
        (Side.REFERENCE, pair.reference, pair.candidate),
        (Side.CANDIDATE, pair.candidate, pair.reference),
    ):
        alone = unpaired(own, other)
        shown = alone[:_SHOWN]
        for position, text in zip(shown, own.index.texts(own.row[shown]), strict=True):
            step = int(own.step[position])
            prompt = text.prompt.replace("\n", "\\n")[:_QUOTE]
            rows.append((_NAMES[side], len(alone), step, prompt, f"{text.source}:{text.line}"))
    if not rows:
        return None
    return Table(
        "rollout.unpaired",
        Text("Prompts that one run alone has at a common step", "共同 step 中仅一侧拥有的 prompt"),
        (
            Column("side", Text("run", "运行")),
            Column("num", Text("such prompts in all", "此类 prompt 总数"), numeric=True),
            Column("step", Text("step", "步"), numeric=True),
            Column("prompt", Text("prompt", "prompt")),
            Column("place", Text("place", "位置")),
        ),
        tuple(rows),
    )


def unpaired(own: SideRows, other: SideRows) -> Int64:
    """Return the first row of each prompt of a common step that the other side does not have."""
    width = 2 + int(max(own.prompt.max(initial=0), other.prompt.max(initial=0)))
    keys = [(side.step + 1) * width + side.prompt + 1 for side in (own, other)]
    alone = ~np.isin(keys[0], keys[1]) & np.isin(own.step, other.step[other.step >= 0])
    places = np.flatnonzero(alone & (own.prompt >= 0))
    first: Int64 = np.sort(places[np.unique(keys[0][places], return_index=True)[1]])
    return first
