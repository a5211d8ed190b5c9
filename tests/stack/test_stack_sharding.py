"""Two gloo processes with FSDP2 give the losses and gradients of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stack needs torch")
pytest.importorskip("transformers", reason="the stack needs transformers")

import torch
import torch.distributed as dist
from torch import nn

from align.stack import sharding
from align.stack.config import load_config
from align.stack.pipeline import Pipeline
from align.stack.tensors import read_tensors, write_tensors
from align.stack.train import train
from tests.stack.tiny_run import TINY, tiny

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)

# Gradients are saved before they are clipped; both runs start from equal weights.
_PROGRAM = """
import os
import sys
from pathlib import Path
from tests.stack.test_stack_sharding import train_keeping_gradients

train_keeping_gradients(Path(sys.argv[1]), sys.argv[2:])
sys.stdout.flush()
os._exit(0)  # torch's own threads sometimes abort the interpreter's exit, with everything written
"""
_SETTINGS = (  # every model of the stack takes part: actor, reference and critic
    *TINY,
    "stack.algorithm=ppo",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "trainer.total_training_steps=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
)


def train_keeping_gradients(out: Path, overrides: Sequence[str]) -> None:
    """Train, and save the gradients of the first update, put together from all ranks."""
    real = Pipeline()
    num_updates = 0

    def clip_gradients(model: nn.Module, max_norm: float) -> float:
        nonlocal num_updates
        num_updates += 1
        named = model.named_parameters()
        whole = {n: sharding.whole(p.grad).clone() for n, p in named if p.grad is not None}
        assert sharding.world_size() == 1 or sharding.num_sharded(model) == len(whole)
        if num_updates == 1 and sharding.rank() == 0:
            write_tensors(out / "gradients.safetensors", whole)
        return real.clip_gradients(model, max_norm)

    train(load_config(None, overrides), out, replace(real, clip_gradients=clip_gradients))


def test_two_processes_equal_one_within_rounding(tmp_path: Path) -> None:
    train_keeping_gradients(tmp_path / "one", _SETTINGS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    program = ["--nproc-per-node=2", sys.executable, "-c", _PROGRAM, str(tmp_path / "two")]
    settings = [*_SETTINGS, "trainer.n_gpus_per_node=2"]
    root = Path(__file__).parents[2]
    subprocess.run([*torchrun, *program, *settings], check=True, cwd=root)
    one, two = (read_tensors(tmp_path / name / "gradients.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        error = torch.linalg.vector_norm(one[name] - two[name])
        assert float(error) <= 1e-5 * float(torch.linalg.vector_norm(one[name])) + 1e-9, name
    rows = [
        [json.loads(line)["data"] for line in (tmp_path / name / "metrics.jsonl").open()]
        for name in ("one", "two")
    ]
    for first, second in zip(*rows, strict=True):
        assert first.keys() == second.keys()
        for name in first:
            assert second[name] == pytest.approx(first[name], rel=1e-4, abs=1e-5), name
    saved = [
        read_tensors(tmp_path / name / "checkpoints" / "global_step_2" / "critic.safetensors")
        for name in ("one", "two")
    ]
    assert {n: t.shape for n, t in saved[0].items()} == {n: t.shape for n, t in saved[1].items()}


def test_another_number_of_processes_than_stated_is_refused(tmp_path: Path) -> None:
    from align.core.errors import ConfigError

    with pytest.raises(ConfigError, match="torchrun"):
        train(tiny("trainer.n_gpus_per_node=2"), tmp_path)
