"""Train every planted fault and every clean pair, and hold the report against the truth.

A trial is a reference and a candidate that starts from the same weights. References are made once
a setting. Two figures come out: faults whose finding is the verdict's, over all faults; clean
pairs on which the report raises an alarm, over all clean pairs.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from align.core.errors import ConfigError
from align.core.finding import Severity
from align.core.report import Report
from align.core.verdict import VerdictStatus
from align.stack.clean_pairs import CleanPair, Interrupted, clean_pairs, killed_in_step
from align.stack.config import load_config
from align.stack.faults.fault import Fault
from align.stack.faults.registry import faults
from align.stack.pipeline import Pipeline
from align.stack.train import train
from dumps.store.atomic import write_atomic

Made = TypeVar("Made")
What = TypeVar("What")
Trial = Fault | CleanPair
Compare = Callable[[Path, Path], Report]  # of reference and candidate; importable by name

# Both runs of every trial, unless its setting says otherwise. Two updates a step, so that clipping
# acts; six steps an epoch, so that epochs matter; a KL that is felt, a schedule that moves, a
# temperature other than 1, two micro-batches a mini-batch; steps enough to judge curves, of which
# fewer than 30 are not judged.
BASE = (
    "stack.data.num_rows=96",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.2",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.25",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "actor_rollout_ref.rollout.temperature=0.9",
    "trainer.total_training_steps=40",
)
SHORT = ("trainer.total_training_steps=16",)  # for a demo


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the report said of one trial.

    Args:
        name: of the fault or clean pair.
        rung: expected link; None for a clean pair.
        expected: expected finding id; None for a clean pair.
        reported: the verdict's finding id.
        status: the verdict's status.
        errors: ids of all findings of severity error.
        right: the fault is named first; or the clean pair raised no alarm.
        acts: the candidate's metrics or rollouts differ from the reference's at all.
        reported_rung: link of that finding.
        advises: the verdict names the next experiment or the evidence that is missing.
        blamed: the verdict states the finding as the cause, not as a symptom of unknown cause.
        problem: why the trial could not be run.
    """

    name: str
    rung: str | None
    expected: str | None
    reported: str | None
    status: str
    errors: tuple[str, ...]
    right: bool
    acts: bool
    reported_rung: str | None = None
    advises: bool = False
    blamed: bool = False
    problem: str | None = None

    @property
    def is_fault(self) -> bool:
        """Whether a fault was planted."""
        return self.expected is not None

    @property
    def is_honest(self) -> bool:
        """Whether little evidence was used well: the fault's link is named, or the verdict says
        that the cause is unknown and what to do next; a clean pair raises no alarm."""
        if not self.is_fault:
            return self.right
        return self.reported_rung == self.rung if self.blamed else self.advises


def trials(only: Sequence[str] = ()) -> tuple[Trial, ...]:
    """Return the named trials, or all: faults in causal order, then clean pairs.

    Raises:
        ConfigError: A name is neither a fault nor a clean pair.
    """
    known: dict[str, Trial] = {**faults(), **{f"clean:{k}": v for k, v in clean_pairs().items()}}
    for name in only:
        if name not in known:
            raise ConfigError(
                where="--only",
                key=name,
                problem="is neither a fault nor a clean pair",
                fix="`align demo --list` shows the faults; clean pairs are called clean:NAME",
            )
    return tuple(known[name] for name in only or known)


