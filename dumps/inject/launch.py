"""Run the user's command on recorded rollouts, under a capture, and judge what it consumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from align.core.errors import RunError
from align.core.rollout_record import RolloutRecord
from dumps.capture.environment import EXTERNAL_MODULES, REPLAY_INSTALLER
from dumps.capture.launch import Outcome, refuse_used_folder, run_captured
from dumps.capture.plan import BY_DEFAULT, FILE_NAME, CapturePlan, What, read_plan
from dumps.inject.order_data import OrderData, write_order_data
from dumps.inject.plan import VARIABLE, ReplayPlan, step_file, write_plan
from dumps.inject.proof import Proof, prove
from dumps.inject.replay import written_problems
from dumps.inject.tokenizer_facts import TokenizerFacts, write_facts
from dumps.store.manifest import read_manifest, write_manifest
from dumps.store.rollout_file import write_records

Ranges = tuple[tuple[int, int], ...]  # of steps, both ends counted


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended.

    Args:
        refused: why the run was not let on, empty where it was.
        allowed: rows and steps that were generated, as `--allow-missing` permits.
    """

    outcome: Outcome
    proof: Proof
    refused: tuple[str, ...]
    allowed: tuple[str, ...]


def write_rows(folder: Path, records: Iterable[RolloutRecord]) -> int:
    """Write records a file a step, each step's in the order given; return how many there are.

    Raises:
        RunError: A record has no step.
    """
    by_step: dict[int, list[RolloutRecord]] = {}
    for record in records:
        if record.step is None:
            raise RunError(
                where="--rollouts",
                key="step",
                problem="holds rows that do not say which step they belong to",
                fix="record them with `align capture`, or give files named by their step",
            )
        by_step.setdefault(record.step, []).append(record)
    folder.mkdir(parents=True, exist_ok=True)
    for step, rows in by_step.items():
        write_records(step_file(folder, step), rows)
    return sum(map(len, by_step.values()))


def prompts_in_order(records: Iterable[RolloutRecord]) -> list[RolloutRecord]:
    """Return one row a prompt, in the order in which a step first comes to it."""
    kept: list[RolloutRecord] = []
    ranked = sorted(records, key=lambda record: record.step or 0)
    for _, rows in groupby(ranked, key=lambda record: record.step):
        seen: dict[object, RolloutRecord] = {}
        for row in rows:
            key = row.uid or (row.prompt_ids or row.prompt, row.dataset_index)
            seen.setdefault(key, row)
        kept += seen.values()
    return [replace(r, response=None, response_ids=None, log_probs=None, extras={}) for r in kept]


def prepare(
    plan: ReplayPlan,
    rows: Iterable[RolloutRecord],
    order: Iterable[RolloutRecord],
    tokenizer: TokenizerFacts | None,
    order_data: OrderData | None = None,
) -> None:
    """Write everything that the training processes read.

    Args:
        order_data: whose rows ``order`` gives by their numbers.

    Raises:
        RunError: The folder holds another run, or a record has no step.
    """
    refuse_used_folder(plan.run)
    shutil.rmtree(plan.folder, ignore_errors=True)
    write_rows(plan.rows, rows)
    write_rows(plan.order, order)
    if tokenizer is not None:
        write_facts(plan.folder, tokenizer)
    if order_data is not None:
        write_order_data(plan.folder, order_data)


def capture_like(
    recorded: Path, run: Path, kinds: tuple[What, ...] = (), steps: Ranges = ()
) -> CapturePlan:
    """Return what a candidate records: what is asked for, else what the recorded run's capture had.

    Args:
        recorded: the run whose rollouts it gets, of a capture or not.
        run: the candidate's run folder.
    """
    file = recorded / FILE_NAME
    theirs = read_plan(file) if file.is_file() else CapturePlan(run)
    return CapturePlan(
        run,
        what=kinds or tuple(w for w in What if w in (*BY_DEFAULT, *theirs.what)),
        steps=steps or theirs.steps,
        modules=theirs.modules,
        tensors=theirs.tensors,
    )


def run_replayed(plan: ReplayPlan, command: Sequence[str], capture: CapturePlan) -> Replayed:
    """Run a command on what was prepared, and write the proof into its manifest.

    Raises:
        RunError: There is no such command.
    """
    outcome = run_captured(capture, command, _adjusted(write_plan(plan)))
    proof = prove(plan)
    problems = written_problems(plan)
    replayed = Replayed(
        outcome=outcome,
        proof=proof,
        refused=tuple(dict.fromkeys(str(p) for p, allowed in problems if not allowed)),
        allowed=tuple(dict.fromkeys(str(p) for p, allowed in problems if allowed)),
    )
    facts = {**proof.facts(), "refused": list(replayed.refused), "allowed": list(replayed.allowed)}
    write_manifest(plan.run, replace(read_manifest(plan.run), replay=facts))
    return replayed


def _adjusted(plan_file: Path) -> Callable[[dict[str, str]], dict[str, str]]:
    def adjust(environment: dict[str, str]) -> dict[str, str]:
        modules = ",".join([REPLAY_INSTALLER, environment[EXTERNAL_MODULES]])
        return {**environment, VARIABLE: str(plan_file), EXTERNAL_MODULES: modules}

    return adjust
