"""A set of digests."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.sadd import Sadd
from bench.peers.setbits import digests_of


class Digests(Sadd):
    """SADD of digests of 16 bytes."""

    name = "SADD, digests"
    compared_as = "SADD of digests of 16 bytes (mmh3) of a batch"
    keys = "bench-digests"

    def members(self, batch: Sequence[str]) -> Sequence[str | bytes]:
        """Return the digests."""
        return list(digests_of(batch))
