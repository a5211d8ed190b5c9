"""Which versions are released to work together: `compatibility.tsv`, each row with its source.

A *stack* is a whole set of versions that somebody published as tried together; a *pair* is one row
of a package's own table. Two versions are listed as belonging together where any set holds both,
so that one vendor's older table never contradicts another's newer one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from align.core.threshold import Threshold
from align.environment.versions import release_of, satisfies

BUILT_FOR: Mapping[str, tuple[str, ...]] = {
    "torch_npu": ("cann",),
    "vllm_ascend": ("vllm", "torch", "torch_npu", "cann", "python"),
    "verl": ("tensordict", "transformers"),
    "mindspeed_rl": ("megatron", "torch", "torch_npu", "cann", "python", "transformers"),
}
"""Packages that are built or released for certain versions of others, and of which."""

_VLLM_RULE = "vllm-ascend versioning policy: a release matches the vLLM release of its number"
MIN_COMPARED = Threshold(
    3, source="torch, torch_npu and CANN alone occur in one combination in many sets"
)

Stated = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VersionSet:
    """Versions that belong together; a version may be a constraint (">=0.8.0,<=0.10.0")."""

    name: str
    is_stack: bool
    versions: Mapping[str, str]
    source: str


@dataclass(frozen=True, slots=True)
class SetMatch:
    """How a run's versions compare with one set.

    Args:
        agrees: components that both state, alike.
        deviates: components that both state, otherwise.
        unknown: components of the set that the run does not state, or not comparably (a commit
            against a release).
    """

    versions: VersionSet
    agrees: tuple[str, ...]
    deviates: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def matches(self) -> bool:
        """Whether nothing deviates and enough was compared to tell the set from others."""
        return not self.deviates and len(self.agrees) >= MIN_COMPARED.value


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two stated versions that no known set holds together.

    ``listed`` are the sets that hold ``key``'s version and another of ``component``; empty where a
    general rule decides.
    """

    key: str
    component: str
    listed: tuple[VersionSet, ...]
    source: str

    @property
    def wanted(self) -> str:
        """The versions of ``component`` that are listed, each once."""
        return " | ".join(dict.fromkeys(s.versions[self.component] for s in self.listed))


@cache
def version_sets() -> tuple[VersionSet, ...]:
    """Return every set of the table, in its order."""
    text = files(__package__).joinpath("compatibility.tsv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], VersionSet] = {}
    for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        place = (row["kind"], row["set"])
        known = found.get(place)
        versions = {**(known.versions if known else {}), row["component"]: row["version"]}
        found[place] = VersionSet(row["set"], row["kind"] == "stack", versions, row["source"])
    return tuple(found.values())


def components() -> tuple[str, ...]:
    """Return every component of the table, in order of first appearance."""
    return tuple(dict.fromkeys(name for each in version_sets() for name in each.versions))


def closest_sets(stated: Stated) -> tuple[SetMatch, ...]:
    """Return the stacks a run has something in common with, the closest first."""
    matches = [match(each, stated) for each in version_sets() if each.is_stack]
    shared = [m for m in matches if m.agrees]
    return tuple(sorted(shared, key=lambda m: (len(m.deviates) - len(m.agrees), len(m.deviates))))


def match(versions: VersionSet, stated: Stated) -> SetMatch:
    """Compare a run's versions with one set."""
    sorted_out: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for name, wanted in versions.versions.items():
        verdict = satisfies(stated[name], wanted) if name in stated else None
        sorted_out[verdict].append(name)
    return SetMatch(
        versions, tuple(sorted_out[True]), tuple(sorted_out[False]), tuple(sorted_out[None])
    )


def mismatches(stated: Stated, *, on_npu: bool = True) -> Iterator[Mismatch]:
    """Yield each pair of stated versions that does not belong together.

    Whether torch_npu fits its torch needs no table: `align.config.lint` compares their numbers.

    Args:
        on_npu: the stacks of the table are Ascend's; elsewhere only packages' own tables count.
    """
    sets = [each for each in version_sets() if on_npu or not each.is_stack]
    for key in BUILT_FOR:
        if key in stated:
            yield from _mismatches_of(key, stated, sets)


def _mismatches_of(key: str, stated: Stated, sets: Sequence[VersionSet]) -> Iterator[Mismatch]:
    for component in BUILT_FOR[key]:
        if component not in stated:
            continue
        listing = _listing(key, component, stated, sets)
        verdicts = [satisfies(stated[component], each.versions[component]) for each in listing]
        if listing and all(verdict is False for verdict in verdicts):
            yield Mismatch(key, component, listing, listing[0].source)
        elif not listing and component == "vllm" and _other_release(stated[key], stated["vllm"]):
            yield Mismatch(key, component, (), _VLLM_RULE)


def _listing(
    key: str, component: str, stated: Stated, sets: Sequence[VersionSet]
) -> tuple[VersionSet, ...]:
    """Return the sets that hold the stated version of ``key`` and any of ``component``."""
    return tuple(
        each
        for each in sets
        if {key, component} <= each.versions.keys()
        and satisfies(stated[key], each.versions[key]) is True
    )


def _other_release(version: str, other: str) -> bool:
    ours, theirs = release_of(version), release_of(other)
    return None not in (ours, theirs) and ours != theirs
