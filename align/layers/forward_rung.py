"""Forward rung: the first module whose output differs although its inputs agree.

Compared at the first step both runs recorded, and only where both computed with the same tokens,
positions and weights there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.layers.captured import Address, CapturedStep
from align.layers.cause_text import address_text, check_text, floors_text, shape_text
from align.layers.error_table import error_table
from align.layers.floor import (
    UNIT_ROUNDOFF,
    Dtypes,
    expected_dtype,
    layer_of,
    rounding_floor,
    usual_dtypes,
)
from align.layers.forward_findings import dtype_finding, positions_finding, weights_finding
from align.layers.noise import Noise
from align.layers.noise_runs import NoiseRuns, observed_noise
from align.layers.not_comparable import not_comparable
from align.layers.pattern import Place, cause_of, place_of
from align.layers.profile import profiles
from align.layers.start import POSITIONS, Pair, Start, first_pair, later_pairs
from align.layers.systematic_finding import systematic_finding
from align.layers.temperature import temperature_finding
from align.layers.tensors_view import with_tensors
from align.layers.three_way import three_way_text
from align.layers.walk import Compared, Walk, walk
from dumps.store.run_data import RunData
from dumps.store.tensor_records import CLOSING, Phase, TensorRecord

SIGNATURE = ("training/rollout_probs_diff*", "rollout_corr/*")
_with_tensors = partial(with_tensors, phases=(Phase.FORWARD, Phase.INPUT))
_ANGLES = "rotary_emb"  # follows any offset of positions, which attention does not
_REDUCED = Threshold(
    UNIT_ROUNDOFF["bfloat16"],
    "unit roundoff of bfloat16, in which a row-parallel layer may be all-reduced",
)


def compare(
    reference: RunData,
    candidate: RunData,
    noise: Sequence[RunData] = (),
    referee: Sequence[RunData] = (),
) -> RungResult:
    """Compare the activations of both runs, then the log_probs made of them.

    Args:
        noise: further runs of the reference, to observe noise on.
        referee: the same steps in a finer dtype, at most one run.
    """
    pair = first_pair(reference, candidate)
    weights = None if pair.is_comparable else weights_finding(pair)
    if weights is not None:
        return _result(Walk((), (), (), ()), weights, pair)
    if pair.start is Start.OTHER_POSITIONS and not pair.weights:
        walked = forward_walk(pair, ignored=_ANGLES)
        if walked.departure is not None:
            return _result(walked, positions_finding(pair, walked.departure), pair)
    if not pair.is_comparable:
        return not_comparable(Rung.FORWARD, pair)
    runs = NoiseRuns(noise, next(iter(referee), None))
    seen = observed_noise(reference, candidate, runs)
    later = later_pairs(reference, candidate)
    walked = forward_walk(pair, seen, later)
    assert pair.reference is not None and pair.candidate is not None
    step = pair.reference.step
    if walked.departure is not None:
        found = _result(walked, _finding(walked.departure, pair, runs), pair, later)
        return _with_tensors(found, walked.departure, reference, candidate, step)
    finding = temperature_finding(reference, candidate, step)
    dtypes = dtype_finding(pair.reference, pair.candidate, walked)
    result = _result(walked, finding or dtypes, pair, later)
    return _with_tensors(result, None, reference, candidate, step)


def forward_walk(
    pair: Pair, noise: Noise | None = None, later: Sequence[Pair] = (), *, ignored: str = ""
) -> Walk:
    """Compare inputs and outputs of modules in the order of computation.

    Args:
        later: further steps, for errors that point one way.
        ignored: last part of the names of modules to leave out.
    """
    own, other = _both(pair)
    own = {address: r for address, r in own.items() if r.name.rpartition(".")[2] != ignored}
    usual = usual_dtypes(own.values(), other.values())
    further = [_both(each) for each in later]
    floor_of = partial(activation_floor, usual=usual)
    return walk(own, other, floor_of, noise=noise, further=further)


def _both(pair: Pair) -> tuple[Mapping[Address, TensorRecord], Mapping[Address, TensorRecord]]:
    assert pair.reference is not None and pair.candidate is not None
    return activations(pair.reference), activations(pair.candidate)


def activations(step: CapturedStep) -> Mapping[Address, TensorRecord]:
    """Return outputs and recorded inputs; an input's name is told apart from its output's.

    Without position_ids, whose difference would explain any other.
    """
    outputs, inputs = step.of(Phase.FORWARD), step.of(Phase.INPUT)
    own = {(f"{name} (input)", u): r for (name, u), r in inputs.items() if (name, u) != POSITIONS}
    return {**outputs, **own}


def activation_floor(
    reference: TensorRecord, candidate: TensorRecord, *, usual: Dtypes
) -> Threshold:
    """Return what rounding explains of an activation's error."""
    layer = layer_of(reference.name)
    depth = 1 if layer is None else 1 + layer
    dtype = expected_dtype(reference, candidate, usual)
    floor = rounding_floor(dtype, depth, reference.shape[-1])
    closes = any(fnmatchcase(reference.name, pattern) for pattern in CLOSING)
    if closes and reference.phase == Phase.FORWARD and floor.value < _REDUCED.value:
        return _REDUCED
    return floor


