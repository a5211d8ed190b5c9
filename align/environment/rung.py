"""Rung 1: do the stacks differ in a way known to matter?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from align.core.environment import EnvironmentFact
from align.core.figure import Cell, Column, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.environment.known import boundaries_between
from dumps.store.manifest import FILE_NAME
from dumps.store.run_data import RunData

_DERIVED = "derived: "


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare versions, devices and environment variables that both runs state."""
    stated = facts_of(reference), facts_of(candidate)
    facts = _with_implied(stated[0], reference), _with_implied(stated[1], candidate)
    common = sorted(facts[0].keys() & facts[1].keys())
    table = _table(*facts)
    if not common or not all(stated):
        return _missing(stated, table)
    different = [name for name in common if facts[0][name].value != facts[1][name].value]
    findings = tuple(
        finding for name in different for finding in _findings(facts[0][name], facts[1][name])
    )
    matters = [f for f in findings if f.severity is not Severity.INFO]
    return RungResult(
        name=Rung.ENVIRONMENT,
        status=RungStatus.UNDECIDED if matters else RungStatus.ALIGNED,
        summary=Text(
            f"{len(different)} of {len(common)} facts stated on both sides differ, "
            f"{len(matters)} in a way known to matter.",
            f"两侧都说明的 {len(common)} 项中有 {len(different)} 项不同，"
            f"其中 {len(matters)} 项已知会影响结果。",
        ),
        findings=findings,
        tables=(table,),
    )


def facts_of(data: RunData) -> dict[str, EnvironmentFact]:
    """Merge a run's manifest and files into one fact a name; the manifest wins."""
    merged: dict[str, EnvironmentFact] = {}
    for facts in reversed(data.environments):
        merged.update(facts.facts)
    manifest = data.run.manifest
    stated = {**manifest.versions}
    if manifest.framework and manifest.framework_version:
        stated[manifest.framework] = manifest.framework_version
    if manifest.device:
        stated["device"] = manifest.device
    for name, value in stated.items():
        source = str(data.run.root / FILE_NAME)
        merged[name] = EnvironmentFact(name, value, Evidence(source, Side.BOTH, key=name))
    return merged


def _with_implied(facts: dict[str, EnvironmentFact], data: RunData) -> dict[str, EnvironmentFact]:
    """Add the device that no file states and the framework leaves no choice about."""
    if data.implied_device is None:
        return facts
    source = f"{_DERIVED}{data.framework} runs on {data.implied_device} only"
    fact = EnvironmentFact("device", data.implied_device, Evidence(source, Side.BOTH, key="device"))
    return {"device": fact, **facts}


def _findings(reference: EnvironmentFact, candidate: EnvironmentFact) -> Iterator[Finding]:
    """Yield what a differing fact means: each known boundary, or one note that none is known."""
    evidence = _evidence(reference, candidate)
    name, values = reference.name, (reference.value, candidate.value)
    title = Text(
        f"{name} is {values[0]} in the reference and {values[1]} in the candidate",
        f"{name}：参考为 {values[0]}，被测为 {values[1]}",
    )
    known = list(boundaries_between(name, *values))
    for boundary in known:
        yield Finding(
            id=f"environment.{name}.{'.'.join(map(str, boundary.version))}",
            rung=Rung.ENVIRONMENT,
            severity=boundary.severity,
            title=title,
            reference=values[0],
            candidate=values[1],
            evidence=evidence,
            why=boundary.why,
            fix=boundary.fix,
            mechanism=boundary.mechanism,
        )
    if not known:
        yield Finding(
            id=f"environment.{name}",
            rung=Rung.ENVIRONMENT,
            severity=Severity.INFO,
            title=title,
            reference=values[0],
            candidate=values[1],
            evidence=evidence,
            why=Text(
                "No effect of this difference on results is known.",
                "目前不知道该差异会影响结果。",
            ),
            fix=Text(
                "Nothing to do unless the earlier rungs leave no other explanation.",
                "无需处理，除非没有其他解释。",
            ),
        )


def _evidence(reference: EnvironmentFact, candidate: EnvironmentFact) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(e.source, side, e.line, e.key, e.text)
        for side, e in (
            (Side.REFERENCE, reference.evidence),
            (Side.CANDIDATE, candidate.evidence),
        )
    )


def _table(reference: dict[str, EnvironmentFact], candidate: dict[str, EnvironmentFact]) -> Table:
    names: Iterable[str] = sorted(reference.keys() | candidate.keys())
    return Table(
        id="environment",
        title=Text("Stack facts", "环境信息"),
        columns=(
            Column("name", Text("fact", "项目")),
            Column("reference", Text("reference", "参考")),
            Column("candidate", Text("candidate", "被测")),
        ),
        rows=tuple(
            (
                name,
                _cell(reference[name]) if name in reference else None,
                _cell(candidate[name]) if name in candidate else None,
            )
            for name in names
        ),
    )


def _cell(fact: EnvironmentFact) -> Cell:
    if not fact.evidence.source.startswith(_DERIVED):
        return fact.value
    return Text(f"{fact.value} (derived from the framework)", f"{fact.value}（由框架推断）")


def _missing(facts: tuple[dict[str, EnvironmentFact], ...], table: Table) -> RungResult:
    side = "both" if not any(facts) else ("candidate" if facts[0] else "reference")
    return RungResult(
        name=Rung.ENVIRONMENT,
        status=RungStatus.MISSING,
        summary=Text(
            "No fact about the stack is stated on both sides.",
            "没有任何环境信息同时出现在两侧。",
        ),
        missing=(missing_artifact(Rung.ENVIRONMENT, side),),
        tables=(table,) if any(facts) else (),
    )
