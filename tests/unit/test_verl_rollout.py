"""verl's rollout and validation dumps, of every version."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from dumps.readers import rollout_rows, verl_rollout
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import examine

ROW = {"input": "user\nWhat is 1 + 2?\nassistant\n", "output": "3", "score": 1.0, "step": 1}
REQUIRED = {"input", "output", "score", "step"}


def read(path: Path) -> list[RolloutBatch]:
    return list(verl_rollout.read(path, no_progress))


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(row if isinstance(row, bytes) else _line(row) for row in rows))
    return path


def _line(row: object) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def kinds(path: Path) -> set[ArtifactKind]:
    return {artifact.kind for artifact in examine(path)[0]}


@pytest.mark.parametrize(
    ("version", "extras"),
    [
        ("v0.4.1", {"acc"}),
        ("v0.5.0", {"acc", "request_id"}),
        ("v0.6.1", {"acc"}),
        ("v0.7.1", {"acc"}),
        ("v0.8.0", {"acc", "request_id"}),
        ("v0.9.0", {"acc", "request_id"}),
    ],
)
def test_each_old_version_has_the_fields_its_source_writes(
    reference_runs: Path, version: str, extras: set[str]
) -> None:
    path = reference_runs / "old_versions" / version / "1.jsonl"
    (batch,) = read(path)
    assert set(batch.extras) == extras
    has_ground_truth = version not in ("v0.4.1", "v0.5.0")
    assert ("ground_truths" not in batch.absent) is has_ground_truth
    assert set(batch.absent) == {"uids"} | (set() if has_ground_truth else {"ground_truths"})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(batch.responses) == [row["output"] for row in rows]
    assert [row.score for row in batch.rows()] == [row["score"] for row in rows]
    assert [row.step for row in batch.rows()] == [1, 1]


@pytest.mark.parametrize("run", ["v091_v0_fsdp2", "v091_v1_fsdp2", "v091_v1_vllmcpu"])
def test_a_real_dump_reads_as_the_json_module_reads_it(reference_runs: Path, run: str) -> None:
    for path in sorted((reference_runs / run / "rollout").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        (batch,) = read(path)
        assert len(batch) == 32 == len(rows)
        assert batch.prompts is not None and batch.scores is not None
        assert Counter(batch.prompts) == Counter(row["input"] for row in rows)
        assert list(batch.responses) == [row["output"] for row in rows]
        assert batch.scores.tolist() == [row["score"] for row in rows]
        assert batch.lines.tolist() == list(range(1, 33))
        assert set(batch.extras) == set(rows[0]) - REQUIRED - {"gts", "uid"}


def test_the_corpus_dump_has_128_rows_of_128_prompts(corpus: Path) -> None:
    (batch,) = read(corpus / "rollouts" / "verl_step1_text_only.jsonl")
    assert batch.prompts is not None and batch.scores is not None
    assert len(batch) == 128 == len(set(batch.prompts))
    assert Counter(batch.scores.tolist()) == {0.0: 126, 1.0: 2}
    assert set(batch.absent) == {"ground_truths", "uids"}


def test_extras_of_mixed_types_and_a_json_string_as_ground_truth_survive(corpus: Path) -> None:
    path = corpus / "rollouts" / "verl_step1_extra_fields.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    (batch,) = read(path)
    assert list(batch.ground_truths or ()) == [row["gts"] for row in rows]
    for key in ("acc", "pred", "incorrect_format", "feedback"):
        assert list(batch.extras[key]) == [row[key] for row in rows]


def test_validation_is_told_from_rollout_by_content(reference_runs: Path) -> None:
    for run in ("v091_v0_fsdp2", "v091_v1_fsdp2"):
        for path in (reference_runs / run / "val").glob("*.jsonl"):
            assert kinds(path) == {ArtifactKind.VALIDATION}
        for path in (reference_runs / run / "rollout").glob("*.jsonl"):
            assert kinds(path) == {ArtifactKind.ROLLOUT}


def test_the_folder_decides_only_where_content_does_not(tmp_path: Path) -> None:
    repeated = {**ROW, "reward": 1.0}
    extra = {**ROW, "reward": 0.25}
    assert kinds(write(tmp_path / "rollout" / "1.jsonl", repeated)) == {ArtifactKind.VALIDATION}
    assert kinds(write(tmp_path / "rollout" / "2.jsonl", extra)) == {ArtifactKind.ROLLOUT}
    assert kinds(write(tmp_path / "val_data" / "1.jsonl", ROW)) == {ArtifactKind.VALIDATION}
    assert kinds(write(tmp_path / "evaluated" / "1.jsonl", ROW)) == {ArtifactKind.ROLLOUT}


def test_a_dump_is_known_by_content_whatever_its_name(tmp_path: Path) -> None:
    for name in (" ", "训练", "rollout", "1.md"):
        assert kinds(write(tmp_path / "r" / name, ROW)) == {ArtifactKind.ROLLOUT}
    alpaca = {"instruction": "add", "input": "1 2", "output": "3"}
    assert kinds(write(tmp_path / "r" / "alpaca.jsonl", alpaca)) == {ArtifactKind.DATA}


def test_a_first_row_longer_than_the_glimpse_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", {**ROW, "output": "x" * 200_000}, ROW)
    assert kinds(path) == {ArtifactKind.ROLLOUT}
    assert [len(r) for r in read(path)[0].responses] == [200_000, 1]


def test_ground_truths_may_be_null_numbers_or_json(tmp_path: Path) -> None:
    truths = [None, 72, 0.5, "72", '{"a": [1]}', {"target": [1, 2]}, True]
    path = write(tmp_path / "1.jsonl", *({**ROW, "gts": truth} for truth in truths))
    (batch,) = read(path)
    expected = [None, "72", "0.5", "72", '{"a": [1]}', '{"target": [1, 2]}', "true"]
    assert list(batch.ground_truths or ()) == expected


def test_scores_that_are_not_finite_stay_what_they_are(tmp_path: Path) -> None:
    values = [b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b'"inf"', b'"bad"', b"2"]
    rows = [b'{"input": "a", "output": "b", "step": 1, "score": %s}\n' % v for v in values]
    (batch,) = read(write(tmp_path / "1.jsonl", *rows))
    assert batch.scores is not None
    nan, inf = math.nan, math.inf
    np.testing.assert_array_equal(batch.scores, [nan, inf, -inf, nan, 1.0, inf, nan, 2.0])
    assert any("1 values of 'score'" in note for note in batch.notes)
    assert batch.num_skipped == 0


def test_lone_surrogates_and_half_characters_survive(tmp_path: Path) -> None:
    escaped = b'{"input": "q", "output": "cut \\ud83d", "score": 0.0, "step": 1}\n'
    raw = {**ROW, "output": "cut \ud83d"}
    half = b'{"input": "q", "output": "cut \xe4\xbd", "score": 0.0, "step": 1}\n'
    (batch,) = read(write(tmp_path / "1.jsonl", escaped, raw, half))
    assert list(batch.responses) == ["cut \ud83d", "cut \ud83d", "cut \ufffd"]


def test_bad_lines_are_skipped_counted_and_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1.jsonl",
        b"\xef\xbb\xbf" + _line(ROW),
        b"}\n",
        b"\n",
        b"[1, 2]\n",
        {"input": "q", "score": 1.0},
        ROW,
        b'{"input": "q", "outp',
    )
    (batch,) = read(path)
    assert batch.lines.tolist() == [1, 6]
    assert batch.num_skipped == 4
    assert [place.line for place in batch.skipped] == [2, 4, 5, 7]
    assert "not JSON" in batch.skipped[0].why
    assert "'output'" in batch.skipped[2].why


def test_a_file_without_a_row_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"1\.jsonl:2: no rollout row"):
        read(write(tmp_path / "1.jsonl", b"\n", b"nothing\n"))


def test_a_step_from_the_file_name_says_so(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "step"}
    (batch,) = read(write(tmp_path / "12.jsonl", row, row))
    assert batch.steps is not None and batch.steps.tolist() == [12, 12]
    assert batch.notes == ("step 12 is from the file name; the rows have none",)
    (named,) = read(write(tmp_path / "rollout_step_7.jsonl", row))
    assert named.steps is not None and named.steps.tolist() == [7]
    (none,) = read(write(tmp_path / "dump.jsonl", row))
    assert none.steps is None and "steps" in none.absent


def test_batches_are_bounded_in_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = write(tmp_path / "1.jsonl", *[ROW] * 5000)
    assert [len(batch) for batch in read(many)] == [4096, 904]
    monkeypatch.setattr(rollout_rows, "MAX_BYTES", 1000)
    assert max(len(batch) for batch in read(many)) == math.ceil(1000 / len(_line(ROW)))


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", *[{**ROW, "output": "x" * 1000}] * 3000)
    seen: list[int] = []
    assert sum(len(batch) for batch in verl_rollout.read(path, seen.append)) == 3000
    assert sum(seen) == path.stat().st_size and len(seen) > 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
odd_rows = st.fixed_dictionaries(
    {"input": json_values, "output": json_values | st.text(), "score": json_values},
    optional={"step": json_values, "gts": json_values, "uid": json_values, "x": json_values},
)


@given(lines=st.lists(odd_rows.map(_line) | st.binary(max_size=80), max_size=12))
def test_arbitrary_lines_give_rows_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "1.jsonl"
    path.write_bytes(b"\n".join(lines))
    verl_rollout.READERS[0].sniff(Glimpse(path, path.stat().st_size))
    try:
        batches = read(path)
    except DumpError:
        return
    non_blank = sum(not line.isspace() for line in path.read_bytes().split(b"\n") if line)
    assert sum(len(b) + b.num_skipped for b in batches) == non_blank


@given(cut=st.integers(0, 7000), noise=st.binary(max_size=20), again=st.booleans())
def test_damaged_real_dumps_lose_only_the_damaged_lines(
    reference_runs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    cut: int,
    noise: bytes,
    again: bool,
) -> None:
    whole = (reference_runs / "v091_v0_fsdp2" / "rollout" / "1.jsonl").read_bytes()
    data = whole[:cut] + noise + (b"\n" + whole if again else b"")
    path = tmp_path_factory.mktemp("fuzz") / "1.jsonl"
    path.write_bytes(data)
    try:
        rows = sum(len(batch) for batch in read(path))
    except DumpError:
        rows = 0
    intact = whole[:cut].count(b"\n") + 32 * again
    assert intact <= rows <= intact + 1
