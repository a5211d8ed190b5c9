"""Optimizer: does an equal gradient become an equal update, and in what precision?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.layers.backward_rung import compare_gradients
from align.layers.captured import Address, CapturedStep, captured_steps
from align.layers.floor import ACCUMULATED, CONFIDENCE
from align.layers.forward_rung import forward_walk
from align.layers.measure import difference
from align.layers.pattern import explained_by, is_scaled
from align.layers.start import POOLED, Pair, pairs
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, TensorRecord

_QUOTED = 5
_ACTS = Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC)
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
_ROUNDED = Threshold(0.999, "a float32 number is one of bfloat16 by chance once in 65,536")
_ONE_FACTOR = Threshold(0.01, "error of a factor regressed on sketches of 256 numbers")
_AGREE = Threshold(0.01, "errors of gradients above this are no rounding of float32")
_NOT_ROUNDED = Threshold(0.5, _ROUNDED.source)


def compare(reference: RunData, candidate: RunData) -> RungResult | None:
    """Compare updates and Adam's moments; None where they cannot be compared."""
    steps = captured_steps(reference), captured_steps(candidate)
    lost = _lost_finding(*steps)
    if lost is not None:
        return _result([lost], 0, 0.0)
    state = _state_finding(*steps)
    pair = next((each for each in pairs(reference, candidate) if _updates(each)), None)
    findings = [] if state is None else [state]
    if pair is None or pair.reference is None or pair.candidate is None:
        return _result(findings, 0, 0.0) if findings else None
    forward = forward_walk(pair)
    gradients = compare_gradients(pair.reference, pair.candidate, before=forward.worst)
    agree = not any(w.departure for w in (forward, gradients.outputs, gradients.parameters))
    updates = _both(pair.reference, pair.candidate, Phase.UPDATE)
    if not agree or not updates:
        return _result(findings, 0, 0.0) if findings else None
    worst = max(difference(*both).relative for both in updates.values())
    floor = update_floor(gradients.parameters.worst)
    first, second = (
        moment_factor(pair.reference, pair.candidate, moment)
        for moment in (Phase.FIRST_MOMENT, Phase.SECOND_MOMENT)
    )
    if first not in (None, 1.0) and (second is None or _is(second, first**2)):
        findings.append(_clipping_finding(first, pair.reference, pair.candidate))
    elif first is not None and second is not None and (first, second) != (1.0, 1.0):
        findings.append(_betas_finding(first, second, pair.reference, pair.candidate))
    elif worst > floor.value:
        findings.append(
            decay_finding(updates, pair.reference, pair.candidate)
            or _update_finding(updates, floor, pair.reference, pair.candidate)
        )
    if not findings:
        findings += _later(pair.reference, pair.candidate)
    return _result(findings, len(updates), worst)


def _later(reference: CapturedStep, candidate: CapturedStep) -> list[Finding]:
    """Find a later update of the step that differs although its gradients agree.

    A first update of Adam hides its betas, and what it remembers of earlier ones.
    """
    numbers = {update for _, update in reference.of(Phase.UPDATE)}
    for number in sorted(numbers - {0}):
        gradients = _both(reference, candidate, Phase.PARAMETER_GRADIENT, number)
        updates = _both(reference, candidate, Phase.UPDATE, number)
        if not gradients or not updates:
            continue
        error = max(difference(*both).relative for both in gradients.values())
        if error > _AGREE.value:
            return []
        floor = update_floor(error)
        if max(difference(*both).relative for both in updates.values()) > floor.value:
            return [_update_finding(updates, floor, reference, candidate, number)]
    return []


