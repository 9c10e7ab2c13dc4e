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
        self._entries: dict[int, tuple[list[str | bytes], Page]] = {}
        self._tickets = itertools.count(1)
        self._ended: list[Page] = []

    @property
    def items(self) -> set[str | bytes]:
        """All items of the ledger."""
        return {item for items, _ in self._entries.values() for item in items}

    def add(self, items: list[str | bytes], page: Page) -> int:
        """Put in a request of a page; return its ticket."""
        ticket = next(self._tickets)
        self._entries[ticket] = items, page
        page.tickets.add(ticket)
        return ticket

    def take(self, ticket: int) -> list[str | bytes] | None:
        """Take out a request; return its items, or None if it is not there."""
        items, page = self._entries.pop(ticket, (None, None))
        if page is not None:  # that of start() may never end
            page.tickets.discard(ticket)
        return items

    def end(self, page: Page) -> None:
        """Note that a page has no more output."""
        if page.tickets:
            self._ended.append(page)

    def dropped(self) -> list[str | bytes]:
        """Take out the requests that did not reach the scheduler although their page is done; return their items."""
        found: list[str | bytes] = []
        for page in [each for each in self._ended if each.is_done]:
            self._ended.remove(page)
            for ticket in list(page.tickets):
                found += self.take(ticket) or ()
        return found

    def clear(self) -> list[str | bytes]:
        """Take out all; return their items."""
        return [item for ticket in list(self._entries) for item in self.take(ticket) or ()]
