"""Losses of recorded DPO runs beside their configuration, and the pairs of two runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

from align.core.finding import Severity
from align.core.rung import RungResult, RungStatus
from align.ladder import compare_losses
from align.referee.preference_rung import compare_preferences
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.preference_runs import Drawn, Loss, Made, Numbers, declared, logistic, pairs

STEPS = {step: pairs(step) for step in (1, 2, 3)}


def judged(folder: Path, candidate: Made, reference: Made | None = None) -> RungResult:
    both = (reference or Made()).run(folder / "reference"), candidate.run(folder / "candidate")
    result = compare_preferences(*both)
    assert result is not None and both[0].problems == both[1].problems == []
    return result


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


@pytest.mark.parametrize(
    "twin",
    [
        Made(),
        Made(micro=2),
        Made(micro=1, padding=5),
        Made(precomputed=True),
        Made(steps={step: own[::-1] for step, own in STEPS.items()}),
        Made(steps={1: STEPS[1], 2: STEPS[2][:2], 3: STEPS[3]}),  # one of two ranks
        Made(steps={2: STEPS[2]}),
    ],
    ids=["repeat", "micro-batches", "padding", "precomputed", "order within a step", "part", "one"],
)
def test_a_clean_twin_has_no_finding(tmp_path: Path, twin: Made) -> None:
    result = judged(tmp_path, twin)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, []), result.summary.en
    assert "recomputed in float64" in result.summary.en


def test_the_ladder_judges_pairs(tmp_path: Path) -> None:
    both = Made().run(tmp_path / "one"), Made(factor=2.0).run(tmp_path / "other")
    assert ids(compare_losses(*both)) == ["loss.preference_scale"]
    assert compare_losses(both[0], both[0]).status is RungStatus.ALIGNED


def test_a_run_without_pairs_is_left_to_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    none = RunData(discover([tmp_path / "empty"]))
    assert compare_preferences(Made().run(tmp_path / "run"), none) is None


def hinge(pair: Drawn) -> float:
    return max(0.0, 1 - 0.1 * pair.margin)


def ipo(pair: Drawn) -> float:
    ratios = [
        sum(map(float.__sub__, *both)) / len(both[0])
        for both in zip(pair.policy, pair.reference, strict=True)
    ]
    return (ratios[0] - ratios[1] - 5) ** 2


def smoothed(pair: Drawn) -> float:
    strength = 0.1 * pair.margin
    return 0.9 * logistic(strength) + 0.1 * logistic(-strength)


@pytest.mark.parametrize(
    ("loss", "named", "words"),
    [
        (lambda pair: -declared(pair), "sign", "sign of the loss wrong"),
        (lambda pair: logistic(-0.1 * pair.margin), "exchanged", "prefers the rejected"),
        (lambda pair: logistic(0.1 * pair.policy_margin), "reference", "leaves the reference"),
        (lambda pair: logistic(0.5 * pair.margin), "beta", "beta = 0.5"),
        (lambda pair: logistic(0.1234 * pair.margin), "beta", "beta = 0.1234"),
        (hinge, "type", "loss_type hinge"),
        (ipo, "type", "loss_type ipo"),
        (smoothed, "smoothing", "smooths labels by 0.1"),
        (lambda pair: declared(pair) / 2, "scale", "multiplies the loss by 0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_loss_is_named(tmp_path: Path, loss: Loss, named: str, words: str) -> None:
    result = judged(tmp_path, Made(loss=loss))
    (finding,) = result.findings
    assert (finding.id, finding.severity) == (f"loss.preference_{named}", Severity.ERROR)
    assert words in finding.title.en and "the candidate" in finding.title.en
    assert result.status is RungStatus.DIVERGED
    assert finding.evidence[0].values != finding.evidence[1].values


def test_the_wrong_side_is_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, Made(), Made(loss=hinge)).findings
    assert "the reference computes the loss of loss_type hinge" in finding.title.en
    assert finding.reference != finding.candidate


def test_the_declared_type_is_what_counts(tmp_path: Path) -> None:
    one, other = Made(loss=hinge, loss_type="hinge"), Made(loss=declared)
    assert ids(judged(tmp_path, one, other)) == []


@pytest.mark.parametrize(
    "loss", [lambda pair: declared(pair) + 1e-3 * math.sin(pair.number), lambda pair: math.nan]
)
def test_a_loss_of_no_known_formula_is_named_without_a_cause(tmp_path: Path, loss: Loss) -> None:
    (finding,) = judged(tmp_path, Made(loss=loss)).findings
    assert (finding.id, finding.severity) == ("loss.preference", Severity.ERROR)
    assert "cause is unknown" in finding.why.en


def test_a_setting_of_many_digits_needs_a_second_micro_batch(tmp_path: Path) -> None:
    steps = {2: STEPS[2]}
    candidate = Made(loss=lambda pair: logistic(0.12345 * pair.margin), steps=steps)
    assert ids(judged(tmp_path, candidate, Made(steps=steps))) == ["loss.preference"]


def test_two_runs_that_depart_alike_are_undecided(tmp_path: Path) -> None:
    result = judged(tmp_path, Made(loss=hinge), Made(loss=hinge))
    assert (result.status, ids(result)) == (RungStatus.UNDECIDED, [])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Made(divergence="forward_kl"), "f_divergence_type=forward_kl is not judged"),
        (Made(loss_type="discopop"), "discopop is not judged"),
        (Made(has_reference=False), "reference's log_probs are not recorded"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path: Path, made: Made, words: str) -> None:
    result = judged(tmp_path, made)
    assert (result.status, ids(result)) == (RungStatus.MISSING, [])
    assert words in result.summary.en


def moved(both: tuple[Numbers, Numbers], by: float) -> tuple[Numbers, Numbers]:
    chosen, rejected = (
        tuple(number - by * (1 if place % 2 else -1) for place, number in enumerate(numbers))
        for numbers in both
    )
    return chosen, rejected


def changed(reference: float = 0.0, policy: float = 0.0) -> dict[int, list[Drawn]]:
    """Return the steps with log_probs of another model, losses being those that they give."""
    return {
        step: [
            replace(
                pair,
                reference=moved(pair.reference, reference),
                policy=moved(pair.policy, policy),
            )
            for pair in own
        ]
        for step, own in STEPS.items()
    }


@pytest.mark.parametrize(
    ("reference", "policy", "named"),
    [
        (0.05, 0.0, ["loss.preference_ref_log_prob"]),
        (1e-3, 0.0, ["loss.preference_ref_log_prob"]),
        (0.0, 1e-3, ["loss.preference_log_probs"]),
        (0.05, 0.05, ["loss.preference_ref_log_prob", "loss.preference_log_probs"]),
        (2e-3, 3e-3, []),  # both in bfloat16, say
        (5e-5, 0.0, []),
    ],
)
def test_a_model_that_gives_equal_pairs_other_log_probs_is_named(
    tmp_path: Path, reference: float, policy: float, named: list[str]
) -> None:
    assert ids(judged(tmp_path, Made(steps=changed(reference, policy)))) == named


def test_a_policy_is_not_compared_once_it_has_been_trained(tmp_path: Path) -> None:
    later = Made(steps={2: STEPS[2]}), Made(steps={2: changed(policy=0.05)[2]})
    assert ids(judged(tmp_path, later[1], later[0])) == []


def shifted(pair: Drawn) -> Drawn:
    chosen, rejected = ((own[0] + 0.5, *own[1:]) for own in pair.reference)
    return replace(pair, reference=(chosen, rejected))


def test_precomputed_sums_of_another_reference_are_named(tmp_path: Path) -> None:
    steps = {step: [shifted(pair) for pair in own] for step, own in STEPS.items()}
    result = judged(tmp_path, Made(steps=steps, precomputed=True))
    assert ids(result) == ["loss.preference_ref_log_prob"]


def exchanged(pair: Drawn) -> Drawn:
    return Drawn(
        pair.number, pair.rejected, pair.chosen, (pair.policy[1], pair.policy[0]),
        (pair.reference[1], pair.reference[0]),
    )  # fmt: skip


def with_eos(pair: Drawn) -> Drawn:
    longer = [(*own, -1.0) for own in pair.policy], [(*own, -1.0) for own in pair.reference]
    ids_ = (*pair.chosen, 99), (*pair.rejected, 99)
    policy, reference = longer
    return Drawn(pair.number, *ids_, (policy[0], policy[1]), (reference[0], reference[1]))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({1: STEPS[1], 2: STEPS[3], 3: STEPS[2]}, "pairs come in another order"),
        ({s: [exchanged(p) for p in own] for s, own in STEPS.items()}, "rejected exchanged"),
        ({s: [with_eos(p) for p in own] for s, own in STEPS.items()}, "the prompts are the same"),
    ],
    ids=["order", "exchanged", "eos"],
)
def test_other_pairs_at_a_step_are_named(
    tmp_path: Path, steps: dict[int, list[Drawn]], words: str
) -> None:
    (finding,) = judged(tmp_path, Made(steps=steps)).findings
    assert (finding.id, finding.severity) == ("loss.preference_pairs", Severity.ERROR)
    assert words in finding.title.en
    assert ("at step 2" in finding.title.en) == (steps[1] == STEPS[1])


def test_other_gradients_of_equal_losses_are_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, Made(micro=2, norm=4.0)).findings
    assert (finding.id, finding.severity) == ("loss.preference_gradient", Severity.ERROR)
    assert "norm is 2 times" in finding.title.en
    assert [finding.reference, finding.candidate] == pytest.approx([2, 4])


def test_gradients_of_nearly_the_same_norm_are_not_named(tmp_path: Path) -> None:
    assert ids(judged(tmp_path, Made(norm=2.02))) == []


def test_a_wrong_loss_is_named_before_its_gradient(tmp_path: Path) -> None:
    assert ids(judged(tmp_path, Made(loss=hinge, norm=4.0))) == ["loss.preference_type"]


def test_a_reference_that_follows_the_policy_is_named(tmp_path: Path) -> None:
    steps = {step: [replace(p, reference=p.policy) for p in own] for step, own in STEPS.items()}
    (finding,) = judged(tmp_path, Made(steps=steps)).findings
    assert (finding.id, finding.severity) == ("loss.preference_ref_moved", Severity.ERROR)
    assert "at step 2" in finding.title.en
    synchronised = Made(steps=steps, syncs=True), Made(syncs=True)
    assert ids(judged(tmp_path / "both", *synchronised)) == []
