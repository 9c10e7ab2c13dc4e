"""A pipeline that goes to two nodes in parts: afterwards each node has its connections, and each caller its answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import traceback
from functools import partial

import pytest
import redis
from support.by_hand import settle
from support.interrupts import Interrupt
from support.servers import wait_until
from support.together import together

from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.engine.topology import NodeMap
from urifilter_redis.protocol.keys import SLOTS, slot_of
from urifilter_redis.protocol.outcomes import Unsent
from urifilter_redis.transport.connections import AsyncConnector, Connector
from urifilter_redis.transport.url import Address

# One that comes while a generator is closed reaches nobody.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

KEYS = [f"key{n}" for n in range(40)]
TIMES = Timeouts(connect=10, reply=10, total=0.3)


@pytest.fixture
def nodes(any_server, valkey):
    """Two servers that share the slots, each value being its key; no Redis Cluster, so that they refuse nothing."""
    first, second = (f"127.0.0.1:{each.port}" for each in (any_server, valkey))
    found = NodeMap([first] * (SLOTS // 2) + [second] * (SLOTS // 2))
    for number, server in enumerate((any_server, valkey)):
        server.ask("mset", {key: key for key in KEYS if slot_of(key) * 2 // SLOTS == number})
    return any_server.url, found


def connector_of(nodes, kind=Connector, connections=1, times=TIMES):
    """Return a connector that knows the nodes."""
    url, found = nodes
    made = kind(Address(url), times, connections)
    settle(made.routes, found)
    return made


def commands(keys=tuple(KEYS)):
    return [("GET", key) for key in keys]


def values(keys=tuple(KEYS)) -> list[bytes]:
    return [key.encode() for key in keys]


def test_outcomes_stand_where_their_commands_do(nodes):
    """Of both clients, also from many threads that share few connections."""
    patient = Timeouts(connect=10, reply=10, total=30)  # the longest wait for a connection, too
    connector, told = connector_of(nodes, connections=2, times=patient), []

    def ask(number: int) -> None:
        keys = KEYS[number:] + KEYS[:number]
        told.extend(connector.send(commands(keys)) == values(keys) for _ in range(20))

    together(partial(ask, n) for n in range(6))
    assert told == [True] * 120
    connector.close()


def innermost(error: BaseException) -> str:
    """Return the name of the function in which Ctrl-C came."""
    return traceback.extract_tb(error.__traceback__)[-2].name


def test_interrupted_everywhere(nodes):
    """Ctrl-C at any place leaves all connections to those who come next, and no answer of another's pipeline.

    (But not in the lines in which a connection goes from hand to hand.)
    """
    connector, both = connector_of(nodes), KEYS[:3]
    assert {slot_of(key) * 2 // SLOTS for key in both} == {0, 1}
    assert connector.send(commands()) == values()
    with Interrupt() as counted:
        connector.send(commands(both))
    for at in range(1, counted.places + 1):
        keys, came = KEYS[at % 20 :], ""
        with Interrupt(at):
            try:
                connector.send(commands(both))
            except KeyboardInterrupt as error:
                came = innermost(error)
        if came in {"take", "leave"}:
            connector.close()
            connector = connector_of(nodes)
        assert connector.send(commands(keys)) == values(keys), (at, came)
    connector.close()


@pytest.mark.parametrize("passes", range(8))
def test_cancelled(nodes, passes):
    """A task that is cancelled leaves the connections, too, and no answer of its pipeline to the next."""

    async def run() -> None:
        connector = connector_of(nodes, AsyncConnector)
        await connector.send(commands())
        task = asyncio.create_task(connector.send(commands(KEYS[::-1])))
        for _ in range(passes):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert await task == values(KEYS[::-1])
        assert await connector.send(commands()) == values()
        await connector.close()

    asyncio.run(run())


def connections(found) -> set[tuple[str, str]]:
    """The connections to the nodes, but for those that ask."""
    listed = set()
    for node in found.masters:
        with redis.Redis(port=int(node.rpartition(":")[2])) as admin:
            own = admin.client_id()
            listed |= {(node, each["id"]) for each in admin.client_list() if each["id"] != str(own)}
    return listed


@pytest.mark.parametrize("passes", range(1, 6))
def test_closing_is_cancelled(nodes, passes):
    """The connections to all nodes are closed all the same."""
    before = connections(nodes[1])

    async def run() -> None:
        connector = connector_of(nodes, AsyncConnector)
        await connector.send(commands())
        task = asyncio.create_task(connector.close())
        for _ in range(passes):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: connections(nodes[1]) <= before, "a connection stays open")

    asyncio.run(run())


def test_one_of_two_is_away(nodes, make_server):
    """What was sent to the other has its answers; for the rest it is told that it was certainly not sent."""
    url, found = nodes
    away = make_server("redis70")
    away.kill()
    first, second = found.masters
    connector = connector_of(
        (url, NodeMap([f"127.0.0.1:{away.port}" if each == second else each for each in found.owners]))
    )
    for key, outcome in zip(KEYS, connector.send(commands()), strict=True):
        if found.owners[slot_of(key)] == first:
            assert outcome == key.encode()
        else:
            assert isinstance(outcome, Unsent)
    assert connector.routes.stale
    connector.close()


@pytest.mark.parametrize("scheme", ["redis+cluster://{}", "redis+sentinel://{}/any"])
@pytest.mark.parametrize("kind", [Connector, AsyncConnector])
def test_a_search_ends_with_the_time_of_its_callers(scheme, kind):
    """Nodes that take connections and never answer are asked by the next searches, and not all by one.

    To each Sentinel there is one connection more, of the subscription.
    """
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
        connector = kind(Address(scheme.format(hosts)), Timeouts(connect=0.05, reply=0.05, total=0.05))
        if kind is Connector:
            outcomes = connector.send(commands())
            connector.close()
        else:
            outcomes = asyncio.run(connector.send(commands()))
        assert {type(each) for each in outcomes} == {Unsent}
        asked = 0
        for each in silent:
            each.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    each.accept()[0].close()
                    asked += 1
        assert asked == (1 if "cluster" in scheme else 1 + len(silent))
