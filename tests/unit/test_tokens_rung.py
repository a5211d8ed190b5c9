"""The trainer's input against what the rollout engine produced, on tiny hand-made runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError
from align.core.finding import Severity, Side
from align.core.run import ArtifactKind
from align.core.rung import Rung, RungResult, RungStatus
from align.inventory import take_inventory
from align.ladder import climb
from align.rollout.tokens_rung import compare
from dumps.readers.trainer_inputs import READER, TrainerInputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra torch")

PAD, EOS, P, R = 0, 9, 6, 5
Arrays = dict[str, npt.NDArray[np.int64]]


@dataclass
class Row:
    """One response to one prompt; the engine's side."""

    prompt: list[int]
    response: list[int]
    finish: str
    extras: Mapping[str, object] = field(default_factory=dict)


ROWS = [
    Row([11, 12, 13], [21, 22, EOS], "stop"),
    Row([11, 12, 13], [21, 23, 24, 25, 26], "length"),
    Row([14, 15], [31, EOS], "stop"),
    Row([14, 15], [32, 33, 34, EOS], "stop"),
]


def batch(rows: list[Row], p: int = P, r: int = R) -> Arrays:
    """Pad rows as verl does: prompts on the left, responses on the right."""
    ids, seen = np.full((len(rows), p + r), PAD), np.zeros((len(rows), p + r), np.int64)
    for i, row in enumerate(rows):
        start, end = p - len(row.prompt), p + len(row.response)
        ids[i, start:end], seen[i, start:end] = row.prompt + row.response, 1
    return {
        "input_ids": ids,
        "attention_mask": seen,
        "position_ids": np.maximum(seen.cumsum(1) - 1, 0),
        "responses": ids[:, p:].copy(),
        "response_mask": seen[:, p:].copy(),
    }


def write(
    folder: Path, arrays: Arrays | None, rows: list[Row] = ROWS, words: str = "p{}"
) -> RunData:
    """Write a run of one step; arrays None leaves the trainer's input out."""
    (folder / "rollout").mkdir(parents=True)
    (folder / "trainer_inputs").mkdir()
    lines = [
        {
            "input": words.format(row.prompt[-1]),
            "output": " ".join(map(str, row.response)),
            "score": 1.0,
            "step": 1,
            "prompt_ids": row.prompt,
            "response_ids": row.response,
            "finish_reason": row.finish,
            **row.extras,
        }
        for row in rows
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "rollout" / "1.jsonl").write_text(text, encoding="utf-8")
    if arrays is not None:
        packed = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        safetensors.save_file(packed, folder / "trainer_inputs" / "1.safetensors")
    return RunData(discover([folder]))


def against_clean(tmp_path: Path, arrays: Arrays, rows: list[Row] = ROWS) -> RungResult:
    width = arrays["input_ids"].shape[1] - arrays["responses"].shape[1]
    clean = batch(rows, width, arrays["responses"].shape[1])
    return compare(write(tmp_path / "ref", clean, rows), write(tmp_path / "cand", arrays, rows))


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


def with_responses(change: Callable[[Row], list[int]]) -> Arrays:
    return batch([Row(row.prompt, change(row), row.finish) for row in ROWS])


def test_equal_clean_runs_are_aligned(tmp_path: Path) -> None:
    result = against_clean(tmp_path, batch(ROWS))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    assert "4/4" in result.summary.en


def test_a_trainer_that_reorders_rows_is_clean(tmp_path: Path) -> None:
    assert against_clean(tmp_path, batch(ROWS[::-1])).status is RungStatus.ALIGNED


def test_stripped_eos_is_named_with_file_and_line(tmp_path: Path) -> None:
    arrays = with_responses(lambda row: [i for i in row.response if i != EOS])
    result = against_clean(tmp_path, arrays)
    assert ids(result) == ["tokens.eos_missing"]
    (finding,) = result.findings
    assert (finding.reference, finding.candidate, finding.severity) == (0, 3, Severity.ERROR)
    trainer, engine = finding.evidence[:2]
    assert (trainer.key, trainer.side) == ("responses[0, 2]", Side.CANDIDATE)
    assert (Path(engine.source).name, engine.line) == ("1.jsonl", 1)
    assert finding.mechanism is not None and finding.mechanism.acts_on is Rung.TOKENS


