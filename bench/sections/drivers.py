"""Layout blocked beside BF.MADD by redis-py with hiredis and without: whole calls of one process."""

from __future__ import annotations

from dataclasses import asdict, replace

from bench.peers import chosen
from bench.sections import MIXES, Row, Say, Settings
from bench.stand import stand
from bench.tables import cells_tables as tables  # noqa: F401 - those of this section

TITLE = "BF.MADD with hiredis and without"
ABOUT = (
    "One client, filters of the given capacity that are nearly empty. redis-py packs and parses in Python, unless"
    " hiredis is installed, too. This library installs it, and so BF.MADD has it in all other sections."
)
QUOTED = ("new, 5,000 a call", "seen, 5,000 a call")

PEERS = ("blocked", "BF.MADD", "BF.MADD, plain")
CAPACITY, QUICK_CAPACITY = 100_000_000, 1_000_000

#: The items of one call, with those of one try.
BATCHES = {500: 5000, 5000: 5000}


def measure(settings: Settings, say: Say) -> Row:
    """Measure on the server that has RedisBloom."""
    made = replace(settings, mixes=MIXES, batches=BATCHES, capacity=QUICK_CAPACITY if settings.quick else CAPACITY)
    with stand(made.server, chosen(PEERS), made.capacity, made.error_rate) as here:
        return here.found(asdict(made), here.race(made.kinds, made, say))
