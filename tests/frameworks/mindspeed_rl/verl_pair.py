"""A run of the real verl, and the same run as MindSpeed-RL is told to make it.

What a user does who moves: verl's configuration is translated and its weights are converted by
npu-align, its rows are given in verl's order, and what MindSpeed-RL needs beside is set by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.frameworks.mindspeed_rl.runs import BIN, SKETCHES, launch
from tests.frameworks.verl.runs import Runs, Spec
from tests.frameworks.verl.work import lay_out

SHARED = Path(__file__).parents[4] / "shared" / "reference"
RECIPE, RECORDED = SHARED / "verl_cpu", SHARED / "verl_runs"
VOCABULARY = 384
"""Rows of the embedding: 371 tokens, as many more as divide by two ranks without padding."""

AS_MEGATRON = "actor_rollout_ref.actor.optim.weight_decay=0.0"
"""Megatron spares biases and norms the decay and verl does not: without any they agree."""

BY_HAND: dict[str, dict[str, Any]] = {
    "rl_config": {"zmq_communication": False},  # there is no server on a CPU
    # verl averages the loss over a mini-batch, MindSpeed-RL over a micro-batch: be they the same
    "actor_config": {"micro_batch_size": 16},
    # its data set is written in verl's order
    "megatron_training": {"no_shuffle": True, "dataset_additional_keys": ["labels"]},
}


def run_verl(folder: Path, overrides: Sequence[str] = (AS_MEGATRON,), name: str = "verl") -> Path:
    """Capture two steps of the real verl; return the run folder.

    Args:
        folder: for its files; laid out if it is not there.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        lay_out(folder, RECIPE, RECORDED)
        _widen(folder / "tiny" / "model", folder / "model")
    path = f"actor_rollout_ref.model.path={folder}/model"
    specs = {name: Spec((path, *overrides), captures=True, warm=False)}
    return Runs(folder, None, specs).get(name).capture


def _widen(model: Path, copy: Path) -> None:
    """Copy a model with rows in its embedding that no token has, as Qwen's own have."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    held = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    held.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    held.save_pretrained(copy)
    AutoTokenizer.from_pretrained(model).save_pretrained(copy)


def prepare(verl: Path, work: Path, folder: Path, ranks: int) -> None:
    """Write what MindSpeed-RL needs to train as a captured run of verl did.

    Args:
        verl: the captured run.
        work: the folder it ran in.
        folder: to make: settings, weights and rows.
    """
    _align("config", "translate", verl, "--to", "mindspeed_rl", "-o", folder)
    layout = ("--spec", "local", "--tp", str(ranks), "--vocab-multiple", "1")
    _align("weights", "convert", work / "model", folder / "weights", "--to", "megatron", *layout)
    from omegaconf import OmegaConf

    settings = OmegaConf.load(folder / "train.yaml")
    parallel = {"tensor_model_parallel_size": ranks}
    own = {"actor_config": parallel, "rl_config": {"actor_resource": {"num_npus": ranks}}}
    engine = {"generate_config": {"infer_tensor_parallel_size": ranks}}
    OmegaConf.save(OmegaConf.merge(settings, BY_HAND, own, engine), folder / "train.yaml")
    rows = [
        [int(row.dataset_index or 0) for row in step if row.sample_index == 0]
        for step in recorded(verl)
    ]
    order = {"rows": rows, "data": str(work / "tiny/train.parquet"), "model": str(work / "model")}
    (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")


def recorded(run: Path) -> list[list[Any]]:
    """Return the rollouts that a run recorded, step by step."""
    from dumps.readers.rollout_store import read_store

    return [[*read_store(path)] for path in sorted((run / "rollout").rglob("step=*.parquet"))]


def _align(*arguments: object) -> None:
    done = subprocess.run(
        [str(BIN / "align"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def replay(
    verl: Path, folder: Path, name: str, ranks: int, planted: str = ""
) -> subprocess.CompletedProcess[str]:
    """Train the real MindSpeed-RL on a run of verl; captured into ``folder/name-run``.

    Args:
        folder: that `prepare` made, for as many ranks.
        planted: fault in its code, by the names of `planted.FAULTS`.
    """
    prefix = ["replay", "--rollouts", str(verl), "-o", str(folder / f"{name}-run"), *SKETCHES[1:]]
    environment = {"PREPARED": str(folder), "PLANTED_FAULT": planted}
    worker = "tests.frameworks.mindspeed_rl.verl_pair_worker"
    return launch(worker, folder / name, ranks, prefix, environment)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(run_verl(where / "verl", sys.argv[2:]))
