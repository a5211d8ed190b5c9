"""Data sets: each format from bytes made by hand or by the real preprocessing."""

from __future__ import annotations

import json
import struct

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError, ConfigError, DumpError
from align.stack.config import load_config
from align.stack.dataset import load_rows
from align.stack.prompts import render
from align.stack.sources.indexed import read_sequences
from align.stack.tokenizer import tiny_tokenizer

# Written by MindSpeed-RL's own R1AlpacaStyleInstructionHandler (2026-04) with the tiny tokenizer
# and its template "qwen", from problems "What is 4 + 8?", "Which is larger: 3 or 8?", "强化",
# answers 12, 8 and none, tasks add, compare, add.
RECORDED = {
    "input_ids.bin": (
        "b901000004010000c6000000380000004e000000540000009c010000dc00000040000000dc0000004700"
        "0000440000004b0000004f00000045000000540000004b000000870100000d000000ba010000c6000000"
        "b901000007010000c60000001501000092010000dc00000013000000dc0000000a000000dc0000001700"
        "00001e000000ba010000c6000000b90100000f010000c6000000b901000004010000c600000038000000"
        "4e000000540000009c010000dc00000040000000dc00000047000000440000004b0000004f0000004500"
        "0000540000004b000000870100000d000000ba010000c6000000b901000007010000c600000018010000"
        "92010000a701000019000000dc0000001200000095010000dc000000170000001e000000ba010000c600"
        "0000b90100000f010000c6000000b901000004010000c6000000380000004e000000540000009c010000"
        "dc00000040000000dc00000047000000440000004b0000004f00000045000000540000004b0000008701"
        "00000d000000ba010000c6000000b901000007010000c6000000a10000007800000076000000a1000000"
        "ea000000f4000000ba010000c6000000b90100000f010000c6000000"
    ),
    "input_ids.idx": (
        "4d4d49444944580000010000000000000004030000000000000004000000000000002600000027000000"
        "230000000000000000000000980000000000000034010000000000000000000000000000010000000000"
        "000002000000000000000300000000000000"
    ),
    "labels.bin": ("100000001100000017000000"),
    "labels.idx": (
        "4d4d49444944580000010000000000000004030000000000000004000000000000000200000001000000"
        "00000000000000000000000008000000000000000c000000000000000000000000000000010000000000"
        "000002000000000000000300000000000000"
    ),
    "task.bin": (
        "400000004300000043000000620100004c0000004f00000039010000400000004300000043000000"
    ),
    "task.idx": (
        "4d4d49444944580000010000000000000004030000000000000004000000000000000300000004000000"
        "0300000000000000000000000c000000000000001c000000000000000000000000000000010000000000"
        "000002000000000000000300000000000000"
    ),
}
QWEN = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
TURN = "<|im_end|>\n<|im_start|>assistant\n"


def _indexed(sequences, dtype="<i4", code=4) -> tuple[bytes, bytes]:
    """Write .idx and .bin as the format's description has them."""
    arrays = [np.array(each, dtype) for each in sequences]
    offsets = np.cumsum([0, *(a.nbytes for a in arrays)])[:-1]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(arrays), len(arrays) + 1)
    index += b"".join(struct.pack("<i", a.size) for a in arrays)
    index += b"".join(struct.pack("<q", int(offset)) for offset in offsets)
    index += b"".join(struct.pack("<q", i) for i in range(len(arrays) + 1))
    return index, b"".join(a.tobytes() for a in arrays)


@pytest.mark.parametrize(("dtype", "code"), [("<i4", 4), ("<u2", 8), ("<i8", 5)])
def test_sequences_come_back_as_the_description_of_the_format_lays_them_out(tmp_path, dtype, code):
    sequences = [[1, 2, 3], [], [70, 65535 // 2]]
    index, data = _indexed(sequences, dtype, code)
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(data)
    assert [each.tolist() for each in read_sequences(tmp_path / "x")] == sequences


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda i, d: (i[:20], d), "begin like an index"),
        (lambda i, d: (i[:60], d), "ends before"),
        (lambda i, d: (i, d[:-4]), "points to byte"),
        (lambda i, d: (b"PK" + i[2:], d), "begin like an index"),
        (lambda i, d: (i[:9] + struct.pack("<Q", 2) + i[17:], d), "version 2"),
        (lambda i, d: (i, b""), "cannot be read"),
    ],
)
def test_damaged_files_are_refused_with_their_name(tmp_path, cut, message) -> None:
    index, data = cut(*_indexed([[1, 2, 3], [4]]))
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(DumpError, match=rf"x\.(idx|bin).*{message}"):
        read_sequences(tmp_path / "x")


