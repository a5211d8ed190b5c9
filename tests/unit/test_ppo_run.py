"""A PPO run of the real verl, and what is named where a number of it is another.

`tests/data/verl_ppo_run` is what `align capture` kept of two steps of verl 0.9.1 with GAE, the KL
in the reward and a critic on FSDP2 (`benchmarks.verl_faults`, its run ``ppo``): batches, the
critic's micro-batches, configuration and metrics. verl computed every number; a fault replaces one
kind of them by what another formula gives.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from align.core.finding import Severity, Side
from align.core.rung import RungResult, RungStatus
from align.ladder import climb
from align.objective.gae import gae
from align.objective.masked import whiten
from align.referee.critic_rung import compare_critics
from align.referee.critic_updates import critic_updates
from align.referee.estimate_rung import compare_estimates
from align.referee.estimates import TENSORS, Declared, as_computed, differing_tokens
from align.referee.reward_penalty import compare_penalties
from align.referee.step_batch import batches
from dumps.store.discover import discover
from dumps.store.run_data import RunData

RUN = Path(__file__).resolve().parents[1] / "data" / "verl_ppo_run"
GAMMA, LAM = 0.99, 0.95  # as the run is configured
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Tensors]


def read(path: Path) -> RunData:
    return RunData(discover([path]))


@dataclass(frozen=True)
class Copies:
    """Makes copies of the run with other numbers in some of its files."""

    folder: Path

    def batch(self, change: Change, steps: tuple[int, ...] = (1, 2)) -> RunData:
        """Return a run whose batches are changed."""
        return self._with("trainer_inputs/{:06d}.safetensors", change, steps)

    def critic(self, change: Change, steps: tuple[int, ...] = (1, 2)) -> RunData:
        """Return a run whose critic's updates are changed."""
        return self._with("steps/{:06d}/critic-0.safetensors", change, steps)

    def values(
        self, change: Callable[[Tensor], Tensor], steps: tuple[int, ...] = (1, 2)
    ) -> RunData:
        """Return a run whose critic gives other values, and has the losses that follow."""
        self.batch(lambda own: {"values": change(own["values"])}, steps)
        return self.critic(lambda own: _other_values(own, change), steps)

    def _with(self, name: str, change: Change, steps: tuple[int, ...]) -> RunData:
        copy = self.folder / "changed"
        if not copy.exists():
            shutil.copytree(RUN, copy)
        for step in steps:
            path = copy / name.format(step)
            own = load_file(path)
            made = {key: tensor.contiguous() for key, tensor in {**own, **change(own)}.items()}
            save_file(made, path, {"align_capture": "1"})
        return read(copy)


