"""Backward rung: the first gradient that differs although activations and the loss's agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from align.core.figure import Profile, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.layers import backward_findings as findings
from align.layers.captured import Address, CapturedStep, captured_steps
from align.layers.cause_text import floors_text
from align.layers.error_table import error_table
from align.layers.floor import (
    ACCUMULATED,
    Dtypes,
    coarsest,
    expected_dtype,
    layer_of,
    num_layers,
    rounding_floor,
    usual_dtypes,
)
from align.layers.forward_rung import forward_walk
from align.layers.noise import Noise
from align.layers.noise_runs import NoiseRuns, observed_noise
from align.layers.not_comparable import not_comparable
from align.layers.padding_row import padding_row_finding
from align.layers.pattern import is_scaled, scores_factor
from align.layers.profile import profiles
from align.layers.start import POOLED, Pair, Start, first_pair, later_pairs
from align.layers.systematic_finding import systematic_finding
from align.layers.tensors_view import with_tensors
from align.layers.three_way import three_way_text
from align.layers.walk import Compared, FloorOf, Walk, walk
from align.rollout.trainer_pair import same_loss_inputs, trainer_pair
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, TensorRecord

SIGNATURE = ("actor/grad_norm",)
_TIMES = 10  # of what the outputs' gradients of a later step differ by


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Gradients of the first update of one step.

    Args:
        outputs: of modules' outputs, in the order of the backward pass.
        parameters: of parameters.
        missing: address that has a gradient on one side alone, the first in backward order, and
            the side that lacks it.
        missing_parameters: parameters with a gradient on one side alone, and the side that lacks
            it.
    """

    outputs: Walk
    parameters: Walk
    missing: tuple[TensorRecord, Side] | None
    missing_parameters: Mapping[str, Side]


def compare(
    reference: RunData,
    candidate: RunData,
    noise: Sequence[RunData] = (),
    referee: Sequence[RunData] = (),
) -> RungResult:
    """Compare the gradients of both runs.

    Args:
        noise: further runs of the reference, to observe noise on.
        referee: the same steps in a finer dtype, at most one run.
    """
    pair = first_pair(reference, candidate)
    if not pair.is_comparable or pair.reference is None or pair.candidate is None:
        return not_comparable(Rung.BACKWARD, pair)
    runs = NoiseRuns(noise, next(iter(referee), None))
    seen, later = observed_noise(reference, candidate, runs), later_pairs(reference, candidate)
    forward = forward_walk(pair, seen, later)
    if forward.departure is not None:
        return _undecided(findings.AFTER_FORWARD)
    gradients = compare_gradients(
        pair.reference, pair.candidate, before=forward.worst, noise=seen, later=later
    )
    if not gradients.outputs.compared and not gradients.parameters.compared:
        return not_comparable(Rung.BACKWARD, Pair(Start.NOT_RECORDED))
    if gradients.outputs.other_tokens and not gradients.outputs.compared:
        return not_comparable(Rung.BACKWARD, replace(pair, start=Start.OTHER_ROWS))
    loss_inputs = same_loss_inputs(trainer_pair(reference, candidate, pair.reference.step))
    departure = gradients.outputs.departure
    right = Text("", "")
    if departure is not None:
        right = three_way_text(departure, runs.referee, pair.reference.step)
    step = pair.reference.step
    padding = padding_row_finding(_departed(gradients), reference, candidate, step)
    result, about = _judge(gradients, pair.reference, pair.candidate, loss_inputs, right, padding)
    if result.status is RungStatus.ALIGNED:
        result = _later_parameters(reference, candidate) or result
    return with_tensors(result, about, reference, candidate, step, (Phase.GRADIENT,))


def compare_gradients(
    reference: CapturedStep,
    candidate: CapturedStep,
    *,
    before: float = 0.0,
    noise: Noise | None = None,
    later: Sequence[Pair] = (),
) -> Gradients:
    """Compare two records of one step.

    Args:
        before: largest error of the activations, which gradients are computed from.
        noise: observed between two runs of the same computation.
        later: further steps, for errors that point one way.
    """
    own, other = (_first_update(s.of(Phase.GRADIENT)) for s in (reference, candidate))
    usual = usual_dtypes(own.values(), other.values())
    floor_of = gradient_floors(num_layers([name for name, _ in own]), usual)
    further = [
        (_first_update(one.of(Phase.GRADIENT)), _first_update(two.of(Phase.GRADIENT)))
        for one, two in ((pair.reference, pair.candidate) for pair in later)
        if one is not None and two is not None
    ]
    outputs = walk(own, other, floor_of, before=before, noise=noise, further=further)
    kinds = Phase.PARAMETER_GRADIENT
    own_weights, other_weights = (_first_update(s.of(kinds)) for s in (reference, candidate))
    inherited = max(before, _before_departure(outputs))
    parameters = walk(
        own_weights,
        other_weights,
        summed_floors(
            gradient_floors(num_layers([name for name, _ in own]), usual, coarsest(usual)),
            {name: record for (name, _), record in own.items()},
        ),
        before=inherited,
        is_chain=False,
        noise=noise,
    )
    both_have = reference.of(Phase.PARAMETER).keys() & candidate.of(Phase.PARAMETER).keys()
    return Gradients(
        outputs,
        parameters,
        _missing(outputs, reference, candidate),
        {
            name: side
            for side, has, lacks in (
                (Side.CANDIDATE, own_weights, other_weights),
                (Side.REFERENCE, other_weights, own_weights),
            )
            for name, update in sorted((has.keys() - lacks.keys()) & both_have)
            if has[name, update].l2 > 0
        },
    )


