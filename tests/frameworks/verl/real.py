"""What the parity tests with verl share: its settings in our words."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="parity with verl needs torch")
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

from verl.workers.config import ActorConfig

from align.objective import policy_loss
from align.objective.aggregate import GlobalBatch, LossAggregation
from tests.frameworks.parity import agree as _agree

EVERY_MODE = pytest.mark.parametrize("mode", LossAggregation)
GLOBALS = (GlobalBatch(), GlobalBatch(dp_size=2, num_tokens=57, num_sequences=9))
SCALED = GlobalBatch(num_tokens=57, num_sequences=9, loss_scale_factor=100)


def agree(function: str, ours, theirs, tolerance: float = 1e-6) -> None:
    _agree("verl 0.9.1", function, ours, theirs, tolerance)


def info(batch: GlobalBatch) -> dict[str, float | None]:
    return {
        "dp_size": batch.dp_size,
        "batch_num_tokens": batch.num_tokens,
        "global_batch_size": batch.num_sequences,
        "loss_scale_factor": batch.loss_scale_factor,
    }


def config(clip: policy_loss.Clip, batch: GlobalBatch) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=clip.dual or 3.0,
        global_batch_info=info(batch),
    )
