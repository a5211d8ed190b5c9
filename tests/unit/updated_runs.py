"""Tiny run folders with updates whose reported losses are plain arithmetic on Python numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps.store.discover import discover
from dumps.store.run_data import RunData

CONFIG = """\
algorithm: {{adv_estimator: grpo, norm_adv_by_std_in_grpo: true, use_kl_in_reward: false}}
actor_rollout_ref:
  actor:
    strategy: fsdp2
    loss_agg_mode: {aggregation}
    clip_ratio: 0.2
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    clip_ratio_c: 3.0
    entropy_coeff: {entropy}
    use_kl_loss: true
    kl_loss_coef: 0.05
    kl_loss_type: low_var_kl
    ppo_mini_batch_size: {mini}
    ppo_epochs: 1
  rollout: {{n: 4, temperature: 1.0}}
data: {{train_batch_size: 2}}
trainer: {{total_training_steps: 1, n_gpus_per_node: 1, nnodes: 1}}
"""
LENGTHS = (1, 4, 2, 3, 5, 5, 1, 2)  # of 2 prompts with 4 responses each; 5 columns
WIDTH = 5
MICRO = 2  # rows of a micro-batch


@dataclass(frozen=True)
class Loss:
    """What a trainer computes; the defaults are what CONFIG declares."""

    kl: Callable[[float], float] = lambda d: math.exp(-d) + d - 1
    kl_coef: float = 0.05
    entropy_coef: float = 0.01
    low: float = 0.2
    high: float = 0.28
    dual: float = 3.0
    sign: float = 1.0
    by_micro_batch: bool = False
    by_sequence: bool = False
    shift: int = 0  # of the mask, in columns
    own_ratio: bool = False


@dataclass(frozen=True)
class Tokens:
    """One step's token values, [8][5], and the mask."""

    new: Any
    old: Any
    ref: Any
    entropy: Any
    advantage: Any
    mask: Any


def tokens(seed: int = 0, *, on_policy: bool = False) -> Tokens:
    """Draw float32 values whose ratios reach beyond every clip."""
    draw = np.random.default_rng(seed)
    shape = (len(LENGTHS), WIDTH)
    old = -draw.exponential(1.0, shape).astype(np.float32)
    moved = (old + draw.normal(0, 0.8, shape)).astype(np.float32)
    return Tokens(
        new=old if on_policy else moved,
        old=old,
        ref=(old + draw.normal(0, 0.4, shape)).astype(np.float32),
        entropy=draw.exponential(1.0, shape).astype(np.float32),
        advantage=np.repeat(draw.normal(0, 1, (len(LENGTHS), 1)), WIDTH, 1).astype(np.float32),
        mask=np.array([[j < n for j in range(WIDTH)] for n in LENGTHS], np.int64),
    )


def reported(given: Tokens, rows: Sequence[int], loss: Loss) -> dict[str, float]:
    """Compute an update's losses token by token, in Python floats."""
    policy = averaged(given, rows, loss, lambda i, j: loss.sign * surrogate(given, i, j, loss))
    kl = averaged(given, rows, loss, lambda i, j: loss.kl(float(given.new[i, j]) - given.ref[i, j]))
    entropy = averaged(given, rows, loss, lambda i, j: float(given.entropy[i, j]))
    return {
        "actor/pg_loss": policy,
        "actor/kl_loss": kl,
        "actor/loss": policy + loss.kl_coef * kl - loss.entropy_coef * entropy,
        "actor/grad_norm": 0.75,
        "align/norm_of_gradients": 0.75,
    }


def surrogate(given: Tokens, i: int, j: int, loss: Loss) -> float:
    """PPO's clipped loss of one token, dual clip included."""
    old = given.new if loss.own_ratio else given.old
    ratio = math.exp(float(given.new[i, j]) - float(old[i, j]))
    advantage = float(given.advantage[i, j])
    cut = min(max(ratio, 1 - loss.low), 1 + loss.high)
    value = max(-advantage * ratio, -advantage * cut)
    return min(value, -advantage * loss.dual) if advantage < 0 else value


