"""A tiny DPO run with the real TRL: `start.py tests.frameworks.trl.dpo_run MODEL OUT [SETTINGS]`.

SETTINGS is JSON, of DPOConfig; its key "plant" names a fault of FAULTS.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer
from trl.trainer import dpo_trainer

from tests.frameworks.trl.grpo_run import Losses


class LossesAndWeights(Losses):
    """Keeps a hash of the final weights besides."""

    def on_train_end(self, args, state, control, model=None, **kwargs) -> None:
        made = hashlib.sha256()
        for _, tensor in sorted(model.state_dict().items()):
            made.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
        self.rows.append({"weights": made.hexdigest()})
        super().on_train_end(args, state, control, **kwargs)


def margin_negated() -> None:
    """Have the loss take rejected - chosen for chosen - rejected; what is logged is as before."""

    class Negated:
        @staticmethod
        def logsigmoid(strength: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.logsigmoid(-strength)

    dpo_trainer.F = Negated


FAULTS = {"margin_negated": margin_negated}


def pairs() -> list[dict[str, str]]:
    """Give 16 pairs of unlike lengths."""
    return [
        {
            "prompt": f"What is {a} + {a + 1}?",
            "chosen": f" It is {2 * a + 1}" + "." * (a % 3),
            "rejected": f" {a}" + " or so" * (a % 4),
        }
        for a in range(16)
    ]


def main(model: str, out: Path, settings: str = "{}") -> None:
    """Train three steps of four pairs each."""
    given: dict[str, Any] = {
        "output_dir": str(out.parent / "trl"),
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "beta": 0.1,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "seed": 7,
        **json.loads(settings),
    }
    if "plant" in given:
        FAULTS[given.pop("plant")]()
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(**given),
        train_dataset=Dataset.from_list(pairs()),
        callbacks=[LossesAndWeights(out)],
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
