"""Time to draw a report of 500 steps and 12 figures, beside the same figures made with pyplot.

``python -m benchmarks.report_render [--steps 500] [--repeats 3]`` draws in processes of their own,
so that imports count, and prints the best time of each way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way of drawing; CPU seconds from the first import on, kB are 10^3 bytes."""

    way: str
    seconds: float
    page_kb: float
    largest_figure_kb: float


def draw_ours(document: dict[str, Any], folder: Path) -> list[int]:
    """Write the whole report: page, Markdown, JSON. Return the size of each figure in bytes."""
    from reports.write import write_report

    page = write_report(document, folder, "en").html.read_text(encoding="utf-8")
    return [len(part.partition("</svg>")[0]) for part in page.split('<div class="drawing"')[1:]]


def draw_with_pyplot(document: dict[str, Any], folder: Path) -> list[int]:
    """Save the figures alone as most scripts do, one pyplot figure for each metric."""
    import matplotlib.pyplot as plt

    sizes = []
    for number, pair in enumerate(pair for rung in document["rungs"] for pair in rung["curves"]):
        figure, (upper, lower) = plt.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for side in ("reference", "candidate"):
            for kind in ("values", "smoothed"):
                upper.plot(pair[side]["steps"], list(map(float, pair[side][kind])), label=side)
        ends = zip(pair["candidate"]["smoothed"], pair["reference"]["smoothed"], strict=True)
        lower.plot(pair["candidate"]["steps"], [float(c) - float(r) for c, r in ends])
        upper.legend()
        path = folder / f"{number}.svg"
        figure.savefig(path)
        plt.close(figure)
        sizes.append(path.stat().st_size)
    return sizes


WAYS = {"ours": draw_ours, "pyplot": draw_with_pyplot}


def measure(way: str, num_steps: int, repeats: int) -> Measurement:
    """Return the best of some runs of one way of drawing."""
    from align.core.document import to_document
    from tests.example_report import long_report

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "document.json"
        source.write_text(json.dumps(to_document(long_report(num_steps))), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.report_render", "--child", way, str(source)]
        runs = [_run(command) for _ in range(repeats)]
    return min(runs, key=lambda run: run.seconds)


def _run(command: list[str]) -> Measurement:
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(done.stdout))


def _measure_here(way: str, source: Path) -> Measurement:
    document = json.loads(source.read_text(encoding="utf-8"))
    started_s = time.process_time()
    sizes = WAYS[way](document, source.parent)
    seconds = time.process_time() - started_s
    page = source.parent / "report.html"
    page_bytes = page.stat().st_size if page.exists() else sum(sizes)
    return Measurement(way, seconds, page_bytes / 1e3, max(sizes) / 1e3)


def main() -> None:
    """Measure every way and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("WAY", "DOCUMENT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, source = options.child
        print(json.dumps(asdict(_measure_here(way, Path(source)))))
        return
    results = [measure(way, options.steps, options.repeats) for way in WAYS]
    print(f"{'way':<8}{'seconds':>9}{'page kB':>10}{'largest figure kB':>20}")
    for row in results:
        print(f"{row.way:<8}{row.seconds:>9.2f}{row.page_kb:>10.0f}{row.largest_figure_kb:>20.0f}")
    print(f"ours takes {results[0].seconds / results[1].seconds:.2f} of pyplot's time")


if __name__ == "__main__":
    main()
