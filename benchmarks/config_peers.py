"""True and false differences that three tools report on the same pairs of configurations.

    python -m benchmarks.config_peers --msprobe /path/to/bin/msprobe --write-docs docs/accuracy.md

The pairs are edits of a configuration that a real verl 0.9.1 run printed, so which differences are
true is known by construction. A difference that our report calls an error or a warning counts as
reported, and so does every difference that deepdiff or msprobe's ``config_check -vc`` lists. A tool
that ends with an error, or cannot read one side, has crashed on that pair.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dumps.readers.printed_config import read_printed_config

LOG = Path(__file__).resolve().parents[1] / "align" / "examples" / "reference" / "console.log"
ALIGN = str(Path(sys.executable).with_name("align"))
_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"

# Settings that change what is computed; the value is a Python literal.
TRUE: Mapping[str, str] = {
    f"{_ROLLOUT}.temperature": "0.7",
    f"{_ROLLOUT}.n": "8",
    f"{_ROLLOUT}.dtype": "'float16'",
    f"{_ACTOR}.optim.lr": "0.0005",
    f"{_ACTOR}.optim.weight_decay": "0.1",
    f"{_ACTOR}.clip_ratio_high": "0.28",
    f"{_ACTOR}.loss_agg_mode": "'seq-mean-token-mean'",
    "algorithm.norm_adv_by_std_in_grpo": "False",
    "data.max_response_length": "12",
    "data.seed": "7",
}
# Spelling, paths, logging, and keys that verl 0.9 does not read or another setting switches off.
HARMLESS: Mapping[str, str] = {
    "trainer.experiment_name": "'npu_candidate'",
    "trainer.save_freq": "20",
    "trainer.test_freq": "50",
    "trainer.default_local_dir": "'/cache/checkpoints'",
    "data.train_files": "'/npu/tiny/train.parquet'",
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": "'0.0'",
    f"{_ACTOR}.grad_clip": "0.5",
    f"{_ROLLOUT}.gpu_memory_utilization": "0.9",
    "critic.optim.lr": "1.0e-6",
    "trainer.log_val_generations": "5",
}
_FOREIGN = "\x1b[36m(WorkerDict pid=77)\x1b[0m INFO 11-29 21:36:43 loading weights\n"


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate log made from the reference log, and the keys that truly differ."""

    name: str
    candidate: str
    true: frozenset[str]


@dataclass(frozen=True, slots=True)
class Score:
    """What one tool says about one pair; no keys where it crashed."""

    tool: str
    pair: Pair
    reported: frozenset[str] | None

    @property
    def found(self) -> int:
        return len((self.reported or frozenset()) & self.pair.true)

    @property
    def false(self) -> int:
        return len((self.reported or frozenset()) - self.pair.true)


def edited(text: str, changes: Mapping[str, str]) -> str:
    """Return the log with other literals at the places where the configuration prints these keys.

    Raises:
        KeyError: The log does not print a key.
    """
    lines = text.splitlines(keepends=True)
    known = read_printed_config(LOG, lambda _: None).values
    for key, literal in changes.items():
        line = known[key].provenance.line
        assert line is not None
        name = re.escape(key.rpartition(".")[2])
        lines[line - 1], count = re.subn(
            rf"('{name}': )('[^']*'|[^,}}\n]+)", rf"\g<1>{literal}", lines[line - 1], count=1
        )
        assert count == 1, key
    return "".join(lines)


def pairs() -> list[Pair]:
    """Return the pairs, the plain ones first."""
    text = LOG.read_text(encoding="utf-8")
    first = {f"{_ROLLOUT}.temperature": "0.7"}
    ten = edited(text, {**TRUE, **HARMLESS})
    lines = ten.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if "{'actor_rollout_ref'" in line)
    cut = start + 500
    known = read_printed_config(LOG, lambda _: None).values
    before = frozenset(k for k in TRUE if (known[k].provenance.line or 0) <= cut)
    return [
        Pair(
            "nothing but spelling, paths, logging, dead keys", edited(text, HARMLESS), frozenset()
        ),
        Pair("one setting", edited(text, first), frozenset(first)),
        Pair("ten settings among ten harmless ones", ten, frozenset(TRUE)),
        Pair(
            "the same, another process writes between the lines",
            "".join([*lines[: start + 2], _FOREIGN, *lines[start + 2 :]]),
            frozenset(TRUE),
        ),
        Pair("the same, the log ends after 500 lines", "".join(lines[:cut]), before),
    ]


