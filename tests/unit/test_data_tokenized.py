"""Rows as a tokenizer renders them: text against token ids, length filters, ids out of range.

The tokenizer has a token a byte, so that every length follows from the text by counting.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="rows are tokenised")

from click.testing import CliRunner

from align.cli.order import order
from align.config.normalise import effective
from align.core.finding import Finding, Severity
from align.data.replay import within
from align.ladder import compare_data, prompts_of_rows
from dumps.readers.data_set import read_data_set
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.data_files import write_indexed
from tests.unit.order_runs import N, mindspeed_rl_run, steps_of, verl_run
from tests.unit.row_orders import mindspeed_rl_steps, verl_steps

QUESTIONS = [f"What is {i} + {i % 7}?" + "!" * (i % 11) for i in range(N)]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END = 256, 257
SYSTEM = "You are a helpful assistant."


def ids(question: str, system: str | None = None) -> list[int]:
    """Render and encode one chat by hand: byte b is token b."""
    turns = ([("system", system)] if system else []) + [("user", question)]
    made: list[int] = []
    for role, content in turns:
        made += [START, *f"{role}\n{content}".encode(), END, *b"\n"]
    return [*made, START, *b"assistant\n"]


LENGTHS = [len(ids(question)) for question in QUESTIONS]  # 33 to 44
LIMIT = 40


def tokenizer(folder: Path, template: str = TEMPLATE) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    # byte 10 has its own sign among ByteLevel's, and so on: order the signs by the byte they are
    byte = {sign: i for i, sign in enumerate(_signs())}
    made = Tokenizer(models.BPE(vocab=byte, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def _signs() -> list[str]:
    """GPT-2's printable sign of each byte, as published: printable ones stand for themselves."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(spare)) for b in range(256)]


def verl(
    folder: Path, *, filtered: bool = False, limit: int = LIMIT, counted: int | None = None
) -> RunData:
    verl_run(folder, [], questions=QUESTIONS, counted=counted)
    config = folder / "config.yaml"
    text = config.read_text("utf-8").replace("length: 64", f"length: {limit}")
    if filtered:
        text = text.replace("prompts: false", "prompts: true")
    config.write_text(text, "utf-8")
    tokenizer(folder / "model")
    return RunData(discover([folder]))


def mindspeed_rl(
    folder: Path, rows: Sequence[Sequence[int]], limit: int = 2048, *, labels: bool = True
) -> RunData:
    path = mindspeed_rl_run(folder)
    text = path.read_text("utf-8").replace("length: 2048", f"length: {limit}")
    path.write_text(text, "utf-8")
    write_indexed(folder, rows=[list(row) for row in rows])
    if labels:
        write_indexed(folder, "labels", [[*str(i).encode()] for i in range(len(rows))])
    return RunData(discover([folder]))


def findings(reference: RunData, candidate: RunData) -> dict[str, Finding]:
    return {f.id: f for f in compare_data(reference, candidate).findings}


def about_rows(found: dict[str, Finding]) -> set[str]:
    return {id for id in found if not id.startswith("data.order")}


