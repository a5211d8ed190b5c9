"""Faults in the code of verl's PPO: generalised advantages, the KL in the reward, the critic."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import verl.trainer.ppo.ray_trainer as ray_trainer
import verl.workers.utils.losses as losses
from torch import Tensor
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

Made = Callable[..., Any]


def replaced(owner: Any, name: str, make: Callable[[Made], Made]) -> None:
    """Put what ``make`` makes of a function in its place."""
    setattr(owner, name, make(getattr(owner, name)))


def with_estimate(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the arguments of the advantage estimation."""

    def make(own: Made) -> Made:
        return lambda **arguments: own(**{**arguments, **change(arguments)})

    replaced(core_algos, "compute_gae_advantage_return", make)


def with_critic(change: Callable[[Any], None]) -> None:
    """Change the critic's engine once it is built."""

    def make(own: Made) -> Made:
        def initialized(self: Any) -> Any:
            done = own(self)
            change(self)
            return done

        return initialized

    replaced(FSDPEngineWithValueHead, "initialize", make)


def with_value_loss(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the arguments of the critic's loss."""

    def make(own: Made) -> Made:
        return lambda **arguments: own(**{**arguments, **change(arguments)})

    replaced(losses, "compute_value_loss", make)


def gae_lambda() -> None:
    """λ is 1."""
    with_estimate(lambda given: {"lam": 1.0})


def gae_gamma() -> None:
    """γ is 1."""
    with_estimate(lambda given: {"gamma": 1.0})


def not_whitened() -> None:
    """Advantages are not whitened."""
    replaced(torch_functional, "masked_whiten", lambda own: lambda values, mask: values)


def values_late() -> None:
    """Each token is given the value of the token after."""
    with_estimate(lambda given: {"values": given["values"].roll(-1, 1)})


def values_missing() -> None:
    """Advantages are estimated without values."""
    with_estimate(lambda given: {"values": given["values"] * 0})


def rewards_moved() -> None:
    """Each row's advantages are of the rewards of the row before."""
    with_estimate(lambda given: {"token_level_rewards": given["token_level_rewards"].roll(1, 0)})


def reward_kl_sign() -> None:
    """The KL in the reward pushes away from the reference."""
    replaced(ray_trainer.core_algos, "kl_penalty", lambda own: lambda *a, **k: -own(*a, **k))


def reward_kl_left_out() -> None:
    """No KL is taken from the reward."""

    def make(own: Made) -> Made:
        def applied(data: Any, **kwargs: Any) -> Any:
            data, metrics = own(data, **kwargs)
            data.batch["token_level_rewards"] = data.batch["token_level_scores"].clone()
            return data, metrics

        return applied

    for owner in (ray_trainer, __import__("verl.trainer.ppo.v1.trainer_base", fromlist=["x"])):
        replaced(owner, "apply_kl_penalty", make)


def value_loss_doubled() -> None:
    """The critic's gradient is that of twice its loss."""

    def make(own: Made) -> Made:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            loss, meta = own(*args, **kwargs)
            return loss * 2, meta

        return stepped

    replaced(FSDPEngineWithValueHead, "forward_step", make)


def value_clip() -> None:
    """Values are clipped at a hundredth of the configured range."""
    with_value_loss(lambda given: {"cliprange_value": given["cliprange_value"] / 100})


def returns_moved() -> None:
    """The critic learns the returns of the row before."""
    with_value_loss(lambda given: {"returns": given["returns"].roll(1, 0)})


def critic_epsilon() -> None:
    """The critic's second norm adds 1e-5."""

    def change(engine: Any) -> None:
        engine.module.model.layers[1].input_layernorm.variance_epsilon = 1e-5

    with_critic(change)


def critic_activation() -> None:
    """One MLP of the critic has another activation function."""
    from torch import nn

    def change(engine: Any) -> None:
        engine.module.model.layers[0].mlp.act_fn = nn.GELU(approximate="tanh")

    with_critic(change)


def critic_not_updated() -> None:
    """The critic's second update does not happen."""

    def change(engine: Any) -> None:
        own, count = engine.optimizer.step, 0

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return None if count == 2 else own(*args, **kwargs)

        engine.optimizer.step = MethodType(step, engine.optimizer)

    with_critic(change)


def critic_adam_epsilon() -> None:
    """Adam of the critic adds 1e-4 where torch adds 1e-8."""

    def change(engine: Any) -> None:
        for group in engine.optimizer.param_groups:
            group["eps"] = 1e-4

    with_critic(change)


def values_rounded() -> None:
    """The critic's values are rounded to bfloat16."""

    def make(own: Made) -> Made:
        def rounded(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return {name: t.bfloat16().to(t.dtype) for name, t in own(*args, **kwargs).items()}

        return rounded

    replaced(FSDPEngineWithValueHead, "prepare_model_outputs", make)


def bootstrapped_end() -> None:
    """The last token's next value is its own in place of none."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        rewards, values, mask = (
            given[name].clone() for name in ("token_level_rewards", "values", "response_mask")
        )
        rows, last = range(len(mask)), mask.sum(1).long() - 1
        rewards[rows, last] += given["gamma"] * values[rows, last]
        return {"token_level_rewards": rewards}

    with_estimate(change)


def whitened_rows() -> None:
    """Advantages are whitened within each row."""

    def make(own: Made) -> Made:
        return lambda values, mask: torch.cat(
            [own(row, present) for row, present in zip(values.split(1), mask.split(1), strict=True)]
        )

    replaced(torch_functional, "masked_whiten", make)


def biased_variance() -> None:
    """Advantages are whitened with the variance over n, not n - 1."""

    def make(own: Made) -> Made:
        return lambda values, mask: own(values, mask, unbiased=False)

    replaced(torch_functional, "masked_var", make)


def whitened_returns() -> None:
    """Returns are the values plus the whitened advantages."""

    def make(own: Made) -> Made:
        def estimated(**given: Any) -> tuple[Tensor, Tensor]:
            advantages, _ = own(**given)
            return advantages, advantages + given["values"]

        return estimated

    replaced(core_algos, "compute_gae_advantage_return", make)


def score_on_first_token() -> None:
    """A response's score is on its first token in place of its last."""

    def make(own: Made) -> Made:
        def made(self: Any) -> dict[str, Any]:
            fields: dict[str, Any] = own(self)
            if "rm_scores" in fields:
                fields["rm_scores"] = fields["rm_scores"].flip(0)
            return fields

        return made

    replaced(AgentLoopOutput, "as_dict", make)


def kl_of_rollout() -> None:
    """The KL in the reward is of the rollout engine's log_probs."""

    def make(own: Made) -> Made:
        def applied(data: Any, **kwargs: Any) -> Any:
            trained = data.batch["old_log_probs"]
            data.batch["old_log_probs"] = data.batch["rollout_log_probs"]
            data, metrics = own(data, **kwargs)
            data.batch["old_log_probs"] = trained
            return data, metrics

        return applied

    for owner in (ray_trainer, __import__("verl.trainer.ppo.v1.trainer_base", fromlist=["x"])):
        replaced(owner, "apply_kl_penalty", make)


def advantages_late() -> None:
    """The policy's loss gives each token the advantage of the token after."""

    def late(*args: Any, advantages: Tensor, **kwargs: Any) -> Any:
        return own(*args, advantages=advantages.roll(-1, 1), **kwargs)

    own = core_algos.POLICY_LOSS_REGISTRY["vanilla"]
    core_algos.POLICY_LOSS_REGISTRY["vanilla"] = late


def lesser_value_loss() -> None:
    """Of clipped and unclipped value losses the lesser counts."""

    def make(own: Made) -> Made:
        def lesser(
            vpreds: Tensor, values: Tensor, returns: Tensor, cliprange_value: float, **rest: Any
        ) -> Any:
            near = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
            is_near = (near - returns).abs() < (vpreds - returns).abs()
            least = torch.where(is_near, near, vpreds)
            return own(
                vpreds=least, values=values, returns=returns, cliprange_value=torch.inf, **rest
            )

        return lesser

    replaced(losses, "compute_value_loss", make)


def critic_dropout() -> None:
    """The critic's head drops one feature in ten where it learns."""

    def change(engine: Any) -> None:
        engine.module.dropout.p = 0.1

    with_critic(change)


def critic_clipped_lower() -> None:
    """The critic's gradient is clipped at a tenth of the configured norm."""

    def change(engine: Any) -> None:
        engine.optimizer_config.clip_grad /= 10

    with_critic(change)


def critic_gradient_kept() -> None:
    """The critic's gradient is added to that of the updates before."""
    replaced(FSDPEngineWithValueHead, "optimizer_zero_grad", lambda own: lambda self: None)


def values_stale() -> None:
    """Values are computed with the critic's weights of the step before."""
    before: list[Tensor] = []

    def make(own: Made) -> Made:
        def computed(self: Any, *args: Any, forward_only: bool = False, **kwargs: Any) -> Any:
            if not forward_only:
                return own(self, *args, forward_only=False, **kwargs)
            weights = [weight.data for weight in self.module.parameters()]
            present = [weight.clone() for weight in weights]
            put(weights, before or present)
            output = own(self, *args, forward_only=True, **kwargs)
            put(weights, present)
            before[:] = present
            return output

        return computed

    def put(weights: list[Tensor], others: list[Tensor]) -> None:
        for weight, other in zip(weights, others, strict=True):
            weight.copy_(other)

    replaced(FSDPEngineWithValueHead, "forward_backward_batch", make)


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        *(gae_lambda, gae_gamma, not_whitened, values_late, values_missing, rewards_moved),
        *(reward_kl_sign, reward_kl_left_out),
        *(value_loss_doubled, value_clip, returns_moved),
        *(critic_epsilon, critic_activation, values_rounded),
        *(critic_not_updated, critic_adam_epsilon),
        *(bootstrapped_end, whitened_rows, biased_variance, whitened_returns),
        *(score_on_first_token, kl_of_rollout, advantages_late),
        *(lesser_value_loss, critic_dropout, critic_clipped_lower, critic_gradient_kept),
        values_stale,
    )
}
"""Each function's docstring says what it plants."""
