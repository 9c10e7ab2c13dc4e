"""Measure this library beside what people use today: ``python -m bench [--quick] [--sections NAME …] [--out FOLDER]``.

Every peer gets the same URIs; K-best decides how often. A run has sections, and each is written as soon as it is done:
to a folder (bench/results/) its raw results, all tables and all charts; to bench/RESULTS.md its claims and those tables
that the docs quote; to bench/charts/ those charts that lie there. Sections that are in the folder already are kept, so
a run that broke off goes on with ``--sections``. With ``--out FOLDER`` that folder alone is written, and a quick run
writes no files without it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import servers
from bench.kbest import Rule
from bench.machine import machine
from bench.peers import ALL
from bench.plots import AVAILABLE
from bench.results import PAGE, Results
from bench.sections import NAMES, Settings, section
from bench.sections.calls import plan_of
from bench.sections.sizes import size_of
from bench.streams import MIXES

#: The items of one call, with the items of one try, by default and in a quick run.
TRIES = {1: 1000, 50: 5000, 500: 5000, 5000: 5000}
QUICK_TRIES = {1: 200, 50: 500, 500: 1000, 5000: 5000}

RULE, QUICK_RULE = Rule(k=3, tolerance=0.02, tries=30), Rule(k=3, tolerance=0.05, tries=3)

#: Numbers of items in a filter, and of processes.
SIZES, QUICK_SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000), (25_000,)
CLIENTS = (1, 8)

HERE = Path(__file__).parent


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="in about a minute, with fewer and shorter tries")
    parser.add_argument(
        "--sections", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=ALL, default=list(ALL), metavar="NAME", help=f"of {', '.join(ALL)}"
    )
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--batches", nargs="+", type=int, choices=TRIES, default=list(TRIES))
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS), help="numbers of processes")
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of items of full filters; 10^5 to 10^8")
    parser.add_argument("--tries", type=int, help=f"the most tries; {RULE.tries}, quick: {QUICK_RULE.tries}")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--error-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--server", choices=servers.NAMES, help="bloom, which is redis with RedisBloom, if that is there"
    )
    parser.add_argument(
        "--out", type=Path, help="the only folder that is written; bench/results/ and bench/, quick: none"
    )
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Settings:
    """Return what is measured.

    Raises:
        ValueError: it cannot be.
    """
    rule, items = (QUICK_RULE, QUICK_TRIES) if options.quick else (RULE, TRIES)
    made = Settings(
        quick=options.quick,
        rule=Rule(rule.k, rule.tolerance, options.tries or rule.tries),
        peers=tuple(options.peers),
        mixes=tuple(options.mixes),
        batches={batch: items[batch] for batch in options.batches},
        clients=tuple(options.clients),
        sizes=tuple(options.sizes or (QUICK_SIZES if options.quick else SIZES)),
        capacity=options.capacity,
        error_rate=options.error_rate,
        seed=options.seed,
        server=server_of(options),
    )
    plan_of(made)
    for size in made.sizes:
        size_of(size, quick=made.quick)
    return made


def server_of(options: argparse.Namespace) -> str:
    """Return the server that all peers share."""
    if options.server:
        return str(options.server)
    try:
        servers.redisbloom()
    except servers.Missing:
        return "redis"
    return "bloom"


def run(names: Sequence[str], settings: Settings, results: Results) -> None:
    """Measure sections.

    Raises:
        bench.servers.Missing: a server is not installed.
    """
    for name in names:
        parts = getattr(section(name), "parts", lambda whole: [whole])(settings)
        for part in parts:
            measure(name, part, results)


def measure(name: str, settings: Settings, results: Results) -> None:
    """Measure a section, or a part of it.

    Raises:
        bench.servers.Missing: a server is not installed.
    """
    where, start = machine(), time.monotonic()
    found = section(name).measure(settings, lambda text: print(f"{name}: {text}", file=sys.stderr))
    seconds = time.monotonic() - start
    for peer, reason in found.left_out.items():
        print(f"{name}: {peer} is left out: {reason}", file=sys.stderr)
    results.add(name, {"machine": where, "quick": settings.quick, "seconds": seconds} | found.to_json())
    try:
        results.show(name)
    except LookupError as error:
        print(f"{name}: {PAGE} stays as it is: {error}", file=sys.stderr)
    print(f"{name}: done in {seconds:.0f} s", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    options = options_of(arguments)
    shown = None if options.quick or options.out else HERE
    if not AVAILABLE:
        print("charts are left out: pip install 'urifilter-redis[bench]'", file=sys.stderr)
    try:
        results = Results(options.out or (shown and shown / "results"), shown)
        run(options.sections, settings_of(options), results)
    except (ValueError, servers.Missing) as error:
        sys.exit(str(error))
    print(results.page())


if __name__ == "__main__":
    main()
