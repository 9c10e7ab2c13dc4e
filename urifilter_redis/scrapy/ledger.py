"""The ledger: requests that were answered "new" and are on their way to the scheduler."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urifilter_redis.scrapy.page import Page

__all__ = ["Ledger"]


class Ledger:
    """The items of requests by their tickets.

    The dupefilter takes a request out as it lets it pass. Requests that are in the ledger when their page is done were
    dropped on the way.
    """

    def __init__(self) -> None:
        self._items: dict[int, list[str | bytes]] = {}
        self._tickets = itertools.count(1)
        self._ended: list[Page] = []

    @property
    def items(self) -> set[str | bytes]:
        """All items of the ledger."""
        return {item for items in self._items.values() for item in items}

    def add(self, items: list[str | bytes], page: Page) -> int:
        """Put in a request of a page; return its ticket."""
        ticket = next(self._tickets)
        self._items[ticket] = items
        page.tickets.add(ticket)
        return ticket

    def take(self, ticket: int) -> list[str | bytes] | None:
        """Take out a request; return its items, or None if it is not there."""
        return self._items.pop(ticket, None)

    def end(self, page: Page) -> None:
        """Note that a page has no more output."""
        page.tickets &= self._items.keys()
        if page.tickets:
            self._ended.append(page)

    def dropped(self) -> list[str | bytes]:
        """Take out the requests that did not reach the scheduler although their page is done; return their items."""
        found: list[str | bytes] = []
        for page in [each for each in self._ended if each.is_done]:
            self._ended.remove(page)
            for ticket in page.tickets & self._items.keys():
                found += self._items.pop(ticket)
        return found

    def clear(self) -> list[str | bytes]:
        """Take out all; return their items."""
        items = [item for items in self._items.values() for item in items]
        self._items.clear()
        return items