@given(noise=st.binary(max_size=120), keep=st.integers(0, 80))
def test_arbitrary_bytes_never_give_anything_but_our_own_error(tmp_path_factory, noise, keep):
    folder = tmp_path_factory.mktemp("noise")
    index, data = _indexed([[1, 2, 3], [4]])
    (folder / "x.idx").write_bytes(index[:keep] + noise)
    (folder / "x.bin").write_bytes(data)
    try:
        read_sequences(folder / "x")
    except AlignError as error:
        assert str(folder) in str(error)


@pytest.fixture
def recorded(tmp_path):
    for name, content in RECORDED.items():
        column, end = name.split(".")
        file = tmp_path / f"three_packed_{column}_document.{end}"
        file.write_bytes(bytes.fromhex(content))
    return tmp_path / "three"


def test_what_mindspeed_rl_preprocessed_is_read_back(recorded) -> None:
    keys = "stack.data.dataset_additional_keys=[labels,task]"
    config = load_config(None, [f"data.train_files={recorded}", keys])
    rows = load_rows(config)
    prompts = [render(row, tiny_tokenizer(), config).text for row in rows]
    asked = ["What is 4 + 8?", "Which is larger: 3 or 8?", "强化"]
    assert prompts == [f"{QWEN}{text}{TURN}" for text in asked]
    assert [row.ground_truth for row in rows] == ["12", "8", ""]
    assert [row.task for row in rows] == ["add", "compare", "add"]


def test_its_records_through_map_keys_give_the_same_rows(tmp_path, recorded) -> None:
    records = [
        {"problem": "What is 4 + 8?", "answer": "12", "task": "add"},
        {"problem": "Which is larger: 3 or 8?", "answer": "8", "task": "compare"},
        {"problem": "强化", "answer": "", "task": "add"},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(records), encoding="utf-8")
    common = "stack.data.dataset_additional_keys=[labels,task]"
    packed = load_config(None, [f"data.train_files={recorded}", common])
    plain = load_config(
        None,
        [
            f"data.train_files={tmp_path / 'rows.json'}",
            common,
            "stack.data.map_keys.prompt=problem",
            "stack.data.map_keys.query=''",
            "stack.data.map_keys.response=answer",
            "stack.data.prompt_type=qwen",
        ],
    )
    tokenizer = tiny_tokenizer()
    for a, b in zip(load_rows(packed), load_rows(plain), strict=True):
        assert render(a, tokenizer, packed) == render(b, tokenizer, plain)
        assert (a.index, a.task, a.ground_truth) == (b.index, b.task, b.ground_truth)


def test_a_column_with_another_number_of_rows_is_refused(recorded) -> None:
    index, data = _indexed([[1]])
    recorded.with_name("three_packed_task_document.idx").write_bytes(index)
    recorded.with_name("three_packed_task_document.bin").write_bytes(data)
    keys = "stack.data.dataset_additional_keys=[labels,task]"
    with pytest.raises(DumpError, match="has 1 rows, and input_ids has 3"):
        load_rows(load_config(None, [f"data.train_files={recorded}", keys]))


