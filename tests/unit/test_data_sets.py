"""Data sets read from every format, and every way in which they are damaged named."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError, DumpError
from align.core.run import ArtifactKind
from align.data.training_set import joined, training_set
from dumps.readers.data_fields import FieldMap
from dumps.readers.data_set import read_data_set
from dumps.readers.data_set_size import read_data_set_size
from dumps.readers.row_hashes import data_set_hash, row_hashes
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.data_files import IDS, QUESTIONS, write_indexed, write_parquet


def test_verls_parquet_gives_questions_labels_and_system_prompts(tmp_path: Path) -> None:
    data = read_data_set(write_parquet(tmp_path / "train.parquet"))
    assert data.prompts == QUESTIONS
    assert data.labels == [str(i) for i in range(23)]
    assert data.system == ["Be brief."] * 23
    assert (len(data), data.num_skipped) == (23, 0)


def test_the_recorded_data_set_is_read_as_pyarrow_reads_it(reference_runs: Path) -> None:
    path = reference_runs / "tiny_model_tokenizer_data" / "train.parquet"
    rows = pq.read_table(path).to_pylist()
    data = read_data_set(path)
    assert data.prompts == [row["prompt"][0]["content"] for row in rows]
    assert data.labels == [row["reward_model"]["ground_truth"] for row in rows]


def test_indexed_data_gives_ids_and_labels_by_either_name(tmp_path: Path) -> None:
    index = write_indexed(tmp_path)
    labels = [[i] for i in range(23)]
    write_indexed(tmp_path, "labels", labels)
    for path in (index, index.with_suffix(".bin")):
        data = read_data_set(path)
        assert data.token_ids is not None and data.label_ids is not None
        assert [ids.tolist() for ids in data.token_ids] == IDS
        assert [ids.tolist() for ids in data.label_ids] == labels
        assert data.num_skipped == 0


def test_one_artifact_stands_for_all_files_of_an_indexed_data_set(tmp_path: Path) -> None:
    for key in ("attention_mask", "input_ids", "labels"):
        write_indexed(tmp_path, key)
    (artifact,) = discover([tmp_path]).of_kind(ArtifactKind.DATA)
    assert artifact.path.name == "data_packed_input_ids_document.idx"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.json", json.dumps([{"problem": q, "answer": str(i)} for i, q in enumerate(QUESTIONS)])),
        (
            "d.jsonl",
            "".join(
                json.dumps({"problem": q, "answer": str(i)}) + "\n" for i, q in enumerate(QUESTIONS)
            ),
        ),
        ("d.csv", "problem,answer\n" + "".join(f'"{q}",{i}\n' for i, q in enumerate(QUESTIONS))),
        ("d.tsv", "problem\tanswer\n" + "".join(f"{q}\t{i}\n" for i, q in enumerate(QUESTIONS))),
    ],
)
def test_raw_data_sets_of_every_format_hold_the_same_rows(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    data = read_data_set(tmp_path / name)
    assert data.prompts == QUESTIONS and data.labels == [str(i) for i in range(23)]
    (found,) = RunData(discover([tmp_path])).data_sets
    assert row_hashes(found).tolist() == row_hashes(data).tolist()


def test_map_keys_name_the_fields(tmp_path: Path) -> None:
    rows = [{"task": "Add.", "extra": q, "gold": "1", "sys": "s"} for q in QUESTIONS]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    fields = FieldMap.of_map_keys(
        {"prompt": "task", "query": "extra", "response": "gold", "system": "sys"}
    )
    data = read_data_set(tmp_path / "d.jsonl", fields=fields)
    assert data.prompts == [f"Add.\n{q}" for q in QUESTIONS]
    assert data.labels == ["1"] * 23 and data.system == ["s"] * 23


def test_what_is_no_data_set_is_not_taken_for_one(corpus: Path, reference_runs: Path) -> None:
    for folder in (corpus, reference_runs / "v091_v1_fsdp2"):
        taken = discover([folder]).of_kind(ArtifactKind.DATA)
        assert all(artifact.format == "mindspeed_rl_dataset_yaml" for artifact in taken)


def fails(path: Path, *words: str) -> None:
    with pytest.raises(DumpError) as caught:
        read_data_set(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert str(path.parent) in caught.value.where


def test_a_truncated_parquet_is_named(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "train.parquet").read_bytes()
    for size in (4, 7, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / "cut.parquet"
        cut.write_bytes(whole[:size])
        fails(cut, "no whole parquet file", "copy it again")
    (run,) = discover([cut]).of_kind(ArtifactKind.DATA)
    assert run.format == "parquet_data"


def test_a_damaged_row_group_leaves_the_others_and_their_numbers(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    found = read_data_set(path)
    assert found.num_skipped == 8 and "row group 1 is damaged" in found.skipped[0].why
    assert found.prompts is not None
    assert list(found.prompts) == QUESTIONS[:8] + [""] * 8 + QUESTIONS[16:]


def test_a_parquet_without_a_question_names_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "d.parquet")
    fails(tmp_path / "d.parquet", "no column is a question", "x, y")
    assert not discover([tmp_path]).of_kind(ArtifactKind.DATA)


def test_an_index_without_its_tokens_is_named(tmp_path: Path) -> None:
    index = write_indexed(tmp_path)
    index.with_suffix(".bin").unlink()
    fails(index, "an index without its tokens", ".bin")


def test_tokens_without_their_index_are_named(tmp_path: Path) -> None:
    index = write_indexed(tmp_path)
    index.unlink()
    fails(index.with_suffix(".bin"), "cannot be read without it", ".idx")


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "dtype code 0"), (9, "dtype code 9"), (7, "float32 values"), (6, "float64 values")],
)
def test_a_wrong_dtype_code_is_named(tmp_path: Path, code: int, words: str) -> None:
    fails(write_indexed(tmp_path, code=code), words)


def test_a_truncated_index_is_named(tmp_path: Path) -> None:
    index = write_indexed(tmp_path)
    whole = index.read_bytes()
    for size, words in ((12, "ends within its header"), (100, f"100 of {len(whole)} bytes")):
        index.write_bytes(whole[:size])
        fails(index, words)


def test_sequences_outside_the_tokens_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    index = write_indexed(tmp_path)
    tokens = index.with_suffix(".bin")
    tokens.write_bytes(tokens.read_bytes()[: 4 * sum(map(len, IDS[:20])) + 2])
    data = read_data_set(index)
    assert data.num_skipped == 3 and [s.line for s in data.skipped] == [20, 21, 22]
    assert data.token_ids is not None
    assert [ids.tolist() for ids in data.token_ids] == IDS[:20] + [[]] * 3
    tokens.write_bytes(b"")
    fails(index, "none of the index's 23 sequences")


def test_damaged_rows_of_raw_data_are_counted_and_keep_their_place(tmp_path: Path) -> None:
    lines = [json.dumps({"question": q, "answer": "1"}) for q in QUESTIONS]
    lines[3] = '{"question": "cut off'
    lines[5] = json.dumps({"answer": "no question"})
    (tmp_path / "d.jsonl").write_text("\n".join(lines), "utf-8")
    data = read_data_set(tmp_path / "d.jsonl")
    assert data.num_skipped == 2 and [s.line for s in data.skipped] == [4, 6]
    assert data.prompts is not None and data.prompts[4] == QUESTIONS[4]


def test_a_truncated_json_array_gives_the_rows_before_its_end(tmp_path: Path) -> None:
    text = json.dumps([{"question": q, "answer": "1"} for q in QUESTIONS])
    (tmp_path / "d.json").write_text(text[: len(text) // 2], "utf-8")
    data = read_data_set(tmp_path / "d.json")
    assert data.num_skipped == 1 and "breaks off" in data.skipped[0].why
    assert data.prompts is not None and data.prompts[:5] == QUESTIONS[:5]


@pytest.mark.parametrize("suffix", [".parquet", ".idx", ".bin", ".json", ".jsonl", ".csv"])
@given(data=st.binary(max_size=300), magic=st.sampled_from([b"", b"PAR1", b"MMIDIDX\0\0", b"[{"]))
def test_no_bytes_raise_anything_but_our_own_errors(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes, magic: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"d{suffix}"
    path.write_bytes(magic + data)
    discover([path])
    try:
        read_data_set(path)
    except AlignError as error:
        assert error.fix


def test_row_identity_ignores_what_makes_no_other_question(tmp_path: Path) -> None:
    decomposed = [unicodedata.normalize("NFD", f"é {q}") for q in QUESTIONS]
    plain = read_data_set(write_parquet(tmp_path / "a.parquet", [f"é {q}" for q in QUESTIONS]))
    same = read_data_set(write_parquet(tmp_path / "b.parquet", [f"{q} \r\n" for q in decomposed]))
    other = read_data_set(write_parquet(tmp_path / "c.parquet", [q + "?" for q in QUESTIONS]))
    assert data_set_hash(row_hashes(plain)) == data_set_hash(row_hashes(same))
    assert data_set_hash(row_hashes(plain)) != data_set_hash(row_hashes(other))
    assert not np.isin(row_hashes(plain), row_hashes(other)).any()


def test_the_training_set_is_chosen_by_the_configured_names(tmp_path: Path) -> None:
    for name in ("train.parquet", "test.parquet", "more.parquet"):
        write_parquet(tmp_path / name, [f"{name} {q}" for q in QUESTIONS])
    found = RunData(discover([tmp_path])).data_sets
    both = training_set(found, ["/data/more.parquet", "/data/train.parquet"])
    assert both is not None and both.prompts is not None
    assert both.prompts[0].startswith("more") and both.prompts[23].startswith("train")
    assert training_set(found, []) is None  # two that could be it
    only = [d for d in found if "more" not in d.source]
    assert training_set(only, ["/gone/elsewhere.parquet"]) is only[1] is joined([only[1]])


def test_a_log_counts_the_rows_of_the_training_data(corpus: Path) -> None:
    for name, expected in (
        ("verl_configs/printed_grpo_gpu_v08.txt", (14973, 14973)),
        ("verl_configs/printed_dapo_gpu.txt", (17917, None)),  # no filter: validation data follows
        ("verl_logs/grpo_npu_sync_repeat_a.txt", (7473, 7473)),
        ("verl_logs/ppo_gpu_v01_61steps_3decimals.log", (7473, 7473)),
    ):
        size = read_data_set_size(corpus / name)
        assert size is not None and (size.num_rows, size.num_kept) == expected
