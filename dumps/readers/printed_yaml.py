"""A configuration that a run prints as YAML (``OmegaConf.to_yaml``) into its console log.

YAML has no closing bracket: the block ends where its process writes something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from dumps.readers.interpolation import resolve_leaves
from dumps.readers.leaf import Leaf, config_values, dotted, framework_of
from dumps.readers.printed_rows import Margin, Row, Rows
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.yaml_leaves import parse_yaml

FORMAT = "printed_yaml"

_CERTAIN = re.compile(rb"actor_rollout_ref:[ \t]*\r?\n")
_SECTIONS = (
    r"(?:actor_rollout_ref|data|algorithm|trainer|critic|model_engine|reward|reward_model"
    r"|async_training|custom_reward_function|global_profiler|ray_init|ray_kwargs|transfer_queue)"
)
_START = re.compile(rb"(?m)(?:^|[) ])" + _SECTIONS.encode() + rb":[ \t]*(?:\r?$|dp|megatron)")
_SECTION = re.compile(r"(?:^|(?<=[) ]))" + _SECTIONS + ":")
_YAML = re.compile(r"""(?:[a-z_][a-z0-9_]*|\s+["']?[\w.@/-]+["']?):(?:\s|$)|\s*- |\s*-$""")
_MAX_FOREIGN = 20  # lines in a row of the same process that are no YAML: the block is over


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.search(_CERTAIN) is not None


def read_printed_yaml(path: Path, progress: Progress) -> RawConfig:
    """Read the last configuration printed as YAML.

    Raises:
        ConfigError: No such block with an ``actor_rollout_ref`` section.
    """
    for rows, ends_file in reversed(list(_blocks(path, progress))):
        config = _read_block(path, rows, ends_file=ends_file)
        if config is not None and config.framework == "verl":
            return config
    raise ConfigError(
        where=str(path),
        problem="prints no YAML configuration that can be read",
        fix="give the run's .hydra folder or YAML file",
    )


def _blocks(path: Path, progress: Progress) -> Iterator[tuple[list[Row], bool]]:
    """Yield the rows of each block, and whether nothing of its process follows in the file."""
    rows = Rows(path, _START, progress)
    while (start := rows.find_start()) is not None:
        found = _SECTION.search(start.text)
        begin = found.start() if found else 0
        margin = Margin.before(start.text, begin)
        taken = [replace(start, text=start.text[begin:])]
        num_foreign = 0
        for row in margin.own(rows.following(stops_at_start=False)):
            if row is not None and _YAML.match(row.text):
                taken.append(row)
                num_foreign = 0
            elif row is not None and not row.is_last:
                num_foreign += 1
                if num_foreign > _MAX_FOREIGN:
                    break
        yield taken, num_foreign == 0


def _read_block(path: Path, rows: list[Row], *, ends_file: bool) -> RawConfig | None:
    try:
        document = parse_yaml(
            "\n".join(row.text for row in rows),
            where=str(path),
            numbers=[row.number for row in rows],
        )
    except ConfigError:
        return None
    is_cut = ends_file or document.num_unread_lines > 0
    leaves, notes = resolve_leaves(document.leaves, document.plain, is_cut=is_cut)
    if ends_file and not document.num_unread_lines:
        leaves = leaves[:-1]  # its value may not have been written to its end
    placed = [Leaf(x.path, x.value, rows[x.line - 1].number, x.text) for x in leaves]
    values = config_values(placed, source=str(path), kind=ProvenanceKind.PRINTED)
    return RawConfig(
        source=str(path),
        format=FORMAT,
        framework=framework_of(values),
        values=values,
        truncated_at=dotted(leaves[-1].path) if is_cut and leaves else None,
        num_unread_lines=document.num_unread_lines,
        notes=notes,
        unknown=document.unknown,
        problems=document.problems,
    )


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_printed_yaml, priority=-3)