def test_prompts_are_rendered_and_counted_as_by_hand(tmp_path: Path) -> None:
    run = verl(tmp_path)
    made = prompts_of_rows(run, effective(run.configs, run.run.manifest))
    assert made is not None
    (data,) = run.data_sets
    assert made.lengths(data) == tuple(LENGTHS)
    assert list(made.rendered(data) or ())[3].encode() == (
        b"<|im_start|>user\nWhat is 3 + 3?!!!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_same_rows_as_text_and_as_ids_are_silent(tmp_path: Path) -> None:
    ours, theirs = verl(tmp_path / "a"), mindspeed_rl(tmp_path / "b", [*map(ids, QUESTIONS)])
    assert about_rows(findings(ours, theirs)) == set()


def test_rows_lost_on_the_way_to_ids_are_named(tmp_path: Path) -> None:
    kept = [q for i, q in enumerate(QUESTIONS) if i not in (5, 9, 33)]
    found = findings(verl(tmp_path / "a"), mindspeed_rl(tmp_path / "b", [*map(ids, kept)]))
    assert "3 only in the reference, 0 only in the candidate" in found["data.rows"].title.en


def test_another_template_is_named_with_its_span(tmp_path: Path) -> None:
    rows = [ids(question, SYSTEM) for question in QUESTIONS]
    found = findings(verl(tmp_path / "a"), mindspeed_rl(tmp_path / "b", rows))
    assert about_rows(found) == {"data.prompt_template"}
    finding = found["data.prompt_template"]
    assert SYSTEM in str(finding.candidate) and "64 of 64" in finding.title.en
    assert "alike" in finding.title.en and "改动相同" in finding.title.zh


def test_labels_lost_on_the_way_to_ids_are_named(tmp_path: Path) -> None:
    rows = [*map(ids, QUESTIONS)]
    theirs = mindspeed_rl(tmp_path / "b", rows, labels=False)
    write_indexed(tmp_path / "b", "labels", [[*str(i).encode()] * (i > 3) for i in range(N)])
    found = findings(verl(tmp_path / "a"), RunData(theirs.run))
    assert "4 have one only in the reference" in found["data.labels"].title.en


@pytest.mark.parametrize("limit", [34, LIMIT, 44, 45])
def test_each_filter_keeps_what_its_framework_keeps(tmp_path: Path, limit: int) -> None:
    rows = [*map(ids, QUESTIONS)]
    found = findings(
        verl(tmp_path / "a", filtered=True, limit=limit),
        mindspeed_rl(tmp_path / "b", rows, limit),
    )
    at_limit = sum(length == limit for length in LENGTHS)
    assert about_rows(found) == ({"data.length_filter"} if at_limit else set())
    if at_limit:
        finding = found["data.length_filter"]
        assert f"{at_limit} of the common ones only in the reference" in finding.title.en
        assert finding.reference == sum(length <= limit for length in LENGTHS)
        assert finding.candidate == sum(length < limit for length in LENGTHS)
        assert finding.severity is Severity.ERROR
        assert {e.values for e in finding.evidence} == {(limit,)}


def test_one_filter_alone_is_named(tmp_path: Path) -> None:
    found = findings(verl(tmp_path / "a", filtered=True), verl(tmp_path / "b"))
    dropped = sum(length > LIMIT for length in LENGTHS)
    assert (
        f"{dropped} only in the candidate (no length filter)"
        in found["data.length_filter"].title.en
    )


def test_the_order_counts_the_rows_the_filter_leaves(tmp_path: Path) -> None:
    verl(tmp_path, filtered=True)
    kept = [i for i, length in enumerate(LENGTHS) if length <= LIMIT]
    planted = verl_steps(len(kept), 8, 42, 2)
    result = CliRunner().invoke(order, [str(tmp_path), "--step", "7", "--json"])
    assert json.loads(result.stdout)["rows"] == [kept[i] for i in planted[6]]
    assert json.loads(result.stdout)["assumptions"] == []


def test_a_filter_that_the_log_contradicts_is_not_trusted(tmp_path: Path) -> None:
    verl(tmp_path, filtered=True, counted=N)
    log = (tmp_path / "run.log").read_text("utf-8")
    log = log.replace("dataset len: 64", "dataset len: 64\nfilter dataset len: 63")
    (tmp_path / "run.log").write_text(log, "utf-8")
    result = CliRunner().invoke(order, [str(tmp_path), "--step", "7"])
    assert "the run's log says 63" in str(result.exception)


def test_lengths_in_a_log_tell_the_seed_where_the_tokenizer_counts_them(tmp_path: Path) -> None:
    sides = []
    for name, seed in (("a", 42), ("b", 7)):
        verl(tmp_path / name)
        lines = [
            json.dumps({"step": k, "data": _statistics([LENGTHS[row] for row in rows])})
            for k, rows in enumerate(steps_of(seed), 1)
        ]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        sides.append(RunData(discover([tmp_path / name])))
    (finding,) = compare_data(*sides).findings
    assert finding.id == "data.order.first_divergent_step"
    assert "the candidate's rows are those of seed 7, not 42" in finding.title.en


def _statistics(lengths: list[int]) -> dict[str, float]:
    return {
        "prompt_length/mean": sum(lengths) / len(lengths),
        "prompt_length/max": float(max(lengths)),
        "prompt_length/min": float(min(lengths)),
    }


def test_dumps_of_a_run_on_token_ids_tell_the_seed_that_was_used(tmp_path: Path) -> None:
    verl_run(tmp_path / "a", steps_of(42), questions=QUESTIONS, counted=None)
    tokenizer(tmp_path / "a" / "model")
    mindspeed_rl(tmp_path / "b", [*map(ids, QUESTIONS)])  # configured: seed 42
    (tmp_path / "b" / "rollout").mkdir()
    for number, rows in enumerate(mindspeed_rl_steps(N, 4, 7, 20), 1):
        lines = [
            {
                "input": f"user\n{QUESTIONS[row]}\nassistant\n",
                "output": "x",
                "score": 1.0,
                "step": number,
            }
            for row in rows
            for _ in range(2)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "b" / "rollout" / f"{number}.jsonl").write_text(text, "utf-8")
    runs = [RunData(discover([tmp_path / name])) for name in "ab"]
    finding = findings(*runs)["data.order.first_divergent_step"]
    assert "the candidate's rows are those of seed 7, not 42" in finding.title.en


def test_ids_beyond_the_vocabulary_are_counted_and_the_rest_compared(tmp_path: Path) -> None:
    rows = [*map(ids, QUESTIONS)]
    rows[4] = [*rows[4], 70000]
    rows[8] = [*rows[8][:3], -1, *rows[8][4:]]
    ours, theirs = verl(tmp_path / "a"), mindspeed_rl(tmp_path / "b", rows)
    tokenizer(tmp_path / "b" / "model")
    theirs = RunData(discover([tmp_path / "b"]))
    found = findings(ours, theirs)
    finding = found["data.ids_beyond_vocabulary"]
    assert "2 of 64 rows of the candidate's data set" in finding.title.en
    assert "vocabulary of 258" in finding.title.en
    assert [e.key for e in finding.evidence] == [
        "row 4: smallest and largest id",
        "row 8: smallest and largest id",
    ]
    assert "data.rows" not in found  # both questions are still recognised


def test_a_template_that_looks_into_the_text_is_not_guessed(tmp_path: Path) -> None:
    run = verl(tmp_path)
    upper = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] | upper }}")
    tokenizer(tmp_path / "model", upper)
    made = prompts_of_rows(run, effective(run.configs, run.run.manifest))
    assert made is not None and made.rendered(run.data_sets[0]) is None
    assert made.lengths(run.data_sets[0]) is None


@pytest.mark.parametrize("stated", [True, False])
def test_a_release_that_cuts_words_its_own_way_is_counted_only_where_it_is_the_runs(
    reference_runs: Path, stated: bool
) -> None:
    """transformers 5 gives a qwen2 model Qwen2's words: that run logged 24 tokens a prompt."""
    transformers = pytest.importorskip("transformers")
    if not transformers.__version__.startswith("5."):
        pytest.skip("needs transformers 5, as that run had")
    folder = reference_runs / "tiny_model_tokenizer_data"
    found = discover([folder / "model"])
    if stated:
        found = replace(found, manifest=replace(found.manifest, versions={"transformers": "5.9"}))
    run = RunData(found)
    made = prompts_of_rows(run, effective(run.configs, run.run.manifest))
    assert made is not None
    lengths = made.lengths(read_data_set(folder / "train.parquet"))
    assert lengths == ((24,) * 64 if stated else None)


def test_the_two_rules_part_at_exactly_the_limit() -> None:
    lengths = (4, 5, 6)
    assert within(lengths, "length <= max_prompt_length", 5).tolist() == [True, True, False]
    assert within(lengths, "length < max_prompt_length", 5).tolist() == [True, False, False]
