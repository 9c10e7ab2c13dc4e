"""A crawler that claims: it commits what it has done, gives some back as failed, and reclaims what others lose."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.hostile.actors.blocking import Opened, certain
from bench.hostile.actors.part import PATIENCE, Part
from bench.hostile.filters import number_of, uri
from urifilter_redis import UriFilter, UriFilterError
from urifilter_redis.claiming.blocking import Claims

NAME = "claims"

#: Seconds that a holder lives without a call: the least.
LEASE = 5.0

#: The share of rounds that claim, and do not reclaim; and of items that are given back as failed.
CLAIMS, FAILED = 0.7, 0.1


class Crawler:
    """One holder, and what it says of its calls."""

    def __init__(self, part: Part, opened: Opened, mine: Claims, **more: object) -> None:
        self._part, self._opened, self._mine, self._more = part, opened, mine, more

    def claim(self, numbers: list[int]) -> list[int]:
        """Claim items; return those that are in flight now."""
        answers = self._ask("claim", numbers, self._mine.claim_ages)
        return [number for number, age in zip(numbers, answers, strict=True) if age == 0]

    def commit(self, numbers: list[int]) -> None:
        """Make items final."""
        self._ask("commit", numbers, self._mine.commit)

    def release(self, numbers: list[int]) -> None:
        """Give items back, to be offered again a second later."""
        release = self._mine.release
        self._ask("release", numbers, lambda items, **retry: release(items, delay=1, failed=True, **retry))

    def reclaim(self) -> list[int]:
        """Take over what others have lost; return it."""
        call = self._part.log.ask("reclaim", NAME, "", [], **self._more)
        try:
            found = [number_of(claim.item) for claim in self._mine.reclaim(50)]
        except UriFilterError:
            found = []
        self._part.log.told(call, [[number, 1] for number in found])
        return found

    def drain(self) -> None:
        """Reclaim and commit until nobody else has anything, or for too long."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := self.reclaim():
                self.commit(found)
                continue
            try:
                left = self._mine.outstanding()
            except UriFilterError:
                time.sleep(0.5)
                continue
            if not left:
                return
            time.sleep(min(left.due or 1.0, 5.0))

    def _ask(self, how: str, numbers: list[int], method: Callable[..., list[int]]) -> list[int]:
        if not numbers:
            return []
        items = [uri(each) for each in numbers]
        call = self._part.log.ask(how, NAME, "", numbers, **self._more)
        answers = certain(self._opened, NAME, lambda **retry: method(items, **retry), len(items), repeats=True)
        self._part.log.told(call, [None if each is None else int(each) for each in answers])
        return answers


def holder_of(news: UriFilter) -> Claims:
    """Return a new holder."""
    while True:
        try:
            return news.claims(lease=LEASE)
        except UriFilterError:
            time.sleep(0.3)


def run(part: Part) -> None:
    """Claim, work, and commit most of it; leave the rest to others."""
    opened = Opened(part)
    mine = holder_of(opened.get(NAME))
    crawler = Crawler(part, opened, mine)
    for _ in part.steps():
        found = crawler.claim(part.some(10)) if part.dice.random() < CLAIMS else crawler.reclaim()
        time.sleep(part.rest())
        failed = [each for each in found if part.dice.random() < FAILED]
        crawler.commit([each for each in found if each not in failed])
        crawler.release(failed)
    mine.close()
