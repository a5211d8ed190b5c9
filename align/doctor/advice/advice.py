"""What a piece of advice is, and how a run answers to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from align.core.rung import Rung
from align.core.text import Text
from align.doctor.case import Case
from align.doctor.timing import Stage

SEED_7B_32B = "GRPO practice report, Qwen2.5-7B/32B with MindSpeed-RL on Atlas 800T A2"
SEED_235B = "Qwen3-235B long-sequence RL guide for verl on Atlas 800T A2 (2025-12-05)"


class State(str, Enum):
    """How a run stands to a piece of advice."""

    ADVISED = "advised"
    ON = "on"
    UNKNOWN = "unknown"
    DOES_NOT_APPLY = "does_not_apply"


@dataclass(frozen=True, slots=True)
class Answer:
    """How one run stands to a piece of advice; ``because`` quotes what was read."""

    state: State
    because: Text


@dataclass(frozen=True, slots=True)
class Advice:
    """One switch or size worth trying.

    Args:
        id: stable, such as "performance.acl_graph".
        title: what to do.
        stage: part of the step that it shortens; None for all of it.
        gain: what a report measured, or that none gives a number.
        gain_percent: the measured range, () where there is none.
        holds_when: the condition under which the gain was seen.
        source: where the gain and the condition are from.
        trades_precision: rung to check again afterwards, None where no number changes.
        how: framework -> the setting, as its configuration has it.
        answer: judges one run.
    """

    id: str
    title: Text
    stage: Stage | None
    gain: Text
    gain_percent: tuple[float, ...]
    holds_when: Text
    source: str
    trades_precision: Rung | None
    how: Mapping[str, str]
    answer: Callable[[Case], Answer]


@dataclass(frozen=True, slots=True)
class Judged:
    """A piece of advice and one run's answer to it."""

    advice: Advice
    answer: Answer


def advised(en: str, zh: str) -> Answer:
    """Return that it is worth trying."""
    return Answer(State.ADVISED, Text(en, zh))


def unknown(what: str, what_zh: str | None = None) -> Answer:
    """Return that the run does not state ``what``; keys are called alike in both languages."""
    return Answer(State.UNKNOWN, Text(f"not stated: {what}", f"未说明：{what_zh or what}"))


def is_on(what: str) -> Answer:
    """Return that it is on already."""
    return Answer(State.ON, Text(what, what))


def does_not_apply(en: str, zh: str) -> Answer:
    """Return that it can do nothing for this run."""
    return Answer(State.DOES_NOT_APPLY, Text(en, zh))


NOT_ON_NPU = does_not_apply("not on an NPU", "不在 NPU 上运行")
DEVICE_UNKNOWN = unknown("device", "设备")
