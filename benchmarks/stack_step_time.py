"""Time of one tiny GRPO step: the bundled stack beside TRL's GRPOTrainer, in one run.

python -m benchmarks.stack_step_time [python-with-trl]

Both train the same weights on the same prompts: 64 responses (16 prompts x 4), 12 new tokens at
most, KL to a reference model, one update, float32, one thread. The stack also writes its run
folder. The interpreter with TRL is that of `make test-verl` unless one is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
NUM_STEPS, NUM_UNCOUNTED, REPEATS = 20, 5, 3
BAR = 2.0


def main() -> None:
    """Alternate both, print medians and their ratio; exit 1 when it is above the bar."""
    given = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / ".venv-frameworks/bin/python")
    if not Path(given).exists():
        sys.exit(f"{given} does not exist: run `make test-verl`, or give a Python that has TRL")
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        _write_inputs(inputs)
        for repeat in range(REPEATS):
            ours += _stack_times(Path(folder) / f"run{repeat}")
            theirs += _trl_times(given, inputs)
    ratio = median(ours) / median(theirs)
    print(f"stack  {1000 * median(ours):7.1f} ms a step (median of {len(ours)})")
    print(f"TRL    {1000 * median(theirs):7.1f} ms a step (median of {len(theirs)})")
    print(f"ratio  {ratio:.2f} (bar {BAR})")
    sys.exit(1 if ratio > BAR else 0)


def _write_inputs(folder: Path) -> None:
    """Write the stack's starting weights, its tokenizer and its prompts for TRL."""
    from align.stack.config import load_config
    from align.stack.pipeline import Pipeline
    from align.stack.setup import set_up

    config = load_config()
    setup = set_up(config, Pipeline(), folder)
    setup.model.save_pretrained(folder / "model")
    setup.tokenizer.save_pretrained(folder / "model")
    prompts = [
        {"prompt": prompt.text, "answer": row.ground_truth}
        for prompt, row in zip(setup.prompts, setup.rows, strict=True)
    ]
    (folder / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")


def _stack_times(run: Path) -> list[float]:
    """Time whole steps, from one weight sync to the next."""
    from align.stack.config import load_config
    from align.stack.pipeline import Model, Pipeline
    from align.stack.train import train

    starts: list[float] = []
    pipeline = Pipeline()

    def sync_weights(trainer_model: Model, rollout_model: Model) -> None:
        starts.append(time.perf_counter())
        pipeline.sync_weights(trainer_model, rollout_model)

    config = load_config(None, [f"trainer.total_training_steps={NUM_STEPS + 1}"])
    train(config, run, replace(pipeline, sync_weights=sync_weights))
    return _counted(starts)


def _trl_times(python: str, inputs: Path) -> list[float]:
    script = Path(__file__).with_name("trl_step_time.py")
    command = [python, str(script), str(inputs), str(NUM_STEPS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _counted(json.loads(done.stdout.splitlines()[-1]))


def _counted(starts: list[float]) -> list[float]:
    steps = [after - before for before, after in pairwise(starts)]
    return steps[NUM_UNCOUNTED:]


if __name__ == "__main__":
    main()
