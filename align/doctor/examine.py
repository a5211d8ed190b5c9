"""Examine one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.config.lint import OneRun, one_run
from align.config.lint import findings as config_findings
from align.config.rung import manifest_of
from align.core.environment import EnvironmentFact
from align.core.finding import Evidence, Finding, Side
from align.core.rung import Rung
from align.doctor.advice import advise
from align.doctor.case import Case, case_of, host_of
from align.doctor.diagnosis import Diagnosis, Part
from align.doctor.problems import problem_findings
from align.doctor.stack import Stack, stack_findings, stack_of
from align.environment.rung import facts_of
from align.environment.variables import Surroundings, variables_of
from align.environment.variables import findings as variable_findings
from align.ladder import summarise
from dumps.store.run_data import RunData

ALL_PARTS = tuple(Part)


def examine(data: RunData, parts: Sequence[Part] = ALL_PARTS) -> Diagnosis:
    """Say what is wrong with a run, what it runs on and what would speed it up."""
    facts = _facts(data)
    run = one_run(data.configs, manifest_of(data), facts)
    case = case_of(run, data.metrics)
    stack = stack_of(run)
    found: list[Finding] = []
    settings = config_findings(run)
    surroundings = [finding for finding in settings if _is_about_surroundings(finding, run)]
    if Part.PROBLEMS in parts:
        found += [finding for finding in settings if finding not in surroundings]
        found += problem_findings(data, run)
    if Part.ENVIRONMENT in parts:
        found += [*surroundings, *_environment(run, case, stack)]
    return Diagnosis(
        summary=summarise(data),
        parts=tuple(part for part in ALL_PARTS if part in parts),
        findings=tuple(sorted(found, key=lambda f: (f.severity.rank, f.rung.position, f.id))),
        assumptions=run.config.notes if Part.PROBLEMS in parts else (),
        stack=stack if Part.ENVIRONMENT in parts else None,
        variables=variables_of(facts) if Part.ENVIRONMENT in parts else {},
        case=case if Part.PERFORMANCE in parts else None,
        advice=advise(case) if Part.PERFORMANCE in parts else (),
        problems=tuple(data.problems),
    )


def has_anything(data: RunData) -> bool:
    """Tell whether a run states anything that the doctor reads."""
    stated = any(config.values for config in data.configs) or data.metrics.series
    return bool(stated or facts_of(data) or any(log.last_error for log in data.metric_logs))


def _is_about_surroundings(finding: Finding, run: OneRun) -> bool:
    """Tell whether a finding about settings rests on versions or environment variables."""
    stated = [fact.evidence for fact in run.facts.values()]
    return finding.rung is Rung.ENVIRONMENT or any(e in stated for e in finding.evidence)


def _environment(run: OneRun, case: Case, stack: Stack) -> Iterator[Finding]:
    yield from stack_findings(stack, run)
    around = Surroundings(
        machine=host_of(run),
        longest_generation_s=case.time.longest_generation if case.time else None,
    )
    yield from variable_findings(variables_of(run.facts), around)


def _facts(data: RunData) -> dict[str, EnvironmentFact]:
    """Return what is stated, and the device where the framework leaves no choice."""
    facts = facts_of(data)
    if "device" not in facts and data.device is not None:
        source = f"derived: {data.framework} runs on {data.device} only"
        evidence = Evidence(source, Side.BOTH, key="device")
        facts["device"] = EnvironmentFact("device", data.device, evidence)
    return facts
