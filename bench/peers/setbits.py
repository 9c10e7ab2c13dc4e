"""What the peers have in common that set k bits an item in one bitmap by SETBIT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.peers.on_server import OnServer
from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.sizing import classic_bits, classic_k

#: Redis numbers the bits of a string by 32 bits.
MOST_BITS = 2**32

_HASH = hasher("mmh3", "1")


class Setbits(OnServer):
    """A bitmap, allocated in full, of the size that this library's layout classic has without shards."""

    bits = 0
    k = 0

    def prepare(self, capacity: int, error_rate: float) -> None:
        """Compute the sizes."""
        self.bits = classic_bits(capacity, error_rate)
        if self.bits > MOST_BITS:
            raise ValueError(f"a bitmap for {capacity:,} items at {error_rate:g} has over 2**32 bits")
        self.k = classic_k(self.bits, capacity, error_rate)

    def make(self, capacity: int, error_rate: float) -> None:  # noqa: ARG002 - prepare has them
        """Allocate the bitmap."""
        self.client.setrange(self.keys, (self.bits - 1) // 8, b"\0")


def digests_of(batch: Sequence[str]) -> Iterable[bytes]:
    """Return digests of 16 bytes, by the hash that this library takes by default."""
    return _HASH(item.encode() for item in batch)
