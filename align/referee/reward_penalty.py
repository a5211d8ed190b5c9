"""Reward rung of PPO: is the KL penalty between scores and rewards the one that is configured?

token_level_rewards = token_level_scores - coefficient · KL(policy || reference), token by token
(`align.objective.gae.penalise_kl`). An invariant within one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from torch import Tensor

from align.config.normalise import effective
from align.core.config_value import EffectiveConfig
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective.kl import kl_estimate
from align.referee.step_batch import StepBatch, batches
from dumps.store.run_data import RunData

_TENSORS = (
    *("token_level_rewards", "token_level_scores"),
    *("old_log_probs", "ref_log_prob", "response_mask"),
)
_OFF = Threshold(2.0**-7, "two bfloat16 roundings (2^-8 each) of a token's KL")
_FELT = Threshold(1e-4, "KL below it, in nats, is float32 rounding of two log_probs of some nats")
_POLICIES = ("old_log_probs", "rollout_log_probs")
_ESTIMATORS = ("kl", "low_var_kl", "mse", "abs")
_FLOAT32 = 2.0**-23
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Declared:
    """The penalty of a configuration.

    Args:
        coefficient: 0 where none is taken.
        policy: whose log_probs the KL is of.
    """

    estimator: str
    coefficient: float
    policy: str = "old_log_probs"


@dataclass(frozen=True, slots=True)
class Penalised:
    """One run's steps whose penalty can be told from rounding.

    Args:
        differing: the first step whose penalty is not the declared one.
        found: estimator and coefficient that give it, None where no tried ones do.
    """

    side: Side
    declared: Declared
    differing: StepBatch | None
    found: Declared | None


def compare_penalties(reference: RunData, candidate: RunData) -> RungResult | None:
    """Hold both runs' rewards against their scores; None where that is not recorded of both."""
    sides = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    examined = [_examined(side, run) for side, run in sides]
    both = [run for run in examined if run is not None]
    if len(both) < len(examined):
        return None
    wrong = [run for run in both if run.differing is not None]
    if len(wrong) == 1:
        finding = _finding(wrong[0])
        title = finding.title
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        return RungResult(Rung.REWARD, RungStatus.DIVERGED, summary, (finding,))
    if wrong:
        return RungResult(Rung.REWARD, RungStatus.UNDECIDED, _BOTH)
    if not any(run.declared.coefficient for run in both):
        return None  # nothing is taken, which says nothing of the scores
    return RungResult(Rung.REWARD, RungStatus.ALIGNED, _ALIGNED)


def declared_penalty(config: EffectiveConfig) -> Declared | None:
    """Return what a configuration takes from the reward; None where its coefficient moves."""
    values = {name: value.value for name, value in config.values.items()}
    estimator = str(values.get("reward.kl_penalty") or "kl")
    if values.get("reward.use_kl_in_reward") is not True:
        return Declared(estimator, 0.0)
    coefficient = values.get("reward.kl_coef")
    if values.get("reward.kl_control") != "fixed" or not isinstance(coefficient, int | float):
        return None
    return Declared(estimator, float(coefficient))


def _examined(side: Side, run: RunData) -> Penalised | None:
    declared = declared_penalty(effective(run.configs, run.run.manifest))
    if declared is None:
        return None
    num_steps = 0
    for batch in filter(_is_felt, batches(run, (*_TENSORS, _POLICIES[1]))):
        num_steps += 1
        if _is_off(batch, declared):
            return Penalised(side, declared, batch, _fitting(batch))
    return Penalised(side, declared, None, None) if num_steps else None


def _is_felt(batch: StepBatch) -> bool:
    """Tell whether policy and reference differ enough for a penalty to show."""
    found = batch.get(*_TENSORS)
    if found is None:
        return False
    _, _, policy, reference, mask = found
    return bool((((policy - reference) * mask).abs() > _FELT.value).any())


def _is_off(batch: StepBatch, declared: Declared) -> bool:
    taken, scores, penalty = _taken(batch, declared)
    allowed = _OFF.value * penalty.abs() + 4 * _FLOAT32 * scores.abs().clamp(min=1.0)
    return bool(((taken - penalty).abs() > allowed).any())


