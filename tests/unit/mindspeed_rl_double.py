"""A small double of MindSpeed-RL: its actor's tensors, its resharding, and the order of its calls.

Names and signatures are those of its master, which `mindspeed_rl_signatures` has recorded; a test
holds them against that. The actor has Megatron's names and layout, the engine vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

HIDDEN, HEADS, GROUPS, SIZE, INNER, VOCAB = 16, 4, 2, 4, 24, 40
CONFIG = {
    **{"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": HIDDEN, "vocab_size": VOCAB},
    **{"intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS},
    **{"rms_norm_eps": 1e-6, "max_position_embeddings": 32, "tie_word_embeddings": False},
}


class Attention(nn.Module):
    """Megatron's: qkv lies group by group, and activations are [s, b, h]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_qkv = nn.Linear(HIDDEN, (HEADS + 2 * GROUPS) * SIZE)
        self.linear_proj = nn.Linear(HEADS * SIZE, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        length, rows, _ = hidden.shape
        each = HEADS // GROUPS
        mixed = self.linear_qkv(hidden).view(length, rows, GROUPS, each + 2, SIZE)
        query, key, value = mixed.permute(1, 2, 3, 0, 4).split([each, 1, 1], 2)
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (query @ key.mT / SIZE**0.5).masked_fill(causal, -1e9)
        mixed = scores.softmax(-1) @ value
        return self.linear_proj(mixed.permute(3, 0, 1, 2, 4).reshape(length, rows, -1))


class Mlp(nn.Module):
    """Megatron's gated one: gate above up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.linear_fc2 = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.linear_fc1(hidden).chunk(2, -1)
        return self.linear_fc2(nn.functional.silu(gate) * up)


class Layer(nn.Module):
    """One of the decoder's, with the number that Megatron gives it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.input_layernorm, self.pre_mlp_layernorm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.self_attention, self.mlp = Attention(), Mlp()

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attention(self.input_layernorm(hidden))
        return hidden + self.mlp(self.pre_mlp_layernorm(hidden))


class Embedding(nn.Module):
    """Megatron's."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, ids: Tensor) -> Tensor:
        return self.word_embeddings(ids).transpose(0, 1).contiguous()


class Decoder(nn.Module):
    """Megatron's block of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(number) for number in (1, 2))
        self.final_layernorm = nn.RMSNorm(HIDDEN)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return self.final_layernorm(hidden)


class Actor(nn.Module):
    """A GPTModel."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = Embedding(), Decoder()
        self.output_layer = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Any) -> Tensor:
        hidden = self.decoder(self.embedding(input_ids))
        return self.output_layer(hidden).transpose(0, 1)


def engine_model() -> nn.Module:
    """Return a model with vLLM's names and shapes."""
    model = nn.Module()
    model.model, model.lm_head = nn.Module(), nn.Linear(HIDDEN, VOCAB, bias=False)
    model.model.embed_tokens, model.model.norm = nn.Embedding(VOCAB, HIDDEN), nn.RMSNorm(HIDDEN)
    model.model.layers = nn.ModuleList()
    for _ in range(2):
        layer = nn.Module()
        layer.self_attn, layer.mlp = nn.Module(), nn.Module()
        layer.self_attn.qkv_proj = nn.Linear(HIDDEN, (HEADS + 2 * GROUPS) * SIZE)
        layer.self_attn.o_proj = nn.Linear(HEADS * SIZE, HIDDEN, bias=False)
        layer.mlp.gate_up_proj = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        layer.mlp.down_proj = nn.Linear(INNER, HIDDEN, bias=False)
        layer.input_layernorm = nn.RMSNorm(HIDDEN)
        layer.post_attention_layernorm = nn.RMSNorm(HIDDEN)
        model.model.layers.append(layer)
    return model


NAMES = (
    ("embedding.word_embeddings", "model.embed_tokens"),
    ("decoder.layers", "model.layers"),
    ("decoder.final_layernorm", "model.norm"),
    ("self_attention.linear_qkv", "self_attn.qkv_proj"),
    ("self_attention.linear_proj", "self_attn.o_proj"),
    ("pre_mlp_layernorm", "post_attention_layernorm"),
    ("mlp.linear_fc1", "mlp.gate_up_proj"),
    ("mlp.linear_fc2", "mlp.down_proj"),
    ("output_layer", "lm_head"),
)


def for_engine(actor: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the actor's weights as vLLM holds them: q of all groups, then k, then v."""
    each = HEADS // GROUPS
    for name, weight in actor.named_parameters():
        value = weight.detach().clone()
        if "linear_qkv" in name:
            parts = value.view(GROUPS, (each + 2) * SIZE, -1).split([each * SIZE, SIZE, SIZE], 1)
            value = torch.cat([part.flatten(0, 1) for part in parts]).view_as(weight)
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        yield name, value


class Optimizer:
    """Megatron's FP32Optimizer, as far as it is asked."""

    def __init__(self, actor: nn.Module) -> None:
        self.optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)

    def step(self) -> tuple[bool, float, None]:
        self.optimizer.step()
        return True, 1.0, None


def groups() -> dict[str, SimpleNamespace]:
    """Return Megatron's and vLLM's groups of one rank, by the modules that hold them."""

    def zero(**_: Any) -> int:
        return 0

    def one(**_: Any) -> int:
        return 1

    megatron = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_tensor_model_parallel_rank=zero,
        get_tensor_model_parallel_world_size=one,
        get_data_parallel_rank=zero,
        get_data_parallel_world_size=one,
        get_context_parallel_world_size=one,
    )
    vllm = SimpleNamespace(
        get_tensor_model_parallel_rank=zero,
        get_tensor_model_parallel_world_size=one,
        get_tensor_model_parallel_group=lambda: SimpleNamespace(first_rank=0),
    )
    return {
        "megatron.core.parallel_state": megatron,
        "vllm.distributed.parallel_state": vllm,
    }


