"""Kill masters of a Redis Cluster under crawlers, and count: ``python bench/failover.py [--rounds N] [--seed N]``.

Three masters with a replica each; 8 processes insert while slots move between the masters. In each round a master is
killed whose replica was cut off for a moment. It runs once without and once with ``wait_replicas=1``, and prints how
many URIs were asked about, how many shards were moved, how many answers "new" no replica had, and how many URIs were
told "new" more or less often than once and once more for each loss. ``tests/support/cluster_run.py`` says how it knows.

It needs the checkout, and redis-server on the PATH.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.cluster_run import Run


def main() -> None:
    """Print the counts of both runs; fail if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="between two rounds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong = 0
    for wait_replicas in (0, 1):
        with tempfile.TemporaryDirectory() as folder, Run(Path(folder), wait_replicas, options.seed) as run:
            for _ in range(options.rounds):
                run.round(options.seconds)
            counts = run.finish()
        wrong += len(counts.wrong)
        figures = f"asked {counts.asked:,}, moved {counts.moved}, lost with a master {counts.unreplicated:,}"
        print(
            f"wait_replicas={wait_replicas}, {options.rounds} failovers: {figures}, wrong {len(counts.wrong)}",
            flush=True,
        )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
