"""Run everything at once and break it: ``python -m bench.hostile --minutes 10 --seed 1``.

Clients, claims, the service, the worker and a meddler use one server, or a cluster of three masters, through proxies,
while faults come every few seconds. At the end an oracle compares all answers with the promises. The exit code is 1 if
a promise was broken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from support.servers import BLOOM
from support.started.segments import VARIABLE, multiply

from bench.hostile import report
from bench.hostile.audit import audit
from bench.hostile.faults import Faults
from bench.hostile.filters import ARCHIVED, LONGEST
from bench.hostile.journal import calls_of, lines_of
from bench.hostile.memory import Memory
from bench.hostile.oracle import Oracle
from bench.hostile.schedule import KINDS, Fault, schedule
from bench.hostile.stage import CLUSTER, PLAYING, Stage
from bench.hostile.world import World
from bench.runner import options
from urifilter_redis.bloom import retention, sizing

SERVERS = {"redis": "redis70", "valkey": "valkey", "bloom": BLOOM, CLUSTER: CLUSTER}


def possible(stage: Stage) -> list[str]:
    """Return the kinds of faults that can be had here, and say which cannot."""
    left_out = []
    if len(stage.servers) > 1:
        left_out.append(("disk full", "the masters have no disks of their own"))
    elif not stage.disk.small:
        left_out.append(("disk full", "no file system may be mounted"))
    if not stage.clocks:
        left_out += [(kind, "there is no C compiler: apt-get install gcc") for kind in KINDS if "clock" in kind]
    for kind, why in left_out:
        print(f"without {kind!r}: {why}")
    return [kind for kind in KINDS if kind not in dict(left_out)]


def run(stage: Stage, faults: list[Fault], seconds: float, seed: int) -> tuple[list[str], Memory]:
    """Let all run and break it, then let all end, and ask about everything; return what failed, and the memory."""
    memory = Memory(stage)
    for role in PLAYING:
        stage.begin(role)
    breaking = Faults(stage, seed)
    breaking.run(faults, seconds, memory.sample)
    breaking.end()
    failed = stage.end()
    for server in stage.servers:
        if server.process.poll() is not None:
            failed.append("a server has ended by itself")
            server.start()
    audited = audit(stage.part("audit"), stage.journals())
    stage.running["worker"].journals.append(str(audited))
    failed += [f"{role} has written a traceback" for role in stage.running if "Traceback" in stage.log(role)]
    return [*stage.failed, *failed, *made_anew(stage.journals()), *memory.grown()], memory


def made_anew(journals: list[Path]) -> list[str]:
    """Return which filters have an archive and were made anew nevertheless."""
    made = [line for path in journals for line in lines_of(path) if line["what"] == "made"]
    uids = {name: {line["uid"] for line in made if line["filter"] == name} for name in ARCHIVED}
    return [f"{name} has an archive, and was made anew" for name, found in uids.items() if len(found) != 1]


def main(
    minutes: float = 10,
    seed: int = time.time_ns() % 10_000,
    server: Annotated[str, tuple(SERVERS)] = "redis",
    history: Path | None = None,
    segments: int = 1,
) -> None:
    """Run, judge and report.

    Options:
        history: the file for the history, and a folder of journals beside it
        segments: bitmaps in each slice of a shard, as large filters have them
    """
    if segments > 1:
        os.environ[VARIABLE] = str(segments)  # for all processes; this one has imported the modules already
        multiply(sizing)
        retention.size = sizing.size
    if 60 * minutes > LONGEST:
        sys.exit(f"--minutes: a run has at most {LONGEST / 60:g}, for which the filters are made")
    path = history or Path(tempfile.gettempdir()) / f"hostile-{seed}.txt"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and all that runs ends with it
    print(f"seed {seed}, {minutes:g} minutes, {server}, {segments} bitmaps a slice; history: {path}", flush=True)
    with Stage(SERVERS[server], seed) as stage:
        faults = schedule(seed, 60 * minutes, possible(stage))
        failed, memory = run(stage, faults, 60 * minutes, seed)
        journals = stage.journals()
        lines = [line for each in journals for line in lines_of(each)]
        findings = Oracle(calls_of(lines).values(), World.of(lines)).judge()
        told = "\n".join(report.history(findings, faults, sorted(lines, key=lambda each: each["at"]), stage.start))
        logs = "".join(f"\n{role}:\n{text[-4000:]}" for role in stage.running if (text := stage.log(role)))
        path.write_text(f"{told}\n{logs}\n")
        kept = path.with_suffix(".journals")
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for each in journals:
            shutil.copy(each, kept)
        if broken := [*findings.broken, *failed]:
            print(told)
    print("\n".join(report.table(findings, faults, memory)))
    print(f"BROKEN: {'; '.join(broken)}" if broken else "every promise was kept")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main(**options(main, "python -m bench.hostile", __doc__, None))
