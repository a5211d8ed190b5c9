"""One name for one quantity, whatever a framework calls it, and what each quantity means.

A framework module may have three tables for its metrics:

- ``METRIC_KEYS``: spelling -> vocabulary name. One ``*`` stands for any text and is carried over:
  ``"grpo/score/*": "critic/score/*"``. What is in no table keeps its spelling.
- ``METRIC_PREFIX``: what its TensorBoard or wandb writer puts before every spelling.
- ``METRIC_SIGNS``: spellings that no other framework writes.

Two quantities of one spelling but of different formulas have different vocabulary names, so that
nothing downstream compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.metric_meanings import MetricKind, meaning_rows
from align.frameworks.registry import frameworks

__all__ = ["MetricKind", "MetricMeaning", "identify_framework", "metric_meaning", "metric_name"]

_EXTREME = re.compile(r"[/_](max|min)$")
_SPREAD = re.compile(r"[/_]std$")


@dataclass(frozen=True, slots=True)
class MetricMeaning:
    """What a vocabulary name stands for.

    Args:
        name: vocabulary name.
        rung: link of the chain on which the quantity is computed; `Rung.CURVES` where it is on
            none of them (performance) or not known.
        unit: unit of the values, "1" where they have none.
        meaning: one clause.
        kind: how two series of it can be compared.
    """

    name: str
    rung: Rung
    unit: str
    meaning: Text
    kind: MetricKind

    @property
    def numeric(self) -> bool:
        """Whether a difference can be a divergence: not for time, memory and bookkeeping."""
        return self.kind not in (
            MetricKind.PERFORMANCE,
            MetricKind.BOOKKEEPING,
            MetricKind.COUNTER,
        )


@lru_cache(maxsize=8192)
def metric_name(framework: str | None, spelling: str) -> str:
    """Translate a spelling into the vocabulary; an unknown one is returned unchanged.

    Without a framework nothing is translated: the same word means different things in two of
    them. `identify_framework` finds it from all the spellings of a file.
    """
    module = None if framework is None else frameworks().get(framework)
    if module is None:
        return spelling
    spelling = spelling.removeprefix(getattr(module, "METRIC_PREFIX", ""))
    keys: Mapping[str, str] = getattr(module, "METRIC_KEYS", {})
    if spelling in keys:
        return keys[spelling]
    for pattern, name in keys.items():
        before, star, after = pattern.partition("*")
        long_enough = len(spelling) > len(before) + len(after)
        if star and long_enough and spelling.startswith(before) and spelling.endswith(after):
            return name.replace("*", spelling[len(before) : len(spelling) - len(after)])
    return spelling


def identify_framework(spellings: Iterable[str]) -> str | None:
    """Name the framework that wrote these spellings, None where they do not tell.

    The framework with the most of its own signs wins; a tie does not tell.
    """
    keys = tuple(spellings)
    counts = sorted(((_num_signs(module, keys), name) for name, module in frameworks().items()))
    if not counts or counts[-1][0] == 0 or (len(counts) > 1 and counts[-2][0] == counts[-1][0]):
        return None
    return counts[-1][1]


@lru_cache(maxsize=8192)
def metric_meaning(name: str) -> MetricMeaning:
    """Say what a vocabulary name stands for; a name in no table has `MetricKind.UNKNOWN`."""
    for row in meaning_rows():
        if row.pattern.fullmatch(name):
            return MetricMeaning(name, row.rung, row.unit, row.meaning, _kind(name, row.kind))
    meaning = Text("a quantity this tool does not know", "本工具不认识的指标")
    return MetricMeaning(name, Rung.CURVES, "1", meaning, MetricKind.UNKNOWN)


def _kind(name: str, kind: MetricKind) -> MetricKind:
    """Tell the largest and smallest sample, and a spread, from the mean of the same family."""
    if kind not in (MetricKind.POSITIVE, MetricKind.LEVEL, MetricKind.SIGNED, MetricKind.BOUNDED):
        return kind
    if _EXTREME.search(name):
        return MetricKind.EXTREME
    return MetricKind.POSITIVE if _SPREAD.search(name) else kind


def _num_signs(module: ModuleType, spellings: tuple[str, ...]) -> int:
    signs = getattr(module, "METRIC_SIGNS", ())
    if not signs:
        return 0
    own = re.compile("|".join(re.escape(sign).replace(r"\*", ".*") for sign in signs))
    prefix = getattr(module, "METRIC_PREFIX", "")
    return sum(1 for s in spellings if own.fullmatch(s) or own.fullmatch(s.removeprefix(prefix)))
