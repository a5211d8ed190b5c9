"""Runs of the real verl on CPU for two steps, FSDP2, by the recipe of the recorded runs.

Its plugin makes verl's registries know a CPU. One run takes 60 to 95 seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
BIN = Path(sys.executable).parent
STEPS = (1, 2)
KINDS = "rollouts,inputs,log_probs,grad_norms,config,metrics,rng,sketches"
TIMEOUT_S = 600
V0 = "trainer.use_v1=false"
SKIPPED = "model.layers.1.mlp.down_proj.weight"
TWO_RANKS = ("trainer.n_gpus_per_node=2", "++ray_kwargs.ray_init.num_gpus=2")


@dataclass(frozen=True)
class Ran:
    """One run: what verl logged of itself, and what a capture wrote."""

    out: Path
    capture: Path

    def logged(self) -> dict[int, dict[str, float]]:
        rows = [json.loads(line) for line in (self.out / "metrics.jsonl").open()]
        return {row["step"]: row["data"] for row in rows}

    def numerics(self) -> dict[int, dict[str, float]]:
        """Everything logged but times and memory."""
        return {
            step: {
                k: v for k, v in data.items() if not k.startswith(("timing", "perf", "actor/perf"))
            }
            for step, data in self.logged().items()
        }


@dataclass(frozen=True)
class Pair:
    plain: Ran
    captured: Ran


def run(work: Path, name: str, *overrides: str, captures: bool = False, skipped: str = "") -> Ran:
    """Run verl on recorded rollouts, given by an agent loop of our own.

    Args:
        skipped: parameter that no sync gives to the rollout engine.
    """
    capture = work / f"{name}-capture"
    prefix = f"{BIN / 'align'} capture -o {capture} --what {KINDS} --" if captures else ""
    recorded = {
        "XMOD": ",recorded_rollouts,looked_at_engine",
        "SKIPPED_WEIGHT": skipped,
        "RECORDED_ROLLOUTS": str(work / "rollouts.jsonl"),
    }
    done = start(work, name, prefix, [*RECORDED, *overrides], recorded)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return Ran(work / name, capture)


def start(
    work: Path, name: str, prefix: str, overrides: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run verl for two steps with a prefix before its command."""
    return subprocess.run(
        ["nice", "bash", str(work / "run_v1.sh"), str(work / name), *_SHORT, *overrides],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "R": str(work),
            "STRATEGY": "fsdp2",
            "MKL_CBWR": "COMPATIBLE",
            "PREFIX": prefix,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


_SHORT = (
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[console,file]",
)
RECORDED = (
    "actor_rollout_ref.rollout.agent.default_agent_loop=recorded",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={PLUGIN}/recorded_rollouts.yaml",
    f"trainer.v1.sampler.custom_sampler.path={PLUGIN}/ordered_replay_buffer.py",
    "trainer.v1.sampler.custom_sampler.name=OrderedReplayBuffer",
)
