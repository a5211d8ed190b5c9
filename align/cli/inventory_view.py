"""Show an inventory as text or as a JSON document."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from align.core.run import Artifact
from align.core.text import Text
from align.inventory import Inventory

SCHEMA_VERSION = 1
_MAX_LISTED = 3  # files of one format in one folder; more are counted

_LABELS = {
    "run": Text("run", "运行"),
    "files": Text("files", "文件"),
    "unknown": Text("not recognised", "未识别的文件"),
    "rungs": Text("rungs", "各环节"),
    "missing": Text("missing", "缺少"),
    "errors": Text("last error in the log", "日志中的最后一个错误"),
    "problems": Text("could not be read", "无法读取"),
    "unstated": Text("not stated", "未说明"),
}


def as_document(inventory: Inventory) -> dict[str, Any]:
    """Return the versioned JSON document of ``align run show``."""
    summary = inventory.summary
    return {
        "schema_version": SCHEMA_VERSION,
        "label": summary.label,
        "framework": summary.framework,
        "framework_version": summary.framework_version,
        "device": summary.device,
        "first_step": summary.first_step,
        "last_step": summary.last_step,
        "artifacts": [
            {
                "kind": artifact.kind.value,
                "format": artifact.format,
                "path": str(artifact.path),
                "size_bytes": artifact.size_bytes,
            }
            for artifact in inventory.run.artifacts
        ],
        "unknown": [
            {"path": str(file.path), "looks_like": file.looks_like, "remedy": file.remedy}
            for file in inventory.run.unknown
        ],
        "rungs": [
            {
                "name": ready.rung.value,
                "found": ready.what and ready.what.en,
                "missing": ready.missing and ready.missing.artifact.en,
                "how_to_record": ready.missing and ready.missing.how_to_record.en,
            }
            for ready in inventory.readiness
        ],
        "last_errors": list(inventory.last_errors),
        "problems": [str(problem) for problem in inventory.problems],
    }


def as_text(inventory: Inventory, lang: str) -> str:
    """Return the inventory as lines for a terminal."""
    lines = [*_identity(inventory, lang), "", *_files(inventory, lang)]
    lines += ["", f"{_label('rungs', lang)}:"]
    for ready in inventory.readiness:
        if ready.what is not None:
            lines.append(f"  + {ready.rung.value:<12} {ready.what.in_language(lang)}")
        elif ready.missing is not None:
            artifact = ready.missing.artifact.in_language(lang)
            lines.append(f"  - {ready.rung.value:<12} {_label('missing', lang)}: {artifact}")
            lines.append(f"    {'':<12} {ready.missing.how_to_record.in_language(lang)}")
    for name, messages in (
        ("errors", inventory.last_errors),
        ("problems", [str(problem) for problem in inventory.problems]),
    ):
        if messages:
            lines += ["", f"{_label(name, lang)}:", *(f"  {message}" for message in messages)]
    return "\n".join(lines)


def _identity(inventory: Inventory, lang: str) -> list[str]:
    summary = inventory.summary
    stated = [summary.framework, summary.framework_version, summary.device]
    facts = ", ".join(fact or f"({_label('unstated', lang)})" for fact in stated)
    return [f"{_label('run', lang)}: {summary.label}: {facts}"]


def _files(inventory: Inventory, lang: str) -> list[str]:
    lines = [f"{_label('files', lang)}:"]
    for (kind, format, folder), group in groupby(sorted(inventory.run.artifacts, key=_kin), _kin):
        paths = [artifact.path for artifact in group]
        many = f"{folder}/* ({len(paths)})"
        shown = [str(path) for path in paths] if len(paths) <= _MAX_LISTED else [many]
        lines += [f"  {kind:<12} {format:<26} {path}" for path in shown]
    if inventory.run.unknown:
        lines += ["", f"{_label('unknown', lang)}:"]
        lines += [f"  {file}" for file in inventory.run.unknown]
    return lines


def _kin(artifact: Artifact) -> tuple[str, str, Path]:
    return artifact.kind.value, artifact.format, artifact.path.parent


def _label(name: str, lang: str) -> str:
    return _LABELS[name].in_language(lang)
