"""Processes that insert all the time, while something else is measured."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from urifilter_redis import UriFilter


def insert(url: str, name: str, batch: int, room: int, seconds: float) -> list[float]:
    """Insert batches of items that are drawn of so many; return the ms of each batch."""
    dice, taken, end = random.Random(), [], time.perf_counter() + seconds
    with UriFilter.open(name, redis=url, archive="") as news:
        while (start := time.perf_counter()) < end:
            news.insert_many([f"https://example.com/{dice.randrange(room)}" for _ in range(batch)])
            taken.append(1000 * (time.perf_counter() - start))
    return taken


def under_load(processes: int, meanwhile: Callable[[], object] | None, **load: Any) -> tuple[list[float], int]:
    """Let processes ``insert``, and call a function again and again until they end.

    Returns:
        The ms of all batches in their order of length, and the number of calls of the function.
    """
    calls = 0
    with ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(insert, **load) for _ in range(processes)]
        while meanwhile and not all(each.done() for each in running):
            meanwhile()
            calls += 1
        return sorted(ms for each in running for ms in each.result()), calls
