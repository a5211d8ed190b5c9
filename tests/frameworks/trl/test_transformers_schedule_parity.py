"""Our learning rates against the installed transformers, whose Trainer TRL is built on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="transformers' schedulers need torch")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from transformers import get_scheduler

from align.frameworks.schedules import ScheduleError, transformers_lr
from tests.frameworks.parity import agree

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"lr_end": 1e-8, "power": 2.0}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 40}),
    ("cosine_with_min_lr", {"min_lr": 1e-7}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 1.0}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-7, "warmup_lr_rate": 0.3}),
    ("warmup_stable_decay", {"num_decay_steps": 10}),
    ("warmup_stable_decay", {"num_decay_steps": 10, "decay_type": "1-sqrt", "min_lr_ratio": 0.1}),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 10, "warmup_type": "cosine", "decay_type": "cosine"},
    ),
]


@pytest.mark.parametrize(("style", "options"), SETTINGS)
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_learning_rates_agree_after_every_step(
    style: str, options: dict[str, Any], warmup: int
) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-6)
    scheduler = get_scheduler(style, optimizer, warmup, 30, dict(options))
    ours, theirs = [], []
    for step in range(36):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        if style == "constant":
            warmup = 0
        rate = transformers_lr(
            step,
            lr=1e-6,
            style=style,
            num_warmup_steps=warmup,
            num_training_steps=30,
            options=options,
        )
        ours.append(rate)
    agree("transformers", style, torch.tensor(ours).double(), torch.tensor(theirs).double(), 1e-18)


@pytest.mark.parametrize(
    ("style", "options"),
    [
        ("reduce_lr_on_plateau", {}),
        ("greedy", {}),
        ("linear", {"num_cycles": 2}),
        ("cosine_with_min_lr", {}),
        ("warmup_stable_decay", {}),
        ("warmup_stable_decay", {"num_decay_steps": 3, "decay_type": "stairs"}),
    ],
)
def test_what_transformers_refuses_or_takes_from_the_loss_has_no_rate(
    style: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ScheduleError):
        [
            transformers_lr(k, lr=1.0, style=style, num_training_steps=9, options=options)
            for k in range(10)
        ]
