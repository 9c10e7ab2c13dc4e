"""RedisBloom's BF.ADD."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers import SINGLE
from bench.peers.on_server import RedisBloom


class BfAdd(RedisBloom):
    """One item a call."""

    name = "BF.ADD"
    compared_as = "RedisBloom, BF.RESERVE with the whole capacity, then BF.ADD of one item a call"
    batches = SINGLE
    keys = "bench-bf-add"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by BF.ADD."""
        return sum(int(self.client.execute_command("BF.ADD", self.keys, item)) for item in batch)
