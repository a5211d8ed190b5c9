"""``align weights diff``: each planted fault is named, and equal weights stay silent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import Tensor

from align.cli.main import cli
from align.weights.measure import distance
from align.weights.permutations import row_hashes
from tests.unit.weight_models import save_model

Named = dict[str, Tensor]
LAYER = "model.layers.1."
Q, K, V = (f"{LAYER}self_attn.{n}_proj.weight" for n in "qkv")
GATE, UP, DOWN = (f"{LAYER}mlp.{n}_proj.weight" for n in ("gate", "up", "down"))
OUT = f"{LAYER}self_attn.o_proj.weight"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
HEADS, GROUPS, HEAD_DIM = 8, 4, 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("qwen2", "qwen2_tied", "qwen3_moe"):
        save_model(name, root / name)
    return root


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["weights", *map(str, arguments)])


def changed(
    models: Path, tmp_path: Path, change: Callable[[Named], None], name: str = "qwen2"
) -> Path:
    """Copy a model with a fault planted."""
    folder = tmp_path / "candidate"
    shutil.copytree(models / name, folder)
    named = load_file(folder / "model.safetensors")
    change(named)
    contiguous = {n: t.clone(memory_format=torch.contiguous_format) for n, t in named.items()}
    save_file(contiguous, folder / "model.safetensors")
    return folder


def document(reference: Path, candidate: Path, *options: str) -> dict[str, Any]:
    result = call("diff", reference, candidate, "--json", *options)
    assert result.stdout, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (
        1 if any(f["severity"] == "error" for f in found["findings"]) else 0
    )
    return found


def group(named: Named) -> None:
    """Keep q, k and v of the layer by query group, under their old names."""
    parts = [named[n].reshape(GROUPS, -1, 32) for n in (Q, K, V)]
    fused = torch.cat(parts, 1).reshape(-1, 32)
    named[Q], named[K], named[V] = torch.split(fused, [32, 16, 16])


def ungroup(named: Named) -> None:
    """Cut [all q][all k][all v] into query groups, as if it were interleaved."""
    fused = torch.cat([named[n] for n in (Q, K, V)]).reshape(GROUPS, 16, 32)
    named[Q] = fused[:, :8].reshape(32, 32)
    named[K], named[V] = fused[:, 8:12].reshape(16, 32), fused[:, 12:].reshape(16, 32)


def join_shards(named: Named) -> None:
    """Put two shards of (gate, up) one below the other and call the halves gate and up."""
    halves = zip(named[GATE].chunk(2), named[UP].chunk(2), strict=True)
    named[GATE], named[UP] = torch.cat([t for pair in halves for t in pair]).chunk(2)


def interleave_rotary(named: Named) -> None:
    for name in (Q, K):
        heads = named[name].reshape(-1, 2, HEAD_DIM // 2, 32)
        named[name] = heads.transpose(1, 2).reshape(-1, 32)


def exchange(first: str, second: str) -> Callable[[Named], None]:
    def change(named: Named) -> None:
        named[first], named[second] = named[second], named[first]

    return change


def scale(named: Named) -> None:
    named[DOWN] = named[DOWN] * 2.5


def turn(named: Named) -> None:
    named[OUT] = named[OUT].T


def noise(named: Named) -> None:
    named[DOWN] = named[DOWN] + 0.01 * torch.randn(32, 48)


def columns(named: Named) -> None:
    named[DOWN] = named[DOWN][:, torch.arange(47, -1, -1)]


def shuffle(named: Named) -> None:
    named[EMBEDDING] = named[EMBEDDING].roll(5, 0)


def through_bfloat16(named: Named) -> None:
    for name in named:
        named[name] = named[name].bfloat16().float()


def in_bfloat16(named: Named) -> None:
    for name in named:
        named[name] = named[name].bfloat16()


def train(named: Named) -> None:
    """Change one number in a hundred by one unit of bfloat16, as a few small steps do."""
    for name in (DOWN, UP):
        weight = named[name].bfloat16()
        bits = weight.view(torch.int16)
        bits.view(-1)[::100] += 1
        named[name] = weight.float()


def nan(named: Named) -> None:
    named[DOWN][3, 4] = torch.nan


def shift_layers(named: Named) -> None:
    """Give the second half of the layers the numbers of the first, as local names would."""
    for name in [n for n in named if ".layers.2." in n or ".layers.3." in n]:
        layer = int(name.split(".")[2])
        named[name] = named[name.replace(f".{layer}.", f".{layer - 2}.")]


FAULTS: list[tuple[Callable[[Named], None], str, str, int]] = [
    (group, "weights.permuted.qkv", "kept by query group and read as [all q]", 3),
    (ungroup, "weights.permuted.qkv", "kept as [all q][all k][all v] and read by query group", 3),
    (exchange(K, V), "weights.permuted.qkv", "k and v exchanged", 2),
    (interleave_rotary, "weights.permuted.qkv", "rotary pairs", 2),
    (exchange(GATE, UP), "weights.permuted.gate_up", "gate and up exchanged", 2),
    (join_shards, "weights.permuted.gate_up", "2 tensor-parallel shards joined", 2),
    (columns, "weights.permuted.rows", "same columns in another order", 1),
    (shuffle, "weights.permuted.rows", "order that no known layout gives", 1),
    (scale, "weights.scaled.by_2_5", "times 2.5", 1),
    (turn, "weights.transposed", "transposed", 1),
    (noise, "weights.different", "weights differ", 1),
    (train, "weights.different", "weights differ", 2),
    (nan, "weights.nonfinite", "NaN", 1),
    (through_bfloat16, "weights.rounded", "rounding", 51),
    (in_bfloat16, "weights.rounded", "rounding", 51),
    (shift_layers, "weights.other_tensor", "hold the numbers of others", 24),
]


@pytest.mark.parametrize(("change", "id", "words", "count"), FAULTS)
def test_a_planted_fault_is_named_and_nothing_else(
    models: Path,
    tmp_path: Path,
    change: Callable[[Named], None],
    id: str,
    words: str,
    count: int,
) -> None:
    found = document(models / "qwen2", changed(models, tmp_path, change))
    (finding,) = found["findings"]
    assert finding["id"] == id
    assert words in finding["title"]
    assert finding["zh"]["title"] != finding["title"]
    assert len(found["tensors"]) == count
    assert found["num_equal"] == found["num_compared"] - count == 51 - count


@pytest.mark.parametrize("to", ["--spec=te", "--spec=local", "--format=torch_dist"])
def test_the_clean_twin_in_another_layout_stays_silent(
    models: Path, tmp_path: Path, to: str
) -> None:
    for name in ("qwen2", "qwen2_tied", "qwen3_moe"):
        there = tmp_path / name
        assert call("convert", models / name, there, "--to=megatron", to).exit_code == 0
        found = document(models / name, there)
        assert (found["findings"], found["tensors"]) == ([], [])
        assert found["num_equal"] == found["num_compared"] > 40


def test_a_fault_is_recognised_through_a_coarser_dtype(models: Path, tmp_path: Path) -> None:
    def change(named: Named) -> None:
        group(named)
        in_bfloat16(named)

    found = document(models / "qwen2", changed(models, tmp_path, change))
    ids = {f["id"]: f for f in found["findings"]}
    assert set(ids) == {"weights.permuted.qkv", "weights.rounded"}
    assert "kept by query group" in ids["weights.permuted.qkv"]["title"]


def test_experts_in_another_order_are_called_by_their_own_names(
    models: Path, tmp_path: Path
) -> None:
    def change(named: Named) -> None:
        for kind in ("gate", "up", "down"):
            exchange(
                f"{LAYER}mlp.experts.2.{kind}_proj.weight",
                f"{LAYER}mlp.experts.5.{kind}_proj.weight",
            )(named)

    found = document(models / "qwen3_moe", changed(models, tmp_path, change, "qwen3_moe"))
    assert {f["id"] for f in found["findings"]} == {"weights.other_tensor"}
    details = {tensor["name"]: tensor["detail"] for tensor in found["tensors"]}
    name = f"{LAYER}mlp.experts.2.gate_proj.weight"
    assert details[name] == "is " + name.replace("experts.2", "experts.5")
    assert len(details) == 6


def test_a_missing_shard_is_named_with_its_tensors(models: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "m", tmp_path / "back"
    call("convert", models / "qwen2", there, "--to=megatron")
    call("convert", there, back, "--to=hf", "--shard-gb=0.00005")
    lost = sorted(back.glob("*.safetensors"))[1]
    lost.unlink()
    found = document(models / "qwen2", back)
    ids = {f["id"]: f for f in found["findings"]}
    assert set(ids) == {"weights.missing_file", "weights.missing_tensor"}
    assert str(lost) in ids["weights.missing_file"]["candidate"]


def test_a_head_that_drifted_from_its_embedding_is_named(models: Path, tmp_path: Path) -> None:
    def untie(named: Named) -> None:
        named[HEAD] = named[EMBEDDING] + 0.1

    folder = changed(models, tmp_path, untie, "qwen2_tied")
    found = document(models / "qwen2_tied", folder)
    ids = {f["id"]: f for f in found["findings"]}
    assert set(ids) == {"weights.head_diverged", "weights.different"}
    head = ids["weights.head_diverged"]
    assert (head["reference"], head["candidate"]) == ("tied", "separate")


def test_an_equal_head_of_its_own_is_as_good_as_a_tied_one(models: Path, tmp_path: Path) -> None:
    def copy(named: Named) -> None:
        named[HEAD] = named[EMBEDDING].clone()

    folder = changed(models, tmp_path, copy, "qwen2_tied")
    assert document(models / "qwen2_tied", folder)["findings"] == []


def test_a_missing_head_is_named_where_none_is_tied(models: Path, tmp_path: Path) -> None:
    def drop(named: Named) -> None:
        del named[HEAD]

    (finding,) = document(models / "qwen2", changed(models, tmp_path, drop))["findings"]
    assert finding["id"] == "weights.missing_tensor" and HEAD in finding["candidate"]


def test_rows_of_a_shorter_vocabulary_are_compared_and_the_rest_is_named(
    models: Path, tmp_path: Path
) -> None:
    def cut(named: Named) -> None:
        named[EMBEDDING], named[HEAD] = named[EMBEDDING][:80], named[HEAD][:80]

    folder = changed(models, tmp_path, cut)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 80}))
    found = document(models / "qwen2", folder)
    (finding,) = found["findings"]
    assert (finding["id"], finding["reference"], finding["candidate"]) == (
        "weights.vocabulary_rows",
        96,
        80,
    )
    assert found["tensors"] == []


def megatron(models: Path, tmp_path: Path, change: Callable[[Named, int], None]) -> Path:
    there = tmp_path / "m"
    call("convert", models / "qwen2", there, "--to=megatron", "--tp=2", "--spec=local")
    for rank in range(2):
        file = there / "release" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        saved = torch.load(file, weights_only=False)
        change(saved["model"], rank)
        torch.save(saved, file)
    return there


def test_padding_that_is_not_zero_is_a_note(models: Path, tmp_path: Path) -> None:
    def fill(named: Named, rank: int) -> None:
        named["output_layer.weight"][120:] += rank

    (finding,) = document(models / "qwen2", megatron(models, tmp_path, fill))["findings"]
    assert (finding["id"], finding["severity"]) == ("weights.padding_not_zero", "info")
    assert HEAD in finding["candidate"]


def test_copies_that_drifted_apart_over_ranks_are_named(models: Path, tmp_path: Path) -> None:
    def drift(named: Named, rank: int) -> None:
        named["decoder.layers.3.input_layernorm.weight"] += 0.01 * rank

    (finding,) = document(models / "qwen2", megatron(models, tmp_path, drift))["findings"]
    assert finding["id"] == "weights.copies_differ"
    assert "model.layers.3.input_layernorm.weight" in finding["candidate"]


def test_an_uncovered_tensor_is_a_finding(models: Path, tmp_path: Path) -> None:
    def add(named: Named) -> None:
        named["model.layers.0.self_attn.sinks"] = torch.ones(8)

    (finding,) = document(models / "qwen2", changed(models, tmp_path, add))["findings"]
    assert finding["id"] == "weights.uncovered" and "sinks [8]" in finding["candidate"]


def test_wrapped_names_are_the_same_names(models: Path, tmp_path: Path) -> None:
    def wrap(named: Named) -> None:
        for name in list(named):
            inner = name.replace("mlp.", "_fsdp_wrapped_module.mlp._orig_mod.")
            named[f"module.{inner}"] = named.pop(name)

    assert document(models / "qwen2", changed(models, tmp_path, wrap))["findings"] == []


def test_models_without_a_common_tensor_are_not_comparable(models: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "x" / "model.safetensors")
    result = call("diff", models / "qwen2", tmp_path / "x")
    assert result.exit_code == 3 and "nothing comparable" in result.stdout


def test_an_unknown_family_and_a_missing_config_name_the_fix(models: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "x" / "model.safetensors")
    assert "--config" in str(call("diff", tmp_path / "x", tmp_path / "x").exception)
    (tmp_path / "x" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "'gpt2'; the known families are" in str(
        call("diff", tmp_path / "x", tmp_path / "x").exception
    )


def test_the_text_is_shown_in_chinese_with_every_tensor(models: Path, tmp_path: Path) -> None:
    folder = changed(models, tmp_path, group)
    result = call("diff", models / "qwen2", folder, "--lang=zh", "--all")
    assert "51 个张量中 48 个逐位相同" in result.stdout
    assert f"  {Q}  permuted" in result.stdout
    assert result.exit_code == 1
    assert call("diff", models / "qwen2", folder, "--fail-on=never").exit_code == 0


def test_the_distance_is_that_of_float64() -> None:
    reference = torch.tensor([3.0, 4.0]).bfloat16()
    found = distance(reference, torch.tensor([3.0, 4.5]))
    assert found.rel_l2 == pytest.approx(0.1, rel=1e-15)
    assert found.max_abs == 0.5
    assert found.gain == pytest.approx((9 + 18) / 25, rel=1e-15)
    nonfinite = distance(torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.nan]))
    assert (nonfinite.num_nonfinite, nonfinite.rel_l2) == ((1, 1), 0.0)


def test_rows_that_differ_in_one_bit_have_different_hashes() -> None:
    rows = torch.zeros(64, 64, dtype=torch.int16)
    rows[torch.arange(64), torch.arange(64)] = 1
    assert row_hashes([rows]).unique().numel() == 64
