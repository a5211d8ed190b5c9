"""Converted checkpoints in the real Megatron-core: same names, same shapes, same logits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from align.cli.main import cli
from tests.unit.weight_models import CONFIGS, save_model

SCRIPT = Path(__file__).with_name("real_model.py")
VOCAB = 96
LIMIT = 2e-6  # measured with the conversions of the reference: 6.6e-7 to 8.3e-7


def run(task: str, folder: Path, out: Path, world: int = 1, **options: Any) -> None:
    """Start the script on every rank of a gloo group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(SCRIPT), task, str(folder), str(out), json.dumps(options)]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            env={**base, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [p.returncode for p in started] == [0] * world, "\n".join(outputs)[-3000:]


def convert(source: Path, target: Path, *options: str) -> Path:
    result = CliRunner().invoke(cli, ["weights", "convert", str(source), str(target), *options])
    assert result.exit_code == 0, result.output
    return target


def hugging_face_logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.arange(32).reshape(2, 16) * 7 % VOCAB
    with torch.no_grad():
        return model(input_ids=ids).logits


CASES = [
    ("qwen2", "local", 1, False),
    ("qwen2", "local", 2, False),
    ("qwen2_tied", "local", 2, False),
    ("qwen3", "local", 1, False),
    ("qwen3_moe", "local", 1, False),
    ("qwen3_moe", "local-grouped", 1, True),
    ("qwen3_moe", "local", 2, False),
    ("qwen3_moe", "local-grouped", 2, True),
    ("deepseek_v3", "local", 1, False),
    ("deepseek_v3", "local", 2, False),
]


@pytest.mark.parametrize(("name", "spec", "tp", "grouped"), CASES)
def test_a_converted_model_gives_the_logits_of_transformers(
    tmp_path: Path, name: str, spec: str, tp: int, grouped: bool
) -> None:
    source = save_model(name, tmp_path / "hf")
    options = ("--to", "megatron", "--spec", spec, "--tp", str(tp), "--vocab-multiple", "40")
    target = convert(source, tmp_path / "megatron", *options)
    rows = -(-VOCAB // (40 * tp)) * 40 * tp
    out = tmp_path / "logits.pt"
    run("logits", target, out, tp, rows=rows, ranks=(tp, 1, 1, 1), grouped=grouped)
    expected = hugging_face_logits(source)
    error = (torch.load(out) - expected).abs().max().item()
    print(f"{name} {spec} tp{tp}: logits differ by {error:.2g}, largest {expected.abs().max():.2g}")
    assert error <= LIMIT * max(1.0, expected.abs().max().item())
