"""Measure where the time of ``insert_many`` goes: ``python -m bench.where [--items N] [--batch N …] [--server NAME]``.

It prints a Markdown table for lists of each size, in microseconds an item, of new items and of the same ones again:

- Wall time, of whole calls of ``insert_many`` from one process.
- Client: the processor time of this process in those calls. Each stage was run once more by itself, over the same
  items; "sockets and the rest" is the difference. Stages that are run by themselves find their data in the
  processor's caches, so that this row has what they miss in there besides.
- Server: the processor time of its main thread. "Read, parse, call" is that of a script that does nothing, called with
  the very same arguments, and "reply" the time that another one takes more which answers each item 0. "Lua" is the
  rest: the script itself, with the commands that it calls.
- Both at once: what client and server took together beyond the wall time. Below 0 neither had a processor for so long,
  or one waited for the other to wake up.

The filter is for 100 million items. Machines are noisy: each figure is the least of several rounds, so that sums may
be off by a little.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import hiredis

from bench.servers import NAMES, address, server
from bench.urls import url
from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.engine.batch import Batch
from urifilter_redis.engine.cutting import PART
from urifilter_redis.flows.items import CALLS_IN_FLIGHT
from urifilter_redis.protocol.calls import NO_CALL_ID, Arguments, items, items_a_call
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.transport.sending import packed

if TYPE_CHECKING:
    import redis

CAPACITY = 100_000_000
ROUNDS = 5
PREFIX = "bench"
MIXES = ("new", "seen")

#: A script that does nothing, and one that answers each item 0.
NOTHING = "return 0"
ZEROS = "local answers = {} for i = 1, #ARGV[5] / 16 do answers[i] = 0 end return answers"

#: The stages of the client that are run by themselves.
STAGES = ("encode", "hash", "cut", "pack", "parse", "note")

ROWS = {
    "wall": "**wall**",
    "client": "**client**",
    "encode": "encode the items",
    "hash": "hash them",
    "cut": "cut them into calls by shard",
    "pack": "make and pack the commands",
    "parse": "parse the replies",
    "note": "put the answers into their places",
    "sockets": "sockets and the rest",
    "server": "**server**",
    "read": "read, parse, call",
    "lua": "Lua",
    "reply": "reply",
    "both": "**both at once**",
}

T = TypeVar("T")

Figures = dict[str, float]


def main_thread(client: redis.Redis) -> float:
    """Return the seconds of processor time that the server's main thread has taken."""
    used = client.info("cpu")
    return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: by the clock, and of processor time of this process and of the server's main thread."""

    wall: float
    client: float
    server: float


def spent(client: redis.Redis, work: Callable[[], object]) -> Spent:
    """Return what a piece of work took."""
    server_before, client_before, begun = main_thread(client), time.process_time(), time.perf_counter()
    work()
    wall, own = time.perf_counter() - begun, time.process_time() - client_before
    return Spent(wall, own, main_thread(client) - server_before)