def moment_factor(reference: CapturedStep, candidate: CapturedStep, moment: str) -> float | None:
    """Return the one factor between Adam's moments after the first update.

    Exactly 1 where it is 1 to its error; None where they are not recorded or have no one factor.
    """
    own, other = (_first(step, moment) for step in (reference, candidate))
    found = [difference(own[name], other[name]) for name in own if name in other]
    found = [each for each in found if not math.isnan(each.gain)]
    if found and all(each.relative <= _ONE_FACTOR.value for each in found):
        return 1.0
    if not found or not all(is_scaled(each) for each in found):
        return None
    gains = sorted(each.gain for each in found)
    middle = gains[len(gains) // 2]
    is_one = gains[-1] - gains[0] < _ONE_FACTOR.value * abs(middle)
    if not is_one:
        return None
    return middle


def _is(factor: float, expected: float) -> bool:
    return abs(factor - expected) <= 4 * _ONE_FACTOR.value * abs(expected)


def _updates(pair: Pair) -> bool:
    """Tell whether the first update changes any weight: a warm-up can start at rate 0."""
    steps = [step for step in (pair.reference, pair.candidate) if step is not None]
    return any(record.l2 > 0 for step in steps for record in _first(step, Phase.UPDATE).values())


def update_floor(gradient_error: float) -> Threshold:
    """Return the relative error of an Adam update that the error of its gradient explains.

    Adam divides each element by its own size, so elements smaller than the error change sign:
    a share of them in proportion to the error, which adds up to its square root in the norm.
    """
    error = max(gradient_error, ACCUMULATED)
    return Threshold(
        CONFIDENCE * math.sqrt(error), f"4 sqrt({error:.2g}), the largest error of a gradient"
    )


def _first(step: CapturedStep, phase: str) -> dict[str, TensorRecord]:
    return {name: record for (name, update), record in step.of(phase).items() if update == 0}


def _both(
    reference: CapturedStep, candidate: CapturedStep, phase: str, number: int = 0
) -> dict[str, tuple[TensorRecord, TensorRecord]]:
    """Return what both runs recorded of one update, by parameter."""
    own, other = reference.of(phase), candidate.of(phase)
    common = [address for address in own if address in other and address[1] == number]
    return {
        address[0]: (own[address], other[address])
        for address in common
        if own[address].digest == other[address].digest
    }


def decay_finding(
    updates: Mapping[str, tuple[TensorRecord, TensorRecord]],
    reference: CapturedStep,
    candidate: CapturedStep,
) -> Finding | None:
    """Recognise updates that differ by a multiple of the parameter itself: weight decay."""
    found: dict[str, float] = {}
    for name, (own, other) in updates.items():
        parameter = reference.of(Phase.PARAMETER).get((name, 0))
        if parameter is not None and difference(own, other).relative > 0:
            factor, explains = explained_by(other.sketch - own.sketch, parameter.sketch)
            if explains:
                found[name] = factor
    if not found:
        return None
    names = list(found)
    factor = sorted(found.values())[len(found) // 2]
    lacking = Side.CANDIDATE if factor > 0 else Side.REFERENCE
    vectors = all(len(updates[name][0].shape) == 1 for name in names)
    kind = Text(" 1-D", "一维") if vectors else Text("", "")
    return Finding(
        id="optimizer.weight_decay",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"{len(names)}{kind.en} parameters decay less in the {lacking.value}, first "
            f"{names[0]}: their updates differ by {abs(factor):.3g} times the parameter",
            f"{len(names)} 个{kind.zh}参数在{_ZH[lacking]}侧的权重衰减更小，最先是 {names[0]}："
            f"更新之差等于参数的 {abs(factor):.3g} 倍",
        ),
        reference=0.0 if lacking is Side.REFERENCE else abs(factor),
        candidate=0.0 if lacking is Side.CANDIDATE else abs(factor),
        evidence=(
            *_places(reference, candidate),
            Evidence("parameters", Side.BOTH, text=", ".join(names)[:200]),
        ),
        why=Text(
            "Gradients agree, and what the updates differ by is the parameter itself: learning "
            "rate times weight decay. Megatron exempts biases and every 1-D parameter from weight "
            "decay; verl's FSDP trainer does not.",
            "梯度一致，而更新之差正比于参数本身，即学习率乘以权重衰减。"
            "Megatron 对偏置和所有一维参数不做权重衰减，verl 的 FSDP 训练器则会。",
        ),
        fix=Text(
            "Give both optimizers the same parameter groups: exempt norms and biases on both sides "
            "or on neither.",
            "让两侧优化器使用相同的参数分组：norm 与 bias 要么都做权重衰减，要么都不做。",
        ),
        mechanism=_ACTS,
    )


def _clipping_finding(factor: float, reference: CapturedStep, candidate: CapturedStep) -> Finding:
    return Finding(
        id="optimizer.clipping",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"gradients agree before clipping, and what reaches the optimizer is {factor:.4g} "
            "times the reference's",
            f"裁剪之前梯度一致，而进入优化器的梯度是参考的 {factor:.4g} 倍",
        ),
        reference=1.0,
        candidate=factor,
        evidence=_places(reference, candidate),
        why=Text(
            "Adam's first moments after one update are the clipped gradients, and all of them have "
            "this factor: the two sides clip to another norm, or one does not clip.",
            "一次更新之后 Adam 的一阶动量正比于裁剪后的梯度，它们都带有这个系数："
            "两侧裁剪的范数不同，或有一侧没有裁剪。",
        ),
        fix=Text(
            "Compare clip_grad, and the gradient norm each side clips by.",
            "请对照 clip_grad，以及两侧裁剪所用的梯度范数。",
        ),
        mechanism=_ACTS,
    )


