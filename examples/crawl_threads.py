"""Crawl a site with the threads of one process: ``python examples/crawl_threads.py http://localhost:8080/``.

The threads share one filter. It goes through the site by levels: all pages that are one link away, then two, and so on.
A second run fetches nothing: it would have to ``forget`` the pages, or use a filter that expires them. It needs httpx:
``pip install httpx``.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import httpx
from pages import links_of

from urifilter_redis import UriFilter

THREADS = 16


def main() -> None:
    """Crawl the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the page to begin with")
    parser.add_argument(
        "--redis", help="the server's address; without it URIFILTER_REDIS_URL, else the embedded server"
    )
    options = parser.parse_args()
    with (
        UriFilter.create("crawl-threads", capacity=1_000_000, redis=options.redis) as seen,
        httpx.Client() as http,
        ThreadPoolExecutor(THREADS) as pool,
    ):

        def new_links(url: str) -> list[str]:
            """Fetch a page; return those of its links that no thread has seen."""
            try:
                return seen.unique(links_of(http.get(url)))
            except httpx.HTTPError as error:
                print(f"{url}: {error or type(error).__name__}")
                return []

        level, fetched = seen.unique([options.url]), 0
        while level:
            fetched += len(level)
            level = [link for links in pool.map(new_links, level) for link in links]
        print(f"{fetched:,} pages fetched")


if __name__ == "__main__":
    main()
