"""Planted faults of one model, for our judgement of layers and for msprobe's alike.

The model is that of the harness that measured msprobe: a Qwen2 of four layers with hidden size 64.
Six bugs are those planted there; the others are the bundled zoo's own, applied to this model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from align.stack import numerics
from align.stack.faults.forward import swapped_in_attention
from align.stack.faults.registry import faults
from align.stack.pipeline import Pipeline

Edit = Callable[[Any], None]

HARNESS = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
LAYER = 2
NUM_STEPS = 3
MIXTURE = "qwen3-moe"


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault.

    Args:
        expected: part of what the first finding must name.
        edit: what is done to the candidate.
        in_bfloat16: whether it changes anything in a model that computes in bfloat16.
        is_packed: rows lie end to end in one.
        scale: of the loss.
        below_noise: what must be named in bfloat16, where that is another part: a fault of every
            layer that shows in gradients alone is met in the last layer first.
    """

    name: str
    expected: str
    edit: Edit = lambda model: None
    in_bfloat16: bool = True
    is_packed: bool = False
    scale: float = 1.0
    architecture: str = "qwen2"
    below_noise: str | None = None

    def must_name(self, dtype: str) -> str:
        """Return part of what the first finding must name."""
        return self.below_noise or self.expected if dtype == "bfloat16" else self.expected


def build(seed: int, architecture: str = "qwen2", *, std: float = 0.02) -> Any:
    """Return a model with random weights, the same for the same seed."""
    import transformers

    shared: dict[str, Any] = {
        **HARNESS,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "use_cache": False,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "initializer_range": std,
        "max_position_embeddings": 1024,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture == MIXTURE:
            sparse: dict[str, Any] = {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 64,
            }
            config = transformers.Qwen3MoeConfig(**shared, **sparse)
            return transformers.Qwen3MoeForCausalLM(config).train()
        model: Any = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shared)).train()
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.bias"):  # transformers starts them at 0
                torch.nn.init.normal_(parameter, std=0.02)
        return model


def batch(step: int, size: tuple[int, int] = (2, 32), *, is_packed: bool = False) -> dict[str, Any]:
    """Return the tokens of one step, with the mask that keeps packed rows apart."""
    generator = torch.Generator().manual_seed(7 + step)
    ids = torch.randint(0, HARNESS["vocab_size"], size, generator=generator)
    positions = torch.arange(size[1]).expand(size)
    if not is_packed:
        return {"input_ids": ids, "position_ids": positions.contiguous()}
    row = torch.arange(size[0]).repeat_interleave(size[1])
    return {
        "input_ids": ids.reshape(1, -1),
        "position_ids": positions.reshape(1, -1),
        "attention_mask": _additive(row[:, None] == row[None, :]),
    }


def train_step(model: Any, inputs: Mapping[str, Any], scale: float = 1.0) -> None:
    """Compute the gradients of one step, without an update."""
    model.zero_grad(set_to_none=True)
    logits = model(**inputs).logits.float()
    targets = inputs["input_ids"][:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets)
    (loss * scale).backward()


def candidate(planted: Planted, seed: int, profile: str) -> Any:
    """Return the model with a fault, computing as another device does."""
    model = build(seed, planted.architecture)
    planted.edit(model)
    numerics.apply(profile, model)
    return model


def perturbed(seed: int) -> Edit:
    """Return an edit that moves each embedding by one rounding of its dtype, up or down."""

    def edit(model: Any) -> None:
        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            up = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
            return (output * (1 + up * torch.finfo(output.dtype).eps / 2)).to(output.dtype)

        model.model.embed_tokens.register_forward_hook(hook)

    return edit


def scores_scaled(factor: float) -> Edit:
    """Return an edit that scales the attention scores of one layer."""

    def edit(model: Any) -> None:
        model.model.layers[LAYER].self_attn.scaling *= factor

    return edit


def planted_faults() -> tuple[Planted, ...]:
    """Return the six bugs of the harness, then the zoo's."""
    at = f"layers.{LAYER}"
    return (
        Planted("epsilon of every norm 1e-2", "layers.0.input_layernorm", _every_epsilon),
        Planted("epsilon of one norm 1e-2", f"{at}.post_attention_layernorm", _one_epsilon),
        Planted("one MLP in bfloat16", f"{at}.mlp", _bfloat16_mlp, in_bfloat16=False),
        Planted("attention scale 1 % off in one layer", f"{at}.self_attn", scores_scaled(1.01)),
        Planted("one weight off by 10 % of the largest", f"{at}.mlp.down_proj.weight", _weight),
        Planted("the whole model in bfloat16", "bfloat16", _bfloat16_model, in_bfloat16=False),
        _from_zoo("rope_interleaved", below_noise="self_attn"),
        _from_zoo("qkv_bias_dropped"),
        _from_zoo("attention_scale", below_noise="self_attn"),
        Planted("softmax_bfloat16", "layers.0.self_attn", _bfloat16_softmax, in_bfloat16=False),
        _from_zoo("one_norm_eps"),
        _from_zoo("router_bfloat16", in_bfloat16=False, architecture=MIXTURE),
        Planted("packed_attends_across", "layers.0.self_attn", _together, is_packed=True),
        Planted("accumulation_not_scaled", "every gradient is 2 times", scale=2.0),
        _from_zoo("detached_layer"),
        _from_zoo("norm_gradient_not_reduced"),
    )


def _from_zoo(name: str, **settings: Any) -> Planted:
    fault = faults()[name]
    assert fault.change is not None and fault.module is not None
    change = fault.change

    def edit(model: Any) -> None:
        pipeline: Any = change(replace(Pipeline(), build_model=lambda *_: model))
        pipeline.build_model(None, None)

    return Planted(name, fault.module, edit, **settings)


def _every_epsilon(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-2


def _one_epsilon(model: Any) -> None:
    model.model.layers[LAYER].post_attention_layernorm.variance_epsilon = 1e-2


def _bfloat16_mlp(model: Any) -> None:
    mlp = model.model.layers[LAYER].mlp.to(torch.bfloat16)
    forward = mlp.forward
    mlp.forward = lambda x: forward(x.to(torch.bfloat16)).to(x.dtype)


def _bfloat16_model(model: Any) -> None:
    model.to(torch.bfloat16)


def _bfloat16_softmax(model: Any) -> None:
    softmax = torch.nn.functional.softmax

    def rounded(scores: Tensor, dim: int, **_: Any) -> Tensor:
        return softmax(scores.bfloat16(), dim=dim).to(scores.dtype)

    swapped_in_attention(model, torch.nn.functional, "softmax", rounded)


def _weight(model: Any) -> None:
    with torch.no_grad():
        weight = model.model.layers[LAYER].mlp.down_proj.weight
        weight[0, 0] += weight.abs().max() * 0.1


def _together(model: Any) -> None:
    """Let all rows packed together see those before them."""

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        length = kwargs["input_ids"].shape[1]
        every = torch.ones(length, length, dtype=torch.bool)
        return args, {**kwargs, "attention_mask": _additive(every)}

    model.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


def _additive(same: Tensor) -> Tensor:
    """Return a causal mask to add to scores, [1, 1, n, n], for tokens that may see each other."""
    seen = same & torch.ones_like(same).tril()
    return torch.zeros(same.shape).masked_fill(~seen, torch.finfo(torch.bfloat16).min)[None, None]
