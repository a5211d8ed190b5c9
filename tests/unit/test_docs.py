"""The documentation names only files, commands and findings that exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import click
import pytest

from align.cli.main import cli
from align.config.schema import FIELDS
from align.core.report import Report
from align.core.rung import Rung

ROOT = Path(__file__).parents[2]
DOCS = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
GUIDES = [p for p in DOCS if p.parent.name == "how-to" or p.stem.startswith("tutorial")]
ENGLISH = [path for path in GUIDES if not path.name.endswith(".zh.md")]

_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ID = re.compile(
    rf"`((?:{'|'.join(rung.value for rung in Rung)})(?:\.[a-z0-9_]+)+)`"
    r"|^\[(?:error|warning|info)\] ([\w.]+): ",
    re.MULTILINE,
)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
every_page = pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
every_guide = pytest.mark.parametrize("page", ENGLISH, ids=lambda p: p.stem)


def test_the_pages_are_found() -> None:
    assert {"README.md", "formats.md", "design.md", "nan.zh.md"} <= {path.name for path in DOCS}
    assert len(ENGLISH) >= 6


@every_page
def test_a_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = [link for link in links(page) if not resolves(page, link)]
    assert not broken


@every_page
def test_an_align_command_line_can_be_called(page: Path) -> None:
    for line in console_lines(page):
        parse(align_arguments(line))


@every_page
def test_a_finding_named_in_a_page_exists_in_the_source(page: Path) -> None:
    unknown = [name for name in ids(page.read_text(encoding="utf-8")) if not is_known(name)]
    assert not unknown


@every_guide
def test_a_guide_has_a_chinese_twin_with_the_same_commands(page: Path) -> None:
    twin = page.with_name(f"{page.stem}.zh.md")
    assert twin.is_file()
    assert commands(twin) == commands(page)


def test_a_wrong_command_option_or_choice_is_noticed() -> None:
    for arguments in (["reprot"], ["report", "a", "b", "--no"], ["report", "a", "b", "--lang=fr"]):
        with pytest.raises(click.UsageError):
            parse(arguments)
    parse(["curves", "diff", "a", "b", "--all", "--lang", "zh"])


def test_a_wrong_finding_is_noticed() -> None:
    text = "`config.rollout.temperature` `curves.nonfinite.candidate` `rollout.emptyish`"
    assert [name for name in ids(text) if not is_known(name)] == ["rollout.emptyish"]


def test_a_broken_link_is_noticed() -> None:
    page = ROOT / "README.md"
    assert resolves(page, "CONTRIBUTING.md#add-a-reader")
    assert not resolves(page, "CONTRIBUTING.md#add-a-writer")
    assert not resolves(page, "docs/absent.md")


def test_every_field_of_the_report_is_documented() -> None:
    text = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in text or f"`{name}[]`" in text for name in Report.__dataclass_fields__)


def links(page: Path) -> Iterator[str]:
    """Yield the targets inside this repository."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in link and not link.startswith("mailto:"):
            yield link


def resolves(page: Path, link: str) -> bool:
    """Tell whether a link's file exists, and its heading if it names one."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return frozenset(heading.replace(" ", "-") for heading in kept)


def console_lines(page: Path) -> Iterator[str]:
    """Yield the ``align`` command lines of console blocks, without prompt."""
    for block in _CONSOLE.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            line = line.removeprefix("$ ").removeprefix(".venv/bin/")
            if line.startswith("align "):
                yield line


def align_arguments(line: str) -> list[str]:
    """Return what follows ``align`` up to a comment, pipe or redirection."""
    words = shlex.split(line, comments=True)[1:]
    ends = (i for i, word in enumerate(words) if word in ("|", ">", "2>", "&&", ";"))
    return words[: next(ends, len(words))]


def commands(page: Path) -> list[list[str]]:
    """Return the page's command lines; the language of the output may differ."""
    lines = (align_arguments(line.replace(" --lang zh", "")) for line in console_lines(page))
    return list(lines)


def parse(arguments: list[str]) -> None:
    """Parse a command line as ``align`` does, and call nothing."""
    command: click.Command = cli
    context = click.Context(command, info_name="align")
    while isinstance(command, click.Group):
        if not arguments or arguments[0] in ("-h", "--help", "--version"):
            return
        name, *arguments = arguments
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name}")
        command = found
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(command.name, list(arguments), parent=context)


def ids(text: str) -> list[str]:
    """Return the dotted names in backticks that begin with a rung, and those of shown findings."""
    return [quoted or shown for quoted, shown in _ID.findall(text)]


# where the rung of a name is compared, if not in align/<rung>
_FOLDERS = {
    "loss": "align/referee",
    "forward": "align/layers",
    "backward": "align/layers",
    "reward": "align",
    "tokens": "align/rollout",
    "advantage": "align",
    "optimizer": "align/curves",
    "tokenizer": "tokenizer_check",
}


def is_known(name: str) -> bool:
    """Tell whether a finding, table or configuration key of this name can occur.

    Ids are partly made at run time: then the last part has to be spelled out in the source.
    """
    package, _, rest = name.partition(".")
    if package == "config" and (rest in FIELDS or rest.rpartition(".")[0] + ".*" in FIELDS):
        return True
    folder = _FOLDERS.get(package, f"align/{package}")
    spelled = spellings(folder) | spellings("align/frameworks")
    first, _, more = rest.partition("_")
    joined = first in spelled and f"_{more}" in spelled  # f"{role}_token_id"
    return name in spelled or rest in spelled or name.rpartition(".")[2] in spelled or joined


@cache
def spellings(folder: str) -> frozenset[str]:
    """Return the strings of a folder's source, whole and cut at dots."""
    found: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value, *node.value.split(".")}
    return frozenset(found)
