"""Sizes of tokenizer and model, and files that are missing or hold something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from align.core.finding import Severity
from align.core.rung import RungResult, RungStatus
from align.core.text import Text
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.rung import compare
from tokenizer_check.sizes import Sizes

CONFIG = {"eos_token": "<|im_end|>", "model_max_length": 8, "tokenizer_class": "X"}


def run(folder: Path, num_tokens: int, vocab_size: int, num_rows: int | None = None) -> RunData:
    folder.mkdir(parents=True)
    files: dict[str, object] = {
        "vocab.json": {f"w{n}": n for n in range(num_tokens - 1)},
        "added_tokens.json": {"<|im_end|>": num_tokens - 1},
        "tokenizer_config.json": CONFIG,
        "config.json": {"model_type": "x", "hidden_size": 2, "vocab_size": vocab_size},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if num_rows is not None:
        numpy = pytest.importorskip("numpy")
        weights = {"model.embed_tokens.weight": numpy.zeros((num_rows, 2), numpy.float32)}
        pytest.importorskip("safetensors.numpy").save_file(weights, folder / "model.safetensors")
    return RunData(discover([folder]))


def weights(result: RungResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def verdicts(result: RungResult) -> list[str]:
    table = next(table for table in result.tables if table.id == "tokenizer.sizes")
    return [cell.en for cell in table.rows[-1][1:] if isinstance(cell, Text)]


# numbers of public reports
@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "verdict"),
    [
        (151646, 151936, "padding only (290 rows)"),
        (50265, 50272, "padding only (7 rows)"),
        (50279, 50432, "padding only (153 rows)"),
        (32004, 32000, "mismatch"),
        (32001, 32000, "mismatch"),
        (32000, 32000, "one row an id"),
    ],
)
def test_rows_beyond_the_tokens_are_padding_and_tokens_beyond_the_rows_a_mismatch(
    num_tokens: int, num_rows: int, verdict: str
) -> None:
    from tokenizer_check.size_comparison import size_table

    sizes = Sizes(num_tokens, num_tokens, num_rows, None, None, None, None)
    table = size_table(sizes, sizes)
    assert table is not None
    assert [cell.en for cell in table.rows[-1][1:] if isinstance(cell, Text)] == [verdict] * 2


def test_added_tokens_without_a_row_are_an_error_and_padding_is_worth_knowing(
    tmp_path: Path,
) -> None:
    fits, padded = run(tmp_path / "a", 200, 200), run(tmp_path / "b", 200, 256)
    result = compare(fits, padded)
    assert weights(result) == {"tokenizer.vocab_size": Severity.INFO}
    assert result.status is RungStatus.ALIGNED
    assert verdicts(result) == ["one row an id", "padding only (56 rows)"]
    beyond = compare(fits, run(tmp_path / "c", 204, 200))
    assert weights(beyond)["tokenizer.vocab_size"] is Severity.ERROR
    (finding,) = (f for f in beyond.findings if f.id == "tokenizer.vocab_size")
    assert (
        "sizes of the candidate do not fit: largest id + 1 204, vocab_size of config.json 200"
        in (finding.title.en)
    )
    assert compare(fits, run(tmp_path / "d", 200, 200)).findings == ()


def test_the_rows_of_the_weights_count_more_than_config_json(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", 200, 256, num_rows=256)
    cut = run(tmp_path / "b", 200, 256, num_rows=200)
    result = compare(whole, cut)
    assert weights(result) == {"tokenizer.vocab_size": Severity.ERROR}
    assert result.findings[0].evidence[1].source.endswith("model.safetensors")
    same = run(tmp_path / "c", 200, 256, num_rows=256)
    assert compare(whole, same).findings == ()


def test_recorded_ids_beyond_the_rows_are_a_mismatch(tmp_path: Path) -> None:
    sides = []
    for name, last in (("a", 199), ("b", 300)):
        run(tmp_path / name, 200, 256)
        row = {"input": "q", "output": "a", "score": 1.0, "step": 1}
        row |= {"prompt_ids": [1, 2], "response_ids": [3, last]}
        (tmp_path / name / "1.jsonl").write_text(json.dumps(row), encoding="utf-8")
        sides.append(RunData(discover([tmp_path / name])))
    result = compare(*sides)
    assert weights(result) == {"tokenizer.vocab_size": Severity.ERROR}
    assert "largest id in recorded rows 300" in result.findings[0].title.en


def test_a_link_that_git_wrote_as_text_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", 200, 200)
    run(tmp_path / "b", 200, 200)
    link = tmp_path / "b" / "tokenizer_config.json"
    link.write_text("../tokenizer/tokenizer_config.json", encoding="utf-8")
    result = compare(whole, RunData(discover([tmp_path / "b"])))
    assert weights(result) == {"tokenizer.unread_files": Severity.INFO}
    assert "tokenizer_config.json (git symbolic link)" in result.findings[0].title.en
    assert "vocabulary" in result.summary.en.partition("Not compared")[0]
    table = next(table for table in result.tables if table.id == "tokenizer.files")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["tokenizer_config.json"][1] == "(git symbolic link)"
    assert "merges.txt" not in rows


def test_a_truncated_tokenizer_json_is_named_and_the_rest_compared(
    reference_runs: Path, tmp_path: Path
) -> None:
    real = reference_runs / "tiny_model_tokenizer_data" / "model"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        content = (real / name).read_bytes()
        (tmp_path / name).write_bytes(content[:5000])
    cut = RunData(discover([tmp_path]))
    result = compare(RunData(discover([real])), cut)
    assert result.status is RungStatus.ALIGNED and result.findings == ()
    assert "merges, vocabulary" in result.summary.en.partition("Not compared")[2]
    assert "chat template" in result.summary.en.partition("Not compared")[0]
    (problem,) = cut.problems
    assert "tokenizer.json" in str(problem) and "no whole JSON text" in str(problem)
