"""Modules of any layout give their features the address Hugging Face gives them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from align.layout.address import Address, input_addresses, module_addresses
from align.layout.dialect import (
    HUGGINGFACE,
    MEGATRON_LOCAL,
    MEGATRON_LOCAL_GROUPED,
    MEGATRON_TE,
    MEGATRON_TE_GROUPED,
    STACKED,
    VLLM,
    Dialect,
)
from align.layout.entries import Place, entries, whole
from align.layout.family import Family, family_of
from align.layout.rank_weights import rank_weights
from align.layout.sizes import Sizes, sizes_of
from tests.unit.weight_models import CONFIGS

# the model of the recorded module lists: 8 heads, 2 groups, head_dim 8, ffn 96, 4 layers
QWEN2 = {
    "model_type": "qwen2",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
MOE = {
    **QWEN2,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "moe_intermediate_size": 48,
}


def model(config: dict) -> tuple[Family, Sizes]:
    return family_of(config, where="config.json"), sizes_of(config, where="config.json")


def by_name(addresses: tuple[Address, ...]) -> dict[str, Address]:
    return {address.name: address for address in addresses}


def test_the_second_rank_of_a_fused_qkv_holds_the_second_query_group() -> None:
    family, sizes = model(QWEN2)
    place = whole(sizes, ranks=2)
    found = module_addresses(family, sizes, MEGATRON_LOCAL, place, rank=1)
    qkv = by_name(found["decoder.layers.3.self_attention.linear_qkv"])
    assert qkv["model.layers.3.self_attn.q_proj"].columns.tolist() == list(range(32))
    assert qkv["model.layers.3.self_attn.q_proj"].features.tolist() == list(range(32, 64))
    assert qkv["model.layers.3.self_attn.k_proj"].columns.tolist() == list(range(32, 40))
    assert qkv["model.layers.3.self_attn.k_proj"].features.tolist() == list(range(8, 16))
    assert qkv["model.layers.3.self_attn.v_proj"].columns.tolist() == list(range(40, 48))


def test_a_rank_of_the_first_feed_forward_holds_its_part_of_gate_and_of_up() -> None:
    family, sizes = model(QWEN2)
    found = module_addresses(family, sizes, MEGATRON_LOCAL, whole(sizes, ranks=2), rank=1)
    halves = by_name(found["decoder.layers.0.mlp.linear_fc1"])
    gate, up = (halves[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up"))
    assert gate.columns.tolist() == list(range(48)) and up.columns.tolist() == list(range(48, 96))
    assert gate.features.tolist() == up.features.tolist() == list(range(48, 96))


def test_a_layer_of_the_second_stage_has_its_global_number() -> None:
    family, sizes = model(QWEN2)
    place = Place(1, range(2, 4), range(0), sizes.vocab, is_first=False)
    found = module_addresses(family, sizes, MEGATRON_LOCAL, place, rank=0)
    assert [a.name for a in found["decoder.layers.0"]] == ["model.layers.2"]
    assert [a.name for a in found["decoder.layers.1.mlp"]] == ["model.layers.3.mlp"]
    assert "decoder.layers.2" not in found


def test_every_feature_of_every_rank_has_one_address() -> None:
    family, sizes = model(QWEN2)
    seen: dict[str, list[int]] = {}
    for rank in range(2):
        place = whole(sizes, ranks=2, padded_vocab=160)
        for address in module_addresses(family, sizes, MEGATRON_LOCAL, place, rank)["output_layer"]:
            seen.setdefault(address.name, []).extend(address.features.tolist())
    assert seen == {"lm_head": list(range(128))}


def test_a_fused_module_of_vllm_splits_into_q_k_v_of_its_rank() -> None:
    family, sizes = model(QWEN2)
    found = module_addresses(family, sizes, VLLM, whole(sizes, ranks=2), rank=1)
    qkv = by_name(found["model.layers.0.self_attn.qkv_proj"])
    assert qkv["model.layers.0.self_attn.k_proj"].columns.tolist() == list(range(32, 40))
    assert qkv["model.layers.0.self_attn.k_proj"].features.tolist() == list(range(8, 16))


def test_index_tensors_pick_what_the_fused_output_holds() -> None:
    family, sizes = model(QWEN2)
    query, key, value = torch.randn(5, 64), torch.randn(5, 16), torch.randn(5, 16)
    groups = [(query[:, 32 * g : 32 * g + 32], key, value) for g in range(2)]
    fused = torch.cat(
        [torch.cat([q, k[:, 8 * g : 8 * g + 8], v[:, 8 * g : 8 * g + 8]], 1) for g, (q, k, v) in
         enumerate(groups)], 1
    )  # fmt: skip
    found = module_addresses(family, sizes, MEGATRON_LOCAL, whole(sizes), rank=0)
    for address in found["decoder.layers.0.self_attention.linear_qkv"]:
        whole_tensor = {"q": query, "k": key, "v": value}[address.name[-6]]
        assert torch.equal(fused[:, address.columns], whole_tensor[:, address.features])


def test_each_head_of_a_norm_has_its_place_among_all_heads() -> None:
    family, sizes = model({**MOE, "model_type": "qwen3"})
    found = module_addresses(family, sizes, MEGATRON_LOCAL, whole(sizes, ranks=2), rank=1)
    (query,) = found["decoder.layers.0.self_attention.q_layernorm"]
    (key,) = found["decoder.layers.0.self_attention.k_layernorm"]
    assert query.features.tolist() == list(range(64, 128)) and not query.is_whole
    assert key.features.tolist() == list(range(16, 32))


def test_a_key_head_that_two_ranks_hold_has_one_address() -> None:
    family, sizes = model(QWEN2)
    place = whole(sizes, ranks=4)
    names = [
        {a.name[-6:] for a in module_addresses(family, sizes, VLLM, place, rank)[QKV]}
        for rank in range(4)
    ]
    assert names == [{"q_proj", "k_proj", "v_proj"}, {"q_proj"}] * 2


def test_the_input_of_a_row_parallel_module_is_the_part_of_its_rank() -> None:
    family, sizes = model(QWEN2)
    found = input_addresses(family, sizes, MEGATRON_LOCAL, whole(sizes, ranks=2), rank=1)
    (address,) = found["decoder.layers.3.mlp.linear_fc2"]
    assert address.name == "model.layers.3.mlp.down_proj" and not address.is_whole
    assert address.features.tolist() == list(range(48, 96))
    assert "decoder.layers.3.mlp.linear_fc1" not in found


QKV = "model.layers.0.self_attn.qkv_proj"
LAYOUTS = [
    (name, dialect, ranks)
    for name in CONFIGS
    for dialect in (
        HUGGINGFACE,
        STACKED,
        MEGATRON_LOCAL,
        MEGATRON_LOCAL_GROUPED,
        MEGATRON_TE,
        MEGATRON_TE_GROUPED,
        VLLM,
    )
    for ranks in (1, 2)
    if dialect.framework != "huggingface" or ranks == 1
]


@pytest.mark.parametrize(
    ("name", "dialect", "ranks"), LAYOUTS, ids=lambda v: "+".join(getattr(v, "keys", ())) or str(v)
)
def test_the_parts_of_all_ranks_make_up_every_canonical_tensor_once(
    name: str, dialect: Dialect, ranks: int
) -> None:
    config = {**CONFIGS[name], "model_type": re.sub("_(tied|bias)$", "", name)}
    family, sizes = model(config)
    random, pieces = torch.Generator().manual_seed(0), {}
    expected = {}
    for entry in entries(family, sizes, STACKED, whole(sizes)):
        for piece in entry.pieces:
            pieces[piece.name] = torch.randn(piece.shape, generator=random)
        made = entry.op.forward([pieces[p.name] for p in entry.pieces])[0]
        expected[entry.name] = made if made.ndim < 3 else made.flatten(0, 1)
    if sizes.tied:
        del expected["lm_head.weight"]
    found = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    places = [
        Place(ranks, layers, experts, 100, is_first=not layers.start, is_last=layers.stop == 4)
        for layers in (range(3), range(3, 4))
        for experts in (range(5), range(5, 8))
    ]
    for place in places:
        for rank in range(ranks):
            weights = rank_weights(family, sizes, dialect, place, rank)
            for entry in entries(family, sizes, dialect, place):
                weight = weights[entry.name]
                if place.experts.start and not weight.is_expert:
                    continue
                own = entry.encode([pieces[p.name] for p in entry.pieces], rank)
                for key, part, row, column in weight.cuts(own):
                    add(found[key], part, row, column)
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def add(whole_tensor: torch.Tensor, part: torch.Tensor, row: int, column: int) -> None:
    rows = slice(row, row + len(part))
    if part.ndim == 1:
        whole_tensor[rows] += part
    else:
        whole_tensor[rows, column : column + part.shape[1]] += part


def test_a_block_of_a_parameter_is_cut_like_the_whole() -> None:
    family, sizes = model(QWEN2)
    weights = rank_weights(family, sizes, MEGATRON_LOCAL, whole(sizes, ranks=1), 0)
    weight = weights["decoder.layers.0.self_attention.linear_qkv.weight"]
    tensor = torch.randn(96, 64)
    made = {n: torch.zeros(64 if "q_proj" in n else 16, 64) for n, *_ in weight.cuts(tensor)}
    blocks = {n: torch.zeros_like(t) for n, t in made.items()}
    for key, part, row, column in weight.cuts(tensor):
        add(made[key], part, row, column)
    for rows, columns in (((0, 37), (0, 64)), ((37, 38), (0, 5)), ((37, 38), (5, 64))):
        block = tensor[slice(*rows), slice(*columns)]
        for key, part, row, column in weight.cuts(block, rows[0], columns[0]):
            add(blocks[key], part, row, column)
    for key, part, row, column in weight.cuts(tensor[38:], 38):
        add(blocks[key], part, row, column)
    assert all(torch.equal(blocks[key], tensor) for key, tensor in made.items())


# see the tokens sent to one expert, no token a row, or put out nothing of a layer
_INNER = re.compile(r"experts|RotaryEmbedding|GPTModel|IdentityFuncOp")
_PASSING = re.compile(
    r"IdentityOp|Dropout|DotProductAttention|FusedScaleMaskSoftmax|VocabParallelEmbedding"
)


@pytest.mark.parametrize(
    ("config", "file", "rank", "ranks", "layers"),
    [
        (QWEN2, "out_qwen2_mcore0.12.1_tp1pp1_rank0.txt", 0, 1, range(4)),
        (QWEN2, "out_qwen2_mcore0.12.1_tp2pp1sp_rank1.txt", 1, 2, range(4)),
        (QWEN2, "out_qwen2_mcore0.12.1_tp1pp2_rank1.txt", 0, 1, range(2, 4)),
        (MOE, "out_qwen3moe_mcore0.12.1_tp1pp1_rank0.txt", 0, 1, range(4)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_recorded_module_of_megatron_has_an_address_of_its_width(
    shared: Path, config: dict, file: str, rank: int, ranks: int, layers: range
) -> None:
    path = shared / "reference" / "megatron_cpu" / "observed" / file
    if not path.is_file():
        pytest.skip(f"needs the recorded modules: no {path}")
    family, sizes = model(config)
    place = Place(ranks, layers, range(sizes.experts), sizes.vocab, is_first=not layers.start)
    found = module_addresses(family, sizes, MEGATRON_LOCAL, place, rank)
    compared = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        name, kind = line.split()[:2]
        if _INNER.search(name) or _INNER.search(kind):
            continue
        addresses = found[name]
        if _PASSING.search(kind):
            assert addresses == (), name
            continue
        shape = re.search(r"out=\[*([\d, ]+)\]", line)
        assert shape is not None
        lengths = [int(length) for length in shape.group(1).split(",")]
        width = math.prod(lengths[2:] if len(lengths) > 2 else lengths[1:])
        assert sum(len(address.columns) for address in addresses) == width, name
        compared += 1
    assert compared > 10
