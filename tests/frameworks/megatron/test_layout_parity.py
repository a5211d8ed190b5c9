"""Converted checkpoints in the real Megatron-core: same names, same shapes, same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from align.cli.main import cli
from tests.frameworks.megatron.ranks import run
from tests.unit.weight_models import CONFIGS, save_model

SCRIPT = Path(__file__).with_name("real_model.py")
VOCAB = 96
MULTIPLE = 40  # pads 96 rows to 120 on one rank, to 160 on two
LIMIT = 2e-6  # in float32, logits of about 2; measured 4.4e-7 to 1.5e-6


class Case(NamedTuple):
    """A model, Megatron's spec, and tensor, pipeline, expert ranks and virtual chunks."""

    name: str
    spec: str
    ranks: tuple[int, int, int, int]

    @property
    def rows(self) -> int:
        multiple = MULTIPLE * self.ranks[0]
        return -(-VOCAB // multiple) * multiple

    def job(self, task: str, folder: Path, out: Path) -> dict[str, Any]:
        return {
            "task": task,
            "folder": str(folder),
            "out": str(out),
            "rows": self.rows,
            "ranks": self.ranks,
            "grouped": "grouped" in self.spec,
        }


COMPUTED = [
    Case(name, spec, (tp, 1, 1, 1))
    for tp in (1, 2)
    for name, spec in (
        ("qwen2", "local"),
        ("qwen2_tied", "local"),
        ("llama", "local"),
        ("qwen3", "local"),
        ("qwen3_moe", "local"),
        ("qwen3_moe", "local-grouped"),
        ("deepseek_v3", "local"),
    )
]
WHOLE = [case for case in COMPUTED if case.ranks[0] == 1]
LOADED = [
    Case("qwen2", "local", (2, 2, 1, 1)),
    Case("qwen2", "local", (1, 2, 1, 2)),
    Case("qwen2_tied", "local", (2, 2, 1, 1)),
    Case("qwen3_moe", "local", (2, 2, 1, 2)),
    Case("qwen3_moe", "local", (1, 2, 4, 1)),
    Case("qwen3_moe", "local-grouped", (2, 1, 2, 1)),
]


def convert(source: Path, target: Path, *options: str) -> Path:
    result = CliRunner().invoke(cli, ["weights", "convert", str(source), str(target), *options])
    assert result.exit_code == 0, result.output
    return target


def converted(case: Case, root: Path, *further: str) -> Path:
    """Convert the case's model for its ranks."""
    sizes = [f"--{n}={r}" for n, r in zip(("tp", "pp", "ep", "vpp"), case.ranks, strict=True)]
    name = "_".join(map(str, (case.name, case.spec, *case.ranks, *further)))
    options = ("--to=megatron", f"--spec={case.spec}", f"--vocab-multiple={MULTIPLE}", *sizes)
    target = root / name
    return target if target.exists() else convert(root / case.name, target, *options, *further)


def out_of(case: Case, root: Path, task: str) -> Path:
    return root / ("_".join(map(str, (task, case.name, case.spec, *case.ranks))) + ".out")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert every model and let Megatron load and run it, in as few processes as possible."""
    root = tmp_path_factory.mktemp("layout")
    for name in CONFIGS:
        save_model(name, root / name)
    jobs = {world: [logits_job(case, root) for case in COMPUTED if case.ranks[0] == world]
            for world in (1, 2)}  # fmt: skip
    for case in WHOLE:
        folder = converted(case, root, "--format=torch_dist")
        jobs[1].append(case.job("load_dist", folder, out_of(case, root, "load_dist")))
        out = out_of(case, root, "save_dist")
        jobs[1].append(case.job("save_dist", converted(case, root), out))
    jobs[1] += load_jobs(root)
    run(jobs, root, str(SCRIPT))
    return root


def logits_job(case: Case, root: Path) -> dict[str, Any]:
    return case.job("logits", converted(case, root), out_of(case, root, "logits"))


def load_jobs(root: Path) -> list[dict[str, Any]]:
    """Return a job for every rank of every case, as a rank of a group that is not there."""
    jobs = []
    for case in LOADED:
        folder = converted(case, root)
        tensor, pipeline, expert, _ = case.ranks
        world = max(tensor, expert if tensor == 1 else tensor * expert) * pipeline
        for rank in range(world):
            out = root / f"load_{case}_{rank}"
            jobs.append({**case.job("load", folder, out), "fake": [rank, world]})
    return jobs


def check(out: Path) -> Path:
    error = Path(f"{out}.error")
    assert not error.exists(), error.read_text(encoding="utf-8")[-3000:]
    return out


def hugging_face_logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.arange(32).reshape(2, 16) * 7 % VOCAB
    with torch.no_grad():
        return model(input_ids=ids).logits


def assert_same_logits(case: Case, out: Path, root: Path) -> None:
    expected = hugging_face_logits(root / case.name)
    largest = expected.abs().max().item()
    error = (torch.load(check(out)) - expected).abs().max().item()
    print(f"{case}: logits differ by {error:.2g}, the largest is {largest:.2g}")
    assert error <= LIMIT


@pytest.mark.parametrize("case", COMPUTED, ids=str)
def test_a_converted_model_gives_the_logits_of_transformers(done: Path, case: Case) -> None:
    assert_same_logits(case, out_of(case, done, "logits"), done)


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_megatron_loads_our_distributed_checkpoint(done: Path, case: Case) -> None:
    assert_same_logits(case, out_of(case, done, "load_dist"), done)


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_a_distributed_checkpoint_of_megatron_converts_back_bit_for_bit(
    done: Path, case: Case
) -> None:
    saved = check(out_of(case, done, "save_dist"))
    source = done / case.name
    back = done / f"back_{saved.name}"
    convert(saved, back, "--to=hf", f"--config={source / 'config.json'}")
    expected, found = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_every_rank_of_megatron_loads_its_own_file(done: Path) -> None:
    for job in load_jobs(done):
        check(Path(job["out"]))
