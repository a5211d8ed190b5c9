"""What a run is: its configuration, versions, environment variables, and small model files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from align.core.run import RunManifest
from dumps.capture.environment import without_ours
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.writer import WriteFile
from dumps.readers.env_names import is_fact
from dumps.store.manifest import write_manifest
from dumps.store.run_data import PERTURBED

PACKAGES = (
    *("torch", "torch_npu", "transformers", "tokenizers", "numpy", "ray", "tensordict"),
    *("vllm", "vllm_ascend", "sglang", "verl", "trl", "accelerate", "deepspeed", "peft"),
    *("megatron_core", "mindspeed", "mindspeed_rl", "flash_attn", "triton", "triton_ascend"),
)
MODEL_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json"),
)
MOST_MODEL_BYTES = 64 << 20
_SET_BY_RAY = frozenset(
    {
        *("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS"),
        *("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_CREATE_WORKING_DIR", "RAY_SESSION_NAME"),
    }
)


def describe(
    session: Session, name: str, framework: str, config: str | None, model: str | None
) -> None:
    """Write the manifest and have the files that describe a run written.

    Args:
        name: of the writer.
        framework: as manifests name it.
        config: the resolved configuration as YAML.
        model: folder that the run loads; ignored where it is none on this machine.
    """
    session.plan.run.mkdir(parents=True, exist_ok=True)
    write_manifest(session.plan.run, manifest(framework, session))
    files: dict[str, WriteFile] = {"variables.sh": _text(environment())}
    if config is not None:
        files["config.yaml"] = _text(config)
    for path in model_files(model):
        files[f"model/{path.name}"] = _copy(path)
    session.writer(name).submit(None, lambda: files)


def manifest(framework: str, session: Session) -> RunManifest:
    """Return what versions and which device this process runs on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if framework == "stack":
        versions["stack"] = importlib.metadata.version("npu-align")
    what = ", ".join(kind.value for kind in What if session.plan.takes(kind))
    return RunManifest(
        framework=framework,
        framework_version=versions.get(framework),
        device=device_kind(),
        name=session.plan.run.name,
        versions=versions,
        notes=(
            f"recorded by align capture: {what}",
            *perturbed_notes(session.plan),
        ),
    )


def perturbed_notes(plan: CapturePlan | None) -> tuple[str, ...]:
    """Return the note of a run whose embeddings are moved, for its manifest; none otherwise."""
    if plan is None or not plan.perturbs:
        return ()
    return (f"{PERTURBED}: embeddings moved by one rounding unit",)


def device_kind() -> str | None:
    """Return the kind of accelerator that torch has here, else "cpu"; None without torch."""
    if "torch" not in sys.modules:
        return None
    from dumps.capture.device import accelerator

    return accelerator() or "cpu"


def environment() -> str:
    """Return the known variables of this process as a shell script; no other is ever stored."""
    own = without_ours(os.environ)
    facts = {name: value for name, value in own.items() if is_fact(name, value)}
    for name in _SET_BY_RAY & facts.keys():
        del facts[name]
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(facts.items())]
    return "".join(["#!/bin/sh\n", *lines])


def model_files(model: str | None) -> list[Path]:
    """Return the small files of a model folder that say how text becomes ids and what it is."""
    folder = Path(model) if model else None
    if folder is None or not folder.is_dir():
        return []
    found = [folder / name for name in MODEL_FILES if (folder / name).is_file()]
    return [path for path in found if path.stat().st_size <= MOST_MODEL_BYTES]


def stop_ids(eos_id: int | None, model: str | None) -> frozenset[int]:
    """Return the ids that end a response: the tokenizer's eos, and generation_config.json's."""
    ids = set() if eos_id is None else {int(eos_id)}
    path = Path(model, "generation_config.json") if model else None
    if path is not None and path.is_file():
        stated = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        ids |= set(stated if isinstance(stated, list) else [] if stated is None else [stated])
    return frozenset(ids)


def _text(text: str) -> WriteFile:
    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def _copy(source: Path) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        shutil.copyfile(source, path)

    return write
