"""A run's artifacts, read once and only when a rung asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from align.core.config_value import RawConfig
from align.core.data_set import DataSet
from align.core.environment import EnvironmentFacts
from align.core.errors import AlignError, DumpError, RunError
from align.core.evaluation import EvalResults
from align.core.metric import MetricLog
from align.core.rollout import RolloutBatch
from align.core.run import Artifact, ArtifactKind, Run
from align.core.watch_record import WatchRecord
from dumps.readers.reader import Progress, no_progress
from dumps.readers.registry import reader_named
from dumps.store.merge_metrics import merge_logs
from dumps.store.tensor_records import FORMAT, SketchFile
from dumps.store.tensor_shards import FORMAT as TENSORS
from dumps.store.tensor_shards import TensorFile

if TYPE_CHECKING:
    from dumps.store.rollout_index import RolloutIndex

PERTURBED = "perturbed"
"""How a note of the manifest begins where rounding was added to the run."""

ONLY_DEVICE = {"mindspeed_rl": "npu"}
"""Frameworks that run on one kind of accelerator."""

_STEPS_KEPT = 8


class RunData:
    """Lazy contents of one run.

    A file that cannot be read does not stop the comparison: its error is kept in ``problems``,
    which the report lists, and the other files are used.
    """

    def __init__(self, run: Run, progress: Progress = no_progress) -> None:
        self.run = run
        self.problems: list[AlignError] = []
        if any(note.startswith(PERTURBED) for note in run.manifest.notes):
            self.problems.append(
                RunError(
                    where=run.label,
                    problem="its embeddings were moved by a rounding unit (align capture --noise)",
                    fix="give it with --noise, not as a reference or candidate",
                )
            )
        self._progress = progress
        self._sketches: dict[int, tuple[SketchFile, ...]] = {}

    @cached_property
    def metric_logs(self) -> tuple[MetricLog, ...]:
        """Every metric file, in path order."""
        return tuple(self._each(ArtifactKind.METRICS))

    @cached_property
    def metrics(self) -> MetricLog:
        """Every metric of the run, its files merged; empty where there is none."""
        return merge_logs(self.metric_logs)

    @cached_property
    def configs(self) -> tuple[RawConfig, ...]:
        """Every configuration, in path order; then what rollout engines state of themselves."""
        kinds = (ArtifactKind.CONFIG, ArtifactKind.ENGINE)
        configs: tuple[RawConfig, ...] = tuple(c for kind in kinds for c in self._each(kind))
        self.problems += [problem for config in configs for problem in config.problems]
        return configs

    @cached_property
    def environments(self) -> tuple[EnvironmentFacts, ...]:
        """What each file says about the stack, in path order."""
        return tuple(self._each(ArtifactKind.ENVIRONMENT))

    @cached_property
    def data_sets(self) -> tuple[DataSet, ...]:
        """Every data set, in path order; other files of that kind, such as recipes, left out."""
        return tuple(d for d in self._each(ArtifactKind.DATA) if isinstance(d, DataSet))

    @cached_property
    def evals(self) -> tuple[EvalResults, ...]:
        """Results of benchmarks, in path order; rows without a score are a problem of the file."""
        found: tuple[EvalResults, ...] = tuple(self._each(ArtifactKind.EVALS))
        self.problems += [
            DumpError(
                where=results.source,
                problem=f"{results.num_unread} rows or entries hold no score that can be used",
                fix="they are left out: look at the end of the file if it may be cut",
            )
            for results in found
            if results.num_unread
        ]
        return found

    @cached_property
    def watches(self) -> tuple[WatchRecord, ...]:
        """What `align watch` saw of this run while it trained, in path order."""
        return tuple(self._each(ArtifactKind.WATCH))

    @cached_property
    def tokenizers(self) -> tuple[RawConfig, ...]:
        """What each file of a tokenizer folder states, in path order."""
        return tuple(self._each(ArtifactKind.TOKENIZER))

    @cached_property
    def sketches(self) -> tuple[SketchFile, ...]:
        """Every file of tensor sketches, in path order; layers in other formats left out."""
        return tuple(f for f in self._each(ArtifactKind.LAYERS) if isinstance(f, SketchFile))

    @cached_property
    def tensor_files(self) -> tuple[TensorFile, ...]:
        """Every file of tensors kept whole, in path order; numbers are read when asked for."""
        found = []
        for artifact in self.run.of_kind(ArtifactKind.LAYERS):
            if artifact.format == TENSORS:
                with self._problems_kept(artifact):
                    found.append(self._read(artifact))
        return tuple(found)

    @cached_property
    def sketch_files(self) -> dict[int, list[Artifact]]:
        """The files of tensor sketches by step, in path order; their numbers are not read."""
        from dumps.readers.sketches import read_step

        files: dict[int, list[Artifact]] = {}
        for artifact in self.run.of_kind(ArtifactKind.LAYERS):
            if artifact.format == FORMAT:
                with self._problems_kept(artifact):
                    files.setdefault(read_step(artifact.path), []).append(artifact)
        return dict(sorted(files.items()))

    def sketches_of(self, step: int) -> tuple[SketchFile, ...]:
        """Return the files of one step; those of the last few steps are kept in memory."""
        if step not in self._sketches:
            found = []
            for artifact in self.sketch_files[step]:
                with self._problems_kept(artifact):
                    found.append(self._read(artifact))
            if len(self._sketches) == _STEPS_KEPT:
                self._sketches.pop(next(iter(self._sketches)))
            self._sketches[step] = tuple(found)
        return self._sketches[step]

    @cached_property
    def rollouts(self) -> RolloutIndex:
        """Every training rollout as numeric columns; read once, shared by the rungs."""
        from dumps.store.rollout_index import build_index

        return build_index(self.rollout_batches())

    @cached_property
    def framework(self) -> str | None:
        """The training framework: as the manifest says, else as its files show."""
        stated = [config.framework for config in self.configs]
        logged = [log.framework for log in self.metric_logs]
        seen = [name for name in (*stated, *logged) if name and name != "huggingface"]
        trains = (name for name in seen if name != "vllm")
        return self.run.manifest.framework or next(iter((*trains, *seen)), None)

    @cached_property
    def framework_version(self) -> str | None:
        """Its version, where the manifest or a log states one."""
        return self.run.manifest.framework_version or self.fact(self.framework or "")

    @cached_property
    def device(self) -> str | None:
        """The accelerator kind: as the manifest or a log states it, else as the framework implies.

        verl's ``trainer.device`` is no witness: verl overwrites it with what it finds.
        """
        return self.run.manifest.device or self.fact("device") or self.implied_device

    @property
    def implied_device(self) -> str | None:
        """The only accelerator kind the framework runs on; None where there are several."""
        return ONLY_DEVICE.get(self.framework or "")

    def fact(self, name: str) -> str | None:
        """Return what the manifest or the first file to state it says of the stack."""
        if name in self.run.manifest.versions:
            return self.run.manifest.versions[name]
        stated = (e.facts[name].value for e in self.environments if name in e.facts)
        return next(stated, None)

    def rollout_batches(self, kind: ArtifactKind = ArtifactKind.ROLLOUT) -> Iterator[RolloutBatch]:
        """Stream the rollout (or validation) dumps, file after file."""
        for artifact in self.run.of_kind(kind):
            with self._problems_kept(artifact):
                yield from self._read(artifact)

    def _each(self, kind: ArtifactKind) -> Iterator[Any]:
        for artifact in self.run.of_kind(kind):
            with self._problems_kept(artifact):
                yield self._read(artifact)

    def _read(self, artifact: Artifact) -> Any:
        reader = reader_named(artifact.format, artifact.kind)
        return reader.read(artifact.path, self._progress)

    def keep_problem(self, error: AlignError) -> None:
        """Keep what could not be read, once, however often it is asked for."""
        if str(error) not in map(str, self.problems):
            self.problems.append(error)

    @contextmanager
    def _problems_kept(self, artifact: Artifact) -> Iterator[None]:
        try:
            yield
        except AlignError as error:
            self.keep_problem(error)
        except OSError as error:
            self.keep_problem(
                DumpError(
                    where=str(artifact.path),
                    problem=f"cannot be read ({error.strerror})",
                    fix="check that the file still exists and is readable",
                )
            )
