"""Our learning rates against the installed Megatron-core, which MindSpeed-RL steps by samples."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from align.config.derive import learning_rates
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.frameworks.schedules import megatron_lr
from tests.frameworks.parity import agree

MEGATRON = f"megatron {version('megatron-core')}"


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "inverse-square-root"])
@pytest.mark.parametrize("warmup", [0, 24, 100])
@pytest.mark.parametrize("min_lr", [0.0, 1e-7])
def test_learning_rates_agree_after_every_mini_batch(
    style: str, warmup: int, min_lr: float
) -> None:
    settings: dict[str, Any] = {"init_lr": 1e-8, "min_lr": min_lr}
    group = {"params": [], "lr": 0.0, "weight_decay": 0.0}
    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),
        max_lr=1e-6,
        lr_warmup_steps=warmup,
        lr_decay_steps=320,
        lr_decay_style=style,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
        **settings,
    )
    ours, theirs = [], []
    for step in range(30):
        theirs.append(group["lr"])
        scheduler.step(increment=16)
        rate = megatron_lr(
            16 * step, lr=1e-6, style=style, warmup_samples=warmup, decay_samples=320, **settings
        )
        ours.append(rate)
    name = "OptimizerParamScheduler"
    agree(MEGATRON, name, torch.tensor(ours).double(), torch.tensor(theirs).double(), 1e-18)


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential"])
@pytest.mark.parametrize(("warmup", "last"), [(0, 8), (4, 8), (4, 16)])
def test_the_warmup_stable_decay_agrees_after_every_step(
    shape: str, warmup: int, last: int
) -> None:
    group = {"params": [], "lr": 0.0, "weight_decay": 0.0}
    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),
        init_lr=1e-8,
        max_lr=1e-6,
        min_lr=1e-7,
        lr_warmup_steps=warmup,
        lr_decay_steps=20,
        lr_decay_style="WSD",
        wsd_decay_steps=last,
        lr_wsd_decay_style=shape,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    ours, theirs = [], []
    for step in range(25):
        theirs.append(group["lr"])
        scheduler.step(increment=1)
        rate = megatron_lr(
            step,
            lr=1e-6,
            style="WSD",
            min_lr=1e-7,
            init_lr=1e-8,
            warmup_samples=warmup,
            decay_samples=20,
            wsd_decay_samples=last,
            wsd_style=shape,
        )
        ours.append(rate)
    name = "OptimizerParamScheduler"
    agree(MEGATRON, name, torch.tensor(ours).double(), torch.tensor(theirs).double(), 1e-18)


@pytest.mark.parametrize("style", ["linear", "cosine", "inverse-square-root"])
@pytest.mark.parametrize(("n", "updates"), [(1, 1), (1, 4), (8, 1), (8, 4)])
def test_the_declared_course_of_mindspeed_rl_is_the_real_scheduler_stepped_as_it_steps_it(
    style: str, n: int, updates: int
) -> None:
    prompts, iterations = 32, 40
    group = {"params": [], "lr": 0.0, "weight_decay": 0.0}
    decay = iterations * prompts  # Megatron: train_iters x global_batch_size
    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),
        init_lr=0.0,
        max_lr=1e-6,
        min_lr=1e-8,
        lr_warmup_steps=0.1 * decay,
        lr_decay_steps=decay,
        lr_decay_style=style,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    theirs = []
    for _ in range(iterations):
        theirs.append(group["lr"])
        for _ in range(updates):  # BaseTrainingEngine.update: the mini-batch in sequences
            scheduler.step(increment=prompts // updates * n)
    settings: dict[str, ConfigLeaf] = {
        "actor.lr": 1e-6,
        "actor.lr_schedule": style,
        "actor.min_lr": 1e-8,
        "actor.lr_warmup_fraction": 0.1,
        "trainer.total_steps": iterations,
        "data.train_batch_size": prompts,
        "actor.mini_batch_size": prompts // updates,
        "actor.ppo_epochs": 1,
        "rollout.n": n,
    }
    place = Provenance(ProvenanceKind.FILE, "test.yaml")
    values = {k: EffectiveValue(k, v, ConfigValue(k, v, place)) for k, v in settings.items()}
    rates = learning_rates(values, "mindspeed_rl")
    name = "MindSpeed-RL's course"
    agree(MEGATRON, name, torch.tensor(rates), torch.tensor(theirs, dtype=torch.float64), 1e-18)
