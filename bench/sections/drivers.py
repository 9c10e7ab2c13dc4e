"""Layout blocked beside BF.MADD by redis-py with hiredis and without: whole calls of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from bench.measuring import Plan
from bench.measuring import measure as measured
from bench.sections import Found, Row, Say, Settings
from bench.stand import stand
from bench.tables import cells_tables

TITLE = "BF.MADD with hiredis and without"
ABOUT = (
    "One client, filters of the given capacity that are nearly empty. redis-py packs and parses in Python, unless"
    " hiredis is installed, too. This library installs it, and so BF.MADD has it in all other sections."
)
QUOTED = ("new, 5,000 a call", "seen, 5,000 a call")

PEERS = ("blocked", "BF.MADD", "BF.MADD, plain")
CAPACITY, QUICK_CAPACITY = 100_000_000, 1_000_000
MIXES = ("new", "seen")

#: The items of one call, with those of one try.
BATCHES = {500: 5000, 5000: 5000}


def measure(settings: Settings, say: Say) -> Found:
    """Measure on the server that has RedisBloom."""
    capacity = QUICK_CAPACITY if settings.quick else CAPACITY
    plan = Plan(MIXES, BATCHES, settings.rule, capacity, settings.error_rate, settings.seed)
    cells: list[Row] = []
    with stand(settings.server, PEERS, plan.capacity, plan.error_rate) as here:
        for cell in measured(here.peers, plan, here.counters):
            cells.append(cell.to_json())
            say(f"{cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries")
        return Found(asdict(plan), here.versions(), cells, left_out=here.left_out)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix and batch."""
    yield from cells_tables(found["cells"])
