"""A pipeline of SETBITs: the usual recipe in Python."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.setbits import Setbits, digests_of
from urifilter_redis.bloom.digest import classic_offsets


class SetbitPipeline(Setbits):
    """All SETBITs of a batch in one pipeline; their replies say which items were new."""

    name = "SETBIT pipeline"
    compared_as = "redis-py's pipeline of k SETBITs an item (GETBITs to ask), a pipeline a batch, not atomic"
    keys = "bench-setbit-pipeline"

    def _ask(self, batch: Sequence[str], *, write: bool) -> int:
        """Return how many items had all their bits set."""
        pipeline = self.client.pipeline(transaction=False)
        for digest in digests_of(batch):
            for offset in classic_offsets(digest, self.bits, self.k):
                if write:
                    pipeline.setbit(self.keys, offset, 1)
                else:
                    pipeline.getbit(self.keys, offset)
        bits = pipeline.execute()
        return sum(all(bits[start : start + self.k]) for start in range(0, len(bits), self.k))

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by SETBITs."""
        return len(batch) - self._ask(batch, write=True)

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by GETBITs."""
        return self._ask(batch, write=False)
