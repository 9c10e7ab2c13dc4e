"""The bench: ``python -m bench`` measures this library beside what people use today, in one run.

The modules, of which scripts use some, too:

    kbest      repeats until the fastest tries agree; contestants in turns
    streams    the URIs of a try: new ones, seen ones, the links of a crawl
    usage      time, bytes and memory of the server, processor time of the client
    peers      what is measured, a file for each kind
    stand      a server with the filters of peers
    measuring  one peer, one batch after the other
    crowd      processes that share the filters of peers
    filling    fills filters for real
    sections   the parts of a run, each of which can be measured alone
    machine    where it was measured, with which versions
    goals      the claims that a run has to show
    tables     tables of Markdown
    report     from results to tables
    figures    from results to charts
    plots      charts, as the text of SVG files
    results    what a run writes, section by section: raw results, tables, charts; RESULTS.md, which the docs quote
    hostile    everything at once, and broken: ``python -m bench.hostile``
    rolling    a rolling filter for 90 minutes: ``python -m bench.rolling``
    scripts    measure one part each: ``python -m bench single``
    runner     runs a script: options, turns of its ways, tables of its rows
    load       processes that insert while something else is measured
    commands   a filter's commands without the rest of the client
"""

from __future__ import annotations

import sys
from pathlib import Path

#: The checkout, whose ``tests/support`` has servers, proxies and clocks.
ROOT = Path(__file__).resolve().parents[1]

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
