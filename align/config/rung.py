"""The config rung: do the effective values of both runs mean the same?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.config.diff import compare_configs
from align.config.merge import strongest
from align.config.normalise import effective
from align.config.replayed import moot, rows_were_given
from align.config.tables import (
    compared_table,
    ignored_table,
    one_sided_table,
    tables,
    unmatched_table,
)
from align.config.unknown_keys import (
    Sides,
    misspelled_findings,
    misspellings,
    unknown_finding,
)
from align.core.config_value import RawConfig
from align.core.finding import Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.run import ArtifactKind, RunManifest
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text, joined
from dumps.readers.data_set_size import first_data_set_size
from dumps.store.run_data import RunData

_REFERENCE, _CANDIDATE = Text("reference", "参考"), Text("candidate", "被测")
_BOTH = Text("both", "两侧")


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the configurations of two runs."""
    return compare_raw(
        (reference.configs, manifest_of(reference)),
        (candidate.configs, manifest_of(candidate)),
        (counted_rows(reference), counted_rows(candidate)),
    )


def compare_raw(
    reference: tuple[Sequence[RawConfig], RunManifest],
    candidate: tuple[Sequence[RawConfig], RunManifest],
    rows: tuple[int | None, int | None] = (None, None),
) -> RungResult:
    """Compare what the configuration files of two runs state.

    ``rows`` of each side's training data give the length of a training that counts epochs.
    """
    sides = effective(*reference, rows=rows[0]), effective(*candidate, rows=rows[1])
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
    collected = _collected(sides, (reference[0], candidate[0]))
    judged = map(moot, diff.findings) if rows_were_given(candidate[1]) else diff.findings
    findings = tuple(sorted((*judged, *collected), key=lambda f: f.severity.rank))
    return RungResult(
        Rung.CONFIG,
        status(len(diff.compared), findings),
        summary(len(diff.compared), findings),
        findings,
        tables=tables(
            [
                compared_table(diff),
                one_sided_table(diff),
                unmatched_table(*sides),
                ignored_table(*sides, stated),
            ]
        ),
    )


def counted_rows(data: RunData) -> int | None:
    """Return the rows of the training data as verl prints them, after the length filter."""
    logs = [artifact.path for artifact in data.run.of_kind(ArtifactKind.ENVIRONMENT)]
    counted = first_data_set_size(list(dict.fromkeys(logs)))
    return (counted.num_kept or counted.num_rows) if counted else None


def manifest_of(data: RunData) -> RunManifest:
    """Return the manifest with what other files of the run state about framework and version."""
    manifest = data.run.manifest
    return RunManifest(
        framework=data.framework,
        framework_version=data.framework_version,
        device=manifest.device,
        name=manifest.name,
        versions=manifest.versions,
        notes=manifest.notes,
        replay=manifest.replay,
    )


def _absent(sides: Sides) -> tuple[Missing, ...]:
    named = zip(("reference", "candidate"), sides, strict=True)
    empty = [name for name, config in named if not config.values]
    if not empty:
        return ()
    side = "both" if len(empty) == 2 else empty[0]
    return (missing_artifact(Rung.CONFIG, side),)


def status(num_compared: int, findings: Sequence[Finding]) -> RungStatus:
    """Return what the findings amount to."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    if Severity.WARNING in severities or not num_compared:
        return RungStatus.UNDECIDED
    return RungStatus.ALIGNED


def summary(num_compared: int, findings: Sequence[Finding]) -> Text:
    """Count the findings by what they can do."""
    count = {s: sum(f.severity is s for f in findings) for s in Severity}
    errors, warnings = count[Severity.ERROR], count[Severity.WARNING]
    if not errors and not warnings:
        return Text(
            f"{num_compared} effective values compared; none differs in a way that matters.",
            f"比较了 {num_compared} 个有效值；没有有影响的差异。",
        )
    return Text(
        f"{num_compared} effective values compared. Differences known to change results: {errors}; "
        f"that can change them: {warnings}.",
        f"比较了 {num_compared} 个有效值；{errors} 个差异已知会改变结果，"
        f"{warnings} 个可能改变结果。",
    )


def _collected(sides: Sides, raw: tuple[Sequence[RawConfig], Sequence[RawConfig]]) -> list[Finding]:
    """Report what is in no table, and what the runs' files leave open."""
    found = [
        item
        for side, config, files in zip((Side.REFERENCE, Side.CANDIDATE), sides, raw, strict=True)
        if not any(file.truncated_at for file in files)  # the right spelling may be in what is lost
        for item in misspellings(side, config, {key for file in files for key in file.values})
    ]
    findings = list(misspelled_findings(sides, found))
    unknown = unknown_finding(sides)
    findings += [unknown] if unknown else []
    if any(config.notes for config in sides):
        findings.append(_notes(sides))
    return findings


def _notes(sides: Sides) -> Finding:
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