def _betas_finding(
    first: float, second: float, reference: CapturedStep, candidate: CapturedStep
) -> Finding:
    name, factor = ("beta1", first) if second == 1 else ("beta2", second)
    moment = Phase.FIRST_MOMENT if name == "beta1" else Phase.SECOND_MOMENT
    example = 1 - factor * (0.1 if name == "beta1" else 0.001)
    usual = "0.9" if name == "beta1" else "0.999"
    both = first != 1 and second != 1
    shown = f"{first:.4g} and {second:.4g}" if both else f"{factor:.4g}"
    return Finding(
        id="optimizer.betas",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"gradients agree, and Adam's {'moments are' if both else f'{moment} is'} {shown} "
            f"times the reference's after the first update: {'betas' if both else name} differ"
            f"{'' if both else 's'}",
            f"梯度一致，而第一次更新之后 Adam 的 {'两个动量' if both else moment} 是参考的 "
            f"{shown} 倍：{'beta' if both else name} 不同",
        ),
        reference=1.0,
        candidate=factor,
        evidence=_places(reference, candidate),
        why=Text(
            "After one update the first moment is (1 - beta1) · gradient, the second "
            f"(1 - beta2) · gradient². With {usual} in the reference it would be {example:.4g} in "
            "the candidate. The first update hides it, the later ones do not.",
            "一次更新之后，一阶动量为 (1 - beta1) · 梯度，二阶动量为 (1 - beta2) · 梯度²。"
            f"若参考为 {usual}，则被测为 {example:.4g}。第一次更新看不出差别，之后的更新会不同。",
        ),
        fix=Text(
            "Compare the betas that each optimizer is built with.",
            "请对照两侧构造优化器时所用的 beta。",
        ),
        mechanism=_ACTS,
    )


def _update_finding(
    updates: Mapping[str, tuple[TensorRecord, TensorRecord]],
    floor: Threshold,
    reference: CapturedStep,
    candidate: CapturedStep,
    number: int = 0,
) -> Finding:
    """Say which update differs most; ``number`` counts the updates of the step."""
    late = Text(f" at update {number}", f"（第 {number} 次更新）") if number else Text("", "")
    found = {name: difference(*both) for name, both in updates.items()}
    name = max(found, key=lambda each: found[each].relative)
    worst = found[name]
    return Finding(
        id="optimizer.update",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"equal gradients become other updates{late.en}: {name} by {worst.relative:.2g}, where "
            f"rounding explains {floor.value:.2g}",
            f"相同的梯度得到不同的更新{late.zh}：{name} 相对误差 {worst.relative:.2g}，"
            f"而舍入只能解释 {floor.value:.2g}",
        ),
        reference=updates[name][0].l2,
        candidate=updates[name][1].l2,
        evidence=(
            *_places(reference, candidate),
            Evidence("floor", Side.BOTH, text=floor.source[:200]),
        ),
        why=Text(
            f"Weights and gradients agree before the step. The candidate's update is "
            f"{worst.gain:.3g} times the reference's, with {worst.residual:.2g} left over: a "
            "factor is the learning rate, the rest betas, epsilon or clipping.",
            f"更新之前的权重与梯度一致。被测的更新约为参考的 {worst.gain:.3g} 倍，"
            f"剩余 {worst.residual:.2g}：统一的系数来自学习率，其余来自 beta、epsilon 或裁剪。",
        ),
        fix=Text(
            "Compare learning rate, betas, epsilon, clipping and weight decay of both optimizers.",
            "请对照两侧优化器的学习率、beta、epsilon、裁剪与权重衰减。",
        ),
        mechanism=_ACTS,
    )


def _lost_finding(
    reference: Mapping[int, CapturedStep], candidate: Mapping[int, CapturedStep]
) -> Finding | None:
    """Find an update that changes no weight on one side, and weights on the other."""
    for number in islice(sorted(reference.keys() & candidate.keys()), POOLED):
        steps = reference[number], candidate[number]
        norms = [_update_norms(step) for step in steps]
        for update in sorted(norms[0].keys() & norms[1].keys()):
            own, other = norms[0][update], norms[1][update]
            if (own == 0) != (other == 0):
                side = Side.REFERENCE if own == 0 else Side.CANDIDATE
                return _no_update(number, update, side, (own, other), steps)
    return None


def _update_norms(step: CapturedStep) -> dict[int, float]:
    """Return the norm of all weights' changes by update of the step."""
    squares: dict[int, float] = defaultdict(float)
    for (_, update), record in step.of(Phase.UPDATE).items():
        squares[update] += record.l2**2
    return {update: math.sqrt(square) for update, square in squares.items()}


