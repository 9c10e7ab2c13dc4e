"""Kill masters of a Redis Cluster under crawlers, and count.

Three masters with a replica each; 8 processes insert while slots move between the masters. In each round a master is
killed whose replica was cut off for a moment. It runs once without and once with ``wait_replicas=1``, and prints how
many URIs were asked about, how many shards were moved, how many answers "new" no replica had, and how many URIs were
told "new" more or less often than once and once more for each loss. ``tests/support/cluster_run.py`` says how it knows.

It needs the checkout, and redis-server on the PATH.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.cluster_run import Run

from bench.runner import Row


def main(rounds: int = 3, seconds: float = 4, seed: int = 1) -> Iterator[Row]:
    """Yield the counts of both runs; fail if an answer was wrong.

    Options:
        seconds: between two rounds
    """
    wrong = 0
    for wait_replicas in (0, 1):
        with tempfile.TemporaryDirectory() as folder, Run(Path(folder), wait_replicas, seed) as run:
            for _ in range(rounds):
                run.round(seconds)
            counts = run.finish()
        wrong += len(counts.wrong)
        row: Row = {"wait_replicas": wait_replicas, "failovers": rounds, "asked": counts.asked, "moved": counts.moved}
        yield row | {"lost with a master": counts.unreplicated, "wrong": len(counts.wrong)}
    sys.exit(wrong > 0)
