"""Filters of the module RedisBloom."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from redis._parsers import Encoder, _RESP2Parser
from redis.connection import PythonRespSerializer

from bench.peers import SINGLE
from bench.peers.on_server import OnServer, module_version

#: Bytes that redis-py collects before it sends them.
BUFFER = 6000


class RedisBloom(OnServer):
    """A filter of the module RedisBloom."""

    #: What BF.RESERVE gets beside the error rate and the capacity.
    options: tuple[str | int, ...] = ()

    #: The first layer holds so many times fewer items than the capacity.
    share = 1

    needs_module = True

    def make(self, capacity: int, error_rate: float) -> None:
        """Reserve the filter."""
        self.client.execute_command("BF.RESERVE", self.keys, error_rate, capacity // self.share, *self.options)

    def version(self) -> str:
        """Return the module's version."""
        number = module_version(self.client) or 0
        return f"RedisBloom {number // 10000}.{number // 100 % 100}.{number % 100}"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by BF.MADD."""
        return sum(self.client.execute_command("BF.MADD", self.keys, *batch))

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by BF.MEXISTS."""
        return sum(self.client.execute_command("BF.MEXISTS", self.keys, *batch))


class BfAdd(RedisBloom):
    """One item a call."""

    name = "BF.ADD"
    compared_as = "RedisBloom, BF.RESERVE with the whole capacity, then BF.ADD of one item a call"
    batches = SINGLE
    keys = "bench-bf-add"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by BF.ADD."""
        return sum(int(self.client.execute_command("BF.ADD", self.keys, item)) for item in batch)


class BfMadd(RedisBloom):
    """A batch a call."""

    name = "BF.MADD"
    compared_as = "RedisBloom, BF.RESERVE with the whole capacity, then BF.MADD of a batch"
    keys = "bench-bf-madd"


class BfMaddPlain(BfMadd):
    """A batch a call, packed and parsed in Python: hiredis is an extra of redis-py, and this library installs it."""

    name = "BF.MADD, plain"
    compared_as = "the same by redis-py without hiredis, as `pip install redis` has it"
    keys = "bench-bf-madd-plain"

    packer = PythonRespSerializer(BUFFER, Encoder("utf-8", "strict", decode_responses=False).encode)
    how = MappingProxyType({"protocol": 2, "parser_class": _RESP2Parser, "command_packer": packer})


class BfScaling(RedisBloom):
    """A batch a call, into a filter that was reserved for a part of the capacity and doubles."""

    name = "BF scaling"
    compared_as = "RedisBloom, BF.RESERVE with a sixteenth of the capacity and EXPANSION 2, then BF.MADD of a batch"
    keys = "bench-bf-scaling"
    options = ("EXPANSION", 2)
    share = 16
