"""Crawl a list of pages with four processes: ``python examples/crawl.py examples/urls.txt``.

Every process goes through the whole list. The filter decides which process fetches a page.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from urifilter_redis import UriFilter

PROCESSES = 4


def fetch(page: str) -> str:
    """Fetch a page; a real crawler does its work here."""
    return page


def crawl(pages: list[str]) -> list[str]:
    """Fetch the pages that no process has fetched before; return them."""
    fetched: list[str] = []
    with UriFilter.open("crawl") as seen:
        for start in range(0, len(pages), 100):
            fetched += map(fetch, seen.unique(pages[start : start + 100]))
    return fetched


def main() -> None:
    """Let all processes crawl, and count their pages."""
    pages = Path(sys.argv[1]).read_text().splitlines()
    with UriFilter.create("crawl", capacity=100_000) as seen, ProcessPoolExecutor(PROCESSES) as pool:
        fetched = [page for of_one in pool.map(crawl, [pages] * PROCESSES) for page in of_one]
        print(f"{PROCESSES} processes, {len(pages):,} lines each, {len(set(pages)):,} different pages")
        print(f"{len(fetched):,} pages fetched, {len(fetched) - len(set(fetched)):,} of them twice")
        seen.drop()  # so that the next run finds them new


if __name__ == "__main__":
    main()
