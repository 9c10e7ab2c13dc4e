"""Connectors send a pipeline to the one server there is, or its parts to the nodes that have their keys."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import TOTAL, Meanwhile, Reply, Timeouts
from urifilter_redis.engine.topology import GIVEN, Duty, Part, Routes, search
from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.outcomes import Unsent
from urifilter_redis.transport.endpoints import Endpoint
from urifilter_redis.transport.loops import lent
from urifilter_redis.transport.sentinels import HELD, POLL, SentinelEvents
from urifilter_redis.transport.servers import AsyncServer, Sending, Server
from urifilter_redis.transport.url import READS, Packed

#: Pipelines to a node that ``SharedConnector`` has in flight at once: while the server runs one, the next one travels.
PIPELINES = 2

#: The most commands in a pipeline of several tasks; each may take the server up to 8 ms. One task may send more.
COMMANDS_A_PIPELINE = 32

S = TypeVar("S", Server, AsyncServer)


class _BaseConnector(ABC, Generic[S]):
    """The common part of both connectors: an endpoint, its routes, and a server for each node.

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
        self._endpoint = Endpoint(given, timeouts, connections, options, asynchronous=self._asynchronous)
        self.connections, self.shown = connections, self._endpoint.shown
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
            self._found.append(self._endpoint.routes())
            self._routes = self._found[0]
        return self._routes

    def equip(self, session: Session) -> None:
        """Give a session the routes of this connector; an address that was packed is unpacked."""
        session.routes, session.wait_replicas = self.routes, self._endpoint.wait_replicas
        session.confirms = self._endpoint.embedded

    def packed(self) -> Packed:
        """Return the server's address, for a filter that is opened anew; see ``Address.packed``.

        Raises:
            TypeError: a client was given.
        """
        return self._endpoint.packed()

    def _server(self, node: str, *, sentinel: bool = False) -> S:
        found = self._servers.get((node, sentinel))
        return found or self._servers.setdefault((node, sentinel), self._make(node, sentinel=sentinel))

    def _sentinels(self) -> SentinelEvents | None:
        """Return this process's subscriptions to the Sentinels; None: there are no Sentinels."""
        service, process = self.routes.service, os.getpid()
        if service is None:
            return None
        return self._events.get(process) or self._events.setdefault(process, self._endpoint.events(service))

    @abstractmethod
    def _make(self, node: str, *, sentinel: bool) -> S:
        """Return the server of a node, which is not connected."""


class Connector(_BaseConnector[Server]):
    """Sends pipelines, blocking; thread-safe, and after a fork over connections of its own.

    Callers wait for a free connection in the order in which they come, each for at most ``patience``.
    """

    @property
    def most(self) -> int:
        """The most pipelines that can be under way at once."""
        servers = [self._server(node) for node in self.routes.masters]
        return min((each.pool.limit.count for each in servers), default=1)

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
        """Wait until no failover is under way and no other call searches; search the nodes if they must be asked.

        Return the outcome of all commands if there is no node for them.
        """
        events, end = self._sentinels(), time.monotonic() + self._longest_hold
        while True:
            held = events is not None and events.poll(self.routes)
            duty = self.routes.duty
            if not held and duty is not Duty.WAIT:
                return self._search() if duty is Duty.SEARCH else None
            if time.monotonic() >= end:  # a search that does not end is given up with its thread
                return HELD if held else self._search()
            time.sleep(POLL)

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
        make = functools.partial(self._endpoint.pool, node, sentinel=sentinel)
        unsent = functools.partial(self._endpoint.unsent, node)
        return Server(make, self.patience, unsent, reached=node != GIVEN or self._endpoint.embedded)

    def close(self) -> None:
        """Close what was opened here; a client that the caller gave stays open."""
        for each in list(self._servers.values()):
            each.close()
        self._events.clear()
        self._endpoint.close()


class AsyncConnector(_BaseConnector[AsyncServer]):
    """Sends pipelines, awaited; each event loop and process has connections of its own.

    Tasks wait for a free connection in the order in which they come, each for at most ``patience``.
    """

    _asynchronous = True

    def check_loop(self) -> None:
        """Check, before anything is sent, that there can be connections here.

        Raises:
            UriFilterError: a forked child is in its parent's loop; or a client that was given belongs to another loop.
        """
        self._given.pools.get()

    async def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        routes = self._routes or self.routes
        if not routes.alone and (failed := await self._ready()) is not None:
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
        """Do as ``Connector._ready``, awaited."""
        events, end = self._sentinels(), time.monotonic() + self._longest_hold
        while True:
            if events is not None and events.must_connect:
                held = await asyncio.to_thread(events.poll, self.routes)
            else:
                held = events is not None and events.poll(self.routes)
            duty = self.routes.duty
            if not held and duty is not Duty.WAIT:
                return await self._search() if duty is Duty.SEARCH else None
            if time.monotonic() >= end:  # a search that does not end is given up with its task
                return HELD if held else await self._search()
            await asyncio.sleep(POLL)

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
        address = self._endpoint.address
        if address is not None and not address.is_found:
            await asyncio.to_thread(address.find)

    def _make(self, node: str, *, sentinel: bool) -> AsyncServer:
        endpoint, given = self._endpoint, node == GIVEN
        pool = functools.partial(endpoint.pool, node, sentinel=sentinel)
        make = lent(pool()) if given and endpoint.is_one_client else pool  # the client's connections are for one loop
        unsent = functools.partial(endpoint.unsent, node)
        return AsyncServer(make, self.patience, unsent, reached=not given or endpoint.embedded)

    async def close(self) -> None:
        """Close what was opened in this loop; a client that the caller gave stays open."""
        try:  # all of them, though one fails, or the caller is cancelled
            await asyncio.shield(asyncio.gather(*(each.close() for each in list(self._servers.values()))))
        finally:
            self._events.clear()
            self._endpoint.close()


