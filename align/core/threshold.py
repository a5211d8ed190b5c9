"""A limit and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit that a measurement is judged by; no number is a limit without a source."""

    value: float
    source: str
    num_samples: int | None = None
