"""One client: each mix and batch is a race of all peers that take such batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from bench.measuring import Plan
from bench.measuring import measure as measured
from bench.peers import ALL
from bench.sections import Found, Row, Say, Settings
from bench.stand import stand
from bench.tables import cells_tables, figure, table

TITLE = "One client"
ABOUT = "All peers that take such batches, on one server, in turns. Each filter has 10,000 items at the beginning."
QUOTED = ("new, 1 a call", "new, 500 a call", "seen, 1 a call", "seen, 500 a call")


def plan_of(settings: Settings) -> Plan:
    """Return what is measured.

    Raises:
        ValueError: the filters cannot hold all items.
    """
    return Plan(settings.mixes, settings.batches, settings.rule, settings.capacity, settings.error_rate, settings.seed)


def measure(settings: Settings, say: Say) -> Found:
    """Measure all peers."""
    plan = plan_of(settings)
    cells: list[Row] = []
    with stand(settings.server, settings.peers, plan.capacity, plan.error_rate) as here:
        for cell in measured(here.peers, plan, here.counters):
            cells.append(cell.to_json())
            say(f"{cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries")
        filters: list[Row] = [{"peer": name, "memory": peer.memory()} for name, peer in here.peers.items()]
        return Found(asdict(plan), here.versions(), cells, filters, here.left_out)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix and batch, and one of the filters."""
    yield from cells_tables(found["cells"])
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