def _taken(batch: StepBatch, declared: Declared) -> tuple[Tensor, Tensor, Tensor]:
    """Return what was taken from the scores of counting tokens, the scores, and the penalty."""
    rewards, scores, _, reference, mask = batch.get(*_TENSORS) or ()
    policy, own = batch.tensors[declared.policy], mask.bool()
    kl = kl_estimate(policy, reference, declared.estimator)[own]
    return (scores - rewards)[own], scores[own], declared.coefficient * kl


def _fitting(batch: StepBatch) -> Declared | None:
    policies = [name for name in _POLICIES if name in batch.tensors]
    for policy, estimator in product(policies, _ESTIMATORS):
        taken, _, kl = _taken(batch, Declared(estimator, 1.0, policy))
        square = float(kl @ kl)
        tried = Declared(estimator, float(taken @ kl) / square if square else 0.0, policy)
        if not _is_off(batch, tried):
            return tried
    return None


def _finding(run: Penalised) -> Finding:
    batch, declared, side = run.differing, run.declared, run.side
    assert batch is not None
    taken, _, penalty = _taken(batch, declared)
    at = int((taken - penalty).abs().argmax())
    title = Text(
        f"the {side.value} takes {_said(run.found)} from its scores, and {_said(declared)} is "
        f"configured (step {batch.step})",
        f"{_ZH[side]}从得分中扣除的是{_said_zh(run.found)}，而配置为{_said_zh(declared)}"
        f"（第 {batch.step} 步）",
    )
    worst = (float(taken[at]), float(penalty[at]))
    return Finding(
        id="reward.kl_penalty",
        rung=Rung.REWARD,
        severity=Severity.ERROR,
        title=title,
        reference=worst[0] if side is Side.REFERENCE else worst[1],
        candidate=worst[0] if side is Side.CANDIDATE else worst[1],
        evidence=(
            Evidence(
                batch.source, side, key="token_level_scores - token_level_rewards", values=worst[:1]
            ),
            Evidence(
                f"{declared.coefficient:g} · {declared.estimator}(old_log_probs, ref_log_prob)",
                side,
                key="the same token",
                values=worst[1:],
            ),
        ),
        why=Text(
            "The penalty is in every token's reward, and through it in advantages, returns and "
            "the critic; the other run's is the one it configures.",
            "该惩罚进入每个 token 的奖励，并由此进入 advantage、return 与 critic；"
            "另一侧与其配置一致。",
        ),
        fix=Text(
            "Compare sign, estimator and coefficient where rewards are made of scores "
            "(verl apply_kl_penalty: algorithm.kl_penalty, algorithm.kl_ctrl.kl_coef).",
            "请对照由得分得到奖励处的符号、估计式与系数"
            "（verl apply_kl_penalty：algorithm.kl_penalty、algorithm.kl_ctrl.kl_coef）。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def _said(penalty: Declared | None) -> str:
    if penalty is None:
        return "another penalty"
    if abs(penalty.coefficient) < _FLOAT32:
        return "no KL"
    whose = " of the engine's log_probs" if penalty.policy != _POLICIES[0] else ""
    return f"{penalty.coefficient:.3g} times the KL{whose} ({penalty.estimator})"


def _said_zh(penalty: Declared | None) -> str:
    if penalty is None:
        return "另一种惩罚"
    if abs(penalty.coefficient) < _FLOAT32:
        return "零（无 KL）"
    whose = "推理引擎 log_probs 的 " if penalty.policy != _POLICIES[0] else ""
    return f" {penalty.coefficient:.3g} 倍的{whose}KL（{penalty.estimator}）"


_ALIGNED = Text(
    "Both runs take the configured KL from their scores.",
    "两次运行从得分中扣除的 KL 都与配置一致。",
)
_BOTH = Text(
    "Neither run takes the configured KL from its scores.",
    "两次运行从得分中扣除的 KL 都与配置不符。",
)
