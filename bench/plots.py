"""Charts of the bench as the text of SVG files: ``lines`` has figures over numbers of items; others compare peers.

They are drawn by matplotlib, of the extra ``bench``. Equal input makes equal text.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.peers import ALL
from bench.tables import UNSURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

#: Whether charts can be drawn.
AVAILABLE = find_spec("matplotlib") is not None

#: Inches. A telephone shows a chart half as wide, and its text can still be read.
WIDTH, HEIGHT, BAR, AROUND_BARS, AROUND_PANELS = 6.0, 4.8, 0.25, 1.0, 0.6

#: The colours of bars: of this library's, which is that of its page (red would look like an error), and of others.
OURS, OTHERS = "#0b6a75", "#7a9cc6"

#: The colours of lines (M. Okabe, K. Ito), which colour-blind readers tell apart, and the marks of their points. Their
#: numbers have no common factor, so each of the first 56 peers has a pair of its own, in every chart the same.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9", "#b3a300")
MARKS = "os^Dv*X"

#: Text stays text, names are no formulas, and ids are the same in each run.
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bench", "text.parse_math": False, "axes.titleweight": "bold"}


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: of what.
        unit: in which it is counted; "" for a mere number.
        log: whether equal steps are equal ratios; then all values have to be over 0.
    """

    title: str
    unit: str
    log: bool = False

    @property
    def label(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Series:
    """A line: the name of a peer, x and y of its points, and whether it is this library's."""

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """The figure of a peer: its name, 0 or more, whether the fastest tries agree, and whether it is this library's."""

    name: str
    value: float
    sure: bool = True
    ours: bool = False


def number(value: float) -> str:
    """Write a number with at most three digits that are not 0: ``0.0125``, ``229,000``, ``1.23 million``."""
    rounded = float(f"{value:.3g}")
    size, name = (1e6, " million") if abs(rounded) >= 1e6 else (1, "")  # noqa: PLR2004 - as it says
    return f"{rounded / size:,.10f}".rstrip("0").rstrip(".") + name


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return a chart of lines as SVG; the legend has them in the order of their ends, the highest first."""
    figure, axes = _chart(title, HEIGHT)
    names = [*ALL, *(each.name for each in series)]
    for each in sorted(series, key=lambda each: -max(each.points)[1]):
        look = names.index(each.name)
        axes.plot(
            *zip(*sorted(each.points), strict=True),
            label=each.name,
            color=COLOURS[look % len(COLOURS)],
            marker=MARKS[look % len(MARKS)],
            linewidth=3 if each.ours else 1.5,
            zorder=3 if each.ours else 2,
        )
    for axis, of, name in ((axes.xaxis, x, "x"), (axes.yaxis, y, "y")):
        axes.set(**{f"{name}scale": "log" if of.log else "linear", f"{name}label": of.label})
        axis.set_major_formatter(lambda value, _: number(value))
        if of.log:
            _label_minor_ticks(axis)
    if not y.log:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.4)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return _svg(figure)


def bars(title: str, unit: str, values: Sequence[Bar]) -> str:
    """Return a chart of horizontal bars as SVG, the longest one first."""
    figure, axes = _chart(title, AROUND_BARS + BAR * len(values))
    _draw(axes, sorted(values, key=lambda bar: (-bar.value, bar.name)))
    axes.set_xlabel(unit if all(bar.sure for bar in values) else f"{unit} ({UNSURE} the fastest tries do not agree)")
    return _svg(figure)


def panels(titles: Sequence[str], values: Sequence[Sequence[Bar]]) -> str:
    """Return charts of horizontal bars side by side as SVG; all have the same names, in the given order."""
    figure, *charts = _chart("", AROUND_PANELS + BAR * len(values[0]), len(titles))
    for axes, title, some in zip(charts, titles, values, strict=True):
        axes.set_title(title, loc="left")
        axes.tick_params(left=False, labelleft=axes is charts[0])
        _draw(axes, some)
    return _svg(figure)


def _label_minor_ticks(axis: XAxis | YAxis) -> None:
    """Write numbers where matplotlib would write powers of ten: at some minor ticks of an axis of few decades."""
    from matplotlib.ticker import LogFormatter

    class Numbers(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return number(x) if super().__call__(x, pos) else ""

    axis.set_minor_formatter(Numbers())


def _draw(axes: Axes, values: Sequence[Bar]) -> None:
    colours = [OURS if bar.ours else OTHERS for bar in values]
    drawn = axes.barh([bar.name for bar in values], [bar.value for bar in values], color=colours)
    axes.bar_label(drawn, [f"{number(bar.value)}{'' if bar.sure else f' {UNSURE}'}" for bar in values], padding=4)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.margins(x=0.25)


def _chart(title: str, height: float, parts: int = 1) -> tuple[Figure, *tuple[Axes, ...]]:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams.update(SETTINGS)
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="#f7f8fa")
    charts = figure.subplots(1, parts, squeeze=False)[0]
    for axes in charts:
        axes.set_facecolor("none")
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    return figure, *charts


def _svg(figure: Figure) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
