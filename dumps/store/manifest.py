"""The manifest of a run folder: ``align-run.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from align.core.errors import RunError
from align.core.run import RunManifest
from dumps.store.atomic import write_atomic

if TYPE_CHECKING:
    from dumps.store.run_data import RunData

FILE_NAME = "align-run.json"
SCHEMA_VERSION = 1

_FIX = "correct it by hand, or write it again with `align run init --force`"


def read_manifest(folder: Path) -> RunManifest:
    """Return the folder's manifest, an empty one where there is none.

    Raises:
        RunError: The file is not JSON, not a manifest, or of a version we do not know.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return RunManifest()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(where=str(path), problem=f"cannot be read ({error})", fix=_FIX) from error
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            where=str(path), problem=f"is not a manifest of version {SCHEMA_VERSION}", fix=_FIX
        )
    return _manifest_from_json(content, path)


def filled_manifest(
    data: RunData,
    *,
    framework: str | None = None,
    framework_version: str | None = None,
    device: str | None = None,
    name: str | None = None,
    notes: tuple[str, ...] = (),
) -> RunManifest:
    """Return a manifest of what the user states, completed by what the run's files state."""
    versions = {
        fact.name: fact.value for facts in data.environments for fact in facts.facts.values()
    }
    return RunManifest(
        framework=framework or data.framework,
        framework_version=framework_version or data.framework_version,
        device=device or data.device,
        name=name or data.run.manifest.name,
        versions={**versions, **data.run.manifest.versions},
        notes=notes or data.run.manifest.notes,
        replay=data.run.manifest.replay,
    )


def write_manifest(folder: Path, manifest: RunManifest) -> Path:
    """Write the manifest and return its path."""
    path = folder / FILE_NAME
    write_atomic(path, manifest_json(manifest))
    return path


def manifest_json(manifest: RunManifest) -> str:
    """Return the manifest as the text of its file."""
    content: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "framework": manifest.framework,
        "framework_version": manifest.framework_version,
        "device": manifest.device,
        "name": manifest.name,
        "versions": dict(sorted(manifest.versions.items())),
        "notes": list(manifest.notes),
    }
    if manifest.replay:
        content["replay"] = dict(manifest.replay)
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _manifest_from_json(content: dict[str, object], path: Path) -> RunManifest:
    texts = {
        key: _optional_string(content, key, path)
        for key in ("framework", "framework_version", "device", "name")
    }
    versions, notes = content.get("versions") or {}, content.get("notes") or []
    if not isinstance(versions, dict) or not isinstance(notes, list):
        raise RunError(
            where=str(path), problem="needs a mapping `versions` and a list `notes`", fix=_FIX
        )
    return RunManifest(
        **texts,
        versions={str(key): str(value) for key, value in versions.items()},
        notes=tuple(map(str, notes)),
        replay=_replay(content, path),
    )


def _replay(content: dict[str, object], path: Path) -> dict[str, object]:
    value = content.get("replay") or {}
    if not isinstance(value, dict):
        raise RunError(where=str(path), key="replay", problem="must be a mapping", fix=_FIX)
    return value


def _optional_string(content: dict[str, object], key: str, path: Path) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise RunError(where=str(path), key=key, problem="must be a string or null", fix=_FIX)
    return value
