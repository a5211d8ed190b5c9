"""``align weights convert``: bit for bit there and back, whole folders or none, nothing skipped."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from align.cli.main import cli
from dumps.readers.weights_checkpoint import read_checkpoint
from tests.unit.weight_models import CONFIGS, save_model

VARIANTS = [
    ("--spec=te",),
    ("--spec=local", "--tp=2", "--pp=2"),
    ("--spec=te", "--tp=4", "--vpp=2", "--pp=2"),
    ("--format=torch_dist",),
    ("--format=torch_dist", "--spec=local"),
]
EXPERT_VARIANTS = [
    ("--spec=te-grouped", "--tp=2", "--ep=2"),
    ("--spec=local-grouped", "--tp=2", "--pp=2", "--ep=4", "--vpp=2"),
    ("--spec=local", "--ep=8"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in CONFIGS:
        save_model(name, root / name, torch.bfloat16 if name == "qwen3" else torch.float32)
    return root


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["weights", *map(str, arguments)])


def convert(source: Path, target: Path, *options: str) -> Path:
    result = call("convert", source, target, *options)
    assert result.exit_code == 0, result.output or result.exception
    return target


def tensors(folder: Path) -> dict[str, Tensor]:
    found = {}
    for file in folder.glob("*.safetensors"):
        found.update(load_file(file))
    return found


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(t.dtype == second[n].dtype and torch.equal(t, second[n]) for n, t in first.items())


def variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, config in CONFIGS.items():
        has_experts = "moe_intermediate_size" in config
        for options in (*VARIANTS, *(EXPERT_VARIANTS if has_experts else ())):
            yield name, options


@pytest.mark.parametrize(("name", "options"), variants(), ids=lambda v: "".join(v))
def test_a_checkpoint_comes_back_bit_for_bit(
    models: Path, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    source = models / name
    there = convert(source, tmp_path / "megatron", "--to=megatron", *options)
    assert call("diff", source, there).exit_code == 0
    back = convert(there, tmp_path / "back", "--to=hf")
    assert same(tensors(source), tensors(back))
    assert json.loads((back / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )


def test_shards_of_a_rank_are_cut_as_megatron_cuts_them(models: Path, tmp_path: Path) -> None:
    there = convert(models / "qwen2", tmp_path / "m", "--to=megatron", "--tp=2", "--spec=local")
    whole = tensors(models / "qwen2")
    saved = torch.load(there / "release" / "mp_rank_01" / "model_optim_rng.pt", weights_only=False)[
        "model"
    ]
    gate, up = (whole[f"model.layers.1.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    expected = torch.cat([gate[24:], up[24:]])
    assert torch.equal(saved["decoder.layers.1.mlp.linear_fc1.weight"], expected)
    down = whole["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(saved["decoder.layers.1.mlp.linear_fc2.weight"], down[:, 24:])
    q, k, v = (whole[f"model.layers.1.self_attn.{n}_proj.weight"] for n in "qkv")
    groups = [
        torch.cat([q[8 * g : 8 * g + 8], k[4 * g : 4 * g + 4], v[4 * g : 4 * g + 4]])
        for g in (2, 3)
    ]
    qkv = saved["decoder.layers.1.self_attention.linear_qkv.weight"]
    assert torch.equal(qkv, torch.cat(groups))
    assert saved["embedding.word_embeddings.weight"].shape == (128, 32)  # 96 padded to 2 · 128
    assert not saved["embedding.word_embeddings.weight"].any()


def test_stacked_experts_of_transformers_5_are_the_same_model(models: Path, tmp_path: Path) -> None:
    source = models / "qwen3_moe"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    stacked = {name: t.contiguous() for name, t in model.state_dict().items()}
    assert stacked["model.layers.0.mlp.experts.gate_up_proj"].dim() == 3
    (tmp_path / "stacked").mkdir()
    save_file(stacked, tmp_path / "stacked" / "model.safetensors")
    shutil.copy(source / "config.json", tmp_path / "stacked")
    assert call("diff", source, tmp_path / "stacked").exit_code == 0
    back = convert(tmp_path / "stacked", tmp_path / "back", "--to=hf")
    assert same(tensors(source), tensors(back))


def test_fused_ranks_of_vllm_become_the_hugging_face_model(models: Path, tmp_path: Path) -> None:
    whole, ranks = tensors(models / "qwen3_moe"), 8  # 4 key heads: each on two ranks
    folder = tmp_path / "vllm"
    folder.mkdir()
    for rank in range(ranks):
        save_file(vllm_rank(whole, rank, ranks), folder / f"model-rank-{rank}-part-0.safetensors")
    shutil.copy(models / "qwen3_moe" / "config.json", folder)
    result = call("diff", models / "qwen3_moe", folder, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["candidate"]["layout"] == "vllm"
    assert same(whole, tensors(convert(folder, tmp_path / "back", "--to=hf")))


def vllm_rank(whole: dict[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """Cut and fuse by hand, as vLLM's loader does."""

    def cut(name: str, axis: int = 0, pieces: int = ranks) -> Tensor:
        return whole[name].chunk(pieces, axis)[rank * pieces // ranks]

    made = {n: t for n, t in whole.items() if "norm" in n or n.endswith("mlp.gate.weight")}
    made |= {n: cut(n) for n in ("model.embed_tokens.weight", "lm_head.weight")}
    for layer in range(4):
        head = f"model.layers.{layer}."
        attention, experts = f"{head}self_attn.", f"{head}mlp.experts."
        qkv = [cut(f"{attention}q_proj.weight")]
        qkv += [cut(f"{attention}{n}_proj.weight", pieces=4) for n in "kv"]
        made[f"{attention}qkv_proj.weight"] = torch.cat(qkv)
        made[f"{attention}o_proj.weight"] = cut(f"{attention}o_proj.weight", 1)
        pairs = [[cut(f"{experts}{e}.{n}_proj.weight") for n in ("gate", "up")] for e in range(8)]
        made[f"{experts}w13_weight"] = torch.stack([torch.cat(pair) for pair in pairs])
        down = [cut(f"{experts}{e}.down_proj.weight", 1) for e in range(8)]
        made[f"{experts}w2_weight"] = torch.stack(down)
    return {name: tensor.contiguous() for name, tensor in made.items()}


def test_large_checkpoints_are_written_in_shards_with_their_index(
    models: Path, tmp_path: Path
) -> None:
    there = convert(models / "qwen2", tmp_path / "m", "--to=megatron")
    back = convert(there, tmp_path / "back", "--to=hf", "--shard-gb=0.00005")
    index = json.loads((back / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in back.glob("*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == set(files)
    assert max(file.stat().st_size for file in back.glob("*.safetensors")) < 60_000
    assert same(tensors(models / "qwen2"), tensors(back))
    model = AutoModelForCausalLM.from_pretrained(back)
    assert torch.equal(model.lm_head.weight, tensors(back)["lm_head.weight"])


def test_a_dry_run_says_what_it_would_write_and_writes_nothing(
    models: Path, tmp_path: Path
) -> None:
    result = call(
        *("convert", models / "qwen3", tmp_path / "m", "--to=megatron", "--tp=2", "--dry-run")
    )
    assert result.exit_code == 0
    assert "would write" in result.stdout and "70 tensors" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(models: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").write_text("kept")
    result = call("convert", models / "qwen2", tmp_path / "m", "--to=megatron")
    assert "exists already" in str(result.exception)
    assert [file.name for file in tmp_path.rglob("*")] == ["m", "mine"]


def test_an_interrupted_conversion_leaves_nothing_behind(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch.save", fail)
    call("convert", models / "qwen2", tmp_path / "m", "--to=megatron")
    assert list(tmp_path.iterdir()) == []


def changed(models: Path, tmp_path: Path, name: str = "qwen2") -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path / "changed"
    shutil.copytree(models / name, folder)
    return folder, tensors(folder)


def test_a_name_no_rule_covers_stops_the_conversion_until_it_is_dropped(
    models: Path, tmp_path: Path
) -> None:
    folder, named = changed(models, tmp_path)
    save_file({**named, "model.layers.0.strange": torch.ones(3)}, folder / "model.safetensors")
    result = call("convert", folder, tmp_path / "m", "--to=megatron")
    assert result.exit_code == 1 and "model.layers.0.strange [3]" in result.stderr
    convert(folder, tmp_path / "m", "--to=megatron", "--drop=*.strange")


def test_a_shape_no_rule_covers_stops_the_conversion(models: Path, tmp_path: Path) -> None:
    folder, named = changed(models, tmp_path)
    named["model.norm.weight"] = torch.ones(33)
    save_file(named, folder / "model.safetensors")
    result = call("convert", folder, tmp_path / "m", "--to=megatron")
    assert result.exit_code == 1
    assert "model.norm.weight [33]: the configuration makes it 32 in all" in result.stderr


def test_a_rank_without_its_file_stops_the_conversion(models: Path, tmp_path: Path) -> None:
    there = convert(models / "qwen2", tmp_path / "m", "--to=megatron", "--tp=2", "--pp=2")
    shutil.rmtree(there / "release" / "mp_rank_01_001")
    result = call("convert", there, tmp_path / "back", "--to=hf")
    assert result.exit_code == 1
    assert "tensor rank 1, pipeline rank 1, expert rank 0" in result.stderr
    assert "1 of 2 tensor-parallel ranks have it" in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--tp=3",), "query groups"),
        (("--pp=3",), "layers"),
        (("--ep=2",), "experts"),
        (("--format=torch_dist", "--tp=2"), "whole tensors"),
    ],
)
def test_ranks_that_do_not_divide_the_model_are_refused(
    models: Path, tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    result = call("convert", models / "qwen2", tmp_path / "m", "--to=megatron", *options)
    assert named in str(result.exception)


class Evil:
    def __reduce__(self) -> tuple:
        return print, ("this ran",)


def test_an_archive_that_names_a_program_is_read_without_running_it(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = convert(models / "qwen2", tmp_path / "m", "--to=megatron")
    file = there / "release" / "mp_rank_00" / "model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    torch.save({**saved, "rng_state": [Evil()]}, file)
    assert len(read_checkpoint(there).shards[0].tensors) == 31
    assert "this ran" not in capsys.readouterr().out


def test_metadata_that_names_a_program_is_read_without_running_it(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = convert(models / "qwen2", tmp_path / "m", "--to=megatron", "--format=torch_dist")
    file = there / "release" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    metadata.planner_data = Evil()
    file.write_bytes(pickle.dumps(metadata))
    assert len(read_checkpoint(there).shards[0].tensors) == 31
    assert "this ran" not in capsys.readouterr().out


def test_a_file_of_the_old_pickle_format_needs_the_word_unsafe(
    models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copy(models / "qwen2" / "config.json", folder)
    named = tensors(models / "qwen2")
    torch.save(named, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    result = call("convert", folder, tmp_path / "m", "--to=hf")
    assert "--unsafe-pickle" in str(result.exception)
    assert same(named, tensors(convert(folder, tmp_path / "m", "--to=hf", "--unsafe-pickle")))


def test_a_torch_archive_is_read_like_torch_reads_it(models: Path, tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    views = {
        "sliced": base[1:3, ::2],
        "turned": base.T,
        "empty": base[:0],
        "half": base.bfloat16(),
        "number": torch.tensor(3),
        "parameter": torch.nn.Parameter(base[0].clone()),
    }
    torch.save({"nested": views}, tmp_path / "x.bin")
    found = read_checkpoint(tmp_path / "x.bin").shards[0].tensors
    assert found.keys() == {f"nested.{name}" for name in views}
    for name, tensor in views.items():
        stored = found[f"nested.{name}"]
        assert torch.equal(stored.load(), tensor.detach())
        assert (stored.shape, stored.dtype) == (tuple(tensor.shape), str(tensor.dtype)[6:])


@pytest.mark.parametrize("kept", [0, 7, 100, 20_000])
def test_a_cut_off_safetensors_file_is_named(models: Path, tmp_path: Path, kept: int) -> None:
    folder, _ = changed(models, tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    result = call("convert", folder, tmp_path / "m", "--to=megatron")
    assert "cannot be read as safetensors" in str(result.exception)
    assert str(file) in str(result.exception)
