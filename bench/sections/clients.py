"""Several clients: processes that share the filters of a server, and begin at the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial

from bench.crowd import Crowd, shared
from bench.peers import chosen
from bench.sections import MIXES, Row, Say, Settings
from bench.stand import stand
from bench.streams import WARM
from bench.tables import cells_table, grouped

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

#: The most tries of a race.
MOST = 10


def measure(settings: Settings, say: Say) -> Row:
    """Measure the peers that processes can share.

    Raises:
        ValueError: the filters cannot hold the items of all numbers of processes.
    """
    made = replace(
        settings,
        mixes=tuple(each for each in MIXES if each in settings.mixes),
        batches=QUICK_TRIES if settings.quick else TRIES,
        rule=replace(settings.rule, tries=min(settings.rule.tries, MOST)),
    )
    replace(made, capacity=made.capacity // max(1, len(made.clients)))
    cells: list[Row] = []
    names = [name for name in made.peers if shared(name)]
    with stand(made.server, chosen(names), made.capacity, made.error_rate) as here:
        for place, clients in enumerate(made.clients):
            with Crowd(clients, made.capacity, made.error_rate, here.url) as crowd:
                say(f"{clients} clients")
                attempts = {name: partial(crowd.attempt, name, here.counters) for name in here.peers}
                first = place * len(made.kinds)
                cells += here.race(made.kinds, made, say, attempts, first=first, clients=clients)
        return here.found(asdict(made), cells)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix, batch and number of clients."""
    for (mix, batch, clients), cells in grouped(found["cells"], "mix", "batch", "clients").items():
        yield f"\n### {mix}, {batch:,} a call, {clients} {'client' if clients == 1 else 'clients'}\n"
        yield from cells_table(cells)
