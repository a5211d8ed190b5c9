"""A run: a folder or some files, and what each of them holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class ArtifactKind(str, Enum):
    """What a file holds."""

    METRICS = "metrics"
    CONFIG = "config"
    ROLLOUT = "rollout"
    VALIDATION = "validation"
    ENVIRONMENT = "environment"
    TOKENIZER = "tokenizer"
    LAYERS = "layers"
    EVALS = "evals"
    DATA = "data"
    TOKENS = "tokens"
    UPDATES = "updates"
    ENGINE = "engine"
    CAPTURE = "capture"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file in one role. A console log has several: metrics, config, environment."""

    kind: ArtifactKind
    format: str  # name of the reader that knows it
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UnknownFile:
    """A file no reader knows; listed, never guessed at."""

    path: Path
    looks_like: str  # "gzip data", "Git-LFS pointer", "text", "empty file" …
    remedy: str | None = None  # how to make it readable, such as "unpack it with `gunzip`"

    def __str__(self) -> str:
        """Name the file, what it looks like, and the remedy where there is one."""
        return "; ".join(filter(None, [f"{self.path}: {self.looks_like}", self.remedy]))


@dataclass(frozen=True, slots=True)
class RunManifest:
    """What `align run init` writes: facts that files cannot always state themselves."""

    framework: str | None = None
    framework_version: str | None = None
    device: str | None = None  # "cuda", "npu", "cpu"
    name: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    replay: Mapping[str, Any] = field(default_factory=dict)  # proof of `align replay`


@dataclass(frozen=True, slots=True)
class Run:
    """A folder, a file or a mixture of files, with every artifact found in it."""

    label: str  # path as the user gave it
    root: Path
    artifacts: tuple[Artifact, ...]
    unknown: tuple[UnknownFile, ...]
    manifest: RunManifest

    def of_kind(self, kind: ArtifactKind) -> tuple[Artifact, ...]:
        """Return the artifacts of one kind, in path order."""
        return tuple(a for a in self.artifacts if a.kind is kind)
