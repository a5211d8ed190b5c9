"""Every link of a step: rewards, probabilities, advantages, losses, norm; and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the referee computes with torch")

import torch

from align.cli.referee import command
from align.core.errors import RunError
from align.objective.aggregate import LossAggregation
from align.referee.link import LinkVerdict
from align.referee.objective import Normalisation, Objective
from align.referee.recompute import TOTAL, recompute
from align.referee.referee import rule, who_is_right
from align.referee.update import Update
from tests.unit.test_advantage_rung import BY_PLACE, BY_PROMPT, grpo
from tests.unit.trained_runs import PROMPTS, SCORES, N, trained_run
from tests.unit.updated_runs import Loss, updated_run

RIGHT, WRONG = LinkVerdict.AS_DECLARED, LinkVerdict.DIFFERS


def test_a_step_as_declared_has_no_link_that_differs(tmp_path: Path) -> None:
    ruling = rule(updated_run(tmp_path / "a"), 1)
    verdicts = {link.name: link.verdict for link in ruling.links}
    assert not ruling.differs
    assert verdicts["actor/pg_loss"] is verdicts["actor/loss"] is RIGHT
    assert verdicts["actor/grad_norm"] is RIGHT
    assert verdicts["rewards"] is LinkVerdict.NOT_RECORDED


def test_the_link_that_breaks_is_shown_with_what_is_computed_instead(tmp_path: Path) -> None:
    right, wrong = updated_run(tmp_path / "a"), updated_run(tmp_path / "b", Loss(kl_coef=-0.05))
    rulings = rule(right, 1), rule(wrong, 1)
    links = {link.name: link for link in rulings[1].links}
    assert (links["actor/kl_loss"].verdict, links["actor/loss"].verdict) == (RIGHT, WRONG)
    note = links["actor/loss"].note
    assert note is not None and "subtracts the KL term" in note.en
    who = {name: text.en for name, text in who_is_right(*rulings)}
    assert who["actor/loss"] == "the reference is right"
    assert who["actor/kl_loss"] == "both as declared"


def test_rewards_and_advantages_of_the_dump_are_as_declared(tmp_path: Path) -> None:
    links = {x.name: x for x in rule(trained_run(tmp_path, advantages=grpo(BY_PROMPT)), 1).links}
    assert (links["rewards"].verdict, links["advantages"].verdict) == (RIGHT, RIGHT)


def test_rewards_that_are_not_the_dumped_scores_differ(tmp_path: Path) -> None:
    moved = (0.75, *SCORES[1:])
    run = trained_run(tmp_path, trained=moved, advantages=grpo(BY_PROMPT, moved))
    links = {link.name: link for link in rule(run, 1).links}
    assert (links["rewards"].verdict, links["advantages"].verdict) == (WRONG, RIGHT)
    assert (links["rewards"].recorded, links["rewards"].recomputed) == (0.75, 1.0)


@pytest.mark.parametrize(
    ("advantages", "note"),
    [
        (grpo(BY_PLACE), "rows i, i + 4"),
        (np.array([s - np.mean(SCORES[i // N * N :][:N]) for i, s in enumerate(SCORES)]), "divide"),
        (grpo(BY_PROMPT) * np.sqrt(N / (N - 1)), "Bessel"),
        (grpo(BY_PROMPT) * 1.3, "by 1.3"),
        (grpo(BY_PROMPT) ** 3, "no other formula"),
    ],
    ids=["grouping", "std", "Bessel", "factor", "unknown"],
)
def test_other_advantages_are_named_by_the_formula_that_gives_them(
    tmp_path: Path, advantages: np.ndarray, note: str
) -> None:
    assert len(advantages) == PROMPTS * N
    links = {x.name: x for x in rule(trained_run(tmp_path, advantages=advantages), 1).links}
    found = links["advantages"]
    assert found.verdict is WRONG
    assert found.note is not None and note in found.note.en


def test_a_step_that_is_not_recorded_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step 7.*--step 1"):
        rule(updated_run(tmp_path / "a"), 7)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(6)), data=st.data())
def test_the_loss_of_a_mini_batch_knows_neither_order_nor_micro_batches(
    seed: int, order: list[int], data: st.DataObject
) -> None:
    objective = Objective(
        aggregation=data.draw(st.sampled_from(list(LossAggregation))),
        normalisation=Normalisation.MINI_BATCH,
        clip_low=0.2,
        clip_high=0.2,
        dual=data.draw(st.sampled_from([None, 3.0])),
        kl_coef=0.1,
        kl_type=data.draw(st.sampled_from(["k1", "k2", "k3", "abs"])),
        entropy_coef=0.01,
        gspo=data.draw(st.booleans()),
    )
    whole = update(seed, list(range(6)), [0] * 6)
    split = update(seed, order, [0, 0, 0, 1, 1, 2])
    amount = recompute(whole, objective)[TOTAL]
    assert recompute(split, objective)[TOTAL].value == pytest.approx(amount.value, rel=1e-12)
    assert amount.rounding < 1e-4


def update(seed: int, order: list[int], micro_batches: list[int]) -> Update:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(5, 6, 4, dtype=torch.float64, generator=draw)[:, order]
    mask = (torch.arange(4)[None] <= torch.arange(6)[:, None] % 4).double()[order]
    return Update(
        step=1,
        number=0,
        source=Path("x"),
        rows=torch.tensor(order),
        micro_batches=torch.tensor(micro_batches),
        log_probs=-values[0].abs(),
        entropys=values[1].abs(),
        mask=mask,
        old_log_probs=-values[2].abs(),
        advantages=values[3],
        ref_log_prob=-values[4].abs(),
        rollout_log_probs=None,
        reported={},
        norm_of_gradients=None,
        roundoff=2.0**-24,
    )


def test_the_command_shows_a_table_and_exits_by_what_it_found(tmp_path: Path) -> None:
    updated_run(tmp_path / "a")
    updated_run(tmp_path / "b", Loss(kl_coef=-0.05))
    right, wrong = (str(tmp_path / name) for name in "ab")
    shown = CliRunner().invoke(command, [right, "--step", "1"])
    assert (shown.exit_code, "DIFFERS" in shown.output) == (0, False)
    shown = CliRunner().invoke(command, [right, wrong, "--lang", "zh"])
    assert shown.exit_code == 1
    assert "actor/loss: 参考正确" in shown.output


def test_the_command_prints_one_versioned_document(tmp_path: Path) -> None:
    updated_run(tmp_path / "a", Loss(kl_coef=-0.05))
    shown = CliRunner().invoke(command, [str(tmp_path / "a"), "--json"])
    document = json.loads(shown.stdout)
    assert (shown.exit_code, document["schema_version"]) == (1, 1)
    (run,) = document["runs"]
    links = {link["name"]: link for link in run["links"]}
    assert links["actor/loss"]["verdict"] == "differs"
    assert links["actor/pg_loss"]["recorded"] == pytest.approx(
        links["actor/pg_loss"]["recomputed"], abs=links["actor/pg_loss"]["tolerance"]
    )