def _other_values(own: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    made: Tensors = {}
    for update in range(2):
        name = f"update.{update}.micro.0."
        values, new = change(own[name + "values"]), own[name + "vpreds"]
        new = values.clone() if update == 0 else new  # no update lies between
        made |= {name + "values": values, name + "vpreds": new}
    return made | _other_losses({**own, **made})


def _other_losses(own: Tensors) -> Tensors:
    """Return the losses that values, predictions and returns give."""
    made: Tensors = {}
    for update in range(2):
        name = f"update.{update}.micro.0."
        values, returns, new = (own[name + key] for key in ("values", "returns", "vpreds"))
        near = new.clamp(values - 0.2, values + 0.2)
        error = torch.maximum((new - returns) ** 2, (near - returns) ** 2)
        made[name + "value_loss"] = 0.5 * error[own[name + "response_mask"].bool()].mean()
    return made


@pytest.fixture
def run() -> RunData:
    return read(RUN)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def named(result: RungResult | None) -> tuple[RungStatus, list[str]]:
    assert result is not None
    return result.status, [finding.id for finding in result.findings]


def estimated(
    gamma: float = GAMMA, lam: float = LAM, **other: Callable[[Tensor], Tensor]
) -> Change:
    """Return advantages by verl's formula of other constants, rewards or values."""

    def change(own: Tensors) -> Tensors:
        mask = own["response_mask"]
        rewards, values = (
            other.get(name, lambda tensor: tensor)(own[name].double())
            for name in ("token_level_rewards", "values")
        )
        made = whiten(gae(rewards, values, mask, gamma=gamma, lam=lam)[0], mask)
        return {"advantages": made.float()}

    return change


def test_the_run_beside_itself_is_aligned_on_every_rung(run: RunData) -> None:
    report = climb(run, read(RUN))
    assert [f.id for r in report.rungs for f in r.findings if f.severity is Severity.ERROR] == []
    for compare in (compare_estimates, compare_penalties, compare_critics):
        assert named(compare(run, read(RUN))) == (RungStatus.ALIGNED, [])


def test_advantages_of_its_own_formula_are_no_finding(run: RunData, copies: Copies) -> None:
    assert named(compare_estimates(run, copies.batch(estimated()))) == (RungStatus.ALIGNED, [])


@pytest.mark.parametrize(
    ("finding", "change"),
    [
        ("advantage.discount", estimated(lam=1.0)),
        ("advantage.discount", estimated(lam=0.9)),
        ("advantage.discount", estimated(gamma=1.0)),
        ("advantage.values", estimated(values=lambda values: values.roll(-1, 1))),
        ("advantage.values", estimated(values=torch.zeros_like)),
        ("advantage.scores_moved", estimated(token_level_rewards=lambda r: r.roll(1, 0))),
        ("advantage.scaled", lambda own: {"advantages": own["advantages"] * 2}),
        ("advantage.scaled", lambda own: {"advantages": -own["advantages"]}),
        (
            "advantage.recomputed_differs",
            lambda own: {"advantages": own["advantages"].clamp(-1, 1)},
        ),
    ],
)
def test_other_advantages_are_named_by_the_mistake_that_gives_them(
    run: RunData, copies: Copies, finding: str, change: Change
) -> None:
    wrong = copies.batch(change)
    result = compare_estimates(run, wrong)
    assert named(result) == (RungStatus.DIVERGED, [finding])
    assert result is not None
    assert {evidence.side for evidence in result.findings[0].evidence} == {Side.CANDIDATE}
    assert named(compare_estimates(wrong, run)) == (RungStatus.DIVERGED, [finding])


def raw_of(own: Tensors) -> Tensor:
    given = (own["token_level_rewards"], own["values"].float(), own["response_mask"])
    return gae(*given, gamma=GAMMA, lam=LAM)[0]


def whitened_by_row(own: Tensors) -> Tensors:
    raw, mask = raw_of(own), own["response_mask"]
    rows = [whiten(r[None], m[None]) for r, m in zip(raw, mask, strict=True)]
    return {"advantages": torch.cat(rows)}


def over_all(own: Tensors) -> Tensors:
    raw, mask = raw_of(own), own["response_mask"].bool()
    return {"advantages": (raw - raw[mask].mean()) / raw[mask].std(correction=0)}


def at_the_start(scores: Tensor) -> Tensor:
    moved = torch.zeros_like(scores)
    moved[:, 0] = scores.sum(-1)
    return moved


def next_value_at_the_end(own: Tensors) -> Tensors:
    rewards = own["token_level_rewards"].clone()
    last = own["response_mask"].sum(-1) - 1
    rows = torch.arange(len(rewards))
    rewards[rows, last] += GAMMA * own["values"][rows, last].float()
    return estimated()({**own, "token_level_rewards": rewards})


@pytest.mark.parametrize(
    ("finding", "said", "change"),
    [
        ("advantage.normalization", "each row by itself", whitened_by_row),
        ("advantage.normalization", "over n, not n - 1", over_all),
        ("advantage.values", "a next value, its own", next_value_at_the_end),
        (
            "advantage.recomputed_differs",
            "returns are its values plus the whitened advantages",
            lambda own: {"returns": own["values"] + own["advantages"]},
        ),
        (
            "advantage.recomputed_differs",
            "returns are not its values plus",
            lambda own: {"returns": own["returns"] + 0.1},
        ),
        (
            "advantage.scores_moved",
            "not on the last token",
            lambda own: {"token_level_scores": at_the_start(own["token_level_scores"])},
        ),
    ],
)
def test_what_whitening_returns_and_scores_can_get_wrong_is_said(
    run: RunData, copies: Copies, finding: str, said: str, change: Change
) -> None:
    result = compare_estimates(run, copies.batch(change))
    assert named(result) == (RungStatus.DIVERGED, [finding])
    assert result is not None and said in result.findings[0].title.en


def test_advantages_without_whitening_are_named(run: RunData, copies: Copies) -> None:
    result = compare_estimates(run, copies.batch(lambda own: {"advantages": raw_of(own)}))
    assert named(result) == (RungStatus.DIVERGED, ["advantage.normalization"])


@pytest.mark.parametrize(
    ("times", "said"), [(-1.0, "-0.05 times"), (2.0, "0.1 times"), (0, "no KL")]
)
def test_another_penalty_for_the_kl_is_named_with_its_size(
    run: RunData, copies: Copies, times: float, said: str
) -> None:
    def change(own: Tensors) -> Tensors:
        taken = own["token_level_scores"] - own["token_level_rewards"]
        return {"token_level_rewards": own["token_level_scores"] - times * taken}

    result = compare_penalties(run, copies.batch(change))
    assert named(result) == (RungStatus.DIVERGED, ["reward.kl_penalty"])
    assert result is not None and said in result.findings[0].title.en


def test_another_estimator_of_the_kl_is_named(run: RunData, copies: Copies) -> None:
    def change(own: Tensors) -> Tensors:
        apart = own["old_log_probs"] - own["ref_log_prob"]
        penalty = 0.05 * 0.5 * apart**2 * own["response_mask"]
        return {"token_level_rewards": own["token_level_scores"] - penalty}

    result = compare_penalties(run, copies.batch(change))
    assert named(result) == (RungStatus.DIVERGED, ["reward.kl_penalty"])
    assert result is not None and "(mse)" in result.findings[0].title.en


def test_the_critics_updates_are_read_whole(run: RunData) -> None:
    updates = list(critic_updates(run))
    assert [(update.step, update.number) for update in updates] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for update in updates:
        error = torch.maximum(
            (update.predictions - update.returns) ** 2,
            (update.predictions.clamp(update.values - 0.2, update.values + 0.2) - update.returns)
            ** 2,
        )
        assert update.loss == pytest.approx(0.5 * float(error.mean()), rel=1e-5)


def test_the_first_update_predicts_the_values(run: RunData) -> None:
    first = next(critic_updates(run))
    assert torch.allclose(first.predictions, first.values, atol=1e-6)


@pytest.mark.parametrize(
    ("finding", "suffix", "change"),
    [
        ("loss.value_loss", "value_loss", lambda loss: loss * 1.01),
        ("loss.value_loss", "returns", lambda returns: returns.roll(1, 0)),
        ("loss.critic_gradient", "grad_norm", lambda norm: norm * 2),
    ],
)
def test_a_critics_own_numbers_are_named(
    run: RunData, copies: Copies, finding: str, suffix: str, change: Callable[[Tensor], Tensor]
) -> None:
    wrong = copies.critic(lambda own: {k: change(t) for k, t in own.items() if k.endswith(suffix)})
    assert named(compare_critics(run, wrong)) == (RungStatus.DIVERGED, [finding])


def test_other_values_before_any_update_are_the_critics(run: RunData, copies: Copies) -> None:
    result = compare_critics(run, copies.values(lambda values: values * 1.5 + 0.1))
    assert named(result) == (RungStatus.DIVERGED, ["loss.critic_values"])


def test_values_rounded_to_bfloat16_are_said_to_be(run: RunData, copies: Copies) -> None:
    result = compare_critics(run, copies.values(lambda values: values.bfloat16().float()))
    assert result is not None and "rounded to bfloat16" in result.findings[0].title.en
    assert result.findings[0].severity is Severity.WARNING


def test_values_that_part_after_equal_gradients_are_the_optimizers(
    run: RunData, copies: Copies
) -> None:
    result = compare_critics(run, copies.values(lambda values: values * 1.1, (2,)))
    assert named(result) == (RungStatus.DIVERGED, ["loss.critic_update"])


@pytest.mark.parametrize(
    ("finding", "suffix"), [("loss.training_pass", "vpreds"), ("loss.critic_values", "values")]
)
def test_a_first_update_that_does_not_predict_the_values_is_named(
    run: RunData, copies: Copies, finding: str, suffix: str
) -> None:
    def change(own: Tensors) -> Tensors:
        begin = "update.0" if suffix == "vpreds" else "update"
        names = [k for k in own if k.startswith(begin) and k.endswith(f".{suffix}")]
        moved = {name: own[name] * 1.2 for name in names}
        return _other_losses({**own, **moved}) | moved

    if suffix == "values":
        copies.batch(lambda own: {"values": own["values"] * 1.2}, (2,))
    assert named(compare_critics(run, copies.critic(change, (2,))))[1] == [finding]


def test_a_critic_in_bfloat16_is_estimated_in_its_own_arithmetic(
    run: RunData, copies: Copies
) -> None:
    def narrow(own: Tensors) -> Tensors:
        values, mask = own["values"].bfloat16(), own["response_mask"]
        raw, returns = gae(own["token_level_rewards"], values, mask, gamma=GAMMA, lam=LAM)
        return {"values": values, "returns": returns, "advantages": whiten(raw, mask)}

    other = copies.batch(narrow)
    assert named(compare_estimates(run, other)) == (RungStatus.ALIGNED, [])
    (batch, *_) = batches(other, TENSORS)
    wide = Declared(GAMMA, LAM)
    assert bool(differing_tokens(batch, wide).any())
    assert as_computed(wide, batch).narrow


def test_nothing_is_said_of_critics_that_trained_on_other_rows(
    run: RunData, copies: Copies
) -> None:
    copies.values(lambda values: values * 1.5)
    other = copies.batch(lambda own: {"input_ids": own["input_ids"] + 1})
    assert named(compare_critics(run, other)) == (RungStatus.ALIGNED, [])
