"""Bloom filters of k SETBITs an item in one bitmap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench import ROOT
from bench.peers.on_server import OnServer
from urifilter_redis.bloom.digest import classic_offsets, hasher
from urifilter_redis.bloom.sizing import classic_bits, classic_k

#: Redis numbers the bits of a string by 32 bits.
MOST_BITS = 2**32

SCRIPT = (ROOT / "bench" / "setbit.lua").read_text()
ASKS = SCRIPT.replace("'SETBIT', KEYS[1], x, 1", "'GETBIT', KEYS[1], x")

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


class SetbitLua(Setbits):
    """``setbit.lua``, called by EVALSHA."""

    name = "SETBIT in Lua"
    compared_as = "a Lua script of k SETBITs an item, without any checks, called once with the digests of a batch"
    keys = "bench-setbit-lua"
    fill = 1000  # ten milliseconds a call: with more, nobody else would get a word in

    def prepare(self, capacity: int, error_rate: float) -> None:
        """Compute the sizes and load the scripts."""
        super().prepare(capacity, error_rate)
        self._insert, self._seen = self.client.script_load(SCRIPT), self.client.script_load(ASKS)

    def _ask(self, script: str, batch: Sequence[str]) -> list[int]:
        packed = b"".join(digests_of(batch))
        return list(self.client.evalsha(script, 1, self.keys, packed, str(self.bits), str(self.k)))

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by the script."""
        return self._ask(self._insert, batch).count(0)

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by the same script, with GETBIT in the place of SETBIT."""
        return self._ask(self._seen, batch).count(1)


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


def digests_of(batch: Sequence[str]) -> Iterable[bytes]:
    """Return digests of 16 bytes, by the hash that this library takes by default."""
    return _HASH(item.encode() for item in batch)