def lists(uris: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return lists of at most ``size`` URIs."""
    return [uris[start : start + size] for start in range(0, len(uris), size)]


def batches(news: UriFilter, digests: Sequence[list[bytes]]) -> list[Batch]:
    """Return the batch of each list, cut into calls as ``insert_many`` cuts it."""
    config = news.config

    def size(shard: int) -> int:
        return items_a_call(config, len(news.view(shard).slices))

    made = [Batch("insert", each, each, shards=config.shards, cut=size, client="", part=PART) for each in digests]
    for each in made:
        each.cut(len(each.items))
    return made


def commands(news: UriFilter, batch: Batch, sha1: str | None = None) -> list[Arguments]:
    """Return the commands of a batch; ``sha1``: of another script, with the same arguments."""
    config = news.config
    keys = FilterKeys(PREFIX, news.name, config.shards)
    found = []
    for each in batch.open:
        view = news.view(each.shard)
        command = items("insert", config, keys.shard(each.shard), view, NO_CALL_ID, each.packed).command()
        found.append(command if sha1 is None else (command[0], sha1, *command[2:]))
    return found


def client_stages(news: UriFilter, uris: Sequence[str], size: int) -> Figures:
    """Return the seconds of the client's stages, each run by itself."""
    took: Figures = {}

    def timed(stage: str, work: Callable[[], list[T]]) -> list[T]:
        begun = time.process_time()
        made = work()
        took[stage] = time.process_time() - begun
        return made

    hash_all = hasher(news.config.hash, news.config.seed)
    encoded = timed("encode", lambda: [encode_items(each) for each in lists(uris, size)])
    digests = timed("hash", lambda: [hash_all(each) for each in encoded])
    cut = timed("cut", lambda: batches(news, digests))
    timed("pack", lambda: [packed(commands(news, each)) for each in cut])
    replies = [[reply(len(call.positions)) for call in each.open] for each in cut]
    answers = timed("parse", lambda: [list(map(parsed, each)) for each in replies])
    timed("note", lambda: [noted(batch, each) for batch, each in zip(cut, answers, strict=True)])
    return took


def reply(count: int) -> bytes:
    """Return a reply as the server sends it."""
    return b"*%d\r\n" % count + b":0\r\n" * count


def parsed(data: bytes) -> list[int]:
    """Return a reply as Python has it."""
    reader = hiredis.Reader()
    reader.feed(data)
    answers = reader.gets()
    assert isinstance(answers, list)
    return answers


def noted(batch: Batch, answers: Sequence[Sequence[int]]) -> list[bool]:
    """Return the result of ``insert_many`` for a batch whose calls have these answers."""
    for call, each in zip(list(batch.open), answers, strict=True):
        batch.close(call, each)
    return [answer == 0 for answer in batch.answers]


def script(client: redis.Redis, source: str, cut: Sequence[Batch], news: UriFilter) -> float:
    """Return the seconds of the server for calls of another script with the arguments of all batches."""
    sha1 = client.script_load(source)
    made = [commands(news, batch, sha1) for batch in cut]
    connection = client.connection_pool.get_connection()

    def send() -> None:
        for each in made:
            for start in range(0, len(each), CALLS_IN_FLIGHT):
                window = each[start : start + CALLS_IN_FLIGHT]
                connection.send_packed_command(packed(window))
                for _ in window:
                    connection.read_response()

    used = spent(client, send)
    client.connection_pool.release(connection)
    return used.server


def one_round(client: redis.Redis, news: UriFilter, uris: Sequence[str], size: int) -> Iterator[Figures]:
    """Yield the seconds of each row that is measured: for URIs that are new, and for the same ones again."""
    more = client_stages(news, uris, size)
    hash_all = hasher(news.config.hash, news.config.seed)
    cut = batches(news, [hash_all(encode_items(each)) for each in lists(uris, size)])
    more |= {"read": script(client, NOTHING, cut, news), "zeros": script(client, ZEROS, cut, news)}
    for _ in MIXES:
        used = spent(client, lambda: [news.insert_many(each) for each in lists(uris, size)])
        yield more | {"wall": used.wall, "client": used.client, "server": used.server}


def table(client: redis.Redis, count: int, sizes: Sequence[int], rounds: int = ROUNDS) -> str:
    """Return the table of a server: the least of the rounds, of which each has ``count`` URIs of its own."""
    columns: list[Figures] = []
    numbers = iter(range(count * len(sizes) * rounds))
    url_of_server = address(client)
    news = UriFilter.create("where", redis=url_of_server, prefix=PREFIX, capacity=CAPACITY, large=True)
    with news:
        for size in sizes:
            news.insert(f"the script is loaded for lists of {size}")
            found: list[list[Figures]] = [[] for _ in MIXES]
            for _ in range(rounds):
                uris = [url(number).decode() for number in itertools.islice(numbers, count)]
                for mix, figures in zip(found, one_round(client, news, uris, size), strict=True):
                    mix.append(figures)
            columns += [least(each, count) for each in found]
    heads = [f"{size:,}, {mix}" for size in sizes for mix in MIXES]
    lines = [f"| µs an item | {' | '.join(heads)} |", f"| :-- |{' --: |' * len(heads)}"]
    lines += [f"| {label} | {' | '.join(f'{each[row]:.2f}' for each in columns)} |" for row, label in ROWS.items()]
    return "\n".join(lines)


def least(figures: Sequence[Figures], count: int) -> Figures:
    """Return the least of each row, microseconds an item, and the rows that follow from others."""
    found = {row: min(each[row] for each in figures) * 1e6 / count for row in figures[0]}
    found["sockets"] = found["client"] - sum(found[stage] for stage in STAGES)
    found["reply"] = found["zeros"] - found["read"]
    found["lua"] = found["server"] - found["zeros"]
    found["both"] = found["client"] + found["server"] - found["wall"]
    return found


def pin(client: redis.Redis) -> str:
    """Give the server a core of its own, if there are two; return a sentence about it."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return "Client and server share one core."
    os.sched_setaffinity(client.info("server")["process_id"], cores[1:2])
    os.sched_setaffinity(0, cores[:1])
    return "Client and server have a core each."


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[5000, 100_000])
    parser.add_argument("--server", choices=NAMES, default="redis")
    options = parser.parse_args()
    with server(options.server) as client:
        print(pin(client), end="\n\n")
        print(table(client, options.items, options.batch))


if __name__ == "__main__":
    main()
