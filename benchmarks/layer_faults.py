"""Which planted fault of a model is named first, in float32 and under bfloat16 noise.

    python -m benchmarks.layer_faults --msprobe /path/to/bin/python --write-docs docs/accuracy.md

The reference computes in one dtype; the candidate in the same, with every matrix product summed
from four rounded parts, as another device would. Noise runs are the reference with embeddings moved
by one rounding. ``--msprobe`` is a Python with mindstudio-probe, torch, transformers and orjson: it
dumps and compares the same models itself (benchmarks/layer_fault_msprobe.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from align.core.finding import Finding
from align.layers import backward_rung, forward_rung
from align.stack import numerics
from benchmarks.layer_fault_models import (
    NUM_STEPS,
    Edit,
    Planted,
    batch,
    build,
    perturbed,
    planted_faults,
    scores_scaled,
    train_step,
)
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase

SEEDS = (1, 2, 3)
CLEAN_SEEDS = tuple(range(1, 9))
FACTORS = (1.002, 1.005, 1.01, 1.02, 1.05)
CLEAN = "clean twin"
SMALL, LARGE = (2, 32), (8, 128)
LEVELS = ("L0", "mix")
DTYPES = ("float32", "bfloat16")
WHOLE, FIRST = "bfloat16", "embed"  # no module is at fault; the first one is as good as any


@dataclass(frozen=True, slots=True)
class Setting:
    """What a pair has in common.

    Args:
        std: of the random weights; with 0.15 attention is peaked and noise grows.
        num_noise: runs to observe noise on.
    """

    seed: int
    dtype: str
    planted: Planted
    size: tuple[int, int] = SMALL
    std: float = 0.02
    num_noise: int = 2


class Recordings:
    """Runs made once each, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, RunData]()

    def reference(self, setting: Setting) -> RunData:
        """Return the untouched run."""
        return self._run(setting, "reference", setting.dtype, lambda model: None)

    def noise(self, setting: Setting) -> list[RunData]:
        """Return the reference again, with perturbed embeddings."""
        return [
            self._run(setting, f"noise-{i}", setting.dtype, perturbed(i))
            for i in range(setting.num_noise)
        ]

    def candidate(self, setting: Setting) -> RunData:
        """Return the run under test, on the other device."""
        planted = setting.planted
        return self._run(
            setting, planted.name, f"{setting.dtype}_split_k", planted.edit, planted.scale
        )

    def _run(
        self, setting: Setting, name: str, profile: str, edit: Edit, scale: float = 1.0
    ) -> RunData:
        planted = setting.planted
        key = (setting.seed, setting.size, setting.std, planted.architecture, planted.is_packed)
        label = f"{name}-{profile}-{key}".replace("/", "-")
        if label not in self._made:
            model = build(setting.seed, planted.architecture, std=setting.std)
            edit(model)
            numerics.apply(profile, model)
            folder = self._folder / label
            for step in range(1, NUM_STEPS + 1):
                with sketched_step(model, folder, step, FailureLog(folder, "bench")) as recorder:
                    record_parameters(recorder, model, Phase.PARAMETER)
                    inputs = batch(step, setting.size, is_packed=planted.is_packed)
                    train_step(model, inputs, scale)
                    record_gradients(recorder, model)
            self._made[label] = RunData(discover([folder]))
        return self._made[label]


def first_finding(recordings: Recordings, setting: Setting) -> Finding | None:
    """Compare forward, then backward; return what is said first."""
    own, other = recordings.reference(setting), recordings.candidate(setting)
    noise = recordings.noise(setting)
    for compare in (forward_rung.compare, backward_rung.compare):
        result = compare(own, other, noise)
        if result.findings:
            return result.findings[0]
    return None


def outcome(found: Sequence[Finding | None], expected: str) -> str:
    """Say how often the fault is named first, and what else is."""
    right = sum(each is not None and expected in each.title.en for each in found)
    wrong = [f for f in found if f is not None and expected not in f.title.en]
    text = f"{right}/{len(found)}"
    return f"{text}, wrongly: {wrong[0].title.en}" if wrong else text


