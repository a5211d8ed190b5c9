"""A tiny GRPO run with the real TRL, as a user's script: MODEL OUT [SEED [REWARD]]."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Losses(TrainerCallback):
    """Keeps what the trainer logs, and the state of the generator at the end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        kept = {k: v for k, v in (logs or {}).items() if "time" not in k and "per_second" not in k}
        self.rows.append({"step": state.global_step, **kept})

    def on_train_end(self, args, state, control, **kwargs) -> None:
        draw = torch.rand(4).tolist()
        self.out.write_text(json.dumps({"rows": self.rows, "draw": draw}))


def variety(completions, **_) -> list[float]:
    return [float(len(set(text))) for text in completions]


def other(completions, **_) -> list[float]:
    return [100.0 - float(ord(text[0])) if text else 0.0 for text in completions]


def main(
    model: str,
    out: Path,
    seed: str = "7",
    reward: str = "variety",
    *,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Train two steps on four prompts.

    Args:
        settings: of GRPOConfig, in the place of those here.
    """
    plain = {
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "max_steps": 2,
        "beta": 0.01,
    }
    prompts = [{"prompt": f"What is {a} + {a + 1}?"} for a in range(8)]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs={"variety": variety, "other": other}[reward],
        args=GRPOConfig(
            output_dir=str(out.parent / "trl"),
            logging_steps=1,
            learning_rate=1e-3,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            seed=int(seed),
            **{**plain, **(settings or {})},
        ),
        train_dataset=Dataset.from_list(prompts),
        callbacks=[Losses(out)],
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
