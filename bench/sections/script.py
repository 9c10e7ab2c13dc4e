"""The script of layout blocked beside a script of SETBITs, on Redis and on Valkey: the server's time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from bench import servers
from bench.machine import versions
from bench.peers import chosen
from bench.sections import MIXES, Row, Say, Settings
from bench.stand import stand
from bench.tables import Column, best, grouped, table

TITLE = "The server's time, beside a script of SETBITs"
ABOUT = (
    "One client, 500 items a call, filters of the given capacity that are nearly empty. Here the fastest tries agree"
    " about the server's time, which is microseconds of commands an item (INFO commandstats)."
)
QUOTED = tuple(f"{mix}, {server}" for server in ("redis", "valkey") for mix in ("new", "seen"))

PEERS = ("SETBIT in Lua", "blocked", "classic")
SERVERS = ("redis", "valkey")
CAPACITY, QUICK_CAPACITY = 100_000_000, 1_000_000
BATCH, ITEMS = 500, 5000


def measure(settings: Settings, say: Say) -> Row:
    """Measure on each server that is installed."""
    capacity = QUICK_CAPACITY if settings.quick else CAPACITY
    cells: list[Row] = []
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    kinds = [(mix, BATCH, ITEMS) for mix in MIXES]
    for name in SERVERS:
        try:
            with stand(name, chosen(PEERS), capacity, settings.error_rate) as here:
                there = versions(here.client, here.peers)
                found |= there | {name: there["server"]}
                cells += here.race(kinds, settings, say, figure="server", server_name=name)
        except servers.Missing as error:
            left_out[name] = str(error)
    found["server"] = " and ".join(found[name] for name in SERVERS if name in found)
    made = {"capacity": capacity, "rule": asdict(settings.rule), "batch": BATCH, "items": ITEMS}
    return {"settings": made, "versions": found, "cells": cells, "filters": (), "left_out": left_out}


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each server and mix."""
    for (name, mix), cells in grouped(found["cells"], "server_name", "mix").items():
        reference = cells[0]["server"]["value"]
        yield f"\n### {mix}, {name}\n"
        yield from table(server_columns(reference), cells)


def server_columns(reference: float, first: str = "peer") -> list[Column]:
    """Return columns of the server's time, and of its ratio to a reference."""
    return [
        (first, lambda cell: cell["peer"]),
        ("server µs", lambda cell: best(cell["server"])),
        ("ratio", lambda cell: f"{cell['server']['value'] / reference:.2f}"),
        ("spread", lambda cell: f"{cell['server']['spread']:.1%}"),
        ("longest, µs", lambda cell: f"{cell['longest']:,.0f}"),
    ]