def run_zoo(
    chosen: Sequence[Trial],
    folder: Path,
    compare: Compare,
    *,
    jobs: int = 2,
    on_start: Callable[[int], None] = lambda total: None,
    on_done: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Run trials in long-lived worker processes; a finished run in the folder is used again.

    Args:
        folder: run folders; what is in it from the same code is not trained again.
        compare: makes the report of two run folders.
        on_start: told how many pieces of work there are.
        on_done: told each that is finished.

    Returns:
        One outcome a trial, in the order given.
    """
    code = code_digest()
    references = {reference_name(trial.setting): trial.setting for trial in chosen}
    on_start(len(references) + len(chosen))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            made = {
                pool.submit(make_reference, setting, folder, code): name
                for name, setting in references.items()
            }
            for reference, name in _each(made):
                reference.result()
                on_done(name)
            found: dict[str, Outcome] = {}
            work = {pool.submit(judge_trial, t, folder, code, compare): t for t in chosen}
            for future, trial in _each(work):
                error = future.exception()
                found[label(trial)] = _failed(trial, error) if error else future.result()
                on_done(label(trial))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[label(trial)] for trial in chosen]


def _failed(trial: Trial, error: BaseException) -> Outcome:
    """Count a trial that could not be run or compared as wrong, whichever kind it is."""
    return replace(
        _outcome(trial, reported=None, status="failed", errors=(), right=False, acts=True),
        problem=f"{type(error).__name__}: {error}",
    )


def forget_runs(folder: Path) -> None:
    """Have every run in the folder trained again."""
    for mark in folder.glob("*.done"):
        mark.unlink()


def _each(work: dict[Future[Made], What]) -> Iterator[tuple[Future[Made], What]]:
    for future in as_completed(work):
        yield future, work[future]


def make_pair(
    trial: Trial,
    folder: Path,
    on_start: Callable[[int], None],
    on_done: Callable[[str], None],
) -> tuple[Path, Path]:
    """Train two short runs of one trial at the same time, in two processes."""
    forget_runs(folder)
    code, short = code_digest(), (*BASE, *SHORT)
    on_start(2)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        work = {
            pool.submit(
                _trained, folder / "reference", code, (*short, *trial.setting)
            ): "reference",
            pool.submit(_train_candidate, trial, folder / "candidate", code, short): "candidate",
        }
        made = {}
        for future, side in _each(work):
            made[side] = future.result()
            on_done(side)
    return made["reference"], made["candidate"]


def label(trial: Trial) -> str:
    """Return the name of a trial among all."""
    return trial.name if isinstance(trial, Fault) else f"clean:{trial.name}"


def reference_name(setting: Sequence[str]) -> str:
    """Return the folder name of the reference run of a setting."""
    digest = hashlib.sha256("\n".join(setting).encode()).hexdigest()[:8]
    return f"reference-{digest}" if setting else "reference"


def make_reference(setting: Sequence[str], folder: Path, code: str) -> Path:
    """Train the reference of a setting, unless the same code has done so."""
    return _trained(folder / reference_name(setting), code, (*BASE, *setting))


def make_candidate(trial: Trial, folder: Path, code: str) -> Path:
    """Train a trial's candidate, unless the same code has done so."""
    return _train_candidate(trial, folder / label(trial).replace(":", "-"), code, BASE)


def _train_candidate(trial: Trial, out: Path, code: str, base: Sequence[str]) -> Path:
    overrides = (*base, *trial.setting, *trial.overrides)
    if isinstance(trial, CleanPair):
        return _trained(out, code, overrides, trial.change, trial.killed_at, trial.num_ranks)
    return _trained(out, code, overrides, trial.change)


def judge_trial(trial: Trial, folder: Path, code: str, compare: Compare) -> Outcome:
    """Train a trial's candidate and hold the report of the pair against the truth."""
    reference = folder / reference_name(trial.setting)
    candidate = make_candidate(trial, folder, code)
    return judge(trial, compare(reference, candidate), acts=differ(reference, candidate))


def judge(trial: Trial, report: Report, *, acts: bool) -> Outcome:
    """Say whether a report names the fault first, or leaves a clean pair alone."""
    verdict = report.verdict
    findings = [finding for rung in report.rungs for finding in rung.findings]
    errors = tuple(f.id for f in findings if f.severity is Severity.ERROR)
    if isinstance(trial, Fault):
        named = [f for f in findings if f.id == verdict.finding_id == trial.finding_id]
        right = any(trial.module is None or trial.module in f.title.en for f in named)
    else:
        right = verdict.status is not VerdictStatus.DIVERGED and not errors
    return _outcome(
        trial,
        reported=verdict.finding_id,
        status=verdict.status.value,
        errors=errors,
        right=right,
        acts=acts,
        reported_rung=verdict.rung.value if verdict.rung else None,
        advises=verdict.next_step is not None,
        blamed=verdict.cause is not None,
    )


def _outcome(trial: Trial, **said: Any) -> Outcome:
    if isinstance(trial, CleanPair):
        return Outcome(label(trial), None, None, **said)
    return Outcome(label(trial), trial.rung.value, trial.finding_id, **said)


def differ(reference: Path, candidate: Path) -> bool:
    """Tell whether anything that training computed is not bitwise equal."""
    files = [f for f in reference.rglob("*") if f.parent.name in ("rollout", "trainer_inputs")]
    files += [reference / "metrics.jsonl", *(reference / "checkpoints").rglob("actor*.safetensors")]
    pairs = [(file, candidate / file.relative_to(reference)) for file in files]
    return any(not b.is_file() or a.read_bytes() != b.read_bytes() for a, b in pairs)


def _trained(
    out: Path,
    code: str,
    overrides: Sequence[str],
    change: Callable[[Pipeline], Pipeline] | None = None,
    killed_at: int = 0,
    num_ranks: int = 1,
) -> Path:
    """Train a run unless the same code has finished it; the mark lies beside the folder."""
    mark = out.with_name(f"{out.name}.done")
    key = _key(code, overrides, change, killed_at)
    if mark.is_file() and mark.read_text(encoding="utf-8") == key:
        return out
    mark.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    config = load_config(None, overrides)
    pipeline = Pipeline() if change is None else change(Pipeline())
    cache = out.parent / "warmup"
    if num_ranks > 1:
        _train_sharded(overrides, out, cache, num_ranks)
        write_atomic(mark, key)
        return out
    try:
        train(config, out, killed_in_step(pipeline, killed_at), warmup_cache=cache)
    except Interrupted:
        train(config, out, pipeline, resume=True, warmup_cache=cache)
    write_atomic(mark, key)
    return out


def _train_sharded(overrides: Sequence[str], out: Path, cache: Path, num_ranks: int) -> None:
    """Train in several processes, from the starting weights the other runs have."""
    if cache.is_dir():
        shutil.copytree(cache, out / "warmup")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={num_ranks}", "-m", "align.cli.main", "train"]
    made = subprocess.run(
        [*torchrun, *program, *overrides, "-o", str(out)], capture_output=True, text=True
    )
    if made.returncode:
        raise ConfigError(
            where=out.name, problem=f"training failed: {made.stderr[-300:]}", fix="see its log"
        )


def _key(
    code: str,
    overrides: Sequence[str],
    change: Callable[[Pipeline], Pipeline] | None,
    killed_at: int,
) -> str:
    """Identify a run by what it depends on."""
    digest = hashlib.sha256(
        repr((code, *overrides, change and change.__name__, killed_at)).encode()
    )
    if change is not None:
        digest.update(Path(inspect.getfile(change)).read_bytes())
    return digest.hexdigest()


def code_digest() -> str:
    """Identify the code that trains: the stack without its faults, and the objective."""
    root = Path(__file__).parents[1]
    sources = [*(root / "objective").rglob("*.py"), *(root / "stack").rglob("*.py")]
    digest = hashlib.sha256()
    for file in sorted(sources):
        if "faults" not in file.parts and file.name not in _NOT_OF_A_RUN:
            digest.update(file.read_bytes())
    return digest.hexdigest()


_NOT_OF_A_RUN = ("zoo.py", "accuracy.py", "clean_pairs.py")
