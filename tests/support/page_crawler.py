"""Crawler processes that are to be killed: each works through one list of URIs, and writes what it did and when.

``python page_crawler.py URL FILTER COUNT LEASE OUT WAY WORK``: a process that forks a crawler for each line (a number)
on its standard input, and prints the crawler's process id. WAY is ``claim`` or ``insert``; WORK is the mean time of a
page, in seconds. To ``claim`` a page of ``is_poison`` fails each time, and is rejected after ``MOST_FAILURES``. A line
of OUT is the crawler's number, the time (``monotonic``, which all processes share), a word, and page numbers:
``taken`` (since the time: the call had begun then), ``fetched``, ``committing``, ``committed`` (the answers are there,
or the page was released), ``final`` (those answered True); ``end``: the crawl is done.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import partial

from urifilter_redis import AnswerLost, FilterAPIError, ServerUnavailable, Timeouts, UriFilter

BATCH, GROUP = 40, 8
MOST_FAILURES = 3


def is_poison(page: int) -> bool:
    return page % 20 == 7


class Crawler:
    """One crawler."""

    def __init__(self, number: int, url: str, name: str, lease: float, out: str, work: float) -> None:
        self.news = UriFilter.open(name, redis=url, timeouts=Timeouts(connect=5, reply=2, total=60))
        self._number, self._lease, self._work = number, lease, work
        self._out = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._dice = random.Random(number)

    def say(self, word: str, pages, at: float | None = None) -> None:
        when = time.monotonic() if at is None else at
        os.write(self._out, f"{self._number} {when:.6f} {word} {' '.join(map(str, pages))}\n".encode())

    def fetch(self, page) -> None:
        time.sleep(self._dice.expovariate(1 / self._work))
        self.say("fetched", [page])

    def shuffled(self, count: int) -> list[list[int]]:
        pages = list(range(count))
        self._dice.shuffle(pages)
        return [pages[start : start + BATCH] for start in range(0, count, BATCH)]

    def insert(self, count: int) -> None:
        """Crawl by plain insert."""
        for batch in self.shuffled(count):
            for page in certain(self.news.unique, batch):
                self.fetch(page)
        self.say("end", [])

    def claim(self, count: int) -> None:
        """Crawl by claims: first the list, then what others lose."""
        with self.news.claims(lease=self._lease) as mine:
            for batch in self.shuffled(count):
                began = time.monotonic()
                self.work(mine, certain(mine.unique, batch), began)
            while True:
                began = time.monotonic()
                try:
                    found = [claim.item for claim in mine.reclaim(BATCH)]
                    left = mine.outstanding()
                except ServerUnavailable:
                    continue
                self.work(mine, found, began)
                if not found and not left:
                    break
                time.sleep(0 if found else left.due)
        self.say("end", [])

    def work(self, mine, pages: list[int], began: float) -> None:
        if pages:
            self.say("taken", pages, began)
        for start in range(0, len(pages), GROUP):
            group = pages[start : start + GROUP]
            for page in group:
                self.fetch(page)
            self.end(mine.commit, [page for page in group if not is_poison(page)])
            for claim in mine.claimed(filter(is_poison, group)):
                if claim.failures < MOST_FAILURES:
                    certain(partial(mine.release, failed=True), [claim.item])
                    self.say("committed", [claim.item])
                else:
                    self.end(partial(mine.reject, reason="poison"), [claim.item])

    def end(self, method, pages: list[int]) -> None:
        """Make pages final."""
        self.say("committing", pages)
        answers = certain(method, pages)
        self.say("final", [page for page, final in zip(pages, answers, strict=True) if final])
        self.say("committed", pages)


def certain(method, pages):
    """Ask until all answers are there, Redis or the service."""
    error = None
    while True:
        try:
            return method(pages, retry=error)
        except AnswerLost as lost:
            error = lost
        except FilterAPIError as lost:
            if lost.error_code != "answer_lost":
                raise
            error = lost


def main() -> None:
    url, name, count, lease, out, way, work = sys.argv[1:]
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                getattr(Crawler(int(line), url, name, float(lease), out, float(work)), way)(int(count))
                status = 0
            finally:
                os._exit(status)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
