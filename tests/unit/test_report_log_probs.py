"""`align report` says what shape trainer - rollout log_probs have, where steps are recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="the referee reads tensors")

from safetensors.numpy import save_file

from align.core.finding import Severity
from align.core.rung import Rung, RungResult
from align.ladder import climb, compare_forward
from align.referee.step_batch import log_prob_batch
from dumps.store.discover import discover
from dumps.store.run_data import RunData

ROWS, PROMPT, RESPONSE, VOCABULARY = 32, 16, 64, 40
Arrays = dict[str, npt.NDArray[np.generic]]


def drawn(seed: int, temperature: float = 1.0) -> tuple[npt.NDArray[np.float64], ...]:
    """Give log_probs of drawn tokens at temperature 1 and at another: float64 [b, r] each."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((ROWS, RESPONSE, VOCABULARY))
    tokens = rng.integers(0, VOCABULARY, (ROWS, RESPONSE, 1))

    def log_probs(scale: float) -> npt.NDArray[np.float64]:
        scaled = logits / scale
        top = scaled.max(axis=-1, keepdims=True)
        total = np.log(np.exp(scaled - top).sum(axis=-1, keepdims=True)) + top
        found: npt.NDArray[np.float64] = np.take_along_axis(scaled - total, tokens, -1)[..., 0]
        return found

    return log_probs(1.0), log_probs(temperature)


def step(trainer: npt.NDArray[np.float64], rollout: npt.NDArray[np.float64], seed: int) -> Arrays:
    noise = 0.003 * np.random.default_rng(seed + 50).standard_normal(trainer.shape)
    ones = np.ones((ROWS, PROMPT + RESPONSE))
    ids = np.random.default_rng(0).integers(0, VOCABULARY, ones.shape)
    return {
        "input_ids": ids,
        "responses": np.ascontiguousarray(ids[:, PROMPT:]),
        "old_log_probs": (trainer + noise).astype(np.float32),
        "rollout_log_probs": rollout.astype(np.float32),
        "response_mask": np.ones((ROWS, RESPONSE), dtype=np.int64),
        "attention_mask": ones.astype(np.int64),
    }


def run(folder: Path, tensors: Arrays) -> RunData:
    (folder / "trainer_inputs").mkdir(parents=True)
    save_file(tensors, folder / "trainer_inputs" / "000001.safetensors")
    return RunData(discover([folder]))


def shapes(result: RungResult) -> list[str]:
    return [f.title.en for f in result.findings if "log_prob_shape" in f.id]


def temperature_left_out(seed: int) -> Arrays:
    trainer, engine = drawn(seed, temperature=0.6)
    return step(trainer, engine, seed)


def one_token_off(seed: int) -> Arrays:
    values, _ = drawn(seed)
    return step(np.roll(values, 1, axis=1), values, seed)


def first_token_alone(seed: int) -> Arrays:
    values, _ = drawn(seed)
    trainer = values.copy()
    trainer[:, 0] -= 1.0
    return step(trainer, values, seed)


def chunk_ends(seed: int) -> Arrays:
    values, _ = drawn(seed)
    trainer = values.copy()
    chunk = (PROMPT + RESPONSE) // 4
    trainer[:, [n * chunk - PROMPT for n in range(1, 4) if n * chunk >= PROMPT]] -= 1.5
    return step(trainer, values, seed)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (temperature_left_out, "temperatures differ"),
        (one_token_off, "moved by one token"),
        (first_token_alone, "first token alone"),
        (chunk_ends, "context parallel size of 2"),
    ],
)
def test_a_shape_is_named_in_the_run_that_has_it(fault: object, named: str, tmp_path: Path) -> None:
    values, _ = drawn(1)
    reference = run(tmp_path / "a", step(values, values, 1))
    candidate = run(tmp_path / "b", fault(2))  # type: ignore[operator]
    result = compare_forward(reference, candidate)
    (said,) = shapes(result)
    assert said.startswith("In the candidate") and named in said
    assert {f.severity for f in result.findings if "log_prob_shape" in f.id} == {Severity.INFO}
    table = next(t for t in result.tables if t.id == "forward.log_probs")
    assert [str(row[0]) for row in table.rows] == ["reference", "candidate"]


def test_its_clean_twin_has_a_table_and_no_note(tmp_path: Path) -> None:
    sides = [run(tmp_path / str(s), step(drawn(s)[0], drawn(s)[0], s)) for s in (1, 2)]
    result = compare_forward(*sides)
    assert shapes(result) == []
    (table,) = (t for t in result.tables if t.id == "forward.log_probs")
    assert [str(row[-1]) for row in table.rows] == ["rounding", "rounding"]


def test_the_verdict_is_not_moved_by_a_shape(tmp_path: Path) -> None:
    values, _ = drawn(1)
    clean = [run(tmp_path / name, step(values, values, 1)) for name in ("a", "b")]
    faulty = run(tmp_path / "c", temperature_left_out(2))
    before, after = climb(*clean), climb(clean[0], faulty)
    assert before.verdict.status is after.verdict.status
    forward = next(r for r in after.rungs if r.name is Rung.FORWARD)
    assert len(shapes(forward)) == 1


def test_runs_without_recorded_steps_are_left_as_they_are(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "console.log").write_text("step:1 - critic/score/mean:0.5\n")
    sides = [RunData(discover([tmp_path / name])) for name in ("a", "b")]
    result = compare_forward(*sides)
    assert not [t for t in result.tables if t.id == "forward.log_probs"]
    assert log_prob_batch(sides[0], 1) is None
