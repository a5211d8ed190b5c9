"""Which files of a tokenizer folder each run has, which it lacks, and which cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.figure import Column, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.run import UnknownFile
from align.core.rung import Rung
from align.core.text import Text
from dumps.readers import hf_tokenizer as formats
from dumps.store.run_data import RunData

_FILES = {
    formats.JSON: "tokenizer.json",
    formats.CONFIG: "tokenizer_config.json",
    formats.MAP: "special_tokens_map.json",
    formats.ADDED: "added_tokens.json",
    formats.VOCABULARY: "vocab.json",
    formats.MERGES: "merges.txt",
    formats.SENTENCEPIECE: "tokenizer.model",
    formats.TIKTOKEN: "*.tiktoken",
    formats.TEMPLATE: "chat_template.jinja",
    formats.SLOTS: "templates.json",
    "hf_config": "config.json",
    "hf_generation_config": "generation_config.json",
}
_NAMES = frozenset(_FILES.values())


def file_table(reference: RunData, candidate: RunData) -> Table:
    """List every kind of file that either run has."""
    sides = [_paths(data) for data in (reference, candidate)]
    unread = [{f.path.name: f.looks_like for f in _unread(data)} for data in (reference, candidate)]
    rows = []
    for format, name in _FILES.items():
        cells = [
            ", ".join(found.get(format, ())) or (lost.get(name) and f"({lost[name]})") or None
            for found, lost in zip(sides, unread, strict=True)
        ]
        if cells != [None, None]:
            rows.append((name, *cells))
    return Table(
        "tokenizer.files",
        Text("Files of tokenizer and model", "分词器与模型文件"),
        (
            Column("file", Text("file", "文件")),
            Column("reference", Text("reference", "参考")),
            Column("candidate", Text("candidate", "被测")),
        ),
        tuple(rows),
    )


def _paths(data: RunData) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for artifact in data.run.artifacts:
        found.setdefault(artifact.format, []).append(str(artifact.path))
    return found


def _unread(data: RunData) -> Iterator[UnknownFile]:
    yield from (file for file in data.run.unknown if file.path.name in _NAMES)


def unread_files(reference: RunData, candidate: RunData) -> Iterator[Finding]:
    """Name files of a tokenizer that hold something else, such as a link that git wrote as text."""
    found = [
        (side, file)
        for side, data in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
        for file in _unread(data)
    ]
    if not found:
        return
    names = ", ".join(dict.fromkeys(f"{file.path.name} ({file.looks_like})" for _, file in found))
    yield Finding(
        id="tokenizer.unread_files",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(f"not read, the rest was compared: {names}", f"未读取，其余已比较：{names}"),
        reference=sum(side is Side.REFERENCE for side, _ in found),
        candidate=sum(side is Side.CANDIDATE for side, _ in found),
        evidence=tuple(
            Evidence(str(file.path), side, values=(file.looks_like,)) for side, file in found
        ),
        why=Text(
            "The file has the name of a tokenizer file and holds none: git writes a symbolic link "
            "as its target's path, and git-lfs a pointer.",
            "文件名属于分词器文件，内容却不是：git 可能把符号链接写成目标路径，"
            "git-lfs 则写成指针。",
        ),
        fix=Text(
            "Copy the file that the link or pointer stands for into the folder.",
            "把链接或指针所指的文件复制到该目录。",
        ),
    )
