"""Files around a TRL run: accelerate's YAML with the processes, and the arguments saved as JSON."""

from __future__ import annotations

import re
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from dumps.readers.config_text import MAX_BYTES, read_config_text, top_keys, yaml_head
from dumps.readers.hf_config import read_json_object
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.yaml_leaves import parse_yaml

_ACCELERATE = frozenset({"compute_environment", "distributed_type", "num_processes"})
_COUNTS = ("num_processes", "num_machines")
_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{\s*\"")
_ARGUMENTS = re.compile(rb'"per_device_train_batch_size"\s*:')
_TRL = re.compile(
    rb'"(?:num_generations|num_ppo_epochs|precompute_ref_log_probs|max_completion_length)"\s*:'
)


def _sniff_accelerate(glimpse: Glimpse) -> bool:
    return len(_ACCELERATE & top_keys(yaml_head(glimpse))) >= 2


def _sniff_arguments(glimpse: Glimpse) -> bool:
    fits = glimpse.size_bytes <= MAX_BYTES and _OBJECT.match(glimpse.head)
    return bool(fits and _ARGUMENTS.search(glimpse.head) and _TRL.search(glimpse.head))


def read_accelerate(path: Path, progress: Progress) -> RawConfig:
    """Read accelerate's configuration; what is not a number of processes gets ``accelerate.``.

    Raises:
        ConfigError: Nothing in it is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    leaves = [
        leaf
        if leaf.path[0] in _COUNTS
        else Leaf(("accelerate", *leaf.path), leaf.value, leaf.line, leaf.text)
        for leaf in document.leaves
    ]
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="is no accelerate configuration",
            fix="give the file that accelerate config wrote",
        )
    return RawConfig(
        source=str(path),
        format="trl_accelerate",
        framework=None,
        values=config_values(leaves, source=str(path), kind=ProvenanceKind.FILE),
        num_unread_lines=document.num_unread_lines,
        unknown=document.unknown,
        problems=document.problems,
    )


def read_arguments(path: Path, progress: Progress) -> RawConfig:
    """Read the training arguments that were saved as JSON.

    Raises:
        ConfigError: The text is no JSON object, or ends before its first value does.
    """
    return read_json_object(
        path, progress, format="trl_arguments", framework="trl", kind=ProvenanceKind.FILE
    )


READERS = (
    Reader("trl_accelerate", ArtifactKind.CONFIG, _sniff_accelerate, read_accelerate, priority=15),
    Reader("trl_arguments", ArtifactKind.CONFIG, _sniff_arguments, read_arguments, priority=12),
)