def modules() -> dict[str, ModuleType]:
    """Return the modules that a capture of sketches hooks, by name below ``mindspeed_rl``."""

    class MegatronStyleVllmWeightContainer:
        def __init__(self, megatron_model: Any, vllm_model: Any) -> None:
            self.megatron_model, self.vllm_model = megatron_model, vllm_model

        def get_infer_params(self) -> Any:
            return dict(for_engine(self.megatron_model[0]))

    class MegatronShardingManager:
        """Takes the actor's parameters off the device, which leaves NaN, while the engine works."""

        def __init__(self, inference_engine: Any, megatron_model: Any) -> None:
            self.inference_engine, self.train_model = inference_engine, megatron_model
            model = inference_engine.model
            self.vllm_weight_container = MegatronStyleVllmWeightContainer(megatron_model, model)

        def enter_infer_mode(self) -> None:
            infer_params = self.vllm_weight_container.get_infer_params()
            self.kept = [p.detach().clone() for p in self.train_model[0].parameters()]
            for parameter in self.train_model[0].parameters():
                parameter.data.fill_(float("nan"))
            self.inference_engine.sync_model_weights(infer_params)

        def exit_infer_mode(self) -> None:
            for parameter, value in zip(self.train_model[0].parameters(), self.kept, strict=True):
                parameter.data.copy_(value)

    class BaseTrainingEngine:
        role = "actor"

        def __init__(self, model: Any, optimizer: Any) -> None:
            self.model, self.optimizer = model, optimizer

        def _get_forward_batch_info(self, batch_iter: Any) -> Any:
            batch = next(batch_iter)
            ids = batch["input_ids"]
            return ids, torch.arange(ids.shape[1]).expand_as(ids), batch, None

        def forward(self, data: Any) -> Tensor:
            ids, positions, _, _ = self._get_forward_batch_info(iter([data]))
            logits: Tensor = self.model[0](
                input_ids=ids, position_ids=positions, attention_mask=None
            )
            return logits

        def update(self, data: Any, kl_ctrl: Any = None) -> Any:
            for parameter in self.model[0].parameters():
                parameter.grad = None
            logits = self.forward(data)
            lengths = (data["prompt_length"] + data["response_length"]).view(-1, 1)
            counts = torch.arange(logits.shape[1]) < lengths
            logits.log_softmax(-1)[counts][:, 3].mean().neg().backward()
            return self.optimizer.step()

    class ActorHybridWorkerBase:
        data: Any
        iteration = 0
        rl_config = SimpleNamespace(n_samples_per_prompt=1)
        megatron_config = SimpleNamespace(context_parallel_size=1)

        def __init__(self, engine: Any) -> None:
            actor = Actor()
            self.model, self.optimizer = [actor], Optimizer(actor)
            self.inference_model = engine
            self.sharding_manager = MegatronShardingManager(engine, self.model)
            self.train_actor = BaseTrainingEngine(self.model, self.optimizer)

        def generate_sequences(self) -> None:
            self.sharding_manager.enter_infer_mode()
            self.sharding_manager.exit_infer_mode()

        def enter_infer_mode(self) -> None:
            self.sharding_manager.enter_infer_mode()

        def compute_log_prob(self, data: Any) -> None:
            with torch.no_grad():
                self.train_actor.forward(data)

        def update(self, kl_ctrl: Any = None, skip_actor_log_prob: bool = False) -> None:
            self.train_actor.update(self.data, kl_ctrl)
            self.iteration += 1

    return {
        name: _module(name, kind)
        for name, kind in (
            ("workers.resharding.vllm_weight_container", MegatronStyleVllmWeightContainer),
            ("workers.resharding.megatron_sharding_manager", MegatronShardingManager),
            ("models.base.base_training_engine", BaseTrainingEngine),
            ("workers.actor_hybrid_worker", ActorHybridWorkerBase),
        )
    }


def _module(name: str, kind: type) -> ModuleType:
    made = ModuleType(f"mindspeed_rl.{name}")
    setattr(made, kind.__name__, kind)
    return made