def test_eos_masked_out_is_missing_eos_not_a_shift(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["response_mask"] *= arrays["responses"] != EOS
    assert ids(against_clean(tmp_path, arrays)) == ["tokens.eos_missing"]


@pytest.mark.parametrize("stated", [True, False])
def test_eos_hidden_because_pad_is_eos_is_left_to_a_tokenizer_rung_that_can_see_it(
    tmp_path: Path, stated: bool
) -> None:
    arrays = batch(ROWS)
    arrays["input_ids"][arrays["attention_mask"] == 0] = EOS
    arrays["responses"] = arrays["input_ids"][:, P:]
    arrays["response_mask"] *= arrays["responses"] != EOS
    for side in ("ref", "cand") if stated else ():
        (tmp_path / side).mkdir()
        stating = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<e>", "pad_token": "<p>"}
        (tmp_path / side / "tokenizer_config.json").write_text(json.dumps(stating))
    (finding,) = against_clean(tmp_path, arrays).findings
    assert finding.id == "tokens.eos_missing"
    assert finding.severity is (Severity.WARNING if stated else Severity.ERROR)


@pytest.mark.parametrize("by", [1, -1])
def test_a_mask_off_by_one_is_a_shift(tmp_path: Path, by: int) -> None:
    arrays = batch(ROWS)
    moved = np.roll(arrays["response_mask"], by, axis=1)
    moved[:, 0 if by > 0 else -1] = 0
    arrays["response_mask"] = moved
    assert ids(against_clean(tmp_path, arrays)) == ["tokens.mask_shifted"]


def test_rows_left_out_of_the_loss_whole_are_a_choice(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["response_mask"][1] = 0
    assert against_clean(tmp_path, arrays).status is RungStatus.ALIGNED


def test_tool_tokens_masked_out_on_both_sides_are_clean(tmp_path: Path) -> None:
    rows = [Row([11], [21, 22, 23, EOS], "stop", {"response_mask": [1, 0, 0, 1]})]
    arrays = batch(rows)
    arrays["response_mask"][0, 1:3] = 0
    assert against_clean(tmp_path, arrays, rows).findings == ()


@pytest.mark.parametrize("kept", [5, 4])
def test_an_eos_after_a_cut_response_is_fake(tmp_path: Path, kept: int) -> None:
    cut = [Row(r.prompt, r.response[:4], r.finish) if r.finish == "length" else r for r in ROWS]
    rows = ROWS if kept == 5 else cut  # in place of the last token, or after it
    changed = [
        Row(r.prompt, [*r.response[:4], EOS] if r.finish == "length" else r.response, r.finish)
        for r in rows
    ]
    assert ids(against_clean(tmp_path, batch(changed), rows)) == ["tokens.eos_fake"]


def test_responses_that_all_lost_their_last_token_are_no_story_of_eos(tmp_path: Path) -> None:
    arrays = with_responses(lambda row: row.response[:-1])
    assert ids(against_clean(tmp_path, arrays)) == ["tokens.response_differs"]


def with_special_tokens(*folders: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra torch")
    words = {str(i): i for i in range(40)} | {"<p>": 40, "<e>": 41}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    tokenizer.add_special_tokens(["<p>", "<e>"])
    for folder in folders:
        (folder / "tokenizer").mkdir(parents=True)
        tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))


@pytest.mark.parametrize("several", [True, False])
def test_padding_after_eos_that_counts_as_response_is_named(tmp_path: Path, several: bool) -> None:
    rows = [Row([11, 12 + i], [21 + i, 22, 41], "stop") for i in range(4)]
    going_on = rows if several else rows[:1]
    changed = [Row(r.prompt, [*r.response, 40, 40], "length") for r in going_on]
    changed += rows[len(changed) :]
    with_special_tokens(tmp_path / "ref", tmp_path / "cand")
    clean = write(tmp_path / "ref", batch(rows), rows)
    result = compare(clean, write(tmp_path / "cand", batch(changed), changed))
    assert ids(result) == (["tokens.after_eos"] if several else [])


def test_other_tokens_are_a_response_that_differs(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["responses"][3] = 0
    arrays["input_ids"][3, P:] = 0
    result = against_clean(tmp_path, arrays)
    assert ids(result) == ["tokens.response_differs"]
    assert result.findings[0].candidate == 1


def test_other_ids_of_the_same_text_are_retokenised(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra torch")
    vocabulary = {"a": 41, "b": 42, "ab": 43, "<e>": EOS, "<u>": 0}
    model = tokenizers.models.WordPiece(vocabulary, unk_token="<u>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    rows = [Row([11], [43, EOS], "stop"), Row([14], [41, EOS], "stop")]
    changed = [Row([11], [41, 42, EOS], "stop"), rows[1]]
    for side in ("ref", "cand"):
        (tmp_path / side / "tokenizer").mkdir(parents=True)
        tokenizer.save(str(tmp_path / side / "tokenizer" / "tokenizer.json"))
    result = against_clean(tmp_path, batch(changed), rows)
    assert ids(result) == ["tokens.retokenised"]


@pytest.mark.parametrize("bits", [8, 11])
def test_positions_rounded_to_half_precision_are_named(tmp_path: Path, bits: int) -> None:
    length = 2**bits + 40
    rows = [Row(list(range(100, 100 + length)), [21, EOS], "stop")]
    arrays = batch(rows, length + 3, R)
    exact = arrays["position_ids"]
    step = np.where(exact > 2**bits, 2, 1)  # spacing above the last whole number held exactly
    halves, odd = exact // step, exact % step
    arrays["position_ids"] = (halves + (odd & halves)) * step  # ties to even
    assert ids(against_clean(tmp_path, arrays, rows)) == ["tokens.position_ids_rounded"]


def test_positions_that_count_padding_are_named(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["position_ids"][:, P:] = np.arange(P, P + R)
    assert ids(against_clean(tmp_path, arrays)) == ["tokens.position_ids_left_padding"]


def test_positions_that_start_elsewhere_are_clean(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["position_ids"] += 2
    assert against_clean(tmp_path, arrays).status is RungStatus.ALIGNED


def test_prompts_padded_on_the_right_are_named(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    for row, each in enumerate(ROWS):
        for name in ("input_ids", "attention_mask"):
            arrays[name][row, :P] = np.roll(arrays[name][row, :P], len(each.prompt) - P)
    arrays["position_ids"] = np.maximum(arrays["attention_mask"].cumsum(1) - 1, 0)
    assert ids(against_clean(tmp_path, arrays)) == ["tokens.padding_side"]


def test_a_defect_of_both_runs_is_no_difference(tmp_path: Path) -> None:
    arrays = with_responses(lambda row: [i for i in row.response if i != EOS])
    result = compare(write(tmp_path / "ref", arrays), write(tmp_path / "cand", arrays))
    assert ids(result) == ["tokens.eos_missing"]
    assert result.findings[0].severity is Severity.INFO
    assert result.findings[0].mechanism is None
    assert result.status is RungStatus.ALIGNED


def test_a_defect_of_the_reference_is_reported_as_its_own(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["position_ids"][:, P:] = np.arange(P, P + R)
    result = compare(write(tmp_path / "ref", arrays), write(tmp_path / "cand", batch(ROWS)))
    (finding,) = result.findings
    assert {item.side for item in finding.evidence} == {Side.REFERENCE}
    assert "in the reference" in finding.title.en


def test_the_same_prompt_in_other_ids_is_named_with_what_is_done_to_each(tmp_path: Path) -> None:
    other = [Row([8, *row.prompt], row.response, row.finish) for row in ROWS]
    reference = write(tmp_path / "ref", batch(ROWS))
    result = compare(reference, write(tmp_path / "cand", batch(other), other))
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("tokens.prompt_differs", Severity.ERROR)
    assert "the reference lacks [8] in each" in finding.title.en


def test_the_same_responses_with_another_mask_are_named_though_each_run_agrees_with_itself(
    tmp_path: Path,
) -> None:
    late = [
        Row(row.prompt, row.response, row.finish, {"response_mask": [0] + [1] * (n - 1)})
        for row in ROWS
        for n in [len(row.response)]
    ]
    arrays = batch(ROWS)
    arrays["response_mask"][:, 0] = 0
    result = compare(write(tmp_path / "ref", batch(ROWS)), write(tmp_path / "cand", arrays, late))
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("tokens.mask_differs", Severity.ERROR)
    assert "4 of 4" in finding.title.en and "differ at token 0" in finding.title.en


def test_other_prompts_are_left_to_the_data_rung(tmp_path: Path) -> None:
    other = [Row([8, *row.prompt], row.response, row.finish) for row in ROWS]
    reference = write(tmp_path / "ref", batch(ROWS))
    result = compare(reference, write(tmp_path / "cand", batch(other), other, words="other {}"))
    assert result.findings == ()


def test_without_trainer_inputs_the_rung_is_missing_and_says_how_to_record(tmp_path: Path) -> None:
    neither = compare(write(tmp_path / "a", None), write(tmp_path / "b", None))
    assert neither.status is RungStatus.MISSING
    assert neither.missing[0].side == "both"
    one = compare(write(tmp_path / "c", None), write(tmp_path / "d", batch(ROWS)))
    assert (one.status, one.missing[0].side) == (RungStatus.MISSING, "reference")


def test_a_defect_is_named_even_where_the_other_side_recorded_nothing(tmp_path: Path) -> None:
    arrays = with_responses(lambda row: [i for i in row.response if i != EOS])
    result = compare(write(tmp_path / "ref", None), write(tmp_path / "cand", arrays))
    assert (result.status, ids(result)) == (RungStatus.DIVERGED, ["tokens.eos_missing"])


def test_a_layout_other_than_verls_is_not_judged(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["responses"] = arrays["responses"] + 1
    result = against_clean(tmp_path, arrays)
    assert (result.status, result.findings) == (RungStatus.MISSING, ())
    assert "do not end with responses" in result.summary.en


def test_the_ladder_and_the_inventory_know_the_rung(tmp_path: Path) -> None:
    arrays = with_responses(lambda row: [i for i in row.response if i != EOS])
    reference, candidate = write(tmp_path / "ref", batch(ROWS)), write(tmp_path / "cand", arrays)
    report = climb(reference, candidate)
    assert report.verdict.finding_id == "tokens.eos_missing"
    ready = next(r for r in take_inventory(candidate).readiness if r.rung is Rung.TOKENS)
    assert ready.what is not None and ready.missing is None


def test_names_and_shapes_are_read_without_the_tensors(tmp_path: Path) -> None:
    run = write(tmp_path / "run", batch(ROWS)).run
    (artifact,) = run.of_kind(ArtifactKind.TOKENS)
    inputs = READER.read(artifact.path, lambda _: None)
    assert isinstance(inputs, TrainerInputs)
    assert (inputs.step, inputs.shapes["responses"]) == (1, (len(ROWS), R))
    assert inputs.tensor("no_such") is None


def test_weights_are_not_trainer_inputs(tmp_path: Path) -> None:
    safetensors.save_file({"lm_head.weight": np.zeros((2, 2))}, tmp_path / "model.safetensors")
    assert not discover([tmp_path]).artifacts


@given(cut=st.integers(8, 1200), junk=st.binary(max_size=16))
def test_damaged_files_raise_nothing_but_our_own_errors(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write(folder / "run", batch(ROWS))
    path = folder / "run" / "trainer_inputs" / "1.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:cut] + junk)
    run = RunData(discover([folder / "run"]))
    compare(run, run)
    try:
        READER.read(path, lambda _: None)
    except AlignError as error:
        assert str(path) in str(error)
