"""RedisBloom's BF.MADD, by redis-py without hiredis."""

from __future__ import annotations

import redis
from redis._parsers import Encoder, _RESP2Parser
from redis.connection import PythonRespSerializer

from bench.peers.bf_madd import BfMadd

#: Bytes that redis-py collects before it sends them.
BUFFER = 6000


class BfMaddPlain(BfMadd):
    """A batch a call, packed and parsed in Python: hiredis is an extra of redis-py, and this library installs it."""

    name = "BF.MADD, plain"
    compared_as = "the same by redis-py without hiredis, as `pip install redis` has it"
    keys = "bench-bf-madd-plain"

    def _connect(self, capacity: int, error_rate: float, server: str) -> None:
        packer = PythonRespSerializer(BUFFER, Encoder("utf-8", "strict", decode_responses=False).encode)
        self._client = redis.Redis.from_url(server, protocol=2, parser_class=_RESP2Parser, command_packer=packer)
        self.prepare(capacity, error_rate)
