"""Configurations small enough to train in a test, and what two runs are compared by."""

from __future__ import annotations

from pathlib import Path

from align.stack.config import StackConfig, load_config

TINY = (
    "data.train_batch_size=4",
    "data.max_response_length=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "critic.ppo_mini_batch_size=4",
    "trainer.total_training_steps=3",
    "stack.warmup.steps=20",
    "stack.data.num_rows=64",
)


def tiny(*overrides: str) -> StackConfig:
    """Return a configuration whose step takes a few hundredths of a second."""
    return load_config(None, [*TINY, *overrides])


def contents(run: Path) -> dict[str, bytes]:
    """Return every file that equal runs have equal: all but wall-clock times."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    named = {str(path.relative_to(run)): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in named.items()
        if not name.startswith("tensorboard/") and name != "timings.jsonl"
    }
