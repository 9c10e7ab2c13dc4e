"""Crawl a site with several processes: ``python examples/crawl_asyncio.py http://localhost:8080/``.

The pages to fetch wait in a list in Redis, first in, first out, so that the crawl is breadth-first. All processes take
from it, on as many machines as you like. The filter sees to it that each page gets into the list once. A process that
is killed is started again. It has lost the pages that it had in hand: those that it took from the list, and new links
that it had not put into the list yet.
"""

import argparse
import asyncio
import multiprocessing

import httpx
import redis.asyncio
from pages import links_of
from rich.console import Console

from urifilter_redis import AsyncUriFilter

FILTER, WAITING = "crawl", "crawl:waiting"

#: Pages that a process fetches at the same time.
TASKS = 16


async def crawl(redis_url: str, patience: float) -> None:
    """Fetch pages until none has waited for some seconds."""
    async with (
        AsyncUriFilter.open(FILTER, redis=redis_url) as seen,
        redis.asyncio.from_url(redis_url, decode_responses=True) as waiting,
        httpx.AsyncClient() as http,
    ):

        async def fetch_pages() -> None:
            while taken := await waiting.blpop([WAITING], timeout=patience):
                try:
                    page = await http.get(taken[1])
                except httpx.HTTPError:
                    continue  # a real crawler tries again later, or makes it new again: await seen.forget([url])
                if new := await seen.unique(links_of(page)):
                    await waiting.rpush(WAITING, *new)

        await asyncio.gather(*(fetch_pages() for _ in range(TASKS)))


def run(redis_url: str, patience: float) -> None:
    """Do as ``crawl``, in a process and event loop of its own."""
    asyncio.run(crawl(redis_url, patience))


async def keep_running(redis_url: str, patience: float) -> int:
    """Run a process until it ends by itself; return how often it was started again."""
    for starts in range(100):
        process = multiprocessing.get_context("spawn").Process(target=run, args=(redis_url, patience))
        process.start()
        await asyncio.to_thread(process.join)
        if process.exitcode == 0:
            return starts
    raise SystemExit("a process of the crawl ended again and again")


async def show(seen: AsyncUriFilter, waiting: redis.asyncio.Redis) -> None:
    """Show how far the crawl is, until cancelled."""
    with Console(stderr=True).status("") as line:
        while True:
            line.update(f"{await seen.inserted():,} pages found, {await waiting.llen(WAITING):,} of them wait")
            await asyncio.sleep(0.1)


async def main() -> None:
    """Crawl the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the page to begin with")
    parser.add_argument("--redis", default="redis://localhost:6379/0", help="the server's address (%(default)s)")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for a page before the crawl is over")
    options = parser.parse_args()
    async with (
        AsyncUriFilter.create(FILTER, capacity=1_000_000, redis=options.redis) as seen,
        redis.asyncio.from_url(options.redis) as waiting,
    ):
        if await seen.insert(options.url):  # a second command helps with the first one's crawl
            await waiting.rpush(WAITING, options.url)
        shown = asyncio.create_task(show(seen, waiting))
        processes = (keep_running(options.redis, options.patience) for _ in range(options.processes))
        again = sum(await asyncio.gather(*processes))
        shown.cancel()
        await asyncio.wait([shown])
        print(f"{await seen.inserted():,} pages found; processes that were started again: {again:,}")


if __name__ == "__main__":
    asyncio.run(main())
