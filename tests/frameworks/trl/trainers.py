"""TRL's trainers without a model: their own loss and advantage code on tensors we choose.

The methods under test are called on a plain namespace that carries what they read; the model is a
function that returns the log-probabilities of the test.
"""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed")

import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

PACKAGE = "trl 1.16.0"


class OneProcess:
    """Stands for accelerate in a single process."""

    device = torch.device("cpu")
    process_index = 0
    num_processes = 1
    sync_gradients = True
    is_main_process = True

    @staticmethod
    def gather(x):
        return x

    @staticmethod
    def gather_for_metrics(x):
        return x

    @staticmethod
    def reduce(x, reduction="sum"):
        return x


def _untrained():
    module = torch.nn.Identity()
    setattr(module, "is_gradient_checkpointing", False)  # noqa: B010  no module declares it
    return module


def grpo_loss(
    log_prob,
    old_log_prob,
    advantages,
    mask,
    *,
    loss_type: str,
    level: str = "token",
    ref_log_prob=None,
    beta: float = 0.0,
    low: float = 0.2,
    high: float = 0.2,
    delta: float | None = None,
    num_items: int = 1,
    max_completion_length: int = 1,
):
    """Give TRL's loss and the metrics it logged, advantages being [batch] or [batch, length]."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            log_prob,
            torch.zeros_like(log_prob),
            None,
        ),
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=OneProcess(),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=max_completion_length,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    tokens = torch.zeros_like(mask)
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old_log_prob,
        "ref_per_token_logps": ref_log_prob,
        "num_items_in_batch": torch.tensor(float(num_items)),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


def dpo_loss(log_probs, ref_log_probs, mask, *, loss_type: str, beta: float, smoothing: float):
    """Give TRL's loss for [chosen rows, rejected rows] of per-token log-probabilities.

    Rows are [2 pairs, length], the prompt being one token in front of them.
    """

    def outputs(values):
        kept = values * mask
        return SimpleNamespace(
            log_probs=kept,
            entropy=torch.zeros_like(kept),
            mean_logits=torch.zeros_like(kept),
            is_top1=torch.zeros_like(kept, dtype=torch.bool),
        )

    trainer = SimpleNamespace(
        model=_untrained(),
        ref_model=lambda **_: outputs(ref_log_probs),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        accelerator=OneProcess(),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=smoothing,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    prompt = torch.zeros(len(mask), 1, dtype=mask.dtype)
    inputs = {
        "input_ids": torch.zeros(len(mask), mask.shape[1] + 1, dtype=torch.long),
        "attention_mask": torch.cat([prompt + 1, mask], 1),
        "completion_mask": torch.cat([prompt, mask], 1),
    }
    loss = DPOTrainer._compute_loss(trainer, lambda **_: outputs(log_probs), inputs, False)
    return loss, trainer._metrics["train"]


def advantages(scores, num_generations: int, *, rloo: bool = False, scale: str = "group"):
    """Give the advantages TRL computes for scores whose groups are adjacent."""
    count = len(scores)
    ids = [[1]] * count
    generated: tuple[Any, ...] = (ids, ids, None, ["x"] * count, None, {}, None, None)
    trainer = SimpleNamespace(
        accelerator=OneProcess(),
        model=_untrained(),
        args=SimpleNamespace(
            per_device_train_batch_size=count,
            gradient_checkpointing_kwargs=None,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        ),
        environment_factories=None,
        tools=[],
        environments=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        processing_class=SimpleNamespace(batch_decode=lambda *_, **__: ["x"] * count),
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        _generate=lambda _: (ids, ids, ["x"] * count) if rloo else generated,
        _get_per_token_logps_and_entropies=lambda *_, **__: (torch.zeros(count, 1), None, None),
        _calculate_rewards=lambda *_, **__: scores[:, None],
        num_iterations=1,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        beta=0.0,
        num_generations=num_generations,
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1),
        scale_rewards=scale,
        reward_clip_range=None,
        normalize_advantages=False,
        reward_func_names=["score"],
        _metrics={"train": defaultdict(list)},
        _logs=defaultdict(lambda: deque(maxlen=count), rewards=defaultdict(list), extra={}),
        _pending_extra_logs={},
        _pending_metrics={},
        log_multimodal=False,
    )
    kind = RLOOTrainer if rloo else GRPOTrainer
    inputs = [{"prompt": "x"} for _ in range(count)]
    return kind._generate_and_score_completions(trainer, inputs)["advantages"]
