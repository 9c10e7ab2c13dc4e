"""Several clients: processes that share the filters of a server, and begin at the same moment."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from bench import servers
from bench.crowd import Crowd, Filters, shared
from bench.machine import versions
from bench.measuring import Cell, Plan, Runner, opened, raced, warm_up
from bench.sections import Found, Row, Say, Settings
from bench.sections.calls import plan_of
from bench.streams import WARM, Try, tries
from bench.tables import cells_table, grouped
from bench.usage import ServerCounters

if TYPE_CHECKING:
    from bench.peers import Peer

TITLE = "Several clients"
ABOUT = (
    "Processes that begin at the same moment share the URIs of a try: items a second of all together, from the first"
    " beginning to the last end, and the processor time of all. Peers in the process and programs have no filter that"
    " processes could share."
)

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
    with ExitStack() as stack:
        client = stack.enter_context(servers.server(settings.server))
        at = servers.address(client)
        peers, left_out = opened(names, what.capacity, what.error_rate, at, stack)
        for peer in peers.values():
            warm_up(peer)
        counters = stack.enter_context(ServerCounters(client))
        for place, clients in enumerate(settings.clients):
            with Crowd(clients, Filters(what.capacity, what.error_rate, at)) as crowd:
                for cell in _with(crowd, peers, what, counters, place):
                    cells.append(cell.to_json())
                    say(f"{clients} clients, {cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries")
        return Found(asdict(what) | {"clients": settings.clients}, versions(client, peers), cells, left_out=left_out)


def _with(crowd: Crowd, peers: Mapping[str, Peer], what: Plan, counters: ServerCounters, place: int) -> Iterator[Cell]:
    """Yield the cells of a number of processes, which is the ``place``-th one."""
    dice, races = random.Random(what.seed), [*itertools.product(what.mixes, what.batches.items())]
    for number, (mix, (size, items)) in enumerate(races, place * len(races)):
        racing = {
            name: _contestant(crowd, name, tries(mix, items, number, what.seed), size, counters)
            for name, peer in peers.items()
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
