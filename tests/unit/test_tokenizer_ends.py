"""Where responses end: stop sets and padding of each framework, and rows that lose their eos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from align.core.finding import Finding, Severity, Side
from align.core.rung import RungResult
from align.core.text import Text
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.chat_template import Rendering, render
from tokenizer_check.end_sets import Stated, end_sets, padding, stripped
from tokenizer_check.rung import compare
from tokenizer_check.turn_end import CONVERSATION, turn_end

END, TEXT_END, OTHER = 151645, 151643, 151654
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
DECODER = {
    "151643": {"content": "<|endoftext|>", "special": True},
    "151645": {"content": "<|im_end|>", "special": True},
    "151654": {"content": "<|vision_pad|>", "special": True},
}
VERL = "actor_rollout_ref:\n  rollout:\n    n: 4\ntrainer:\n  total_epochs: 1\n"
MINDSPEED_RL = "rl_config:\n  n_samples_per_prompt: 4\nmegatron_training:\n  train_iters: 1\n"


def run(
    folder: Path,
    *,
    eos: str = "<|im_end|>",
    pad: str | None = "<|endoftext|>",
    stops: object = (END, TEXT_END),
    template: str = TEMPLATE,
    framework: str | None = None,
    endings: tuple[int, ...] = (),
) -> RunData:
    folder.mkdir(parents=True)
    files: dict[str, object] = {
        "tokenizer_config.json": {
            "added_tokens_decoder": DECODER,
            "chat_template": template,
            "eos_token": eos,
            "pad_token": pad,
            "tokenizer_class": "Qwen2Tokenizer",
        },
        "generation_config.json": {
            "eos_token_id": stops,
            "pad_token_id": TEXT_END,
            "transformers_version": "4.37.0",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if framework is not None:
        manifest = {"schema_version": 1, "framework": framework}
        (folder / "align-run.json").write_text(json.dumps(manifest), encoding="utf-8")
    row = {"input": "q", "output": "a", "score": 1.0, "step": 1, "prompt_ids": [5]}
    rows = [{**row, "response_ids": [7, last]} for last in endings]
    if rows:
        (folder / "1.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return RunData(discover([folder]))


def weights(result: RungResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def the(result: RungResult, id: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == id)


def sets(result: RungResult) -> dict[tuple[str, str], tuple[object, ...]]:
    table = next(table for table in result.tables if table.id == "tokenizer.end_sets")
    return {(str(row[0]), row[2].en): row[3:] for row in table.rows if isinstance(row[2], Text)}


def test_qwen_base_against_instruct_tells_the_eos_story_with_its_counts(tmp_path: Path) -> None:
    base = run(
        tmp_path / "a",
        eos="<|endoftext|>",
        stops=TEXT_END,
        framework="verl",
        endings=(TEXT_END, TEXT_END, TEXT_END, 9),
    )
    instruct = run(tmp_path / "b", stops=[END, TEXT_END], framework="mindspeed_rl")
    result = compare(base, instruct)
    assert weights(result) == {"tokenizer.eos_token_id": Severity.ERROR}
    why = the(result, "tokenizer.eos_token_id").why
    assert (
        "In MindSpeed-RL the candidate's engine also stops at 151643, which is its padding and not "
        "its tokenizer's eos (151645): the eos would be stripped as padding, which loses the eos "
        "of 3 of 4 recorded responses of the reference." in why.en
    )
    assert "4 条回复中的 3 条" in why.zh
    assert "chat template ends a turn with <|im_end|> (151645)" in why.en
    assert sets(result) == {
        ("vLLM", "engine stops at"): ("≠", "151643", "151643, 151645"),
        ("verl <= 0.6", "trainer ends a response at"): ("≠", "151643", "151643, 151645"),
        ("verl", "padding"): ("=", "151643", "151643"),
        ("TRL", "trainer ends a response at"): ("≠", "151643", "151643, 151645"),
        ("TRL", "padding"): ("=", "151643", "151643"),
        ("MindSpeed-RL", "trainer ends a response at"): ("≠", "151643", "151645"),
        ("MindSpeed-RL", "padding"): ("=", "151643", "151643"),
        ("MindSpeed-RL", "end tokens cut off as padding"): ("≠", "none", "151643"),
    }


def test_the_real_base_folder_against_instruct_values_is_the_same_story(
    corpus: Path, tmp_path: Path
) -> None:
    real = corpus / "tokenizers" / "qwen2.5-7b"
    config = json.loads((real / "tokenizer_config.json").read_text(encoding="utf-8"))
    generation = json.loads((real / "generation_config.json").read_text(encoding="utf-8"))
    config["eos_token"] = "<|im_end|>"
    generation |= {"eos_token_id": [END, TEXT_END], "pad_token_id": TEXT_END}
    for name, content in (("tokenizer_config", config), ("generation_config", generation)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    result = compare(RunData(discover([real])), RunData(discover([tmp_path])))
    assert weights(result) == {"tokenizer.eos_token_id": Severity.ERROR}
    finding = the(result, "tokenizer.eos_token_id")
    assert (finding.reference, finding.candidate) == (
        "<|endoftext|> (151643)",
        "<|im_end|> (151645)",
    )
    assert "the eos would be stripped as padding" in finding.why.en
    assert "eos 会被当作填充截去" in finding.why.zh


def test_replace_eos_takes_the_stop_word_of_the_template(tmp_path: Path) -> None:
    user = {"slots": ["{{content}}"]}
    replaced = {"name": "q", "format_user": user, "stop_words": ["<|im_end|>"], "replace_eos": True}
    for name, template in (("a", replaced), ("b", {**replaced, "replace_eos": False})):
        run(tmp_path / name, eos="<|endoftext|>")
        (tmp_path / name / "templates.json").write_text(json.dumps([template]), encoding="utf-8")
    result = compare(*(RunData(discover([tmp_path / name])) for name in "ab"))
    assert sets(result)["MindSpeed-RL", "eos when data is prepared"] == ("≠", "151645", "151643")


def test_equal_files_are_silent_in_one_framework(tmp_path: Path) -> None:
    for framework in ("verl", "mindspeed_rl", None):
        sides = [run(tmp_path / f"{framework}{side}", framework=framework) for side in "ab"]
        assert compare(*sides).findings == ()


@pytest.mark.parametrize(
    ("endings", "severity"),
    [((), Severity.WARNING), ((END, END), Severity.WARNING), ((END, TEXT_END), Severity.ERROR)],
)
def test_equal_files_in_two_frameworks_differ_where_one_cuts_an_end_token_off(
    tmp_path: Path, endings: tuple[int, ...], severity: Severity
) -> None:
    verl = run(tmp_path / "a", framework="verl", endings=endings)
    result = compare(verl, run(tmp_path / "b", framework="mindspeed_rl"))
    assert weights(result) == {"tokenizer.stripped_eos": severity}
    finding = the(result, "tokenizer.stripped_eos")
    assert (finding.reference, finding.candidate) == ("none", "151643")
    counted = f"1 of {len(endings)} recorded" if severity is Severity.ERROR else ""
    assert counted in finding.why.en
    # padding that no engine stops at is cut by nobody
    sides = [
        run(tmp_path / name, framework=name, pad="<|vision_pad|>")
        for name in ("verl", "mindspeed_rl")
    ]
    assert compare(*sides).findings == ()


def test_a_turn_that_ends_where_the_engine_does_not_stop_is_an_error(tmp_path: Path) -> None:
    other = TEMPLATE.replace("<|im_end|>", "<|vision_pad|>")
    result = compare(run(tmp_path / "a"), run(tmp_path / "b", template=other))
    finding = the(result, "tokenizer.turn_end")
    assert (finding.severity, finding.reference, finding.candidate) == (
        Severity.ERROR,
        "<|im_end|> (151645)",
        "<|vision_pad|> (151654)",
    )
    assert "run on to the length limit" in finding.why.en
    assert {e.side for e in finding.evidence} == {Side.REFERENCE, Side.CANDIDATE}


def test_a_stop_set_that_lacks_a_file_is_a_warning(tmp_path: Path) -> None:
    whole, without = run(tmp_path / "a"), tmp_path / "b"
    run(without)
    (without / "generation_config.json").unlink()
    config = {"model_type": "qwen2", "hidden_size": 8, "vocab_size": 9, "eos_token_id": END}
    (without / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = compare(whole, RunData(discover([without])))
    assert weights(result) == {"tokenizer.stop_set": Severity.WARNING}
    assert the(result, "tokenizer.stop_set").candidate == "151645"


def test_mindspeed_rl_takes_pad_id_zero_for_none() -> None:
    zero = Stated(eos=2, generation=frozenset({2}), pad=0, is_pad_known=True)
    assert (padding(zero, "mindspeed_rl"), padding(zero, "verl")) == (2, 0)
    none = Stated(eos=2, generation=frozenset({2}), pad=None, is_pad_known=True)
    assert (padding(none, "mindspeed_rl"), padding(none, "verl")) == (2, 2)
    unknown = Stated(eos=2, generation=frozenset({2}), pad=None, is_pad_known=False)
    assert padding(unknown, "verl") is None
    assert all(s.ids is None for s in end_sets(unknown) if s.use.en == "padding")


@pytest.mark.parametrize(
    ("eos", "stops", "pad", "expected"),
    [
        # cut at the first padding id, which stays where it is the tokenizer's eos
        (151645, {151645, 151643}, 151643, {151643}),
        (151643, {151643}, 151643, set()),
        (151645, {151645}, 151643, set()),
        (151645, {151645, 151643}, 151654, set()),
        (2, {2}, 0, set()),
    ],
)
def test_an_end_token_is_stripped_where_the_loop_of_mindspeed_rl_strips_it(
    eos: int, stops: set[int], pad: int, expected: set[int]
) -> None:
    side = Stated(eos, frozenset(stops), pad, is_pad_known=True)
    assert stripped(side) == frozenset(expected)

    def cut(response: list[int]) -> list[int]:  # the behaviour that the facts describe
        used = pad if pad else eos
        first = response.index(used) if used in response else len(response)
        return response[: first + 1] if used == eos else response[:first]

    for stop in stops | {eos}:
        lost = stop not in cut([7, 8, stop, pad or eos, pad or eos])
        assert lost == (stop in expected)


def test_rows_that_lose_their_eos_in_the_loss_are_counted(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    responses = numpy.array([[7, END, OTHER], [7, 8, 9], [7, OTHER, OTHER], [END, OTHER, OTHER]])
    attention = numpy.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])
    masks = {
        "a": numpy.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]),
        # the second row was cut at the limit; of the others the third never had an end token
        "b": numpy.array([[1, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]),
    }
    runs = {}
    for name, mask in masks.items():
        pad = "<|vision_pad|>" if name == "a" else "<|im_end|>"
        run(tmp_path / name, pad=pad)
        folder = tmp_path / name / "trainer_inputs"
        folder.mkdir()
        tensors: dict[str, Any] = {
            "input_ids": numpy.concatenate([numpy.full((4, 1), 5), responses], axis=1),
            "attention_mask": attention,
            "responses": responses,
            "response_mask": mask,
        }
        safetensors.save_file(tensors, folder / "1.safetensors")
        runs[name] = RunData(discover([tmp_path / name]))
    why = the(compare(runs["a"], runs["b"]), "tokenizer.pad_token_id").why.en
    assert "In the reference's trainer inputs 1 of 3 rows" in why
    assert "In the candidate's trainer inputs 3 of 3 rows" in why


def test_the_end_of_a_turn_is_what_the_template_writes_after_an_answer() -> None:
    known = {"<|im_end|>", "<|im_"}
    (rendered,) = render(TEMPLATE, {}, (CONVERSATION,))
    assert turn_end(rendered, known) == "<|im_end|>"
    assert turn_end(rendered, ()) == "<|im_end|>"
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert turn_end(render(plain, {}, (CONVERSATION,))[0], known) is None
    by_name = "{% for m in messages %} {{ m.content }} {{ eos_token }}{% endfor %}"
    (rendered,) = render(by_name, {"eos_token": "</s>"}, (CONVERSATION,))
    assert turn_end(rendered, ()) == "</s>"
    assert turn_end(Rendering(refused="no"), known) is None
