"""Faults in the code of MindSpeed-RL and of its model, planted once the worker is built.

No configuration and no log line shows them. ``PLANTED_FAULT`` names one of `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from mindspeed_rl.models.base.base_training_engine import BaseTrainingEngine
from mindspeed_rl.models.loss import grpo_actor_loss_func
from mindspeed_rl.models.loss.grpo_actor_loss_func import GRPOActorLossFunc
from mindspeed_rl.trainer.utils import compute_utils
from torch import Tensor
from torch.optim import adam

Made = Callable[..., Any]
ONE = "model.layers.1.mlp.gate_up_proj.weight"


def replaced(owner: Any, name: str, make: Callable[[Made], Made]) -> None:
    """Put what ``make`` makes of a function in its place."""
    made = make(getattr(owner, name))
    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(made) if is_static else made)


def layers(worker: Any, number: int) -> Iterator[Any]:
    """Yield a layer of the actor and the reference's."""
    for chunk in (worker.model[0].module, worker.ref_model[0]):
        yield chunk.decoder.layers[number]


def one_norm_eps(worker: Any) -> None:
    """One norm adds 1e-5."""
    for layer in layers(worker, 1):
        layer.pre_mlp_layernorm.eps = 1e-5


def attention_scale(worker: Any) -> None:
    """Attention of one layer is scaled by 1 % more."""
    for layer in layers(worker, 1):
        layer.self_attention.core_attention.softmax_scale *= 1.01


def rope_base(worker: Any) -> None:
    """Positions are encoded with base 20000."""
    for chunk in (worker.model[0].module, worker.ref_model[0]):
        frequencies = chunk.rotary_pos_emb.inv_freq
        frequencies.copy_(
            frequencies.pow(torch.log(torch.tensor(2e4)) / torch.log(torch.tensor(1e4)))
        )


def gelu(worker: Any) -> None:
    """One MLP has another activation function."""
    for layer in layers(worker, 0):
        layer.mlp.activation_func = lambda x: F.gelu(x, approximate="tanh")
        layer.mlp.config = _with(layer.mlp.config, activation_func=layer.mlp.activation_func)


def _with(config: Any, **changes: Any) -> Any:
    import copy

    other = copy.copy(config)
    vars(other).update(changes)
    return other


def rounded_mlp(worker: Any) -> None:
    """One MLP puts out bfloat16 numbers."""
    for layer in layers(worker, 1):
        layer.mlp.register_forward_hook(lambda m, a, out: (out[0].bfloat16().to(out[0]), out[1]))


def detached_layer(worker: Any) -> None:
    """No gradient passes one MLP on its way down."""
    for layer in layers(worker, 1):
        replaced(layer.mlp, "forward", lambda own: lambda x, *a, **k: own(x.detach(), *a, **k))


def kl_sign(worker: Any) -> None:
    """The KL term pushes away from the reference."""
    replaced(grpo_actor_loss_func, "compute_kl_penalty", lambda own: lambda *a, **k: -own(*a, **k))


def kl_estimator(worker: Any) -> None:
    """k1 in place of the configured estimator."""
    replaced(
        grpo_actor_loss_func,
        "compute_kl_penalty",
        lambda own: lambda new, ref, kind: own(new, ref, "kl"),
    )


def clip_range(worker: Any) -> None:
    """The ratio is clipped at a tenth of the configured range."""

    def make(own: Made) -> Made:
        return lambda *args, cliprange, **kwargs: own(*args, cliprange=cliprange / 10, **kwargs)

    replaced(GRPOActorLossFunc, "_compute_grpo_policy_loss", make)


def mask_shifted(worker: Any) -> None:
    """The loss is of the tokens one place before those generated."""

    def make(own: Made) -> Made:
        def shifted(*args: Any, **kwargs: Any) -> Any:
            mask, *others = own(*args, **kwargs)
            return mask.roll(-1, 1), *others

        return shifted

    replaced(GRPOActorLossFunc, "_get_policy_loss_input", make)


