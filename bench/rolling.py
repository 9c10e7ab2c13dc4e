"""Watch a rolling filter for long: ``python -m bench.rolling --minutes 90 --csv FILE``.

A client inserts some hundred items a second, while ``urifilter worker`` rotates the filter and writes checkpoints. An
oracle checks that each item stays seen until its window is over. FILE gets a row for each period, with memory, the
longest command and call, and the answers. The exit code is 1 if an answer was wrong.

``python -m bench.rolling --chart FILE`` draws the charts of such a file, also while a run writes it, and prints
its sums.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench import ROOT, runner, servers
from bench.hostile.memory import resident
from bench.plots import Axis, Series, lines
from bench.urls import url
from bench.usage import ServerCounters
from urifilter_redis import Timeouts, UriFilter

#: Items of a call, and calls a second with new ones.
CALL, NEW = 50, 8

ERROR_RATE = 1e-3

#: A worker turns late by up to a round, so a window has more items than its periods alone say.
SPARE = 1.2

#: Seconds by which two readings of a clock may differ.
SLACK = 0.1

#: So many windows later an item must be new again, however late the worker turned.
LATE = 1.5

#: The counts of a row, as ``Crawl`` has them.
ANSWERS = ("new", "mistaken", "again", "wrong", "expired", "late")

#: Nobody gives up, however busy the machine is.
TIMEOUTS = Timeouts(connect=60, reply=60, total=120)

#: Seconds of which a point of a chart has the answers, the longest pauses and the mean memory.
POINT = 120


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that were inserted: the monotonic time before that, and the numbers that were answered "new"."""

    began: float
    numbers: Sequence[int]


class Crawl:
    """Inserts, asks again, and compares the answers with the promises.

    Args:
        news: the filter.
        kept: the seconds for which each item must be seen.
        seed: of the items that are asked about again.

    Attributes:
        counts: ``new``: the new items that were inserted; ``mistaken``: those answered "seen"; ``again``: the items
            that had to be seen; ``wrong``: those answered "new"; ``expired``: the items that had expired long before;
            ``late``: those answered "seen".
        longest: the seconds of the longest call.
    """

    def __init__(self, news: UriFilter, kept: float, seed: int) -> None:
        self._news, self._kept = news, kept
        self._dice, self._firsts = random.Random(seed), itertools.count(step=CALL)
        self._batches: collections.deque[Batch] = collections.deque()
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest = 0.0

    def step(self) -> None:
        """Insert new items; ask about some of the window, about its oldest, and about expired ones."""
        for _ in range(NEW):
            self._insert()
        oldest = time.monotonic() - self._kept + SLACK
        known = [each for each in self._batches if each.began > oldest]
        self._again(self._dice.choice(known), self._new)
        self._again(known[0], lambda numbers: [not seen for seen in self._seen(numbers)])
        self._expired()

    def _insert(self) -> None:
        first, began = next(self._firsts), time.monotonic()
        numbers = range(first, first + CALL)
        new = self._new(numbers)
        self.counts.update(new=CALL, mistaken=new.count(False))
        self._batches.append(Batch(began, numbers if all(new) else [*itertools.compress(numbers, new)]))

    def _again(self, batch: Batch, ask: Callable[[Sequence[int]], list[bool]]) -> None:
        """Ask about items that must be seen; ``ask`` says which are not. An answer that came late does not count."""
        wrong = [*itertools.compress(batch.numbers, ask(batch.numbers))]
        if (age := time.monotonic() - batch.began) + SLACK < self._kept:
            self.counts.update(again=len(batch.numbers), wrong=len(wrong))
            if wrong:
                print(f"wrong: after {age:.3f} s these are not seen: {wrong}", file=sys.stderr, flush=True)

    def _expired(self) -> None:
        """Forget items that must have expired, and ask about the last of them."""
        last, numbers = time.monotonic() - LATE * self._kept, ()
        while self._batches[0].began < last:
            numbers = self._batches.popleft().numbers
        if numbers:
            self.counts.update(expired=len(numbers), late=sum(self._seen(numbers)))

    def _new(self, numbers: Sequence[int]) -> list[bool]:
        return self._ask(self._news.insert_many, numbers)

    def _seen(self, numbers: Sequence[int]) -> list[bool]:
        return self._ask(self._news.contains_many, numbers)

    def _ask(self, method: Callable[[list[bytes]], list[bool]], numbers: Sequence[int]) -> list[bool]:
        took, answers = runner.timed(lambda: method([url(each) for each in numbers]))
        self.longest = max(self.longest, took)
        return answers


def rows(crawl: Crawl, period: float, seconds: float, sizes: Callable[[], Mapping[str, float]]) -> Iterator[dict]:
    """Crawl, a step each second, and yield a row for each period.

    Args:
        crawl: what is done.
        period: seconds of a row.
        seconds: how long.
        sizes: returns the columns that are read at the end of a period.
    """
    start, told = time.monotonic(), 0
    for step in itertools.count(1):
        crawl.step()
        passed = time.monotonic() - start
        if passed >= period * (told + 1):
            told = int(passed / period)
            yield (
                {"seconds": round(passed, 1), "longest_call_ms": round(1000 * crawl.longest, 2)}
                | {name: crawl.counts[name] for name in ANSWERS}
                | dict(sizes())
            )
            crawl.counts.clear()
            crawl.longest = 0.0
        if passed > seconds:
            return
        time.sleep(max(0, start + step - time.monotonic()))


