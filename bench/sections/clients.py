"""Several clients: processes that share the filters of a server, and begin at the same moment."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from bench.crowd import Crowd, Filters, shared
from bench.measuring import Cell, Plan, Runner, raced
from bench.sections import Found, Row, Say, Settings
from bench.sections.calls import plan_of
from bench.stand import Stand, stand
from bench.streams import WARM, Try, tries
from bench.tables import cells_table, grouped

if TYPE_CHECKING:
    from bench.usage import ServerCounters

TITLE = "Several clients"
ABOUT = (
    "Processes that begin at the same moment share the URIs of a try: items a second of all together, from the first"
    " beginning to the last end, and the processor time of all. Peers in the process and programs have no filter that"
    " processes could share."
)
QUOTED = ("new, 500 a call, 8 clients",)

#: The items of one call, with the items of one try of all processes: no more than ``seen`` can draw.
TRIES = {1: 4000, 500: WARM}
QUICK_TRIES = {500: 4000}
MIXES = ("new", "seen")

#: The most tries of a race.
MOST = 10


def plan(settings: Settings) -> Plan:
    """Return what is measured with each number of processes.

    Raises:
        ValueError: the filters cannot hold the items of all numbers of processes.
    """
    made = replace(
        settings,
        mixes=tuple(each for each in MIXES if each in settings.mixes),
        batches=QUICK_TRIES if settings.quick else TRIES,
        rule=replace(settings.rule, tries=min(settings.rule.tries, MOST)),
    )
    plan_of(replace(made, capacity=made.capacity // max(1, len(settings.clients))))
    return plan_of(made)


def measure(settings: Settings, say: Say) -> Found:
    """Measure the peers that processes can share."""
    what, cells = plan(settings), []
    names = [name for name in settings.peers if shared(name)]
    with stand(settings.server, names, what.capacity, what.error_rate) as here:
        for place, clients in enumerate(settings.clients):
            with Crowd(clients, Filters(what.capacity, what.error_rate, here.url)) as crowd:
                for cell in _with(crowd, here, what, place):
                    cells.append(cell.to_json())
                    say(f"{clients} clients, {cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries")
        made = asdict(what) | {"clients": settings.clients}
        return Found(made, here.versions(), cells, left_out=here.left_out)


def _with(crowd: Crowd, here: Stand, what: Plan, place: int) -> Iterator[Cell]:
    """Yield the cells of a number of processes, which is the ``place``-th one."""
    dice, races = random.Random(what.seed), [*itertools.product(what.mixes, what.batches.items())]
    for number, (mix, (size, items)) in enumerate(races, place * len(races)):
        racing = {
            name: _contestant(crowd, name, tries(mix, items, number, what.seed), size, here.counters)
            for name, peer in here.peers.items()
            if size in peer.batches
        }
        for cell in raced(racing, (mix, size), what.rule, dice):
            yield replace(cell, clients=crowd.count)


def _contestant(crowd: Crowd, name: str, given: Iterator[Try], size: int, counters: ServerCounters) -> Runner:
    return lambda: crowd.attempt(name, next(given), size, counters)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix, batch and number of clients."""
    for (mix, batch, clients), cells in grouped(found["cells"], "mix", "batch", "clients").items():
        yield f"\n### {mix}, {batch:,} a call, {clients} {'client' if clients == 1 else 'clients'}\n"
        yield from cells_table(cells)
