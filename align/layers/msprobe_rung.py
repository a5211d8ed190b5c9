"""Two folders of msprobe dumps, compared as the forward and the backward rung."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from align.core.errors import AlignError
from align.core.figure import Column, Table
from align.core.finding import Finding, Severity
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.layers import msprobe_remarks as remarks
from align.layers import msprobe_text
from align.layers.msprobe_compare import ComparedTensor, Method, Step, compare_entries
from align.layers.msprobe_findings import departure_finding
from align.layers.msprobe_pair import PairedDumps, pair_dumps
from align.layers.msprobe_walk import DumpWalk, walk_dumps
from dumps.readers.msprobe import MsprobeDump, read
from dumps.readers.msprobe_folder import DumpPlace, dump_places
from dumps.readers.reader import Progress, no_progress

_COLUMNS = (
    Column("order", Text("order", "次序"), numeric=True),
    Column("relative_error", Text("relative error", "相对误差"), numeric=True),
    Column("explained", Text("explained up to", "可解释的上限"), numeric=True),
    Column("cosine", Text("cosine", "余弦"), numeric=True),
    Column("max_abs", Text("max abs", "最大绝对误差"), numeric=True),
    Column("max_ulp", Text("max ulp", "最大 ulp"), numeric=True),
    Column("by", Text("compared by", "比较依据")),
    Column("tensor", Text("tensor", "张量")),
)


@dataclass(frozen=True, slots=True)
class DumpsDiff:
    """What two folders of dumps show.

    Args:
        rungs: forward, and backward where it is recorded.
        problems: of either side, each with its place and fix.
    """

    rungs: tuple[RungResult, ...]
    problems: tuple[AlignError, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    stage: str
    sides: tuple[MsprobeDump, MsprobeDump]
    paired: PairedDumps
    steps: Sequence[Step]
    problems: tuple[AlignError, ...]


def compare_folders(
    reference: Path, candidate: Path, progress: Progress = no_progress
) -> DumpsDiff:
    """Compare step after step, rank after rank, up to the first that diverges.

    Raises:
        DumpError: A dump cannot be read at all.
    """
    places = dump_places(reference), dump_places(candidate)
    both, alone = pair_places(*places)
    problems: list[AlignError] = []
    rungs: tuple[RungResult, ...] = ()
    for number, (ours, theirs) in enumerate(both, 1):
        compared = _compared(ours, theirs, progress)
        problems += compared.problems
        rungs = _rungs(compared, number, len(both), alone)
        if any(rung.status is not RungStatus.ALIGNED for rung in rungs):
            break
    return DumpsDiff(rungs or (_nothing(places),), tuple(problems))


def pair_places(
    reference: Sequence[DumpPlace], candidate: Sequence[DumpPlace]
) -> tuple[list[tuple[DumpPlace, DumpPlace]], list[str]]:
    """Pair dumps by stage and rank; one process alone on each side is paired whatever its name.

    Returns:
        The pairs in the reference's order, and "stage, rank" of those on one side alone.
    """
    ours, theirs = _by_stage(reference), _by_stage(candidate)
    if len(ours) == len(theirs) == 1:
        theirs = dict(zip(ours, theirs.values(), strict=True))
    pairs = []
    for stage, own in ours.items():
        other = theirs.get(stage, [])
        if len(own) == len(other) == 1:
            pairs.append((own[0], other[0]))
            continue
        ranks = {place.rank: place for place in other}
        pairs += [(place, ranks[place.rank]) for place in own if place.rank in ranks]
    taken = {place.path for pair in pairs for place in pair}
    left = [place for place in (*reference, *candidate) if place.path not in taken]
    return pairs, [str(place.path) for place in left]


def _by_stage(places: Iterable[DumpPlace]) -> dict[str, list[DumpPlace]]:
    found: dict[str, list[DumpPlace]] = {}
    for place in places:
        found.setdefault(place.stage, []).append(place)
    return found


def _compared(ours: DumpPlace, theirs: DumpPlace, progress: Progress) -> _Compared:
    sides = read(ours.path, progress), read(theirs.path, progress)
    paired = pair_dumps(*sides)
    steps, problems = compare_entries(paired)
    broken = (*sides[0].problems, *sides[1].problems, *problems)
    return _Compared(ours.stage or ours.path.parent.name, sides, paired, steps, broken)


def _rungs(
    compared: _Compared, number: int, total: int, alone: Sequence[str]
) -> tuple[RungResult, ...]:
    if not any(tensors for _, tensors in compared.steps):
        return (_unmatched(compared),)
    forward = walk_dumps(compared.steps)
    first = _result(Rung.FORWARD, forward, compared, number, total, alone)
    backward = walk_dumps(compared.steps, backward=True, before=forward.worst)
    if not backward.tensors:
        return (first,)
    if forward.dtype is not None:  # it is said once
        backward = replace(backward, dtype=None)
    if forward.departure is not None:
        return first, _explained(backward)
    return first, _result(Rung.BACKWARD, backward, compared, number, total, ())


def _result(
    rung: Rung,
    walk: DumpWalk,
    compared: _Compared,
    number: int,
    total: int,
    alone: Sequence[str],
) -> RungResult:
    found = tuple(_findings(rung, walk, compared))
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    is_open = any(finding.id.endswith("first_other_bits") for finding in found)
    undecided = is_open and any(f.severity is Severity.WARNING for f in found)
    status = RungStatus.DIVERGED if errors else RungStatus.ALIGNED
    if undecided and not errors:
        status = RungStatus.UNDECIDED
    return RungResult(
        rung,
        status,
        _summary(found, walk, compared.stage, status, number, total, alone),
        found,
        tables=(_table(rung, walk),),
    )


def _findings(rung: Rung, walk: DumpWalk, compared: _Compared) -> Iterator[Finding]:
    sides = compared.sides
    made: list[Finding | None] = [
        departure_finding(rung, walk, sides),
        remarks.dtype_finding(rung, walk, sides),
        remarks.first_bits_finding(rung, walk),
    ]
    if _is_before(walk):
        made[0], made[1] = made[1], made[0]
    if rung is Rung.FORWARD:
        made += [
            remarks.layout_finding(rung, walk),
            remarks.unpaired_finding(rung, compared.paired, sides),
        ]
    yield from (finding for finding in made if finding is not None)


def _is_before(walk: DumpWalk) -> bool:
    """Whether the other dtype comes before the departure, in the order of computation."""
    if walk.dtype is None or walk.departure is None or walk.departure.tensor is None:
        return False
    order = [id(tensor) for tensor in walk.tensors]
    return order.index(id(walk.dtype)) <= order.index(id(walk.departure.tensor))


def _summary(
    found: Sequence[Finding],
    walk: DumpWalk,
    stage: str,
    status: RungStatus,
    number: int,
    total: int,
    alone: Sequence[str],
) -> Text:
    left = len(alone)
    more = f" {left} dumps are on one side alone." if left else ""
    zh_more = f"另有 {left} 个 dump 只在一侧存在。" if left else ""
    if status is not RungStatus.ALIGNED:
        title = found[0].title
        return Text(
            f"{stage}: {title.en}.{more}",
            f"{stage}：{title.zh}。{zh_more}",
        )
    how, zh_how = _limits(walk)
    equal = f", {walk.num_equal} of them bit for bit" if walk.num_equal else ""
    zh_equal = f"，其中 {walk.num_equal} 个逐位相同" if walk.num_equal else ""
    return Text(
        f"{stage} (dump {number} of {total}): {len(walk.tensors)} tensors agree up to rounding{how}"
        f"{equal}; the largest relative error is {walk.worst:.2g}.{more}",
        f"{stage}（第 {number}/{total} 个 dump）：{len(walk.tensors)} 个张量一致，"
        f"仅有舍入误差{zh_how}{zh_equal}；最大相对误差 {walk.worst:.2g}。{zh_more}",
    )


def _limits(walk: DumpWalk) -> tuple[str, str]:
    """Say what the comparison could not see."""
    by = {tensor.method for tensor in walk.tensors}
    if Method.STATISTICS in by:
        return " as far as statistics show", "（就统计量所能反映的范围而言）"
    if Method.DIGEST in by:
        return " by their checksums", "（依据校验值）"
    return "", ""


def _explained(walk: DumpWalk) -> RungResult:
    return RungResult(
        Rung.BACKWARD,
        RungStatus.UNDECIDED,
        Text(
            "Not judged: the forward pass differs, so every gradient must.",
            "未判断：前向已经不同，梯度必然不同。",
        ),
        tables=(_table(Rung.BACKWARD, walk),),
    )


def _unmatched(compared: _Compared) -> RungResult:
    finding = remarks.unpaired_finding(Rung.FORWARD, compared.paired, compared.sides)
    return RungResult(
        Rung.FORWARD,
        RungStatus.MISSING,
        Text(
            f"{compared.stage}: nothing comparable: no entry of one dump is in the other.",
            f"{compared.stage}：无可比较内容：两个 dump 没有共同的条目。",
        ),
        () if finding is None else (finding,),
    )


def _nothing(places: tuple[Sequence[DumpPlace], Sequence[DumpPlace]]) -> RungResult:
    stages = [", ".join(sorted({p.stage for p in side})) or "none" for side in places]
    how = Text(
        "Dump the same step on both sides: `PrecisionDebugger.start(model)`, `stop()`, `step()`.",
        "在两侧采集相同的 step：`PrecisionDebugger.start(model)`、`stop()`、`step()`。",
    )
    return RungResult(
        Rung.FORWARD,
        RungStatus.MISSING,
        Text(
            f"Not compared: no step and rank in common (reference: {stages[0]}; candidate: "
            f"{stages[1]}).",
            f"未比较：没有共同的 step 与 rank（参考：{stages[0]}；被测：{stages[1]}）。",
        ),
        missing=(
            Missing(
                Text("msprobe dumps of the same step", "同一 step 的 msprobe dump"), "both", how
            ),
        ),
    )


def _table(rung: Rung, walk: DumpWalk) -> Table:
    rows = tuple(_row(i, tensor) for i, tensor in enumerate(walk.tensors))
    title = Text("Every tensor, in the order of computation", "所有张量（按计算次序）")
    return Table(f"msprobe_{rung.value}", title, _COLUMNS, rows)


def _row(order: int, tensor: ComparedTensor) -> tuple[int | float | str | Text | None, ...]:
    exact = tensor.exact
    return (
        order,
        tensor.relative,
        tensor.limit.value,
        exact.cosine if exact else None,
        exact.max_abs if exact else None,
        exact.max_ulp if exact else None,
        tensor.method.value,
        msprobe_text.where(tensor.pair, tensor.reference.place),
    )
