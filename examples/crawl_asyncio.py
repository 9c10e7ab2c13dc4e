"""Crawl a site with several processes: ``python examples/crawl_asyncio.py http://localhost:8080/``.

Each process claims the links that it finds, fetches their pages and commits them. It releases pages that would wait
long, and an idle process takes them over, on as many machines as you like: the filter is the queue, too. A process that
is killed is started again. The pages that it had in flight are taken over once its lease is over, so that none is lost.
The crawl is over when nobody has a page in flight any more. It needs httpx: ``pip install httpx``.
"""

import argparse
import asyncio
import multiprocessing
from collections import deque

import httpx
from pages import links_of
from rich.console import Console

from urifilter_redis import AsyncClaims, AsyncUriFilter

FILTER = "crawl-asyncio"

#: Pages that a process fetches at the same time, and those that it keeps waiting at most.
TASKS, WAITING = 16, 100

#: Tries of a page that cannot be had, and seconds between them.
TRIES, DELAY = 3, 2

#: Statuses of servers that may answer better later.
FAILED = {408, 429, 500, 502, 503, 504}


class Crawl:
    """The crawl of one process: its claims, and those of them that wait to be fetched."""

    def __init__(self, mine: AsyncClaims, http: httpx.AsyncClient) -> None:
        self.mine, self.http = mine, http
        self.waiting: deque[str] = deque()
        self.looking = asyncio.Lock()

    async def fetch_pages(self) -> None:
        """Fetch pages until the crawl is over."""
        while url := await self.next_page():
            try:
                page = await self.http.get(url)
            except httpx.HTTPError as error:
                await self.try_again(url, repr(error))
                continue
            if page.status_code in FAILED:
                await self.try_again(url, f"status {page.status_code}")
            else:
                self.waiting.extend(await self.mine.unique(links_of(page)))
                await self.mine.commit([url])  # after its links: if this process dies in between, none is lost
                if surplus := [self.waiting.pop() for _ in range(len(self.waiting) - WAITING)]:
                    await self.mine.release(surplus)

    async def next_page(self) -> str | None:
        """Return the next page; None if nobody has one in flight any more."""
        async with self.looking:
            while not self.waiting:
                self.waiting.extend(claim.item for claim in await self.mine.reclaim(WAITING))
                if not (self.waiting or self.mine.held or await self.mine.outstanding()):
                    return None
                if not self.waiting:
                    await asyncio.sleep(0.1)
            return self.waiting.popleft()

    async def try_again(self, url: str, reason: str) -> None:
        """Give back a page that could not be had, or reject it: ``urifilter dead-letters crawl`` lists these."""
        tried = sum(claim.failures for claim in self.mine.claimed([url])) + 1
        if tried < TRIES:
            await self.mine.release([url], delay=DELAY * tried, failed=True)
        else:
            await self.mine.reject([url], reason)


async def crawl(redis_url: str | None, lease: float) -> None:
    """Fetch pages with some tasks."""
    async with (
        AsyncUriFilter.open(FILTER, redis=redis_url) as news,
        news.claims(lease) as mine,
        httpx.AsyncClient() as http,
    ):
        this = Crawl(mine, http)
        await asyncio.gather(*(this.fetch_pages() for _ in range(TASKS)))


def run(redis_url: str | None, lease: float) -> None:
    """Do as ``crawl``, in a process and event loop of its own."""
    asyncio.run(crawl(redis_url, lease))


async def keep_running(redis_url: str | None, lease: float) -> int:
    """Run a process until it ends by itself; return how often it was started again."""
    for starts in range(100):
        process = multiprocessing.get_context("spawn").Process(target=run, args=(redis_url, lease))
        process.start()
        await asyncio.to_thread(process.join)
        if process.exitcode == 0:
            return starts
    raise SystemExit("a process of the crawl ended again and again")


async def show(news: AsyncUriFilter) -> None:
    """Show how far the crawl is, until cancelled."""
    with Console(stderr=True).status("") as line:
        while True:
            line.update(f"{await news.inserted():,} pages fetched")
            await asyncio.sleep(0.1)


async def main() -> None:
    """Crawl the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the page to begin with")
    parser.add_argument(
        "--redis", help="the server's address; without it URIFILTER_REDIS_URL, else the embedded server"
    )
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--lease", type=float, default=15, help="seconds after which a killed process counts as dead")
    options = parser.parse_args()
    async with AsyncUriFilter.create(FILTER, capacity=1_000_000, redis=options.redis) as news:
        async with news.claims(options.lease) as mine:
            await mine.claim(options.url)  # leaving gives it back: the first process that looks takes it over
        shown = asyncio.create_task(show(news))
        processes = (keep_running(options.redis, options.lease) for _ in range(options.processes))
        again = sum(await asyncio.gather(*processes))
        shown.cancel()
        await asyncio.wait([shown])
        print(f"{await news.inserted():,} pages fetched; processes that were started again: {again:,}")


if __name__ == "__main__":
    asyncio.run(main())
