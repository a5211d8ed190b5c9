"""Curves of both runs as SVG fragments, drawn by matplotlib from the report's own numbers.

Raw values are thin, smoothed ones over them; below, the smoothed difference with the band within
which equal runs stay. A dashed line marks the first step at which the two can have parted.

A fragment holds no words, only lines and tick numbers, so it suits every language; the page around
it says what is drawn. Colours are CSS variables, so it follows the page's colour scheme.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, ScalarFormatter

from reports.svg import COLOURS, to_fragment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from align.core.figure import Curve, CurvePair

FloatArray = npt.NDArray[np.float64]

WIDTH_IN, HEIGHT_IN, DPI = 7.0, 3.75, 72
MAX_POINTS = 600  # a figure is about 450 pixels wide: more points cannot be seen apart
LOG_RATIO = 100.0  # greatest value over median from which a linear axis hides the other values
ROUNDING = 1e-12  # spans this small beside the values are float64 rounding, not a curve
OFF_THE_CHART = 1e200  # squares and spans of larger numbers overflow float64
RC = {"svg.fonttype": "none", "svg.hashsalt": "align", "path.simplify_threshold": 0.3}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One metric's curves, difference below.

    ``num_common`` steps have a difference; ``num_gaps`` recorded values are NaN or infinite and
    are marked at the foot of the figure instead of drawn.
    """

    svg: str
    log_scale: bool
    num_common: int
    num_gaps: int


def draw(pairs: Iterable[CurvePair]) -> Iterator[Drawing]:
    """Draw each pair of curves; the same pairs give the same bytes."""
    with mpl.rc_context({**_default_rc(), **RC}):
        sheet = _Sheet()
    for number, pair in enumerate(pairs):
        with mpl.rc_context(RC):
            yield sheet.draw(pair, id_prefix=f"c{number}")


def difference(pair: CurvePair) -> tuple[FloatArray, FloatArray]:
    """Return the common steps and candidate − reference of the smoothed curves, float64 [n]."""
    reference, candidate = pair.reference, pair.candidate
    steps, left, right = np.intersect1d(
        np.asarray(reference.steps, dtype=np.float64),
        np.asarray(candidate.steps, dtype=np.float64),
        return_indices=True,
    )
    return steps, _drawable(candidate.smoothed)[right] - _drawable(reference.smoothed)[left]


class _Sheet:
    """One figure, set up once and filled anew for each metric: three times as fast."""

    def __init__(self) -> None:
        self.figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI)
        self.figure.patch.set_visible(False)
        self.upper = self.figure.add_axes((0.11, 0.36, 0.88, 0.59))
        self.lower = self.figure.add_axes((0.11, 0.08, 0.88, 0.22), sharex=self.upper)
        self.curves = [
            _CurveLines(self.upper, COLOURS["--reference"], dashes=None, foot=0.0),
            _CurveLines(self.upper, COLOURS["--candidate"], dashes=(4.5, 1.6), foot=0.035),
        ]
        self.band = self.lower.axhspan(0.0, 0.0, color=COLOURS["--grid"], zorder=0, clip_on=False)
        self.onsets = [
            axes.axvline(0.0, color=COLOURS["--muted"], linewidth=1.0, dashes=(2, 2))
            for axes in (self.upper, self.lower)
        ]
        self.zero = self.lower.axhline(0.0, color=COLOURS["--axis"], linewidth=0.8, clip_on=False)
        self.difference = _line(self.lower, COLOURS["--difference"], linewidth=1.4)
        self.points = _dots(self.lower, COLOURS["--difference"])
        for axes in (self.upper, self.lower):
            _style(axes)
        self.upper.tick_params(labelbottom=False)
        self.lower.xaxis.set_major_locator(
            MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        )
        self.lower.yaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))

    def draw(self, pair: CurvePair, id_prefix: str) -> Drawing:
        log_scale = _wants_log_scale(pair)
        self._set_scale(log_scale)
        gaps = [
            lines.fill(curve)
            for lines, curve in zip(self.curves, (pair.reference, pair.candidate), strict=True)
        ]
        steps, values = difference(pair)
        _fill(self.difference, self.points, steps, values)
        self._mark(pair)
        self._set_limits(pair, values, log_scale)
        svg = to_fragment(self._render(), id_prefix)
        return Drawing(svg, log_scale, int(np.isfinite(values).sum()), sum(gaps))

    def _set_scale(self, log_scale: bool) -> None:
        wanted = "log" if log_scale else "linear"
        if self.upper.get_yscale() == wanted:
            return
        self.upper.set_yscale(wanted)
        if log_scale:
            self.upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            self.upper.yaxis.set_minor_formatter(NullFormatter())
        else:
            self.upper.yaxis.set_major_formatter(ScalarFormatter())

    def _mark(self, pair: CurvePair) -> None:
        """Show the band of equal runs and the first step at which these can have parted."""
        self.band.set_visible(bool(pair.noise))
        self.band.set_y(-(pair.noise or 0.0))
        self.band.set_height(2 * (pair.noise or 0.0))
        for line in self.onsets:
            line.set_visible(pair.onset is not None)
            line.set_xdata([pair.onset[0] if pair.onset else 0.0] * 2)

    def _set_limits(self, pair: CurvePair, differences: FloatArray, log_scale: bool) -> None:
        steps = np.asarray((*pair.reference.steps, *pair.candidate.steps), dtype=np.float64)
        values = _values(pair)
        self.upper.set_xlim(_limits(steps, pad=0.01))
        low, high = _limits(np.log(values) if log_scale else values, pad=0.07)
        self.upper.set_ylim((math.exp(low), math.exp(high)) if log_scale else (low, high))
        visible = ROUNDING * np.abs(values).max(initial=0.0)  # smaller differences are rounding
        band = [-pair.noise, pair.noise] if pair.noise else [0.0]
        shown = np.append(differences[np.isfinite(differences)], [0.0, *band])
        self.lower.set_ylim(_limits(shown if np.ptp(shown) > visible else shown[-1:], pad=0.07))

    def _render(self) -> str:
        text = io.StringIO()
        self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