def _no_update(
    number: int,
    update: int,
    side: Side,
    norms: tuple[float, float],
    steps: tuple[CapturedStep, CapturedStep],
) -> Finding:
    return Finding(
        id="optimizer.no_update",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"update {update} of step {number} changes no weight in the {side.value}",
            f"{_ZH[side]}第 {number} 步的第 {update} 次更新没有改变任何权重",
        ),
        reference=norms[0],
        candidate=norms[1],
        evidence=tuple(
            Evidence(step.source, each, key=f"step {number}, update {update}", values=(norm,))
            for step, each, norm in zip(steps, (Side.REFERENCE, Side.CANDIDATE), norms, strict=True)
        ),
        why=Text(
            "The other side's weights move at this update. A step of the optimizer that is "
            "skipped: a norm that is not finite, a loss scaler, a rate of 0, accumulation that "
            "counts otherwise.",
            "另一侧的权重在这次更新中有变化。优化器的这一步被跳过：范数非有限、loss scaler、"
            "学习率为 0，或梯度累积的计数不同。",
        ),
        fix=Text(
            "Look for what decides whether the optimizer steps, and at the rate of this update.",
            "请检查决定优化器是否更新的条件，以及该次更新的学习率。",
        ),
        mechanism=_ACTS,
    )


def _state_finding(
    reference: Mapping[int, CapturedStep], candidate: Mapping[int, CapturedStep]
) -> Finding | None:
    """Find Adam's moments that bfloat16 holds exactly on one side alone."""
    for moment in (Phase.FIRST_MOMENT, Phase.SECOND_MOMENT):
        for step in sorted(reference.keys() & candidate.keys()):
            steps = reference[step], candidate[step]
            shares = [rounded_share(each.of(moment)) for each in steps]
            for side, own, other in ((Side.REFERENCE, 0, 1), (Side.CANDIDATE, 1, 0)):
                rounded, exact = shares[own], shares[other]
                if rounded is None or exact is None:
                    continue
                if rounded > _ROUNDED.value and exact < _NOT_ROUNDED.value:
                    return _rounded_finding(moment, side, shares, steps)
    return None


def rounded_share(records: Mapping[Address, TensorRecord]) -> float | None:
    """Return which share of the nonzero elements bfloat16 holds exactly; None without any."""
    exact = sum(record.bfloat16 - record.zeros for record in records.values())
    total = sum(record.num_elements - record.zeros for record in records.values())
    return exact / total if total else None


def _rounded_finding(
    moment: str,
    side: Side,
    shares: Sequence[float | None],
    steps: tuple[CapturedStep, CapturedStep],
) -> Finding:
    return Finding(
        id="optimizer.state_dtype",
        rung=Rung.OPTIMIZER,
        severity=Severity.ERROR,
        title=Text(
            f"Adam's moments hold bfloat16 numbers alone in the {side.value}",
            f"{_ZH[side]}的 Adam 动量全部是 bfloat16 数值",
        ),
        reference=shares[0],
        candidate=shares[1],
        evidence=_places(*steps),
        why=Text(
            f"Share of {moment} that bfloat16 holds exactly: {shares[0]:.4f} in the reference, "
            f"{shares[1]:.4f} in the candidate. With 8 bits a moment of decay 0.999 stops changing "
            "once a new gradient adds less than 1/256 of it.",
            f"{moment} 中可由 bfloat16 精确表示的比例：参考 {shares[0]:.4f}，被测 {shares[1]:.4f}。"
            "只有 8 位有效位时，新梯度的贡献小于 1/256 后，衰减率 0.999 的动量不再变化。",
        ),
        fix=Text(
            "Keep the optimizer's states in float32 on both sides.",
            "两侧都用 float32 保存优化器状态。",
        ),
        mechanism=_ACTS,
    )


def _places(reference: CapturedStep, candidate: CapturedStep) -> tuple[Evidence, ...]:
    return (
        Evidence(reference.source, Side.REFERENCE, key=f"step {reference.step}, update 0"),
        Evidence(candidate.source, Side.CANDIDATE, key=f"step {candidate.step}, update 0"),
    )


def _result(findings: Sequence[Finding], count: int, worst: float) -> RungResult:
    if findings:
        title = findings[0].title
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        return RungResult(Rung.OPTIMIZER, RungStatus.DIVERGED, summary, tuple(findings))
    return RungResult(
        Rung.OPTIMIZER,
        RungStatus.ALIGNED,
        Text(
            f"The first update of {count} parameters agrees within {worst:.2g}, as its gradients "
            "do.",
            f"{count} 个参数的第一次更新一致（误差不超过 {worst:.2g}），梯度亦然。",
        ),
    )
