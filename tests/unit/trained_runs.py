"""Tiny run folders with a rollout dump and the trainer's tensors of the same rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dumps.store.discover import discover
from dumps.store.run_data import RunData

PROMPTS, N, WIDTH = 3, 4, 2
SCORES = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.25, 1.0)  # a a a a b b b b c c c c
CONFIG = """\
algorithm: {{adv_estimator: {estimator}, norm_adv_by_std_in_grpo: true}}
actor_rollout_ref: {{actor: {{strategy: fsdp2}}, rollout: {{n: 4}}}}
data: {{train_batch_size: 3}}
"""


def trained_run(
    folder: Path,
    *,
    trained: Sequence[float] = SCORES,
    advantages: npt.NDArray[np.float64] | None = None,
    extras: Sequence[dict[str, object]] | None = None,
    estimator: str = "grpo",
    label: str = "1",
    trainer_order: Sequence[int] | None = None,
) -> RunData:
    """Write one step of 3 prompts with 4 responses each.

    Args:
        trained: [12], the score each trained row got, in the dump's order.
        advantages: [12], in the dump's order; None records none.
        extras: [12], further fields of the dump.
        trainer_order: [12], the dumped row at each of the trainer's rows.
    """
    save_file = pytest.importorskip(
        "safetensors.numpy", reason="the trainer's tensors are safetensors: install [torch]"
    ).save_file
    for name in (".hydra", "rollout", "trainer_inputs"):
        (folder / name).mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(CONFIG.format(estimator=estimator))
    count = PROMPTS * N
    prompts = np.repeat(np.arange(PROMPTS), N) + 10
    responses = np.stack([np.arange(count) + 100, np.full(count, 7)], axis=1)
    rows = [
        {
            "input": f"prompt {prompts[i]}",
            "output": f"response {i}",
            "gts": label,
            "score": SCORES[i],
            "step": 1,
            "uid": f"1-{prompts[i]}",
            "prompt_ids": [int(prompts[i])],
            "response_ids": responses[i].tolist(),
            **(extras[i] if extras else {}),
        }
        for i in range(count)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rollout" / "1.jsonl").write_text(text)
    rewards = np.zeros((count, WIDTH), np.float32)
    rewards[:, -1] = trained
    tensors = {
        "input_ids": np.concatenate([prompts[:, None], responses], axis=1),
        "attention_mask": np.ones((count, 1 + WIDTH), np.int64),
        "responses": responses,
        "response_mask": np.ones((count, WIDTH), np.int64),
        "token_level_rewards": rewards,
    }
    if advantages is not None:
        tensors["advantages"] = np.repeat(advantages[:, None], WIDTH, axis=1).astype(np.float32)
    order = list(range(count)) if trainer_order is None else list(trainer_order)
    ordered = {name: np.ascontiguousarray(tensor[order]) for name, tensor in tensors.items()}
    save_file(ordered, folder / "trainer_inputs" / "1.safetensors")
    return RunData(discover([folder]))
