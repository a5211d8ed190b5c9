"""Modules of any layout give their features the address Hugging Face gives them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from align.layout.address import Address, module_addresses
from align.layout.dialect import MEGATRON_LOCAL, VLLM
from align.layout.entries import Place, whole
from align.layout.family import Family, family_of
from align.layout.sizes import Sizes, sizes_of

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


# what put out neither weights' features nor the hidden state, or pass their input on
_INNER = re.compile(
    r"Identity|Dropout|DotProductAttention|FusedScaleMaskSoftmax|RotaryEmbedding|GPTModel|"
    r"TransformerBlock"
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
    place = Place(ranks, layers, range(sizes.experts), sizes.vocab)
    found = module_addresses(family, sizes, MEGATRON_LOCAL, place, rank)
    compared = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        name, kind = line.split()[:2]
        if _INNER.search(kind) or ("local_experts" in name and kind == "MLP"):
            continue
        addresses = found[name]
        shape = re.search(r"out=\[*([\d, ]+)\]", line)
        assert shape is not None
        width = int(shape.group(1).split(",")[-1])
        assert sum(len(address.columns) for address in addresses) == width, name
        compared += 1
    assert compared > 10
