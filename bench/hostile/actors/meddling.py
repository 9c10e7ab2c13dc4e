"""A meddler: it makes, fills, unites and drops other filters, writes checkpoints, and asks for rotations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from bench.hostile.actors.part import TIMEOUTS, Part
from bench.hostile.filters import ARCHIVED, EXACT, EXPIRING, uri
from urifilter_redis import UriFilter, UriFilterError

#: All other filters are alike, so that they can be united.
OTHER = {"capacity": 3_000, "error_rate": EXACT, "seed": 1, "large": True}

#: Items of one other filter.
COUNT = 60


class Meddler:
    """Makes other filters, of names of its own, through which it goes in turn."""

    def __init__(self, part: Part) -> None:
        self._part, self._turn = part, 0

    def other(self) -> None:
        """Make two filters, insert into one, unite the other with it, look, and drop both."""
        self._turn += 1
        names = [f"other-{self._part.name}-{self._turn}-{kind}" for kind in ("one", "all")]
        with contextlib.ExitStack() as stack:
            where = {"redis": self._part.redis, "timeouts": TIMEOUTS}
            one, both = (stack.enter_context(UriFilter.create(name, **where, **OTHER)) for name in names)
            items = self._part.dice.sample(range(10_000), COUNT)
            self._say("insert", one, items, lambda: one.insert_ages(map(uri, items)))
            self._say("insert", one, items, lambda: one.insert_ages(map(uri, items)))
            self._say("union", both, items, lambda: [1] * len(items) if both.union(one.name) is not None else [])
            self._say("contains", both, items, lambda: both.ages(map(uri, items)))
            one.drop()
            both.drop()

    def checkpoint(self) -> None:
        """Write a checkpoint beside the worker's."""
        name = self._part.dice.choice(list(ARCHIVED))
        began = self._part.log.say("fault", kind="checkpoint", subject=name, done=False)
        with UriFilter.open(name, redis=self._part.redis, archive=self._part.archive, timeouts=TIMEOUTS) as news:
            news.checkpoint()
        self._part.log.say("checkpoint", filter=name, began=began)

    def rotate(self) -> None:
        """Rotate what is due."""
        name = self._part.dice.choice(EXPIRING)
        with UriFilter.create(name, **self._part.where(name)) as news:
            news.rotate_due()

    def _say(self, how: str, news: UriFilter, items: list[int], ask: Callable[[], list[int]]) -> None:
        call = self._part.log.ask(how, news.name, news.config.uid, items)
        self._part.log.told(call, ask())


def run(part: Part) -> None:
    """Do one of these after the other; what a fault interrupts is left as it is."""
    meddler = Meddler(part)
    for _ in part.steps():
        with contextlib.suppress(UriFilterError):
            part.dice.choice((meddler.other, meddler.checkpoint, meddler.rotate))()
