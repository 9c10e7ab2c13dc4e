"""A server with the filters of peers, all warm: where sections measure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import servers
from bench.machine import versions
from bench.measuring import opened, warm_up
from bench.usage import ServerCounters

if TYPE_CHECKING:
    import redis

    from bench.peers import Peer


@dataclass(frozen=True, slots=True)
class Stand:
    """What sections measure.

    Attributes:
        client: of the server.
        url: of the server.
        counters: of the server.
        peers: open, with the URIs of ``bench.streams.warm``.
        left_out: the reason of each peer that is missing.
    """

    client: redis.Redis
    url: str
    counters: ServerCounters
    peers: Mapping[str, Peer]
    left_out: Mapping[str, str]

    def versions(self) -> dict[str, str]:
        """Return the version of the server, and of each peer."""
        return versions(self.client, self.peers)


@contextlib.contextmanager
def stand(server: str, names: Sequence[str], capacity: int, error_rate: float) -> Iterator[Stand]:
    """Run a server, and open peers.

    Raises:
        bench.servers.Missing: the server is not installed.
    """
    with ExitStack() as stack:
        client = stack.enter_context(servers.server(server))
        url = servers.address(client)
        peers, left_out = opened(names, capacity, error_rate, url, stack)
        for peer in peers.values():
            warm_up(peer)
        yield Stand(client, url, stack.enter_context(ServerCounters(client)), peers, left_out)
