"""Backward: gradient norms of recorded updates, within a run and from equal inputs across two.

Within a run the reported norm must be that of its own gradients. Across runs the first update of
equal rows and log_probs, whose losses are as declared, must have the same gradient: a whole factor
k is a scaling that no loss shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.referee.captured_updates import recorded_updates
from align.referee.recompute import NORM
from align.referee.update import Update
from dumps.store.run_data import RunData

SAME_NORM = Threshold(
    0.02, source="four times the largest step-1 deviation (0.5 %) of the zoo's clean pairs"
)
SAME_LOG_PROBS = Threshold(
    0.01, source="vendors' decision tree: log-probabilities that differ by more are no rounding"
)
_EXACT = Threshold(1e-4, "float32 rounding of log_probs of some nats, times a hundred")
_LARGEST_FACTOR = 1024
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Factor:
    """``norm`` is ``other`` times a whole number, or that part of it.

    Args:
        where: update and step, for readers.
        source: file it was read from.
        times: k or 1/k, k from 2.
    """

    where: str
    step: int
    source: str
    norm: float
    other: float
    times: float


@dataclass(frozen=True, slots=True)
class Norms:
    """One run's norms.

    Args:
        first: its first update with the norm of its gradients.
        num_reported: updates that report a norm beside that of their gradients.
        factors: those of them that are off by a whole factor.
    """

    first: Update
    num_reported: int
    factors: tuple[Factor, ...]

    @property
    def misreported(self) -> Factor | None:
        """The factor by which every update's reported norm is off, None unless it is one."""
        one = len({factor.times for factor in self.factors}) == 1
        return self.factors[0] if one and len(self.factors) == self.num_reported else None


def compare_norms(reference: RunData, candidate: RunData) -> RungResult | None:
    """Judge both runs' gradient norms; None where they are not recorded on both sides."""
    ours, theirs = read_norms(reference), read_norms(candidate)
    later = _later_update(reference, candidate)
    if ours is None or theirs is None:
        return None if later is None else _result(_later_finding(*later))
    sides = ((Side.REFERENCE, ours.misreported), (Side.CANDIDATE, theirs.misreported))
    wrong = [(side, factor) for side, factor in sides if factor is not None]
    if len(wrong) == 1:
        return _result(_norm_finding(*wrong[0]))
    if wrong:
        return RungResult(Rung.BACKWARD, RungStatus.UNDECIDED, _BOTH)
    scaled = scaled_gradient(ours.first, theirs.first)
    if scaled is not None:
        return _result(_scale_finding(ours.first, theirs.first, scaled))
    if later is not None:
        return _result(_later_finding(*later))
    return RungResult(Rung.BACKWARD, RungStatus.ALIGNED, _aligned(ours.first, theirs.first))


def _later_update(reference: RunData, candidate: RunData) -> tuple[Update, Update] | None:
    """Find the first update of equal rows, log_probs and losses whose gradients' norms differ.

    Only after a first update whose norms agree, and as long as every update before does.
    """
    for number, (ours, theirs) in enumerate(
        zip(recorded_updates(reference), recorded_updates(candidate), strict=False)
    ):
        mine, other = _gradient_norm(ours), _gradient_norm(theirs)
        if not mine or not other or not _same_losses(ours, theirs):
            return None
        if abs(other - mine) > SAME_NORM.value * mine:
            return (ours, theirs) if number else None
    return None


def _gradient_norm(update: Update) -> float:
    """Return the norm of the gradients, else the reported one; 0 where neither is recorded."""
    own = update.norm_of_gradients
    return float(update.reported.get(NORM, 0.0)) if own is None else own


def _same_losses(ours: Update, theirs: Update) -> bool:
    """Whether two updates have the same inputs, nearly to the bit, and report the same losses."""
    if not same_inputs(ours, theirs):
        return False
    own = ours.mask.bool()
    pairs = [(ours.log_probs, theirs.log_probs), (ours.advantages, theirs.advantages)]
    if any(float((a - b)[own].abs().mean()) > _EXACT.value for a, b in pairs):
        return False
    shared = (ours.reported.keys() & theirs.reported.keys()) - {NORM}
    return all(abs(ours.reported[name] - theirs.reported[name]) <= _EXACT.value for name in shared)


