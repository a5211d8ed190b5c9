"""The versions of one run against the sets that are known to work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from align.config.lint import OneRun
from align.core.environment import EnvironmentFact
from align.core.figure import Column, Table
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.environment.compatibility import (
    MIN_COMPARED,
    Mismatch,
    SetMatch,
    closest_sets,
    components,
    mismatches,
)
from align.environment.versions import satisfies

# Other names that manifests and logs have for a component. On an NPU the driver is the HDK's.
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "hdk": ("driver", "firmware"),
    "megatron": ("megatron_core", "megatron_lm"),
    "torch": ("pytorch",),
}
_CORE = {"torch", "torch_npu", "cann", "vllm", "vllm_ascend", "verl", "mindspeed_rl"}
_MAX_SHOWN = 3
# Source: Qwen3-235B long-sequence RL guide for verl on Ascend, section 3.2.2.
EXPERT_PARALLEL_CANN = ">=8.3.RC1"
_SAFE_TENSORDICT = ">=0.10.0"  # section 4 of the same guide


class Standing(str, Enum):
    """What the versions of a run amount to."""

    MATCHES = "matches"
    NEAREST = "nearest"
    UNKNOWN = "unknown"
    NOT_ON_NPU = "not_on_npu"


@dataclass(frozen=True, slots=True)
class Stack:
    """A run's versions, and the sets they come closest to.

    Args:
        versions: component to the fact that states it.
        closest: the nearest first; empty where too little is stated.
    """

    standing: Standing
    versions: Mapping[str, EnvironmentFact]
    closest: tuple[SetMatch, ...]


def stack_of(run: OneRun) -> Stack:
    """Compare a run's versions with every known set."""
    versions = versions_of(run.facts)
    stated = {name: fact.value for name, fact in versions.items()}
    if run.fact("device") in ("cuda", "cpu") and not run.on_npu:
        return Stack(Standing.NOT_ON_NPU, versions, ())
    compared = [
        m
        for m in closest_sets(stated)
        if len(m.agrees) + len(m.deviates) >= MIN_COMPARED.value and _CORE & set(m.agrees)
    ]
    if not compared:
        return Stack(Standing.UNKNOWN, versions, ())
    standing = Standing.MATCHES if compared[0].matches else Standing.NEAREST
    return Stack(standing, versions, tuple(compared[:_MAX_SHOWN]))


def versions_of(facts: Mapping[str, EnvironmentFact]) -> dict[str, EnvironmentFact]:
    """Return the facts that state a component of the table, by the table's name."""
    named = {name.lower().replace("-", "_"): fact for name, fact in facts.items()}
    found = {}
    for name in components():
        spellings = (name, *_OTHER_NAMES.get(name, ()))
        fact = next((named[s] for s in spellings if s in named), None)
        if fact is not None:
            found[name] = fact
    return found


def stack_findings(stack: Stack, run: OneRun) -> Iterator[Finding]:
    """Yield versions that do not belong together, and features that need newer ones."""
    stated = {name: fact.value for name, fact in stack.versions.items()}
    for mismatch in mismatches(stated, on_npu=run.on_npu):
        yield _mismatch(mismatch, stack.versions)
    yield from _expert_parallel(stack, run)


def stack_table(stack: Stack) -> Table:
    """Return every component with the run's version and the versions of the nearest sets."""
    columns = [
        Column("component", Text("component", "组件")),
        Column("run", Text("this run", "本次运行")),
        *(Column(f"set{i}", Text(m.versions.name, m.versions.name)) for i, m in _numbered(stack)),
    ]
    names = [n for n in components() if n in stack.versions or _in_closest(n, stack)]
    return Table(
        "doctor.stack",
        Text("Versions and the nearest known sets", "版本与最接近的已知组合"),
        tuple(columns),
        tuple(
            (
                name,
                stack.versions[name].value if name in stack.versions else None,
                *(_cell(name, m) for _, m in _numbered(stack)),
            )
            for name in names
        ),
    )


