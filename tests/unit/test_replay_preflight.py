"""Every way in which recorded rollouts can fail to fit is named before the run trains on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from align.core.rollout_record import RolloutRecord
from dumps.inject.launch import prepare
from dumps.inject.plan import ReplayPlan, Source, read_plan, write_plan
from dumps.inject.preflight import Candidate
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import prove
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay, written_problems
from dumps.inject.tokenizer_facts import TokenizerFacts

EOS = 9
RUN = Candidate(
    num_samples=2,
    max_prompt_length=4,
    max_response_length=3,
    eos_ids=frozenset({EOS}),
    asks_log_probs=True,
)
VOCABULARY = {"a": 1, "b": 2, "<eos>": EOS}


class Tokenizer:
    eos_token = "<eos>"

    def __init__(self, vocabulary: dict[str, int] = VOCABULARY) -> None:
        self._vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary


def row(step: int, ask: int, sample: int) -> RolloutRecord:
    """Two responses a prompt: one ends with eos, one is cut at three tokens."""
    ids = (ask, EOS) if sample == 0 else (ask, 1, 2)
    return RolloutRecord(
        prompt=f"ask {ask}",
        prompt_ids=(ask, 7),
        response_ids=ids,
        log_probs=(-1.0,) * len(ids),
        score=float(sample),
        step=step,
        dataset_index=ask,
        sample_index=sample,
        finish_reason="stop" if sample == 0 else "length",
        uid=f"{step}-{ask}",
    )


ROWS = [row(step, ask, sample) for step in (1, 2) for ask in (step, step + 2) for sample in (0, 1)]
ASKED = {step: [Prompt((ask, 7), f"ask {ask}", ask) for ask in (step, step + 2)] for step in (1, 2)}


def replay(tmp_path: Path, rows: list[RolloutRecord] = ROWS, **plan) -> Replay:
    made = ReplayPlan(tmp_path / "run", **plan)
    prepare(made, rows, [], TokenizerFacts(VOCABULARY, "<eos>"))
    return Replay(made)


def check(replay: Replay, run: Candidate = RUN, steps=(1, 2), asked=ASKED, tokenizer=None) -> None:
    replay.check(run, steps, asked, tokenizer or Tokenizer())


def changed(**change) -> list[RolloutRecord]:
    return [replace(ROWS[0], **change), *ROWS[1:]]


def test_rollouts_that_fit_are_let_through_and_leave_no_problem(tmp_path: Path) -> None:
    fitting = replay(tmp_path)
    check(fitting)
    assert written_problems(fitting.plan) == []
    said = json.loads((fitting.plan.folder / "checked.jsonl").read_text())
    assert said == {"steps": [1, 2], "prompts": 4, "tokenizer": True}


@pytest.mark.parametrize(
    ("rows", "run", "named"),
    [
        (ROWS, replace(RUN, num_samples=3), r"n has changed: 2 prompts with 2 .* n = 3"),
        (ROWS[:-1], RUN, "step 2: n has changed: 1 prompts with 1, 1 prompts"),
        (ROWS, replace(RUN, max_prompt_length=1), "recorded prompts are longer than .* 1 tokens"),
        (ROWS, replace(RUN, max_response_length=2), "recorded responses are longer than"),
        (ROWS, replace(RUN, max_response_length=5), "cut at 3 tokens, and this run's limit is 5"),
        (
            ROWS,
            replace(RUN, eos_ids=frozenset({8})),
            "not end with this run's eos .8. but with 9",
        ),
        (changed(response_ids=(1, 2), finish_reason="stop"), RUN, "eos was stripped"),
        (changed(response_ids=(1, 2), finish_reason=None), RUN, "eos was stripped"),
        (changed(response_ids=()), RUN, "without token ids"),
        (changed(log_probs=None), RUN, "engine's log_probs"),
        (changed(extras={"response_mask": [1, 0]}), RUN, "several turns"),
        (changed(sample_index=1), RUN, "recorded twice"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, rows, run, named: str) -> None:
    with pytest.raises(ReplayRefused, match=named):
        check(replay(tmp_path, rows), run)


def test_a_missing_step_stops_the_run_unless_it_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ReplayRefused, match="1 steps of this run are not recorded: 3"):
        check(replay(tmp_path), steps=(1, 2, 3))
    lenient = replay(tmp_path, allows_missing=True)
    check(lenient, steps=(1, 2, 3))
    ((problem, allowed),) = written_problems(lenient.plan)
    assert allowed and "not recorded: 3" in str(problem)


def test_missing_rows_are_allowed_but_nothing_graver(tmp_path: Path) -> None:
    lenient = replay(tmp_path, allows_missing=True)
    with pytest.raises(ReplayRefused, match="n has changed"):
        check(lenient, replace(RUN, num_samples=3))


def test_prompts_of_another_step_are_told_from_prompts_that_are_nowhere(tmp_path: Path) -> None:
    swapped = {1: ASKED[2], 2: ASKED[1]}
    with pytest.raises(ReplayRefused, match="recorded at step 2: the row order differs, use --ord"):
        check(replay(tmp_path), asked=swapped)
    strange = {1: [Prompt((6, 6), "what"), ASKED[1][0]]}
    with pytest.raises(ReplayRefused, match=r"step 1: 1 of 2 prompts are not recorded: 'what'$"):
        check(replay(tmp_path), asked=strange)


def test_a_prompt_with_other_ids_after_templating_is_named_with_the_place(tmp_path: Path) -> None:
    templated = {1: [Prompt((1, 8), "ask 1", 1), ASKED[1][1]]}
    with pytest.raises(ReplayRefused, match=r"other ids, from token 1 on \(2 tokens recorded, 2"):
        check(replay(tmp_path), asked=templated)


def test_another_tokenizer_is_named_with_a_token(tmp_path: Path) -> None:
    with pytest.raises(ReplayRefused, match=r"1 of 3 tokens have other ids.*'b': 2 reco"):
        check(replay(tmp_path), tokenizer=Tokenizer({**VOCABULARY, "b": 5}))


def test_recorded_rewards_need_a_score_in_every_row(tmp_path: Path) -> None:
    without = [replace(r, score=None) for r in ROWS]
    with pytest.raises(ReplayRefused, match="without a score"):
        check(replay(tmp_path, without, rewards=Source.RECORDED))
    check(replay(tmp_path, without))


def test_log_probs_can_be_done_without(tmp_path: Path) -> None:
    check(replay(tmp_path, changed(log_probs=None), log_probs=Source.RECOMPUTED))


def test_several_generations_of_a_step_get_each_group_once(tmp_path: Path) -> None:
    """As DAPO generates; verl's own cache gave the whole step again at each call."""
    several = replay(tmp_path)
    assert several.give(1, ASKED[1][1:]) == [1]
    assert several.give(1, ASKED[1][:1]) == [0]
    with pytest.raises(ReplayRefused, match="asked more often than recorded: data set row 1"):
        several.give(1, ASKED[1][:1])


