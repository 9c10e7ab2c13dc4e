"""A set of URIs."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.on_server import OnServer


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
