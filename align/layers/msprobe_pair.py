"""Pair the entries of two msprobe dumps: modules by name and call, APIs by their place in a module.

msprobe counts the calls of an API over the whole process, so one further ``x * 1.0`` shifts every
later number. Here the APIs of one call of one module are aligned as a sequence, and the shift stays
where it arose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from align.layers.msprobe_names import common_names
from dumps.readers.msprobe import DumpedEntry, MsprobeDump
from dumps.readers.msprobe_keys import Direction

_Address = tuple[str, str, int]


@dataclass(frozen=True, slots=True, eq=False)
class EntryPair:
    """The same call on both sides.

    Args:
        name: common name of the module, or of the API.
        inside: common name of the module an API was called in; the name itself for a module.
    """

    name: str
    inside: str
    reference: DumpedEntry
    candidate: DumpedEntry

    @property
    def direction(self) -> Direction:
        """The pass it was recorded in."""
        return self.reference.key.direction

    @property
    def is_api(self) -> bool:
        """Whether it is a call of an API, not of a module."""
        return self.reference.key.path is None


@dataclass(frozen=True, slots=True, eq=False)
class PairedDumps:
    """Two dumps, entry by entry.

    Args:
        pairs: in the order in which the reference's calls ended.
        reference_only, candidate_only: entries without a partner.
        started: key of each reference entry -> keys of the modules around it, outermost first.
    """

    pairs: tuple[EntryPair, ...]
    reference_only: tuple[DumpedEntry, ...]
    candidate_only: tuple[DumpedEntry, ...]
    started: Mapping[str, tuple[str, ...]]


def pair_dumps(reference: MsprobeDump, candidate: MsprobeDump) -> PairedDumps:
    """Pair two dumps of the same step."""
    ours, theirs = (
        [entry for entry in dump.entries if not entry.is_recompute]
        for dump in (reference, candidate)
    )
    names = common_names(_paths(ours), _paths(theirs))
    own, other = (
        _addresses(entries, mapping) for entries, mapping in zip((ours, theirs), names, strict=True)
    )
    found = {address: (own[address], other[address]) for address in own if address in other}
    partner = {one.text: two for one, two in found.values()}
    partner |= _paired_apis(ours, theirs, names)
    taken = {entry.text for entry in partner.values()}
    inside = {entry.text: names[0].get(entry.key.path or "", "") for entry in ours}
    pairs = tuple(
        EntryPair(
            inside[entry.text] or entry.key.name,
            inside[entry.text] or inside.get(entry.parent or "", ""),
            entry,
            partner[entry.text],
        )
        for entry in ours
        if entry.text in partner
    )
    return PairedDumps(
        pairs,
        tuple(entry for entry in ours if entry.text not in partner),
        tuple(entry for entry in theirs if entry.text not in taken),
        _around(ours),
    )


def _paths(entries: Sequence[DumpedEntry]) -> list[str]:
    return list(dict.fromkeys(e.key.path for e in entries if e.key.path is not None))


def _addresses(
    entries: Sequence[DumpedEntry], names: Mapping[str, str]
) -> dict[_Address, DumpedEntry]:
    """Number the calls of each module and direction anew: those computed again are left out."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    found = {}
    for entry in entries:
        if entry.key.path is not None:
            call = (names[entry.key.path], entry.key.direction.value)
            found[call[0], call[1], counts[call]] = entry
            counts[call] += 1
    return found


def _paired_apis(
    ours: Sequence[DumpedEntry],
    theirs: Sequence[DumpedEntry],
    names: tuple[Mapping[str, str], Mapping[str, str]],
) -> dict[str, DumpedEntry]:
    own, other = (
        _calls_by_module(entries, mapping)
        for entries, mapping in zip((ours, theirs), names, strict=True)
    )
    partner: dict[str, DumpedEntry] = {}
    for module, calls in own.items():
        partner |= {one.text: two for one, two in _aligned(calls, other.get(module, []))}
    backward = {e.text: e for e in theirs if _is_api(e, Direction.BACKWARD)}
    for entry in ours:
        if _is_api(entry, Direction.BACKWARD):
            forward = partner.get(_counterpart(entry.text, "backward", "forward"))
            text = forward and _counterpart(forward.text, "forward", "backward")
            if text in backward:
                partner[entry.text] = backward[text]
    return partner


def _counterpart(text: str, old: str, new: str) -> str:
    return text.removesuffix(old) + new


def _is_api(entry: DumpedEntry, direction: Direction) -> bool:
    return entry.key.path is None and entry.key.direction is direction


def _calls_by_module(
    entries: Sequence[DumpedEntry], names: Mapping[str, str]
) -> dict[tuple[str, int], list[DumpedEntry]]:
    modules = {e.text: (names[e.key.path], e.key.call) for e in entries if e.key.path is not None}
    found: dict[tuple[str, int], list[DumpedEntry]] = defaultdict(list)
    for entry in entries:
        if _is_api(entry, Direction.FORWARD):
            found[modules.get(entry.parent or "", ("", 0))].append(entry)
    return found


def _aligned(
    ours: Sequence[DumpedEntry], theirs: Sequence[DumpedEntry]
) -> Iterator[tuple[DumpedEntry, DumpedEntry]]:
    """Align two sequences of calls by their names and shapes; axes in any order."""
    own, other = ([_signature(entry) for entry in calls] for calls in (ours, theirs))
    if own == other:
        yield from zip(ours, theirs, strict=True)
        return
    for block in SequenceMatcher(None, own, other, autojunk=False).get_matching_blocks():
        yield from zip(
            ours[block.a : block.a + block.size],
            theirs[block.b : block.b + block.size],
            strict=True,
        )


def _signature(entry: DumpedEntry) -> tuple[str, tuple[tuple[int, ...], ...]]:
    shapes = (tuple(sorted(n for n in tensor.shape if n != 1)) for tensor in entry.tensors)
    return entry.key.name, tuple(shapes)


def _around(entries: Sequence[DumpedEntry]) -> dict[str, tuple[str, ...]]:
    parents = {entry.text: entry.parent for entry in entries}
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        chain: list[str] = []
        above = entry.parent
        while above is not None and above not in chain:
            chain.insert(0, above)
            above = parents.get(above)
        found[entry.text] = tuple(chain)
    return found
