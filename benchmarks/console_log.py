"""Speed and memory of the console log reader, beside a line-by-line parser in the same run.

``python -m benchmarks.console_log [--size-mb 200] [--log FILE]…`` repeats a real log (from the
corpus where there is one, else a generated one) up to the size, reads it in a process of its own
and prints one row per log and parser.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = (
    "ppo_gpu_v03_resumed_at_101.log",
    "grpo_gpu_v08_110steps_tqdm.txt",
    "grpo_npu_sync_repeat_a.txt",
    "sft_gpu_4500steps.log",
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One parser on one log: MB are 10^6 bytes, memory is the process's peak resident set."""

    log: str
    parser: str
    size_mb: float
    mb_per_s: float
    peak_rss_mb: float
    num_metric_lines: int


def read_ours(path: Path) -> int:
    """Read with the product's reader; return the number of metric lines."""
    from dumps.readers.reader import no_progress
    from dumps.readers.verl_console import READER

    return int(READER.read(path, no_progress).num_metric_lines)


def read_line_by_line(path: Path) -> int:
    """Read as a user's script does: every line through regular expressions into dictionaries."""
    anchor = re.compile(r"(?<![\w/.])step:(\d+) - (.*)")
    pair = re.compile(r"([^\s:]+):\s*(?:np\.\w+\()?([-+]?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?))")
    metrics: dict[int, dict[str, float]] = {}
    num_lines = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            found = anchor.search(re.sub(r"\x1b\[[0-9;]*m", "", line))
            if found is not None:
                num_lines += 1
                row = metrics.setdefault(int(found[1]), {})
                row.update((key, float(value)) for key, value in pair.findall(found[2]))
    return num_lines


PARSERS = {"ours": read_ours, "line by line": read_line_by_line}


def measure(logs: list[Path], size_mb: int) -> Iterator[Measurement]:
    """Yield one measurement per log and parser."""
    with tempfile.TemporaryDirectory() as folder:
        for log in logs:
            path = Path(folder) / log.name
            _repeat(log, path, size_mb * 1_000_000)
            for parser in PARSERS:
                command = [sys.executable, "-m", __spec__.name, "--child", parser, str(path)]
                done = subprocess.run(
                    command, cwd=REPOSITORY, check=True, capture_output=True, text=True
                )
                yield Measurement(**json.loads(done.stdout))
            path.unlink()


def _repeat(log: Path, path: Path, size_bytes: int) -> None:
    data = log.read_bytes().rstrip(b"\n") + b"\n"
    with path.open("wb") as file:
        for _ in range(max(1, size_bytes // len(data))):
            file.write(data)


def _measure_here(parser: str, path: Path) -> Measurement:
    started = time.process_time()
    num_metric_lines = PARSERS[parser](path)
    elapsed_s = time.process_time() - started
    size_mb = path.stat().st_size / 1e6
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Measurement(
        path.name, parser, size_mb, size_mb / elapsed_s, peak_kib * 1024 / 1e6, num_metric_lines
    )


def _logs(folder: Path) -> list[Path]:
    corpus = Path(os.environ.get("ALIGN_SHARED", REPOSITORY.parent / "shared")) / "corpus"
    real = [corpus / "verl_logs" / name for name in LOGS]
    if all(path.exists() for path in real):
        return real
    generated = folder / "generated.log"
    generated.write_text("".join(map(_generated_step, range(500))))
    return [generated]


def _generated_step(step: int) -> str:
    prefix = "\x1b[36m(TaskRunner pid=1234)\x1b[0m"
    pairs = (f"group_{i % 7}/metric_{i}:{(step + 1) / (i + 3)!r}" for i in range(80))
    chatter = "".join(f"{prefix} worker {i} is at work on step {step}\n" for i in range(8))
    bars = "".join(f"Training: {i:3}%|{'#' * (i // 10):10}|\r" for i in range(0, 100, 10))
    return f"{chatter}{bars}\n{prefix} step:{step} - {' - '.join(pairs)}\n"


def main() -> None:
    """Print the table, or one measurement as JSON when called as a child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=200)
    parser.add_argument("--log", type=Path, action="append")
    parser.add_argument("--child", nargs=2, metavar=("PARSER", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(asdict(_measure_here(arguments.child[0], Path(arguments.child[1])))))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'log':42} {'parser':13} {'MB':>6} {'MB/s':>7} {'peak MB':>8} {'lines':>8}")
        for row in measure(arguments.log or _logs(Path(folder)), arguments.size_mb):
            print(
                f"{row.log:42} {row.parser:13} {row.size_mb:6.0f} {row.mb_per_s:7.1f} "
                f"{row.peak_rss_mb:8.0f} {row.num_metric_lines:8}",
                flush=True,
            )


if __name__ == "__main__":
    main()
