"""Content of tokenizers: each difference is named, and its twin in other spelling is silent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from dumps.readers.tokenizer_content import (
    line_of,
    read_merges,
    read_tokenizer_json,
    read_vocabulary,
)
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.chat_template import CONVERSATIONS, diff_templates, render
from tokenizer_check.content import read_content
from tokenizer_check.rung import compare

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + TEMPLATE
OTHER_TEXT = TEMPLATE.replace("message['role']", "message.role").replace("{% if", "{%- if")
CONFIG: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "<|im_end|>",
    "model_max_length": 8,
    "tokenizer_class": "PreTrainedTokenizerFast",
}
_ADDED_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
JSON: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": 6, "content": "<s>", "special": True, **_ADDED_FLAGS},
        {"id": 7, "content": "<|im_end|>", "special": True, **_ADDED_FLAGS},
    ],
    "normalizer": None,
    "post_processor": None,
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5},
        "merges": [["a", "b"], ["b", "c"], ["ab", "c"]],
    },
}
BEGINS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
}


def run(folder: Path, **files: object) -> RunData:
    """Write a tokenizer folder: json, config, template, merges (text), vocab, rollout."""
    names = {
        "json": "tokenizer.json",
        "config": "tokenizer_config.json",
        "template": "chat_template.jinja",
        "merges": "merges.txt",
        "vocab": "vocab.json",
        "rollout": "1.jsonl",
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / names[name]).write_text(text, encoding="utf-8")
    return RunData(discover([folder]))


def compared(
    tmp_path: Path, reference: Mapping[str, object], candidate: Mapping[str, object]
) -> RungResult:
    base: dict[str, object] = {"json": JSON, "config": CONFIG, "template": TEMPLATE}
    return compare(
        run(tmp_path / "a", **{**base, **reference}), run(tmp_path / "b", **{**base, **candidate})
    )


def weights(result: RungResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def the(result: RungResult, id: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == id)


def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, object]:
    copy = deepcopy(JSON)
    edit(copy)
    return {"json": copy}


def test_the_same_tokenizer_is_silent_and_the_summary_lists_what_was_compared(
    tmp_path: Path,
) -> None:
    result = compared(tmp_path, {}, {})
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    assert (
        "chat template, merges, vocabulary, added tokens, normaliser, pre-tokenizer and model "
        "settings compared" in result.summary.en
    )


def test_a_system_prompt_in_the_template_is_quoted_from_both_sides(tmp_path: Path) -> None:
    finding = the(compared(tmp_path, {}, {"template": WITH_SYSTEM}), "tokenizer.chat_template")
    assert finding.severity is Severity.ERROR
    assert finding.mechanism and finding.mechanism.acts_on is Rung.TOKENIZER
    assert finding.mechanism.strength is Strength.SEMANTIC
    assert str(finding.reference).startswith("user\nWhat is 1 + 1?")
    assert str(finding.candidate).startswith("system\nYou are a helpful assistant.")
    assert "13 of 13 test conversations" in finding.title.en and "13 个测试对话" in finding.title.zh


def test_templates_of_other_text_that_render_the_same_are_no_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, {}, {"template": OTHER_TEXT})
    assert weights(result) == {"tokenizer.chat_template": Severity.INFO}
    assert result.status is RungStatus.ALIGNED


def test_a_template_is_the_same_in_either_file(tmp_path: Path) -> None:
    base = {"json": JSON}
    alone = run(tmp_path / "a", **base, config={**CONFIG, "chat_template": TEMPLATE})
    listed = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    several = run(tmp_path / "b", **base, config={**CONFIG, "chat_template": listed})
    # chat_template.jinja replaces the one in the configuration
    replaced = run(
        tmp_path / "c",
        **base,
        config={**CONFIG, "chat_template": WITH_SYSTEM},
        template=TEMPLATE,
    )
    for other in (several, replaced):
        assert compare(alone, other).findings == ()


def test_another_end_token_is_no_difference_of_the_template(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<|im_end|>", "{{ eos_token }}")
    result = compared(
        tmp_path,
        {"template": template},
        {"template": template + " ", "config": {**CONFIG, "eos_token": "<s>"}},
    )
    assert the(result, "tokenizer.eos_token_id").severity is Severity.ERROR
    assert "'' in the reference, ' '" in the(result, "tokenizer.chat_template").title.en


def test_a_refused_role_differs_from_a_rendered_one_and_two_refusals_do_not() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    a = refusing + TEMPLATE
    b = a.replace("no system", "not supported")
    assert diff_templates(a, b, {}).differing == ()
    differing = diff_templates(TEMPLATE, a, {}).differing
    assert len(differing) == 5 and differing[0][2].refused == "no system"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'a' * 10**11 }}", ""),
        ("{% for i in range(9999) %}{{ 'a' * 99 }}{% endfor %}", "TooLong"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "stopped at the limit",
        ),
        ("{% for", "TemplateSyntaxError"),
    ],
)
def test_a_hostile_or_broken_template_is_stopped_and_never_called_different(
    template: str, problem: str
) -> None:
    diff = diff_templates(TEMPLATE, template, {})
    assert diff.differing == ()
    assert diff.failed is not None and problem in diff.failed


def test_a_template_that_cannot_be_rendered_is_a_warning(tmp_path: Path) -> None:
    result = compared(tmp_path, {}, {"template": TEMPLATE + "{% unknown %}"})
    assert weights(result) == {"tokenizer.chat_template": Severity.WARNING}


def test_templates_render_as_transformers_renders_them(corpus: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pytest.importorskip("tokenizers").Tokenizer(
            pytest.importorskip("tokenizers").models.BPE()
        )
    )
    for name in ("qwen2.5-7b", "qwen2.5-coder-1.5b"):
        folder = corpus / "tokenizers" / name
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        content = read_content(RunData(discover([folder])))
        assert content.template and content.template.value == template
        expected = [
            tokenizer.apply_chat_template(
                [dict(message) for message in conversation.messages],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=conversation.add_generation_prompt,
                **conversation.values,
            )
            for conversation in CONVERSATIONS
        ]
        assert [rendering.text for rendering in render(template, {})] == expected


def test_a_lost_merge_is_named_with_its_place(tmp_path: Path) -> None:
    result = compared(tmp_path, {}, edited(lambda j: j["model"]["merges"].pop(1)))
    finding = the(result, "tokenizer.merges")
    assert weights(result) == {"tokenizer.merges": Severity.ERROR}
    assert (finding.reference, finding.candidate) == ("'b' + 'c'", "'ab' + 'c'")
    assert "only in the reference: 1, only in the candidate: 0" in finding.title.en
    for evidence, piece in zip(finding.evidence, ('"b"', '"ab"'), strict=True):
        lines = Path(evidence.source).read_text().splitlines()
        assert piece in lines[(evidence.line or 0) - 1]


def test_the_order_of_merges_counts(tmp_path: Path) -> None:
    finding = the(
        compared(tmp_path, {}, edited(lambda j: j["model"]["merges"].reverse())),
        "tokenizer.merges",
    )
    assert "only in the reference: 0, only in the candidate: 0" in finding.title.en


def test_merges_and_vocabulary_are_the_same_in_every_spelling(tmp_path: Path) -> None:
    as_strings = edited(lambda j: j["model"].update(merges=["a b", "b c", "ab c"]))
    assert compared(tmp_path, {}, as_strings).findings == ()
    merges = [f"{a} b" for a in "cdefghijklmnopqrstuvwxyz"]
    vocabulary = {f"w{n}": n for n in range(150)}
    one = edited(lambda j: j["model"].update(merges=merges, vocab=vocabulary))
    folder = run(tmp_path / "old", merges="#version: 0.2\n" + "\n".join(merges), vocab=vocabulary)
    result = compare(run(tmp_path / "new", **one), folder)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    unversioned = run(tmp_path / "crlf", merges="\r\n".join(merges), vocab=vocabulary)
    assert compare(folder, unversioned).findings == ()


def test_another_id_of_a_token_is_named(tmp_path: Path) -> None:
    swapped = edited(lambda j: j["model"]["vocab"].update(ab=4, bc=3))
    finding = the(compared(tmp_path, {}, swapped), "tokenizer.vocabulary")
    assert (finding.severity, finding.reference, finding.candidate) == (Severity.ERROR, 3, 4)
    assert "token 'ab' has id 3" in finding.title.en
    assert "2 tokens have another id, 0 are only" in finding.title.en


def test_added_tokens_that_one_file_lists_in_its_vocabulary_are_no_difference(
    tmp_path: Path,
) -> None:
    listed = edited(lambda j: j["model"]["vocab"].update({"<s>": 6, "<|im_end|>": 7}))
    assert compared(tmp_path, {}, listed).findings == ()


@pytest.mark.parametrize(
    ("edit", "severity"),
    [
        (lambda added: added[1].update(id=9), Severity.ERROR),
        (lambda added: added[1].update(lstrip=True), Severity.WARNING),
        (lambda added: added.append({"id": 8, "content": "<think>"}), Severity.WARNING),
    ],
)
def test_added_tokens_and_their_flags_are_compared(
    tmp_path: Path, edit: Callable[[list[dict[str, Any]]], None], severity: Severity
) -> None:
    result = compared(tmp_path, {}, edited(lambda j: edit(j["added_tokens"])))
    assert weights(result) == {"tokenizer.added_tokens": severity}


def test_the_same_added_tokens_in_older_files_are_no_difference(tmp_path: Path) -> None:
    fields = deepcopy(JSON["added_tokens"])
    decoder = {str(token.pop("id")): token for token in fields}
    old = run(tmp_path / "a", config={**CONFIG, "added_tokens_decoder": decoder})
    assert compare(old, run(tmp_path / "b", json=JSON, config=CONFIG)).findings == ()


def test_a_begin_token_before_every_recorded_prompt_is_named(tmp_path: Path) -> None:
    def rollout(*begin: int) -> str:
        row = {"input": "x", "output": "y", "score": 1.0, "step": 1}
        rows = [{**row, "prompt_ids": [*begin, n, 2]} for n in range(4)]
        return "\n".join(map(json.dumps, rows))

    result = compared(tmp_path, {"rollout": rollout()}, {"rollout": rollout(6)})
    finding = the(result, "tokenizer.add_bos_token")
    assert (finding.severity, finding.reference, finding.candidate) == (Severity.ERROR, 0, 1)
    # twin: the files differ, but the prompts that were recorded do not
    asking = {"config": {**CONFIG, "add_bos_token": True}, "rollout": rollout()}
    assert compared(tmp_path / "clean", {"rollout": rollout()}, asking).findings == ()


@pytest.mark.parametrize(
    "candidate",
    [
        {"config": {**CONFIG, "add_bos_token": True}},
        edited(lambda j: j.update(post_processor=BEGINS)),
        edited(lambda j: j.update(post_processor={"type": "Sequence", "processors": [BEGINS]})),
    ],
)
def test_a_begin_token_that_only_the_files_ask_for_is_a_warning(
    tmp_path: Path, candidate: dict[str, object]
) -> None:
    result = compared(tmp_path, {}, candidate)
    assert weights(result) == {"tokenizer.add_bos_token": Severity.WARNING}
    assert the(result, "tokenizer.add_bos_token").candidate == "<s>"
    assert compared(tmp_path / "same", candidate, candidate).findings == ()


def test_a_begin_token_asked_for_in_either_file_is_the_same(tmp_path: Path) -> None:
    asked = {"config": {**CONFIG, "add_bos_token": True}}
    done = edited(lambda j: j.update(post_processor=BEGINS))
    assert compared(tmp_path, asked, done).findings == ()
    # "no" beside a post-processor that adds one: what happens depends on the version
    unclear = {**done, "config": {**CONFIG, "add_bos_token": False}}
    assert compared(tmp_path / "unclear", {}, unclear).findings == ()


def test_padding_side_is_compared_where_both_state_it(tmp_path: Path) -> None:
    left, right = ({"config": {**CONFIG, "padding_side": side}} for side in ("left", "right"))
    result = compared(tmp_path, left, right)
    finding = the(result, "tokenizer.padding_side")
    assert weights(result) == {"tokenizer.padding_side": Severity.WARNING}
    assert finding.mechanism and finding.mechanism.acts_on is Rung.TOKENS
    in_json = edited(lambda j: j.update(padding={"direction": "Right"}))
    assert compared(tmp_path / "same", right, in_json).findings == ()
    assert compared(tmp_path / "unstated", {}, right).findings == ()


def test_copies_of_one_tokenizer_are_one_and_two_tokenizers_are_not_compared(
    tmp_path: Path,
) -> None:
    one = run(tmp_path / "one", json=JSON, config=CONFIG, template=TEMPLATE)
    run(tmp_path / "copies" / "actor", json=JSON, config=CONFIG, template=TEMPLATE)
    run(tmp_path / "copies" / "ref", json=JSON, config=CONFIG, template=TEMPLATE)
    assert compare(one, RunData(discover([tmp_path / "copies"]))).findings == ()
    run(tmp_path / "copies" / "reward", template=WITH_SYSTEM)
    result = compare(one, RunData(discover([tmp_path / "copies"])))
    assert weights(result) == {"tokenizer.several_tokenizers": Severity.INFO}
    assert "chat template" in result.summary.en.partition("Not compared")[2]


def test_a_merge_lost_from_a_large_vocabulary_is_named_with_its_line(
    corpus: Path, tmp_path: Path
) -> None:
    real = corpus / "tokenizers" / "qwen2.5-7b"
    changed = tmp_path / "changed"
    shutil.copytree(real, changed, copy_function=shutil.copyfile)
    lines = (real / "merges.txt").read_text(encoding="utf-8").split("\n")
    lost = lines.pop(100_000)
    (changed / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    result = compare(RunData(discover([real])), RunData(discover([changed])))
    finding = the(result, "tokenizer.merges")
    assert finding.evidence[0].line == 100_001
    assert finding.reference == " + ".join(map(repr, lost.split(" ")))
    assert weights(result) == {"tokenizer.merges": Severity.ERROR}
    vocabulary = read_vocabulary(real / "vocab.json")
    assert len(vocabulary) == 151_643
    assert line_of(real / "vocab.json", next(iter(vocabulary))) == 1


@given(data=st.binary(max_size=300), cut=st.integers(0, 600))
def test_any_bytes_are_read_or_refused_with_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    path = tmp_path_factory.mktemp("content") / "file"
    whole = json.dumps(JSON).encode()
    for content in (data, whole[:cut] + data, b'{"model": ' + data, whole[:cut] + whole[-cut:]):
        path.write_bytes(content)
        for read in (read_tokenizer_json, read_vocabulary, read_merges):
            try:
                read(path)
            except AlignError as error:
                assert str(path) in str(error)


@pytest.mark.parametrize(
    "content",
    ['{"model": 1}', '{"model": {"vocab": [1]}}', '{"added_tokens": [{}]}', "[1]", "[" * 100_000],
)
def test_a_tokenizer_json_of_another_layout_is_a_problem_with_its_name(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(AlignError, match=r"tokenizer\.json"):
        read_tokenizer_json(path)
