"""The claims that a run has to show, each with its figure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import truediv
from typing import Any

Row = Mapping[str, Any]

#: A function that finds a figure in a section's results; it raises LookupError where there is none.
Finder = Callable[[Row], float]

HUNDRED_MILLION = 100_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    Attributes:
        text: of what.
        limit: the figure is at most so much, or at least if ``least``.
        least: which of both.
        measured: the figure; None: that was not measured.
        reason: why it is not kept, if it is not.
        section: whose results have the figure.
    """

    text: str
    limit: float
    least: bool
    measured: float | None
    reason: str = ""
    section: str = ""

    @property
    def asked(self) -> str:
        """The limit as text."""
        return f"at {'least' if self.least else 'most'} {self.limit:,.4g}"

    @property
    def kept(self) -> bool | None:
        """Whether it is kept; None: that was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.least else self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """Whether it is kept, as text."""
        if self.kept is None:
            return "not measured"
        return "yes" if self.kept else f"no{f': {self.reason}' if self.reason else ''}"


def _row(rows: Iterable[Row], **wanted: object) -> Row:
    """Return the row with such values.

    Raises:
        LookupError: there is none.
    """
    for each in rows:
        if all(each[key] == value for key, value in wanted.items()):
            return each
    raise LookupError(f"no row of {wanted}")


def _ratio(figure: Callable[[Row], float], ours: str, theirs: str, **wanted: object) -> Finder:
    """Find a ratio of a layout's figure to a peer's."""
    return lambda found: truediv(*(figure(_row(found["cells"], peer=peer, **wanted)) for peer in (ours, theirs)))


_server = partial(_ratio, lambda each: each["server"]["value"])
_rate = partial(_ratio, lambda each: each["items_a_second"])


def _filter(figure: Callable[[Row], float], layout: str = "blocked") -> Finder:
    """Find a figure of the filter of 100 million items."""
    return lambda found: figure(_row(found["filters"], peer=layout, size=HUNDRED_MILLION))


def _false_positives(layout: str) -> Finder:
    """Find the error rate of the filter of 100 million items, to the asked one."""
    rate = _filter(lambda row: row["false_positives"] / row["asked"], layout)
    return lambda found: rate(found) / float(found["settings"]["error_rate"])


#: A rate of 1e-4 of 20 million has a standard deviation of 2.2 %: two of them are chance.
CHANCE = 1 + 2 / math.sqrt(20_000_000 * 1e-4)

COMPILED = "BF.MADD is compiled; this library's Lua takes longer of the server than its whole call"
RECORDED = "the script records each call, and its items and answers pass through Lua"
ROUNDED = "the bitmaps have 290.6 MB, and Redis's allocator rounds each of the 18 up to 16.8 MB"
SLICES = "a new item is looked for in the block of each live slice"


def _goals() -> Iterator[tuple[str, str, float, bool, Finder, str]]:
    """Yield section, text, limit, whether it is a least one, the finder, and the reason why it may not be kept."""
    for server, name, limits in (("redis", "Redis", (0.30, 0.20)), ("valkey", "Valkey", (0.36, 0.24))):
        for mix, limit in zip(("new", "seen"), limits, strict=True):
            find = _server("blocked", "SETBIT in Lua", server_name=server, mix=mix)
            text = f"blocked to the script of SETBITs, server time, {mix}, {name}"
            yield "script", text, limit, False, find, ""
    for mix in ("new", "seen"):
        find = _rate("blocked", "SETBIT pipeline", mix=mix, batch=500)
        yield "calls", f"blocked to the client's pipeline, items/s, {mix}, 500 a call", 20, True, find, ""
    to_madd = (("new", 0.32), ("seen", 0.55))
    for batch, (mix, limit) in itertools.product((5000, 500), to_madd):
        find = _rate("blocked", "BF.MADD", size=HUNDRED_MILLION, mix=mix, batch=batch)
        text = f"blocked to BF.MADD, items/s, {mix}, {batch:,} a call, 100 million items"
        yield "sizes", text, limit, True, find, COMPILED
    for mix, limit in to_madd:
        find = _rate("blocked", "BF.MADD, plain", mix=mix, batch=5000)
        text = f"blocked to BF.MADD by redis-py without hiredis, items/s, {mix}, 5,000 a call, for 100 million items"
        yield "drivers", text, limit, True, find, ""
    for batch, mix, limit in ((5000, "new", 0.75), (5000, "seen", 0.75), (500, "new", 0.6), (500, "seen", 0.75)):
        find = _rate("redisbloom", "BF.MADD", size=HUNDRED_MILLION, mix=mix, batch=batch)
        text = f"redisbloom to BF.MADD, items/s, {mix}, {batch:,} a call, 100 million items"
        yield "sizes", text, limit, True, find, RECORDED
    lost = _filter(lambda row: float(row["false_negatives"]), "redisbloom")
    yield "sizes", "redisbloom: false negatives of 100 million", 0, False, lost, ""
    rate = "redisbloom: false positives of 20 million, to the asked rate"
    yield "sizes", rate, CHANCE, False, _false_positives("redisbloom"), ""
    lost, memory = _filter(lambda row: float(row["false_negatives"])), _filter(lambda row: row["memory"] / 1e6)
    yield "sizes", "false negatives of 100 million", 0, False, lost, ""
    yield "sizes", "false positives of 20 million, to the asked rate", CHANCE, False, _false_positives("blocked"), ""
    yield "sizes", "memory of 100 million, MB", 290, False, memory, ROUNDED
    for name, text, limit, reason in (
        ("rolling", "rolling", 2, "it looks in two bitmaps"),
        ("ring of 7", "a ring of 7", 5, SLICES),
    ):
        find = _server(name, "forever", mix="new")
        yield "retentions", f"{text} to forever, server time, new", limit, False, find, reason


def judged(sections: Mapping[str, Row]) -> list[Claim]:
    """Return all claims, with the figures that there are."""
    claims = []
    for section, text, limit, least, find, reason in _goals():
        try:
            measured = find(sections[section])
        except LookupError:
            measured = None
        claims.append(Claim(text, limit, least, measured, reason, section))
    return claims
