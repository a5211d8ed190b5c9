"""A rollout engine with vLLM's tensors on a CPU, which MindSpeed-RL's own resharding fills.

Real are `MegatronShardingManager`, its weight container and adaptor, and the loading of
`VLLMInferEngine`; vLLM's model is a stand-in with vLLM's names and shapes. Import it after
`absent.install`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from mindspeed_rl.models.rollout.vllm_engine import VLLMInferEngine
from mindspeed_rl.workers.resharding.megatron_sharding_manager import MegatronShardingManager
from torch import Tensor, nn
from transformers import Qwen2Config

from tests.frameworks.mindspeed_rl.tiny_run import FAULTS as FAULT_OF_STEP
from tests.frameworks.mindspeed_rl.tiny_run import MODEL, PAD, SAMPLES, answer

_IS_FAULTY = bool(os.environ.get("PLANTED"))
_SHIFT = int(os.environ.get("ANSWERS_SHIFTED_BY", "0"))  # makes another run of it


class Qwen2ForCausalLM(nn.Module):
    """Parameters under vLLM's names, in the shapes that one of its ranks has them.

    The class's name is how MindSpeed-RL finds what loads its weights.
    """

    def __init__(self, ranks: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, vocab = config["hidden_size"], config["vocab_size"] // ranks
        head = hidden // config["num_attention_heads"]
        queries, keys = (config[f"num_{k}_heads"] // ranks for k in ("attention", "key_value"))
        inner = config["intermediate_size"] // ranks

        def layer() -> nn.Module:
            attention = nn.Module()
            attention.qkv_proj = nn.Linear(hidden, (queries + 2 * keys) * head)
            attention.o_proj = nn.Linear(queries * head, hidden, bias=False)
            mlp = nn.Module()
            mlp.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
            mlp.down_proj = nn.Linear(inner, hidden, bias=False)
            made = nn.Module()
            made.self_attn, made.mlp = attention, mlp
            made.input_layernorm = nn.RMSNorm(hidden)
            made.post_attention_layernorm = nn.RMSNorm(hidden)
            return made

        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab, hidden)
        self.model.layers = nn.ModuleList(layer() for _ in range(config["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def cuda(self, device: Any = None) -> Qwen2ForCausalLM:
        return self


class Engine(VLLMInferEngine):  # type: ignore[misc]
    """Takes weights as MindSpeed-RL's engine does, and answers by a formula."""

    step = 0

    def __init__(self, ranks: int, config: Mapping[str, Any] = MODEL) -> None:
        self.hf_config = Qwen2Config(**{k: v for k, v in config.items() if k != "model_type"})
        self.hf_config.lora_target_modules = None
        self.infer_tensor_parallel_size, self.infer_pipeline_parallel_size = ranks, 1
        self.infer_expert_parallel_size, self.infer_local_num_experts = 1, -1
        self.eplb_map, self.global_redundant_expert_num = None, 0
        with torch.random.fork_rng():
            self.model = Qwen2ForCausalLM(ranks, config)
        # what it starts with is not what the trainer has
        self.cpu_model = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    def sync_model_weights(self, params: dict[str, Tensor], load_format: str = "megatron") -> None:
        plant = FAULTS.get(FAULT_OF_STEP.get(self.step, "")) if _IS_FAULTY else None
        if plant is not None:
            plant(self, params)
        else:
            super().sync_model_weights(params, load_format)
        self.held = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def init_cache_engine(self) -> None:
        """Do nothing: there is no cache."""

    def free_cache_engine(self) -> None:
        """Do nothing."""

    def generate_sequences(self, prompts: Any, **kwargs: Any) -> Any:
        rows = [
            answer([int(i) for i in asked], sample, self.step + _SHIFT)
            for asked in prompts
            for sample in range(SAMPLES)
        ]
        width = max(map(len, rows))
        return [torch.tensor([row + [PAD] * (width - len(row)) for row in rows])]


ONE = "model.layers.1.mlp.gate_up_proj.weight"


def _stale(engine: Engine, params: Mapping[str, Tensor]) -> None:
    """Keep the weights of the step before."""
    for name, parameter in engine.model.named_parameters():
        parameter.data = engine.held[name].clone()


def _one(change: Callable[[Tensor], Tensor]) -> Callable[[Engine, dict[str, Tensor]], None]:
    def plant(engine: Engine, params: dict[str, Tensor]) -> None:
        params[ONE].copy_(change(params[ONE].clone()))
        super(Engine, engine).sync_model_weights(params)

    return plant


def _left_out(engine: Engine, params: dict[str, Tensor]) -> None:
    """Leave a layer's tensor as it was, as a name that does not match does."""
    del params[ONE]
    super(Engine, engine).sync_model_weights(params)
    dict(engine.model.named_parameters())[ONE].data = engine.held[ONE].clone()


def _missing(engine: Engine, params: dict[str, Tensor]) -> None:
    """Have the engine be without a layer's tensor."""
    super(Engine, engine).sync_model_weights(params)
    del engine.model.get_submodule(ONE.removesuffix(".gate_up_proj.weight")).gate_up_proj


FAULTS: Mapping[str, Callable[[Engine, dict[str, Tensor]], None]] = {
    "stale": _stale,
    "scaled": _one(lambda weight: 1.02 * weight),
    "permuted": _one(lambda weight: torch.cat(weight.chunk(2)[::-1])),
    "left_out": _left_out,
    "missing": _missing,
}


class Offloader:
    """Loses the actor's parameters wherever MindSpeed-RL takes them off the device."""

    def __init__(self, chunks: list[nn.Module]) -> None:
        self._parameters = [p for chunk in chunks for p in chunk.parameters()]
        self._kept: list[Tensor] = []

    def offload_param(self) -> None:
        self._kept = [p.detach().clone() for p in self._parameters]
        for parameter in self._parameters:
            parameter.data.fill_(float("nan"))

    def onload_param(self) -> None:
        for parameter, value in zip(self._parameters, self._kept, strict=bool(self._kept)):
            parameter.data.copy_(value)
        self._kept = []


def sharding_manager(chunks: Any, optimizer: Any, engine: Engine, groups: Any) -> Any:
    """Return the real manager, which takes the actor's weights away while the engine works."""
    return MegatronShardingManager(
        inference_engine=engine,
        optimizer=optimizer,
        train_param_offload=True,
        megatron_model=chunks,
        model_config=engine.hf_config,
        infer_tensor_parallel_size=engine.infer_tensor_parallel_size,
        infer_pipeline_parallel_size=1,
        infer_expert_parallel_size=1,
        parallel_state=groups,
        megatron_offloader=Offloader(chunks),
    )
