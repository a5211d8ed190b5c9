"""Does the bundled stack learn? GRPO on the built-in arithmetic, three seeds, on one thread each.

python -m benchmarks.stack_learning [num_steps]

Reward gain: mean score of the last 20 steps minus that of the first 5. The bar is 0.2 in 3 minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

SEEDS = (1, 2, 3)
BAR, LIMIT_S = 0.2, 180.0


def main() -> None:
    """Train once a seed and print the gains; exit 1 when one misses the bar."""
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    missed = 0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            scores = _scores(Path(folder) / "run", seed, num_steps)
            elapsed_s = time.perf_counter() - started
        first, last = mean(scores[:5]), mean(scores[-20:])
        missed += last - first < BAR or elapsed_s > LIMIT_S
        print(
            f"seed {seed}: reward {first:.3f} -> {last:.3f}, gain {last - first:+.3f}"
            f" in {num_steps} steps, {elapsed_s:.0f} s with warm-up and imports",
            flush=True,
        )
    print(f"bar: gain >= {BAR} in {LIMIT_S:.0f} s: {'missed' if missed else 'met'}")
    sys.exit(1 if missed else 0)


def _scores(run: Path, seed: int, num_steps: int) -> list[float]:
    settings = (
        f"data.seed={seed}",
        f"stack.seed={seed}",
        f"actor_rollout_ref.rollout.seed={seed}",
        f"trainer.total_training_steps={num_steps}",
        "stack.record_trainer_inputs=false",
    )
    program = "from align.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", program, "train", *settings, "-o", str(run)], check=True)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["data"]["critic/score/mean"] for line in lines]


if __name__ == "__main__":
    main()
