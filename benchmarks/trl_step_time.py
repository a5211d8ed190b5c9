"""TRL's side of `stack_step_time`: runs under an interpreter that has TRL, without this package.

python trl_step_time.py FOLDER NUM_STEPS    # prints the starting times of the steps as JSON
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Score 1 where the last number is the answer."""
    found = [re.findall(r"\d+", text) for text in completions]
    return [float(bool(n) and n[-1] == a) for n, a in zip(found, answer, strict=True)]


class StepTimes(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Note when each step starts."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.starts.append(time.perf_counter())

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.starts.append(time.perf_counter())


def main() -> None:
    """Train and print."""
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    times = StepTimes()
    rows = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
            reward_funcs=reward,
            train_dataset=Dataset.from_list(rows),
            callbacks=[times],
            args=GRPOConfig(
                output_dir=out,
                max_steps=num_steps,
                per_device_train_batch_size=64,
                num_generations=4,
                max_completion_length=12,
                learning_rate=1e-3,
                lr_scheduler_type="constant",
                beta=0.001,
                temperature=1.0,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()
    print(json.dumps(times.starts))


if __name__ == "__main__":
    main()
