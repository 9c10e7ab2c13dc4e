"""Chooses the charts of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.plots import Axis, Bar, Series, bars, lines, number, panels
from bench.tables import UNSURE, grouped, quoted

Row = Mapping[str, Any]

#: Draws a chart, and returns its text.
Draw = Callable[[], str]

#: The peers that are this library's.
OURS = (
    "blocked",
    "classic",
    "redisbloom",
    "near cache",
    "forever",
    "growing",
    "rolling",
    "ring of 7",
    "ring of 7, writes all",
)

#: The chart of README: its titles, with the tables and columns of RESULTS.md; and its peers, with their names there.
OVERVIEW = "overview"
SHOWN = (("bytes a URI", "1,000,000 items", "bytes an item"), ("new URIs a second", "new, 500 a call", "items/s"))
BESIDE = (
    ("urifilter-redis", "blocked"),
    ("layout redisbloom", "redisbloom"),
    ("Redis set: SADD", "SADD"),
    ("script of SETBITs", "SETBIT in Lua"),
    ("module RedisBloom", "BF.MADD"),
)

#: Charts of bars by their sections: a chart for each value of some keys, its title, its unit and its figure.
BARS = {
    "calls": (("mix", "batch"), "{}, {:,} a call", "items/s", "rate"),
    "clients": (("mix", "batch", "clients"), "{}, {:,} a call, {} clients", "items/s", "rate"),
    "retentions": (("mix",), "Retentions, {}: the server's time an item", "µs", "server"),
}

ITEMS = Axis("items in the filter", "", log=True)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a chart over sizes.

    Attributes:
        name: of its file.
        title: of the axis.
        unit: of the figures.
        value: finds the figure in a row; None: there is none.
        log: whether the axis is logarithmic.
    """

    name: str
    title: str
    unit: str
    value: Callable[[Row], float | None]
    log: bool = True


#: Those of cells.
OF_CELLS = (
    Subject("rate", "Items a second", "items/s", lambda cell: cell["items_a_second"]),
    Subject("server", "Server time an item", "µs", lambda cell: cell["server"]["value"] or None),
    Subject("client", "Client time an item", "µs", lambda cell: cell["client"]["value"] or None),
    Subject("wire", "Bytes on the wire an item", "bytes", lambda cell: (cell["received"] + cell["sent"]) or None),
    Subject("longest", "Longest command", "µs", lambda cell: cell["longest"] or None),
)

#: Those of whole filters.
OF_FILTERS = (
    Subject("memory", "Memory an item", "bytes", lambda row: row["memory"] and row["memory"] / row["size"]),
    Subject("file", "Append-only file an item", "bytes", lambda row: row["appended"] or None),
    Subject(
        "false-positives",
        "False positives",
        "of 10,000",
        lambda row: 1e4 * row["false_positives"] / row["asked"],
        log=False,
    ),
)

#: Percentiles of calls with one item.
OF_CALLS = (
    Subject("p50", "p50 of a call", "µs", lambda cell: cell["p50"]),
    Subject("p99", "p99 of a call", "µs", lambda cell: cell["p99"]),
    Subject("p999", "p99.9 of a call", "µs", lambda cell: cell["p999"]),
)


def figures(sections: Mapping[str, Row]) -> dict[str, Draw]:
    """Return what draws each chart of the results, by the name of its file."""
    drawn: dict[str, Draw] = {}
    for section, (keys, title, unit, figure) in BARS.items():
        for values, cells in grouped(sections.get(section, {"cells": []})["cells"], *keys).items():
            name = "-".join(map(str, (section, *values)))
            drawn[name] = _bars(title.format(*values), unit, cells, figure)
    return drawn | (_sizes(sections["sizes"]) if "sizes" in sections else {})


def overview(page: str) -> str:
    """Draw the chart of README, from RESULTS.md.

    Raises:
        KeyError: the page has not all of its figures.
    """
    there = quoted(page)
    values = [
        [_quoted_bar(name, there[table, peer, column], ours=peer in OURS) for name, peer in BESIDE]
        for _, table, column in SHOWN
    ]
    return panels([title for title, *_ in SHOWN], values)


def _quoted_bar(name: str, figure: str, *, ours: bool) -> Bar:
    value = float(figure.removesuffix(UNSURE).replace(",", ""))
    return Bar(name, value, sure=not figure.endswith(UNSURE), ours=ours)


def _bars(title: str, unit: str, cells: Sequence[Row], key: str) -> Draw:
    """Return a chart without the near cache: no other peer has one, and its section compares it."""
    shown = [
        Bar(each["peer"], *_value(each, key), ours=each["peer"] in OURS)
        for each in cells
        if each["peer"] != "near cache"
    ]
    return partial(bars, title, unit, shown)


def _value(cell: Row, key: str) -> tuple[float, bool]:
    if key == "rate":
        return cell["items_a_second"], cell["wall"]["converged"]
    return cell[key]["value"], cell[key]["converged"]


def _sizes(found: Row) -> dict[str, Draw]:
    drawn: dict[str, Draw] = {}
    for (mix, batch), cells in grouped(found["cells"], "mix", "batch").items():
        for subject in (*OF_CELLS, *(OF_CALLS if batch == 1 else ())):
            drawn |= _lines(subject, f"-{mix}-{batch}", f": {mix}, {batch:,} a call", cells)
    for subject in OF_FILTERS:
        drawn |= _lines(subject, "", "", found["filters"])
    return drawn | _filling(found)


def _lines(subject: Subject, name: str, title: str, rows: Sequence[Row]) -> dict[str, Draw]:
    """Return a chart over sizes of the peers that have such a figure; none if no peer has."""
    series = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        points = [(row["size"], subject.value(row)) for row in rows if row["peer"] == peer]
        if known := [(float(size), float(each)) for size, each in points if each is not None]:
            series.append(Series(peer, known, ours=peer in OURS))
    axis = Axis(subject.title, subject.unit, log=subject.log)
    return (
        {f"sizes-{subject.name}{name}": partial(lines, f"{subject.title}{title}", ITEMS, axis, series)}
        if series
        else {}
    )


def _filling(found: Row) -> dict[str, Draw]:
    """Return the rate of filling the largest filters, over the items that are in."""
    largest = max((row["size"] for row in found["filters"]), default=0)
    series = [
        Series(row["peer"], [(items, rate) for items, rate in row["filling"]["rates"]], ours=row["peer"] in OURS)
        for row in found["filters"]
        if row["size"] == largest
    ]
    title = f"Filling a filter for {number(largest)} items"
    axes = Axis("items put in", ""), Axis("items a second of two processes", "", log=True)
    return {"sizes-filling": partial(lines, title, *axes, series)} if series else {}
