"""A chart of lines: figures of peers over a number of items."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.plots.looks import DASHES, SHAPES, THICK, THIN, Look, looks_of
from bench.plots.picture import EDGE, WIDTH, Picture, cut, escaped, width
from bench.plots.places import APART, Band, spread
from bench.plots.scales import Axis, Scale, number, scale_of

#: Pixels of the area of the lines, at least.
HEIGHT = 300

#: Pixels from a label of the axis upwards to the next one, at least.
ROW = 28

#: Pixels before the area of the lines, at least: half of the first label of the axis across stands there.
LEFT = 48

#: Pixels from the end of a line to its label, and to the mark before that.
LEAD, MARK = 36, 26

#: Pixels above and below a label that lines should not cross.
CLEAR = 3

#: The most points of a line that get marks; of a longer one only the last does.
MARKED = 24

#: The most points of a chart: with more the file would be larger than 30 kB.
POINTS = 1000

#: A place in the picture, in pixels.
Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Attributes:
        name: of the peer.
        points: x and y of each; they are drawn by rising x.
        ours: whether it is this library's.
    """

    name: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    """A series with its places."""

    series: Series
    look: Look
    places: tuple[Place, ...]

    @property
    def end(self) -> Place:
        return self.places[-1]

    @property
    def name(self) -> str:
        return cut(self.series.name)


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return a chart of lines as SVG; each line has its name at its end.

    Args:
        title: of the chart.
        x: the axis across.
        y: the axis upwards.
        series: at least one, each with at least one point.

    Raises:
        ValueError: there is no series; one has no points, or there are too many in all; a point is not finite, or not
            over 0 on a logarithmic axis.
    """
    _check(title, series)
    columns, values = ([point[place] for each in series for point in each.points] for place in (0, 1))
    picture = Picture(title, _description(x, y, series))
    top = picture.top + 32
    bottom = top + max(HEIGHT, APART * len(series))
    high = scale_of(y, values, bottom, top, lambda _: ROW)
    left = max(LEFT, EDGE + max(width(number(tick)) for tick in high.ticks) + 6)
    right = WIDTH - EDGE - LEAD - max(width(cut(each.name)) for each in series)
    wide = scale_of(x, columns, left, right, lambda label: width(label) + 16)
    _draw_axes(picture, x, y, wide, high)
    looks = looks_of({each.name: each.ours for each in series})
    drawn = [
        _Line(
            each,
            looks[each.name],
            tuple((wide.place(at), high.place(value)) for at, value in sorted(each.points)),
        )
        for each in sorted(series, key=lambda each: each.ours)
    ]
    _draw_lines(picture, drawn)
    _draw_names(picture, drawn, (top, bottom))
    return picture.done(bottom + 52)


def _check(title: str, series: Sequence[Series]) -> None:
    if not series:
        raise ValueError(f"no series for {title!r}: give at least one, or draw no chart")
    for each in series:
        if not each.points:
            raise ValueError(f"{each.name!r} has no points: give at least one, or leave the series out")
    if (points := sum(len(each.points) for each in series)) > POINTS:
        raise ValueError(f"{title!r} has {points:,} points: give at most {POINTS:,}, such as every tenth")


def _description(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    parts = [f"{y.label}, by {x.label}."]
    for each in series:
        ends = dict.fromkeys((min(each.points), max(each.points)))
        told = ", ".join(f"{number(value)} at {number(at)}" for at, value in ends)
        parts.append(f"{each.name}: {told}.")
    return " ".join(parts)


def _draw_axes(picture: Picture, x: Axis, y: Axis, wide: Scale, high: Scale) -> None:
    left, right, top, bottom = wide.start, wide.end, high.end, high.start
    picture.text(EDGE, picture.top + 14, y.label, "soft")
    for value in high.ticks:
        row = high.place(value)
        picture.path(((left, row), (right, row)), "grid")
        picture.text(left - 6, row + 4.5, number(value), "soft end")
    for value in wide.ticks:
        column = wide.place(value)
        picture.path(((column, top), (column, bottom)), "grid")
        picture.text(column, bottom + 18, number(value), "soft middle")
    picture.path(((left, bottom), (right, bottom)), "axis")
    picture.text((left + right) / 2, bottom + 39, x.label, "soft middle")


def _draw_lines(picture: Picture, drawn: Sequence[_Line]) -> None:
    for look in dict.fromkeys(line.look for line in drawn):
        picture.put(
            f'<marker id="{look.kind}-{look.place}" viewBox="-6 -6 12 12" markerWidth="12" markerHeight="12" '
            f'markerUnits="userSpaceOnUse"><path class="mark {look.kind}" d="{SHAPES[look.place]}"/></marker>'
        )
    for line in drawn:
        look = line.look
        marks = ("start", "mid", "end") if len(line.places) <= MARKED else ("end",)
        more = "".join(f' marker-{each}="url(#{look.kind}-{look.place})"' for each in marks)
        thick = line.series.ours
        if dashes := " ".join(f"{(THICK if thick else THIN) * dash:g}" for dash in DASHES[look.place]):
            more += f' stroke-dasharray="{dashes}"'
        picture.put(f"<g><title>{escaped(line.series.name)}</title>")
        picture.path(line.places, f"line {look.kind}{' thick' if thick else ''}", more)
        picture.put("</g>")


def _draw_names(picture: Picture, drawn: Sequence[_Line], room: Band) -> None:
    written: list[tuple[float, Band]] = []  # where each name ends, and its rows
    ordered = sorted(drawn, key=lambda line: (_column(line), line.end[1], line.name))
    for at, group in itertools.groupby(ordered, _column):
        ending = list(group)
        right = at + LEAD + max(width(line.name) for line in ending)
        crossing = [(high - CLEAR, low + CLEAR) for line in drawn for high, low in _rows(line.places, at + MARK, right)]
        near = [rows for end, rows in written if end > at]
        for line, row in zip(ending, spread([line.end[1] for line in ending], room, crossing, near), strict=True):
            kind = line.look.kind
            picture.path(((line.end[0] + 5, line.end[1]), (at + 15, row), (at + MARK, row)), f"lead {kind}")
            picture.mark((at + MARK, row), SHAPES[line.look.place], kind)
            picture.text(at + LEAD, row + 4.5, line.name, f"halo{' strong' if line.series.ours else ''}")
            written.append((at + LEAD + width(line.name), (row - APART / 2, row + APART / 2)))


def _column(line: _Line) -> int:
    return round(line.end[0])


def _rows(places: Iterable[Place], left: float, right: float) -> list[Band]:
    """Return the rows that a line takes between two columns; none if it is not there."""
    rows: list[float] = []
    for (x, y), (next_x, next_y) in itertools.pairwise(places):
        if x < right and next_x > left:
            rows += (y + (next_y - y) * (min(max(at, x), next_x) - x) / (next_x - x) for at in (left, right))
    return [(min(rows), max(rows))] if rows else []