def _judge(
    gradients: Gradients,
    reference: CapturedStep,
    candidate: CapturedStep,
    loss_inputs: bool | None,
    right: Text,
    padding: Finding | None,
) -> tuple[RungResult, Compared | None]:
    """Return the result, and the departure if that is what its finding is about.

    Args:
        padding: what explains parameters that depart, if that is padding.
    """
    outputs, parameters = gradients.outputs, gradients.parameters
    departure = outputs.departure
    entry = outputs.compared[0] if outputs.compared else None
    where = _evidence(reference, candidate)
    if entry is not None and entry.is_large:
        factor = _common_factor(gradients)
        if factor is None or loss_inputs is False:
            return _undecided(findings.LOSS_DIFFERS, gradients), None
        finding = findings.scaled(factor, len(outputs.compared), loss_inputs, where)
        return _diverged(finding, gradients, reference.step), None
    missing = gradients.missing
    if missing is not None and (departure is None or missing[0].order <= departure.reference.order):
        follower = findings.follower_of(missing[0].name, reference.of(Phase.FORWARD).values())
        names = list(gradients.missing_parameters)
        finding = findings.no_gradient(*missing, follower, names, where)
        return _diverged(finding, gradients, reference.step), None
    if departure is not None:
        if departure.is_large:
            forward = reference.of(Phase.FORWARD).values()
            follower = findings.follower_of(departure.reference.name, forward)
            finding = findings.output_departs(departure, follower, where, right)
            return _diverged(finding, gradients, reference.step), departure
        scores = scores_factor(outputs.compared, departure)
        finding = systematic_finding(departure, Rung.BACKWARD, where, right, SIGNATURE, scores)
        return _diverged(finding, gradients, reference.step), None
    if gradients.missing_parameters:
        finding = findings.no_parameter_gradient(gradients.missing_parameters, where)
        return _diverged(finding, gradients, reference.step), None
    departed = _departed(gradients)
    if departed:
        total = len(parameters.compared)
        finding = padding or findings.parameters_depart(departed, total, where)
        return _diverged(finding, gradients, reference.step), None
    floors = floors_text(outputs, parameters)
    aligned = RungResult(
        Rung.BACKWARD,
        RungStatus.ALIGNED,
        Text(
            f"The gradients of {len(outputs.compared)} outputs and {len(parameters.compared)} "
            f"parameters agree up to rounding at step {reference.step}; the largest relative error "
            f"is {max(outputs.worst, parameters.worst):.2g}." + floors.en,
            f"第 {reference.step} 步的 {len(outputs.compared)} 个输出与 {len(parameters.compared)} "
            "个参数的梯度一致（仅有舍入误差），"
            f"最大相对误差 {max(outputs.worst, parameters.worst):.2g}。" + floors.zh,
        ),
        tables=_tables(gradients),
        profiles=_profiles(gradients, reference.step),
    )
    return aligned, None


def _later_parameters(reference: RunData, candidate: RunData) -> RungResult | None:
    """Look for parameters of later steps whose gradients differ where those of all outputs agree.

    Weights are no longer equal there, so a parameter's limit is what the outputs' gradients of its
    step differ by, times ten: gradients that were not set to zero, or not summed, are off by
    their own size.
    """
    own, other = captured_steps(reference), captured_steps(candidate)
    for step in sorted(own.keys() & other.keys())[1 : 1 + POOLED]:
        one, two = own[step], other[step]
        found = compare_gradients(one, two)
        if not found.outputs.compared or found.outputs.departure is not None:
            continue
        limit = _TIMES * max(found.outputs.worst, ACCUMULATED)
        departed = [
            compared
            for compared in found.parameters.compared
            if compared.is_large and compared.difference.relative > limit
        ]
        if departed:
            total, where = len(found.parameters.compared), _evidence(one, two)
            finding = padding_row_finding(
                departed, reference, candidate, step
            ) or findings.parameters_depart(departed, total, where)
            return _diverged(finding, found, step)
    return None


def _departed(gradients: Gradients) -> list[Compared]:
    return [compared for compared in gradients.parameters.compared if compared.departs]


def _first_update(records: Mapping[Address, TensorRecord]) -> dict[Address, TensorRecord]:
    return {address: record for address, record in records.items() if address[1] == 0}


