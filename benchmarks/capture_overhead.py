"""What recording rollouts and log_probs costs a step of the real verl on CPU.

.venv-frameworks/bin/python tests/frameworks/start.py benchmarks.capture_overhead [v1 | v0] …

Runs of eight steps with and without a capture take turns, by the recipe of `make test-verl`, which
has to lie in ../shared (or $ALIGN_SHARED). The engine generates, as in a user's run. The first two
steps of a run are left out. Beside the clock of the steps stands what the capture's own clocks say.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.frameworks.verl.runs import BIN, SETTINGS, Ran, start, surroundings
from tests.frameworks.verl.warm.warm_python import warm_python
from tests.frameworks.verl.work import lay_out

NUM_STEPS, NUM_UNCOUNTED, REPEATS = 8, 2, 3
WHAT = "rollouts,log_probs"
COUNTED = range(NUM_UNCOUNTED + 1, NUM_STEPS + 1)
BAR = 0.02


def main() -> None:
    """Take turns, print medians; exit 1 when the capture's own clocks are above the bar."""
    shared = Path(os.environ.get("ALIGN_SHARED", Path(__file__).parents[2] / "shared"))
    reference = shared / "reference"
    if not (reference / "verl_cpu").is_dir():
        sys.exit(f"{reference / 'verl_cpu'} does not exist: the recipe for verl on CPU lies there")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        lay_out(work, reference / "verl_cpu", reference / "verl_runs")
        (work / "warm").mkdir()
        with warm_python(work / "warm", surroundings(work)) as python:
            shares = [_measure(work, python, trainer) for trainer in sys.argv[1:] or ("v1", "v0")]
    sys.exit(1 if max(shares) > BAR else 0)


def _measure(work: Path, python: Path, trainer: str) -> float:
    plain: list[float] = []
    captured: list[float] = []
    own: list[float] = []
    for repeat in range(REPEATS):
        plain += _steps(_run(work, python, trainer, f"{trainer}-plain{repeat}", captures=False))
        ran = _run(work, python, trainer, f"{trainer}-captured{repeat}", captures=True)
        captured += _steps(ran)
        own += _own_clocks(ran)
    bare, whole, share = median(plain), median(captured), sum(own) / sum(captured)
    print(f"{trainer}: {len(plain)} steps each, load average {os.getloadavg()[0]:.0f}")
    print(f"  without a capture  {bare:7.3f} s a step (median)")
    print(f"  with a capture     {whole:7.3f} s a step, {whole / bare - 1:+.1%}")
    print(f"  its own clocks     {median(own):7.4f} s a step, {share:.2%} of all", flush=True)
    return share


def _run(work: Path, python: Path, trainer: str, name: str, *, captures: bool) -> Ran:
    capture = work / f"{name}-capture"
    prefix = f"python {BIN / 'align'} capture -o {capture} --what {WHAT} --" if captures else ""
    overrides = [*SETTINGS[trainer], f"trainer.total_training_steps={NUM_STEPS}"]
    done = start(work, name, prefix, overrides, {"XMOD": ",without_trl"}, python)
    if done.returncode:
        sys.exit((done.stdout + done.stderr)[-3000:])
    return Ran(work / name, capture)


def _steps(ran: Ran) -> list[float]:
    logged = ran.logged()
    return [logged[step]["timing_s/step"] for step in COUNTED]


def _own_clocks(ran: Ran) -> list[float]:
    """Return the seconds spent in taps, of all processes, a step."""
    spent = dict.fromkeys(COUNTED, 0.0)
    for path in (ran.capture / "capture_timings").glob("*.jsonl"):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if row["step"] in spent:
                spent[row["step"]] += row["tap_s"]
    return list(spent.values())


if __name__ == "__main__":
    main()
