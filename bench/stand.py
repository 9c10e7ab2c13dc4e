"""A server with the filters of peers, all warm: where sections let peers race."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from bench import servers
from bench.kbest import race
from bench.machine import versions
from bench.measuring import Attempt, attempt, cell, warm_up
from bench.peers import Peer
from bench.sections import Row, Say, Settings
from bench.servers import Missing
from bench.streams import WARM, Try, tries
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

    def race(
        self,
        kinds: Iterable[tuple[str, int, int]],
        settings: Settings,
        say: Say,
        attempts: Mapping[str, Callable[[Try, int], Attempt]] | None = None,
        known: int = WARM,
        figure: str = "wall",
        first: int = 0,
        **more: object,
    ) -> list[Row]:
        """Race the peers in each kind of calls; return the cells of every peer that takes such batches.

        Args:
            kinds: what they race in: a mix, the items of one call, and those of one try.
            settings: have the rule when tries agree, and the seed that draws the orders and the URIs.
            say: is told how far that is.
            attempts: make a try of each peer, with so many items a call; None: all insert.
            known: so many of the first URIs are in each filter.
            figure: that of ``Used`` about which the tries agree.
            first: so many kinds went into the same filters before.
            more: what all cells have besides.
        """
        dice, cells = random.Random(settings.seed), list[Row]()
        attempts = attempts or {name: partial(attempt, peer, self.counters) for name, peer in self.peers.items()}

        def once(name: str, given: Iterator[Try], size: int) -> Attempt:
            return attempts[name](next(given), size)

        for place, (mix, size, items) in enumerate(kinds, first):
            racing = {
                name: partial(once, name, tries(mix, items, place, settings.seed, known), size)
                for name in attempts
                if size in self.peers[name].batches
            }
            found = race(racing, lambda each: getattr(each.used, figure), settings.rule, dice)
            for name, made in found.items():
                cells.append(cell(name, mix, size, settings.rule, made) | more)
                say(f"{mix}, {size:,} a call: {name}, {len(made)} tries")
        return cells

    def found(self, settings: Row, cells: Sequence[Row], filters: Sequence[Row] = ()) -> Row:
        """Return the results of a section, with the versions of the server and of each peer."""
        made = {"settings": settings, "versions": versions(self.client, self.peers), "cells": cells}
        return made | {"filters": filters, "left_out": self.left_out}


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
        peers, left_out = dict[str, Peer](), dict[str, str]()
        for peer in chosen:
            stack.callback(peer.close)
            try:
                peer.open(capacity, error_rate, url)
            except Missing as error:
                left_out[peer.name] = str(error)
            else:
                peers[peer.name] = peer
        for peer in peers.values():
            warm(peer)
        yield Stand(client, url, stack.enter_context(ServerCounters(client)), peers, left_out)
