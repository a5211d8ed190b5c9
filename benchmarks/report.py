"""The main job on two 500-step runs: seconds, memory and size, imports included.

    python -m benchmarks.report

The runs are the shipped examples with their steps repeated under new numbers, configurations of
896 leaves and all. Beside it runs what a user does without us: read both metric files with pandas
and draw the same twelve metrics with pyplot.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "align" / "examples"
NUM_STEPS = 500
TARGET_S = 5.0
HTML_TARGET_BYTES = 2_000_000

_PLOT = """
import sys
import pandas as pd
import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
runs = [pd.json_normalize(pd.read_json(p, lines=True)["data"]) for p in sys.argv[1:3]]
for name in list(runs[0].columns)[:12]:
    figure, axes = plt.subplots()
    for run in runs:
        axes.plot(run[name])
    figure.savefig(sys.argv[3] + "/" + name.replace("/", "_") + ".svg")
    plt.close(figure)
"""


def lengthen(source: Path, target: Path, *, with_rollouts: bool) -> None:
    """Copy an example run, its steps repeated until there are 500."""
    shutil.copytree(source / ".hydra", target / ".hydra")
    lines = (source / "console.log").read_text(encoding="utf-8").splitlines(keepends=True)
    steps = [line for line in lines if re.search(r"step:[1-9]\d* - ", line)]
    rows = [json.loads(line) for line in (source / "metrics.jsonl").open(encoding="utf-8")]
    rows = [row for row in rows if row["step"]]
    with (target / "console.log").open("w", encoding="utf-8") as log:
        log.writelines(line for line in lines if line not in steps)
        for step in range(1, NUM_STEPS + 1):
            line = steps[(step - 1) % len(steps)]
            log.write(re.sub(r"step:\d+ - ", f"step:{step} - ", line, count=1))
    with (target / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        for step in range(1, NUM_STEPS + 1):
            row = {**rows[(step - 1) % len(rows)], "step": step}
            metrics.write(json.dumps(row) + "\n")
    if with_rollouts:
        (target / "rollout").mkdir()
        for step in range(1, NUM_STEPS + 1):
            dump = source / "rollout" / f"{(step - 1) % len(rows) + 1}.jsonl"
            text = re.sub(r'"step": ?\d+', f'"step": {step}', dump.read_text(encoding="utf-8"))
            (target / "rollout" / f"{step}.jsonl").write_text(text, encoding="utf-8")


def seconds(command: list[str]) -> float:
    """Return the wall time of one run of a command that may exit 1."""
    start = time.perf_counter()
    code = subprocess.run(command, capture_output=True, check=False).returncode
    assert code in (0, 1), command
    return time.perf_counter() - start


def main() -> None:
    """Print one line a case: median of five, against the peer's in the same run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for with_rollouts in (False, True):
            pair = []
            for side in ("reference", "candidate"):
                target = folder / f"{side}{with_rollouts:d}"
                target.mkdir()
                lengthen(EXAMPLES / side, target, with_rollouts=with_rollouts)
                pair.append(target)
            _measure(pair, folder, "with rollout dumps" if with_rollouts else "logs and configs")


def _measure(pair: list[Path], folder: Path, what: str) -> None:
    out = folder / "report"
    ours = [str(Path(sys.executable).with_name("align")), "report", *map(str, pair), "-o", str(out)]
    metrics = [str(side / "metrics.jsonl") for side in pair]
    peer = [sys.executable, "-c", _PLOT, *metrics, str(folder)]
    times = sorted((seconds(ours), seconds(peer)) for _ in range(5))
    median, beside = times[2]
    html_bytes = (out / "report.html").stat().st_size
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"report, {NUM_STEPS} steps, {what}: median {median:.2f} s (target {TARGET_S} s), "
        f"{median / beside:.2f} x plotting by hand ({beside:.2f} s), peak {peak_mb:.0f} MB, "
        f"report.html {html_bytes / 1e6:.2f} MB (target {HTML_TARGET_BYTES / 1e6:.0f} MB)"
    )


if __name__ == "__main__":
    main()