class _CurveLines:
    """The lines of one run: raw thin, smoothed over it, what is not finite along the foot."""

    def __init__(
        self, axes: Axes, colour: str, *, dashes: tuple[float, float] | None, foot: float
    ) -> None:
        self.raw = _line(axes, colour, linewidth=0.7, alpha=0.38)
        self.raw_points = _dots(axes, colour, alpha=0.45)
        self.smoothed = _line(axes, colour, linewidth=1.8)
        self.smoothed_points = _dots(axes, colour)
        if dashes is not None:
            self.smoothed.set_dashes(dashes)
        self.gaps = _line(axes, colour, linewidth=3.0)
        self.gap_starts = _dots(axes, colour, marker="x", size=6.0)
        self.gap_starts.set_markeredgewidth(1.5)
        self.foot = foot
        for line in (self.gaps, self.gap_starts):
            line.set_transform(axes.get_xaxis_transform())

    def fill(self, curve: Curve) -> int:
        """Set the lines and return the number of values that are not finite."""
        steps = np.asarray(curve.steps, dtype=np.float64)
        raw = _drawable(curve.values)
        _fill(self.raw, self.raw_points, steps, raw)
        _fill(self.smoothed, self.smoothed_points, steps, _drawable(curve.smoothed))
        gap = ~np.isfinite(raw)
        starts = gap & ~np.concatenate(([False], gap[:-1]))
        shown = slice(None) if gap.any() else slice(0)
        self.gaps.set_data(steps[shown], np.where(gap, self.foot, np.nan)[shown])
        self.gap_starts.set_data(steps[starts], np.full(int(starts.sum()), self.foot))
        return int(gap.sum())


def _fill(line: Line2D, points: Line2D, steps: FloatArray, values: FloatArray) -> None:
    """Draw ``values`` as a line, and as dots where a value has no finite neighbour."""
    finite = np.concatenate(([False], np.isfinite(values), [False]))
    alone = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    line.set_data(*_envelope(steps, values))
    points.set_data(steps[alone], values[alone])


def _envelope(steps: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Keep the least and the greatest value of each bin, so that no spike is lost."""
    if len(values) <= MAX_POINTS:
        return steps, values
    kept: set[int] = {0, len(values) - 1}
    for index in np.array_split(np.arange(len(values)), MAX_POINTS // 3):
        part = values[index]
        if np.isnan(part).any():
            kept.add(int(index[np.isnan(part).argmax()]))
        if not np.isnan(part).all():
            kept.update((int(index[np.nanargmin(part)]), int(index[np.nanargmax(part)])))
    chosen = np.asarray(sorted(kept))
    return steps[chosen], values[chosen]


def _drawable(values: Sequence[float]) -> FloatArray:
    """Return float64 [n] with NaN for all that no axis can show."""
    array = np.array(values, dtype=np.float64)
    array[~(np.abs(array) < OFF_THE_CHART)] = np.nan
    return array


def _values(pair: CurvePair) -> FloatArray:
    """Return every value that is drawn, raw or smoothed, of both runs."""
    curves = (pair.reference, pair.candidate)
    values = _drawable([value for c in curves for value in (*c.values, *c.smoothed)])
    return np.extract(np.isfinite(values), values)


def _wants_log_scale(pair: CurvePair) -> bool:
    values = _values(pair)
    if len(values) == 0 or values.min() <= 0:
        return False
    return bool(values.max() > LOG_RATIO * np.median(values))


def _limits(values: FloatArray, *, pad: float) -> tuple[float, float]:
    """Return axis limits around finite ``values``; a span of nothing is widened to be drawn."""
    if len(values) == 0:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if high - low <= ROUNDING * size:
        pad, low, high = 0.0, low - (0.1 * size or 1.0), high + (0.1 * size or 1.0)
    return low - pad * (high - low), high + pad * (high - low)


def _line(axes: Axes, colour: str, *, linewidth: float, alpha: float | None = None) -> Line2D:
    (line,) = axes.plot([], [], color=colour, linewidth=linewidth, alpha=alpha, clip_on=False)
    line.set_solid_capstyle("round")
    return line


def _dots(
    axes: Axes, colour: str, *, marker: str = "o", size: float = 3.0, alpha: float | None = None
) -> Line2D:
    (line,) = axes.plot([], [], marker, color=colour, markersize=size, alpha=alpha, clip_on=False)
    return line


def _style(axes: Axes) -> None:
    axes.patch.set_visible(False)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["--axis"])
    axes.grid(True, axis="y", color=COLOURS["--grid"], linewidth=0.8, clip_on=False)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=11, labelcolor=COLOURS["--muted"], pad=5)
    for offset in (axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()):
        offset.set_color(COLOURS["--muted"])
        offset.set_fontsize(10)


def _default_rc() -> dict[str, object]:
    """Return matplotlib's own settings, so that a user's matplotlibrc changes no byte."""
    return {key: value for key, value in mpl.rcParamsDefault.items() if "backend" not in key}
