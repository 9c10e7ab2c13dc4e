"""What every actor has: where all is, its journal and dice, and how it comes to all answers of a call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.hostile import filters
from bench.hostile.journal import Journal
from urifilter_redis import Timeouts, UriFilterError

#: Seconds after which a call without an answer is given up: longer than every fault, and than a deadline.
PATIENCE = 240.0

#: What the library says once asking again is of no use, because the clock was set far or eight minutes are over.
FOR_GOOD = "its record is too old to be certain"

TIMEOUTS = Timeouts(connect=1, reply=1.5, total=3, restoring=2)


@dataclass(slots=True)
class Part:
    """The settings of one actor, and what it needs; a context manager.

    Attributes:
        name: the beginning of the names of its calls.
        seed: of its dice.
        redis: the server's address, by way of a proxy.
        service: the service's address, likewise.
        archive: the archive's address.
        layout: of the filters without an archive.
        journal: the file for what it is told.
        before: the journals of the processes whose place it takes.
        start: when the run began.
        stop: a file; once it is there, the actor ends.
        pause: seconds between two of its calls, on average.
    """

    name: str
    seed: int
    redis: str
    service: str
    archive: str
    layout: str
    journal: str
    before: list[str]
    start: float
    stop: str
    pause: float
    dice: random.Random = field(init=False)
    log: Journal = field(init=False)

    def __enter__(self) -> Self:
        self.dice = random.Random(f"{self.seed} {self.name}")
        self.log = Journal(self.journal, self.name)
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def goes_on(self) -> bool:
        """Whether the run goes on."""
        return not Path(self.stop).exists()

    def steps(self) -> Iterator[None]:
        """Come round again and again, with a pause, as long as the run goes on."""
        while self.goes_on():
            yield
            time.sleep(self.rest())

    def rest(self) -> float:
        """Return the seconds until the next call."""
        return self.dice.uniform(0, 2 * self.pause)

    def some(self, count: int = 40) -> list[int]:
        """Return the numbers of items to ask about now."""
        return filters.some(self.dice, time.monotonic() - self.start, count)

    def where(self, name: str) -> dict[str, Any]:
        """Return how a filter is opened or made: ``create`` does both."""
        place = {"redis": self.redis, "timeouts": TIMEOUTS, "large": True} | filters.SETTINGS[name]
        return place | ({"archive": self.archive} if name in filters.ARCHIVED else {"layout": self.layout})


def uid_of(name: str, opened: Any) -> str:
    """Return the uid under which a filter's items are judged: one that has an archive keeps it."""
    return opened.config.uid if name in filters.BARE else ""


def gives_up(began: float, error: UriFilterError) -> bool:
    """Whether a call that began then, and failed again, is not to be repeated."""
    return FOR_GOOD in str(error) or time.monotonic() > began + PATIENCE


def answers_of(error: UriFilterError, count: int, read: Callable[[Any], Any] = int) -> list[Any]:
    """Return the answers that arrived before a call was given up."""
    return [None if each is None else read(each) for each in error.answers or [None] * count]