class _Sendings:
    """The parts of a pipeline of the blocking client, each on its way to its node.

    Args:
        routes: the routes, which learn from the outcomes.
        outcomes: one for each command; the outcomes of the parts replace them.
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
                sending = Sending(server.pool, part.commands)
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
        """Give the connections back; those that still owe replies are broken off. A second call does the rest."""
        while self._under_way:
            self._under_way[-1][1].leave()
            self._under_way.pop()


class SharedConnector:
    """Sends the commands of many tasks in shared pipelines; each task gets the outcomes of its own commands.

    Each node of a Redis Cluster has pipelines of its own, so that a node that is away does not delay the others. The
    commands of a cancelled task may run, if their pipeline has been sent.
    """

    def __init__(
        self, connector: AsyncConnector, patience: float, note: Callable[[RedisError], object] = lambda _: None
    ) -> None:
        """Share a connector.

        Args:
            connector: the connector that sends the pipelines.
            patience: seconds after which commands that still wait for a pipeline are ``Unsent``.
            note: a function that is called with each error that the server answers.
        """
        self.shown = connector.shown
        self._note, self._patience = note, patience
        self._connector = connector
        self._queues: dict[str, _NodeQueue] = {}

    @property
    def waiting(self) -> int:
        """The tasks whose commands wait for a pipeline."""
        return sum(len(each.waiting) for each in self._queues.values())

    def equip(self, session: Session) -> None:
        """See ``AsyncConnector.equip``."""
        self._connector.equip(session)

    async def send(self, commands: Sequence[Arguments], _: object = None) -> list[Any]:
        """Send commands once; return one outcome for each command (see ``steps.Send``)."""
        routes = self._connector.routes
        if routes.alone:
            return await self._queue_of(GIVEN).send(commands)
        indexes: dict[str, list[int]] = {}
        for index, command in enumerate(commands):
            indexes.setdefault(routes.node_of(command) or GIVEN, []).append(index)
        sending = (self._queue_of(node).send([commands[index] for index in some]) for node, some in indexes.items())
        outcomes: list[Any] = [None] * len(commands)
        for some, answered in zip(indexes.values(), await asyncio.gather(*sending), strict=True):
            for index, outcome in zip(some, answered, strict=True):
                outcomes[index] = outcome
        return outcomes

    def _queue_of(self, node: str) -> _NodeQueue:
        found = self._queues.get(node)
        if found is None:
            found = self._queues[node] = _NodeQueue(self._connector, self._patience, self._note)
        return found

    async def close(self) -> None:
        """Fail the waiting commands, wait for the pipelines in flight, and close the connections."""
        await asyncio.gather(*(each.close() for each in self._queues.values()))
        await self._connector.close()


@dataclass(slots=True, eq=False)
class _Request:
    """The commands of one task that wait for a pipeline.

    Attributes:
        commands: the commands to send.
        outcomes: the future that gets one outcome for each command.
        since: the loop's time at which the task began to wait, seconds.
    """

    commands: Sequence[Arguments]
    outcomes: asyncio.Future[list[Any]]
    since: float

    def settle(self, outcomes: list[Any]) -> None:
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)

    def fail(self, why: str) -> None:
        self.settle([Unsent(ConnectionError(why))] * len(self.commands))


class _NodeQueue:
    """The requests that wait for a pipeline to one node, and the tasks that send them; see ``SharedConnector``."""

    def __init__(self, connector: AsyncConnector, patience: float, note: Callable[[RedisError], object]) -> None:
        self._connector, self._patience, self._note = connector, patience, note
        self.waiting: deque[_Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._senders = 0

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands once; return one outcome for each command."""
        loop = asyncio.get_running_loop()
        request = _Request(commands, loop.create_future(), loop.time())
        self.waiting.append(request)
        if self._senders < PIPELINES:
            self._senders += 1
            sender = asyncio.create_task(self._send_waiting())
            self._tasks.add(sender)
            sender.add_done_callback(self._tasks.discard)
        return await request.outcomes

    async def _send_waiting(self) -> None:
        try:
            while taken := self._take():
                await self._send(taken)
        finally:
            self._senders -= 1  # no await since the queue was empty, so that a later task starts another sender

    async def _send(self, taken: Sequence[_Request]) -> None:
        try:
            outcomes = await self._connector.send([command for request in taken for command in request.commands])
        except Exception as error:  # noqa: BLE001 - raised in each task whose commands were sent
            for request in taken:
                if not request.outcomes.done():
                    request.outcomes.set_exception(error)
            return
        begin = 0
        for request in taken:
            request.settle(outcomes[begin : begin + len(request.commands)])
            begin += len(request.commands)
        for outcome in outcomes:
            if isinstance(outcome, RedisError):
                self._note(outcome)

    def _take(self) -> list[_Request]:
        """Take requests for one pipeline; drop those of cancelled tasks, and those that waited too long."""
        taken: list[_Request] = []
        size, since = 0, asyncio.get_running_loop().time() - self._patience
        while self.waiting and (not taken or size + len(self.waiting[0].commands) <= COMMANDS_A_PIPELINE):
            request = self.waiting.popleft()
            if request.since < since:
                request.fail("the server is too slow for the number of requests")
            elif not request.outcomes.done():
                taken.append(request)
                size += len(request.commands)
        return taken

    async def close(self) -> None:
        """Fail the waiting requests, and wait for the pipelines in flight."""
        while self.waiting:
            self.waiting.popleft().fail("the connector was closed")
        await asyncio.gather(*self._tasks)
