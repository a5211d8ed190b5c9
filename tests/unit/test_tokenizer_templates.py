"""What is put around a question: spans, defaults of templates, and MindSpeed-RL's slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.finding import Finding, Severity
from align.core.rung import RungResult
from align.core.text import Text
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.chat_template import spans
from tokenizer_check.rung import compare

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PLAIN = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant."
    "<|im_end|>\n{% endif %}"
)
THINKING = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is COND %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
USER_SLOT = "<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"
# the example of a field report, with the default system prompt of the chat template
SLOTS = {
    "name": "qwen",
    "format_user": {"slots": [USER_SLOT]},
    "format_system": {"slots": ["<|im_start|>system\n{{content}}<|im_end|>\n"]},
    "format_separator": {"slots": ["\n"]},
    "default_system": "You are a helpful assistant.",
    "stop_words": ["<|im_end|>"],
    "replace_eos": True,
}
WHOLE = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": n,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for n, text in ((300, "<|im_start|>"), (301, "<|im_end|>"))
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"},
}


def run(folder: Path, template: str | None = None, **files: object) -> RunData:
    folder.mkdir(parents=True)
    config: dict[str, object] = {
        "eos_token": "<|im_end|>",
        "model_max_length": 8,
        "tokenizer_class": "X",
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        suffix = "yaml" if name == "datasets" else "json"
        (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    return RunData(discover([folder]))


def the(result: RungResult) -> Finding:
    return next(f for f in result.findings if f.id == "tokenizer.chat_template")


def rendered(result: RungResult) -> dict[str, tuple[object, ...]]:
    table = next(table for table in result.tables if table.id == "tokenizer.rendered")
    return {row[0].en: row[1:] for row in table.rows if isinstance(row[0], Text)}


def test_a_default_system_prompt_is_named_with_its_span_and_tokens(tmp_path: Path) -> None:
    without = run(tmp_path / "a", PLAIN + PROMPT, tokenizer=WHOLE)
    result = compare(without, run(tmp_path / "b", SYSTEM + PLAIN + PROMPT, tokenizer=WHOLE))
    finding = the(result)
    assert finding.severity is Severity.ERROR
    assert "Only conversations without a system prompt differ" in finding.why.en
    assert "The candidate adds '<|im_start|>system\\nYou are a helpful assistant." in finding.why.en
    # by hand: words, marks and special tokens of the system turn are 1 + 6 + 1 + ".": 9 tokens
    row = rendered(result)["one question, add_generation_prompt on"]
    assert row[0] == "≠" and int(str(row[2])) - int(str(row[1])) == 9
    assert row[3] == ("'' → '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n'")
    assert rendered(result)["system prompt and question, add_generation_prompt on"][0] == "="


def test_only_the_generation_prompt_differs(tmp_path: Path) -> None:
    thinking = PROMPT.replace("assistant\n", "assistant\n<think>\n")
    usual = run(tmp_path / "a", PLAIN + PROMPT)
    finding = the(compare(usual, run(tmp_path / "b", PLAIN + thinking)))
    assert finding.severity is Severity.ERROR
    assert "Only what add_generation_prompt adds at the end differs" in finding.why.en


def test_another_default_of_enable_thinking_is_named(tmp_path: Path) -> None:
    on, off = (
        PLAIN + THINKING.replace("enable_thinking is defined and enable_thinking is COND", test)
        for test in (
            "enable_thinking is defined and enable_thinking is false",
            "enable_thinking is not defined or enable_thinking is false",
        )
    )
    finding = the(compare(run(tmp_path / "a", on), run(tmp_path / "b", off)))
    assert "With enable_thinking set, both render the same: its default differs" in finding.why.en
    assert "'<think>" in finding.title.en


def test_templates_that_differ_with_tools_alone_are_a_warning(tmp_path: Path) -> None:
    tools = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN + PROMPT
    result = compare(run(tmp_path / "a", PLAIN + PROMPT), run(tmp_path / "b", tools))
    assert the(result).severity is Severity.WARNING
    assert "Only conversations with tools differ" in the(result).why.en


def test_slots_that_write_what_the_chat_template_writes_are_no_difference(tmp_path: Path) -> None:
    hf = run(tmp_path / "a", SYSTEM + PLAIN + PROMPT)
    prepared = run(tmp_path / "b", templates=[SLOTS])
    result = compare(hf, prepared)
    assert the(result).severity is Severity.INFO
    assert "render 2 test conversations the same" in the(result).title.en


def test_slots_with_other_instructions_are_named(tmp_path: Path) -> None:
    user = {"slots": [USER_SLOT.replace("{{content}}", "Think. {{content}}")]}
    others = [{**SLOTS, "name": "qwen_r1", "format_user": user}, {"name": "empty"}, SLOTS]
    hf = run(tmp_path / "a", SYSTEM + PLAIN + PROMPT)
    named = "prompt_type: {}\ninput: ./data\nhandler_name: R1AlpacaStyleInstructionHandler\n"
    named += "tokenizer_type: HuggingFaceTokenizer\noutput_prefix: ./out\nworkers: 8\n"
    named += 'map_keys: {"prompt": "problem", "query": "", "response": "answer"}\n'
    prepared = run(tmp_path / "b", templates=others, datasets=named.replace("{}", "qwen_r1", 1))
    result = compare(hf, prepared)
    assert the(result).severity is Severity.ERROR
    assert "'Think. What is 1 + 1?" in the(result).title.en
    assert the(result).evidence[1].key == "qwen_r1"
    # without the name of the template in use, each of them is set against the other side's
    unnamed = compare(hf, run(tmp_path / "c", templates=others))
    table = next(t for t in unnamed.tables if t.id == "tokenizer.slot_templates")
    assert [row[:2] for row in table.rows] == [("qwen_r1", "≠"), ("empty", "≠"), ("qwen", "=")]
    assert unnamed.findings == ()


pieces = st.lists(st.sampled_from(["a", "b", " ", "<|x|>", "\n", "."]), max_size=12)


@given(pieces, pieces)
def test_spans_are_all_that_differs(a: list[str], b: list[str]) -> None:
    ours, theirs = "".join(a), "".join(b)
    found = spans(ours, theirs)
    assert (found == []) == (ours == theirs)
    for removed, added in found:
        assert removed in ours and added in theirs and removed != added
    kept = len(ours) - sum(len(removed) for removed, _ in found)
    assert kept == len(theirs) - sum(len(added) for _, added in found)


def test_the_chat_template_of_qwen_differs_from_slots_without_a_system_prompt(
    corpus: Path, tmp_path: Path
) -> None:
    folder = corpus / "tokenizers" / "qwen2.5-7b"
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    hf = run(tmp_path / "a", template)
    assert the(compare(hf, run(tmp_path / "b", templates=[SLOTS]))).severity is Severity.INFO
    without = {**SLOTS, "default_system": ""}
    finding = the(compare(hf, run(tmp_path / "c", templates=[without])))
    assert finding.severity is Severity.ERROR
    assert "The reference adds '<|im_start|>system\\nYou are a helpful assistant." in finding.why.en


@pytest.mark.parametrize("name", ["verl", "mindspeed_rl"])
def test_the_same_source_of_prompts_is_silent(tmp_path: Path, name: str) -> None:
    files = {"templates": [SLOTS]} if name == "mindspeed_rl" else {}
    template = None if files else SYSTEM + PLAIN + PROMPT
    sides = [run(tmp_path / side, template, **files) for side in "ab"]
    assert compare(*sides).findings == ()
