"""Our learning rates against the installed Megatron-core, which MindSpeed-RL steps by samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from align.objective.schedules import megatron_lr
from tests.frameworks.parity import agree


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "inverse-square-root"])
@pytest.mark.parametrize("warmup", [0, 24, 100])
@pytest.mark.parametrize("min_lr", [0.0, 1e-7])
def test_learning_rates_agree_after_every_mini_batch(
    style: str, warmup: int, min_lr: float
) -> None:
    settings = {"init_lr": 1e-8, "min_lr": min_lr}
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
    agree("megatron 0.12", name, torch.tensor(ours).double(), torch.tensor(theirs).double(), 1e-18)
