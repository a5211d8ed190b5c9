"""Text of plain files, notebooks and recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from dumps.readers.text import (
    BLOCK_BYTES,
    ends_mid_character,
    identify,
    iter_blocks,
    iter_lines,
    strip_ansi,
    strip_prefix,
)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "some file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git-LFS pointer"),
        (b"\x1f\x8b\x08\x00", "gzip data"),
        (b"PAR1\x15\x04", "parquet file"),
        (b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0\xc0\xc5\x83\xe5\xd9A\x1a\rbrain.Event:2', None),
        (b":W&B\xe1\xbe\0", "wandb datastore"),
        (b"\xff\xfes\0t\0e\0p\0", "UTF-16 text"),
        (b"\0\1\2\3\4\5\6\7" * 9, "binary data"),
        (b"step:1 - actor/lr:1e-06\n", None),
        (b"\x1b[36m(TaskRunner pid=1)\x1b[0m\r\n", None),
        ("训练日志\n".encode(), None),
    ],
)
def test_a_file_is_named_for_what_it_is(head: bytes, name: str | None) -> None:
    found = identify(head)
    assert found == ("TensorBoard event file" if b"brain.Event" in head else name)


def test_a_safetensors_file_is_named() -> None:
    assert identify((64).to_bytes(8, "little") + b'{"weight":{}}') == "safetensors file"


def test_every_line_ending_separates_and_a_redraw_keeps_its_line_number(tmp_path: Path) -> None:
    path = write(tmp_path, b"one\r\ntwo\n  0%|\r 50%|\rstep:1 - a:1\nlast")
    assert list(iter_lines(path)) == [
        (1, "one"),
        (2, "two"),
        (3, "  0%|"),
        (3, " 50%|"),
        (3, "step:1 - a:1"),
        (4, "last"),
    ]


def test_an_empty_line_is_a_line(tmp_path: Path) -> None:
    assert list(iter_lines(write(tmp_path, b"a\n\n\r\nb\n"))) == [
        (1, "a"),
        (2, ""),
        (3, ""),
        (4, "b"),
    ]


def test_invalid_utf8_is_replaced_not_raised(tmp_path: Path) -> None:
    assert list(iter_lines(write(tmp_path, b"Driver \xb0\xff 9\n"))) == [
        (1, "Driver \ufffd\ufffd 9")
    ]


@pytest.mark.parametrize(
    ("data", "what"), [(b"", "empty"), (b"\x1f\x8b\x08", "gzip"), (b"PAR1", "parquet")]
)
def test_what_is_not_text_is_refused_by_name(tmp_path: Path, data: bytes, what: str) -> None:
    with pytest.raises(DumpError, match=what) as caught:
        list(iter_lines(write(tmp_path, data)))
    assert caught.value.fix


def test_a_missing_file_is_our_own_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be opened"):
        list(iter_lines(tmp_path / "no such file"))


def test_colour_cursor_and_title_sequences_disappear() -> None:
    coloured = "\x1b[1;32mgreen\x1b[0m \x1b[2K\x1b]0;title\x07x\x1b(B"
    assert strip_ansi(coloured) == "green x"


@pytest.mark.parametrize(
    ("line", "actor", "rest"),
    [
        ("(TaskRunner pid=1) step:1 - a:1", "TaskRunner", "step:1 - a:1"),
        ("(WorkerDict pid=7, ip=10.0.0.12)   x", "WorkerDict", "  x"),
        ("(vLLMHttpServer pid=3) (EngineCore_DP7 pid=9) hi", "EngineCore_DP7", "hi"),
        ("(pid=12) warnings.warn(", None, "(pid=12) warnings.warn("),
        ("[36m(main_task pid=5)[0m lost escapes", "main_task", "lost escapes"),
        ("(TaskRunner pid=1) NCCL 2.21 [repeated 30x across cluster]", "TaskRunner", "NCCL 2.21"),
        ("(see below) no prefix", None, "(see below) no prefix"),
    ],
)
def test_prefixes_are_known_by_pattern(line: str, actor: str | None, rest: str) -> None:
    assert strip_prefix(line) == (actor, rest)


def test_a_notebook_gives_sources_and_outputs_with_its_own_line_numbers(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": ["!python train.py\n", "print(1)"],
        "outputs": [
            {"output_type": "stream", "text": ["step:1 - a:1\n", "step:2", " - a:2\n"]},
            {"output_type": "error", "traceback": ["Traceback", "\x1b[31mValueError: no\x1b[0m"]},
            {"output_type": "display_data", "data": {"image/png": "AAAA\n"}},
        ],
    }
    document = json.dumps({"cells": [cell], "nbformat": 4}, indent=1)
    path = write(tmp_path, document.encode())
    rows = document.split("\n")
    lines = dict(iter_lines(path))
    assert list(lines.values()) == [
        "!python train.py",
        "print(1)",
        "step:1 - a:1",
        "step:2 - a:2",
        "Traceback",
        "ValueError: no",
    ]
    for number, text in lines.items():
        assert text[:6] in rows[number - 1] or "ValueError" in rows[number - 1]


def test_a_notebook_on_one_line_and_cut_in_the_middle_still_gives_its_text(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "outputs": [{"text": "step:1 - a:1\nstep:2 - a:2\n"}]}] * 2
    document = json.dumps({"nbformat": 4, "cells": cells})
    path = write(tmp_path, document[:-30].encode())
    assert [text for _, text in iter_lines(path)][:2] == ["step:1 - a:1", "step:2 - a:2"]


def test_a_recording_joins_what_the_terminal_received_in_pieces(tmp_path: Path) -> None:
    events = [
        {"version": 2, "width": 80, "height": 24},
        [0.1, "o", "\x1b[36m(TaskRunner pid=1)\x1b[0m step:1 - a"],
        [0.2, "i", "q"],
        [0.3, "o", ":1\r\nstep:2 - a:2\r\n"],
    ]
    text = "\n".join(map(json.dumps, events)) + '\n[0.4, "o", "cut he'
    assert list(iter_lines(write(tmp_path, text.encode()))) == [
        (2, "(TaskRunner pid=1) step:1 - a:1"),
        (4, "step:2 - a:2"),
    ]


def test_blocks_hold_whole_lines_and_count_them(tmp_path: Path) -> None:
    rows = [b"%07d %s" % (i, b"x" * (i % 90)) for i in range(1, 80_001)]
    path = write(tmp_path, b"\n".join(rows))
    blocks = list(iter_blocks(path))
    assert len(blocks) > 1 and max(len(block.data) for block in blocks) < 2 * BLOCK_BYTES
    assert b"".join(block.data for block in blocks) == path.read_bytes()
    for number, text in iter_lines(path):
        assert int(text[:7]) == number


def test_progress_adds_up_to_the_size(tmp_path: Path) -> None:
    seen: list[int] = []
    path = write(tmp_path, b"a\n" * 2_000_000)
    for _ in iter_blocks(path, seen.append):
        pass
    assert sum(seen) == 4_000_000


@pytest.mark.parametrize(
    ("tail", "expected"),
    [("日".encode()[:1], True), ("日".encode()[:2], True), ("日".encode(), False), (b"a", False)],
)
def test_half_a_character_at_the_end_is_seen(tail: bytes, expected: bool) -> None:
    assert ends_mid_character(b"x" + tail) is expected


@given(data=st.binary(max_size=400))
def test_any_bytes_give_lines_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = write(tmp_path_factory.mktemp("text"), data)
    try:
        lines = list(iter_lines(path))
    except DumpError:
        return
    assert all(number >= 1 and "\n" not in text for number, text in lines)
