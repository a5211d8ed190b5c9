"""The run folder: what verl writes, and what verl leaves out.

    align-run.json          framework, version, device, package versions, numerics profile
    .hydra/                 config.yaml (resolved), overrides.yaml (what differs from the defaults)
    console.log             the printed configuration, then verl's metric lines
    metrics.jsonl           verl's file logger; no timings, so that equal runs have equal bytes
    timings.jsonl           the same format, seconds
    rollout/N.jsonl         a response a line: verl's fields, token ids, masks, scores by rule
    trainer_inputs/N.safetensors   the training batch of a step
    updates/N.safetensors   what its updates compute with and report
    sketches/rank_R/N.safetensors  layers, gradients and weights of the first steps and the last
    order.jsonl             rows of each step
    tokenizer/  model/      as Hugging Face saves them, without weights
    warmup/  checkpoints/   weights
    tensorboard/            where tensorboard is installed

A step's files appear whole; `rewind` removes what a killed run wrote after its last checkpoint.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from align import __version__
from align.core.run import RunManifest
from align.stack import sharding
from align.stack.config import StackConfig, to_tree
from align.stack.event_files import EventFiles
from align.stack.rewind import CONSOLE, METRICS, ORDER, TIMINGS, rewind
from align.stack.run_rows import rollout_rows, trainer_inputs
from align.stack.tensors import write_tensors
from dumps.capture.describe import perturbed_notes
from dumps.capture.plan import plan_of_environment
from dumps.store.atomic import write_atomic
from dumps.store.manifest import write_manifest

if TYPE_CHECKING:
    from torch import Tensor

    from align.stack.batch import TrainBatch
    from align.stack.collect import Collected
    from align.stack.setup import Setup

# What no reader of this version takes for an artifact, as patterns below the run folder.
UNREAD = (
    "order.jsonl",
    "warmup/*.safetensors",
    "checkpoints/global_step_*/*",
)


class RunFolder:
    """The folder of one run. Of several ranks the first alone writes.

    Args:
        out: its path.
        config: of the run.
        setup: whose tokenizer and model are described.
    """

    def __init__(self, out: Path, config: StackConfig, setup: Setup) -> None:
        self._out, self._config, self._setup = out, config, setup
        self._events: EventFiles | None = None
        self._writes = sharding.rank() == 0

    def open(self, num_done: int) -> None:
        """Go back to the end of step num_done; 0 removes an older run's steps and starts anew."""
        if self._writes:
            rewind(self._out, num_done)
            if not num_done:
                self._describe()
            self._events = EventFiles(self._out / "tensorboard", self._out / METRICS)
        sharding.wait()

    def write_step(
        self,
        step: int,
        collected: Collected,
        batch: TrainBatch,
        updates: Mapping[str, Tensor],
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
    ) -> None:
        """Write everything one finished step leaves behind."""
        if not self._writes:
            return
        tokenizer, num_samples = self._setup.tokenizer, self._config.rollout.n
        rows = rollout_rows(step, collected, tokenizer, num_samples)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(self._out / "rollout" / f"{step}.jsonl", text)
        if self._config.stack.record_trainer_inputs:
            path = self._out / "trainer_inputs" / f"{step}.safetensors"
            write_tensors(path, trainer_inputs(batch))
            if updates:
                write_tensors(self._out / "updates" / f"{step}.safetensors", updates)
        order = {"step": step, "rows": [int(i) for i in collected.order]}
        self._append(ORDER, json.dumps(order) + "\n")
        self._append(METRICS, _json_line(step, metrics))
        self._append(TIMINGS, _json_line(step, timings))
        self._append(CONSOLE, console_line(step, metrics))
        if self._events is not None:
            self._events.write(step, metrics)

    def close(self) -> None:
        """Finish the event file."""
        if self._events is not None:
            self._events.close()

    def _describe(self) -> None:
        out, tree = self._out, to_tree(self._config)
        changed = "".join(f"- {line}\n" for line in overrides(self._config))
        write_manifest(out, _manifest(self._config))
        write_atomic(out / ".hydra" / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(tree)))
        write_atomic(out / ".hydra" / "overrides.yaml", changed)
        write_atomic(out / CONSOLE, pprint.pformat(tree) + "\n")
        self._setup.tokenizer.save_pretrained(out / "tokenizer")
        self._setup.model.config.save_pretrained(out / "model")
        self._setup.model.generation_config.save_pretrained(out / "model")

    def _append(self, name: str, text: str) -> None:
        with (self._out / name).open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)


def overrides(config: StackConfig) -> list[str]:
    """Return ``key=value`` of every value that differs from the stack's defaults."""
    own, default = _leaves(to_tree(config)), _leaves(to_tree(StackConfig()))
    return [f"{k}={_as_text(v)}" for k, v in own.items() if k not in default or default[k] != v]


def console_line(step: int, metrics: Mapping[str, float]) -> str:
    """Return verl's metric line, with all digits."""
    parts = [f"step:{step}", *(f"{name}:{float(value)!r}" for name, value in metrics.items())]
    return " - ".join(parts) + "\n"


def _manifest(config: StackConfig) -> RunManifest:
    packages = ("torch", "transformers", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return RunManifest(
        framework="stack",
        framework_version=__version__,
        device=config.trainer.device,
        name=config.trainer.experiment_name,
        versions={**versions, "python": platform.python_version()},
        notes=(
            f"numerics profile: {config.stack.numerics.profile}",
            *perturbed_notes(plan_of_environment()),
        ),
    )


def _json_line(step: int, values: Mapping[str, float]) -> str:
    return json.dumps({"step": step, "data": dict(values)}) + "\n"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update(_leaves(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(_as_text(item) for item in value) + "]"
    return str(value)
