"""One process that takes part in a replay: the plan, the recorded steps, and what was used."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.session import append_line
from dumps.inject.match import assign
from dumps.inject.plan import ReplayPlan, plan_of_environment
from dumps.inject.preflight import Candidate, absent_steps, unasked, unfit_step
from dumps.inject.problem import Problem, refusal
from dumps.inject.recorded import Prompt, Step, fingerprint, read_step, recorded_steps
from dumps.inject.tokenizer_facts import differences, facts_of, read_facts

PROBLEMS, CONSUMED, CHECKED = "problems.jsonl", "consumed", "checked.jsonl"


class Replay:
    """A replay in this process.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: ReplayPlan) -> None:
        self.plan = plan
        self.steps = recorded_steps(plan.rows)
        self._given: dict[int, set[int]] = {}
        self._last: Step | None = None

    def step(self, number: int) -> Step | None:
        """Return a recorded step; None where it is not recorded. The last one read is kept."""
        if self._last is None or self._last.number != number:
            if number not in self.steps:
                return None
            self._last = read_step(self.plan.rows, number)
        return self._last

    def record(self, step: int, group: int, sample: int) -> RolloutRecord:
        """Return one response.

        Raises:
            ReplayRefused: The group has no such sample.
        """
        read = self.step(step)
        rows = read.groups[group].rows if read is not None and group < len(read.groups) else ()
        if read is None or sample >= len(rows):
            self.refuse([Problem(f"group {group} has no response number {sample}", step)])
            raise AssertionError
        return read.records[rows[sample]]

    def give(self, step: int, asked: Sequence[Prompt]) -> list[int | None]:
        """Return the groups of prompts about to be generated, each given once in a run.

        Raises:
            ReplayRefused: One is not there, and missing ones are not to be generated.
        """
        read = self.step(step)
        if read is None:
            self.refuse_unless_allowed(absent_steps(self.steps, [step]))
            return [None] * len(asked)
        taken = self._given.setdefault(step, set())
        found = assign(read, asked, taken)
        lost = [prompt for prompt, place in zip(asked, found, strict=True) if place is None]
        if lost:
            again = assign(read, lost)
            self.refuse_unless_allowed(
                [
                    Problem("a prompt is asked more often than recorded: " + p.shown, step, True)
                    if place is not None
                    else Problem("a prompt is not recorded: " + p.shown, step, True)
                    for p, place in zip(lost, again, strict=True)
                ]
            )
        taken.update(place for place in found if place is not None)
        return found

    def check(
        self,
        run: Candidate,
        wanted: Iterable[int],
        asked: dict[int, list[Prompt]],
        tokenizer: Any = None,
        more: Iterable[Problem] = (),
    ) -> None:
        """Compare everything with a run before it begins.

        Args:
            wanted: steps that it makes.
            asked: its prompts, of the steps that can be looked ahead at.

        Raises:
            ReplayRefused: Something does not fit.
        """
        wanted = list(wanted)
        problems = [*more, *absent_steps(self.steps, wanted)]
        theirs, ours = read_facts(self.plan.folder), facts_of(tokenizer)
        if theirs is not None and ours is not None:
            problems += differences(theirs, ours)
        known = [number for number in wanted if number in self.steps]
        for number in known:
            step = read_step(self.plan.rows, number)
            problems += unfit_step(step, run, self.plan)
            if number in asked:
                others = (read_step(self.plan.rows, n) for n in known if n != number)
                problems += unasked(step, asked[number], others)
        line = {
            "steps": known,
            "prompts": sum(map(len, asked.values())),
            "tokenizer": theirs is not None and ours is not None,
        }
        self.refuse_unless_allowed(problems)
        append_line(self.plan.folder / CHECKED, line)

    def consumed(self, name: str, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write down what a step trains on.

        Args:
            name: of this process.
            rows: (place in the recorded step or None, prompt ids, response ids, score) each, in
                the order they are trained on.
        """
        marks = [[place, fingerprint(p), fingerprint(r), score] for place, p, r, score in rows]
        append_line(self.plan.folder / CONSUMED / f"{name}.jsonl", {"step": step, "rows": marks})
        self.verify(step, rows)

    def verify(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Compare rows on their way into training with the recorded ones they stand for.

        Raises:
            ReplayRefused: One is another.
        """
        read = self.step(step)
        if read is None:
            return
        for i, (place, prompt, response, *_) in enumerate(rows):
            if place is None:
                continue
            record = read.records[place]
            own = [record.prompt_ids, record.response_ids]
            for what, was, now in zip(("prompt", "response"), own, (prompt, response), strict=True):
                if was is not None and list(was) != list(now):
                    text = (
                        f"row {i} reaches training with another {what} than recorded "
                        f"({len(now)} tokens, {len(was)} recorded); is npu-align installed on "
                        "every node?"
                    )
                    self.refuse([Problem(text, step)])

    def refuse_unless_allowed(self, problems: Iterable[Problem]) -> None:
        """Go on where rows are merely missing and may be generated.

        Raises:
            ReplayRefused: There is another problem, or missing rows are not allowed.
        """
        found = list(problems)
        grave = [p for p in found if not (p.is_missing and self.plan.allows_missing)]
        if grave:
            self.refuse(found)
        for problem in found:
            self._write(problem, allowed=True)

    def refuse(self, problems: Sequence[Problem]) -> None:
        """Write problems down, so that no framework can swallow them, and raise.

        Raises:
            ReplayRefused: Always.
        """
        for problem in problems:
            self._write(problem, allowed=False)
        raise refusal(problems)

    def refuse_what_was_swallowed(self) -> None:
        """Raise where another process has refused, and its framework went on all the same.

        Raises:
            ReplayRefused: One has.
        """
        found = [problem for problem, allowed in written_problems(self.plan) if not allowed]
        if found:
            raise refusal(found)

    def _write(self, problem: Problem, *, allowed: bool) -> None:
        line = {"text": problem.text, "step": problem.step, "allowed": allowed, "pid": os.getpid()}
        append_line(self.plan.folder / PROBLEMS, line)


def written_problems(plan: ReplayPlan) -> list[tuple[Problem, bool]]:
    """Return every problem written down, and whether the run was allowed to go on."""
    path = plan.folder / PROBLEMS
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(Problem(line["text"], line["step"]), line["allowed"]) for line in lines]


@functools.cache
def current() -> Replay | None:
    """Return this process's replay, None where the environment asks for none."""
    plan = plan_of_environment()
    return None if plan is None else Replay(plan)
