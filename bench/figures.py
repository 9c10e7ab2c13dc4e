"""Chooses the charts of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from bench.plots import Axis, Bar, Series, bars, lines, number, panels
from bench.sections import retentions
from bench.tables import UNSURE, grouped, quoted, rate

Row = Mapping[str, Any]

#: Draws a chart, and returns its text.
Draw = Callable[[], str]

#: The peers that are this library's.
OURS = ("blocked", "classic", "redisbloom", "near cache", *retentions.SETTINGS)

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
    "calls": (("mix", "batch"), "{}, {:,} a call", "items/s", rate),
    "clients": (("mix", "batch", "clients"), "{}, {:,} a call, {} clients", "items/s", rate),
    "retentions": (("mix",), "Retentions, {}: the server's time an item", "µs", itemgetter("server")),
}

ITEMS = Axis("items in the filter", "", log=True)


#: The charts over sizes by their names: the axis of the figures, and what finds the figure in a row; None: it has none.
Subjects = dict[str, tuple[Axis, Callable[[Row], float | None]]]

#: Those of cells.
OF_CELLS: Subjects = {
    "rate": (Axis("Items a second", "items/s", log=True), lambda cell: cell["items_a_second"]),
    "server": (Axis("Server time an item", "µs", log=True), lambda cell: cell["server"]["value"] or None),
    "client": (Axis("Client time an item", "µs", log=True), lambda cell: cell["client"]["value"] or None),
    "wire": (
        Axis("Bytes on the wire an item", "bytes", log=True),
        lambda cell: (cell["received"] + cell["sent"]) or None,
    ),
    "longest": (Axis("Longest command", "µs", log=True), lambda cell: cell["longest"] or None),
}

#: Those of whole filters.
OF_FILTERS: Subjects = {
    "memory": (Axis("Memory an item", "bytes", log=True), lambda row: row["memory"] and row["memory"] / row["size"]),
    "file": (Axis("Append-only file an item", "bytes", log=True), lambda row: row["appended"] or None),
    "false-positives": (Axis("False positives", "of 10,000"), lambda row: 1e4 * row["false_positives"] / row["asked"]),
}

#: Percentiles of calls with one item.
OF_CALLS: Subjects = {
    name: (Axis(f"{title} of a call", "µs", log=True), itemgetter(name))
    for name, title in {"p50": "p50", "p99": "p99", "p999": "p99.9"}.items()
}


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


def _bars(title: str, unit: str, cells: Sequence[Row], figure: Callable[[Row], Row]) -> Draw:
    """Return a chart without the near cache: no other peer has one, and its section compares it."""
    shown = [
        Bar(each["peer"], best["value"], sure=best["converged"], ours=each["peer"] in OURS)
        for each, best in ((each, figure(each)) for each in cells)
        if each["peer"] != "near cache"
    ]
    return partial(bars, title, unit, shown)


def _sizes(found: Row) -> dict[str, Draw]:
    drawn: dict[str, Draw] = {}
    for (mix, batch), cells in grouped(found["cells"], "mix", "batch").items():
        subjects = OF_CELLS | (OF_CALLS if batch == 1 else {})
        drawn |= _lines(subjects, f"-{mix}-{batch}", f": {mix}, {batch:,} a call", cells)
    return drawn | _lines(OF_FILTERS, "", "", found["filters"]) | _filling(found)


def _lines(subjects: Subjects, name: str, title: str, rows: Sequence[Row]) -> dict[str, Draw]:
    """Return charts over sizes of the peers that have such a figure; none if no peer has."""
    drawn: dict[str, Draw] = {}
    for subject, (axis, value) in subjects.items():
        series = []
        for (peer,), some in grouped(rows, "peer").items():
            points = [(float(row["size"]), float(found)) for row in some if (found := value(row)) is not None]
            series += [Series(peer, points, ours=peer in OURS)] if points else []
        if series:
            drawn[f"sizes-{subject}{name}"] = partial(lines, f"{axis.title}{title}", ITEMS, axis, series)
    return drawn


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
