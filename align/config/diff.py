"""Compare two effective configurations and judge every difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from align.config.case import Case, Ruling
from align.config.comparable import equal
from align.config.rules import rulings
from align.config.schema import Field, ValueKind, field_named
from align.core.config_value import (
    ConfigLeaf,
    EffectiveConfig,
    EffectiveValue,
    ProvenanceKind,
)
from align.core.finding import (
    Evidence,
    Finding,
    Mechanism,
    Scalar,
    Severity,
    Side,
    Strength,
)
from align.core.rung import Rung
from align.core.text import Text


@dataclass(frozen=True, slots=True)
class Compared:
    """One field known on both sides; no ``finding`` where equal or reported with another."""

    name: str
    reference: EffectiveValue
    candidate: EffectiveValue
    same: bool
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """All fields of two configurations.

    ``one_sided`` are known on one side only, or cannot be compared between two frameworks; they
    are shown and never judged.
    """

    compared: tuple[Compared, ...]
    one_sided: tuple[tuple[Side, EffectiveValue], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Differences, the most severe first, then in causal order of what they act on."""
        found = [row.finding for row in self.compared if row.finding is not None]
        return tuple(sorted(found, key=_order))


def compare_configs(reference: EffectiveConfig, candidate: EffectiveConfig) -> ConfigDiff:
    """Compare every field both sides know."""
    names = [n for n in sorted(reference.values) if _comparable(n, reference, candidate)]
    cases = [_case(name, reference, candidate) for name in names]
    differing = {c.name for c in cases if not _same(c)}
    return ConfigDiff(
        tuple(_compared(case, differing) for case in cases),
        (
            *((Side.REFERENCE, v) for n, v in sorted(reference.values.items()) if n not in names),
            *((Side.CANDIDATE, v) for n, v in sorted(candidate.values.items()) if n not in names),
        ),
    )


def judge(case: Case) -> Finding:
    """Say what one difference does, given everything else that is set."""
    field = case.field
    severity, strength, acts_on = field.severity, field.strength, field.acts_on
    said = list(_rulings(case))
    for ruling in said:
        severity = ruling.severity or severity
        strength = ruling.strength or strength
        acts_on = ruling.acts_on or acts_on
    silenced = strength is Strength.NONE and field.strength is not Strength.NONE
    replaced = silenced or any(ruling.instead for ruling in said)
    reasons = [] if replaced else [field.why or _general(field)]
    reasons += [ruling.because for ruling in said]
    assumptions = dict.fromkeys(v.assumption for v in (case.reference, case.candidate))
    if any(ruling.by_version for ruling in said):
        assumptions |= dict.fromkeys(case.assumed_versions)
    reasons += [
        Text(f"Assumed: {text.en}.", f"假设：{text.zh}。")
        for text in assumptions
        if text is not None
    ]
    effect = severity is not Severity.INFO or strength is not Strength.NONE
    fixes = [_fix(case), *(ruling.fix for ruling in said if ruling.fix)]
    signature = (*field.signature, *(name for ruling in said for name in ruling.signature))
    return Finding(
        id=f"config.{case.name}",
        rung=Rung.CONFIG,
        severity=severity,
        title=_title(case),
        reference=scalar(case.reference.value),
        candidate=scalar(case.candidate.value),
        evidence=(
            _evidence(case.reference, Side.REFERENCE),
            _evidence(case.candidate, Side.CANDIDATE),
        ),
        why=Text(" ".join(r.en for r in reasons), "".join(r.zh for r in reasons)),
        fix=Text(" ".join(f.en for f in fixes), "".join(f.zh for f in fixes))
        if effect
        else Text("Nothing to change.", "无需修改。"),
        mechanism=Mechanism(acts_on, strength, () if silenced else signature),
    )


def scalar(value: ConfigLeaf) -> Scalar:
    """Return a value as a report shows it: a list as one text."""
    if isinstance(value, tuple):
        return "[" + ", ".join(str(scalar(item)) for item in value) + "]"
    return value


def _comparable(name: str, reference: EffectiveConfig, candidate: EffectiveConfig) -> bool:
    if name not in candidate.values:
        return False
    return reference.framework == candidate.framework or field_named(name).between_frameworks


def _case(name: str, reference: EffectiveConfig, candidate: EffectiveConfig) -> Case:
    return Case(
        field_named(name), reference.values[name], candidate.values[name], reference, candidate
    )


def _same(case: Case) -> bool:
    return equal(case.reference.value, case.candidate.value, case.field.kind)


def _compared(case: Case, differing: set[str]) -> Compared:
    same = _same(case)
    finding = None if same or _reported_elsewhere(case, differing) else judge(case)
    return Compared(case.name, case.reference, case.candidate, same, finding)


