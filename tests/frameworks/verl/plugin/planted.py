"""Faults in the code of verl and of the model, planted into every process of a run.

No configuration and no log line shows them. ``PLANTED_FAULT`` names one of `FAULTS`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import MethodType
from typing import Any

import numpy as np
import torch
import verl.trainer.ppo.reward as reward
import verl.trainer.ppo.v1.trainer_base as trainer_base
import verl.workers.config.optimizer as optimizer_config
import verl.workers.engine.fsdp.transformer_impl as engine
import verl.workers.utils.losses as losses
from torch import Tensor, nn
from verl.trainer.ppo import core_algos
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

Made = Callable[..., Any]


def replaced(owner: Any, name: str, make: Callable[[Made], Made]) -> None:
    """Put what ``make`` makes of a function in its place."""
    setattr(owner, name, make(getattr(owner, name)))


def with_model(change: Callable[[Any], None]) -> None:
    """Change the model of actor and reference as it is built, before it is sharded."""

    def make(build: Made) -> Made:
        def built(self: Any) -> Any:
            model = build(self)
            change(model.model.layers)
            return model

        return built

    replaced(FSDPEngine, "_build_module", make)


def with_sent_weights(change: Callable[[int, dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change what is sent to the rollout engine, given the number of the sync and the tensors."""
    count = 0

    def make(read: Made) -> Made:
        def sent(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            weights, peft = read(self, *args, **kwargs)
            return iter(change(count, {n: t.clone() for n, t in weights}).items()), peft

        return sent

    replaced(FSDPEngine, "get_per_tensor_param", make)


def wrong_groups() -> None:
    """Rows are grouped with the next prompt's first row."""

    def make(own: Made) -> Made:
        return lambda *args, index, **kwargs: own(*args, index=np.roll(index, 1), **kwargs)

    replaced(core_algos, "compute_grpo_outcome_advantage", make)


def std_left_out() -> None:
    """Advantages are not divided by the group's standard deviation."""

    def make(own: Made) -> Made:
        return lambda *args, norm_adv_by_std_in_grpo, **kwargs: own(
            *args, norm_adv_by_std_in_grpo=False, **kwargs
        )

    replaced(core_algos, "compute_grpo_outcome_advantage", make)


def rewards_rolled() -> None:
    """Each row trains on the score of the row before."""

    def make(own: Made) -> Made:
        def rolled(*args: Any, token_level_rewards: Tensor, **kwargs: Any) -> Any:
            return own(*args, token_level_rewards=token_level_rewards.roll(1, 0), **kwargs)

        return rolled

    replaced(core_algos, "compute_grpo_outcome_advantage", make)


def weak_extraction() -> None:
    """The reward function misses some right replies."""

    def make(load: Made) -> Made:
        def loaded(config: Any) -> Any:
            score = load(config)

            def scored(*args: Any, **kwargs: Any) -> Any:
                found = score(*args, **kwargs)
                text = kwargs.get("solution_str", "")
                return {**found, "score": 0.0} if len(text) % 4 == 0 else found

            return scored

        return loaded

    replaced(reward, "get_custom_reward_fn", make)


def kl_sign() -> None:
    """The KL term pushes away from the reference."""
    replaced(losses, "kl_penalty", lambda own: lambda *args, **kwargs: -own(*args, **kwargs))


def kl_estimator() -> None:
    """k1 in place of the configured estimator."""

    def make(own: Made) -> Made:
        return lambda *args, **kwargs: own(*args, **{**kwargs, "kl_penalty": "k1"})

    replaced(losses, "kl_penalty", make)


def aggregation() -> None:
    """Every loss is averaged by sequence, then over sequences."""

    def make(own: Made) -> Made:
        return lambda *args, **kwargs: own(
            *args, **{**kwargs, "loss_agg_mode": "seq-mean-token-mean"}
        )

    for owner in (losses, core_algos):
        replaced(owner, "agg_loss", make)


def clip_range() -> None:
    """The ratio is clipped at a tenth of the configured range."""

    def clipped(*args: Any, config: Any, **kwargs: Any) -> Any:
        other = copy.copy(config)
        for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
            object.__setattr__(other, name, getattr(config, name) / 10)
        return own(*args, config=other, **kwargs)

    own = core_algos.POLICY_LOSS_REGISTRY["vanilla"]
    core_algos.POLICY_LOSS_REGISTRY["vanilla"] = clipped


def mask_shifted() -> None:
    """The mask of what was generated begins one token late."""

    def make(own: Made) -> Made:
        def output(row: dict[str, Any]) -> Any:
            made = own(row)
            made.response_mask[0] = 0
            return made

        return output

    replaced(import_module("recorded_rollouts"), "_output", make)


def temperature_missing() -> None:
    """log_probs are of the logits as they are."""
    replaced(engine, "_scale_logits_by_temperature", lambda own: lambda logits, *a, **k: logits)


def positions_doubled() -> None:
    """The model is told twice each token's position."""

    def make(own: Made) -> Made:
        def prepared(*args: Any, **kwargs: Any) -> Any:
            inputs, outputs = own(*args, **kwargs)
            return {**inputs, "position_ids": inputs["position_ids"] * 2}, outputs

        return prepared

    replaced(FSDPEngineWithLMHead, "prepare_model_inputs", make)


def loss_doubled() -> None:
    """The loss is not divided by the number of micro-batches."""

    def make(own: Made) -> Made:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            loss, meta = own(*args, **kwargs)
            return loss * 2, meta

        return stepped

    replaced(FSDPEngineWithLMHead, "forward_step", make)


def lost_micro_batch() -> None:
    """Each micro-batch's gradient takes the place of the one before."""

    def make(own: Made) -> Made:
        def stepped(self: Any, *args: Any, forward_only: bool, **kwargs: Any) -> Any:
            if not forward_only:
                self.optimizer.zero_grad()
            return own(self, *args, forward_only=forward_only, **kwargs)

        return stepped

    replaced(FSDPEngineWithLMHead, "forward_step", make)


def grad_norm_doubled() -> None:
    """The norm is taken of twice the gradient."""
    replaced(engine, "fsdp2_clip_grad_norm_", lambda own: lambda *a, **k: 2 * own(*a, **k))


def with_optimizer(change: Callable[[Any], None]) -> None:
    """Change the actor's optimizer as it is built."""

    def make(own: Made) -> Made:
        def built(*args: Any, **kwargs: Any) -> Any:
            optimizer = own(*args, **kwargs)
            change(optimizer)
            return optimizer

        return built

    replaced(optimizer_config, "build_optimizer", make)


def vectors_not_decayed() -> None:
    """Weight decay leaves norms and biases alone."""

    def change(optimizer: Any) -> None:
        (group,) = optimizer.param_groups
        vectors = [p for p in group["params"] if p.ndim < 2]
        group["params"] = [p for p in group["params"] if p.ndim > 1]
        optimizer.add_param_group({"params": vectors, "weight_decay": 0.0})

    with_optimizer(change)


def states_bfloat16() -> None:
    """Adam's moments are kept in bfloat16."""

    def rounded(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())

    with_optimizer(lambda optimizer: optimizer.register_step_post_hook(rounded))


def adam_epsilon() -> None:
    """Adam adds 1e-5 where torch adds 1e-8."""

    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["eps"] = 1e-5

    with_optimizer(change)


def rate_halved() -> None:
    """The learning rate falls to a half after the first update."""

    def built(self: Any, optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 1 else 0.5)

    FSDPEngine._build_lr_scheduler = built


def stale_weights() -> None:
    """The engine is sent the weights of the first sync again and again."""
    first: dict[str, Tensor] = {}

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if count == 1:
            first.update(weights)
        return first

    with_sent_weights(change)


def heads_interleaved() -> None:
    """A head's rows of one projection reach the engine in interleaved order."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "model.layers.1.self_attn.q_proj.weight"
        own = weights[name]
        rows = own.view(4, 2, -1, own.shape[1]).transpose(1, 2).reshape(own.shape)
        return {**weights, name: rows}

    with_sent_weights(change)


def scaled_embedding() -> None:
    """The engine's embedding is 1 % too large."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "model.embed_tokens.weight"
        return {**weights, name: weights[name] * 1.01}

    with_sent_weights(change)


def reversed_order() -> None:
    """The two steps' rows come in the opposite order."""

    def make(own: Made) -> Made:
        def sampler(config: Any, data: Any) -> Any:
            return _Reversed(own(config, data))

        return sampler

    replaced(trainer_base, "create_rl_sampler", make)


class _Reversed(torch.utils.data.Sampler[int]):
    """The first sixteen rows of a sampler from the last to the first."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[int]:
        rows = list(self._own)
        yield from rows[15::-1]
        yield from rows[16:]


def special_token_lost() -> None:
    """Prompts reach the trainer without their first token."""

    def make(own: Made) -> Made:
        return lambda row: own({**row, "prompt_ids": row["prompt_ids"][1:]})

    replaced(import_module("recorded_rollouts"), "_output", make)


def response_cut() -> None:
    """Responses lose their last token."""

    def make(own: Made) -> Made:
        cut = ("response_ids", "logprobs")
        return lambda row: own({**row, **{name: row[name][:-1] for name in cut}})

    replaced(import_module("recorded_rollouts"), "_output", make)


def advantages_clipped() -> None:
    """Advantages are cut at 1."""

    def make(own: Made) -> Made:
        def clipped(*args: Any, **kwargs: Any) -> Any:
            advantages, returns = own(*args, **kwargs)
            return advantages.clamp(-1, 1), returns

        return clipped

    replaced(core_algos, "compute_grpo_outcome_advantage", make)


def scores_doubled() -> None:
    """Every score counts twice."""

    def make(load: Made) -> Made:
        def loaded(config: Any) -> Any:
            score = load(config)

            def scored(*args: Any, **kwargs: Any) -> Any:
                found = score(*args, **kwargs)
                return {**found, "score": 2 * found["score"]}

            return scored

        return loaded

    replaced(reward, "get_custom_reward_fn", make)


def log_probs_rounded() -> None:
    """log_probs are rounded to bfloat16."""

    def make(own: Made) -> Made:
        def rounded(*args: Any, **kwargs: Any) -> Tensor:
            made: Tensor = own(*args, **kwargs)
            return made.bfloat16().to(made.dtype)

        return rounded

    replaced(engine, "logprobs_from_logits", make)


def rope_base() -> None:
    """Rotary angles have a base of a million."""

    def make(build: Made) -> Made:
        def built(self: Any) -> Any:
            model = build(self)
            angles = model.model.rotary_emb.inv_freq
            angles.copy_(angles ** (np.log(1e6) / np.log(1e4)))
            return model

        return built

    replaced(FSDPEngine, "_build_module", make)


def heads_repeated_otherwise() -> None:
    """Key heads are repeated a b a b for the query heads of a a b b."""
    import transformers.models.qwen2.modeling_qwen2 as modeling

    def make(own: Made) -> Made:
        return lambda states, count: states.repeat(1, count, 1, 1)

    replaced(modeling, "repeat_kv", make)


def dropout() -> None:
    """Attention of the first layer drops one weight in ten."""

    def change(layers: Any) -> None:
        layers[0].self_attn.attention_dropout = 0.1

    with_model(change)


def one_weight() -> None:
    """One matrix is loaded 0.1 % too large."""

    def change(layers: Any) -> None:
        with torch.no_grad():
            layers[1].mlp.down_proj.weight.mul_(1.001)

    with_model(change)


def other_reference() -> None:
    """The reference model alone has one matrix 1 % too large."""

    def make(build: Made) -> Made:
        def built(self: Any) -> Any:
            model = build(self)
            if self.engine_config.forward_only:
                with torch.no_grad():
                    model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
            return model

        return built

    replaced(FSDPEngine, "_build_module", make)


def frozen_matrix() -> None:
    """One matrix gets no gradient."""

    def change(layers: Any) -> None:
        matrix = layers[1].mlp.up_proj
        matrix.forward = lambda x: nn.functional.linear(x, matrix.weight.detach(), matrix.bias)

    with_model(change)


def second_beta() -> None:
    """Adam's second beta is 0.95."""

    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["betas"] = (0.9, 0.95)

    with_optimizer(change)


def lost_update() -> None:
    """Every second update does not happen."""

    def change(optimizer: Any) -> None:
        own, count = optimizer.step, 0

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return own(*args, **kwargs) if count % 2 else None

        optimizer.step = MethodType(step, optimizer)

    with_optimizer(change)


def layer_not_sent() -> None:
    """The engine is never sent the second layer."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t for name, t in weights.items() if ".layers.1." not in name}

    with_sent_weights(change)


def sent_in_bfloat16() -> None:
    """Weights are rounded to bfloat16 on their way to the engine."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t.bfloat16().to(t.dtype) for name, t in weights.items()}

    with_sent_weights(change)


def next_prompts_response() -> None:
    """Every prompt gets the responses to another one."""
    recorded: Any = import_module("recorded_rollouts")
    by_step: dict[int, list[str]] = {}
    for key, row in recorded.ROWS.items():
        by_step.setdefault(row["w"], []).append(key)
    moved = {}
    for keys in by_step.values():
        prompts = sorted({key.partition(":")[0] for key in keys})
        for key in keys:
            index, _, number = key.partition(":")
            other = prompts[(prompts.index(index) + 1) % len(prompts)]
            source = recorded.ROWS[f"{other}:{number}"]
            moved[key] = {**source, "prompt_ids": recorded.ROWS[key]["prompt_ids"]}
    recorded.ROWS = moved


def residual_scaled() -> None:
    """One layer puts out 99 % of the residual stream."""

    def change(layers: Any) -> None:
        own = layers[1].forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            out = own(*args, **kwargs)
            return (out[0] * 0.99, *out[1:]) if isinstance(out, tuple) else out * 0.99

        layers[1].forward = forward

    with_model(change)


def logits_rounded() -> None:
    """Logits are rounded to bfloat16."""

    def make(build: Made) -> Made:
        def built(self: Any) -> Any:
            model = build(self)
            own = model.lm_head.forward
            model.lm_head.forward = lambda x: own(x).bfloat16().to(x.dtype)
            return model

        return built

    replaced(FSDPEngine, "_build_module", make)


def no_causal_mask() -> None:
    """Attention of the first layer sees later tokens too."""

    def change(layers: Any) -> None:
        own = layers[0].self_attn.forward
        layers[0].self_attn.forward = lambda *args, attention_mask, **kwargs: own(
            *args, attention_mask=torch.zeros_like(attention_mask), **kwargs
        )

    with_model(change)


def embedding_scaled() -> None:
    """What the embedding puts out is 0.1 % too large."""

    def make(build: Made) -> Made:
        def built(self: Any) -> Any:
            model = build(self)
            own = model.model.embed_tokens.forward
            model.model.embed_tokens.forward = lambda ids: own(ids) * 1.001
            return model

        return built

    replaced(FSDPEngine, "_build_module", make)


def every_epsilon() -> None:
    """Every norm of the layers adds 1e-5."""

    def change(layers: Any) -> None:
        for layer in layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.variance_epsilon = 1e-5

    with_model(change)


class _Doubled(torch.autograd.Function):
    """Passes values on, and twice their gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def attention_gradient_doubled() -> None:
    """Attention of the first layer gets twice its gradient."""

    def change(layers: Any) -> None:
        own = layers[0].self_attn.o_proj.forward
        layers[0].self_attn.o_proj.forward = lambda x: own(_Doubled.apply(x))

    with_model(change)


def coupled_decay() -> None:
    """Weight decay is added to the gradient, as in Adam and not in AdamW."""

    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["decoupled_weight_decay"] = False

    with_optimizer(change)


def moments_reset() -> None:
    """Adam begins anew with every update."""
    with_optimizer(
        lambda optimizer: optimizer.register_step_post_hook(lambda own, *_: own.state.clear())
    )


def scores_shifted() -> None:
    """Every score is higher by 0.1."""

    def make(load: Made) -> Made:
        def loaded(config: Any) -> Any:
            score = load(config)

            def scored(*args: Any, **kwargs: Any) -> Any:
                found = score(*args, **kwargs)
                return {**found, "score": found["score"] + 0.1}

            return scored

        return loaded

    replaced(reward, "get_custom_reward_fn", make)


def advantages_negated() -> None:
    """Advantages have the opposite sign."""

    def make(own: Made) -> Made:
        return lambda *args, **kwargs: tuple(-each for each in own(*args, **kwargs))

    replaced(core_algos, "compute_grpo_outcome_advantage", make)


def neighbours_swapped() -> None:
    """The sampler exchanges the two steps."""

    def make(own: Made) -> Made:
        return lambda config, data: _Swapped(own(config, data))

    replaced(trainer_base, "create_rl_sampler", make)


class _Swapped(_Reversed):
    """The second eight rows of a sampler before the first eight."""

    def __iter__(self) -> Iterator[int]:
        rows = list(self._own)
        yield from (*rows[8:16], *rows[:8], *rows[16:])


def response_longer() -> None:
    """Responses end with a token that no engine made."""

    def make(own: Made) -> Made:
        more = {"response_ids": [7], "logprobs": [-5.0]}
        return lambda row: own({**row, **{name: row[name] + more[name] for name in more}})

    replaced(import_module("recorded_rollouts"), "_output", make)


def matrix_transposed() -> None:
    """One square matrix reaches the engine transposed."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "model.layers.0.self_attn.o_proj.weight"
        return {**weights, name: weights[name].T.contiguous()}

    with_sent_weights(change)


def head_from_embedding() -> None:
    """The engine is sent the embedding for its output layer."""

    def change(count: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}

    with_sent_weights(change)


LAYER_FAULTS: dict[str, Callable[[Any], None]] = import_module("layer_faults").LAYER_FAULTS
CRITIC_FAULTS: dict[str, Callable[[], None]] = import_module("critic_faults").FAULTS
FAULTS: dict[str, Callable[[], None]] = {
    **{name: partial(with_model, change) for name, change in LAYER_FAULTS.items()},
    **{
        fault.__name__: fault
        for fault in (
            *(wrong_groups, std_left_out, rewards_rolled, weak_extraction),
            *(kl_sign, kl_estimator, aggregation, clip_range, mask_shifted),
            *(temperature_missing, positions_doubled, loss_doubled, lost_micro_batch),
            *(grad_norm_doubled, vectors_not_decayed, states_bfloat16, adam_epsilon, rate_halved),
            *(stale_weights, heads_interleaved, scaled_embedding),
            *(reversed_order, special_token_lost, response_cut),
            *(advantages_clipped, scores_doubled, log_probs_rounded, rope_base),
            *(heads_repeated_otherwise, dropout, one_weight, other_reference, frozen_matrix),
            *(second_beta, lost_update, layer_not_sent, sent_in_bfloat16, next_prompts_response),
            *(residual_scaled, logits_rounded, no_causal_mask, embedding_scaled, every_epsilon),
            *(attention_gradient_doubled, coupled_decay, moments_reset, scores_shifted),
            *(advantages_negated, neighbours_swapped, response_longer, matrix_transposed),
            head_from_embedding,
        )
    },
    **CRITIC_FAULTS,
}
"""Each function's docstring says what it plants."""

if name := os.environ.get("PLANTED_FAULT"):
    FAULTS[name]()
