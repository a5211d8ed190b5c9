"""What verl's Megatron engine asks of packages that need a GPU, done plainly on a CPU.

TransformerEngine's layers are stood for by Megatron's own with the same parameters: a norm within
a column-parallel layer, and attention over packed sequences. mbridge's vision models, which import
TransformerEngine, are replaced by names that are never called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from tests.frameworks.megatron import real_model  # noqa: F401  stands for CUDA

from megatron.core import parallel_state  # isort: skip
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add  # isort: skip
from megatron.core.models.gpt import gpt_layer_specs  # isort: skip
from megatron.core.optimizer import distrib_optimizer  # isort: skip
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear  # isort: skip
from megatron.core.transformer.attention import (  # isort: skip
    SelfAttention,
    SelfAttentionSubmodules,
)
from megatron.core.transformer.enums import AttnMaskType  # isort: skip
from megatron.core.transformer.identity_op import IdentityOp  # isort: skip
from megatron.core.transformer.mlp import MLP, MLPSubmodules  # isort: skip
from megatron.core.transformer.spec_utils import ModuleSpec  # isort: skip
from megatron.core.transformer.transformer_block import (  # isort: skip
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import (  # isort: skip
    TransformerLayer,
    TransformerLayerSubmodules,
)

_VISION = ("gemma3", "internvl3", "glm4_vl", "qwen2_5_vl")


class _Unused(ModuleType):
    """Has every name; none is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


class NormedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """A column-parallel layer with the norm of its input in it, as TransformerEngine fuses them."""

    def __init__(self, *args: Any, config: Any, **kwargs: Any) -> None:
        super().__init__(*args, config=config, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(self.input_size))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        epsilon = self.config.layernorm_epsilon
        normed = F.rms_norm(hidden, (self.input_size,), self.layer_norm_weight, epsilon)
        return super().forward(normed, *args, **kwargs)


class PackedAttention(torch.nn.Module):
    """Causal attention within each packed sequence, or in padded rows.

    Ranks that share sequences have two chunks each of every one, and see each other's keys.
    """

    def __init__(self, *args: Any, config: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *args: Any,
        packed_seq_params: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        if packed_seq_params is None:  # [s, b, heads, width]
            parts = [tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)]
            return _attend(*parts, is_causal=True).permute(2, 0, 1, 3).flatten(2)
        bounds = packed_seq_params.cu_seqlens_q_padded.tolist()
        ranks = parallel_state.get_context_parallel_world_size()
        own = _places(bounds, parallel_state.get_context_parallel_rank(), ranks)
        seen = torch.cat([_places(bounds, rank, ranks) for rank in range(ranks)])
        keys, values = (_of_all_ranks(tensor) for tensor in (key, value))
        number = torch.bucketize(torch.arange(bounds[-1]), torch.tensor(bounds[1:]), right=True)
        mask = (seen <= own[:, None]) & (number[seen] == number[own][:, None])
        parts = [tensor.transpose(0, 1)[None] for tensor in (query, keys, values)]
        return _attend(*parts, attn_mask=mask)[0].transpose(0, 1).flatten(1)


def _places(bounds: list[int], rank: int, ranks: int) -> Tensor:
    """Return int64 [t / ranks], where a rank's tokens are among all."""
    if ranks == 1:
        return torch.arange(bounds[-1])
    parts = []
    for start, end in pairwise(bounds):
        size = (end - start) // (2 * ranks)
        for chunk in (rank, 2 * ranks - 1 - rank):
            parts.append(torch.arange(size) + start + chunk * size)
    return torch.cat(parts)


def _of_all_ranks(tensor: Tensor) -> Tensor:
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return tensor
    return torch.cat(all_gather(tensor.contiguous(), group=group))


def _attend(query: Tensor, key: Tensor, value: Tensor, **mask: Any) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **mask)


def block_spec(config: Any, *args: Any, vp_stage: int | None = None, **kwargs: Any) -> Any:
    """Return the layers of this stage, as Megatron's function does for TransformerEngine."""
    norm = gpt_layer_specs.LNImpl
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=NormedColumnParallelLinear,
            core_attention=PackedAttention,
            linear_proj=RowParallelLinear,
            q_layernorm=norm if config.qk_layernorm else IdentityOp,
            k_layernorm=norm if config.qk_layernorm else IdentityOp,
        ),
    )
    feed_forward = MLPSubmodules(
        linear_fc1=NormedColumnParallelLinear, linear_fc2=RowParallelLinear
    )
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            mlp=ModuleSpec(module=MLP, submodules=feed_forward),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    is_told = "vp_stage" in signature(get_num_layers_to_build).parameters
    stage = {"vp_stage": vp_stage} if is_told else {}
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config, **stage), norm)


def install() -> None:
    """Make verl's Megatron engine importable, and mbridge build layers that a CPU can run."""
    cuda: Any = torch.cuda
    cuda.mem_get_info = lambda *args: (0, 1)
    cuda.empty_cache = lambda: None
    # 0.12 asks TransformerEngine to quantise parameters, of which none is in 8 bits
    distrib_optimizer.quantize_param_shard = lambda *args, **kwargs: None
    for name in _VISION:
        sys.modules[f"mbridge.models.{name}"] = _Unused(f"mbridge.models.{name}")
    import_module("verl.models.mcore.mbridge")
    bridge: Any = import_module("mbridge.core.llm_bridge")
    # mbridge asks its signature whether layers differ among the chunks of a stage
    block_spec.__signature__ = signature(bridge.get_gpt_decoder_block_spec)  # type: ignore[attr-defined]
    bridge.get_gpt_decoder_block_spec = block_spec


def untie() -> None:
    """Have mbridge forget a tied model, which it takes every later one of its kind for."""
    bridge: Any = import_module("mbridge.models.qwen2")
    bridge.Qwen2Bridge._DIRECT_MAPPING["output_layer.weight"] = "lm_head.weight"
