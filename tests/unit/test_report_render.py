"""The page, the Markdown and the files of a report, drawn from its document alone."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from align.core.document import to_document
from align.core.errors import DocumentError
from align.core.figure import Column, Table
from align.core.rung import RUNGS
from align.core.text import LANGUAGES, Text
from reports import labels
from reports.cells import show, show_in, visible
from reports.render import html, markdown
from tests.example_report import awkward_report, long_report

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"


def through_text(document: dict[str, Any]) -> dict[str, Any]:
    """Give what a reader of report.json gets."""
    read = json.loads(json.dumps(document, allow_nan=False))
    assert isinstance(read, dict)
    return read


AWKWARD = through_text(to_document(awkward_report()))
LONG = through_text(to_document(long_report()))
PAGES = {lang: html.render(AWKWARD, lang) for lang in LANGUAGES}
LONG_PAGE = html.render(LONG, "en")


class Outline(HTMLParser):
    """Elements of a page with their attributes, and its visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


# --- the page


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_is_the_golden_one_but_for_figures_style_and_script(lang: str) -> None:
    page = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", PAGES[lang], flags=re.DOTALL)
    page = re.sub(r'(role="img"[^>]*>)<svg.*?</svg>', r"\1<svg/>", page, flags=re.DOTALL)
    page = re.sub(r"'sha256-[^']*'", "'sha256-…'", page)
    assert_golden(f"report.{lang}.html", page)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_markdown_is_the_golden_one(lang: str) -> None:
    assert_golden(f"report.{lang}.md", markdown.render(AWKWARD, lang))


@pytest.mark.parametrize(("lang", "html_lang"), [("en", "en"), ("zh", "zh-CN")])
def test_the_page_names_its_language(lang: str, html_lang: str) -> None:
    assert dict(Outline(PAGES[lang]).elements)["html"] == {"lang": html_lang}


def test_hostile_text_is_shown_and_never_becomes_markup() -> None:
    outline = Outline(PAGES["en"])
    tags = Counter(tag for tag, _ in outline.elements)
    assert tags["script"] == tags["style"] == 1
    assert not any(name.startswith("on") for _, attrs in outline.elements for name in attrs)
    shown = "".join(outline.words)
    assert shown.count('<script>alert("x")</script>') >= 10
    assert "\x1b" not in PAGES["en"]


def test_nothing_is_fetched_and_only_our_script_may_run() -> None:
    outline = Outline(LONG_PAGE)
    for tag, attrs in outline.elements:
        assert "src" not in attrs and "xlink:href" not in attrs
        target = attrs.get("href") or "#"
        assert target.startswith("#") or (tag == "link" and target == "data:,")
    assert "url(" not in LONG_PAGE and "@import" not in LONG_PAGE
    script = re.findall(r"<script>(.*?)</script>", LONG_PAGE, re.DOTALL)
    assert len(script) == 1
    (policy,) = (a["content"] for t, a in outline.elements if t == "meta" and "http-equiv" in a)
    assert policy is not None and "default-src 'none'" in policy
    allowed = policy.partition("script-src 'sha256-")[2].partition("'")[0]
    assert base64.b64decode(allowed) == hashlib.sha256(script[0].encode()).digest()


def test_every_link_has_its_target_and_every_id_is_there_once() -> None:
    for page in (*PAGES.values(), LONG_PAGE):
        elements = Outline(page).elements
        ids = Counter(attrs["id"] for _, attrs in elements if "id" in attrs)
        assert [name for name, count in ids.items() if count > 1] == []
        links = {a["href"] for _, a in elements if (a.get("href") or "").startswith("#")}
        assert {link for link in links if str(link)[1:] not in ids} == set()


def test_the_ladder_links_every_rung_in_causal_order() -> None:
    ladder = LONG_PAGE.partition('<ol class="ladder">')[2].partition("</ol>")[0]
    assert re.findall(r'href="#rung-(\w+)"', ladder) == [rung.value for rung in RUNGS]


