"""Bytes of the append-only file an item."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import product

import redis

from bench.crowd import shared
from bench.measuring import ask, cut
from bench.peers import Peer, chosen
from bench.sections import MIXES, Row, Say, Settings
from bench.stand import stand
from bench.streams import WARM, Try, tries
from bench.tables import figure, table

TITLE = "Bytes in the append-only file"
ABOUT = (
    "What INFO persistence says of the file's size before and after, an item, while the server writes it. Peers in the"
    " process and programs have no such file."
)
QUOTED = ("Bytes an item",)

BATCHES = (1, 500)
ITEMS, QUICK_ITEMS = 5000, 1000

#: What INFO persistence says of the file while it is being begun.
REWRITES = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")

#: Seconds between two looks at a file that is being begun, and the most of them.
PAUSE, PATIENCE = 0.01, 300


@contextlib.contextmanager
def appending(client: redis.Redis) -> Iterator[None]:
    """Have a server write an append-only file, which is not rewritten meanwhile.

    Raises:
        TimeoutError: the server does not begin.
    """
    client.config_set("auto-aof-rewrite-percentage", 0)
    client.config_set("appendonly", "yes")
    try:
        end = time.monotonic() + PATIENCE
        while not (said := client.info("persistence"))["aof_enabled"] or any(said[each] for each in REWRITES):
            if time.monotonic() > end:
                raise TimeoutError(f"no append-only file after {PATIENCE} s")
            time.sleep(PAUSE)
        yield
    finally:
        client.config_set("appendonly", "no")


def appended(client: redis.Redis, peer: Peer, given: Try, size: int) -> float:
    """Insert the URIs of a try; return the bytes an item that the file has grown by."""
    before = _size(client)
    ask(peer.insert, cut(given.uris, size))
    return (_size(client) - before) / len(given.uris)


def _size(client: redis.Redis) -> int:
    """Return the bytes of the file, with those that wait for the disk."""
    said = client.info("persistence")
    return int(said["aof_current_size"]) + int(said["aof_buffer_length"])


def measure(settings: Settings, say: Say) -> Row:
    """Measure all peers that keep their filter in the server."""
    items = QUICK_ITEMS if settings.quick else ITEMS
    names = [name for name in settings.peers if shared(name)]
    rows: list[Row] = []
    with stand(settings.server, chosen(names), settings.capacity, settings.error_rate) as here:
        with appending(here.client):
            for name, peer in here.peers.items():
                rows.append({"peer": name} | _grown(here.client, peer, items, settings.seed))
                say(name)
        return here.found({"capacity": settings.capacity, "items": items, "before": WARM}, [], rows)


def _grown(client: redis.Redis, peer: Peer, items: int, seed: int) -> dict[str, float | None]:
    """Return the bytes an item of each mix and batch; None: the peer does not take such batches."""
    found: dict[str, float | None] = {}
    for place, (mix, size) in enumerate(product(MIXES, BATCHES)):
        takes = size in peer.batches
        found[f"{mix}, {size}"] = appended(client, peer, next(tries(mix, items, place, seed)), size) if takes else None
    return found


def tables(found: Row) -> Iterator[str]:
    """Yield the table."""
    kinds = [key for key in found["filters"][0] if key != "peer"] if found["filters"] else []
    yield f"\n### {QUOTED[0]}\n"
    yield from table(
        [
            ("peer", lambda row: row["peer"]),
            *((f"{kind} a call", lambda row, kind=kind: figure(row[kind], 1)) for kind in kinds),
        ],
        found["filters"],
    )
