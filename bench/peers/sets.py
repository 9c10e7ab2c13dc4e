"""Sets of URIs or of what stands for them, which are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.peers import SINGLE
from bench.peers.on_server import OnServer
from bench.peers.setbits import digests_of
from bench.servers import Missing


class Sadd(OnServer):
    """SADD of whole URIs, exact."""

    name = "SADD"
    compared_as = "SADD of the URIs of a batch, exact"
    keys = "bench-sadd"

    def members(self, batch: Sequence[str]) -> Sequence[str | bytes]:
        """Return what is kept of items."""
        return batch

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by SADD."""
        return int(self.client.sadd(self.keys, *self.members(batch)))

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by SMISMEMBER."""
        return sum(map(int, self.client.smismember(self.keys, list(self.members(batch)))))


class Digests(Sadd):
    """SADD of digests of 16 bytes."""

    name = "SADD, digests"
    compared_as = "SADD of digests of 16 bytes (mmh3) of a batch"
    keys = "bench-digests"

    def members(self, batch: Sequence[str]) -> Sequence[str | bytes]:
        """Return the digests."""
        return list(digests_of(batch))


class Request(NamedTuple):
    """As much of a request as the filter reads; Scrapy has made it before, whatever the filter."""

    url: str
    method: str = "GET"
    body: bytes = b""


class ScrapyRedis(OnServer):
    """``request_seen`` of one request after the other, as Scrapy's scheduler calls it."""

    name = "scrapy-redis"
    compared_as = "scrapy-redis's RFPDupeFilter: one request a call; the making of the request is not counted"
    package = "scrapy-redis"
    batches = SINGLE
    keys = "bench-scrapy-redis"

    _filter: Any = None

    def prepare(self, capacity: int, error_rate: float) -> None:  # noqa: ARG002 - it is exact
        """Make the package's filter."""
        try:
            from scrapy_redis.dupefilter import RFPDupeFilter
        except ImportError:
            raise Missing("scrapy-redis is missing: pip install scrapy-redis") from None
        self._filter = RFPDupeFilter(self.client, self.keys)

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by ``request_seen``."""
        return sum(not self._filter.request_seen(Request(item)) for item in batch)

    def seen(self, batch: Sequence[str]) -> int:
        """Ask for the fingerprints by SMISMEMBER; the package has no call that only asks."""
        fingerprints = [self._filter.request_fingerprint(Request(item)) for item in batch]
        return sum(map(int, self.client.smismember(self.keys, fingerprints)))
