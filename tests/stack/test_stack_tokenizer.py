"""The tiny tokenizer: Qwen's conventions, lossless text, the same bytes every time."""

from __future__ import annotations

import hashlib
import json

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from align.core.errors import ConfigError
from align.stack.config import load_config
from align.stack.tokenizer import _WORDS, load_tokenizer, tiny_merges, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@pytest.mark.parametrize(
    "text",
    [
        "强化学习：奖励曲线在第 500 步之后下降。",
        "😀👩‍👩‍👧‍👦 🇨🇳 café",
        "def f(x):\n\treturn x ** 2  # twice\r\n\r\n    '''doc'''  ",
        "What is 3 + 14?",
        "",
    ],
)
def test_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(alphabet=st.characters(codec="utf-8", max_codepoint=0x2FF), max_size=60))
def test_any_composed_text_survives(text: str) -> None:
    import unicodedata

    composed = unicodedata.normalize("NFC", text)  # Qwen's tokenizers compose as well
    ids = TOKENIZER.encode(text)
    special = set(TOKENIZER.all_special_ids)
    assert TOKENIZER.decode(ids) == composed or special & set(ids)


def test_every_word_of_the_list_is_one_token_alone_and_after_a_space() -> None:
    for word in _WORDS.split():
        assert len(TOKENIZER.encode(word)) == len(TOKENIZER.encode(f" {word}")) == 1


def test_each_digit_is_its_own_token_as_with_qwen() -> None:
    assert len(TOKENIZER.encode("1234567890")) == 10


def test_special_tokens_stand_behind_the_vocabulary_in_qwens_order() -> None:
    ids = TOKENIZER.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert ids == [len(TOKENIZER) - 3, len(TOKENIZER) - 2, len(TOKENIZER) - 1]
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert TOKENIZER.pad_token == "<|endoftext|>"
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == ""


def test_the_chat_template_writes_qwens_turns() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
    ]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )


def test_two_builds_save_the_same_bytes_and_load_the_same_tokenizer(tmp_path) -> None:
    digests = []
    for name in ("a", "b"):
        tiny_tokenizer().save_pretrained(tmp_path / name)
        digests.append(hashlib.sha256((tmp_path / name / "tokenizer.json").read_bytes()).digest())
    assert digests[0] == digests[1]
    loaded = AutoTokenizer.from_pretrained(tmp_path / "a", local_files_only=True)
    text = "<|im_start|>user\nWhich number is larger, 7 or 12?<|im_end|>\n"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.chat_template == TOKENIZER.chat_template
    assert loaded.eos_token_id == TOKENIZER.eos_token_id
    assert loaded.pad_token_id == TOKENIZER.pad_token_id


def test_the_vocabulary_never_changes() -> None:
    """Ids of runs made earlier would mean something else."""
    model = json.loads(TOKENIZER.backend_tokenizer.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].get)
    assert ordered[256:] == ["".join(merge) for merge in tiny_merges()]
    assert len(ordered) == 256 + len(tiny_merges())
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()
    assert digest[:16] == "911018995c7b3300"


def test_one_changed_merge_changes_the_ids_of_its_word_alone() -> None:
    merges = tuple(m for m in tiny_merges() if "".join(m) != "Ġplus")
    other = tiny_tokenizer(merges)
    assert len(other.encode("3 plus 4?")) == len(TOKENIZER.encode("3 plus 4?")) + 1
    assert other.tokenize("What is 3 + 4?") == TOKENIZER.tokenize("What is 3 + 4?")


def test_a_folder_is_loaded_with_its_own_template_unless_one_is_given(tmp_path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    key = "actor_rollout_ref.model"
    config = load_config(None, [f"{key}.tokenizer_path={tmp_path}"])
    assert load_tokenizer(config).chat_template == TOKENIZER.chat_template
    config = load_config(
        None, [f"{key}.tokenizer_path={tmp_path}", f"{key}.custom_chat_template=plain"]
    )
    assert load_tokenizer(config).chat_template == "plain"


def test_a_folder_without_a_tokenizer_is_refused_with_the_key_to_set(tmp_path) -> None:
    config = load_config(None, [f"actor_rollout_ref.model.tokenizer_path={tmp_path}"])
    with pytest.raises(ConfigError, match=r"no .*tokenizer.*tokenizer_path"):
        load_tokenizer(config)
