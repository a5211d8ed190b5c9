"""Errors over depth as SVG: a line over the floor, a heat map, and what is around the departure.

A fragment holds names and numbers alone, so it suits every language. Colours are CSS classes and
variables of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import escape

from align.core.figure import Point, Profile
from reports.cells import visible

WIDTH, HEIGHT = 900.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 26.0, 20.0
CELL = 14.0
MOST_DECADES = 10  # between two labels of the axis below this height
NUM_BEFORE, NUM_AFTER = 3, 2


@dataclass(frozen=True, slots=True)
class Bin:
    """One colour of the heat map: error over floor up to ``upper``."""

    upper: float
    style: str
    label: str


BINS = (
    Bin(0.1, "c0", "≤ 0.1"),
    Bin(0.3, "c1", "≤ 0.3"),
    Bin(1.0, "c2", "≤ 1"),
    Bin(3.0, "c3", "≤ 3"),
    Bin(10.0, "c4", "≤ 10"),
    Bin(math.inf, "c5", "> 10"),
)


@dataclass(frozen=True, slots=True)
class Near:
    """A point at or beside the first departure: "before", "here" or "after" it."""

    point: Point
    place: str

    @property
    def is_beyond(self) -> bool:
        """Whether its error is larger than what explains it."""
        return self.point.error > self.point.limit


@dataclass(frozen=True, slots=True)
class Depth:
    """The figures of one quantity: its first step whole, all its steps as heat maps."""

    profile: Profile
    line: str
    heat: tuple[tuple[int, str], ...]
    near: tuple[Near, ...]
    bins: tuple[Bin, ...] = BINS

    @property
    def marked(self) -> Point | None:
        """The first departure."""
        marked = self.profile.marked
        return None if marked is None else self.profile.points[marked]


def depths_of(profiles: Iterable[Profile]) -> tuple[Depth, ...]:
    """Draw profiles; the steps of one quantity stand together."""
    drawn = []
    for _, group in groupby(profiles, key=lambda profile: profile.id):
        steps = tuple(group)
        heat = tuple((each.step, heat_map(each.points)) for each in steps if _has_layers(each))
        drawn.append(Depth(steps[0], depth_line(steps[0]), heat, neighbourhood(steps[0])))
    return tuple(drawn)


def neighbourhood(profile: Profile) -> tuple[Near, ...]:
    """Return what is computed just before and after the departure, and itself."""
    if profile.marked is None:
        return ()
    first = max(0, profile.marked - NUM_BEFORE)
    around = profile.points[first : profile.marked + NUM_AFTER + 1]
    places = {0: "here"}
    return tuple(
        Near(point, places.get(at - profile.marked, "before" if at < profile.marked else "after"))
        for at, point in enumerate(around, start=first)
    )


def depth_line(profile: Profile) -> str:
    """Draw the errors over what explains them, on a logarithmic axis."""
    points = profile.points
    scale = _Scale.of(points)
    parts = [*_layers(points, scale), _floor(points, scale), *_decades(scale)]
    parts.append(_dots(points, scale))
    if profile.marked is not None:
        parts.extend(_mark(points[profile.marked], profile.marked, scale))
    return svg(WIDTH, HEIGHT, parts)


def heat_map(points: Sequence[Point]) -> str:
    """Draw a cell for each kind of module (down) and layer (across), coloured by error / floor."""
    inside = [(point, point.group) for point in points if point.group is not None]
    kinds = list(dict.fromkeys(point.kind for point, _ in inside))
    layers = sorted({group for _, group in inside})
    across = {layer: i for i, layer in enumerate(layers)}
    return heat(
        [
            (kinds.index(point.kind), across[layer], style_of(point.error, point.limit))
            for point, layer in inside
        ],
        kinds,
        list(map(str, layers)),
        CELL,
        every=math.ceil(len(layers) / 16) or 1,
    )


def heat(
    cells: Iterable[tuple[int, int, str]],
    rows: Sequence[str],
    columns: Sequence[str],
    size: float,
    *,
    every: int,
) -> str:
    """Draw coloured cells with the names of rows and columns.

    Args:
        cells: row, column and style of each.
        size: of a cell.
        every: how many columns there are to one that is named.
    """
    left = 12 + 5.6 * max(map(len, rows), default=0)
    paths: dict[str, list[str]] = {each.style: [] for each in BINS}
    for row, column, style in cells:
        x, y = left + size * column, 16 + size * row
        paths[style].append(f"M{x:.1f} {y:.1f}h{size - 1:g}v{size - 1:g}h-{size - 1:g}z")
    parts = [f'<path class="{s}" d="{"".join(own)}"/>' for s, own in paths.items() if own]
    for row, name in enumerate(rows):
        parts.append(label(left - 5, 16 + size * row + size / 2 + 3, name, anchor="end"))
    for column, name in list(enumerate(columns))[::every]:
        x = left + size * column + size / 2 - 1
        parts.append(label(x, 11, name, anchor="middle"))
    width, height = left + size * len(columns) + 4, 18 + size * len(rows)
    return svg(max(width, 340.0), height, parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From an index and an error to a place; ``low`` and ``high`` are decimal logarithms."""

    count: int
    low: float
    high: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Scale:
        values = [v for p in points for v in (p.error, p.limit) if 0 < v < math.inf]
        logs = [math.log10(value) for value in values] or [-8.0, 0.0]
        return cls(len(points), min(logs) - 0.3, max(logs) + 0.3)

    def x(self, index: float) -> float:
        return LEFT + (index + 0.5) / max(1, self.count) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if not value > 0:
            return HEIGHT - BOTTOM
        log = self.high if not math.isfinite(value) else math.log10(value)
        share = (log - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _layers(points: Sequence[Point], scale: _Scale) -> list[str]:
    """Shade every other layer, and number as many as there is room for."""
    spans = []
    for layer, run in groupby(enumerate(points), key=lambda each: each[1].group):
        indices = [index for index, _ in run]
        if layer is not None:
            spans.append((layer, scale.x(indices[0] - 0.5), scale.x(indices[-1] + 0.5)))
    every = math.ceil(len(spans) / 24) or 1
    parts = []
    for number, (layer, left, right) in enumerate(spans):
        if number % 2 == 0:
            parts.append(
                f'<rect x="{left:.1f}" y="{TOP:g}" width="{right - left:.1f}" '
                f'height="{HEIGHT - BOTTOM - TOP:g}" style="fill: var(--sunk)"/>'
            )
        if number % every == 0:
            parts.append(label((left + right) / 2, HEIGHT - 5, str(layer), anchor="middle"))
    return parts


def _floor(points: Sequence[Point], scale: _Scale) -> str:
    """Draw the band below the limits, a step a point."""
    if not points:
        return ""
    steps = " ".join(
        f"{scale.x(i - 0.5):.1f} {scale.y(p.limit):.1f} {scale.x(i + 0.5):.1f} "
        f"{scale.y(p.limit):.1f}"
        for i, p in enumerate(points)
    )
    foot = HEIGHT - BOTTOM
    start, end = scale.x(-0.5), scale.x(len(points) - 0.5)
    return (
        f'<path d="M{start:.1f} {foot:g} {steps} {end:.1f} {foot:g}z" style="fill: var(--grid)"/>'
        f'<path d="M{steps}" style="fill: none; stroke: var(--axis); stroke-width: 1.2"/>'
    )


def _decades(scale: _Scale) -> list[str]:
    first, last = math.ceil(scale.low), math.floor(scale.high)
    every = math.ceil((last - first + 1) / MOST_DECADES) or 1
    return [
        f'<path d="M{LEFT:g} {scale.y(10.0**power):.1f}H{WIDTH - RIGHT:g}" '
        'style="stroke: var(--axis); stroke-width: 0.5; stroke-opacity: 0.5"/>'
        + label(LEFT - 6, scale.y(10.0**power) + 3.5, f"1e{power}" if power else "1", anchor="end")
        for power in range(first, last + 1, every)
    ]


def _dots(points: Sequence[Point], scale: _Scale) -> str:
    places = [f"{scale.x(i):.1f} {scale.y(p.error):.1f}" for i, p in enumerate(points)]
    line = " ".join(places)
    dots = "".join(f"M{place}h0" for place in places)
    style = "fill: none; stroke: var(--candidate); stroke-linecap: round; stroke-width"
    return (
        f'<path d="M{line}" style="{style}: 1; stroke-opacity: 0.55"/>'
        f'<path d="{dots}" style="{style}: 4.5"/>'
    )


def _mark(point: Point, index: int, scale: _Scale) -> list[str]:
    x, y = scale.x(index), scale.y(point.error)
    anchor = "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle"
    return [
        f'<path d="M{x:.1f} {TOP - 6:g}V{HEIGHT - BOTTOM:g}" '
        'style="stroke: var(--bad); stroke-width: 1; stroke-dasharray: 3 3"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" '
        'style="fill: none; stroke: var(--bad); stroke-width: 2"/>',
        label(x, TOP - 11, point.name, anchor=anchor, style="named"),
    ]


def style_of(error: float, limit: float) -> str:
    """Return the colour of a cell's error, as the name of its style."""
    if math.isnan(error):
        return BINS[-1].style
    if not error > 0:
        return BINS[0].style
    ratio = error / limit if limit > 0 else math.inf
    return next((each.style for each in BINS if ratio <= each.upper), BINS[-1].style)


def _has_layers(profile: Profile) -> bool:
    return any(point.group is not None for point in profile.points)


def label(x: float, y: float, words: str, *, anchor: str, style: str = "axis") -> str:
    """Return words in a figure."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(visible(words))}</text>'


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a figure of parts, hidden from what reads pages aloud: a label says what it is."""
    view = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg {view} aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