def loss_doubled(worker: Any) -> None:
    """The loss goes back twice as large."""

    def make(own: Made) -> Made:
        def doubled(self: Any, *args: Any, forward_only: bool = False, **kwargs: Any) -> Any:
            found = own(self, *args, forward_only=forward_only, **kwargs)
            return found if forward_only else (found[0] * 2, found[1])

        return doubled

    replaced(GRPOActorLossFunc, "compute_loss", make)


def wrong_groups(worker: Any) -> None:
    """Rows are grouped with the next prompt's first row."""

    def make(own: Made) -> Made:
        def grouped(scores: Tensor, *, eos_mask: Tensor, **kwargs: Any) -> Any:
            moved = own(scores.roll(-1, 0), eos_mask=eos_mask.roll(-1, 0), **kwargs)
            return tuple(each.roll(1, 0) for each in moved)

        return _by_names(grouped)

    replaced(compute_utils, "compute_group_norm_advantage_return", make)


def _by_names(function: Made) -> Made:
    return lambda token_level_rewards, **kwargs: function(token_level_rewards, **kwargs)


def std_left_out(worker: Any) -> None:
    """Advantages are not divided by the group's standard deviation."""

    def grouped(scores: Tensor, *, eos_mask: Tensor, n_sample_per_prompt: int, **_: Any) -> Any:
        by_group = scores.double().reshape(-1, n_sample_per_prompt)
        centred = (by_group - by_group.mean(1, keepdim=True)).reshape(-1, 1).float() * eos_mask
        return centred, centred.clone()

    compute_utils.compute_group_norm_advantage_return = _by_names(grouped)


def rewards_rolled(worker: Any) -> None:
    """Each row trains on the score of the row before."""

    def make(own: Made) -> Made:
        return _by_names(lambda scores, **kwargs: own(scores.roll(1, 0), **kwargs))

    replaced(compute_utils, "compute_group_norm_advantage_return", make)


def weak_extraction(worker: Any) -> None:
    """The reward function misses some right replies."""
    from mindspeed_rl.models import rule_verifier

    def make(own: Made) -> Made:
        def scored(responses: Any, *args: Any, **kwargs: Any) -> Any:
            scores, metrics = own(responses, *args, **kwargs)
            pairs = zip(scores, responses, strict=True)
            return [0.0 if len(text) % 4 == 0 else score for score, text in pairs], metrics

        return scored

    replaced(rule_verifier, "verifier", make)


def stale_weights(worker: Any) -> None:
    """The engine is given the weights of the first sync again and again."""
    first: dict[str, Tensor] = {}

    def change(params: dict[str, Tensor]) -> None:
        if not first:
            first.update({name: value.clone() for name, value in params.items()})
        for name, value in first.items():
            params[name].copy_(value)

    _with_given(worker, change)


def scaled_weight(worker: Any) -> None:
    """One tensor reaches the engine 1 % too large."""
    _with_given(worker, lambda params: params[ONE].mul_(1.01))


def swapped_halves(worker: Any) -> None:
    """Gate and up reach the engine in each other's place."""
    _with_given(worker, lambda params: params[ONE].copy_(torch.cat(params[ONE].chunk(2)[::-1])))


