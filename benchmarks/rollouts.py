"""Rollout dumps: reading speed and memory against peers, and pairing of two million rows.

    python -m benchmarks.rollouts

Every measurement runs in a process of its own, so peak memory is its own; the ratio to the peers
is of one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("ALIGN_SHARED", REPOSITORY.parent / "shared"))
REAL_ROWS = SHARED / "corpus" / "rollouts" / "verl_step1_text_only.jsonl"

READ_TARGET_MB_S = 150.0
PAIR_TARGET_S = 60.0
PAIR_TARGET_MB = 2048.0


@dataclass(frozen=True)
class Measurement:
    """Seconds, peak resident memory and input size of one piece of work."""

    name: str
    seconds: float
    peak_mb: float
    input_mb: float
    num_rows: int

    def __str__(self) -> str:
        speed = self.input_mb / self.seconds
        return (
            f"{self.name:<34} {self.seconds:8.2f} s {speed:8.1f} MB/s "
            f"{self.peak_mb:8.0f} MB peak {self.num_rows:10,} rows"
        )


def main() -> None:
    """Measure and print; ``--only NAME FILES`` is how the processes are started."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--read-mb", type=int, default=400, help="size of the file read")
    parser.add_argument("--pair-rows", type=int, default=1_000_000, help="rows of each side")
    options = parser.parse_args()
    if options.only:
        name, *files = options.only
        print(json.dumps(_measured(name, [Path(file) for file in files]).__dict__))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for line in _report(Path(folder), options.read_mb, options.pair_rows):
            print(line, flush=True)


def _report(folder: Path, read_mb: int, pair_rows: int) -> list[str]:
    small, large = folder / "1.jsonl", folder / "2.jsonl"
    write_rows(small, seed=0, size_bytes=read_mb * 1_000_000 // 4)
    write_rows(large, seed=0, size_bytes=read_mb * 1_000_000)
    ours, quarter = _child("read", large), _child("read", small)
    peers = [_child(name, large) for name in ("json_loads", "pandas_chunks")]
    sides = [folder / side / "rollouts" / "1.jsonl" for side in ("a", "b")]
    for seed, side in enumerate(sides):
        side.parent.mkdir(parents=True)
        write_rows(side, seed=seed, num_rows=pair_rows, short=True)
    pair = _child("pair", *sides)
    lines = [str(m) for m in (ours, quarter, *peers, pair)]
    lines += [f"ratio to {p.name}: {p.seconds / ours.seconds:.1f}x" for p in peers]
    lines.append(f"memory, whole file against a quarter: {ours.peak_mb / quarter.peak_mb:.2f}x")
    speed = ours.input_mb / ours.seconds
    lines.append(f"read  {_met(speed >= READ_TARGET_MB_S)}: at least {READ_TARGET_MB_S:.0f} MB/s")
    fits = pair.seconds < PAIR_TARGET_S and pair.peak_mb < PAIR_TARGET_MB
    lines.append(f"pair  {_met(fits)}: under {PAIR_TARGET_S:.0f} s and {PAIR_TARGET_MB:.0f} MB")
    return lines


def _met(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"


def _child(name: str, *files: Path) -> Measurement:
    command = [sys.executable, "-m", "benchmarks.rollouts", "--only", name, *map(str, files)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(done.stdout))


def _measured(name: str, files: list[Path]) -> Measurement:
    start = time.perf_counter()
    num_rows = WORK[name](files)
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    input_mb = sum(file.stat().st_size for file in files) / 1e6
    return Measurement(name, seconds, peak_mb, input_mb, num_rows)


def _read(files: list[Path]) -> int:
    from dumps.readers.reader import no_progress
    from dumps.readers.verl_rollout import read

    return sum(len(batch) for batch in read(files[0], no_progress))


def _json_loads(files: list[Path]) -> int:
    with files[0].open(encoding="utf-8") as file:
        return sum(bool(json.loads(line)["output"]) for line in file)


def _pandas_chunks(files: list[Path]) -> int:
    import pandas

    with pandas.read_json(files[0], lines=True, chunksize=4096) as chunks:
        return sum(len(chunk) for chunk in chunks)


def _pair(files: list[Path]) -> int:
    from align.rollout.rung import compare
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData

    reference, candidate = (RunData(discover([file])) for file in files)
    result = compare(reference, candidate)
    if not result.tables:
        raise RuntimeError(f"nothing was paired: {result.summary.en}")
    return len(reference.rollouts) + len(candidate.rollouts)


WORK: dict[str, Callable[[list[Path]], int]] = {
    "read": _read,
    "json_loads": _json_loads,
    "pandas_chunks": _pandas_chunks,
    "pair": _pair,
}


def write_rows(
    path: Path,
    *,
    seed: int,
    size_bytes: int | None = None,
    num_rows: int | None = None,
    short: bool = False,
) -> None:
    """Write rows like a real dump's, each with a prompt of its own, four responses to each.

    Args:
        seed: of the responses; prompts are the same for every seed, in another order.
        short: cut responses to 200 characters, so that a million rows fit on a small disk.
    """
    rng = random.Random(seed)
    texts = _texts()
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while (written < size_bytes) if size_bytes else (number < (num_rows or 0)):
            _, response = rng.choice(texts)
            group = number // 4
            row = {
                "input": f"{texts[group % len(texts)][0]} (question {group})",
                "output": f"{response[:200] if short else response} {rng.randrange(10**9)}",
                "score": float(rng.random() < 0.3),
                "step": 1 + group // 256,
            }
            line = json.dumps(row, ensure_ascii=False) + "\n"
            file.write(line)
            written += len(line.encode())
            number += 1


def _texts() -> list[tuple[str, str]]:
    if REAL_ROWS.is_file():
        rows = [json.loads(line) for line in REAL_ROWS.read_text(encoding="utf-8").splitlines()]
        return [(row["input"], row["output"]) for row in rows]
    rng = random.Random(7)
    words = ["so", "we", "have", "therefore", "12", "+", "=", "apples", "number", "答案", "\n\n"]
    return [
        (" ".join(rng.choices(words, k=60)), " ".join(rng.choices(words, k=200)))
        for _ in range(128)
    ]


if __name__ == "__main__":
    main()
