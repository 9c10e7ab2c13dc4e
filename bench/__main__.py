"""Measure this library beside what people use today: ``python -m bench [--quick] [--sections NAME …] [--out FOLDER]``.

``python -m bench SCRIPT …`` runs a script of ``bench.scripts`` instead, ``python -m bench SCRIPT --help`` describes it.

Every peer gets the same URIs; K-best decides how often. A run has sections, and each is written as soon as it is done:
to a folder (bench/results/) its raw results, all tables and all charts; to bench/RESULTS.md its claims and those tables
that the docs quote; to bench/charts/ those charts that lie there. Sections that are in the folder already are kept, so
a run that broke off goes on with ``--sections``. With ``--out FOLDER`` that folder alone is written, and a quick run
writes no files without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from bench import runner, servers
from bench.kbest import Rule
from bench.machine import machine
from bench.peers import ALL
from bench.plots import AVAILABLE
from bench.results import PAGE, Results
from bench.sections import NAMES, Settings, section
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


def default_server() -> str:
    """Return the server that all peers share: with RedisBloom, if that is there."""
    try:
        servers.redisbloom()
    except servers.Missing:
        return "redis"
    return "bloom"


def measure(name: str, settings: Settings, results: Results) -> None:
    """Measure a section, or a part of it.

    Raises:
        bench.servers.Missing: a server is not installed.
    """
    where, start = machine(), time.monotonic()
    found = section(name).measure(settings, lambda text: print(f"{name}: {text}", file=sys.stderr))
    seconds = time.monotonic() - start
    for peer, reason in found["left_out"].items():
        print(f"{name}: {peer} is left out: {reason}", file=sys.stderr)
    results.add(name, {"machine": where, "quick": settings.quick, "seconds": seconds, **found})
    try:
        results.show(name)
    except LookupError as error:
        print(f"{name}: {PAGE} stays as it is: {error}", file=sys.stderr)
    print(f"{name}: done in {seconds:.0f} s", file=sys.stderr)


def bench(
    *,
    quick: bool = False,
    sections: Annotated[Sequence[str], NAMES] = NAMES,
    peers: Annotated[Sequence[str], tuple(ALL)] = tuple(ALL),
    mixes: Annotated[Sequence[str], tuple(MIXES)] = tuple(MIXES),
    batches: Annotated[Sequence[int], tuple(TRIES)] = tuple(TRIES),
    clients: Sequence[int] = CLIENTS,
    sizes: Sequence[int] = (),
    tries: int = 0,
    capacity: int = 1_000_000,
    error_rate: float = 1e-4,
    seed: int = 1,
    server: Annotated[str | None, servers.NAMES] = None,
    out: Path | None = None,
) -> None:
    """Measure, print and write.

    Options:
        quick: in about a minute, with fewer and shorter tries
        clients: numbers of processes
        sizes: numbers of items of full filters; 10^5 to 10^8
        tries: the most tries; 30, quick: 3
        server: bloom, which is redis with RedisBloom, if that is there
        out: the only folder that is written; bench/results/ and bench/, quick: none
    """
    rule, items = (QUICK_RULE, QUICK_TRIES) if quick else (RULE, TRIES)
    shown = None if quick or out else HERE
    if not AVAILABLE:
        print("charts are left out: pip install 'urifilter-redis[bench]'", file=sys.stderr)
    try:
        results = Results(out or (shown and shown / "results"), shown)
        settings = Settings(
            quick=quick,
            rule=Rule(rule.k, rule.tolerance, tries or rule.tries),
            peers=tuple(peers),
            mixes=tuple(mixes),
            batches={batch: items[batch] for batch in batches},
            clients=tuple(clients),
            sizes=tuple(sizes or (QUICK_SIZES if quick else SIZES)),
            capacity=capacity,
            error_rate=error_rate,
            seed=seed,
            server=server or default_server(),
        )
        for size in settings.sizes:
            size_of(size, quick=quick)
        for name in sections:
            for part in getattr(section(name), "parts", lambda whole: [whole])(settings):
                measure(name, part, results)
    except (ValueError, servers.Missing) as error:
        sys.exit(str(error))
    print(results.page())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script, or the sections."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in runner.SCRIPTS:
        runner.run(given[0], given[1:])
    else:
        bench(**runner.options(bench, "python -m bench", __doc__, given))


if __name__ == "__main__":
    main()