def test_a_process_that_refused_stops_the_others(tmp_path: Path) -> None:
    worker = replay(tmp_path)
    driver = Replay(worker.plan)
    driver.refuse_what_was_swallowed()
    with pytest.raises(ReplayRefused):
        worker.record(1, 0, 5)
    with pytest.raises(ReplayRefused, match="group 0 has no response number 5"):
        driver.refuse_what_was_swallowed()


def test_the_plan_reads_back_as_written(tmp_path: Path) -> None:
    plan = ReplayPlan(tmp_path, Source.RECOMPUTED, Source.RECORDED, True, True)
    assert read_plan(write_plan(plan)) == plan


def consume(replay: Replay, step: int, places: list[int | None], **change) -> None:
    rows = []
    for place in places:
        record = row(step, 0, 0) if place is None else replay.step(step).records[place]  # type: ignore[union-attr]
        rows.append((place, record.prompt_ids, record.response_ids, record.score))
    if "response" in change:
        rows[0] = (rows[0][0], rows[0][1], change["response"], rows[0][3])
    if "score" in change:
        rows[0] = (*rows[0][:3], change["score"])
    replay.consumed("driver-0", step, rows)


def test_the_proof_holds_where_all_was_consumed_as_recorded(tmp_path: Path) -> None:
    whole = replay(tmp_path)
    for step in (1, 2):
        consume(whole, step, [0, 1, 2, 3])
    proof = prove(whole.plan)
    assert (proof.steps, proof.rows, proof.identical, proof.holds) == (2, 8, 8, True)
    assert proof.recorded_sha256 == proof.consumed_sha256
    assert (proof.out_of_order, proof.scores_differ, proof.left_over) == (0, 0, 0)


def test_the_proof_names_a_changed_response(tmp_path: Path) -> None:
    one = replay(tmp_path)
    with pytest.raises(ReplayRefused, match="row 0 reaches training with another response"):
        consume(one, 1, [0, 1, 2, 3], response=(1, 1))
    proof = prove(one.plan)
    assert (proof.mismatches, proof.holds) == (1, False)
    assert proof.first == ("step 1 row 0: another response than recorded row 0",)
    assert proof.recorded_sha256 != proof.consumed_sha256


def test_the_proof_counts_order_scores_generated_and_left_over_rows(tmp_path: Path) -> None:
    one = replay(tmp_path)
    consume(one, 1, [1, 0, None], score=7.0)
    proof = prove(one.plan)
    assert (proof.out_of_order, proof.scores_differ, proof.generated, proof.left_over) == (
        1,
        1,
        1,
        2,
    )
    assert not proof.holds


def test_rows_recorded_as_text_are_proven_by_their_responses(tmp_path: Path) -> None:
    one = replay(tmp_path, [replace(r, prompt_ids=None) for r in ROWS])
    records = [r for r in ROWS if r.step == 1]
    one.consumed("d", 1, [(i, r.prompt_ids, r.response_ids, 0.0) for i, r in enumerate(records)])
    proof = prove(one.plan)
    assert proof.holds and proof.recorded_sha256 == proof.consumed_sha256


def test_a_run_that_consumed_nothing_proves_nothing(tmp_path: Path) -> None:
    assert not prove(replay(tmp_path).plan).holds
