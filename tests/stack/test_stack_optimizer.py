"""AdamW groups and learning rates of both frameworks."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="the stack needs torch")
pytest.importorskip("transformers", reason="the stack needs transformers")

import torch
from torch import nn

from align.stack.optimizer import build_optimizer, learning_rate, optimizer_step
from tests.stack.tiny_run import tiny

_OPTIM = "actor_rollout_ref.actor.optim"


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2, bias=False))


def test_verl_decays_every_parameter_and_megatron_spares_biases_and_norms() -> None:
    model = _model()
    one = build_optimizer(model, tiny(f"{_OPTIM}.weight_decay=0.1")).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in one] == [(3, 0.1)]
    config = tiny(f"{_OPTIM}.weight_decay=0.1", "stack.definitions=mindspeed_rl")
    two = build_optimizer(model, config).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in two] == [(1, 0.1), (2, 0.0)]


def test_betas_and_eps_reach_adamw() -> None:
    config = tiny(f"{_OPTIM}.betas=[0.8,0.95]", f"{_OPTIM}.override_optimizer_config.eps=1e-6")
    group = build_optimizer(_model(), config).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.8, 0.95), 1e-6)


def test_verl_counts_training_steps_and_megatron_optimizer_steps() -> None:
    common = (
        "trainer.total_training_steps=10",
        f"{_OPTIM}.lr=1.0",
        f"{_OPTIM}.lr_warmup_steps=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    )
    verl = tiny(*common)
    assert [learning_rate(verl, step, update) for step in (0, 1) for update in (0, 1)] == [
        0.0,
        0.0,
        0.25,
        0.25,
    ]
    megatron = tiny(*common, "stack.definitions=mindspeed_rl")
    # warmup of 4 steps × 4 prompts; every update of 2 prompts advances it
    rates = [learning_rate(megatron, step, update) for step in (0, 1) for update in (0, 1)]
    assert rates == [0.0, 2 / 16, 4 / 16, 6 / 16]


def test_cosine_ends_at_the_floor() -> None:
    config = tiny(
        "trainer.total_training_steps=10",
        f"{_OPTIM}.lr=2.0",
        f"{_OPTIM}.lr_scheduler_type=cosine",
        f"{_OPTIM}.min_lr_ratio=0.1",
    )
    assert learning_rate(config, 0, 0) == 2.0
    assert learning_rate(config, 5, 0) == pytest.approx(2.0 * 0.55)
    assert learning_rate(config, 10, 0) == pytest.approx(0.2)


def test_a_step_moves_by_the_rate_it_is_given_and_clears_the_gradients() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([parameter], weight_decay=0.0)
    parameter.grad = torch.tensor([3.0, -0.5], dtype=torch.float64)
    optimizer_step(optimizer, 0.25)
    # Adam's first step is lr × g / (|g| + eps): its sign
    assert parameter.tolist() == pytest.approx([0.75, -0.75])
    assert parameter.grad is None
    assert math.isclose(optimizer.param_groups[0]["lr"], 0.25)
