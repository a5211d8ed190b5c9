"""MindSpeed-RL's YAML: a main file, and the model files its ``defaults`` name.

Hydra lays ``model/<name>.yaml`` under ``model`` in the composed configuration, so a value there
has the key ``model.<name>.<key>`` and keeps the model file and line it stands in. A model file
that a main file of the same folder already reads is recognised, and adds nothing of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from align.core.config_value import ConfigValue, ProvenanceKind, RawConfig
from align.core.errors import AlignError, ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.config_text import read_config_text, top_keys, yaml_head
from dumps.readers.interpolation import resolve_leaves, value_problems
from dumps.readers.leaf import Leaf, config_values, dotted
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress
from dumps.readers.yaml_leaves import YamlDocument, parse_yaml

_SECTIONS = {"megatron_training", "rl_config", "actor_config"}
_MODEL_KEY = re.compile(
    r"^\s+(num_layers|hidden_size|ffn_hidden_size|num_attention_heads|padded_vocab_size"
    r"|group_query_attention|rotary_base|use_mcore_models|num_query_groups)\s*:",
    re.MULTILINE,
)
_DATASET_KEYS = {"input", "tokenizer_name_or_path", "output_prefix", "handler_name", "workers"}
_MAX_SIBLINGS = 200


@dataclass(frozen=True, slots=True)
class _Include:
    """One entry of a defaults list."""

    group: str  # "model"
    name: str  # "qwen25_7b"
    line: int


def _sniff_main(glimpse: Glimpse) -> bool:
    return bool(top_keys(yaml_head(glimpse)) & _SECTIONS)


def _sniff_model(glimpse: Glimpse) -> bool:
    text = yaml_head(glimpse)
    return len(top_keys(text)) == 1 and len(set(_MODEL_KEY.findall(text))) >= 3


def _sniff_dataset(glimpse: Glimpse) -> bool:
    keys = top_keys(yaml_head(glimpse))
    return len(keys & _DATASET_KEYS) >= 4 and "handler_name" in keys


def read_main(path: Path, progress: Progress) -> RawConfig:
    """Read a main file and the model files it names.

    A model file is looked for in ``model/`` beside the main file, then in ``../model/``.

    Raises:
        ConfigError: Nothing in the main file is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    values, notes = _values(document, path)
    problems: list[AlignError] = []
    unknown = list(document.unknown)
    for include in _includes(document):
        found = _find(path, include)
        if found is None:
            notes.append(_missing(include))
            continue
        try:
            part = parse_yaml(read_config_text(found, progress), where=str(found))
        except ConfigError as error:
            missing = _missing(include)
            notes.append(Text(f"{missing.en} ({error})", f"{missing.zh}（{error}）"))
            continue
        part_values, part_notes = _values(part, found, group=include.group)
        values |= part_values
        notes += part_notes
        problems += (*part.problems, *value_problems(part.leaves, str(found)))
        unknown += [f"{include.group}.{key}" for key in part.unknown]
    main = _raw_config(path, "mindspeed_rl_yaml", document, values, notes)
    return replace(main, problems=(*main.problems, *problems), unknown=tuple(unknown))


def read_model(path: Path, progress: Progress) -> RawConfig:
    """Read a model file that stands alone; one that a main file reads adds nothing.

    Raises:
        ConfigError: Nothing in it is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    mains = list(_main_files_around(path))
    if mains:
        readers = [main for main in mains if path in _parts(main)]
        note = _read_with(readers[0]) if readers else _not_named(mains[0])
        return _raw_config(path, "mindspeed_rl_model_yaml", document, {}, [note])
    values, notes = _values(document, path, group="model")
    notes.append(_ALONE)
    alone = _raw_config(path, "mindspeed_rl_model_yaml", document, values, notes)
    return replace(alone, unknown=tuple(f"model.{key}" for key in document.unknown))


def read_dataset(path: Path, progress: Progress) -> RawConfig:
    """Read the settings of MindSpeed-RL's preprocessing; they configure data, not a training run.

    Raises:
        ConfigError: Nothing in it is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    values, notes = _values(document, path)
    return _raw_config(path, "mindspeed_rl_dataset_yaml", document, values, notes)


