"""A crawler process: inserts numbered URIs in an order of its own, and writes those that it was told are new.

``python crawler.py URL FILTER COUNT SEED BATCH FORKS THREADS OUT [without] [tasks]``: FORKS children of one opened
filter, THREADS threads each, all of them inserting all COUNT URIs; every "new" is a line appended to OUT. ``without``:
with call id "-", as a client that does not know of call ids would. ``tasks``: tasks of asyncio in place of threads.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import threading

from urifilter_redis import AnswerLost, AsyncUriFilter, Timeouts, UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.protocol.calls import NO_CALL_ID

PATIENT = Timeouts(connect=5, reply=5, total=60)


def do_without_call_ids() -> None:
    """Send every call with call id "-"; all else, retries too, stays as it is."""
    perform = driver.perform_step

    def without(step, sender):
        if isinstance(step, Send):
            step = Send([tuple(NO_CALL_ID if is_call_id(each) else each for each in made) for made in step.commands])
        return perform(step, sender)

    driver.perform_step = without


def is_call_id(argument) -> bool:
    return isinstance(argument, str) and bool(re.fullmatch(r"[0-9a-f]{16}/\d+/\d+/\d+", argument))


def batches(count: int, seed: int, batch: int) -> list[list[str]]:
    uris = [f"https://example.com/{i}" for i in range(count)]
    random.Random(seed).shuffle(uris)
    return [uris[start : start + batch] for start in range(0, count, batch)]


def insert_all(news: UriFilter, count: int, seed: int, batch: int, out: int) -> None:
    for some in batches(count, seed, batch):
        error = None
        while True:
            try:
                new = news.unique(some, retry=error)
                break
            except AnswerLost as lost:
                error = lost
        os.write(out, "".join(f"{uri}\n" for uri in new).encode())


async def insert_all_async(news: AsyncUriFilter, count: int, seed: int, batch: int, out: int) -> None:
    for some in batches(count, seed, batch):
        error = None
        while True:
            try:
                new = await news.unique(some, retry=error)
                break
            except AnswerLost as lost:
                error = lost
        os.write(out, "".join(f"{uri}\n" for uri in new).encode())


def run_tasks(url: str, name: str, count: int, seed: int, batch: int, tasks: int, out: int) -> None:
    async def run() -> None:
        async with await AsyncUriFilter.open(name, redis=url, timeouts=PATIENT) as news:
            await asyncio.gather(*(insert_all_async(news, count, seed * 100 + i, batch, out) for i in range(tasks)))

    asyncio.run(run())


def run_threads(news: UriFilter, count: int, seed: int, batch: int, threads: int, out: int) -> None:
    workers = [
        threading.Thread(target=insert_all, args=(news, count, seed * 100 + i, batch, out)) for i in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main() -> None:
    url, name, out_path = sys.argv[1], sys.argv[2], sys.argv[8]
    count, seed, batch, forks, threads = map(int, sys.argv[3:8])
    if "without" in sys.argv[9:]:
        do_without_call_ids()
    out = os.open(out_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    news = UriFilter.open(name, redis=url, timeouts=PATIENT)
    news.insert("warm up: connections and slots exist before the fork")
    children = []
    for child in range(forks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if "tasks" in sys.argv[9:]:
                    run_tasks(url, name, count, seed * 10 + child, batch, threads, out)
                else:
                    run_threads(news, count, seed * 10 + child, batch, threads, out)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    sys.exit(failed)


if __name__ == "__main__":
    main()
