"""Facts about the stack a run ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from align.core.finding import Evidence


@dataclass(frozen=True, slots=True)
class EnvironmentFact:
    """One version, environment variable or device fact, with the line that states it."""

    name: str  # "torch", "torch_npu", "vllm", "device", "env.HCCL_DETERMINISTIC" …
    value: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """Everything one file says about the stack; the first statement of a name wins."""

    source: str
    facts: Mapping[str, EnvironmentFact] = field(default_factory=dict)