def _result(
    walked: Walk, finding: Finding | None, pair: Pair, later: Sequence[Pair] = ()
) -> RungResult:
    assert pair.reference is not None
    table = error_table(
        "forward_errors",
        Text("Error of each activation, in the order of computation", "各激活的误差（按计算次序）"),
        (walked,),
    )
    drawn = profiles(
        "forward",
        Text("Error of activations over depth", "激活误差随深度的变化"),
        walked,
        pair.reference.step,
        [(each.reference.step, *_both(each)) for each in later if each.reference],
    )
    if finding is not None:
        title = finding.title
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        is_error = finding.severity is Severity.ERROR
        return RungResult(
            Rung.FORWARD,
            RungStatus.DIVERGED if is_error else RungStatus.UNDECIDED,
            summary,
            (finding,),
            tables=(table,),
            profiles=drawn,
        )
    count, step = len(walked.compared), pair.reference.step
    floors = floors_text(walked)
    apart = len(walked.reference_only) + len(walked.candidate_only)
    return RungResult(
        Rung.FORWARD,
        RungStatus.ALIGNED,
        Text(
            f"{count} activations of step {step} agree up to rounding, with the same tokens and "
            f"weights; the largest relative error is {walked.worst:.2g}."
            + _uncompared_en(len(walked.other_tokens), apart)
            + floors.en,
            f"第 {step} 步的 {count} 个激活在相同 token 与权重下一致（仅有舍入误差），"
            f"最大相对误差 {walked.worst:.2g}。"
            + _uncompared_zh(len(walked.other_tokens), apart)
            + floors.zh,
        ),
        tables=(table,),
        profiles=drawn,
    )


def _uncompared_en(other_tokens: int, apart: int) -> str:
    tokens = f" Recorded over other tokens: {other_tokens}." if other_tokens else ""
    return tokens + (f" Recorded on one side alone: {apart}." if apart else "")


def _uncompared_zh(other_tokens: int, apart: int) -> str:
    tokens = f"另有 {other_tokens} 个记录的 token 集合不同。" if other_tokens else ""
    return tokens + (f"另有 {apart} 个只在一侧有记录。" if apart else "")


def _finding(departure: Compared, pair: Pair, runs: NoiseRuns) -> Finding:
    assert pair.reference is not None and pair.candidate is not None
    right = three_way_text(departure, runs.referee, pair.reference.step)
    where = (
        _evidence(pair.reference, Side.REFERENCE, departure.reference),
        _evidence(pair.candidate, Side.CANDIDATE, departure.candidate),
    )
    if not departure.is_large:
        return systematic_finding(departure, Rung.FORWARD, where, right, SIGNATURE)
    record, found = departure.reference, departure.difference
    place = place_of(departure)
    bias = pair.reference.of(Phase.PARAMETER).get((f"{record.name}.bias", 0))
    cause = cause_of(departure, bias)
    bounds = _bounds_text(pair) if place is Place.ATTENTION else None
    shape, check = bounds or shape_text(cause), check_text(place)
    place_text = address_text(record)
    limit = departure.limit
    return Finding(
        id="forward.first_divergence",
        rung=Rung.FORWARD,
        severity=Severity.ERROR,
        title=Text(
            f"activations differ first at {place_text.en}, by {found.relative:.2g} where rounding "
            f"explains {limit.value:.2g}",
            f"激活最早在 {place_text.zh} 处不同，相对误差 {found.relative:.2g}，"
            f"而舍入只能解释 {limit.value:.2g}",
        ),
        reference=record.l2,
        candidate=departure.candidate.l2,
        evidence=(
            *where,
            Evidence("floor", Side.BOTH, text=f"{limit.value:.3g}: {limit.source}"[:200]),
        ),
        why=Text(
            f"Tokens, positions and weights are the same, and everything computed before it agrees "
            f"within {departure.before:.2g}. {shape.en}{right.en}",
            f"token、位置与权重均相同，在它之前的计算一致（误差不超过 {departure.before:.2g}）。"
            f"{shape.zh}{right.zh}",
        ),
        fix=Text(
            f"In {record.name}: {check.en}.",
            f"在 {record.name} 处：{check.zh}。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC, SIGNATURE),
    )


def _evidence(step: CapturedStep, side: Side, record: TensorRecord) -> Evidence:
    return Evidence(
        step.source,
        side,
        key=f"step {step.step} {record.phase} {record.name}",
        text=f"{record.dtype} {list(record.shape)} L2 {record.l2:.6g} mean {record.mean:.6g} "
        f"min {record.minimum:.6g} max {record.maximum:.6g}"[:200],
    )


def _bounds_text(pair: Pair) -> Text | None:
    """Say where attention was told of other packed rows than the positions show."""
    assert pair.reference is not None and pair.candidate is not None
    counts = [
        (step.facts.get("sequences_by_bounds"), step.facts.get("sequences_by_positions"))
        for step in (pair.reference, pair.candidate)
    ]
    (own, _), (told, shown) = counts
    if told is None or told == shown or own != counts[0][1]:
        return None
    return Text(
        f"The candidate's attention is told of {told} packed sequences while its positions start "
        f"{shown} times: rows attend to those packed before them.",
        f"被测的注意力得到的 packed 序列数为 {told}，而 position_ids 显示有 {shown} 条："
        "各条序列会看到排在它前面的序列。",
    )
