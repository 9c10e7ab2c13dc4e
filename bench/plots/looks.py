"""The colours and shapes of peers: the same in every chart.

Kinds of peers have colours, which differ for colour-blind readers too; the peers of a kind have shapes and dashes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

#: The kinds of peers: the colour on a light ground, and on a dark one.
COLOURS = {
    "ours": ("#c2410c", "#ff8a4c"),
    "setbit": ("#0b62a8", "#6cb6ff"),
    "bloom": ("#8a3fa0", "#d39ae6"),
    "sets": ("#0f766e", "#4fd1c5"),
    "process": ("#8a6d00", "#e3c341"),
    "programs": ("#374151", "#cbd5e1"),
    "other": ("#6b7280", "#9ca3af"),
}

#: Of the chart itself: its ground, its words, its fine words, its grid.
GROUND, INK, SOFT, GRID = ("#f7f8fa", "#1a1d21"), ("#1f2933", "#e4e7eb"), ("#52606d", "#a8b3bf"), ("#d5dae0", "#3a4149")

#: The marks of points, as paths around 0, 0.
SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3-3h6v6h-6z",
    "M0-4L4 3H-4z",
    "M0-4.5L4.5 0L0 4.5L-4.5 0z",
    "M0 4L4-3H-4z",
    "M-1.2-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
)

#: The dashes of lines; "" is a whole line.
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 2 2 2 2", "12 4")

#: The kind of each peer, and its place there.
PEERS = {
    "blocked": ("ours", 0),
    "classic": ("ours", 1),
    "near cache": ("ours", 2),
    "SETBIT in Lua": ("setbit", 0),
    "SETBIT pipeline": ("setbit", 1),
    "BF.MADD": ("bloom", 0),
    "BF.ADD": ("bloom", 1),
    "BF scaling": ("bloom", 2),
    "SADD": ("sets", 0),
    "SADD, digests": ("sets", 1),
    "scrapy-redis": ("sets", 2),
    "rbloom": ("process", 0),
    "pybloom-live": ("process", 1),
    "awk": ("programs", 0),
    "sort -u": ("programs", 1),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a peer is drawn.

    Attributes:
        kind: of ``COLOURS``.
        place: of ``SHAPES`` and ``DASHES``.
    """

    kind: str
    place: int


def look_of(name: str, *, ours: bool) -> Look:
    """Return the look of a peer, which depends on nothing but what is given here.

    A name that begins with that of a peer has its colour: ``blocked, rolling``. Any other one has the colour of ours or
    of others.
    """
    if name in PEERS:
        return Look(*PEERS[name])
    place = zlib.crc32(name.encode()) % len(SHAPES)
    begins = max((peer for peer in PEERS if name.startswith(peer)), key=len, default="")
    if begins:
        return Look(PEERS[begins][0], place)
    return Look("ours" if ours else "other", place)


def style() -> str:
    """Return the style sheet of all charts: light, and dark where the reader wants it."""
    light, dark = (_colours(scheme) for scheme in (0, 1))
    return f"{_SHAPES_OF_TEXT}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


_SHAPES_OF_TEXT = """text { font: 12.5px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.title { font-size: 16px; font-weight: 600; }
.strong { font-weight: 600; }
.line { fill: none; stroke: currentColor; stroke-width: 1.5; stroke-linejoin: round; }
.thick { stroke-width: 3; }
.lead { fill: none; stroke: currentColor; stroke-width: 1; opacity: .55; }
.mark { fill: currentColor; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
"""


def _colours(scheme: int) -> str:
    rules = [
        f".ground {{ fill: {GROUND[scheme]}; }}",
        f"text {{ fill: {INK[scheme]}; }}",
        f".soft {{ fill: {SOFT[scheme]}; }}",
        f".halo {{ stroke: {GROUND[scheme]}; stroke-width: 3; paint-order: stroke; stroke-linejoin: round; }}",
        f".grid {{ fill: none; stroke: {GRID[scheme]}; }}",
        f".axis {{ fill: none; stroke: {SOFT[scheme]}; }}",
    ]
    rules += [f".{kind} {{ color: {colours[scheme]}; }}" for kind, colours in COLOURS.items()]
    return "".join(f"{rule}\n" for rule in rules)