def gradient_floors(layers: int, usual: Dtypes, computed: str = "float64") -> FloorOf:
    """A gradient has come through the whole forward pass, and back down to its own layer.

    Args:
        computed: dtype that each micro-batch's gradient is rounded to before it is added to what is
            recorded; a parameter's is that of its layer's activations, though kept in float32.
    """

    def floor_of(reference: TensorRecord, candidate: TensorRecord) -> Threshold:
        layer = layer_of(reference.name)
        back = 1 if layer is None else layers - layer
        terms = max(reference.shape[-1], reference.shape[0])
        dtype = coarsest((expected_dtype(reference, candidate, usual), computed))
        return rounding_floor(dtype, layers + back, terms)

    return floor_of


def summed_floors(floor_of: FloorOf, outputs: Mapping[str, TensorRecord]) -> FloorOf:
    """Measure the gradient of a bias against what it is the sum of, where that is larger.

    It is its output's gradient summed over tokens. Of the terms' rounding the sum keeps all,
    while of their size it keeps what does not cancel: almost nothing for the bias of a key,
    since softmax ignores what is added to all scores.

    Args:
        outputs: the reference's gradients of outputs by module.

    Source: the condition number of summation, Higham, "Accuracy and Stability of Numerical
    Algorithms", section 4.2, with L2 norms of terms and sum.
    """

    def floor_of_sum(reference: TensorRecord, candidate: TensorRecord) -> Threshold:
        floor, times = floor_of(reference, candidate), cancellation(reference, outputs)
        if times <= 1:
            return floor
        source = f"{floor.source}; times {times:.2g}, the size of its terms over that of their sum"
        return Threshold(floor.value * times, source, floor.num_samples)

    return floor_of_sum


def cancellation(gradient: TensorRecord, outputs: Mapping[str, TensorRecord]) -> float:
    """Return how many times as large as a bias's gradient its terms are together, at least 1."""
    module, _, kind = gradient.name.rpartition(".")
    terms = outputs.get(module) if kind == "bias" else None
    is_larger = terms is not None and terms.l2 > gradient.l2 > 0
    return terms.l2 / gradient.l2 if terms is not None and is_larger else 1.0


def _before_departure(outputs: Walk) -> float:
    departure = outputs.departure
    return outputs.worst if departure is None else departure.before


def _missing(
    outputs: Walk, reference: CapturedStep, candidate: CapturedStep
) -> tuple[TensorRecord, Side] | None:
    """Return the first gradient on one side alone, of a module that both runs computed."""
    forwards = [step.of(Phase.FORWARD).keys() for step in (reference, candidate)]
    both = {name for name, _ in forwards[0] & forwards[1]}
    alone = [(r, Side.CANDIDATE) for r in outputs.reference_only if r.name in both]
    alone += [(r, Side.REFERENCE) for r in outputs.candidate_only if r.name in both]
    return min(alone, key=lambda each: each[0].order, default=None)


def _common_factor(gradients: Gradients) -> float | None:
    """Return the one factor between all gradients, None where there is none."""
    compared = [*gradients.outputs.compared, *gradients.parameters.compared]
    gains = [each.difference.gain for each in compared]
    if not all(is_scaled(each.difference) for each in compared):
        return None
    middle = sorted(gains)[len(gains) // 2]
    return middle if max(abs(gain - middle) for gain in gains) < 0.05 * abs(middle) else None


def _evidence(reference: CapturedStep, candidate: CapturedStep) -> tuple[Evidence, Evidence]:
    return (
        Evidence(reference.source, Side.REFERENCE, key=f"step {reference.step}, update 0"),
        Evidence(candidate.source, Side.CANDIDATE, key=f"step {candidate.step}, update 0"),
    )


def _tables(gradients: Gradients) -> tuple[Table, ...]:
    title = Text("Error of each gradient, in backward order", "各梯度的误差（按反向次序）")
    return (error_table("backward_errors", title, (gradients.outputs, gradients.parameters)),)


def _profiles(gradients: Gradients, step: int) -> tuple[Profile, ...]:
    outputs = Text("Error of outputs' gradients, loss first", "输出梯度的误差（从损失开始）")
    parameters = Text("Error of parameters' gradients", "参数梯度的误差")
    return (
        *profiles("backward_outputs", outputs, gradients.outputs, step),
        *profiles("backward_parameters", parameters, gradients.parameters, step),
    )


def _diverged(finding: Finding, gradients: Gradients, step: int) -> RungResult:
    title = finding.title
    return RungResult(
        Rung.BACKWARD,
        RungStatus.DIVERGED if finding.severity is Severity.ERROR else RungStatus.UNDECIDED,
        Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
        (finding,),
        tables=_tables(gradients),
        profiles=_profiles(gradients, step),
    )


def _undecided(why: Text, gradients: Gradients | None = None) -> RungResult:
    tables = () if gradients is None else _tables(gradients)
    return RungResult(Rung.BACKWARD, RungStatus.UNDECIDED, why, tables=tables)