def ours(reference: Path, candidate: Path) -> frozenset[str]:
    """Return the keys named by errors and warnings of ``align config diff``."""
    command = [ALIGN, "config", "diff", str(reference), str(candidate)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    findings = json.loads(done.stdout)["findings"]
    return frozenset(
        key
        for finding in findings
        if finding["severity"] in ("error", "warning")
        for item in finding["evidence"]
        for key in (item["key"] or "").split(", ")
    )


def deepdiff(reference: Path, candidate: Path) -> frozenset[str]:
    """Return the paths deepdiff reports between the two printed dicts."""
    from deepdiff import DeepDiff

    diff: Any = DeepDiff(_literal(reference), _literal(candidate), view="tree")
    items = [item for kind in diff.values() for item in kind]
    return frozenset(
        ".".join(str(part) for part in item.path(output_format="list") if isinstance(part, str))
        for item in items
    )


def msprobe(program: str) -> Callable[[Path, Path], frozenset[str]]:
    """Return msprobe's comparison: the rows it calls inconsistent."""

    def compare(reference: Path, candidate: Path) -> frozenset[str]:
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "config_check", "-vc", str(candidate), str(reference), "-o", folder]
            subprocess.run(command, check=True, capture_output=True)
            table = Path(folder) / "hyper_params_compare.csv"
            rows = list(csv.reader(table.read_text(encoding="utf-8-sig").splitlines()))
        return frozenset(row[0].replace("/", ".") for row in rows[1:] if row[3] != "是")

    return compare


def _literal(path: Path) -> Any:
    """Read the printed dict as one does by hand: strip colours and the prefix, then parse."""
    text = re.sub(r"\x1b\[\d+m", "", path.read_text(encoding="utf-8"))
    body = text[text.index("{'actor_rollout_ref'") :]
    prefix = text[: text.index("{'actor_rollout_ref'")].rpartition("\n")[2]
    lines = [line.removeprefix(prefix) for line in body.splitlines()]
    end = next(i for i, line in enumerate(lines) if line.endswith("}}"))
    return ast.literal_eval("\n".join(lines[: end + 1]))


def measure(tools: Mapping[str, Callable[[Path, Path], frozenset[str]]]) -> list[Score]:
    """Run every tool on every pair."""
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        for number, pair in enumerate(pairs()):
            candidate = Path(folder) / f"candidate_{number}.log"
            candidate.write_text(pair.candidate, encoding="utf-8")
            for name, compare in tools.items():
                try:
                    reported = compare(LOG, candidate)
                except (subprocess.CalledProcessError, ValueError, SyntaxError, StopIteration):
                    scores.append(Score(name, pair, None))
                else:
                    scores.append(Score(name, pair, reported))
    return scores


def as_markdown(scores: Sequence[Score]) -> str:
    """Return the table: a row a pair, three figures a tool."""
    tools = list(dict.fromkeys(score.tool for score in scores))
    head = ["pair", "true differences", *tools]
    rows = [head, ["---"] * len(head)]
    for pair in dict.fromkeys(score.pair for score in scores):
        cells = [pair.name, str(len(pair.true))]
        for score in (s for s in scores if s.pair == pair):
            crashed = score.reported is None
            cells.append("crashes" if crashed else f"{score.found} found, {score.false} false")
        rows.append(cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, print, and replace the table in the documentation where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--msprobe", help="msprobe's executable; left out where not given")
    parser.add_argument("--write-docs", type=Path, help="file with the marked table")
    options = parser.parse_args()
    tools: dict[str, Callable[[Path, Path], frozenset[str]]] = {"align": ours}
    try:
        import deepdiff as found
    except ImportError:
        print("deepdiff is not installed: pip install deepdiff", file=sys.stderr)
    else:
        tools[f"deepdiff {found.__version__}"] = deepdiff
    if options.msprobe:
        tools["msprobe config_check -vc"] = msprobe(options.msprobe)
    scores = measure(tools)
    text = f"Measured {date.today()}: `python -m benchmarks.config_peers`.\n\n{as_markdown(scores)}"
    print(text)
    for score in scores:
        for kind, keys in (
            ("missed", score.pair.true - (score.reported or frozenset())),
            ("false", (score.reported or frozenset()) - score.pair.true),
        ):
            if keys and score.reported is not None:
                print(f"{score.tool}, {score.pair.name}: {kind} {sorted(keys)}", file=sys.stderr)
    if options.write_docs:
        _replace(options.write_docs, text)


def _replace(path: Path, text: str) -> None:
    start, end = "<!-- config peers -->", "<!-- config peers: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
