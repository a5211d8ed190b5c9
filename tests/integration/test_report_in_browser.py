"""The page as a browser shows it: both languages, both colour schemes, wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from align.core.document import to_document
from reports.render import html
from tests.example_report import awkward_report, long_report

pytestmark = pytest.mark.browser

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, NARROW = 1280, 390

# Elements whose text does not fit them, scrolling containers and what is hidden by design aside.
OVERFLOWING = """() => [...document.querySelectorAll("body *:not(svg *, script)")].filter((e) => {
  const style = getComputedStyle(e);
  const scrolls = /auto|scroll/.test(style.overflowX);
  const hidden = e.matches(".sr, .symbols") || style.display === "inline";
  return !scrolls && !hidden && e.scrollWidth > e.clientWidth + 1;
}).map((e) => e.tagName + "." + e.className + ": " + e.textContent.slice(0, 60))"""
OUTSIDE = """() => [...document.querySelectorAll("main *, header *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return !e.closest(".scroll, .sr, .symbols") && box.width && box.right > innerWidth + 1;
}).map((e) => e.tagName + "." + e.getAttribute("class"))"""
CLOSED = "() => document.querySelectorAll('details:not([open])').length"
NOT_SHOWN = """() => [...document.querySelectorAll("details .body, .scroll tr")].filter(
  (e) => !e.checkVisibility()).length"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Write both example reports in both languages."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, report in (("awkward", awkward_report()), ("long", long_report())):
        document = json.loads(json.dumps(to_document(report)))
        for lang in ("en", "zh"):
            path = written[name, lang] = folder / f"{name}.{lang}.html"
            path.write_text(html.render(document, lang), encoding="utf-8")
    return written


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """Start Chromium once for all tests of this file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """Collect what the browser complains about and every request beyond the page itself."""
    return []


def open_page(
    browser: Browser, path: Path, complaints: list[str], *, width: int = WIDE, scheme: str = "light"
) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on(
        "request",
        lambda r: None if r.url in (path.as_uri(), "data:,") else complaints.append(r.url),
    )
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["awkward", "long"])
def test_nothing_overflows_complains_or_is_fetched(
    browser: Browser,
    pages: dict[tuple[str, str], Path],
    complaints: list[str],
    name: str,
    lang: str,
    width: int,
    scheme: str,
) -> None:
    page = open_page(browser, pages[name, lang], complaints, width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []
    assert page.evaluate(OUTSIDE) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 23)"
    assert dark == (scheme == "dark")
    assert complaints == []
    page.close()


def test_the_check_for_overflow_sees_an_overflow(
    browser: Browser, pages: dict[tuple[str, str], Path], complaints: list[str]
) -> None:
    page = open_page(browser, pages["awkward", "en"], complaints, width=NARROW)
    page.add_style_tag(content="h1 { white-space: nowrap; }")
    assert any("H1" in line for line in page.evaluate(OVERFLOWING))
    page.close()


def test_the_filter_leaves_the_rows_that_hold_every_word(
    browser: Browser, pages: dict[tuple[str, str], Path], complaints: list[str]
) -> None:
    page = open_page(browser, pages["long", "en"], complaints)
    rows = page.locator("#rows-config-1 tbody tr:not([hidden])")
    box = page.get_by_label("Filter rows").nth(1)
    output = page.locator("output").nth(1)
    assert rows.count() == 655 and output.text_content() == "655 / 655"
    box.fill("GROUP_3 leaf_12")
    assert [text.split()[0] for text in rows.all_inner_texts()] == [
        *("actor_rollout_ref.group_3.leaf_12", "actor_rollout_ref.group_3.leaf_120"),
        *("actor_rollout_ref.group_3.leaf_129",),
    ]
    assert output.text_content() == "3 / 655"
    box.fill("no such row")
    assert rows.count() == 0
    box.fill("")
    assert rows.count() == 655
    assert complaints == []
    page.close()


def test_the_keyboard_alone_sorts_a_table(
    browser: Browser, pages: dict[tuple[str, str], Path], complaints: list[str]
) -> None:
    page = open_page(browser, pages["awkward", "en"], complaints)
    headings = page.locator("#rows-config-1 th")
    column = "#rows-config-1 tbody td:nth-child(2)"
    assert page.locator(column).all_inner_texts() == ["1e-06", "NaN", "true", "10", '""']
    page.locator("#filter-rows-config-1").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert [headings.nth(i).get_attribute("aria-sort") for i in range(3)] == [
        *(None, "ascending", None),
    ]
    assert page.locator(column).all_inner_texts()[:2] == ["1e-06", "10"]
    assert page.locator(column).all_inner_texts()[-1] == "NaN"
    page.keyboard.press("Space")
    assert headings.nth(1).get_attribute("aria-sort") == "descending"
    assert page.locator(column).all_inner_texts()[2:4] == ["10", "1e-06"]
    assert page.locator(column).all_inner_texts()[-1] == "NaN"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert headings.nth(0).get_attribute("aria-sort") == "ascending"
    assert headings.nth(1).get_attribute("aria-sort") is None
    assert complaints == []
    page.close()


def test_findings_sort_by_severity_not_by_alphabet(
    browser: Browser, pages: dict[tuple[str, str], Path], complaints: list[str]
) -> None:
    page = open_page(browser, pages["awkward", "zh"], complaints)
    page.locator("#findings-table th button").first.press("Enter")
    shown = page.locator("#findings-table tbody td:first-child").all_inner_texts()
    assert [text.strip() for text in shown] == ["错误", "警告", "警告", "提示"]
    page.close()


def test_without_scripts_the_tables_are_plain_and_complete(
    browser: Browser, pages: dict[tuple[str, str], Path]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["long", "en"].as_uri())
    assert page.locator("#rows-config-1 tbody tr").count() == 655
    assert page.locator("th button").count() == 0
    assert not page.locator(".table-tools").first.is_visible()
    context.close()


def test_a_link_opens_the_finding_it_leads_to(
    browser: Browser, pages: dict[tuple[str, str], Path], complaints: list[str]
) -> None:
    page = open_page(browser, pages["awkward", "en"], complaints)
    card = page.locator("#finding-environment\\.vllm")
    assert card.get_attribute("open") is None
    page.locator("#findings-table a").first.click()
    card.locator(".body").wait_for(state="visible", timeout=5000)
    assert card.get_attribute("open") is not None
    page.close()


@pytest.mark.parametrize("name", ["awkward", "long"])
def test_print_shows_everything_even_without_scripts(
    browser: Browser, pages: dict[tuple[str, str], Path], name: str
) -> None:
    context = browser.new_context(
        java_script_enabled=False, viewport={"width": 720, "height": 900}, color_scheme="dark"
    )
    page = context.new_page()
    page.goto(pages[name, "zh"].as_uri())
    assert page.evaluate(CLOSED) > 0
    assert page.evaluate(NOT_SHOWN) > 0
    page.emulate_media(media="print")
    assert page.evaluate(NOT_SHOWN) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tables = page.locator(".scroll")
    for i in range(tables.count()):
        assert tables.nth(i).evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    context.close()
