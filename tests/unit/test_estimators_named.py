"""Runs of every estimator: silent as configured, and each mistake in the advantages named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from align.core.rung import RungResult, RungStatus
from align.ladder import compare_advantages
from align.rollout.estimators import ESTIMATORS, Reads, Settings, Whitening
from align.rollout.group_advantages import Scaling
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.trained_runs import PROMPTS, SCORES, N, trained_run

COUNT, WIDTH, GAMMA = PROMPTS * N, 5, 0.9
LENGTHS = np.array([3, 5, 1, 2, 4, 4, 2, 5, 3, 1, 5, 2])
MASK = (np.arange(WIDTH) < LENGTHS[:, None]).astype(np.float64)
REWARDS = np.zeros((COUNT, WIDTH))
REWARDS[np.arange(COUNT), LENGTHS - 1] = SCORES
BY_PROMPT, BY_PLACE = np.arange(COUNT) // N, np.arange(COUNT) % N
SETTINGS = Settings(Scaling(by_std=True), GAMMA)
GROUPED = [name for name, each in ESTIMATORS.items() if Reads.GROUPS in each.reads]
WHITENED = [name for name, each in ESTIMATORS.items() if Reads.WHITENING in each.reads]


def computed(
    name: str,
    groups: np.ndarray = BY_PROMPT,
    rewards: np.ndarray = REWARDS,
    settings: Settings = SETTINGS,
) -> np.ndarray:
    return ESTIMATORS[name].advantages(rewards, MASK, groups, settings)


def estimated_run(
    folder: Path, name: str, advantages: np.ndarray | None, uid: str | None = None
) -> RunData:
    """Write a step of 12 rows with ragged responses.

    Args:
        advantages: [12, 5]; None records none.
        uid: of every row; None numbers the prompts.
    """
    responses = [
        (np.arange(length) + 100 * (row + 1)).tolist() for row, length in enumerate(LENGTHS)
    ]
    own = {} if uid is None else {"uid": uid}
    extras = [{"response_ids": ids, **own} for ids in responses]
    trained_run(folder, estimator=f"{name}, gamma: {GAMMA}", extras=extras)
    numpy_files = pytest.importorskip("safetensors.numpy")
    padded = np.array([ids + [0] * (WIDTH - len(ids)) for ids in responses])
    prompts, mask = np.repeat(np.arange(PROMPTS), N) + 10, MASK.astype(np.int64)
    tensors = {
        "input_ids": np.concatenate([prompts[:, None], padded], axis=1),
        "attention_mask": np.concatenate([np.ones((COUNT, 1), np.int64), mask], axis=1),
        "responses": padded,
        "response_mask": mask,
        "token_level_rewards": REWARDS.astype(np.float32),
    }
    if advantages is not None:
        tensors["advantages"] = np.ascontiguousarray(advantages.astype(np.float32))
    numpy_files.save_file(tensors, folder / "trainer_inputs" / "1.safetensors")
    return RunData(discover([folder]))


@pytest.fixture
def judge(tmp_path: Path) -> Callable[[str, np.ndarray], RungResult]:
    """Compare a run as configured with one that has these advantages."""

    def compared(name: str, advantages: np.ndarray) -> RungResult:
        right = estimated_run(tmp_path / "right", name, computed(name))
        return compare_advantages(right, estimated_run(tmp_path / "wrong", name, advantages))

    return compared


Judge = Callable[[str, np.ndarray], RungResult]


def named(result: RungResult) -> tuple[list[str], str]:
    """Give the ids of the findings and the title of the first."""
    assert result.status is RungStatus.DIVERGED
    return [finding.id for finding in result.findings], result.findings[0].title.en


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages_as_configured_are_aligned(judge: Judge, name: str) -> None:
    result = judge(name, computed(name))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bfloat16_advantages_are_no_difference(judge: Judge, name: str) -> None:
    bits = computed(name).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    assert judge(name, bits.view(np.float32)).status is RungStatus.ALIGNED


@pytest.mark.parametrize("name", GROUPED)
def test_wrong_groups_are_named(judge: Judge, name: str) -> None:
    ids, title = named(judge(name, computed(name, BY_PLACE)))
    assert ids == ["advantage.groups"]
    assert "compares rows i, i + 4, i + 8" in title


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_rewards_of_the_row_before_are_named(judge: Judge, name: str) -> None:
    ids, title = named(judge(name, computed(name, rewards=np.roll(REWARDS, 1, axis=0))))
    assert ids == ["advantage.scores_moved"]
    assert "the scores of 1 row before" in title


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_factor_is_named(judge: Judge, name: str) -> None:
    ids, title = named(judge(name, computed(name) * -1.7))
    assert (ids, "by -1.7" in title) == (["advantage.scaled"], True)


@pytest.mark.parametrize("name", GROUPED)
def test_rows_in_another_order_are_named(judge: Judge, name: str) -> None:
    order = np.array([3, 7, 1, 0, 2, 11, 10, 4, 6, 5, 9, 8])
    rows = computed(name)[:, :1][order]
    ids, title = named(judge(name, rows * MASK))
    assert (ids, "of another" in title) == (["advantage.permuted"], True)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_no_formula_gives_is_named_so_and_quoted(judge: Judge, name: str) -> None:
    result = judge(name, computed(name) ** 3 + 0.3 * MASK)
    ids, title = named(result)
    assert ids == ["advantage.recomputed_differs"]
    assert "the candidate's advantages are not those of its" in title
    recorded, expected, score = result.findings[0].evidence[:3]
    assert recorded.key == expected.key and recorded.values != expected.values
    assert score.key == "score"


@pytest.mark.parametrize("name", WHITENED)
@pytest.mark.parametrize(
    ("whitening", "words"),
    [(Whitening.NONE, "does not whiten"), (Whitening.CENTRED, "divides by no deviation")],
)
def test_advantages_that_are_not_whitened_are_named(
    judge: Judge, name: str, whitening: Whitening, words: str
) -> None:
    raw = computed(name, settings=replace(SETTINGS, whitening=whitening))
    result = judge(name, raw)
    ids, title = named(result)
    assert (ids, words in title) == (["advantage.normalization"], True)
    assert "Whiten over the response mask" in result.findings[0].fix.en


@pytest.mark.parametrize("name", ["grpo", "grpo_passk"])
def test_advantages_without_the_std_are_named(judge: Judge, name: str) -> None:
    raw = computed(name, settings=Settings(Scaling(by_std=False)))
    ids, title = named(judge(name, raw))
    assert (ids, "does not divide" in title) == (["advantage.normalization"], True)


def test_another_discount_is_named(judge: Judge) -> None:
    name = "reinforce_plus_plus"
    ids, title = named(judge(name, computed(name, settings=replace(SETTINGS, gamma=1.0))))
    assert ids == ["advantage.discount"]
    assert "with γ = 1, where 0.9 is configured" in title


OTHERS = [
    (configured, other)
    for configured, own in ESTIMATORS.items()
    for other, each in ESTIMATORS.items()
    if each is not own and not other.endswith("_vectorized")
    if (configured, other) != ("rloo_vectorized", "rloo")  # they depart for a group of one alone
]


@pytest.mark.parametrize(("configured", "other"), OTHERS)
def test_the_formula_of_another_estimator_is_named(
    judge: Judge, configured: str, other: str
) -> None:
    result = judge(configured, computed(other))
    ids, title = named(result)
    assert ids == ["advantage.estimator"]
    assert f"the candidate computes {other}, where {configured} is configured" in title
    finding = result.findings[0]
    assert f"按 {other} 计算，而配置为 {configured}" in finding.title.zh
    assert "adv_estimator" in finding.fix.en and "adv_estimator" in finding.fix.zh


def test_rloo_computed_as_grpo_without_the_std_is_named(judge: Judge) -> None:
    ids, title = named(judge("rloo", computed("grpo", settings=Settings(Scaling(by_std=False)))))
    assert ids == ["advantage.estimator"]
    assert "computes grpo (not divided by the std)" in title


def test_groups_that_give_no_number_explain_nothing(tmp_path: Path) -> None:
    one = np.zeros(COUNT, np.int64)  # regrouped by place, each row of one prompt is alone
    own = computed("grpo_passk", one)
    runs = [
        estimated_run(tmp_path / side, "grpo_passk", advantages, uid="the one prompt")
        for side, advantages in (("a", own), ("b", own**2 + 0.3 * MASK))
    ]
    assert named(compare_advantages(*runs))[0] == ["advantage.recomputed_differs"]


@pytest.mark.parametrize("name", ["remax", "gdpo", "optimal_token_baseline", "gae"])
def test_an_estimator_that_is_not_recomputed_is_said_to_be(tmp_path: Path, name: str) -> None:
    runs = [estimated_run(tmp_path / side, name, computed("grpo")) for side in "ab"]
    result = compare_advantages(*runs)
    assert (result.status, result.missing[0].side) == (RungStatus.MISSING, "both")
    assert name in result.summary.en and name in result.summary.zh


def test_a_discount_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    estimator = "reinforce_plus_plus, gamma: null"
    runs = [trained_run(tmp_path / side, estimator=estimator) for side in "ab"]
    result = compare_advantages(*runs)
    assert result.status is RungStatus.MISSING
    assert "advantage.gamma, which is not known" in result.summary.en


def test_runs_of_different_estimators_are_not_laid_beside_each_other(tmp_path: Path) -> None:
    runs = [estimated_run(tmp_path / name, name, computed(name)) for name in ("rloo", "opo")]
    result = compare_advantages(*runs)
    assert result.status is RungStatus.MISSING
    assert "the reference is configured with rloo, the candidate with opo" in result.summary.en


def test_the_vectorised_function_of_the_same_formula_is_compared(tmp_path: Path) -> None:
    names = ("grpo", "grpo_vectorized")
    runs = [estimated_run(tmp_path / name, name, computed(name)) for name in names]
    assert compare_advantages(*runs).status is RungStatus.ALIGNED


def test_a_run_without_advantages_is_said_to_lack_those_of_its_estimator(tmp_path: Path) -> None:
    runs = [estimated_run(tmp_path / side, "opo", None) for side in "ab"]
    result = compare_advantages(*runs)
    assert (result.status, "needs opo's scores" in result.summary.en) == (RungStatus.MISSING, True)
