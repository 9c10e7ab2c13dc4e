"""A server with the filters of peers, all warm: where sections measure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import redis

from bench import servers
from bench.machine import versions
from bench.measuring import Kind, attempt, measure, opened, warm_up
from bench.peers import Peer
from bench.sections import Found, Row, Say, Settings
from bench.usage import ServerCounters


@dataclass(frozen=True, slots=True)
class Stand:
    """What sections measure.

    Attributes:
        client: of the server.
        url: of the server.
        counters: of the server.
        peers: open and warm.
        left_out: the reason of each peer that is missing.
    """

    client: redis.Redis
    url: str
    counters: ServerCounters
    peers: Mapping[str, Peer]
    left_out: Mapping[str, str]

    def race(self, kinds: Iterable[Kind], settings: Settings, say: Say, **how: Any) -> list[Row]:
        """Race the peers in each kind of calls (``bench.measuring.measure``), and say how far that is."""
        how = {"attempt_of": lambda peer, given, size: attempt(peer, given, size, self.counters)} | how
        cells: list[Row] = []
        for cell in measure(self.peers, kinds, settings.rule, settings.seed, **how):
            cells.append(cell.to_json())
            say(f"{cell.mix}, {cell.batch:,} a call: {cell.peer}, {cell.wall.tries} tries")
        return cells

    def found(self, settings: Row, cells: Sequence[Row], filters: Sequence[Row] = ()) -> Found:
        """Return the results of a section, with the versions of the server and of each peer."""
        return Found(settings, versions(self.client, self.peers), cells, filters, self.left_out)


@contextlib.contextmanager
def stand(
    server: str, chosen: Iterable[Peer], capacity: int, error_rate: float, warm: Callable[[Any], object] = warm_up
) -> Iterator[Stand]:
    """Run a server, and open peers and warm them; by default they get the URIs of ``bench.streams.warm``.

    Raises:
        bench.servers.Missing: the server is not installed.
    """
    with ExitStack() as stack:
        client = stack.enter_context(servers.server(server))
        url = servers.address(client)
        peers, left_out = opened(chosen, capacity, error_rate, url, stack)
        for peer in peers.values():
            warm(peer)
        yield Stand(client, url, stack.enter_context(ServerCounters(client)), peers, left_out)
