"""One client: each mix and batch is a race of all peers that take such batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from bench.peers import ALL, chosen
from bench.sections import Row, Say, Settings
from bench.stand import stand
from bench.tables import cells_tables, figure, table

TITLE = "One client"
ABOUT = "All peers that take such batches, on one server, in turns. Each filter has 10,000 items at the beginning."
QUOTED = ("new, 1 a call", "new, 500 a call", "seen, 1 a call", "seen, 500 a call")


def measure(settings: Settings, say: Say) -> Row:
    """Measure all peers."""
    with stand(settings.server, chosen(settings.peers), settings.capacity, settings.error_rate) as here:
        cells = here.race(settings.kinds, settings, say)
        rows = [{"peer": name, "memory": each.memory()} for name, each in here.peers.items()]
        return here.found(asdict(settings), cells, rows)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix and batch, and one of the filters."""
    yield from cells_tables(found)
    yield "\n### Peers\n"
    yield from table(
        [
            ("peer", lambda row: row["peer"]),
            ("version", lambda row: found["versions"][row["peer"]]),
            ("compared as", lambda row: ALL[row["peer"]]().compared_as),
            ("memory, MB", lambda row: figure(row["memory"] and row["memory"] / 1e6)),
            ("false positives", lambda row: _wrong(found["cells"], row["peer"])),
        ],
        found["filters"],
        words=3,
    )


def _wrong(cells: list[Row], peer: str) -> str:
    wrong, new = (
        sum(cell[name] for cell in cells if cell["peer"] == peer) for name in ("false_positives", "new_items")
    )
    return f"{wrong:,} of {new:,}"