def _reported_elsewhere(case: Case, differing: set[str]) -> bool:
    """Tell whether another field's finding, or the table, is the better place for a difference."""
    flag = case.field.only_if
    if any(name in differing for name in (*case.field.follows, flag)):
        return True
    switched_off = flag is not None and flag != case.name and case.off(flag)
    member = case.field.name != case.name
    return switched_off and (member or case.frameworks[0] != case.frameworks[1])


def _rulings(case: Case) -> Iterable[Ruling]:
    condition = case.field.only_if
    if condition is not None and condition != case.name and case.off(condition):
        meaning = field_named(condition).meaning
        yield Ruling(
            Text(
                f"It has no effect: {condition} ({meaning.en}) is off on both sides.",
                f"不起作用：两侧的 {condition}（{meaning.zh}）均为关闭。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
        return
    yield from rulings(case)


def _general(field: Field) -> Text:
    if field.strength is Strength.NONE:
        return Text("It changes no numbers.", "它不改变任何数值。")
    if field.strength is Strength.NUMERIC:
        return Text("The same is computed with other rounding.", "同样的计算，只有舍入不同。")
    return Text(
        f"It changes what is computed from rung {field.acts_on.value} on.",
        f"它会改变从 {field.acts_on.value} 环节开始的计算。",
    )


def _title(case: Case) -> Text:
    meaning = case.field.meaning
    reference, candidate = _shown(case.reference), _shown(case.candidate)
    member = "" if case.field.name == case.name else f" {case.name.rpartition('.')[2]}"
    return Text(
        f"{meaning.en}{member}: {reference} in the reference, {candidate} in the candidate",
        f"{meaning.zh}{member}：参考为 {reference}，被测为 {candidate}",
    )


def _shown(value: EffectiveValue) -> str:
    text = str(scalar(value.value))
    return text if len(text) <= 80 else f"{text[:79]}…"


def _evidence(value: EffectiveValue, side: Side) -> Evidence:
    provenance = value.raw.provenance
    stated = value.raw.value if isinstance(value.raw.value, tuple) else (value.raw.value,)
    return Evidence(
        source=provenance.source,
        side=side,
        line=provenance.line,
        key=value.raw.key,
        text=provenance.text[:200] if provenance.text else None,
        values=tuple(scalar(item) for item in stated),
    )


def _fix(case: Case) -> Text:
    candidate, target = case.candidate.raw, _shown(case.reference)
    if candidate.provenance.kind is ProvenanceKind.FIXED:
        return _fix_reference(case)
    if case.field.kind in (ValueKind.PATH, ValueKind.MODEL_NAME):
        return Text(
            f"Check that {candidate.key} of the candidate names the same thing as the reference.",
            f"请确认被测的 {candidate.key} 与参考指向相同的内容。",
        )
    direct = ", " not in candidate.key and candidate.provenance.kind is not ProvenanceKind.DERIVED
    if not direct:
        return Text(
            f"Change {candidate.key} of the candidate so that {case.name} becomes {target}.",
            f"修改被测的 {candidate.key}，使 {case.name} 等于 {target}。",
        )
    if candidate.provenance.kind is ProvenanceKind.DEFAULT:
        return Text(
            f"Write {candidate.key}: {target} in the candidate; it is not set, and "
            f"{_shown(case.candidate)} is the {candidate.provenance.source}.",
            f"在被测配置中写明 {candidate.key}: {target}；该项未设置，{_shown(case.candidate)} 是 "
            f"{candidate.provenance.source.removeprefix('default of ')} 的默认值。",
        )
    return Text(
        f"Set {candidate.key} of the candidate to {target}, or change the reference the same way.",
        f"将被测的 {candidate.key} 设为 {target}，或相应修改参考。",
    )


def _fix_reference(case: Case) -> Text:
    """Say what can be done about what the candidate's code does, whatever is set."""
    reference, code = case.reference.raw, case.candidate.raw.provenance.source
    if reference.provenance.kind is ProvenanceKind.FIXED:
        return Text(
            f"No key of either side sets it: change the code of one ({code}).",
            f"两侧均没有对应的键：需要修改其中一侧的代码（{code}）。",
        )
    return Text(
        f"No key of the candidate sets it ({code}): change {reference.key} of the reference so "
        f"that it becomes {_shown(case.candidate)}.",
        f"被测没有对应的键（{code}）：请修改参考的 {reference.key}，使其等于 "
        f"{_shown(case.candidate)}。",
    )


def _order(finding: Finding) -> tuple[int, int, str]:
    assert finding.mechanism is not None
    return finding.severity.rank, finding.mechanism.acts_on.position, finding.id
