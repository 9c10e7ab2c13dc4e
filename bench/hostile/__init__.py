"""The hostile run: ``python -m bench.hostile --minutes 10 --seed 1``.

Processes of every kind use one server, while random faults come every few seconds: kills, stops, lost replies, clocks
that are set, a full disk, an archive that is away. An exact oracle compares all answers with the promises.

    journal    what each process was told, line by line; it survives a kill
    actors     the processes: clients, claims, the service's clients, the worker, a meddler
    schedule   when which fault comes, by a seed
    faults     what a fault does, and how it ends
    stage      the server, the proxies and all processes, with their memory
    oracle     compares what was told with the promises
    report     the table and the history
"""

from __future__ import annotations

import sys
from pathlib import Path

#: The checkout, whose ``tests/support`` has servers, proxies and clocks.
ROOT = Path(__file__).resolve().parents[2]

sys.path[:0] = [str(each) for each in (ROOT, ROOT / "tests") if str(each) not in sys.path]