def test_headings_go_down_one_level_at_a_time() -> None:
    levels = [int(t[1]) for t, _ in Outline(LONG_PAGE).elements if re.fullmatch("h[1-6]", t)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_findings_with_one_id_get_two_anchors() -> None:
    twice = json.loads(json.dumps(AWKWARD))
    twice["findings"].append(twice["findings"][1])
    page = html.render(twice, "en")
    assert 'id="finding-config.model.rms_norm_eps"' in page
    assert 'id="finding-config.model.rms_norm_eps-2"' in page


@pytest.mark.parametrize("status", ["aligned", "diverged", "undecided", "not_comparable"])
@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_status_has_its_word_beside_its_colour(status: str, lang: str) -> None:
    document = json.loads(json.dumps(AWKWARD))
    document["verdict"] |= {"status": status, "cause": None, "fix": None, "next_step": None}
    page = html.render(document, lang)
    word = next(w for s, w in labels.VERDICT_STATUS.items() if s.value == status)
    assert f'class="verdict is-{status}"' in page
    assert word.in_language(lang) in page.partition('class="status"')[2][:200]


def test_an_empty_report_is_still_a_page() -> None:
    document = json.loads(json.dumps(AWKWARD)) | {"findings": [], "rungs": []}
    document["verdict"] |= {"rung": None, "finding_id": None, "not_recorded": []}
    assert labels.WORDS["no_findings"].en in html.render(document, "en")
    assert markdown.render(document, "zh").startswith("# 对齐报告")


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(DocumentError):
        html.render({**AWKWARD, "schema_version": 99}, "en")


def test_500_steps_stay_below_two_megabytes() -> None:
    assert len(LONG_PAGE.encode()) < 2 * 1024 * 1024
    assert len(LONG_PAGE.encode()) < 700 * 1024  # twelve figures and 655 rows, with room


# --- colours


CSS = (REPOSITORY / "reports" / "templates" / "report.css").read_text("utf-8")
LIGHT = dict(re.findall(r"--([\w-]+): (#\w+);", CSS.partition("@media")[0]))
DARK = LIGHT | dict(
    re.findall(r"--([\w-]+): (#\w+);", CSS.partition("dark)")[2].partition("\n}")[0])
)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_aa_asks_for(scheme: dict[str, str]) -> None:
    grounds = ("page", "surface", "sunk")
    words = ("ink", "muted", "link", "good", "bad", "unsure", "none", "reference", "candidate")
    pairs = [(word, ground) for word in words for ground in grounds]
    pairs += [(tone, f"{tone}-tint") for tone in ("good", "bad", "unsure", "none")]
    poor = {p: _contrast(scheme[p[0]], scheme[p[1]]) for p in pairs}
    assert {pair: ratio for pair, ratio in poor.items() if ratio < 4.5} == {}


def _contrast(one: str, other: str) -> float:
    """Compute the contrast ratio of WCAG 2.2, 1 to 21."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# --- words


def test_every_label_is_used_and_none_is_lacking() -> None:
    templates = (REPOSITORY / "reports" / "templates").glob("*.jinja")
    used = set(re.findall(r"\bwords\.(\w+)", "".join(p.read_text("utf-8") for p in templates)))
    assert used == set(labels.WORDS)


@pytest.mark.parametrize(
    "table",
    [labels.RUNGS, labels.RUNG_STATUS, labels.VERDICT_STATUS, labels.SEVERITY, labels.STRENGTH],
)
def test_every_member_has_a_label_in_both_languages(table: dict[Any, Text]) -> None:
    members: Any = type(next(iter(table)))
    assert list(table) == list(members)
    assert all(text.en and text.zh for text in table.values())


@pytest.mark.parametrize("text", labels.WORDS.values(), ids=labels.WORDS)
def test_both_languages_leave_the_same_blanks(text: Text) -> None:
    assert re.findall(r"{\w+}", text.en) == re.findall(r"{\w+}", text.zh)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "—"),
        (True, "true"),
        ("true", '"true"'),
        (1, "1"),
        (1.0, "1.0"),
        ("1", '"1"'),
        (1e-6, "1e-06"),
        ("1e-6", '"1e-6"'),
        (0.1 + 0.2, "0.3"),
        (float(np.float32(0.1234567)), "0.123456702"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        ("", '""'),
        (" x", '" x"'),
        ("bf16", "bf16"),
    ],
)
def test_a_value_is_shown_so_that_it_is_not_taken_for_another(value: Any, shown: str) -> None:
    assert show(value) == shown


def test_a_table_of_strings_alone_needs_no_quotes() -> None:
    columns = (Column("a", Text("a", "a")), Column("b", Text("b", "b")))
    strings = Table("t", Text("t", "t"), columns, (("3.10", None), ("", "x")))
    mixed = Table("t", Text("t", "t"), columns, (("3.10", 1),))
    assert show_in(strings)("3.10") == "3.10" and show_in(strings)("") == '""'
    assert show_in(mixed)("3.10") == '"3.10"'


def test_characters_that_act_are_made_visible() -> None:
    assert visible("a\x00\x1b\u202eb\ud800中\n") == "a\\x00\\x1b\\u202eb\\ud800中\n"


# --- Markdown


@given(st.text(max_size=40))
def test_markdown_shows_text_as_it_is(text: str) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(f"- x: {markdown.escape(text)}.")
    (inline,) = (token for token in tokens if token.type == "inline")
    assert inline.children is not None
    assert {child.type for child in inline.children} == {"text"}
    wanted = visible(" ".join(text.splitlines()))
    assert "".join(child.content for child in inline.children).split() == f"x: {wanted}.".split()


@given(st.text(alphabet="a`|\\ <b>\n中", min_size=1, max_size=12))
def test_code_in_a_table_cell_is_shown_as_it_is(text: str) -> None:
    table = f"| a | b |\n|---|---|\n| {markdown.code(text)} | end |\n"
    page = MarkdownIt("commonmark").enable("table").render(table)
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert cells[1:] == ["end"]
    shown = "".join(Outline(cells[0]).words)
    assert shown.split() == text.replace("\n", " ").split()


def test_hostile_text_is_no_html_in_markdown() -> None:
    text = markdown.render(AWKWARD, "en")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    raw = {child.content for child in inline if child.type == "html_inline"}
    assert raw <= {"<code>", "</code>"}
    assert not any(token.type == "html_block" for token in tokens)


def test_long_tables_are_cut_in_markdown_with_the_count_of_the_rest() -> None:
    text = markdown.render(LONG, "en")
    assert text.count("| `actor_rollout_ref.group_") == 30
    assert f"{655 - 30} more rows" in text


def assert_golden(name: str, text: str) -> None:
    """Compare with a file in tests/golden; ALIGN_UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    if os.environ.get("ALIGN_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"ALIGN_UPDATE_GOLDEN=1 accepts the new {name}"
