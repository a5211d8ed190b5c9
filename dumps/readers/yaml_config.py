"""Plain YAML configurations and Hydra's run folders, as OmegaConf reads them.

Of a Hydra folder, ``config.yaml`` already holds what ``overrides.yaml`` set; the latter is read as
well, because it names the line in which the user set a value. ``hydra.yaml`` is Hydra's own
book-keeping: `dumps.readers.hydra_bookkeeping` takes the version of Hydra from it, and it is no
configuration of the run.
"""

from __future__ import annotations

import re
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.config_text import read_config_text, top_keys, yaml_head
from dumps.readers.hydra_override import deleted, parse_override
from dumps.readers.interpolation import resolve_leaves, value_problems
from dumps.readers.leaf import Leaf, config_values, dotted, framework_of
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.yaml_leaves import parse_yaml

# Two of these in one YAML file make it a training configuration of a framework unknown to us.
_TRAINING_KEY = re.compile(
    r"^\s*(?:- )?[\"']?(learning_rate|lr|optimizer|model_name_or_path|train_files|data_path"
    r"|train_batch_size|per_device_train_batch_size|global_batch_size|micro_batch_size"
    r"|gradient_accumulation_steps|max_prompt_length|max_response_length|max_completion_length"
    r"|num_train_epochs|total_epochs|train_iters|weight_decay|kl_coef|clip_ratio|adv_estimator"
    r"|num_generations|seq_length|max_seq_length)[\"']?\s*:",
    re.MULTILINE,
)
_OVERRIDE_ITEM = re.compile(r"- [\"']?(?:\+{0,2}[A-Za-z_][\w./@:-]*=|~[A-Za-z_])")


def _sniff_config(glimpse: Glimpse) -> bool:
    text = yaml_head(glimpse)
    keys = top_keys(text)
    if "actor_rollout_ref" in keys or {"data", "trainer", "model", "optim"} <= keys:
        return True
    return len(set(_TRAINING_KEY.findall(text))) >= 2 and bool(keys)


def _sniff_overrides(glimpse: Glimpse) -> bool:
    if glimpse.path.name == "overrides.yaml" and glimpse.head.strip() == b"[]":
        return True
    lines = [line for line in yaml_head(glimpse).splitlines() if line.strip()]
    return (
        bool(lines)
        and all(_OVERRIDE_ITEM.match(line) for line in lines if line.startswith("-"))
        and lines[0].startswith("-")
    )


_NOT_COMPOSED = Text(
    "its defaults list is not composed: keys of the files it names are unknown",
    "defaults 列表未展开：其中所列文件的键均未知",
)
_NO_OVERRIDES = Text("no overrides were given", "没有给出任何覆盖项")


def read_yaml_config(path: Path, progress: Progress) -> RawConfig:
    """Read a YAML file, its interpolations resolved where the file itself suffices.

    Raises:
        ConfigError: Nothing in it is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    if document.is_list:
        raise ConfigError(
            where=f"{path}:1",
            problem="is a list, not a mapping of keys to values",
            fix="give the YAML file the run was started with",
        )
    is_cut = document.num_unread_lines > 0
    leaves, notes = resolve_leaves(document.leaves, document.plain, is_cut=is_cut)
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.FILE)
    if any(key == "defaults" or key.startswith("defaults[") for key in values):
        notes += (_NOT_COMPOSED,)
    return RawConfig(
        source=str(path),
        format="yaml_config",
        framework=framework_of(values),
        values=values,
        truncated_at=dotted(leaves[-1].path) if is_cut else None,
        num_unread_lines=document.num_unread_lines,
        notes=notes,
        unknown=document.unknown,
        problems=(*document.problems, *value_problems(document.leaves, str(path))),
    )


def read_hydra_overrides(path: Path, progress: Progress) -> RawConfig:
    """Read the command line's overrides that Hydra wrote down, one a line.

    Raises:
        ConfigError: The file holds no list.
    """
    text = read_config_text(path, progress)
    if text.strip() == "[]":
        return RawConfig(str(path), "hydra_overrides", None, {}, notes=(_NO_OVERRIDES,))
    document = parse_yaml(text, where=str(path))
    leaves: list[Leaf] = []
    notes: list[Text] = []
    unknown: list[str] = []
    num_unread = document.num_unread_lines
    for item in document.leaves:
        override = parse_override(str(item.value))
        if override is None:
            num_unread += 1
        elif override.deletes:
            notes.append(deleted(item.line, override.key))
        elif "${" in str(item.value):
            unknown.append(override.key)
            notes.append(
                Text(
                    f"line {item.line} sets {override.key} to what another key holds",
                    f"第 {item.line} 行把 {override.key} 设为另一个键的取值",
                )
            )
        else:
            leaves += [Leaf(p, value, item.line, item.text) for p, value in override.leaves]
    if not leaves and num_unread:
        raise ConfigError(
            where=str(path),
            problem="holds no override of the form key=value",
            fix="give the overrides.yaml of a .hydra folder",
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.OVERRIDE)
    return RawConfig(
        source=str(path),
        format="hydra_overrides",
        framework=framework_of(values),
        values=values,
        num_unread_lines=num_unread,
        notes=tuple(notes),
        unknown=tuple(unknown),
        problems=document.problems,
    )


READERS = (
    Reader("yaml_config", ArtifactKind.CONFIG, _sniff_config, read_yaml_config, priority=10),
    Reader(
        "hydra_overrides", ArtifactKind.CONFIG, _sniff_overrides, read_hydra_overrides, priority=20
    ),
)
