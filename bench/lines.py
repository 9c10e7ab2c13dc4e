"""Measure ``urifilter dedupe``, ``add`` and ``check`` beside awk and sort: ``python bench/lines.py [--lines N] …``.

All programs read the same URLs of 66 bytes, in turn, and write to a file. ``--csv`` and ``--jsonl`` read them as a
field of records that have a number and a title, too; in ``--csv, lines`` the title of each record has a newline. The
share ``--repeated`` of the lines repeats an earlier line: ``popular`` any earlier line, so that some come often, as
links do; ``anywhere`` any earlier URL, each as often as the others. The table has the median of the rounds: lines a
second, seconds of wall time, of the program's processor time and of the server's, and the program's largest peak
memory. The server listens on a unix socket and is asked by one client. Machines are noisy: read ratios. ``x`` is the
median of the rounds' ratios to ``dedupe``, of wall time and of the program's processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from processes import run as run_program
from servers import address, server
from urls import url

if TYPE_CHECKING:
    import redis

COMMAND = [sys.executable, "-m", "urifilter_redis.cli"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program.

    Attributes:
        wall: seconds from its start to its end.
        client: seconds of its processor time.
        server: seconds of the server's processor time.
        memory: its peak memory, MB.
        printed: the number of lines that it printed.
    """

    wall: float
    client: float
    server: float
    memory: float
    printed: int


def records(number: int) -> dict[str, bytes]:
    """Return the line of a URL in each form."""
    uri, title = url(number), f"Page {number}, and its title"
    as_json = json.dumps({"id": number, "url": uri.decode(), "title": title}).encode()
    return {
        "plain": uri,
        "--csv": b'%d,%s,"%s"' % (number, uri, title.encode()),
        "--csv, lines": b'%d,%s,"%s"' % (number, uri, title.replace(", ", "\n").encode()),
        "--jsonl": as_json,
    }


#: The first line of each form that has one.
HEADERS = {"--csv": b"id,url,title\n", "--csv, lines": b"id,url,title\n"}


def write(folder: Path, count: int, repeated: float, how: str) -> dict[str, Path]:
    """Write the lines in each form; return the files."""
    chance, numbers, distinct = random.Random(1), [], 0
    files = {form: folder / form for form in records(0)}
    with contextlib.ExitStack() as stack:
        opened = {form: stack.enter_context(path.open("wb")) for form, path in files.items()}
        for form, header in HEADERS.items():
            opened[form].write(header)
        for _ in range(count):
            if distinct and chance.random() < repeated:
                number = numbers[int(chance.random() * len(numbers))]
            else:
                number, distinct = distinct, distinct + 1
            if how == "popular" or number == distinct - 1:
                numbers.append(number)
            for form, line in records(number).items():
                opened[form].write(line + b"\n")
    return files


def server_time(client: redis.Redis) -> float:
    """Return the processor time that the server has used, seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def run(command: Sequence[str], file: Path, client: redis.Redis, environment: dict[str, str]) -> Run:
    """Run a program that reads a file on stdin."""
    out = file.with_suffix(".out")
    before, start = server_time(client), time.perf_counter()
    used = run_program(command, file, out, environment)
    wall = time.perf_counter() - start
    with out.open("rb") as printed:
        lines = sum(block.count(b"\n") for block in iter(lambda: printed.read(1 << 20), b""))
    return Run(wall, used.ru_utime + used.ru_stime, server_time(client) - before, used.ru_maxrss / 1024, lines)


def ways(chosen: Sequence[str]) -> dict[str, tuple[list[str], str]]:
    """Return the commands by name, each with the form that it reads; awks that are not installed are left out."""
    found = {name: ([*COMMAND, name, "-q"], "plain") for name in ("dedupe", "add", "check")}
    for form in records(0):
        if form != "plain":
            found[f"dedupe {form}"] = ([*COMMAND, "dedupe", "-q", form.partition(",")[0], "--field", "url"], form)
    for awk in ("mawk", "gawk", "original-awk"):
        if shutil.which(awk):
            found[awk] = ([awk, "!seen[$0]++"], "plain")
    found["sort"] = (["sort", "-u"], "plain")
    return {name: way for name, way in found.items() if not chosen or name in chosen}


def show(found: dict[str, list[Run]], count: int, what: str) -> None:
    """Print the table of one file."""
    print(f"{count:,} lines, {what}")
    columns = f"{'lines/s':>11} {'wall s':>8} {'client s':>9} {'server s':>9} {'MB':>7} {'printed':>11}"
    print(f"{'':20} {columns} {'x wall':>7} {'x client':>9}")
    first = found.get("dedupe", next(iter(found.values())))
    for name, runs in found.items():
        wall, used, served = (
            statistics.median(getattr(each, key) for each in runs) for key in ("wall", "client", "server")
        )
        ratios = (
            statistics.median(getattr(run, key) / getattr(other, key) for run, other in zip(runs, first, strict=True))
            for key in ("wall", "client")
        )
        memory = max(each.memory for each in runs)
        times = f"{count / wall:11,.0f} {wall:8.2f} {used:9.2f} {served:9.2f}"
        print(f"{name:20} {times} {memory:7.0f} {runs[-1].printed:11,} {next(ratios):7.2f} {next(ratios):9.2f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--repeated", type=float, default=0.6)
    parser.add_argument("--how", nargs="+", choices=["popular", "anywhere"], default=["popular", "anywhere"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=["redis", "valkey"], default="redis")
    parser.add_argument("--only", nargs="+", default=[], help="only these programs")
    options = parser.parse_args()
    commands = ways(options.only)
    for how in options.how:
        with tempfile.TemporaryDirectory(prefix="uf-") as folder, server(options.server) as client:
            files = write(Path(folder), options.lines, options.repeated, how)
            environment = os.environ | {"URIFILTER_REDIS_URL": address(client), "LC_ALL": "C"}
            found: dict[str, list[Run]] = {name: [] for name in commands}
            for _ in range(options.rounds):
                for name, (command, form) in commands.items():
                    if name != "check":  # it asks the filter that the command before it has filled
                        client.flushall()
                    found[name].append(run(command, files[form], client, environment))
            show(found, options.lines, f"{options.repeated:.0%} of them repeat {how} earlier ones")


if __name__ == "__main__":
    main()
