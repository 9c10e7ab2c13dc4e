"""Connectors: a pipeline goes to the one server there is, or in parts to the nodes that have its keys."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from urifilter_redis.engine.routes import GIVEN, search
from urifilter_redis.engine.steps import TOTAL
from urifilter_redis.transport.origins import Origin
from urifilter_redis.transport.sentinels import HELD, LOOK
from urifilter_redis.transport.servers import AsyncServer, Server
from urifilter_redis.transport.targets import READS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.exceptions import RedisError

    from urifilter_redis.engine.routes import Part, Routes
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Meanwhile, Reply, Timeouts
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.protocol.outcomes import Unsent
    from urifilter_redis.transport.addresses import Packed
    from urifilter_redis.transport.sending import Sending
    from urifilter_redis.transport.sentinels import SentinelEvents

__all__ = ["AsyncConnector", "Connector"]

S = TypeVar("S", Server, AsyncServer)


class _Connections(ABC, Generic[S]):
    """The common part of both connectors: an origin, its routes, and a server for each node.

    Attributes:
        connections: the most connections to each server.
        shown: the address, to be shown.
        patience: seconds for which a caller waits for a free connection.
    """

    _asynchronous = False

    def __init__(
        self,
        given: Any,
        timeouts: Timeouts,
        connections: int | None = None,
        wait_replicas: int = 0,
        reads: str = READS[0],
    ) -> None:
        """Make a connector; nothing is connected.

        Args:
            given: an ``Address``; or a client of redis-py: ``Redis`` or ``RedisCluster``.
            timeouts: the times to wait.
            connections: the most connections to each server.
            wait_replicas: the replicas that must have an answer before it is believed; 0: as the address says.
            reads: one of ``READS``; the first: as the address says.
        """
        options = wait_replicas, reads
        self._origin = Origin(given, timeouts, connections, options, asynchronous=self._asynchronous)
        self.connections, self.shown = connections, self._origin.shown
        self.patience = TOTAL if timeouts.total is None else timeouts.total
        self._routes: Routes | None = None
        self._found: list[Routes] = []  # of several threads at once the first
        self._servers: dict[tuple[str, bool], S] = {}
        self._events: dict[int, SentinelEvents] = {}  # by process
        self._longest_hold = math.inf if timeouts.total is None else timeouts.total
        self._given: S = self._server(GIVEN)

    @property
    def routes(self) -> Routes:
        """The nodes, as far as they are known."""
        if self._routes is None:  # an address that was packed is unpacked now
            self._found.append(self._origin.routes())
            self._routes = self._found[0]
        return self._routes

    def equip(self, session: Session) -> None:
        """Give a session the routes of this connector; an address that was packed is unpacked."""
        session.routes, session.wait_replicas = self.routes, self._origin.wait_replicas
        session.confirms = self._origin.embedded

    def packed(self) -> Packed:
        """Return the server's address, for a filter that is opened anew; see ``Address.packed``.

        Raises:
            TypeError: a client was given.
        """
        return self._origin.packed()

    def _server(self, node: str, *, sentinel: bool = False) -> S:
        found = self._servers.get((node, sentinel))
        return found or self._servers.setdefault((node, sentinel), self._make(node, sentinel=sentinel))

    def _sentinels(self) -> SentinelEvents | None:
        """Return what Sentinels tell this process of failovers; None: there are no Sentinels."""
        service, process = self.routes.service, os.getpid()
        if service is None:
            return None
        return self._events.get(process) or self._events.setdefault(process, self._origin.events(service))

    @abstractmethod
    def _make(self, node: str, *, sentinel: bool) -> S:
        """Return the server of a node, which is not connected."""


class Connector(_Connections[Server]):
    """Sends pipelines, blocking; thread-safe, and after a fork over connections of its own.

    Callers wait for a free connection in the order in which they come, each for at most ``patience``.
    """

    @property
    def most(self) -> int:
        """The most pipelines that can be under way at once."""
        servers = [self._server(node) for node in self.routes.masters]
        return min((each.lane.places.count for each in servers), default=1)

    def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        if (self._routes or self.routes).alone:
            return self._given.send(commands, meanwhile)
        failed = self._ready()
        if self.routes.alone:
            return self._given.send(commands, meanwhile)
        sendings = _Sendings(self.routes, [failed] * len(commands))
        try:
            if failed is None:
                sendings.begin(commands, self._server)
                if meanwhile is not None:
                    meanwhile()
            return sendings.finish()
        finally:
            sendings.leave()

    def begin(self, commands: Sequence[Arguments]) -> Reply:
        """Send a pipeline once, and do not wait for its replies; ``Reply.finish`` returns the outcomes.

        Each pipeline that is not finished has connections of its own.
        """
        failed = self._ready()
        if self.routes.alone:
            return self._given.begin(commands)
        sendings = _Sendings(self.routes, [failed] * len(commands))
        if failed is None:
            sendings.begin(commands, self._server)
        return sendings

    def _ready(self) -> Unsent | RedisError | None:
        """Wait until no failover is under way, and search the nodes if they must be asked.

        Return the outcome of all that is to be sent, if that has no place to go.
        """
        events, end = self._sentinels(), time.monotonic() + self._longest_hold
        while events is not None and events.look(self.routes):
            if time.monotonic() >= end:
                return HELD
            time.sleep(LOOK)
        return self._search() if self.routes.must_search else None

    def _search(self) -> Unsent | RedisError | None:
        searching = search(self.routes, self.patience)
        try:
            inquiry = next(searching)
            while True:
                (outcome,) = self._server(inquiry.node, sentinel=inquiry.sentinel).send([inquiry.command])
                inquiry = searching.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _make(self, node: str, *, sentinel: bool) -> Server:
        make = functools.partial(self._origin.lane, node, sentinel=sentinel)
        unsent = functools.partial(self._origin.unsent, node)
        return Server(make, self.patience, unsent, reached=node != GIVEN or self._origin.embedded)

    def close(self) -> None:
        """Close what was opened here; a client that the caller gave stays open."""
        for each in list(self._servers.values()):
            each.close()
        self._events.clear()
        self._origin.close()


class AsyncConnector(_Connections[AsyncServer]):
    """Sends pipelines, awaited; each event loop and process has connections of its own.

    Tasks wait for a free connection in the order in which they come, each for at most ``patience``.
    """

    _asynchronous = True

    def check_loop(self) -> None:
        """Check, before anything is sent, that there can be connections here.

        Raises:
            UriFilterError: a forked child is in its parent's loop; or a client that was given belongs to another loop.
        """
        self._given.check_loop()

    async def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        routes = self.routes
        failed = await self._ready()
        if failed is not None:
            return [failed] * len(commands)
        if routes.alone and not routes.waits:  # many tasks share a pipeline, and each may have its own WAIT
            return await self._given.send(commands, meanwhile)
        outcomes: list[Any] = [None] * len(commands)
        parts = routes.split(commands, outcomes)
        if len(parts) == 1:
            await self._send(parts[0], outcomes, meanwhile)
        elif parts:  # the last one is sent when all others are out, unless they wait for a connection
            last = self._send(parts[-1], outcomes, meanwhile)
            await asyncio.gather(*(self._send(part, outcomes) for part in parts[:-1]), last)
        return outcomes

    async def _send(self, part: Part, outcomes: list[Any], meanwhile: Meanwhile | None = None) -> None:
        received = await self._server(part.node).send(part.commands, meanwhile)
        self.routes.learn(part.node, received)
        part.place(received, outcomes)

    async def _ready(self) -> Unsent | RedisError | None:
        """Do as that of ``Connector``, awaited."""
        events, end = self._sentinels(), time.monotonic() + self._longest_hold
        while events is not None and await self._look(events):
            if time.monotonic() >= end:
                return HELD
            await asyncio.sleep(LOOK)
        return await self._search() if self.routes.must_search else None

    async def _look(self, events: SentinelEvents) -> bool:
        if events.must_connect:
            return await asyncio.to_thread(events.look, self.routes)
        return events.look(self.routes)

    async def _search(self) -> Unsent | RedisError | None:
        searching = search(self.routes, self.patience)
        try:
            inquiry = next(searching)
            while True:
                (outcome,) = await self._server(inquiry.node, sentinel=inquiry.sentinel).send([inquiry.command])
                inquiry = searching.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def find(self) -> None:
        """Find the address, if that was put off: in a thread, because starting the embedded server takes a while."""
        address = self._origin.address
        if address is not None and not address.is_found:
            await asyncio.to_thread(address.find)

    def _make(self, node: str, *, sentinel: bool) -> AsyncServer:
        origin, given = self._origin, node == GIVEN
        make, unsent = functools.partial(origin.lane, node, sentinel=sentinel), functools.partial(origin.unsent, node)
        theirs = origin.lane() if given and origin.is_one_client else None
        return AsyncServer(make, self.patience, unsent, reached=not given or origin.embedded, theirs=theirs)

    async def close(self) -> None:
        """Close what was opened in this loop; a client that the caller gave stays open."""
        try:  # all of them, though one fails, or the caller is cancelled
            await asyncio.shield(asyncio.gather(*(each.close() for each in list(self._servers.values()))))
        finally:
            self._events.clear()
            self._origin.close()


class _Sendings:
    """The parts of a pipeline of the blocking client, each on its way to its node.

    Args:
        routes: learn from the outcomes.
        outcomes: one for each command, which those of the parts replace.
    """

    def __init__(self, routes: Routes, outcomes: list[Any]) -> None:
        self._routes, self._outcomes = routes, outcomes
        self._under_way: list[tuple[Part, Sending]] = []

    def begin(self, commands: Sequence[Arguments], server_of: Callable[[str], Server]) -> None:
        """Send all parts."""
        try:
            # in one order, so that two callers never wait for each other's connections
            for part in sorted(self._routes.split(commands, self._outcomes), key=lambda each: each.node):
                server = server_of(part.node)
                sending = server.sending(part.commands)
                self._under_way.append((part, sending))  # before it has a connection, which Ctrl-C could lose
                server.post(sending)
        except BaseException:
            self.leave()
            raise

    def finish(self) -> list[Any]:
        """Return one outcome a command, and give the connections back."""
        try:
            for part, sending in self._under_way:
                received = sending.receive()
                self._routes.learn(part.node, received)
                part.place(received, self._outcomes)
            return self._outcomes
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the connections back; those that still owe replies are broken off. Left again it gives back the rest."""
        while self._under_way:
            self._under_way[-1][1].leave()
            self._under_way.pop()
