"""Prompts: the chat template, MindSpeed-RL's templates, and what is too long."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

from dataclasses import replace

from align.core.errors import ConfigError, RunError
from align.stack.config import load_config
from align.stack.mindspeed_rl_template import encode, read_template
from align.stack.prompts import fit, render
from align.stack.row import Row
from align.stack.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
ROW = Row(3, "x", "add", ({"role": "user", "content": "What is 4 + 8?"},), "12")


def test_the_chat_template_gives_text_and_the_ids_of_that_text() -> None:
    prompt = render(ROW, TOKENIZER, load_config())
    text = "<|im_start|>user\nWhat is 4 + 8?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.row_index == 3
    assert prompt.text == text
    assert list(prompt.ids) == TOKENIZER.encode(text)


def test_a_system_prompt_becomes_the_first_turn() -> None:
    prompt = render(replace(ROW, system="S"), TOKENIZER, load_config())
    assert prompt.text.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n")


def test_the_empty_template_leaves_the_text_alone() -> None:
    config = load_config(None, ["stack.data.prompt_type=empty"])
    assert render(ROW, TOKENIZER, config).text == "What is 4 + 8?"


def test_a_template_file_is_read_with_its_slots_prefix_and_separator(tmp_path) -> None:
    template = {
        "name": "mine",
        "format_user": {"slots": [["bos_token"], "U:{{content}};"]},
        "format_separator": {"slots": ["|"]},
        "format_prefix": {"slots": [["eos_token"]]},
    }
    path = tmp_path / "templates.json"
    path.write_text(json.dumps([template]), encoding="utf-8")
    turns = ("user", "A"), ("assistant", "left out"), ("user", "B")
    messages = tuple({"role": role, "content": text} for role, text in turns)
    ids = encode(read_template("mine", str(path)), TOKENIZER, messages)
    assert TOKENIZER.decode(ids) == "<|im_end|>U:A;|U:B;"  # no bos token, so its slot is nothing


def test_an_unknown_template_and_an_unreadable_file_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"qwen_r1: is no template; use empty, qwen"):
        read_template("qwen_r1")
    (tmp_path / "t.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="templates"):
        read_template("qwen", str(tmp_path / "t.json"))


def test_a_template_that_cannot_render_is_refused_with_the_row() -> None:
    broken = tiny_tokenizer()
    broken.chat_template = "{{ raise_exception('needs a system prompt') }}"
    with pytest.raises(RunError, match=r"row 3: .*needs a system prompt"):
        render(ROW, broken, load_config())
    broken.chat_template = None
    with pytest.raises(RunError, match="row 3"):
        render(ROW, broken, load_config())


@pytest.mark.parametrize(
    ("how", "want"), [("left", (4, 5, 6)), ("right", (1, 2, 3)), ("middle", (1, 5, 6))]
)
def test_a_long_prompt_is_cut_as_verl_cuts_it(how: str, want: tuple[int, ...]) -> None:
    """verl's postprocess_data keeps max // 2 tokens in front and the rest behind."""
    settings = ["data.max_prompt_length=3", f"data.truncation={how}"]
    assert fit((1, 2, 3, 4, 5, 6), load_config(None, settings), "row 0") == want


def test_a_long_prompt_is_refused_by_default() -> None:
    config = load_config(None, ["data.max_prompt_length=3"])
    assert fit((1, 2, 3), config, "row 0") == (1, 2, 3)
    with pytest.raises(RunError, match=r"row 7: has a prompt of 4 tokens, above .* 3"):
        fit((1, 2, 3, 4), config, "row 7")