def _numbered(stack: Stack) -> list[tuple[int, SetMatch]]:
    return list(enumerate(stack.closest, start=1))


def _in_closest(name: str, stack: Stack) -> bool:
    return any(name in m.versions.versions for m in stack.closest)


def _cell(name: str, match: SetMatch) -> str | None:
    wanted = match.versions.versions.get(name)
    if wanted is None:
        return None
    sign = {True: "= ", False: "≠ "}.get(name in match.agrees, "")
    return f"{sign}{wanted}" if name not in match.unknown else f"? {wanted}"


def _mismatch(found: Mismatch, versions: Mapping[str, EnvironmentFact]) -> Finding:
    key, other = versions[found.key], versions[found.component]
    wanted = found.wanted
    listed = Text(
        f"{found.key} {key.value} is listed with {found.component} {wanted}." if wanted else "",
        f"{found.key} {key.value} 配套的 {found.component} 为 {wanted}。" if wanted else "",
    )
    effect = Text(
        "The combination was not released together; nobody vouches for its results.",
        "该组合不是配套发布的，其结果没有保证。",
    )
    return Finding(
        id=f"environment.versions.{found.key}.{found.component}",
        rung=Rung.ENVIRONMENT,
        severity=Severity.WARNING,
        title=Text(
            f"{found.key} {key.value} does not go with {found.component} {other.value}",
            f"{found.key} {key.value} 与 {found.component} {other.value} 不配套",
        ),
        reference=wanted or None,
        candidate=other.value,
        evidence=(key.evidence, other.evidence),
        why=Text(
            f"{listed.en} {effect.en} Source: {found.source}.".strip(),
            f"{listed.zh}{effect.zh}来源：{found.source}。",
        ),
        fix=_fix(found, other.value),
    )


def _fix(found: Mismatch, stated: str) -> Text:
    if found.component == "tensordict" and satisfies(stated, _SAFE_TENSORDICT):
        return Text(
            "Take verl 0.6 or later with tensordict 0.10.0: older tensordict copies from an NPU "
            "without waiting.",
            "请使用 verl 0.6 及以上并配合 tensordict 0.10.0："
            "更旧的 tensordict 在 NPU 上拷贝时不等待。",
        )
    if not found.wanted:
        return Text(
            f"Install the {found.component} release that {found.key} is named after.",
            f"安装与 {found.key} 版本号对应的 {found.component}。",
        )
    return Text(
        f"Install {found.component} {found.wanted}, or another {found.key}.",
        f"安装 {found.component} {found.wanted}，或更换 {found.key}。",
    )


def _expert_parallel(stack: Stack, run: OneRun) -> Iterator[Finding]:
    cann = stack.versions.get("cann")
    size = run.number("rollout.expert_parallel_size") or 1
    enabled = run.is_on("rollout.engine_options.enable_expert_parallel") or size > 1
    if cann is None or not enabled or satisfies(cann.value, EXPERT_PARALLEL_CANN) is not False:
        return
    yield Finding(
        id="environment.expert_parallel_cann",
        rung=Rung.ENVIRONMENT,
        severity=Severity.WARNING,
        title=Text(
            f"expert parallelism in the rollout with CANN {cann.value}; it needs 8.3.RC1",
            f"rollout 开启了专家并行，而 CANN 为 {cann.value}；需要 8.3.RC1 及以上",
        ),
        reference="8.3.RC1",
        candidate=cann.value,
        evidence=(cann.evidence,),
        why=Text(
            "The communication of large expert groups depends on CANN 8.3.RC1 or later "
            "(Qwen3-235B guide, section 3.2.2).",
            "大专家并行的通信依赖 CANN 8.3.RC1 及以上版本（Qwen3-235B 实践 3.2.2 节）。",
        ),
        fix=Text(
            "Upgrade CANN, or set enable_expert_parallel=False.",
            "升级 CANN，或设 enable_expert_parallel=False。",
        ),
    )
