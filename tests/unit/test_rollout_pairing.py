"""Rollout rows as numbers, paired across runs by what they say."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from align.core.finding import Side
from align.rollout.step_stats import step_stats
from dumps.store.discover import discover
from dumps.store.response_flags import ResponseFlag, flags_of
from dumps.store.rollout_index import RolloutIndex
from dumps.store.rollout_pair import group_size, pair_rollouts
from dumps.store.run_data import RunData

Row = dict[str, Any]


def index_of(*paths: Path) -> RolloutIndex:
    return RunData(discover(list(paths))).rollouts


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def row(prompt: str, response: str, *, step: int = 1, score: float = 0.0, **more: object) -> Row:
    return {"input": prompt, "output": response, "score": score, "step": step, **more}


def read_plainly(folder: Path) -> dict[int, list[Row]]:
    """Read a dump folder with nothing but the json module."""
    steps: dict[int, list[Row]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text("utf-8").split("\n"):
            if line:
                data = json.loads(line)
                steps.setdefault(data["step"], []).append(data)
    return steps


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("v091_v0_fsdp2", "v091_v1_fsdp2"),
        ("v091_v1_vllmcpu", "v091_v1_vllmcpu_bf16rollout"),
        ("v091_v0_fsdp2", "v091_v1_vllmcpu"),
    ],
)
def test_real_runs_pair_as_counters_over_their_json_do(
    reference_runs: Path, reference: str, candidate: str
) -> None:
    folders = [reference_runs / run / "rollout" for run in (reference, candidate)]
    plain = [read_plainly(folder) for folder in folders]
    pair = pair_rollouts(*[index_of(folder) for folder in folders])
    stats = step_stats(pair)
    assert [s.step for s in stats] == sorted(plain[0].keys() & plain[1].keys())
    for s in stats:
        a, b = plain[0][s.step], plain[1][s.step]
        texts = [Counter((r["input"], r["output"]) for r in side) for side in (a, b)]
        assert s.num_same_responses == (texts[0] & texts[1]).total()
        assert s.num_common_prompts == len({r["input"] for r in a} & {r["input"] for r in b})
        for side, rows in ((s.reference, a), (s.candidate, b)):
            assert side.num_rows == len(rows) == 32
            assert side.group_size == 4
            assert side.num_prompts == len({r["input"] for r in rows})
            assert side.mean_length == pytest.approx(np.mean([len(r["output"]) for r in rows]))
            assert side.mean_score == pytest.approx(np.mean([r["score"] for r in rows]))
            assert side.empty_share == sum(not r["output"].strip() for r in rows) / 32


def test_row_order_does_not_matter(tmp_path: Path) -> None:
    rows = [row(f"p{i // 4}", f"r{i}", step=1 + i // 16) for i in range(48)]
    shuffled = random.Random(0).sample(rows, len(rows))
    pair = pair_rollouts(
        index_of(write(tmp_path / "a" / "1.jsonl", rows)),
        index_of(write(tmp_path / "b" / "1.jsonl", shuffled)),
    )
    assert [s.same_share for s in step_stats(pair)] == [1.0, 1.0, 1.0]
    for _, a, b in pair.by_step():
        assert sorted(a.prompt) == sorted(b.prompt)
        assert sorted(a.response) == sorted(b.response)


def test_special_tokens_that_only_one_dump_keeps_do_not_hide_a_pair(tmp_path: Path) -> None:
    kept = row("<|im_start|>user\nhi<|im_end|>\n", "yes<|im_end|>")
    stripped = row("user\nhi\n", "yes")
    pair = pair_rollouts(
        index_of(write(tmp_path / "a" / "1.jsonl", [kept])),
        index_of(write(tmp_path / "b" / "1.jsonl", [stripped])),
    )
    assert step_stats(pair)[0].num_same_responses == 1


def test_lone_surrogates_are_texts_like_others(tmp_path: Path) -> None:
    pair = pair_rollouts(
        index_of(write(tmp_path / "a" / "1.jsonl", [row("p", "cut \ud83d"), row("p", "cut")])),
        index_of(write(tmp_path / "b" / "1.jsonl", [row("p", "cut \ud83d"), row("p", "else")])),
    )
    assert step_stats(pair)[0].num_same_responses == 1


def test_a_dump_without_steps_is_split_only_where_the_prompts_prove_it(tmp_path: Path) -> None:
    stepped = [row(f"p{i // 2}", f"r{i}", step=1 + i // 8) for i in range(24)]
    stepless = [{"prompt": r["input"], "response": "x", "label": "1"} for r in stepped]
    reference = index_of(write(tmp_path / "a" / "1.jsonl", stepped))
    pair = pair_rollouts(reference, index_of(write(tmp_path / "b" / "run.log", stepless)))
    assert pair.steps_inferred is Side.CANDIDATE
    assert pair.common_steps == [1, 2, 3]
    other = pair_rollouts(reference, index_of(write(tmp_path / "c" / "r.log", stepless[2:])))
    assert other.steps_inferred is None and other.common_steps == []


def test_group_size_is_the_usual_count_or_unknown(tmp_path: Path) -> None:
    four = [row(f"p{i // 4}", f"{i}") for i in range(28)] + [row("p0", "again")] * 4
    pair = pair_rollouts(
        index_of(write(tmp_path / "a" / "1.jsonl", four)),
        index_of(write(tmp_path / "b" / "1.jsonl", [row(p, "r") for p in "abbcccdddd"])),
    )
    assert group_size(pair.reference) == 4
    assert group_size(pair.candidate) is None


def test_skipped_lines_and_absent_columns_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", [row("p", "r")])
    path.write_text(path.read_text() + "{broken\n")
    index = index_of(path)
    assert index.num_skipped == 1 and index.skipped[0].startswith(f"{path}:2: not JSON")
    assert index.absent == {"ground_truths", "uids"}
    (text,) = index.texts([0])
    assert (text.line, text.prompt, text.response) == (1, "p", "r")


@pytest.mark.parametrize(
    ("response", "flag"),
    [
        ("", ResponseFlag.EMPTY),
        (" \n\t", ResponseFlag.EMPTY),
        ("!" * 64, ResponseFlag.TOKEN0),
        ("so" + "!" * 40, ResponseFlag.TOKEN0),
        ("The answer is 4. " * 30, ResponseFlag.LOOP),
        ("start " + "ab" * 300, ResponseFlag.LOOP),
        ("4\nuser\nWhat is 5?", ResponseFlag.NEXT_TURN),
        ("caf\ufffd", ResponseFlag.REPLACED),
        ("Great! The answer is 4!!!!", ResponseFlag(0)),
        ("aha " * 20, ResponseFlag(0)),
        ("The user asked for 4.", ResponseFlag(0)),
        (" ".join(str(i) for i in range(200)), ResponseFlag(0)),
    ],
)
def test_a_response_is_flagged_for_what_it_is(response: str, flag: ResponseFlag) -> None:
    assert ResponseFlag(flags_of(response)) == flag
