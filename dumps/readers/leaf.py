"""Leaves of a configuration file with their places, and the record made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    Provenance,
    ProvenanceKind,
)

Path = tuple[str | int, ...]
"""Keys and list indices from the root to a leaf."""

LONGEST_TEXT = 200

_TRL_KEYS = frozenset(
    {
        *("num_generations", "max_completion_length", "num_ppo_epochs"),
        *("precompute_ref_log_probs", "cliprange_value"),
    }
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a nested file, at the 1-based line its key stands on."""

    path: Path
    value: ConfigLeaf
    line: int
    text: str  # that line, without terminal colours and prefixes


def dotted(path: Sequence[str | int]) -> str:
    """Spell a path as ``a.b[0].c``."""
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return parts.removeprefix(".")


def config_values(
    leaves: Iterable[Leaf], *, source: str, kind: ProvenanceKind
) -> dict[str, ConfigValue]:
    """Index leaves by dotted path, in file order; a later leaf of the same path wins."""
    return {
        key: ConfigValue(key, leaf.value, Provenance(kind, source, leaf.line, _shown(leaf.text)))
        for leaf in leaves
        for key in [dotted(leaf.path)]
    }


def _shown(text: str) -> str:
    return text.strip()[:LONGEST_TEXT]


def framework_of(values: Mapping[str, ConfigValue]) -> str | None:
    """Name the framework whose sections a configuration has, None where none is certain."""
    sections = {key.partition(".")[0] for key in values}
    if {"actor_rollout_ref", "stack"} <= sections:
        return "stack"  # spelled as verl, with a section of its own
    if "actor_rollout_ref" in sections:
        return "verl"
    if sections & {"megatron_training", "rl_config", "actor_config"}:
        return "mindspeed_rl"
    if {"data", "trainer"} <= sections and sections & {"model", "optim"}:
        return "verl"  # its SFT trainer
    if sections & _TRL_KEYS and sections & {"per_device_train_batch_size", "learning_rate"}:
        return "trl"
    if sections & {"model_type", "architectures"}:
        return "huggingface"
    return None
