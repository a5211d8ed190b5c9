"""The config rung: do the effective values of both runs mean the same?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.config.diff import ConfigDiff, compare_configs
from align.config.merge import strongest
from align.config.normalise import effective
from align.config.tables import (
    compared_table,
    ignored_table,
    one_sided_table,
    tables,
    unmatched_table,
)
from align.core.config_value import EffectiveConfig, RawConfig
from align.core.figure import Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.run import RunManifest
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text, joined
from dumps.store.run_data import RunData

_REFERENCE, _CANDIDATE = Text("reference", "参考"), Text("candidate", "被测")
_BOTH = Text("both", "两侧")


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the configurations of two runs."""
    return compare_raw(
        (reference.configs, _manifest(reference)), (candidate.configs, _manifest(candidate))
    )


def compare_raw(
    reference: tuple[Sequence[RawConfig], RunManifest],
    candidate: tuple[Sequence[RawConfig], RunManifest],
) -> RungResult:
    """Compare what the configuration files of two runs state."""
    sides = effective(*reference), effective(*candidate)
    absent = _absent(sides)
    if absent:
        return RungResult(
            Rung.CONFIG,
            RungStatus.MISSING,
            Text("No configuration was found on both sides.", "没有在两侧都找到配置。"),
            missing=absent,
            tables=tables([unmatched_table(*sides)]),
        )
    diff = compare_configs(*sides)
    stated = strongest(reference[0])[0], strongest(candidate[0])[0]
    ignored, unmatched = ignored_table(*sides, stated), unmatched_table(*sides)
    findings = (*diff.findings, *_collected(sides, ignored, unmatched))
    return RungResult(
        Rung.CONFIG,
        _status(diff, findings),
        _summary(diff, findings),
        findings,
        tables=tables([compared_table(diff), one_sided_table(diff), unmatched, ignored]),
    )


def _manifest(data: RunData) -> RunManifest:
    """Return the manifest with what other files of the run state about framework and version."""
    manifest = data.run.manifest
    return RunManifest(
        framework=data.framework,
        framework_version=data.framework_version,
        device=manifest.device,
        name=manifest.name,
        versions=manifest.versions,
        notes=manifest.notes,
    )


def _absent(sides: tuple[EffectiveConfig, EffectiveConfig]) -> tuple[Missing, ...]:
    named = zip(("reference", "candidate"), sides, strict=True)
    empty = [name for name, config in named if not config.values]
    if not empty:
        return ()
    side = "both" if len(empty) == 2 else empty[0]
    return (missing_artifact(Rung.CONFIG, side),)


def _status(diff: ConfigDiff, findings: Sequence[Finding]) -> RungStatus:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    if Severity.WARNING in severities or not diff.compared:
        return RungStatus.UNDECIDED
    return RungStatus.ALIGNED


def _summary(diff: ConfigDiff, findings: Sequence[Finding]) -> Text:
    count = {s: sum(f.severity is s for f in findings) for s in Severity}
    errors, warnings = count[Severity.ERROR], count[Severity.WARNING]
    if not errors and not warnings:
        return Text(
            f"{len(diff.compared)} effective values compared; none differs in a way that matters.",
            f"比较了 {len(diff.compared)} 个有效值；没有有影响的差异。",
        )
    return Text(
        f"{len(diff.compared)} effective values compared; {errors} differ in a way known to change "
        f"results, {warnings} in a way that can.",
        f"比较了 {len(diff.compared)} 个有效值；{errors} 个差异已知会改变结果，"
        f"{warnings} 个可能改变结果。",
    )


def _collected(
    sides: tuple[EffectiveConfig, EffectiveConfig], ignored: Table, unmatched: Table
) -> list[Finding]:
    """Report what is in no table, and what the runs' files leave open, in one finding each."""
    findings = []
    if unmatched.rows:
        findings.append(_unknown_keys(sides, unmatched))
    if any(config.notes for config in sides):
        findings.append(_notes(sides))
    return findings


def _unknown_keys(sides: tuple[EffectiveConfig, EffectiveConfig], unmatched: Table) -> Finding:
    keys = list(dict.fromkeys(str(row[0]) for row in unmatched.rows))
    shown = ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")
    return Finding(
        id="config.unknown_keys",
        rung=Rung.CONFIG,
        severity=Severity.INFO,
        title=Text(
            f"{len(keys)} keys are in no table: {shown}", f"{len(keys)} 个键不在任何表中：{shown}"
        ),
        reference=len(sides[0].unmatched),
        candidate=len(sides[1].unmatched),
        evidence=tuple(
            Evidence(v.provenance.source, side, v.provenance.line, v.key, v.provenance.text)
            for side, config in zip((Side.REFERENCE, Side.CANDIDATE), sides, strict=True)
            for v in config.unmatched[:5]
        ),
        why=Text(
            "They are shown and not judged: a fork's own key, a misspelling, or a newer version.",
            "仅列出而不作判断：可能是分支自定义的键、拼写错误或更新的版本。",
        ),
        fix=Text(
            "Look at those whose values differ; the table names the nearest known key.",
            "请查看取值不同的键；表中给出了最接近的已知键。",
        ),
    )


def _notes(sides: tuple[EffectiveConfig, EffectiveConfig]) -> Finding:
    said = joined(_said_of(*(config.notes for config in sides)))
    return Finding(
        id="config.notes",
        rung=Rung.CONFIG,
        severity=Severity.INFO,
        title=Text("What was assumed or left out", "所作的假设与遗漏"),
        reference=len(sides[0].notes),
        candidate=len(sides[1].notes),
        evidence=(),
        why=Text(
            f"{said.en}. A value that depends on it can differ from what the run really used.",
            f"{said.zh}。依赖于此的值可能与运行实际使用的不同。",
        ),
        fix=Text(
            "State framework and version in the run's manifest: align run init.",
            "用 align run init 在运行的清单中写明框架与版本。",
        ),
    )


def _said_of(reference: Sequence[Text], candidate: Sequence[Text]) -> Iterator[Text]:
    """Yield the notes, each once, under the side they are about."""
    for note in dict.fromkeys((*reference, *candidate)):
        named = (note in reference, note in candidate)
        side = {(True, True): _BOTH, (True, False): _REFERENCE, (False, True): _CANDIDATE}[named]
        yield Text(f"{side.en}: {note.en}", f"{side.zh}：{note.zh}")
