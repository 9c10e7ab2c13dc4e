"""Filters of 100,000 to 100 million items, filled for real."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.crowd import Crowd, shared
from bench.filling import Filler
from bench.peers import chosen
from bench.sections import MIXES, Row, Say, Settings
from bench.sections.persistence import appended, appending
from bench.stand import Stand, stand
from bench.streams import ROOM, Try, Uris
from bench.tables import Column, cells_table, figure, grouped, table

TITLE = "Full filters"
ABOUT = (
    "Each filter is made for so many items, and they are put in: by two processes if it is on the server, in calls of"
    " 5,000 items or as many as the peer takes (a script of SETBITs: 1,000). Calls are measured while the last few go"
    " in. Then all are asked for again, of peers a sample, and others that nobody has put in."
    " Peers with under 100,000 items a second, those that keep whole items, and those in one process stop at a million"
    " items: their fillings would take hours, or all of the memory."
)
QUOTED = (
    "1,000,000 items",
    "100,000,000 items",
    "100,000,000 items: new, 5,000 a call",
    "100,000,000 items: seen, 5,000 a call",
)

#: What goes on beyond a million items.
LARGE = ("blocked", "redisbloom", "BF.MADD")
MOST_OF_OTHERS = 1_000_000

#: This library's layouts that are asked about all items, and about most others.
OURS = ("blocked", "redisbloom")

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Size:
    """What is done with the filters of one size.

    Attributes:
        items: that each filter is made for.
        batches: the items of one call, with those of one try.
        tries: the most tries.
        pieces: the parts of the filling whose rates are told.
        append: items that are put in while the server writes a file.
        unseen: how many others the peers are asked about; ``ours`` so many of this library.
        sample: how many of all items the peers are asked about.
    """

    items: int
    batches: Mapping[int, int]
    tries: int
    pieces: int
    append: int
    unseen: int
    ours: int
    sample: int

    @property
    def before(self) -> int:
        """The items that are put in before calls are measured."""
        return self.items - self.tries * sum(self.batches.values()) - self.append


def size_of(items: int, *, quick: bool) -> Size:
    """Return what is done with filters of a size.

    Raises:
        ValueError: no tries fit into it.
    """
    large = items > MOST_OF_OTHERS
    batches = {1: min(1000, items // 100), 500: min(5000, items // 50)}
    if items >= MOST_OF_OTHERS:
        batches[5000] = 5000
    made = Size(
        items=items,
        batches=batches,
        tries=4 if quick else 8,
        pieces=20 if large else 2,
        append=min(5000, items // 50),
        unseen=2_000_000 if large else min(300_000, items),
        ours=max(items // 5, 300_000) if large else min(300_000, items),
        sample=min(items, 100_000),
    )
    if batches[500] < 500:  # noqa: PLR2004 - a call of them
        raise ValueError(f"a filter for {items:,} items is too small to measure")
    return made


def parts(settings: Settings) -> list[Settings]:
    """Return settings of each size alone: every one stands in the results as soon as it is done."""
    return [replace(settings, sizes=(items,)) for items in settings.sizes]


def merged(old: Row, new: Row) -> Row:
    """Return new results, with those of other sizes that an older run of the same kind has."""
    if old["quick"] != new["quick"]:
        return new
    again = {size["items"] for size in new["settings"]["sizes"]}
    kept = [size for size in old["settings"]["sizes"] if size["items"] not in again]
    sizes = sorted([*kept, *new["settings"]["sizes"]], key=lambda size: size["items"])
    rows = {
        key: sorted([*(row for row in old[key] if row["size"] not in again), *new[key]], key=lambda row: row["size"])
        for key in ("cells", "filters")
    }
    several = {key: {**old[key], **new[key]} for key in ("versions", "left_out")} if kept else {}
    seconds = sum(size["seconds"] for size in sizes)
    return {**new, **rows, **several, "settings": {**new["settings"], "sizes": sizes}, "seconds": seconds}


def measure(settings: Settings, say: Say) -> Row:
    """Measure the filters of one size.

    Raises:
        ValueError: there are several: ``parts`` divides them.
    """
    (items,) = settings.sizes
    size, start = size_of(items, quick=settings.quick), time.monotonic()
    names = [name for name in settings.peers if name in LARGE or items <= MOST_OF_OTHERS]
    with stand(settings.server, chosen(names), items, settings.error_rate, lambda _: None) as here:
        with Crowd(PROCESSES, items, settings.error_rate, here.url) as crowd:
            bench = _Bench(size, settings, here, crowd, say)
            filters = bench.run()
        made = {"sizes": [asdict(size) | {"seconds": time.monotonic() - start}], "processes": PROCESSES}
        made |= {"rule": asdict(bench.rule), "error_rate": settings.error_rate}
        return here.found(made, bench.cells, filters)


class _Bench:
    """The filters of one size, on one server."""

    def __init__(self, size: Size, settings: Settings, here: Stand, crowd: Crowd, say: Say) -> None:
        self.size, self.settings, self.client, self.peers, self.say = size, settings, here.client, here.peers, say
        self.here, self.filler, self.cells = here, Filler(crowd, here.counters), list[Row]()
        self.rule = replace(settings.rule, tries=min(size.tries, settings.rule.tries))

    def run(self) -> list[Row]:
        """Return the figures of the filters; ``cells`` has those of calls."""
        size = self.size
        filled = {}
        for name, peer in self.peers.items():
            filled[name] = self.filler.fill(peer, size.before, size.pieces)
            self.say(f"{size.items:,}: {name} is full, {filled[name]['rates'][-1][1]:,.0f} items/s at the end")
        kinds = [(mix, *batch) for mix in MIXES for batch in size.batches.items()]
        settings = replace(self.settings, rule=self.rule)
        self.cells = self.here.race(kinds, settings, self.say, known=size.before, size=size.items)
        memory = {name: peer.memory() for name, peer in self.peers.items()}
        bytes_ = self._append()
        return [
            {"peer": name, "size": size.items, "memory": memory[name], "appended": bytes_.get(name)}
            | {"filling": filled[name]}
            | self._answers(name, filled[name]["items"])
            for name in self.peers
        ]

    def _append(self) -> dict[str, float]:
        """Return bytes an item of the append-only file, for the peers of the server."""
        given = Try(tuple(Uris(range(self.size.before, self.size.before + self.size.append))), self.size.append)
        with appending(self.client):
            return {
                name: appended(self.client, peer, given, min(500, peer.batches[-1]))
                for name, peer in self.peers.items()
                if shared(name)
            }

    def _answers(self, name: str, first: int) -> dict[str, object]:
        """Fill up the filter of a peer, and count its false answers."""
        size, peer = self.size, self.peers[name]
        put = size.before + sum(cell["new_items"] for cell in self.cells if cell["peer"] == name)
        put += size.append if shared(name) else 0
        self.filler.do(peer, "insert", range(ROOM // 2, ROOM // 2 + size.items - put))
        asked = size.ours if name in OURS else size.unseen
        known = range(0, first, 1 if name in OURS else max(1, first // size.sample))
        wrong, lost = self.filler.false_positives(peer, asked), self.filler.false_negatives(peer, known)
        self.say(f"{size.items:,}: {name}, {wrong:,} false positives of {asked:,}, {lost:,} false negatives")
        return {"asked": asked, "false_positives": wrong, "known": len(known), "false_negatives": lost}


def tables(found: Row) -> Iterator[str]:
    """Yield tables of each size: of the filters, and of each mix and batch."""
    for (size,), rows in grouped(found["filters"], "size").items():
        yield f"\n### {size:,} items\n"
        yield from table(_columns(found["settings"]["error_rate"], size), rows)
    for (size, mix, batch), cells in grouped(found["cells"], "size", "mix", "batch").items():
        yield f"\n### {size:,} items: {mix}, {batch:,} a call\n"
        yield from cells_table(cells)


def _columns(error_rate: float, size: int) -> Sequence[Column]:
    return [
        ("peer", lambda row: row["peer"]),
        ("items/s, beginning", lambda row: f"{row['filling']['rates'][0][1]:,.0f}"),
        ("items/s, end", lambda row: f"{row['filling']['rates'][-1][1]:,.0f}"),
        ("longest command, µs", lambda row: figure(row["filling"]["longest"] or None, 0)),
        ("memory, MB", lambda row: figure(row["memory"] and row["memory"] / 1e6, 1)),
        ("bytes an item", lambda row: figure(row["memory"] and row["memory"] / size)),
        ("file, bytes an item", lambda row: figure(row["appended"], 1)),
        ("false positives", lambda row: f"{row['false_positives']:,} of {row['asked']:,}"),
        ("to the asked rate", lambda row: f"{row['false_positives'] / row['asked'] / error_rate:.3f}"),
        ("false negatives", lambda row: f"{row['false_negatives']:,} of {row['known']:,}"),
    ]
