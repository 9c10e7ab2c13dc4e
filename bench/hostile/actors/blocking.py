"""A blocking client: it inserts and looks up in all filters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.hostile.actors.part import Part, answers_of, gives_up, uid_of
from bench.hostile.filters import SETTINGS, uri
from urifilter_redis import UriFilter, UriFilterError

#: The filters that plain clients ask.
PLAIN = [name for name in SETTINGS if name != "claims"]

#: The share of calls that look up and do not insert.
LOOKS = 0.25


class Opened:
    """Filters by their names, opened again if they were lost."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._open: dict[str, UriFilter] = {}

    def get(self, name: str) -> UriFilter:
        """Return the filter; make it, or restore it, until that succeeds.

        Raises:
            UriFilterError: it did not succeed, and the run is over.
        """
        while name not in self._open:
            try:
                self._open[name] = UriFilter.create(name, **self._part.where(name))
            except UriFilterError:
                if not self._part.goes_on():
                    raise
                time.sleep(0.3)
        return self._open[name]

    def mend(self, name: str) -> None:
        """Restore the filter from its archive, or make it anew, if it is lost."""
        try:
            made = UriFilter.create(name, **self._part.where(name))
        except UriFilterError:
            return
        if made.config.uid == self.get(name).config.uid:
            made.close()
        else:
            self._open.pop(name).close()
            self._open[name] = made


def certain(opened: Opened, name: str, method: Callable[..., list[Any]], count: int, *, repeats: bool) -> list[Any]:
    """Ask until all answers are there; ``repeats``: by ``retry=`` of the last error.

    It gives up after a long time, and if the filter was made anew, as one without an archive is.
    """
    began, error, more, news = time.monotonic(), None, {}, opened.get(name)
    while True:
        try:
            return method(**more)
        except UriFilterError as failed:
            if repeats and failed.answers is not None:
                error, more = failed, {"retry": failed}
            opened.mend(name)
            if gives_up(began, failed) or opened.get(name) is not news:
                return answers_of(error, count) if error is not None else [None] * count
            time.sleep(0.1)


def ask(part: Part, opened: Opened, name: str, how: str, numbers: list[int], **more: object) -> None:
    """Ask about items, and say so before and after."""
    news, items = opened.get(name), [uri(each) for each in numbers]
    call = part.log.ask(how, name, uid_of(name, news), numbers, **more)
    if how == "insert":
        method, repeats = (lambda **retry: news.insert_ages(items, **retry)), True
    else:
        method, repeats = (lambda: news.ages(items)), False
    part.log.told(call, certain(opened, name, method, len(items), repeats=repeats))


def run(part: Part) -> None:
    """Ask about items of one filter after the other."""
    opened = Opened(part)
    for _ in part.steps():
        how = "contains" if part.dice.random() < LOOKS else "insert"
        ask(part, opened, part.dice.choice(PLAIN), how, part.some())
