"""RedisBloom's BF.MADD."""

from __future__ import annotations

from bench.peers.on_server import RedisBloom


class BfMadd(RedisBloom):
    """A batch a call."""

    name = "BF.MADD"
    compared_as = "RedisBloom, BF.RESERVE with the whole capacity, then BF.MADD of a batch"
    keys = "bench-bf-madd"