def _with_given(worker: Any, change: Callable[[dict[str, Tensor]], Any]) -> None:
    def make(own: Made) -> Made:
        def sync(params: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
            change(params)
            return own(params, *args, **kwargs)

        return sync

    replaced(worker.inference_model, "sync_model_weights", make)


def rate_halved(worker: Any) -> None:
    """The learning rate falls to a half after the first update."""

    def make(own: Made) -> Made:
        def step(increment: int) -> None:
            own(increment)
            for group in worker.optimizer.param_groups:
                group["lr"] *= 0.5

        return step

    replaced(worker.opt_param_scheduler, "step", make)


def adam_epsilon(worker: Any) -> None:
    """Adam adds 1e-5 where torch adds 1e-8."""
    for group in worker.optimizer.param_groups:
        group["eps"] = 1e-5


def all_decayed(worker: Any) -> None:
    """Every parameter loses a hundredth of the rate at each update."""

    def make(own: Made) -> Made:
        def step(increment: int) -> None:
            own(increment)
            for group in worker.optimizer.param_groups:
                group["weight_decay"] = 0.01

        return step

    replaced(worker.opt_param_scheduler, "step", make)
    worker.opt_param_scheduler.step(0)


def states_bfloat16(worker: Any) -> None:
    """Adam's moments are kept in bfloat16."""
    inner = worker.optimizer.optimizer

    def rounded(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())

    inner.register_step_post_hook(rounded)


def grad_norm_doubled(worker: Any) -> None:
    """The norm is taken of twice the gradient."""
    replaced(worker.optimizer, "get_grad_norm", lambda own: lambda: 2 * own())


def query_rows_by_kind(worker: Any) -> None:
    """Rows of linear_qkv are by kind (queries, keys, values), where Megatron has them by group."""
    for number in range(2):
        for layer in layers(worker, number):
            attention = layer.self_attention
            groups, head = attention.config.num_query_groups, attention.config.kv_channels
            rows = attention.linear_qkv.weight.data
            by_group = rows.unflatten(0, (groups, -1, head))
            kinds = (by_group[:, :-2], by_group[:, -2], by_group[:, -1])
            rows.copy_(torch.cat([kind.reshape(-1, rows.shape[1]) for kind in kinds]))


def rotary_interleaved(worker: Any) -> None:
    """Each two neighbours of a head are turned together, by the angles of its halves."""
    replaced(rope_utils, "_rotate_half", lambda own: lambda x, interleaved: own(x, True))


def products_rounded(worker: Any) -> None:
    """Linear layers multiply with 11 bits of mantissa, as HF32 does."""

    def rounded(x: Tensor) -> Tensor:
        kept = (x.detach().contiguous().view(torch.int32) + 0x800) & ~0xFFF
        return x + (kept.view(torch.float32) - x.detach())

    def make(own: Made) -> Made:
        def multiplied(layer: Any, **given: Any) -> Any:
            factors = {name: rounded(given.pop(name)) for name in ("input", "weight")}
            return own(layer, **factors, **given)

        return multiplied

    for kind in (ColumnParallelLinear, RowParallelLinear):
        replaced(kind, "_forward_impl", make)


def bias_left_out(worker: Any) -> None:
    """One linear_qkv hands its bias on to what does not add it."""
    for layer in layers(worker, 1):
        layer.self_attention.linear_qkv.skip_bias_add = True


def gradients_kept(worker: Any) -> None:
    """Gradients are not set to zero between updates."""
    (chunk,) = worker.model

    def make(own: Made) -> Made:
        def zeroed() -> None:
            kept = [buffer.grad_data.clone() for buffer in chunk.buffers]
            own()
            for buffer, gradients in zip(chunk.buffers, kept, strict=True):
                buffer.grad_data.copy_(gradients)

        return zeroed

    replaced(chunk, "zero_grad_buffer", make)


def gradients_bfloat16(worker: Any) -> None:
    """Gradients are reduced in bfloat16."""
    (chunk,) = worker.model

    def make(own: Made) -> Made:
        def finalized(*args: Any, **kwargs: Any) -> None:
            own(*args, **kwargs)
            for buffer in chunk.buffers:
                buffer.grad_data.copy_(buffer.grad_data.bfloat16())

        return finalized

    replaced(chunk.config, "finalize_model_grads_func", make)


def ratio_always_one(worker: Any) -> None:
    """The loss takes the policy as it is now for the one that acted."""

    def make(own: Made) -> Made:
        def without(*args: Any, **kwargs: Any) -> Any:
            mask, _, *others = own(*args, **kwargs)
            return mask, None, *others

        return without

    replaced(GRPOActorLossFunc, "_get_policy_loss_input", make)


def padded_mean(worker: Any) -> None:
    """The loss is a mean over padding too."""
    functional = grpo_actor_loss_func.F
    replaced(
        functional,
        "masked_mean",
        lambda own: lambda values, mask: (values * mask).sum() / mask.numel(),
    )


def end_left_out(worker: Any) -> None:
    """No response's last token is in the loss."""

    def make(own: Made) -> Made:
        def shortened(*args: Any, **kwargs: Any) -> Any:
            mask, *others = own(*args, **kwargs)
            return F.pad(mask[:, 1:], (0, 1)), *others

        return shortened

    replaced(GRPOActorLossFunc, "_get_policy_loss_input", make)


def advantages_exchanged(worker: Any) -> None:
    """Two mini-batches train on each other's advantages."""

    def make(own: Made) -> Made:
        def split(batch: Any, *args: Any, keep_list: bool = False, **kwargs: Any) -> Any:
            if keep_list:  # into mini-batches
                given = batch["advantages"]
                batch = {**batch, "advantages": given.roll(len(given) // 2, 0)}
            return own(batch, *args, keep_list=keep_list, **kwargs)

        return split

    replaced(BaseTrainingEngine, "_split_batches", make)


def reference_follows(worker: Any) -> None:
    """The reference model is given the actor's weights after each step."""

    def make(own: Made) -> Made:
        def update(*args: Any, **kwargs: Any) -> None:
            own(*args, **kwargs)
            parameters = (model[0].parameters() for model in (worker.ref_model, worker.model))
            for kept, trained in zip(*parameters, strict=True):
                kept.data.copy_(trained.data)

        return update

    replaced(worker, "update", make)


def std_of_batch(worker: Any) -> None:
    """Advantages are divided by the whole batch's standard deviation."""

    def grouped(scores: Tensor, *, eos_mask: Tensor, n_sample_per_prompt: int, **_: Any) -> Any:
        by_group = scores.double().reshape(-1, n_sample_per_prompt)
        scaled = (by_group - by_group.mean(1, keepdim=True)) / (by_group.std() + 1e-6)
        by_token = scaled.reshape(-1, 1).float() * eos_mask
        return by_token, by_token.clone()

    compute_utils.compute_group_norm_advantage_return = _by_names(grouped)


def no_bias_correction(worker: Any) -> None:
    """Adam does not correct its moments for having begun at zero."""

    def make(own: Made) -> Made:
        def late(*tensors: Any, **settings: Any) -> None:
            *others, steps = tensors
            own(*others, [torch.full_like(step, 1e6) for step in steps], **settings)
            for step in steps:
                step += 1

        return late

    replaced(adam, "adam", make)


def layer_sent_twice(worker: Any) -> None:
    """The engine is given the first layer for the second too."""

    def change(params: dict[str, Tensor]) -> None:
        for name, value in params.items():
            value.copy_(params[name.replace(".layers.1.", ".layers.0.")])

    _with_given(worker, change)


FAULTS: dict[str, Callable[[Any], None]] = {
    fault.__name__: fault
    for fault in (
        *(wrong_groups, std_left_out, rewards_rolled, weak_extraction),
        *(kl_sign, kl_estimator, clip_range, mask_shifted),
        *(one_norm_eps, attention_scale, rope_base, gelu, rounded_mlp),
        *(detached_layer, loss_doubled, grad_norm_doubled),
        *(adam_epsilon, all_decayed, states_bfloat16, rate_halved),
        *(stale_weights, scaled_weight, swapped_halves),
        *(query_rows_by_kind, rotary_interleaved, products_rounded),
        *(bias_left_out, gradients_kept, gradients_bfloat16),
        *(ratio_always_one, padded_mean, end_left_out, advantages_exchanged),
        *(reference_follows, std_of_batch, no_bias_correction, layer_sent_twice),
    )
}
"""Each function's docstring says what it plants."""
