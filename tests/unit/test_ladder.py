"""The verdict: blame by mechanism, or say that the cause is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from align.core.finding import Finding, Mechanism, Severity, Strength, Symptom
from align.core.recording import missing_artifact
from align.core.rung import RUNGS, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, VerdictStatus
from align.ladder import comparisons, explains, judge

EMPTY = Text("", "")


def finding(
    id: str,
    rung: Rung,
    severity: Severity = Severity.ERROR,
    mechanism: Mechanism | None = None,
    symptom: Symptom | None = None,
) -> Finding:
    text = Text(id, id)
    return Finding(id, rung, severity, text, 1, 2, (), text, text, mechanism, symptom)


def ladder(*findings: Finding, aligned: tuple[Rung, ...] = ()) -> list[RungResult]:
    results = []
    for rung in RUNGS:
        own = tuple(f for f in findings if f.rung is rung)
        if own:
            errors = any(f.severity is Severity.ERROR for f in own)
            status = RungStatus.DIVERGED if errors else RungStatus.UNDECIDED
            results.append(RungResult(rung, status, EMPTY, own))
        elif rung in aligned:
            results.append(RungResult(rung, RungStatus.ALIGNED, EMPTY))
        else:
            lacks = (missing_artifact(rung),)
            results.append(RungResult(rung, RungStatus.MISSING, EMPTY, missing=lacks))
    return results


REWARD_AT_STEP_1 = finding(
    "curves.critic.score.mean.offset",
    Rung.CURVES,
    symptom=Symptom("critic/score/mean", Rung.REWARD, 1, 1, noise_sized=False),
)
TEMPERATURE = finding(
    "config.rollout.temperature",
    Rung.CONFIG,
    mechanism=Mechanism(Rung.ROLLOUT, Strength.SEMANTIC),
)
LEARNING_RATE = finding(
    "config.actor.lr", Rung.CONFIG, mechanism=Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC)
)
WORLD_SIZE = finding(
    "config.trainer.world_size",
    Rung.CONFIG,
    Severity.WARNING,
    mechanism=Mechanism(Rung.FORWARD, Strength.NUMERIC),
)


def test_a_semantic_difference_upstream_explains_a_symptom_at_the_first_step() -> None:
    verdict = judge(ladder(TEMPERATURE, REWARD_AT_STEP_1))
    assert verdict.status is VerdictStatus.DIVERGED
    assert (verdict.rung, verdict.finding_id) == (Rung.CONFIG, "config.rollout.temperature")
    assert verdict.confidence is Confidence.HIGH


def test_a_learning_rate_is_not_blamed_for_a_reward_before_the_first_update() -> None:
    verdict = judge(ladder(LEARNING_RATE, REWARD_AT_STEP_1))
    assert verdict.status is VerdictStatus.DIVERGED
    assert (verdict.rung, verdict.cause) == (Rung.CURVES, None)
    assert "config.actor.lr" in verdict.sentence.en
    assert verdict.next_step is not None


def test_a_learning_rate_explains_a_reward_after_the_first_update() -> None:
    assert REWARD_AT_STEP_1.symptom is not None
    later = replace(REWARD_AT_STEP_1, symptom=replace(REWARD_AT_STEP_1.symptom, step=2))
    assert judge(ladder(LEARNING_RATE, later)).finding_id == "config.actor.lr"


def test_a_resumed_run_has_trained_under_the_difference_before_its_first_recorded_step() -> None:
    resumed = Symptom("critic/score/mean", Rung.REWARD, 101, 101, noise_sized=False)
    assert explains(LEARNING_RATE.mechanism, resumed)


def test_a_numeric_difference_is_not_blamed_for_more_than_noise() -> None:
    kl = finding(
        "curves.actor.kl_loss.ratio",
        Rung.CURVES,
        Severity.WARNING,
        symptom=Symptom("actor/kl_loss", Rung.LOSS, 10, 1, noise_sized=False),
    )
    verdict = judge(ladder(WORLD_SIZE, kl))
    assert verdict.status is VerdictStatus.UNDECIDED
    assert (verdict.finding_id, verdict.cause) == ("curves.actor.kl_loss.ratio", None)


def test_a_signature_explains_its_own_metric_at_any_size() -> None:
    dtype = finding(
        "config.rollout.dtype",
        Rung.CONFIG,
        mechanism=Mechanism(Rung.ROLLOUT, Strength.NUMERIC, ("training/rollout_probs_diff*",)),
    )
    diff = finding(
        "curves.training.rollout_probs_diff_mean",
        Rung.CURVES,
        symptom=Symptom("training/rollout_probs_diff_mean", Rung.FORWARD, 1, 1, noise_sized=False),
    )
    assert judge(ladder(dtype, diff)).finding_id == "config.rollout.dtype"


def test_among_explanations_the_most_severe_and_then_the_earliest_rung_is_named() -> None:
    order = finding(
        "data.order.first_divergent_step",
        Rung.DATA,
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )
    suspicion = finding(
        "environment.verl.0.7",
        Rung.ENVIRONMENT,
        Severity.WARNING,
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )
    verdict = judge(ladder(suspicion, TEMPERATURE, order, REWARD_AT_STEP_1))
    assert verdict.finding_id == "config.rollout.temperature"
    assert verdict.cause is not None and "data.order.first_divergent_step" in verdict.cause.en


def test_a_known_difference_without_a_symptom_is_named_with_medium_confidence() -> None:
    verdict = judge(ladder(TEMPERATURE))
    assert verdict.finding_id == "config.rollout.temperature"
    assert verdict.confidence is Confidence.MEDIUM


def test_a_difference_without_effect_on_numbers_is_never_a_cause() -> None:
    offload = finding(
        "config.ref.offload", Rung.CONFIG, mechanism=Mechanism(Rung.CONFIG, Strength.NONE)
    )
    verdict = judge(ladder(offload, REWARD_AT_STEP_1))
    assert verdict.cause is None
    assert verdict.rung is Rung.CURVES


def test_aligned_rungs_give_an_aligned_verdict_that_lists_what_was_not_recorded() -> None:
    verdict = judge(ladder(aligned=(Rung.CONFIG, Rung.CURVES)))
    assert verdict.status is VerdictStatus.ALIGNED
    assert Rung.TOKENS in verdict.not_recorded
    assert Rung.CONFIG not in verdict.not_recorded


def test_nothing_on_both_sides_is_not_comparable() -> None:
    verdict = judge(ladder())
    assert verdict.status is VerdictStatus.NOT_COMPARABLE
    assert verdict.next_step is not None


@pytest.mark.parametrize("severity", list(Severity))
def test_a_verdict_is_never_aligned_while_a_rung_is_open(severity: Severity) -> None:
    odd = finding("rollout.odd", Rung.ROLLOUT, severity)
    verdict = judge(ladder(odd, aligned=(Rung.CONFIG,)))
    assert verdict.status is not VerdictStatus.ALIGNED


def test_every_rung_of_the_ladder_is_compared_by_something() -> None:
    assert set(comparisons()) == set(RUNGS)
