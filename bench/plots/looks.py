"""The colours and shapes of peers: the same in every chart.

Kinds of peers have colours, which differ for colour-blind readers too; the peers of a kind have shapes and dashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The kinds of peers: the colour on a light ground, and on a dark one. They were searched for: any two of one ground
#: are at least 0.12 apart in OKLab, for readers of full sight and (by Machado's matrices) for colour-blind ones.
COLOURS = {
    "ours": ("#b20600", "#fd6306"),
    "setbit": ("#1f94ec", "#81cbfd"),
    "bloom": ("#8920b6", "#b869f9"),
    "sets": ("#085e61", "#53a497"),
    "process": ("#c08408", "#fac745"),
    "programs": ("#1e2327", "#f0f6fb"),
    "other": ("#7a7f84", "#63686d"),
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

#: The dashes of lines, in widths of the line; a line without any is whole.
DASHES: tuple[tuple[int, ...], ...] = ((), (5, 2), (1, 2), (6, 2, 1, 2), (3, 1, 1, 1, 1, 1), (9, 3))

#: The widths of lines, in pixels: of peers, and of ours.
THIN, THICK = 1.5, 3.0

#: The kind of each peer of ``bench.peers``, and its place there.
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


def looks_of(names: Mapping[str, bool]) -> dict[str, Look]:
    """Return the look of each peer of a chart.

    A peer of ``PEERS`` looks the same in every chart. A name that only begins with that of a peer has its kind:
    ``blocked, rolling``; any other one is of kind ``ours`` or ``other``. Those get the places that are free, so that
    looks differ within a chart unless a kind has more than all places.

    Args:
        names: of the peers, and whether each is ours.
    """
    found = {name: Look(*PEERS[name]) for name in names if name in PEERS}
    for name, ours in names.items():
        if name not in found:
            begins = (kind for peer, (kind, _) in PEERS.items() if name.startswith(peer))
            kind = next(begins, "ours" if ours else "other")
            free = (place for place in range(len(SHAPES)) if Look(kind, place) not in found.values())
            found[name] = Look(kind, next(free, len(found) % len(SHAPES)))
    return found


def style() -> str:
    """Return the style sheet of all charts: light, and dark where the reader wants it."""
    light, dark = (_colours(scheme) for scheme in (0, 1))
    return f"{_PLAIN}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


_PLAIN = f"""text {{ font: 12.5px system-ui, sans-serif; font-variant-numeric: tabular-nums; }}
.title {{ font-size: 16px; font-weight: 600; }}
.strong {{ font-weight: 600; }}
.line {{ fill: none; stroke: currentColor; stroke-width: {THIN}; stroke-linejoin: round; }}
.thick {{ stroke-width: {THICK}; }}
.lead {{ fill: none; stroke: currentColor; stroke-width: 1; opacity: .55; }}
.mark {{ fill: currentColor; }}
.end {{ text-anchor: end; }}
.middle {{ text-anchor: middle; }}
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
