"""How one model is spread over ranks in Megatron-core, and what is planted into it."""

from __future__ import annotations

from typing import NamedTuple

from tests.frameworks.megatron.rows import EPSILON


class Case(NamedTuple):
    """A model; tensor, pipeline, expert ranks and virtual chunks; and how it is trained.

    Args:
        micro_batches: of the four rows.
        data: data-parallel ranks.
        distributed: Megatron's distributed optimizer reduces and steps parts of parameters.
        epsilon: Adam's.
        fault: a function of `planted`, and the layer it is for, None for all.
    """

    name: str
    ranks: tuple[int, int, int, int] = (1, 1, 1, 1)
    sequence: bool = False
    micro_batches: int = 2
    data: int = 1
    grouped: bool = False
    distributed: bool = False
    epsilon: float = EPSILON
    fault: tuple[str, int | None] | None = None

    @property
    def world(self) -> int:
        return self.ranks[0] * self.ranks[1] * self.data

    @property
    def label(self) -> str:
        tensor, pipeline, expert, chunks = self.ranks
        sizes = f"tp{tensor}-pp{pipeline}-ep{expert}-vpp{chunks}-dp{self.data}"
        tags = ("-sp" if self.sequence else "") + ("-grouped" if self.grouped else "")
        tags += "-do" if self.distributed else ""
        tags += f"-{self.epsilon:g}" if self.epsilon != EPSILON else ""
        fault = [str(part) for part in self.fault or () if part is not None]
        tags += f"-{''.join(fault)}" if fault else ""
        return f"{self.name}-{sizes}{tags}-{self.micro_batches}"

    @property
    def reference(self) -> str:
        """Name of the run of transformers that it is compared with."""
        return f"{self.name}-hf-{self.epsilon:g}"


MENDED = Case("deepseek_v3", (2, 1, 1, 1), sequence=True, fault=("reduced_key_positions", None))
"""Megatron-core itself leaves out a reduction of gradients here, which is put in."""
CASES = (
    Case("qwen2"),
    Case("qwen2", (2, 1, 1, 1), micro_batches=1),
    Case("qwen2", (2, 1, 1, 1), sequence=True),
    Case("qwen2", (1, 2, 1, 1)),
    Case("qwen2", (2, 2, 1, 1), sequence=True),
    Case("qwen2", (1, 2, 1, 2)),
    Case("qwen2", data=2),
    Case("qwen2", data=2, distributed=True),
    Case("qwen2_tied", (1, 2, 1, 1)),
    Case("qwen2_tied", (2, 1, 1, 1), sequence=True),
    Case("llama", (2, 1, 1, 1)),
    Case("qwen3", (2, 1, 1, 1), sequence=True),
    Case("qwen3_moe"),
    Case("qwen3_moe", grouped=True),
    Case("qwen3_moe", (2, 1, 1, 1), sequence=True),
    Case("qwen3_moe", (1, 1, 2, 1), data=2),
    Case("qwen2", (2, 1, 1, 1), sequence=True, epsilon=1e-8),
    Case("qwen2", data=2, distributed=True, epsilon=1e-8),
    Case("qwen3_moe", epsilon=1e-8),
    Case("deepseek_v3"),
    MENDED,
)


class Planted(NamedTuple):
    """A fault in one of the cases.

    Args:
        finding: its id.
        named: what the finding names first.
    """

    case: Case
    finding: str
    named: str


def planted(case: Case, fault: str, layer: int, finding: str, named: str) -> Planted:
    return Planted(case._replace(fault=(fault, layer)), finding, named.format(layer))


_TP1, _TP2, _TP2_SP, _PP2, _TP2_PP2 = CASES[:5]
_DISTRIBUTED, _TIED_PP2, _MOE, _MOE_TP2 = CASES[7], CASES[8], CASES[12], CASES[14]
_FORWARD, _BACKWARD = "forward.first_divergence", "backward.first_divergence"
_WEIGHTS, _DECAY = "forward.weights", "optimizer.weight_decay"
_NORM = "at model.layers.{}.post_attention_layernorm,"
_NORM_OUTPUT = "at the output of model.layers.{}.post_attention_layernorm,"
_ATTENTION = "at the input of model.layers.{}.self_attn.o_proj,"
_ROUTER = "at model.layers.{}.mlp.gate.routing,"
_NORM_GRADIENT = "1 of 51 parameters differ, first model.layers.{}.input_layernorm.weight,"
_EMBEDDING_GRADIENT = "1 of 50 parameters differ, first model.embed_tokens.weight,"
_HALVES = "2 of 51 parameters differ at step 1, most model.layers.{}.mlp."
_OUTPUT_WEIGHT = (
    "1 of 51 parameters differ at step 1, most model.layers.{}.self_attn.o_proj.weight,"
)
_VECTORS = "21 1-D parameters decay less in the reference"
PLANTED = (
    planted(_TP1, "epsilon", 2, _FORWARD, _NORM),
    planted(_TP1, "attention_scale", 1, _FORWARD, _ATTENTION),
    planted(_TP1, "unscheduled", 0, _DECAY, _VECTORS),
    planted(_TP2, "attention_scale", 2, _FORWARD, _ATTENTION),
    planted(_TP2, "partial_output", 1, _FORWARD, "at model.layers.{}.mlp.down_proj,"),
    planted(_TP2, "partial_input_gradient", 2, _BACKWARD, _NORM_OUTPUT),
    planted(_TP2_SP, "epsilon", 0, _FORWARD, _NORM),
    planted(_TP2_SP, "partial_norm_gradient", 2, _BACKWARD, _NORM_GRADIENT),
    planted(_PP2, "attention_scale", 3, _FORWARD, _ATTENTION),
    planted(_TIED_PP2, "partial_embedding_gradient", 0, _BACKWARD, _EMBEDDING_GRADIENT),
    planted(_TP2_PP2, "swapped_halves", 3, _WEIGHTS, _HALVES),
    planted(_TP2_PP2, "other_weight", 2, _WEIGHTS, _OUTPUT_WEIGHT),
    planted(_TP2_PP2, "partial_norm_gradient", 3, _BACKWARD, _NORM_GRADIENT),
    planted(_DISTRIBUTED, "unscheduled", 0, _DECAY, _VECTORS),
    planted(_MOE, "router_bias", 1, _FORWARD, _ROUTER),
    planted(_MOE_TP2, "router_bias", 3, _FORWARD, _ROUTER),
)
UNMENDED = Planted(
    MENDED._replace(fault=None),
    _BACKWARD,
    "at the output of model.layers.3.self_attn.kv_a_proj_with_mqa,",
)
"""Megatron-core as it is: a fault that nobody planted."""
DISTURBED = _TP2_PP2._replace(fault=("rounding", 0))
"""A weight moves by its last bit between training without sketches and with them."""