def faults_table(recordings: Recordings, others: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return a row a fault: ours in both dtypes, then msprobe's."""
    columns = [(level, dtype) for level in LEVELS for dtype in DTYPES if (level, dtype) in others]
    head = ["fault", "must be named", "align, float32", "align, bfloat16"]
    head += [f"msprobe {level}, {dtype}" for level, dtype in columns]
    rows = [head, ["---"] * len(head)]
    for planted in (Planted(CLEAN, "nothing"), *planted_faults()):
        also = f" (`{planted.below_noise}`)" if planted.below_noise else ""
        cells = [planted.name, f"`{planted.expected}`{also}"]
        for dtype in DTYPES:
            if dtype == "bfloat16" and not planted.in_bfloat16:
                cells.append("is no fault there")
                continue
            seeds = CLEAN_SEEDS if planted.name == CLEAN else SEEDS
            found = [first_finding(recordings, Setting(s, dtype, planted)) for s in seeds]
            if planted.name == CLEAN:
                cells.append(f"silent in {sum(f is None for f in found)}/{len(found)}")
            else:
                cells.append(outcome(found, planted.must_name(dtype)))
        cells += [_msprobe_cell(others[c].get(planted.name), planted, c[1]) for c in columns]
        rows.append(cells)
        print(f"| {' | '.join(cells)} |", file=sys.stderr, flush=True)
    return _as_markdown(rows)


def limits_table(recordings: Recordings) -> str:
    """Return from what size on another attention scale in one layer is found."""
    settings = [
        ("2 x 32 tokens", SMALL, 0.02),
        ("8 x 128 tokens", LARGE, 0.02),
        ("8 x 128 tokens, peaked attention", LARGE, 0.15),
    ]
    sizes = [f"{100 * (factor - 1):.2g} %" for factor in FACTORS]
    head = ["three steps of", "noise runs", CLEAN, *sizes]
    rows = [head, ["---"] * len(head)]
    for label, size, std in settings:
        for num_noise in (2, 0):
            cells = [label, str(num_noise)]
            for factor in (1.0, *FACTORS):
                planted = Planted(f"scale {factor}", "layers.2.self_attn", scores_scaled(factor))
                found = [
                    first_finding(
                        recordings, Setting(seed, "bfloat16", planted, size, std, num_noise)
                    )
                    for seed in SEEDS
                ]
                silent = sum(each is None for each in found)
                is_clean = factor == 1.0
                cells.append(
                    f"silent in {silent}/{len(found)}"
                    if is_clean
                    else outcome(found, planted.expected)
                )
            rows.append(cells)
            print(f"| {' | '.join(cells)} |", file=sys.stderr, flush=True)
    return _as_markdown(rows)


def msprobe(python: str, folder: Path, levels: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Have msprobe dump and compare the same models; a level that fails is left out, and said."""
    found = {}
    for level in levels:
        for dtype in DTYPES:
            work = folder / f"msprobe-{level}-{dtype}"
            known = work.with_suffix(".json")
            if known.is_file():
                found[level, dtype] = json.loads(known.read_text(encoding="utf-8"))
                continue
            work.mkdir()
            command = [python, "-m", "benchmarks.layer_fault_msprobe", str(work), level, dtype]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if lines:
                known.write_text(lines[-1].removeprefix("RESULT "), encoding="utf-8")
                found[level, dtype] = json.loads(known.read_text(encoding="utf-8"))
                shutil.rmtree(work)
            else:
                print(f"msprobe {level} {dtype} failed: {done.stderr[-500:]}", file=sys.stderr)
    return found


def _msprobe_cell(found: dict[str, Any] | None, planted: Planted, dtype: str) -> str:
    if found is None:
        return "is no fault there"
    if found["first"] is None:
        return f"{found['rows']}/{found['rows']} pass"
    name = found["first"].removeprefix("Module.model.")
    module, expected = name.split(".forward")[0].split(".backward")[0], planted.must_name(dtype)
    verdict = "wrong"
    if planted.name != CLEAN and (expected in name or (expected == WHOLE and FIRST in name)):
        verdict = "right"
    elif module.count(".") > 1 and expected.startswith(f"{module.rpartition('.')[0]}."):
        verdict = "its parent"
    return f"{verdict}: {found['failed']} of {found['rows']} fail, first `{name[:60]}`"


def _as_markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, print, and replace the tables in the documentation where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--msprobe", help="a Python with mindstudio-probe; left out if not given")
    parser.add_argument("--levels", default=",".join(LEVELS), help="msprobe's levels to measure")
    parser.add_argument("--work", type=Path, help="keep what msprobe says there, and use it again")
    parser.add_argument("--write-docs", type=Path, help="file with the marked tables")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.work or Path(made)
        others = {}
        if options.msprobe:
            others = msprobe(options.msprobe, folder, options.levels.split(","))
        recordings = Recordings(Path(made) / "runs")
        faults = faults_table(recordings, others)
        limits = limits_table(recordings)
    text = (
        f"Measured {date.today()}: `python -m benchmarks.layer_faults --msprobe PYTHON`.\n\n"
        f"{faults}\n\nAnother attention scale in one layer, in bfloat16: how often it is named, by "
        f"size.\n\n{limits}"
    )
    print(text)
    if options.write_docs:
        _replace(options.write_docs, text)


def _replace(path: Path, text: str) -> None:
    start, end = "<!-- layer faults -->", "<!-- layer faults: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
