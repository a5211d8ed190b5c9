"""Make matplotlib's SVG small and fit to stand inside a page: no prolog, few ids, CSS colours."""

from __future__ import annotations

import re

# What matplotlib draws with, by the CSS variable that takes its place in the page.
COLOURS = {
    "--reference": "#0000a1",
    "--candidate": "#0000a2",
    "--difference": "#0000a3",
    "--axis": "#0000a4",
    "--grid": "#0000a5",
    "--muted": "#0000a6",
}
_VARIABLES = {colour: f"var({name})" for name, colour in COLOURS.items()}

_ROOT = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>(.*)</svg>', re.DOTALL)
_DROPPED = re.compile(
    r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->"
    r"|(?<=<g) id=\"[^\"]*\"|font-family: [^\";]*(?:;\s*)?| transform=\"rotate\(-?0 [^\"]*\)\"",
    re.DOTALL,
)
_PATH = re.compile(r' d="([^"]*)"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_PLACE = re.compile(r' (x|y)="(-?\d+\.\d{2,})"')
_ID = re.compile(r'(id="|xlink:href="#|url\(#)')
_EMPTY = re.compile(r"</?g ?/?>|<path style=[^>]*/>")  # bare groups, lines without a point
_FONT_SIZE = re.compile(r'style="font-size: \d+px; ')


def to_fragment(svg: str, id_prefix: str) -> str:
    """Return an ``<svg>`` element for a page, from a whole matplotlib document.

    Args:
        svg: document drawn with the colours of `COLOURS`.
        id_prefix: put before every id, so that several fragments fit one page.
    """
    match = _ROOT.search(svg)
    assert match is not None, "matplotlib wrote no <svg> element"
    view_box, body = match.groups()
    body = _DROPPED.sub("", body)
    body = _PATH.sub(lambda path: f' d="{_short_path(path[1])}"', body)
    body = _PLACE.sub(lambda place: f' {place[1]}="{_short(place[2])}"', body)
    body = _ID.sub(lambda start: start[1] + id_prefix, body).replace("xlink:href", "href")
    body = _FONT_SIZE.sub('style="', body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    assert "<g " not in body, "a group with attributes means something; keep it"
    body = _EMPTY.sub("", re.sub(r">\s+<", "><", body)).strip()
    return f'<svg viewBox="{view_box}" aria-hidden="true" focusable="false">{body}</svg>'


def _short_path(path: str) -> str:
    """Round to a tenth of a point; a move implies that lines follow."""
    numbers = _LONG_NUMBER.sub(lambda number: _short(number[0]), path)
    return " ".join(numbers.replace("L ", "").split())


def _short(number: str) -> str:
    return f"{float(number):.1f}".removesuffix(".0")
