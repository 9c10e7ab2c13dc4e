"""One pipeline over one connection of asyncio: its wait for replies."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import TimeoutError as Late

from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.transport.servers import send_async

LIMIT = 5.0
REPLY = b"+PONG\r\n"


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test puts forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Slow(Connection):
    """A connection that asks for each reply, and waits for ``later`` seconds of the loop's time in each."""

    later, wanted = 0.0, asyncio.Queue()

    async def read_response(self, *args, **more):
        self.wanted.put_nowait(None)
        asyncio.get_running_loop().ahead += self.later
        return await super().read_response(*args, **more)


async def say_nothing(connection):
    """Do without the commands that redis-py sends first, which differ from release to release."""
    connection._parser.on_connect(connection)


def run(count, later, replies):
    """Send ``count`` commands to a server that has some replies; each takes so long, and the next one for ever."""
    handling = []

    async def answer(reader, writer):
        handling.append(asyncio.current_task())
        with contextlib.closing(writer):
            await reply(reader, writer)

    async def reply(reader, writer):
        for _ in range(count):
            await reader.readuntil(b"PING\r\n")
        for _ in range(replies):
            await Slow.wanted.get()
            writer.write(REPLY)
        if replies < count:
            await Slow.wanted.get()
            asyncio.get_running_loop().ahead += LIMIT
        await reader.read()

    async def ask():
        Slow.later, Slow.wanted = later, asyncio.Queue()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = Slow(host="127.0.0.1", port=port, protocol=2, redis_connect_func=say_nothing)
        try:
            connection.socket_timeout = LIMIT
            outcomes, whole = await send_async(connection, [("PING",)] * count)
            return outcomes, whole, (connection.socket_timeout, connection.is_connected)
        finally:
            await connection.disconnect()
            for task in handling:
                task.cancel()
            await asyncio.gather(*handling, return_exceptions=True)
            server.close()
            await server.wait_closed()

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(ask())


def test_each_reply_has_its_time():
    """A pipeline may take longer than one reply may."""
    outcomes, whole, left = run(6, 0.7 * LIMIT, 6)
    assert outcomes == [b"PONG"] * 6
    assert (whole, left) == (True, (LIMIT, True))


@pytest.mark.parametrize("replies", [0, 2])
def test_a_reply_that_does_not_come(replies):
    """The commands without a reply are unanswered, and the connection is broken off, because it owes replies."""
    outcomes, whole, left = run(4, 0.0, replies)
    assert outcomes[:replies] == [b"PONG"] * replies
    missed = outcomes[replies:]
    assert len(missed) == 4 - replies
    assert all(isinstance(each, Unanswered) and isinstance(each.error, Late) for each in missed)
    assert "no answer within 5 s" in str(missed[0].error)
    assert (whole, left) == (False, (LIMIT, False))
