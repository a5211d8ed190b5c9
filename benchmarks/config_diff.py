"""Time to compare two configurations of verl's size, beside deepdiff on the same pairs.

``python -m benchmarks.config_diff [REF CAND]`` reads and compares each pair in one
process and prints the first time, which loads the frameworks' tables, and the median of five more,
without the time of imports: both sides read, resolved, compared and judged, and the same two files
loaded by OmegaConf and given to ``deepdiff``, where installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from align.config.rung import compare
from dumps.store.discover import discover
from dumps.store.run_data import RunData

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_REPEATS = 5
# One of each kind: a number, a flag, a name, a path, a spelling that means the same.
CHANGES = {
    "actor_rollout_ref.rollout.temperature": 0.7,
    "actor_rollout_ref.actor.optim.lr": 3e-6,
    "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
    "data.shuffle": False,
    "trainer.default_local_dir": "/elsewhere",
    "actor_rollout_ref.rollout.n": 8,
    "algorithm.kl_ctrl.kl_coef": 1e-2,
    "actor_rollout_ref.actor.clip_ratio": "2e-1",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One program on one pair; ``found`` counts what it calls a difference."""

    pair: str
    program: str
    num_leaves: int
    first_s: float
    median_s: float
    found: str


def compare_ours(reference: Path, candidate: Path) -> str:
    """Read and compare with the product; return its findings by severity."""
    result = compare(RunData(discover([reference])), RunData(discover([candidate])))
    counts = [f.severity.value for f in result.findings]
    return ", ".join(f"{counts.count(name)} {name}" for name in dict.fromkeys(counts)) or "nothing"


def compare_deepdiff(reference: Path, candidate: Path) -> str:
    """Load both as verl does and compare the containers with deepdiff."""
    from deepdiff import DeepDiff

    sides = _container(reference), _container(candidate)
    changes = DeepDiff(*sides, ignore_numeric_type_changes=True)
    return f"{sum(len(group) for group in changes.values())} changes"


def num_leaves(path: Path) -> int:
    """Count the values of a configuration file."""
    return _count(_container(path))


def measure(pairs: dict[str, tuple[Path, Path]]) -> Iterator[Timing]:
    """Yield one timing per pair and program."""
    programs: dict[str, Callable[[Path, Path], str]] = {"ours": compare_ours}
    if find_spec("deepdiff") is not None:
        programs["deepdiff"] = compare_deepdiff
    for name, pair in pairs.items():
        for program, run in programs.items():
            first_s = _seconds(run, pair)
            times = [_seconds(run, pair) for _ in range(NUM_REPEATS)]
            leaves, found = num_leaves(pair[0]), run(*pair)
            yield Timing(name, program, leaves, first_s, statistics.median(times), found)


def real_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return verl's resolved configurations beside a copy with known changes."""
    shared = Path(os.environ.get("ALIGN_SHARED", REPOSITORY.parent / "shared"))
    pairs = {}
    for name in ("ppo_trainer", "ppo_megatron_trainer"):
        reference = shared / "reference" / "verl_runs" / f"{name}.resolved.yaml"
        if not reference.exists():
            continue
        config = OmegaConf.load(reference)
        for key, value in CHANGES.items():
            OmegaConf.update(config, key, value)
        candidate = folder / f"{name}.changed.yaml"
        OmegaConf.save(config, candidate)
        pairs[name] = (reference, candidate)
    return pairs


def _seconds(run: Callable[[Path, Path], str], pair: tuple[Path, Path]) -> float:
    started = time.perf_counter()
    run(*pair)
    return time.perf_counter() - started


def _container(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def _count(value: Any) -> int:
    if isinstance(value, dict) and value:
        return sum(map(_count, value.values()))
    return 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="REF CAND")
    paths = parser.parse_args().paths
    if len(paths) not in (0, 2):
        parser.error("give two configuration files, or none")
    with tempfile.TemporaryDirectory() as folder:
        pairs = {paths[0].name: (paths[0], paths[1])} if paths else real_pairs(Path(folder))
        if not pairs:
            parser.error("no configuration is at hand: give two files")
        print(f"{'pair':24} {'program':10} {'leaves':>6} {'first s':>8} {'median s':>9}  found")
        for row in measure(pairs):
            shown = f"{row.pair:24} {row.program:10} {row.num_leaves:6} {row.first_s:8.3f}"
            print(f"{shown} {row.median_s:9.3f}  {row.found}", flush=True)


if __name__ == "__main__":
    main()
