"""Everything two runs show of their row orders, brought together to say why they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.data.order_diff import OrderCause, explain
from align.data.prompt_text import Prompts, PromptText
from align.data.run_order import RunOrder
from align.data.tokenized_rows import with_questions
from align.data.witness import Witness, length_witness, prompt_witness
from dumps.store.rollout_pair import RolloutPair, SideRows
from dumps.store.run_data import RunData

Effective = Callable[[RunData], EffectiveConfig]
"""Resolves a run's configuration; another package of this stage knows how."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What it takes to replay a run's sampler beside its files; loads a tokenizer once."""

    effective: Effective
    prompts: Prompts | None = None
    _loaded: dict[RunData, PromptText | None] = field(default_factory=dict)

    def order(self, run: RunData) -> RunOrder:
        """Return a run's order, with nothing but what the run itself holds."""
        return RunOrder(run, self.effective(run), prompts=self._load)

    def _load(self, run: RunData, config: EffectiveConfig) -> PromptText | None:
        if run not in self._loaded:
            self._loaded[run] = None if self.prompts is None else self.prompts(run, config)
        return self._loaded[run]


_FEWEST_STEPS = 2  # that must agree at another place: one alone may be chance


def cause_of_prompts(
    pair: RolloutPair,
    runs: tuple[RunData, RunData],
    replay: Replay | None,
    step: int,
    num_common: int,
) -> OrderCause | None:
    """Explain why the prompts of a step differ; None where nothing tells."""
    found = None
    if replay is not None:
        orders = _orders(runs, replay)
        sides = (pair.reference, pair.candidate)
        witnesses = [
            _witness(order, other, side)
            for order, other, side in zip(orders, orders[::-1], sides, strict=True)
        ]
        found = explain(*orders, (witnesses[0], witnesses[1]), step, num_common)
    if found is None or found.is_hint:
        return _shifted(pair, step) or found
    return found


def cause_of_lengths(
    runs: tuple[RunData, RunData], replay: Replay | None, step: int
) -> OrderCause | None:
    """Explain why the prompt lengths of a step differ; None where nothing tells."""
    if replay is None:
        return None
    orders = _orders(runs, replay)
    witnesses = [
        length_witness(run.metrics, order.lengths) for order, run in zip(orders, runs, strict=True)
    ]
    return explain(*orders, (witnesses[0], witnesses[1]), step, None)


def run_orders(
    runs: tuple[RunData, RunData], replay: Replay | None
) -> tuple[RunOrder, RunOrder] | None:
    """Return both runs' orders with nothing but what each run itself holds."""
    if replay is None:
        return None
    reference, candidate = map(replay.order, runs)
    return reference, candidate


def _orders(runs: tuple[RunData, RunData], replay: Replay) -> tuple[RunOrder, RunOrder]:
    """Let a side without its data set use the other's: both should train on the same one."""
    reference, candidate = map(replay.order, runs)
    for own, other in ((reference, candidate), (candidate, reference)):
        counted = own.counted.num_rows if own.counted else None
        lent = None if other.data_set is None else len(other.data_set)
        if own.data_set is None and counted in (None, lent):
            own.borrow(other)
    return reference, candidate


def _witness(order: RunOrder, other: RunOrder, side: SideRows) -> Witness | None:
    """Match the dumps to the run's data set; one of token ids is read by the other's questions."""
    data = order.data_set
    prompts = order.prompts or other.prompts
    if data is not None and other.data_set is not None and prompts is not None:
        data = with_questions(data, prompts, other.data_set)
    return None if data is None else prompt_witness(side, data)


def _shifted(pair: RolloutPair, step: int) -> OrderCause | None:
    """Find out, without any data set, that one run's steps are other steps of the other run."""
    ours, theirs = (_contents(side) for side in (pair.reference, pair.candidate))
    rest = [s for s in sorted(theirs) if s >= step]
    for start in sorted(ours):
        shift = start - step
        pairs = [(s, s + shift) for s in rest if s + shift in ours]
        if (
            shift
            and len(pairs) >= _FEWEST_STEPS
            and len({ours[b] for _, b in pairs}) == len(pairs)  # not the same batch every time
            and all(theirs[a] == ours[b] for a, b in pairs)
        ):
            return OrderCause(
                Text(
                    f"the candidate's steps {step}… have the prompts of the reference's steps "
                    f"{start}…, {len(pairs)} of {len(pairs)}: its order was started anew there",
                    f"被测从第 {step} 步起的 prompt 正是参考从第 {start} 步起的 prompt"
                    f"（{len(pairs)}/{len(pairs)} 步一致）：数据顺序在该处重新开始",
                )
            )
    return None


def _contents(side: SideRows) -> dict[int, frozenset[tuple[int, int]]]:
    rows = side.take((side.prompt >= 0) & (side.step >= 0))
    steps, first = np.unique(rows.step, return_index=True)
    parts = np.split(rows.prompt, first[1:])
    return {
        int(step): frozenset(Counter(part.tolist()).items())
        for step, part in zip(steps, parts, strict=True)
    }
