"""Measure ``urifilter dedupe``, ``add`` and ``check`` beside awk and sort.

All programs read the same URLs of 66 bytes, in turn, and write to a file. ``--csv`` and ``--jsonl`` read them as a
field of records that have a number and a title, too; in ``--csv, lines`` the title of each record has a newline. The
share ``--repeated`` of the lines repeats an earlier line: ``popular`` any earlier line, so that some come often, as
links do; ``anywhere`` any earlier URL, each as often as the others. The table has the median of the rounds: lines a
second, seconds of wall time, of the program's processor time and of the server's, and the program's largest peak
memory. The server listens on a unix socket and is asked by one client. Machines are noisy: read ratios. ``x`` is the
median of the rounds' ratios to ``dedupe``, of wall time and of the program's processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import redis

from bench import servers
from bench.runner import Row, ratio, turns
from bench.urls import url
from bench.usage import cpu_of
from bench.usage import run as run_program

COMMAND = [sys.executable, "-m", "urifilter_redis.cli"]

#: How lines repeat earlier ones.
HOW = ("popular", "anywhere")


class Run(NamedTuple):
    """One run of a program: seconds of wall time, of its and the server's processor time, peak MB, lines printed."""

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


def run(command: Sequence[str], file: Path, client: redis.Redis) -> Run:
    """Run a program that reads a file on stdin."""
    if "check" not in command:  # it asks the filter that the command before it has filled
        client.flushall()
    out = file.with_suffix(".out")
    environment = os.environ | {"URIFILTER_REDIS_URL": servers.address(client), "LC_ALL": "C"}
    before, start = cpu_of(client, ""), time.perf_counter()
    used = run_program(command, file, out, environment)
    wall = time.perf_counter() - start
    with out.open("rb") as printed:
        lines = sum(block.count(b"\n") for block in iter(lambda: printed.read(1 << 20), b""))
    return Run(wall, used.ru_utime + used.ru_stime, cpu_of(client, "") - before, used.ru_maxrss / 1024, lines)


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


def rows(found: dict[str, list[Run]], count: int) -> Iterator[Row]:
    """Yield the table of one file."""
    first = Run(*zip(*found.get("dedupe", next(iter(found.values()))), strict=True))
    for name, runs in found.items():
        each = Run(*zip(*runs, strict=True))
        wall = statistics.median(each.wall)
        row: Row = {"program": name, "lines/s": count / wall, "wall s": wall}
        row |= {"client s": statistics.median(each.client), "server s": statistics.median(each.server)}
        row |= {"MB": max(each.memory), "printed": runs[-1].printed}
        yield row | {"x wall": ratio(each.wall, first.wall), "x client": ratio(each.client, first.client)}


def main(
    lines: int = 5_000_000,
    repeated: float = 0.6,
    how: Annotated[Sequence[str], HOW] = HOW,
    rounds: int = 3,
    server: Annotated[str, ("redis", "valkey")] = "redis",
    only: Sequence[str] = (),
) -> Iterator[str | Row]:
    """Yield a table for each way in which lines repeat.

    Options:
        only: only these programs
    """
    for each in how:
        with tempfile.TemporaryDirectory(prefix="uf-") as folder, servers.server(server) as client:
            files = write(Path(folder), lines, repeated, each)
            programs = {name: partial(run, way, files[form], client) for name, (way, form) in ways(only).items()}
            found = turns(programs, rounds)
            yield f"{lines:,} lines, {repeated:.0%} of them repeat {each} earlier ones"
            yield from rows(found, lines)
