"""Signatures of the functions we hook in MindSpeed-RL, recorded from its source.

`signatures.tsv` has a line for each form that a function had: its arguments by name, and the
branches that have it so. A branch that is in no line has no such function.
"""

from __future__ import annotations

from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "frameworks" / "mindspeed_rl" / "signatures.tsv"
RELEASES = ("2.0.0", "2.1.0", "2.2.0", "2.3.0", "master")


def signatures(place: str) -> dict[str, list[str]]:
    """Return the arguments of a function, such as "module:Class.function", by branch."""
    found: dict[str, list[str]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        name, arguments, releases = line.split("\t")
        if name == place:
            found |= {release: arguments.split() for release in releases.split()}
    return found


def signature(place: str, release: str) -> list[str]:
    """Return the arguments that a function has in a branch."""
    return signatures(place)[release]
