"""Crawl a site with Crawlee: ``pip install 'crawlee[parsel]'``, ``python examples/crawl_crawlee.py http://localhost:8080/``.

Crawlee knows which requests are in the queue of its own process. The filter knows those of all processes and of all
runs: each page asks once, about all of its links, and only new ones get into the queue.
"""

import argparse
import asyncio

from crawlee import ConcurrencySettings, Request
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext

from urifilter_redis import AsyncUriFilter


async def main() -> None:
    """Crawl the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the page to begin with")
    parser.add_argument(
        "--redis", help="the server's address; without it URIFILTER_REDIS_URL, else the embedded server"
    )
    options = parser.parse_args()
    crawler = ParselCrawler(concurrency_settings=ConcurrencySettings(desired_concurrency=16), max_request_retries=0)
    made = {"capacity": 1_000_000, "normalize": "whatwg"}  # which drops the part behind "#"
    async with AsyncUriFilter.create("crawl-crawlee", redis=options.redis, **made) as seen:

        async def new_requests(urls: list[str]) -> list[Request]:
            # Crawlee's own key has the URL in small letters: it would drop pages that are new
            return [Request.from_url(url, unique_key=url) for url in await seen.unique(urls)]

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            links = await context.extract_links()
            await context.add_requests(await new_requests([link.url for link in links]))

        done = await crawler.run(await new_requests([options.url]))
    print(f"{done.requests_finished:,} pages fetched, {done.requests_failed:,} failed")


if __name__ == "__main__":
    asyncio.run(main())