def test_history_query_system_and_lists_of_responses_are_mapped(tmp_path) -> None:
    record = {"q": "A", "more": "B", "old": [["x", "y"]], "who": "S", "out": ["no", "yes"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    names = {"prompt": "q", "query": "more", "history": "old", "system": "who", "response": "out"}
    settings = [f"stack.data.map_keys.{part}={name}" for part, name in names.items()]
    (row,) = load_rows(
        load_config(None, [f"data.train_files={tmp_path / 'rows.jsonl'}", *settings])
    )
    assert [message["content"] for message in row.messages] == ["x", "y", "A\nB"]
    assert (row.system, row.ground_truth) == ("S", "yes")


def test_an_unknown_part_in_map_keys_and_a_missing_column_are_refused(tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "A"}\n', encoding="utf-8")
    file = f"data.train_files={tmp_path / 'rows.jsonl'}"
    with pytest.raises(ConfigError, match=r"map_keys: promt: is no part of a row.*prompt"):
        load_rows(load_config(None, [file, "stack.data.map_keys.promt=q"]))
    with pytest.raises(DumpError, match=r"rows\.jsonl:1: input: is missing; the row has q"):
        load_rows(load_config(None, [file, "stack.data.map_keys.prompt=q"]))


def _verl_frame(tasks) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "data_source": ["openai/gsm8k"] * 2,
            "prompt": [[{"role": "user", "content": f"Q{i}"}] for i in range(2)],
            "ability": ["math"] * 2,
            "reward_model": [{"style": "rule", "ground_truth": str(i)} for i in range(2)],
            "extra_info": [{"split": "train", "index": i, **tasks} for i in range(2)],
        }
    )


def test_verl_parquet_keeps_messages_truth_and_the_other_columns(tmp_path) -> None:
    _verl_frame({}).to_parquet(tmp_path / "a.parquet")
    _verl_frame({"task": "add"}).to_parquet(tmp_path / "b.parquet")
    files = f"data.train_files='{tmp_path / 'a.parquet'},{tmp_path / 'b.parquet'}'"
    rows = load_rows(load_config(None, [files]))
    assert [row.index for row in rows] == [0, 1, 2, 3]
    assert [row.task for row in rows] == ["openai/gsm8k"] * 2 + ["add"] * 2
    assert rows[1].messages == ({"role": "user", "content": "Q1"},)
    assert rows[1].ground_truth == "1"
    assert rows[1].extra == {"split": "train", "index": 1, "ability": "math"}


def test_a_lost_label_column_is_refused(tmp_path) -> None:
    _verl_frame({}).drop(columns="reward_model").to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DumpError, match=r"row 0: reward_model: is missing"):
        load_rows(load_config(None, [f"data.train_files={tmp_path / 'a.parquet'}"]))


def test_gsm8k_is_read_as_published(shared) -> None:
    file = shared / "data" / "gsm8k" / "test.jsonl"
    rows = load_rows(load_config(None, [f"data.train_files={file}"]))
    assert len(rows) == 1319  # the published size
    assert rows[0].ground_truth == "18"
    assert all(row.ground_truth.lstrip("-").replace(".", "").isdigit() for row in rows)
    assert {row.task for row in rows} == {"gsm8k"}


def test_a_line_that_is_no_json_is_refused_with_its_number(tmp_path) -> None:
    (tmp_path / "x.jsonl").write_text('{"question": "Q", "answer": "#### 1"}\n{oops\n')
    config = load_config(None, [f"data.train_files={tmp_path / 'x.jsonl'}"])
    with pytest.raises(DumpError, match=r"x\.jsonl:2"):
        load_rows(config)


def test_the_built_in_set_has_two_tasks_and_prompts_of_several_lengths() -> None:
    config = load_config()
    rows = load_rows(config)
    assert {row.task for row in rows[:16]} == {"add", "compare"}
    texts = [row.messages[0]["content"] for row in rows]
    assert len(set(texts)) == len(rows) == 512
    tokenizer = tiny_tokenizer()
    lengths = {len(render(row, tokenizer, config).ids) for row in rows}
    assert len(lengths) >= 4 and max(lengths) <= config.data.max_prompt_length
    other = load_rows(load_config(None, ["stack.data.seed=1"]))
    assert [row.messages for row in other] != [row.messages for row in rows]
    for row in rows:
        digits = [int(c) for c in row.messages[0]["content"] if c.isdigit()]
        assert row.ground_truth == str(sum(digits) if row.task == "add" else max(digits))


def test_max_samples_are_those_numpy_chooses_for_verl() -> None:
    config = load_config(None, ["data.train_max_samples=20", "data.seed=5"])
    want = np.random.default_rng(5).choice(512, size=20, replace=False)
    assert [row.index for row in load_rows(config)] == want.tolist()
    config = load_config(None, ["data.train_max_samples=20", "data.shuffle=false"])
    assert [row.index for row in load_rows(config)] == list(range(20))