def averaged(
    given: Tokens, rows: Sequence[int], loss: Loss, value: Callable[[int, int], float]
) -> float:
    """Average token values over an update's rows."""
    micros = [rows[i : i + MICRO] for i in range(0, len(rows), MICRO)]
    parts = [(sums(given, m, loss, value), counts(given, m, loss)) for m in micros]
    if loss.by_micro_batch:
        return sum(total / count for total, count in parts) / len(parts)
    return sum(total for total, _ in parts) / sum(count for _, count in parts)


def sums(
    given: Tokens, rows: Sequence[int], loss: Loss, value: Callable[[int, int], float]
) -> float:
    """Sum over tokens, or over rows of their mean."""
    totals = [[value(i, j) for j in counting(given, i, loss)] for i in rows]
    if loss.by_sequence:
        return sum(sum(row) / len(row) for row in totals)
    return sum(sum(row) for row in totals)


def counts(given: Tokens, rows: Sequence[int], loss: Loss) -> int:
    """Count tokens, or rows."""
    return len(rows) if loss.by_sequence else sum(len(counting(given, i, loss)) for i in rows)


def counting(given: Tokens, i: int, loss: Loss) -> list[int]:
    """Columns of a row that count."""
    kept = [j + loss.shift for j in range(WIDTH) if given.mask[i, j]]
    return [j for j in kept if 0 <= j < WIDTH]


def updated_run(
    folder: Path,
    loss: Loss | None = None,
    *,
    aggregation: str = "token-mean",
    entropy: float = 0.01,
    mini: int = 1,
    given: Tokens | None = None,
    changed: Mapping[str, float] | None = None,
    with_updates: bool = True,
) -> RunData:
    """Write one step: 8 rows, an update a ``mini`` prompts, micro-batches of 2 rows.

    Args:
        loss: what the trainer computes.
        changed: factors by which reported metrics are off.
        with_updates: False leaves only the batch and the logged losses.
    """
    save_file = pytest.importorskip(
        "safetensors.numpy", reason="recorded tensors are safetensors: install [torch]"
    ).save_file
    loss, given = loss or Loss(entropy_coef=entropy), given or tokens()
    for name in (".hydra", "trainer_inputs", "updates"):
        (folder / name).mkdir(parents=True)
    manifest = {"schema_version": 1, "framework": "verl", "framework_version": "0.9.1"}
    (folder / "align-run.json").write_text(json.dumps(manifest))
    text = CONFIG.format(aggregation=aggregation, entropy=entropy, mini=mini)
    (folder / ".hydra" / "config.yaml").write_text(text)
    rows = np.arange(len(LENGTHS))
    ids = np.arange(len(LENGTHS) * WIDTH).reshape(-1, WIDTH)
    batch = {
        "input_ids": np.concatenate([ids[:, :1], ids], axis=1),
        "attention_mask": np.concatenate([given.mask[:, :1], given.mask], axis=1),
        "responses": ids,
        "response_mask": given.mask,
        "old_log_probs": given.old,
        "ref_log_prob": given.ref,
        "advantages": given.advantage,
    }
    save_file(batch, folder / "trainer_inputs" / "1.safetensors")
    size = 4 * mini
    metrics = [
        {
            name: value * (changed or {}).get(name, 1.0)
            for name, value in reported(given, rows[k : k + size].tolist(), loss).items()
        }
        for k in range(0, len(rows), size)
    ]
    updates = {
        "rows": rows,
        "update": rows // size,
        "micro_batch": rows % size // MICRO,
        "log_probs": given.new,
        "entropys": given.entropy,
        **{name: np.array([m[name] for m in metrics], np.float64) for name in metrics[0]},
    }
    if with_updates:
        save_file(updates, folder / "updates" / "1.safetensors")
    logged = {name: float(np.mean([m[name] for m in metrics])) for name in metrics[0]}
    line = json.dumps({"step": 1, "data": logged})
    (folder / "metrics.jsonl").write_text(line + "\n")
    return RunData(discover([folder]))