def read_norms(run: RunData) -> Norms | None:
    """Read a run's norms, an update at a time; None where no gradients' norm is recorded."""
    first: Update | None = None
    factors: list[Factor] = []
    num_reported = 0
    for update in recorded_updates(run):
        own, reported = update.norm_of_gradients, update.reported.get(NORM)
        if own is None:
            continue
        first = first or update
        if reported is None or (own == 0 and reported == 0):
            continue
        num_reported += 1
        times = whole_factor(reported, own)
        if times is not None:
            factors.append(_factor(update, reported, own, times))
    return None if first is None else Norms(first, num_reported, tuple(factors))


def same_inputs(ours: Update, theirs: Update) -> bool:
    """Whether two updates work on the same rows, under the same model to rounding."""
    if (ours.step, ours.number) != (theirs.step, theirs.number):
        return False
    if not (ours.rows.equal(theirs.rows) and ours.mask.equal(theirs.mask)):
        return False
    own = ours.mask.bool()
    apart = (ours.log_probs - theirs.log_probs)[own].abs().mean()
    weights = (ours.advantages - theirs.advantages)[own].abs().mean()
    return float(apart) <= SAME_LOG_PROBS.value and float(weights) <= SAME_LOG_PROBS.value


def scaled_gradient(ours: Update, theirs: Update) -> Factor | None:
    """Return by what whole factor the candidate's gradient is larger or smaller."""
    mine, other = ours.norm_of_gradients, theirs.norm_of_gradients
    if not mine or not other or not same_inputs(ours, theirs):
        return None
    times = whole_factor(other, mine)
    return None if times is None else _factor(theirs, other, mine, times)


def whole_factor(norm: float, other: float) -> float | None:
    """Return k or 1/k where one norm is k times the other, k from 2; None otherwise."""
    if not (norm > 0 and other > 0):
        return None
    ratio = norm / other
    k = round(max(ratio, 1 / ratio)) if min(ratio, 1 / ratio) > 0 else 0
    near = abs(max(ratio, 1 / ratio) - k) <= SAME_NORM.value * k
    if not 2 <= k <= _LARGEST_FACTOR or not near:
        return None
    return float(k) if ratio > 1 else 1 / k


def _factor(update: Update, norm: float, other: float, times: float) -> Factor:
    where = f"update {update.number} of step {update.step}"
    return Factor(where, update.step, str(update.source), norm, other, times)


def _norm_finding(side: Side, factor: Factor) -> Finding:
    times, where = factor.times, factor.where
    return Finding(
        id="backward.grad_norm",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value} takes the gradient norm to be {times:g} times that of its gradients "
            f"in every update, {factor.norm:.6g} for {factor.other:.6g} at step {factor.step}",
            f"{_ZH[side]}每次更新所用的梯度范数都是其真实梯度范数的 {times:g} 倍，"
            f"第 {factor.step} 步为 {factor.norm:.6g}，实际 {factor.other:.6g}",
        ),
        reference=factor.norm if side is Side.REFERENCE else factor.other,
        candidate=factor.norm if side is Side.CANDIDATE else factor.other,
        evidence=(
            Evidence(factor.source, side, key=f"{NORM}, {where}", values=(factor.norm,)),
            Evidence(
                f"L2 norm of all gradients, float64, {where}",
                side,
                key=NORM,
                values=(factor.other,),
            ),
        ),
        why=Text(
            f"Clipping divides by this norm: updates above clip_grad become {times:g} times too "
            "small, and the logged norm misleads. The other run's norm is that of its gradients.",
            f"裁剪会除以该范数：超过 clip_grad 的更新会被多缩小到 1/{times:g}，"
            "日志中的范数也不可信。另一侧的范数与其梯度一致。",
        ),
        fix=Text(
            "Look at what sums the norm over ranks: replicated parameters (norms, embeddings under "
            "tensor or context parallel) must count once.",
            "检查跨 rank 累加范数的代码：重复存放的参数（张量并行、上下文并行下的 norm 与 "
            "embedding）只应计一次。",
        ),
        mechanism=Mechanism(Rung.BACKWARD, Strength.SEMANTIC, (NORM,)),
    )


