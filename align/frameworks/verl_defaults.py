"""Values of verl configuration keys that are not set, of each version and trainer.

The table holds what the trainers' composed YAML files say (``yaml``) and what the code does where
a file lacks the key or has null (``code``). A value may name another key: ``${data.seed}``. Example
paths of models and data sets are not in it: no run means them.

Sources: the tags v0.3.0.post1 to v0.9.0 and the package 0.9.1.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import Default, DefaultSpan, assumed_defaults
from align.frameworks.verl_dead import dead_keys, engine_of
from align.frameworks.verl_fixed import fixed_history
from align.frameworks.verl_versions import (
    NEWEST,
    RELEASES,
    before,
    is_covered,
    is_whole,
    release_of,
)

_ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True, slots=True)
class _Row:
    key: str
    trainer: str  # fsdp, megatron or both
    first: str
    last: str
    value: ConfigLeaf
    origin: str  # yaml or code

    def holds(self, release: str) -> bool:
        return RELEASES.index(self.first) <= RELEASES.index(release) <= RELEASES.index(self.last)


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return what applies where a key is not set.

    A composed configuration has every key of its version, so that only the code's own values
    apply to it.

    Args:
        values: keys that are set.
        version: of verl, None where the run does not state it.
    """
    release, engine = release_of(version), engine_of(values)
    rows = _of_release(release, engine)
    if is_whole(values):
        rows = {key: row for key, row in rows.items() if row.origin == "code"}
    dead = dead_keys(rows, values, version or NEWEST)
    kept = {
        key: _resolved(row.value, values, engine, release)
        for key, row in rows.items()
        if key not in dead and not _has_members(key, values)
    } | _by_setting(values, version)
    named = version if is_covered(version) else _series(NEWEST if version is None else release)
    unsure = None if is_covered(version) else assumed_defaults("verl", _series(release), version)
    return {
        key: Default(
            value, f"default of verl {named}", unsure if key in _ever_changed(engine) else None
        )
        for key, value in sorted(kept.items(), key=lambda item: item[1] is None)
    }


def default_history(key: str, engine: ConfigLeaf, old: str, new: str) -> tuple[DefaultSpan, ...]:
    """Return the values a key had by default between two versions, in order of time.

    Empty where it had none in either of the two. What the code does and no key sets is asked for by
    the name of its field.
    """
    if fixed_history(key):
        return _between(fixed_history(key), old, new)
    trainer = "megatron" if engine == "megatron" else "fsdp"
    first, last = sorted((RELEASES.index(release_of(old)), RELEASES.index(release_of(new))))
    releases = RELEASES[first : last + 1]
    if any(key not in _of_release(release, trainer) for release in (releases[0], releases[-1])):
        return ()
    spans: list[DefaultSpan] = []
    for release in releases:
        row = _of_release(release, trainer).get(key)
        value = _resolved(row.value, {}, trainer, release) if row is not None else None
        if row is not None and (not spans or spans[-1].value != value):
            spans.append(DefaultSpan(_series(release), value))
    return tuple(spans)


def _between(spans: tuple[DefaultSpan, ...], old: str, new: str) -> tuple[DefaultSpan, ...]:
    starts = [RELEASES.index(release_of(span.since)) for span in spans]
    first, last = sorted((RELEASES.index(release_of(old)), RELEASES.index(release_of(new))))
    ends = [*starts[1:], len(RELEASES)]
    return tuple(
        span
        for span, start, end in zip(spans, starts, ends, strict=True)
        if start <= last and end > first
    )


def _by_setting(values: Mapping[str, ConfigValue], version: str | None) -> dict[str, ConfigLeaf]:
    """Return defaults that follow from another key."""
    made: dict[str, ConfigLeaf] = {}
    if before(version, "0.4.0"):  # a KL penalty is taken off the rewards unless the loss has one
        in_loss = values.get(f"{_ACTOR}.use_kl_loss")
        made["algorithm.use_kl_in_reward"] = in_loss is None or in_loss.value is not True
    return made


def _resolved(
    value: ConfigLeaf, values: Mapping[str, ConfigValue], engine: str, release: str
) -> ConfigLeaf:
    """Follow ``${key}`` to what is set, or to that key's own default."""
    rows = _of_release(release, engine)
    seen: set[str] = set()
    while isinstance(value, str) and value.startswith("${") and value not in seen:
        seen.add(value)
        key = value[2:-1]
        if key in values:
            return values[key].value
        value = rows[key].value if key in rows else None
    return value


def _has_members(key: str, values: Mapping[str, ConfigValue]) -> bool:
    return any(stated.startswith(f"{key}.") for stated in values)


def _series(release: str) -> str:
    """Return 0.9 for 0.9.0, the first of its series, and other releases as they are."""
    return release.removesuffix(".0") if release.count(".") == 2 else release


@cache
def _of_release(release: str, engine: str) -> Mapping[str, _Row]:
    return {
        row.key: row for row in _table() if row.trainer in ("both", engine) and row.holds(release)
    }


@cache
def _ever_changed(engine: str) -> frozenset[str]:
    """Return the keys that have not had one and the same default in every release."""
    releases = [_of_release(release, engine) for release in RELEASES]
    keys = {key for rows in releases for key in rows}
    return frozenset(
        key
        for key in keys
        if len({repr(rows[key].value) if key in rows else "absent" for rows in releases}) > 1
    )


@cache
def _table() -> tuple[_Row, ...]:
    text = files("align.frameworks").joinpath("verl_defaults.tsv").read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        _Row(
            row["key"],
            row["trainer"],
            row["first"],
            row["last"],
            ast.literal_eval(row["value"]),
            row["origin"],
        )
        for row in reader
    )
