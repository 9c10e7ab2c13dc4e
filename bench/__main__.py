"""Measure this library beside what people use today: ``python -m bench [--quick] [--peers NAME …] [--out FOLDER]``.

One server, one client. Every peer gets the same URIs; K-best decides how often. Printed is RESULTS.md; it is written to
the folder, beside RESULTS.json. A quick run writes no files unless ``--out`` names a folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import servers
from bench.kbest import Rule
from bench.machine import machine, versions
from bench.measuring import Plan, measure, opened
from bench.peers import ALL
from bench.report import Results
from bench.streams import MIXES
from bench.usage import ServerCounters

#: The items of one call, with the items of one try, by default and in a quick run.
TRIES = {1: 1000, 50: 5000, 500: 5000, 5000: 5000}
QUICK_TRIES = {1: 200, 50: 1000, 500: 2000, 5000: 5000}

RULE, QUICK_RULE = Rule(k=3, tolerance=0.02, tries=30), Rule(k=3, tolerance=0.05, tries=6)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="in about a minute, with fewer and shorter tries")
    parser.add_argument(
        "--peers", nargs="+", choices=ALL, default=list(ALL), metavar="NAME", help=f"of {', '.join(ALL)}"
    )
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--batches", nargs="+", type=int, choices=TRIES, default=list(TRIES))
    parser.add_argument("--tries", type=int, help=f"the most tries; {RULE.tries}, quick: {QUICK_RULE.tries}")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--error-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--server", choices=servers.NAMES, help="bloom, which is redis with RedisBloom, if that is there"
    )
    parser.add_argument("--out", type=Path, help="the folder of the results; bench/, quick: none")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what is measured."""
    rule, items = (QUICK_RULE, QUICK_TRIES) if options.quick else (RULE, TRIES)
    return Plan(
        mixes=tuple(options.mixes),
        batches={batch: items[batch] for batch in options.batches},
        rule=Rule(rule.k, rule.tolerance, options.tries or rule.tries),
        capacity=options.capacity,
        error_rate=options.error_rate,
        seed=options.seed,
    )


def server_of(options: argparse.Namespace) -> str:
    """Return the server that all peers share."""
    if options.server:
        return str(options.server)
    try:
        servers.redisbloom()
    except servers.Missing:
        return "redis"
    return "bloom"


def run(names: Sequence[str], plan: Plan, server: str) -> Results:
    """Measure."""
    with ExitStack() as stack:
        where = machine()
        client = stack.enter_context(servers.server(server))
        peers, left_out = opened(names, plan, servers.address(client), stack)
        for name, reason in left_out.items():
            print(f"{name} is left out: {reason}", file=sys.stderr)
        counters = ServerCounters(client)
        stack.callback(counters.close)
        cells = []
        for cell in measure(peers, plan, counters):
            cells.append(cell)
            print(f"{cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries", file=sys.stderr)
        memory = {name: peer.memory() for name, peer in peers.items()}
        return Results(where, versions(client, peers), plan, cells, memory, left_out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    options = options_of(arguments)
    try:
        plan = plan_of(options)
    except ValueError as error:
        sys.exit(str(error))
    try:
        results = run(options.peers, plan, server_of(options))
    except servers.Missing as error:
        sys.exit(str(error))
    print(results.to_markdown())
    if folder := options.out or (None if options.quick else Path(__file__).parent):
        results.write(folder)


if __name__ == "__main__":
    main()
