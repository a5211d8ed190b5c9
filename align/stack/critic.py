"""The critic of PPO: the actor's architecture with a value head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from align.objective.aggregate import GlobalBatch, LossAggregation
from align.objective.masked import masked_mean
from align.objective.value_loss import clipped_value_loss
from align.stack import sharding
from align.stack.actor import clip_gradients, mean_of, micro_batches, mini_batches
from align.stack.batch import TrainBatch, given
from align.stack.optimizer import optimizer_step, scheduled

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from align.stack.config import StackConfig


class Critic(nn.Module):
    """A transformer body and one linear unit, which starts at 0."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body = model.base_model
        self.head = nn.Linear(model.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)
        self.head.to(model.device)

    @property
    def base_model(self) -> nn.Module:
        """The transformer body."""
        return self.body

    def forward(self, batch: TrainBatch) -> Tensor:
        """Value every state before a response token: [b, r], in units of reward."""
        hidden = self.body(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state
        num_tokens = batch.responses.shape[1]
        values: Tensor = self.head(hidden[:, -num_tokens - 1 : -1].to(self.head.weight.dtype))
        return values.sum(-1)  # no view, which FSDP2 warns of


@torch.no_grad()
def compute_values(critic: Critic, batch: TrainBatch, config: StackConfig) -> Tensor:
    """Value a whole batch: float [b, r], 0 outside the mask as in verl."""
    critic.eval()
    size = config.critic.ppo_micro_batch_size_per_gpu
    own = sharding.own_rows(batch)
    values = torch.cat([critic(micro) for micro in micro_batches(own, size)])
    return sharding.gather_rows(values) * batch.response_mask


def update_critic(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    config: StackConfig,
    step: int,
) -> dict[str, float]:
    """Train the critic on the returns, and return verl's metrics of it."""
    critic.train()
    settings = config.critic
    collected = []
    size = settings.ppo_mini_batch_size * config.rollout.n
    for update, mini in enumerate(mini_batches(batch, size, settings.ppo_epochs)):
        metrics = _accumulate(critic, mini, config)
        norm = clip_gradients(critic, settings.optim.clip_grad)
        optimizer_step(optimizer, _learning_rate(config, step, update))
        collected.append({**metrics, "critic/grad_norm": norm})
    return {**mean_of(collected), "critic/lr": _learning_rate(config, step + 1, 0)}


def _accumulate(critic: Critic, mini: TrainBatch, config: StackConfig) -> dict[str, float]:
    settings = config.critic
    totals = GlobalBatch(
        dp_size=sharding.world_size(),
        num_tokens=int(mini.response_mask.sum()),
        num_sequences=len(mini),
    )
    metrics = dict.fromkeys(("critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"), 0.0)
    own = sharding.own_rows(mini)
    for micro in micro_batches(own, settings.ppo_micro_batch_size_per_gpu):
        predictions = critic(micro)
        loss = clipped_value_loss(
            predictions,
            given(micro.values),
            given(micro.returns),
            micro.response_mask,
            cliprange_value=settings.cliprange_value,
            mode=LossAggregation(settings.loss_agg_mode),
            batch=totals,
        )
        torch.autograd.backward(loss.loss)
        share = int(micro.response_mask.sum()) / max(1, totals.num_tokens or 1)
        mean = masked_mean(predictions.detach(), micro.response_mask)
        metrics["critic/vf_loss"] += float(loss.loss.detach()) / totals.dp_size
        metrics["critic/vf_clipfrac"] += float(loss.clip_fraction) * share
        metrics["critic/vpred_mean"] += float(mean) * share
    return sharding.sum_metrics(metrics)


def _learning_rate(config: StackConfig, step: int, update: int) -> float:
    size = config.critic.ppo_mini_batch_size
    return scheduled(config, config.critic.optim, size, step, update)
