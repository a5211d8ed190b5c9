"""A configuration its framework would refuse: one error with place and fix, the rest compared."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from align.cli.config import command
from align.core.config_value import RawConfig
from align.core.errors import ConfigError
from align.core.run import RunManifest
from dumps.readers.nested_literal import NestedLiteral
from dumps.readers.reader import no_progress
from dumps.readers.yaml_config import read_yaml_config
from dumps.store.discover import discover
from dumps.store.run_data import RunData

GOOD = """\
data:
  train_batch_size: 8
  max_prompt_length: 128
  max_response_length: 256
actor_rollout_ref:
  rollout:
    temperature: 0.7
    n: 4
trainer:
  total_epochs: 2
"""
BROKEN = "  max_prompt_length: 128\n"
# what stands instead of the line above: name, text, line of the error, fix
MALFORMED = {
    "unclosed dict": ("  max_prompt_length: {a: 1\n", 3, "close the bracket"),
    "unclosed list": ("  max_prompt_length: [1, 2\n", 3, "close the bracket"),
    "unclosed quote": ("  max_prompt_length: 'open\n", 3, "close the quote"),
    "tab": ("\tmax_prompt_length: 128\n", 3, "spaces"),
    "colon": ("  max_prompt_length: 12: 8\n", 3, "correct that line"),
    "cycle": ("  max_prompt_length: ${.a}\n  a: ${.max_prompt_length}\n", 3, "write the value"),
    "unclosed dict over lines": ("  max_prompt_length: {a: 1,\n    b: 2\n", 3, "close the bracket"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def diff(reference: Path, candidate: Path, *options: str) -> Result:
    run = CliRunner().invoke(command, ["diff", str(reference), str(candidate), *options])
    assert run.exception is None or isinstance(run.exception, SystemExit | ConfigError)
    assert "Traceback" not in run.output
    return run


def severe(run: Result) -> dict[str, Any]:
    findings = json.loads(run.stdout)["findings"]
    return {f["id"]: f for f in findings if f["severity"] != "info"}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_broken_line_is_one_error_and_every_other_value_is_compared(
    name: str, good: Path, tmp_path: Path
) -> None:
    text, line, fix = MALFORMED[name]
    other = GOOD.replace(BROKEN, text).replace("n: 4", "n: 8")
    run = diff(good, written(tmp_path, other), "--json")
    (error,) = run.stderr.splitlines()
    assert error.startswith(f"align: {tmp_path / 'bad.yaml'}:{line}: ")
    assert fix in error
    found = severe(run)
    assert found["config.rollout.n"]["reference"] == 4
    assert found["config.rollout.n"]["candidate"] == 8
    assert "config.data.max_prompt_length" not in found  # neither a value nor a default is known
    assert not any("temperature" in name or "max_response" in name for name in found)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_default_never_stands_for_a_line_that_was_left_out(name: str, tmp_path: Path) -> None:
    from align.config.normalise import effective

    path = written(tmp_path, GOOD.replace(BROKEN, MALFORMED[name][0]))
    values = effective(RunData(discover([path])).configs, RunManifest()).values
    assert "data.max_prompt_length" not in values
    assert values["trainer.total_epochs"].value == 2
    assert values["data.train_batch_size"].value == 8


def test_a_key_that_stands_twice_is_one_error_and_the_last_value_counts(
    good: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, GOOD.replace("    n: 4\n", "    n: 4\n    n: 8\n"))
    run = diff(good, path, "--json")
    (error,) = run.stderr.splitlines()
    assert error.startswith(f"align: {path}:9: n: stands in lines 8 and 9")
    assert "remove one" in error
    assert set(severe(run)) == {"config.rollout.n"}


def test_a_line_of_ten_megabytes_costs_its_own_value_alone(good: Path, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("128", "x" * 10_000_000))
    diff(good, good)  # imports
    started = time.process_time()
    run = diff(good, path, "--json")
    assert time.process_time() - started < 10  # a quadratic reader takes hours
    (error,) = run.stderr.splitlines()
    assert error.startswith(f"align: {path}:3: data.max_prompt_length: ")
    assert "10,000,0" in error and "remove it" in error
    assert severe(run) == {}


def test_a_line_of_ten_megabytes_takes_no_more_memory_than_a_few_copies(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("128", "x" * 10_000_000))
    tracemalloc.start()
    config = read_yaml_config(path, no_progress)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(config.values) == 6
    assert peak_bytes < 60_000_000


def test_a_printed_string_of_ten_megabytes_is_read_in_one_pass() -> None:
    literal = NestedLiteral(by_column=True)
    started = time.process_time()
    assert literal.feed(1, "{'a': {'x': 1,")
    assert literal.feed(2, "       'y': '" + "z\\'" * 3_400_000 + "',")
    assert literal.feed(3, "       'w': 2}}")
    assert time.process_time() - started < 10  # a quadratic reader takes hours
    assert [leaf.path for leaf in literal.leaves] == [("a", "x"), ("a", "y"), ("a", "w")]


def test_a_cut_printed_dict_says_where_it_ends(good: Path, tmp_path: Path) -> None:
    text = (
        "{'actor_rollout_ref': {'rollout': {'n': 4,\n"
        "                                   'temperature': 0.9,\n"
    )
    path = written(tmp_path, text)
    run = diff(good, path, "--json")
    (error,) = run.stderr.splitlines()
    assert error.startswith(f"align: {path}:2: ") and "ends early" in error
    assert "config.rollout.temperature" in severe(run)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- data:\n    n: 1\n- b\n", "is a list"),
        (bytes(range(256)) * 40, "binary data"),
        (b"", "empty file"),
        ("{\n", "close the bracket"),
        ("just words\n", "holds no keys"),
    ],
    ids=["list", "binary", "empty", "bracket", "words"],
)
def test_a_file_without_one_readable_key_is_one_error(
    content: str | bytes, problem: str, good: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, content)
    run = diff(good, path)
    assert isinstance(run.exception, ConfigError)
    assert run.exception.where.startswith(str(path))
    assert problem in str(run.exception) and run.exception.fix


@pytest.mark.parametrize("content", ["- a\n- b\n", bytes(range(256)) * 40, b"", "{\n"])
def test_the_other_files_of_a_run_are_used(
    content: str | bytes, good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(GOOD.replace("n: 4", "n: 8"), encoding="utf-8")
    written(folder, content)
    assert set(severe(diff(good, folder, "--json"))) == {"config.rollout.n"}


def test_a_broken_model_file_leaves_the_other_values_of_mindspeed_rl(
    corpus: Path, tmp_path: Path
) -> None:
    from align.config.normalise import effective

    source = corpus / "mindspeed_rl"
    (tmp_path / "model").mkdir()
    main = tmp_path / "grpo.yaml"
    main.write_text((source / "grpo_qwen25_7b_A3.yaml").read_text("utf-8"), encoding="utf-8")
    model = (source / "model" / "qwen25_7b.yaml").read_text("utf-8")
    broken = model.replace("norm_epsilon: 1e-6", "norm_epsilon: {1e-6")
    assert broken != model
    (tmp_path / "model" / "qwen25_7b.yaml").write_text(broken, encoding="utf-8")
    data = RunData(discover([main]))
    values = effective(data.configs, RunManifest()).values
    assert "model.rms_norm_eps" not in values
    assert values["model.rope_theta"].value == 1_000_000
    (problem,) = data.problems
    assert "qwen25_7b.yaml:" in problem.where and "norm_epsilon" in problem.problem


def test_a_file_indented_with_tabs_alone_is_one_error(tmp_path: Path) -> None:
    text = GOOD.replace("  ", "\t") + "seed: 7\n"
    config = read(tmp_path, text)
    (problem,) = config.problems
    assert problem.where.endswith(":2") and "spaces" in problem.fix
    assert set(config.unknown) >= {"data.train_batch_size", "actor_rollout_ref.rollout.n"}
    assert config.values["seed"].value == 7


def test_values_beside_a_broken_line_stay_known(tmp_path: Path) -> None:
    text = "betas:\n  - 0.9\n  - 0.95\nbroken: {a\nnote: |\n  two\n  lines\nalso: [1\nlr: 1\n"
    config = read(tmp_path, text)
    found = {key: value.value for key, value in config.values.items()}
    assert found == {"betas": (0.9, 0.95), "note": "two\nlines\n", "lr": 1}
    assert config.unknown == ("broken", "also")


def test_a_quote_that_swallows_other_lines_is_unknown_itself(tmp_path: Path) -> None:
    config = read(tmp_path, "a: 1\nb: 'open\nc: 'x'\nd: 2\n")
    assert config.values["a"].value == 1 and config.values["d"].value == 2
    assert not {"b", "c"} & set(config.values)


def test_a_circle_is_named_once_with_its_keys(tmp_path: Path) -> None:
    text = "a: ${b}\nb: ${c}\nc: ${a}\nd: ${a}\ne: 1\nf: ${e}\ng: ${g}\n"
    config = read(tmp_path, text)
    said = [(p.where.rpartition(":")[2], p.problem) for p in config.problems]
    assert said == [
        ("1", "refers to itself: a -> b -> c -> a"),
        ("7", "refers to itself: g -> g"),
    ]
    assert config.values["f"].value == 1


def test_every_line_broken_alone_gives_the_values_of_the_others(tmp_path: Path) -> None:
    lines = GOOD.splitlines()
    whole = read(tmp_path, GOOD).values
    for number, line in enumerate(lines):
        if line.endswith(":"):
            continue
        key = line.split(":")[0].strip()
        broken = [*lines[:number], line.replace(": ", ": {"), *lines[number + 1 :]]
        config = read(tmp_path, "\n".join(broken) + "\n")
        (problem,) = config.problems
        assert problem.where.endswith(f":{number + 1}")
        expected = {k: v.value for k, v in whole.items() if k.rpartition(".")[2] != key}
        found = {k: v.value for k, v in config.values.items()}
        if number + 1 < len(lines):
            assert found == expected
            assert [k.rpartition(".")[2] for k in config.unknown] == [key]
        else:  # it may be a file that was cut
            assert config.truncated_at is not None
            assert found.items() <= expected.items()


def read(tmp_path: Path, text: str) -> RawConfig:
    return read_yaml_config(written(tmp_path, text), no_progress)
