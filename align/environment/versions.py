"""Versions as Ascend stacks state them: releases, RC builds, dated builds, tags and commits."""

from __future__ import annotations

import re

_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
_LOCAL_COMMIT = re.compile(r"\+g(?:it)?([0-9a-f]{7,40})")
_PREFIX = re.compile(r"^(?:releases?/|core_)?[vr]?(?=\d)")
_TOKEN = re.compile(r"\d+|[a-z]+")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_CLAUSE = re.compile(r"^(==|!=|>=|<=|<|>)?\s*(.+)$")
_RANKS = {"dev": -5, "alpha": -4, "a": -4, "beta": -3, "b": -3, "rc": -2, "c": -2, "post": 1}
_BUILD = 1  # a bare number after the release, such as the day of a build: 2.7.1-0919

_Order = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def release_of(version: str) -> tuple[int, ...] | None:
    """Return the numeric release ("core_v0.12.1" -> 0, 12, 1), None for a commit or a branch."""
    if _COMMIT.match(version.strip().lower()):
        return None
    match = _RELEASE.match(_plain(version))
    return tuple(int(part) for part in match[0].split(".")) if match else None


def satisfies(version: str, constraint: str) -> bool | None:
    """Tell whether a stated version meets a constraint; None where the two cannot be compared.

    Args:
        version: as a run states it.
        constraint: clauses joined by ",", alternatives by "|"; a clause without an operator is an
            equality, and a version that ends in ".*" names a whole series. Commits are equal where
            one begins with the other.
    """
    verdicts = [_meets_all(version, each.split(",")) for each in constraint.split("|")]
    if any(verdict is True for verdict in verdicts):
        return True
    return None if None in verdicts else False


def _meets_all(version: str, clauses: list[str]) -> bool | None:
    verdicts = [_meets(version, clause.strip()) for clause in clauses]
    if any(verdict is False for verdict in verdicts):
        return False
    return None if None in verdicts else True


def _meets(version: str, clause: str) -> bool | None:
    match = _CLAUSE.match(clause)
    assert match is not None, f"empty clause for {version}"
    operator, wanted = match[1] or "==", match[2]
    equal = _equal(version, wanted)
    if operator in ("==", "!="):
        return equal if operator == "==" or equal is None else not equal
    ours, limit = _order(version), _order(wanted)
    if ours is None or limit is None:
        return None
    return {
        ">=": ours >= limit,
        "<=": ours <= limit,
        ">": ours > limit,
        "<": ours < limit,
    }[operator]


def _equal(version: str, wanted: str) -> bool | None:
    if wanted.endswith(".*"):
        series, ours = release_of(wanted[:-2]), release_of(version)
        if series is None or ours is None:
            return None
        return ours[: len(series)] == series
    commits = _commit(version), _commit(wanted)
    if _COMMIT.match(wanted.lower()):
        if commits[0] is None or commits[1] is None:
            return None
        return commits[0].startswith(commits[1]) or commits[1].startswith(commits[0])
    orders = _order(version), _order(wanted)
    if None in orders:
        return None
    return orders[0] == orders[1]


def _commit(version: str) -> str | None:
    """Return the commit a version is or carries ("0.11.0+g38217877a")."""
    lowered = version.strip().lower()
    if _COMMIT.match(lowered):
        return lowered
    local = _LOCAL_COMMIT.search(lowered)
    return local[1] if local else None


def _order(version: str) -> _Order | None:
    """Return what versions sort by: the release without closing zeros, then each suffix.

    CANN builds have several suffixes: 8.3.RC1.alpha003 comes before 8.3.RC1.
    """
    release = release_of(version)
    if release is None:
        return None
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    match = _RELEASE.match(_plain(version))
    assert match is not None
    tokens = _TOKEN.findall(_plain(version)[match.end() :])
    suffixes: list[tuple[int, int]] = []
    for token in tokens:
        if token in _RANKS:
            suffixes.append((_RANKS[token], 0))
        elif token.isdigit() and suffixes and suffixes[-1][1] == 0:
            suffixes[-1] = (suffixes[-1][0], int(token))
        elif token.isdigit():
            suffixes.append((_BUILD, int(token)))
    return release, (*suffixes, (0, 0))


def _plain(version: str) -> str:
    """Return the version without branch prefix and local part."""
    return _PREFIX.sub("", version.strip().lower()).split("+")[0]
