"""What a version of verl does of itself: no key sets it.

Sources: the data loaders, workers and losses of the tags v0.3.0.post1 to v0.9.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import DefaultSpan, Fixed
from align.frameworks.verl_behaviour import behaviour
from align.frameworks.verl_dead import engine_workers
from align.frameworks.verl_versions import before

_HISTORY: dict[str, tuple[DefaultSpan, ...]] = {
    "data.sampler": (DefaultSpan("0.3", "torch"), DefaultSpan("0.7", "torchdata")),
    "loss.normalization": (DefaultSpan("0.3", "micro-batch"), DefaultSpan("0.8", "mini-batch")),
}
_WHAT = {
    "torch": "verl up to 0.6 shuffles with torch's RandomSampler",
    "torchdata": "verl from 0.7 on shuffles with torchdata's RandomSampler",
    "micro-batch": "the workers of verl up to 0.7 average token losses within each micro-batch",
    "mini-batch": "the engine workers (0.8 on) divide by the tokens of the whole mini-batch",
}


def config_fixed(
    values: Mapping[str, ConfigValue], known: Mapping[str, ConfigLeaf], version: str | None
) -> Iterator[Fixed]:
    """Yield the sampler, where rows are shuffled, and how token losses are averaged.

    Nothing of both where the version is neither stated nor assumed.
    """
    yield from behaviour(known, version)
    if version is None:
        return
    if known.get("data.shuffle") is True:
        yield _fixed("data.sampler", "torch" if before(version, "0.7.0") else "torchdata", version)
    if known.get("loss.aggregation") == "token-mean":
        engine = engine_workers(values, version)
        yield _fixed("loss.normalization", "mini-batch" if engine else "micro-batch", version)


def fixed_history(field: str) -> tuple[DefaultSpan, ...]:
    """Return what verl did of itself from which version on, empty for other fields."""
    return _HISTORY.get(field, ())


def _fixed(field: str, value: str, version: str) -> Fixed:
    return Fixed(field, value, f"verl {version}", _WHAT[value])
