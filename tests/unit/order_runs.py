"""Runs as verl leaves them, with planted row orders, for tests of the data rung."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.row_orders import verl_steps

N, BATCH, STEPS = 64, 8, 20
QUESTIONS = [f"What is {i} + {i % 7}? Answer with a number." for i in range(N)]
Steps = Sequence[Sequence[int]]


def data_set(path: Path, questions: Sequence[str] = QUESTIONS) -> Path:
    rows = [
        {"prompt": [{"role": "user", "content": q}], "reward_model": {"ground_truth": str(i)}}
        for i, q in enumerate(questions)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def verl_run(
    folder: Path,
    steps: Steps,
    *,
    seed: int | None = 42,
    workers: int = 0,
    data: bool = True,
    version: str = "0.9.1",
    counted: int | None = N,
    questions: Sequence[str] = QUESTIONS,
) -> RunData:
    """Write a run as verl leaves it: Hydra configuration, rollout dumps, log and data set."""
    (folder / "rollout").mkdir(parents=True)
    shown = "null" if seed is None else seed
    (folder / "config.yaml").write_text(
        f"data:\n  train_files: /data/train.parquet\n  train_batch_size: {BATCH}\n"
        f"  gen_batch_size: null\n  shuffle: true\n  seed: {shown}\n"
        f"  dataloader_num_workers: {workers}\n  filter_overlong_prompts: false\n"
        "  train_max_samples: -1\n  max_prompt_length: 64\n"
        "actor_rollout_ref:\n  actor:\n    ppo_mini_batch_size: 8\n  rollout:\n    n: 2\n"
        "trainer:\n  total_epochs: 3\n",
        "utf-8",
    )
    (folder / "align-run.json").write_text(
        json.dumps({"schema_version": 1, "framework": "verl", "framework_version": version}),
        "utf-8",
    )
    for number, rows in enumerate(steps, 1):
        lines = [
            json.dumps(
                {
                    "input": f"user\n{questions[row]}\nassistant\n",
                    "output": f"answer {k}",
                    "score": 1.0,
                    "step": number,
                }
            )
            for row in reversed(rows)  # a dump keeps no order
            for k in range(2)
        ]
        (folder / "rollout" / f"{number}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    if counted:
        (folder / "run.log").write_text(
            f"(TaskRunner pid=1) dataset len: {counted}\n(TaskRunner pid=1) step:1 - "
            "actor/pg_loss:0.1 - response_length/mean:7.5 - training/global_step:1\n",
            "utf-8",
        )
    if data:
        data_set(folder / "data" / "train.parquet", questions)
    return RunData(discover([folder]))


def steps_of(seed: int, workers: int = 0, *, torchdata: bool = True) -> Steps:
    return verl_steps(N, BATCH, seed, 3, workers=workers, torchdata=torchdata)[:STEPS]


def mindspeed_rl_run(folder: Path, *, seed: int = 42, iters: int = 20, gbs: int = 4) -> Path:
    (folder / "configs").mkdir(parents=True)
    path = folder / "configs" / "grpo.yaml"
    path.write_text(
        "megatron_training:\n"
        f"  global_batch_size: {gbs}\n  seed: {seed}\n  train_iters: {iters}\n"
        "  no_shuffle: false\n  bf16: true\n  data_path: ./data\n  split: 100,0,0\n"
        "actor_config:\n  model: qwen25_7b\n  micro_batch_size: 1\n"
        "rl_config:\n  use_integrated_worker: true\n  max_prompt_length: 2048\n"
        "  n_samples_per_prompt: 8\n  mini_batch_size: 4\n"
        "generate_config:\n  infer_tensor_parallel_size: 2\n",
        "utf-8",
    )
    return path
