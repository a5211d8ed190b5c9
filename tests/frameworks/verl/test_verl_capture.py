"""`align capture` on the real verl: its V1 and V0 trainers on CPU, two steps each, FSDP2.

Each trainer runs twice on the same recorded rollouts, with a capture and without one, by the recipe
of the recorded runs, whose plugin makes verl's registries know a CPU.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

from align.core.rung import Rung, RungStatus
from align.ladder import climb
from align.referee.link import LinkVerdict
from align.referee.referee import rule
from dumps.readers import captured_step
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.verify import verify
from tests.frameworks.verl.runs import STEPS, Pair

NEEDS = ("v1_captured", "v1_plain", "v0_captured", "v0_plain")
EOS = 2  # <|im_end|> of the tiny tokenizer


@pytest.fixture(params=["v1", "v0"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.getfixturevalue(request.param)


def test_losses_and_gradients_are_bitwise_those_of_a_run_without_capture(pair: Pair) -> None:
    plain, captured = pair.plain.numerics(), pair.captured.numerics()
    assert plain.keys() == captured.keys() == set(STEPS)
    assert plain[1]["actor/grad_norm"] > 0
    assert captured == plain


def test_nothing_of_the_capture_failed_and_every_step_is_whole(pair: Pair) -> None:
    verified = verify(pair.captured.capture)
    assert not (pair.captured.capture / "capture.log").exists()
    assert verified.is_whole
    assert verified.whole_steps == STEPS


def test_rollouts_are_recorded_with_ids_and_log_probs_as_the_engine_gave_them(pair: Pair) -> None:
    lines = (pair.plain.out.parent / "rollouts.jsonl").read_text().splitlines()
    engine = {row["key"]: row for row in map(json.loads, lines) if int(row["key"][0]) in STEPS}
    rows = [row for step in STEPS for row in rollouts(pair.captured.capture, step)]
    assert len(rows) == len(engine) == 64
    for row in rows:
        # the V0 trainer numbers responses in the batch's order, so they are found by content
        prefix = f"{row['step']}:{row['dataset_index']}:"
        same = [given for key, given in engine.items() if key.startswith(prefix)]
        twin = next(given for given in same if given["response_ids"] == row["response_ids"])
        assert twin["prompt_ids"] == row["prompt_ids"]
        assert np.array_equal(np.float32(twin["logprobs"]), np.float32(row["log_probs"]))
        assert row["finish_reason"] == ("stop" if row["response_ids"][-1] == EOS else "length")


def test_texts_and_scores_are_those_of_verls_own_dump(pair: Pair) -> None:
    for step in STEPS:
        lines = (pair.plain.out / f"rollout/{step}.jsonl").read_text().splitlines()
        theirs = sorted(
            (r["input"], r["output"], r["gts"], r["score"]) for r in map(json.loads, lines)
        )
        rows = rollouts(pair.captured.capture, step)
        own = sorted((r["prompt"], r["response"], r["ground_truth"], r["score"]) for r in rows)
        assert [row[:3] for row in own] == [row[:3] for row in theirs]
        assert [row[3] for row in own] == pytest.approx([row[3] for row in theirs])


def test_gradient_norms_add_up_to_the_one_verl_clips_by(pair: Pair) -> None:
    for step in STEPS:
        part = captured_step.read(pair.captured.capture / f"steps/{step:06d}/actor-0.safetensors")
        norms = [
            math.sqrt(sum(part.gradient_squares(update).values()))
            for update in range(part.num_updates)
        ]
        assert len(norms) == 2  # 8 prompts, mini-batches of 4
        assert np.mean(norms) == pytest.approx(
            pair.plain.logged()[step]["actor/grad_norm"], rel=1e-5
        )


def test_the_kl_terms_of_micro_batches_add_up_to_the_one_verl_logs(pair: Pair) -> None:
    for step in STEPS:
        part = captured_step.read(pair.captured.capture / f"steps/{step:06d}/actor-0.safetensors")
        terms = [t for name, t in part.tensors.items() if name.endswith(".kl_loss")]
        assert len(terms) >= part.num_updates == 2
        mean = sum(map(float, terms)) / part.num_updates
        assert mean == pytest.approx(pair.plain.logged()[step]["actor/kl_loss"], rel=1e-5, abs=1e-9)


def test_the_first_update_of_a_step_is_on_policy(pair: Pair) -> None:
    part = captured_step.read(pair.captured.capture / "steps/000001/actor-0.safetensors")
    old, new = (
        part.tensors[f"update.0.micro.0.{name}"].astype(np.float64)
        for name in ("old_log_probs", "log_probs")
    )
    assert np.abs(new - old).max() < 1e-5


def test_the_batch_is_what_verl_trains_on(pair: Pair) -> None:
    capture = pair.captured.capture
    batch = read_inputs(capture / "trainer_inputs/000001.safetensors", lambda _: None)
    advantages, mask = batch.tensor("advantages"), batch.tensor("response_mask")
    assert advantages is not None and mask is not None
    logged = pair.plain.logged()[1]
    assert advantages[mask != 0].max() == pytest.approx(logged["critic/advantages/max"], rel=1e-6)
    assert advantages[mask != 0].min() == pytest.approx(logged["critic/advantages/min"], rel=1e-6)
    part = captured_step.read(capture / "steps/000001/actor-0.safetensors")
    ids, ends = (part.tensors[f"update.0.micro.0.{n}"] for n in ("input_ids", "cu_seqlens"))
    packed = {tuple(ids[a:b].tolist()) for a, b in itertools.pairwise(ends.tolist())}
    whole, seen = batch.tensor("input_ids"), batch.tensor("attention_mask")
    assert whole is not None and seen is not None
    assert packed <= {tuple(row[on != 0].tolist()) for row, on in zip(whole, seen, strict=True)}


def test_the_rungs_of_a_report_work_on_a_captured_run(pair: Pair) -> None:
    result = {r.name: r for r in climb(data(pair), data(pair)).rungs}
    for rung in (
        Rung.CONFIG,
        Rung.TOKENIZER,
        Rung.ROLLOUT,
        Rung.TOKENS,
        Rung.REWARD,
        Rung.ADVANTAGE,
        Rung.LOSS,
        Rung.BACKWARD,
    ):
        assert result[rung].status is RungStatus.ALIGNED, result[rung].summary
    assert "64/64" in result[Rung.TOKENS].summary.en
    assert data(pair).framework_version == "0.9.1"
    assert data(pair).run.unknown == ()


def test_every_link_of_a_captured_step_is_what_verl_declares(pair: Pair) -> None:
    """The referee's formulas, held against verl's own numbers.

    The recorded responses come from another training, so from its first update on their engine
    held other weights than this trainer, and the referee has to see it.
    """
    for step in STEPS:
        links = {link.name: link for link in rule(data(pair), step).links}
        differing = {name for name, link in links.items() if link.verdict is LinkVerdict.DIFFERS}
        assert differing == (set() if step == 1 else {"log_probs, trainer - rollout"})
        for name in ("advantages", "actor/pg_loss", "actor/kl_loss", "actor/loss"):
            assert links[name].verdict is LinkVerdict.AS_DECLARED, links[name]


def test_a_capture_takes_at_most_two_hundredths_of_the_steps(pair: Pair) -> None:
    """By its own clocks, without its sketches; what comes before the first step is step 0 there."""
    logged = pair.captured.logged()
    steps_s = sum(logged[step]["timing_s/step"] for step in STEPS)
    spent_s = sketched_s = 0.0
    for name in ("driver-0", "actor-0"):
        lines = (pair.captured.capture / f"capture_timings/{name}.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["step"] in STEPS]
        spent_s += sum(row["tap_s"] for row in rows)
        sketched_s += sum(row["sketch_s"] for row in rows)
    print(f"the capture takes {spent_s:.3f} s of {steps_s:.2f} s: {spent_s / steps_s:.2%}")
    print(f"sketching weights, gradients and updates takes {sketched_s / steps_s:.2%} more")
    assert spent_s / steps_s <= 0.02


def data(pair: Pair) -> RunData:
    return RunData(discover([pair.captured.capture]))


def rollouts(capture: Path, step: int) -> list[dict]:
    return pq.read_table(capture / f"rollout/step={step:06d}.parquet").to_pylist()