def _later_finding(ours: Update, theirs: Update) -> Finding:
    where = f"update {ours.number + 1} of step {ours.step}"
    norms = (_gradient_norm(ours), _gradient_norm(theirs))
    return Finding(
        id="backward.first_divergence",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"{where} has the same rows, log_probs and losses in both runs and another gradient: "
            f"its norm is {norms[1]:.6g} in the candidate, {norms[0]:.6g} in the reference",
            f"第 {ours.step} 步第 {ours.number + 1} 次更新在两侧的行、log_probs 与损失都相同，"
            f"而梯度不同：被测的范数为 {norms[1]:.6g}，参考为 {norms[0]:.6g}",
        ),
        reference=norms[0],
        candidate=norms[1],
        evidence=(
            Evidence(str(ours.source), Side.REFERENCE, key=NORM, values=norms[:1]),
            Evidence(str(theirs.source), Side.CANDIDATE, key=NORM, values=norms[1:]),
        ),
        why=Text(
            "The updates before it agree, so it is not the model's backward: gradients were not "
            "set to zero after the update before, a micro-batch was lost or counted twice.",
            "之前的更新都一致，因此不是模型的反向本身：上一次更新之后梯度没有清零，"
            "或有 micro-batch 丢失或被重复计入。",
        ),
        fix=Text(
            "Check zero_grad (zero_grad_buffer in Megatron) before every update, and the number of "
            "micro-batches that accumulate.",
            "请检查每次更新之前的 zero_grad（Megatron 为 zero_grad_buffer）"
            "与累积的 micro-batch 数。",
        ),
        mechanism=Mechanism(Rung.BACKWARD, Strength.SEMANTIC, (NORM,)),
    )


def _scale_finding(reference: Update, update: Update, factor: Factor) -> Finding:
    times, where = factor.times, factor.where
    num_micro_batches = len(set(update.micro_batches.tolist()))
    k = round(max(times, 1 / times))
    hint, hint_zh = "", ""
    if k == num_micro_batches:
        hint = f" {k} is its number of micro-batches an update."
        hint_zh = f"{k} 恰为每次更新的 micro-batch 数。"
    return Finding(
        id="backward.scale",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"from equal rows, log_probs and advantages the candidate's gradient is {times:g} "
            f"times the reference's at step {update.step}",
            f"在相同的样本、log_probs 与 advantage 下，第 {update.step} 步被测的梯度是参考的 "
            f"{times:g} 倍",
        ),
        reference=factor.other,
        candidate=factor.norm,
        evidence=(
            Evidence(
                str(reference.source),
                Side.REFERENCE,
                key=f"norm of gradients, {where}",
                values=(factor.other,),
            ),
            Evidence(
                str(update.source),
                Side.CANDIDATE,
                key=f"norm of gradients, {where}",
                values=(factor.norm,),
            ),
        ),
        why=Text(
            f"Equal inputs and one loss have one gradient; a whole factor is a scaling.{hint} "
            "Clipping and the weight of weight decay change with it; Adam hides the rest.",
            f"输入与损失相同则梯度相同；整数倍说明存在缩放。{hint_zh}"
            "裁剪以及权重衰减的相对大小随之改变，其余被 Adam 掩盖。",
        ),
        fix=Text(
            "Divide the loss of a micro-batch by their number (or by the counts of the whole "
            "mini-batch) before backward, and average gradients over data-parallel ranks once.",
            "在反向之前把 micro-batch 的损失除以其个数（或除以整个 mini-batch 的总数），"
            "数据并行各 rank 的梯度只平均一次。",
        ),
        mechanism=Mechanism(Rung.BACKWARD, Strength.SEMANTIC, (NORM,)),
    )


def _result(finding: Finding) -> RungResult:
    title = finding.title
    return RungResult(
        Rung.BACKWARD,
        RungStatus.DIVERGED,
        Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
        (finding,),
    )


def _aligned(ours: Update, theirs: Update) -> Text:
    if same_inputs(ours, theirs):
        return Text(
            "Both runs report the norms of their own gradients, and from equal inputs at step "
            f"{ours.step} these have no factor.",
            f"两次运行报告的范数都与各自的梯度一致；第 {ours.step} 步输入相同，"
            "梯度之间没有倍数关系。",
        )
    return Text(
        "Both runs report the norms of their own gradients; no update has equal inputs.",
        "两次运行报告的范数都与各自的梯度一致；没有输入相同的更新。",
    )


_BOTH = Text(
    "Neither run reports the norm of its own gradients.", "两次运行报告的范数都与各自的梯度不符。"
)
