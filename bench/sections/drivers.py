"""Layout blocked beside BF.MADD by redis-py with hiredis and without: whole calls of one process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict

from bench.measuring import contestant, raced
from bench.sections import Found, Row, Say, Settings
from bench.stand import stand
from bench.streams import tries
from bench.tables import cells_table, grouped

TITLE = "BF.MADD with hiredis and without"
ABOUT = (
    "One client, filters of the given capacity that are nearly empty. redis-py packs and parses in Python, unless"
    " hiredis is installed, too. This library installs it, and so BF.MADD has it in all other sections."
)

PEERS = ("blocked", "BF.MADD", "BF.MADD, plain")
CAPACITY, QUICK_CAPACITY = 100_000_000, 1_000_000
BATCHES, ITEMS = (500, 5000), 5000
MIXES = ("new", "seen")


def measure(settings: Settings, say: Say) -> Found:
    """Measure on the server that has RedisBloom."""
    capacity = QUICK_CAPACITY if settings.quick else CAPACITY
    cells: list[Row] = []
    with stand(settings.server, PEERS, capacity, settings.error_rate) as here:
        dice = random.Random(settings.seed)
        for place, (mix, batch) in enumerate((mix, batch) for mix in MIXES for batch in BATCHES):
            racing = {
                each: contestant(peer, tries(mix, ITEMS, place, settings.seed), batch, here.counters)
                for each, peer in here.peers.items()
            }
            cells += [cell.to_json() for cell in raced(racing, (mix, batch), settings.rule, dice)]
            say(f"{mix}, {batch:,} a call")
        made = {"capacity": capacity, "rule": asdict(settings.rule), "items": ITEMS}
        return Found(made, here.versions(), cells, left_out=here.left_out)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix and batch."""
    for (mix, batch), cells in grouped(found["cells"], "mix", "batch").items():
        yield f"\n### {mix}, {batch:,} a call\n"
        yield from cells_table(cells)
