"""``config.yaml`` of a wandb run folder: the configuration the run handed to wandb.

Each top-level key wraps its value in ``value:``; wandb's own facts stand under ``_wandb`` and are
left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.config_text import read_config_text, top_keys, yaml_head
from dumps.readers.leaf import Leaf, config_values, dotted, framework_of
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.yaml_leaves import parse_yaml

_VALUE = re.compile(r"^\s+value:", re.MULTILINE)


def _sniff(glimpse: Glimpse) -> bool:
    text = yaml_head(glimpse)
    return bool(top_keys(text) & {"_wandb", "wandb_version"}) and bool(_VALUE.search(text))


_NOTHING = Text("the run handed no configuration to wandb", "该次运行没有把配置交给 wandb")


def read_wandb_config(path: Path, progress: Progress) -> RawConfig:
    """Read the resolved configuration that a run handed to wandb.

    Raises:
        ConfigError: Nothing in it is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    leaves = [
        Leaf((*leaf.path[:1], *leaf.path[2:]), leaf.value, leaf.line, leaf.text)
        for leaf in document.leaves
        if leaf.path[1:2] == ("value",) and leaf.path[0] != "_wandb"
    ]
    empty = () if leaves else (_NOTHING,)
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.PRINTED)
    return RawConfig(
        source=str(path),
        format="wandb_config",
        framework=framework_of(values),
        values=values,
        truncated_at=dotted(leaves[-1].path) if leaves and document.num_unread_lines else None,
        num_unread_lines=document.num_unread_lines,
        notes=empty,
        unknown=tuple(key.replace(".value", "", 1) for key in document.unknown),
        problems=document.problems,
    )


READER = Reader("wandb_config", ArtifactKind.CONFIG, _sniff, read_wandb_config, priority=30)
