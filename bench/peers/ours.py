"""This library, by its blocking client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bench.peers.on_server import OnServer
from urifilter_redis import UriFilter


class Ours(OnServer):
    """A filter of this library.

    Attributes:
        news: the filter; it exists while the peer is open.
    """

    news: UriFilter

    package = "urifilter-redis"
    layout = "blocked"
    near_cache = 0

    #: Settings of the filter beside capacity, error rate and layout.
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def keys(self) -> str:  # type: ignore[override]
        """The keys of the filter."""
        return f"bench:{{{self._filter}:*"

    @property
    def _filter(self) -> str:
        return re.sub(r"\W+", "-", self.name)

    def open(self, capacity: int, error_rate: float, server: str) -> None:
        """Make the filter, empty."""
        super().open(capacity, error_rate, server)
        made = UriFilter.create(
            self._filter,
            capacity=capacity,
            error_rate=error_rate,
            layout=self.layout,
            near_cache=self.near_cache,
            redis=server,
            prefix="bench",
            large=True,
            **self.settings,
        )
        self.news = self._closing.enter_context(made)

    def join(self, capacity: int, error_rate: float, server: str) -> None:
        """Open the filter that another process has made."""
        super().join(capacity, error_rate, server)
        opened = UriFilter.open(self._filter, near_cache=self.near_cache, redis=server, prefix="bench")
        self.news = self._closing.enter_context(opened)

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by ``insert``, or by ``insert_many`` if there are several items."""
        if len(batch) == 1:
            return int(self.news.insert(batch[0]))
        return sum(self.news.insert_many(batch))

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``contains_many``."""
        return sum(self.news.contains_many(batch))


class Blocked(Ours):
    """Layout blocked, the default."""

    name = "blocked"
    compared_as = "this library, layout blocked: insert, or insert_many of a batch"


class Classic(Ours):
    """Layout classic, the smallest."""

    name = "classic"
    compared_as = "this library, layout classic: insert, or insert_many of a batch"
    layout = "classic"


class OfTheServer(Ours):
    """Layout redisbloom, the server's own filters."""

    name = "redisbloom"
    compared_as = "this library, layout redisbloom: insert, or insert_many of a batch"
    layout = "redisbloom"
    needs_module = True


class NearCache(Ours):
    """Layout blocked behind a near cache."""

    name = "near cache"
    compared_as = "this library, layout blocked, with a near cache of 100,000 entries in the client"
    near_cache = 100_000