def _raw_config(
    path: Path,
    format: str,
    document: YamlDocument,
    values: dict[str, ConfigValue],
    notes: list[Text],
) -> RawConfig:
    last = document.leaves[-1].path if document.leaves else ()
    return RawConfig(
        source=str(path),
        format=format,
        framework="mindspeed_rl",
        values=values,
        truncated_at=dotted(last) if document.num_unread_lines else None,
        num_unread_lines=document.num_unread_lines,
        notes=tuple(notes),
        unknown=document.unknown,
        problems=(*document.problems, *value_problems(document.leaves, str(path))),
    )


def _values(
    document: YamlDocument, path: Path, group: str = ""
) -> tuple[dict[str, ConfigValue], list[Text]]:
    """Return the values under their keys in the composed configuration, and notes."""
    is_cut = document.num_unread_lines > 0
    leaves, unresolved = resolve_leaves(document.leaves, document.plain, is_cut=is_cut)
    placed = [
        Leaf((group, *leaf.path) if group else leaf.path, leaf.value, leaf.line, leaf.text)
        for leaf in leaves
        if leaf.path[0] != "defaults"
    ]
    values = config_values(placed, source=str(path), kind=ProvenanceKind.FILE)
    return values, list(unresolved)


def _includes(document: YamlDocument) -> Iterator[_Include]:
    """Yield the files that ``defaults: - model: [name]`` or ``- model: name`` asks for."""
    for leaf in document.leaves:
        if leaf.path[0] != "defaults" or len(leaf.path) < 3:
            continue
        group = str(leaf.path[2]).removeprefix("override ").removeprefix("optional ").strip("/")
        names = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        for name in names:
            if isinstance(name, str):
                yield _Include(group.partition("@")[0], name.removesuffix(".yaml"), leaf.line)


def _find(main: Path, include: _Include) -> Path | None:
    for folder in (main.parent, main.parent.parent):
        for suffix in (".yaml", ".yml"):
            path = folder / include.group / f"{include.name}{suffix}"
            if path.is_file():
                return path
    return None


_ALONE = Text(
    "no main file is beside this model file: only the model is known",
    "该模型文件旁边没有主配置文件：只知道模型参数",
)


def _read_with(main: Path) -> Text:
    return Text(f"is read as part of {main}", f"作为 {main} 的一部分读取")


def _not_named(main: Path) -> Text:
    return Text(f"{main} does not name it", f"{main} 没有引用该文件")


def _missing(include: _Include) -> Text:
    file, section = f"{include.group}/{include.name}.yaml", f"{include.group}.{include.name}"
    return Text(
        f"line {include.line} names {file}, which is not beside this file: every key of {section} "
        "(layers, norm_epsilon, rotary_base …) is unknown",
        f"第 {include.line} 行引用的 {file} 不在该文件旁边：{section} 的所有键"
        "（层数、norm_epsilon、rotary_base 等）均未知",
    )


def _main_files_around(model: Path) -> Iterator[Path]:
    """Yield the main files of the folder this model file belongs to."""
    for folder in (model.parent, model.parent.parent):
        siblings = sorted(p for p in folder.glob("*.y*ml") if p.is_file() and p != model)
        for path in siblings[:_MAX_SIBLINGS]:
            if _sniff_main(Glimpse(path, path.stat().st_size)):
                yield path


def _parts(main: Path) -> list[Path]:
    try:
        document = parse_yaml(read_config_text(main, no_progress), where=str(main))
    except ConfigError:
        return []
    return [found for include in _includes(document) if (found := _find(main, include))]


READERS = (
    Reader("mindspeed_rl_yaml", ArtifactKind.CONFIG, _sniff_main, read_main, priority=20),
    Reader("mindspeed_rl_model_yaml", ArtifactKind.CONFIG, _sniff_model, read_model, priority=15),
    Reader(
        "mindspeed_rl_dataset_yaml", ArtifactKind.DATA, _sniff_dataset, read_dataset, priority=10
    ),
)
