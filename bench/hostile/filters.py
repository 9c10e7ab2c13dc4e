"""The filters of the hostile run, and their items."""

from __future__ import annotations

import random
from typing import Any

#: Seconds of a period of the filters that expire, and their slices.
PERIOD, SLICES = 10, 3

#: An error rate at which no false positive comes in a run, so that each wrong answer is one.
EXACT = 1e-9

#: The error rate of the filter that measures it.
MEASURED = 1e-3

#: New items a second and filter, on which all clients work at the same time.
RATE = 40

#: Seconds of the longest run, in which no filter gets more items than it is made for.
LONGEST = 3660

_TIMED = {"capacity": 50_000, "error_rate": EXACT, "slices": SLICES, "period": f"{PERIOD}s", "shards": 2}

#: Filters with an archive, which come back after FLUSHALL.
ARCHIVED: dict[str, dict[str, Any]] = {
    "pages": {"capacity": 3_000, "error_rate": EXACT, "retention": "growing", "shards": 3},
    "days": _TIMED | {"retention": "rolling"},
    "rate": {"capacity": LONGEST * RATE, "error_rate": MEASURED, "shards": 2},
    "claims": {"capacity": 100_000, "error_rate": EXACT, "shards": 4},
}

#: Filters without one: clients turn them as time passes, and after FLUSHALL they make others. On server ``bloom`` their
#: layout is redisbloom.
BARE: dict[str, dict[str, Any]] = {
    "ring": _TIMED | {"retention": "ring"},
    "links": {"capacity": 3_000, "error_rate": EXACT, "retention": "growing", "shards": 2},
}

#: All that clients insert into.
SETTINGS = ARCHIVED | BARE

#: Filters whose items expire.
EXPIRING = ("days", "ring")

#: How many of the newest items clients mostly ask about.
FRONTIER = 400
#: The share of calls that ask about items of any time.
OLD = 0.2

#: Items that nobody inserts begin here.
NOBODYS = 1_000_000_000


def uri(number: int) -> str:
    """Return the item of a number."""
    return f"https://example.com/{number}"


def number_of(item: str) -> int:
    """Return the number of an item."""
    return int(item.rpartition("/")[2])


def some(dice: random.Random, seconds: float, count: int = 40) -> list[int]:
    """Return the numbers of items to ask about, so many seconds after the beginning of the run."""
    newest = max(FRONTIER, int(seconds * RATE))
    oldest = 0 if dice.random() < OLD else newest - FRONTIER
    return dice.sample(range(oldest, newest), count)
