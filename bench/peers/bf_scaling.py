"""RedisBloom's filter that grows."""

from __future__ import annotations

from bench.peers.on_server import RedisBloom


class BfScaling(RedisBloom):
    """A batch a call, into a filter that was reserved for a part of the capacity and doubles."""

    name = "BF scaling"
    compared_as = "RedisBloom, BF.RESERVE with a sixteenth of the capacity and EXPANSION 2, then BF.MADD of a batch"
    keys = "bench-bf-scaling"
    options = ("EXPANSION", 2)
    share = 16