def run(csv: Path, minutes: float, period: int, slices: int, server: str, seed: int) -> collections.Counter[str]:
    """Run the server, the worker and the client; write the rows; return the sums of the answers."""
    totals: collections.Counter[str] = collections.Counter()
    settings = {
        "capacity": int(SPARE * NEW * CALL * period * slices),
        "error_rate": ERROR_RATE,
        "retention": "rolling",
        "slices": slices,
        "period": f"{period}s",
        "shards": 2,
    }
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(servers.server(server))
        counters = stack.enter_context(ServerCounters(client))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="uf-")))
        where = {"redis": servers.address(client), "archive": folder.as_uri()}
        news = stack.enter_context(UriFilter.create("rolling", **where, **settings, rotate="never", timeouts=TIMEOUTS))
        log = csv.with_suffix(".worker.log")
        said = stack.enter_context(log.open("ab"))
        command = [sys.executable, "-m", "urifilter_redis.cli", "worker", "--checkpoint-every", "1s"]
        command += [word for name, address in where.items() for word in (f"--{name}", address)]
        worker = stack.enter_context(servers.running(command, cwd=ROOT, stderr=said))  # rounds are a second apart
        process = client.info("server")["process_id"]

        def sizes() -> dict[str, float]:
            if worker.poll() is not None:
                sys.exit(f"the worker has ended: {log}")
            longest, info = counters.read().longest, news.info()
            counters.reset()
            return {
                "turns": info.epoch,
                "longest_command_ms": round(longest / 1000, 2),
                "filter_bytes": info.memory,
                "server_bytes": resident(process),
                "client_bytes": resident(os.getpid()),
                "worker_bytes": resident(worker.pid),
                "archive_bytes": size_of(folder),
            }

        crawl = Crawl(news, (slices - 1) * period, seed)
        with csv.open("w", buffering=1) as file:
            for row in rows(crawl, period, 60 * minutes, sizes):
                if not totals:
                    print(*row, sep=",", file=file)
                print(*row.values(), sep=",", file=file)
                totals.update({name: row[name] for name in ANSWERS})
                totals["turns"] = int(row["turns"])
    return totals


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder from which files may go meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size if path.is_file() else 0
    return found


def charts(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the charts of a file's rows, as SVG by their names."""
    points: dict[int, list[Mapping[str, str]]] = {}
    for row in found:
        points.setdefault(int(float(row["seconds"]) // POINT), []).append(row)

    def series(name: str, value: Callable[[list[float]], float], column: str) -> Series:
        made = [
            (float(some[-1]["seconds"]) / 60, value([float(row[column]) for row in some])) for some in points.values()
        ]
        return Series(name, made)

    memory = [
        series(name, lambda sizes: sum(sizes) / len(sizes) / 1e6, f"{name}_bytes")
        for name in ("server", "worker", "client", "filter", "archive")
    ]
    pauses = [
        series("longest call of the client", max, "longest_call_ms"),
        series("longest command of the server", max, "longest_command_ms"),
    ]
    mistaken, new = (series(name, sum, name).points for name in ("mistaken", "new"))
    rates = [1000 * some / of for (_, some), (_, of) in zip(mistaken, new, strict=True)]
    minutes = [at for at, _ in memory[0].points]
    errors = [
        Series("measured", [*zip(minutes, rates, strict=True)], ours=True),
        Series("asked for", [(at, 1000 * ERROR_RATE) for at in minutes]),
    ]
    time_axis = Axis("time", "minutes")
    return {
        "rolling-memory": lines("Memory of a rolling filter", time_axis, Axis("memory", "MB"), memory),
        "rolling-pauses": lines("Pauses while it turns", time_axis, Axis("longest", "ms"), pauses),
        "rolling-errors": lines("New items answered seen", time_axis, Axis("error rate", "of 1,000"), errors),
    }


def watch(
    minutes: float = 90,
    csv: Path = Path("rolling.csv"),
    period: int = 10,
    slices: int = 30,
    server: Annotated[str, ("redis", "valkey")] = "redis",
    seed: int = 1,
    chart: Path | None = None,
    out: Path = ROOT / "bench" / "charts",
) -> None:
    """Watch, or draw.

    Options:
        period: seconds
        chart: draw the charts of this file, and measure nothing
        out: the folder of the charts
    """
    if chart:
        with chart.open() as file:
            found = [*DictReader(file)]
        for name, text in charts(found).items():
            (out / f"{name}.svg").write_text(text)
        sums = {name: sum(int(row[name]) for row in found) for name in ANSWERS}
        longest = {name: max(float(row[f"longest_{name}_ms"]) for row in found) for name in ("command", "call")}
        print({"seconds": found[-1]["seconds"], "turns": found[-1]["turns"]} | sums | longest)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and all that runs ends with it
    totals = run(csv, minutes, period, slices, server, seed)
    print(", ".join(f"{name} {count:,}" for name, count in totals.items()))
    sys.exit(1 if totals["wrong"] else 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    watch(**runner.options(watch, "python -m bench.rolling", __doc__, arguments))


if __name__ == "__main__":
    main()
