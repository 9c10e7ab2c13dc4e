"""Pipelines that tasks share, down to the order in which the event loop runs them; and callers that share a pool."""

from __future__ import annotations

import asyncio
import functools
import itertools

import pytest

from urifilter_redis.engine.topology import NodeMap, Routes
from urifilter_redis.protocol.outcomes import Unsent
from urifilter_redis.protocol.routing import for_key
from urifilter_redis.transport.connections import COMMANDS_A_PIPELINE, PIPELINES, SharedConnector
from urifilter_redis.transport.pool import PoolLimit, Waiter


class Server:
    """Answers each command with itself, a pipeline whenever ``answer`` is called."""

    shown = "here"

    def __init__(self, routes: Routes | None = None) -> None:
        self.routes = routes or Routes(alone=True)
        self.pipelines: list[list[tuple]] = []
        self.gate = asyncio.Event()

    async def send(self, commands):
        self.pipelines.append(list(commands))
        await self.gate.wait()
        return list(commands)

    async def close(self):
        pass


async def occupy(server, shared):
    """Have as many pipelines under way as there may be."""
    tasks = []
    for number in range(PIPELINES):
        tasks.append(asyncio.create_task(shared.send([(number,)])))
        while len(server.pipelines) < len(tasks):
            await asyncio.sleep(0)
    return tasks


def run(flow):
    return asyncio.run(asyncio.wait_for(flow, 10))


def test_what_comes_as_all_pipelines_end_is_sent():
    """Tasks that send again at the very moment in which nothing waits any more: nobody waits for ever."""

    async def work():
        server = Server()
        server.gate.set()
        shared = SharedConnector(server, 5)

        async def task(number):
            return [await shared.send([(number, step)]) for step in range(50)]

        answers = await asyncio.gather(*map(task, range(PIPELINES + 1)))
        await shared.close()
        return answers

    assert run(work()) == [[[(number, step)] for step in range(50)] for number in range(PIPELINES + 1)]


def test_each_gets_its_own():
    """What waits while pipelines are under way goes out together, up to a pipeline's size, and is told apart again."""

    async def work():
        server = Server()
        shared = SharedConnector(server, 5)
        tasks = [asyncio.create_task(shared.send([(number, part) for part in range(3)])) for number in range(40)]
        await asyncio.sleep(0)
        tasks[20].cancel()
        await asyncio.sleep(0)
        server.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await shared.close()
        return answers, server.pipelines

    answers, pipelines = run(work())
    assert isinstance(answers.pop(20), asyncio.CancelledError)
    assert answers == [[(number, part) for part in range(3)] for number in range(40) if number != 20]
    assert max(map(len, pipelines)) <= COMMANDS_A_PIPELINE
    assert len(pipelines) <= 6


def test_a_server_that_hangs():
    """What has waited too long for a pipeline was certainly not sent, and is told so."""

    async def work():
        server = Server()
        shared = SharedConnector(server, 0.05)
        stuck = await occupy(server, shared)
        late = [asyncio.create_task(shared.send([("late",), ("too",)])) for _ in range(3)]
        await asyncio.sleep(0.1)
        server.gate.set()
        return await asyncio.gather(*stuck), await asyncio.gather(*late), server.pipelines

    stuck, late, pipelines = run(work())
    assert stuck == [[(number,)] for number in range(PIPELINES)]
    assert [[type(outcome) for outcome in outcomes] for outcomes in late] == [[Unsent, Unsent]] * 3
    assert ("late",) not in [command for pipeline in pipelines for command in pipeline]


def test_an_error_is_everybodys():
    """What is no outcome is raised in each task whose commands were in the pipeline, and the next are sent."""

    async def work():
        server = Server()
        shared = SharedConnector(server, 5)
        send, server.send = server.send, None
        failed = await asyncio.gather(*(shared.send([(n,)]) for n in range(3)), return_exceptions=True)
        server.send = send
        server.gate.set()
        return failed, await shared.send([("next",)])

    failed, after = run(work())
    assert [type(each) for each in failed] == [TypeError] * 3
    assert after == [("next",)]


def test_closing():
    """What waits then was not sent."""

    async def work():
        server = Server()
        shared = SharedConnector(server, 5)
        tasks = await occupy(server, shared)
        late = asyncio.create_task(shared.send([("late",)]))
        await asyncio.sleep(0)
        closing = asyncio.create_task(shared.close())
        await asyncio.sleep(0)
        server.gate.set()
        await closing
        return await asyncio.gather(*tasks), await late

    answered, (late,) = run(work())
    assert len(answered) == PIPELINES
    assert isinstance(late, Unsent)
    with pytest.raises(ConnectionError, match="was closed"):
        raise late.error


class Nodes(Server):
    """Answers as ``Server``, except that one of its nodes says nothing until its gate is open."""

    def __init__(self, away: str) -> None:
        slots = ["a:1"] * 8192 + ["b:2"] * 8192
        super().__init__(Routes(["a:1"]))
        self.routes.map, self._away = NodeMap(slots, {"a:1": (), "b:2": ()}, cluster=True), away

    async def send(self, commands):
        self.pipelines.append(list(commands))
        if self._away in {self.routes.node_of(each) for each in commands}:
            await self.gate.wait()
        return list(commands)


def test_a_node_that_is_away_holds_up_nobody_else():
    """Whoever asks another node is answered; whoever asks both gets each outcome in its place, once all are there."""
    here, there = for_key(("TIME", "here"), "{foo}"), for_key(("TIME", "there"), "{bar}")

    async def work():
        server = Nodes("a:1")
        assert [server.routes.node_of(each) for each in (here, there)] == ["b:2", "a:1"]
        shared = SharedConnector(server, 5)
        waiting = [asyncio.create_task(shared.send([there])) for _ in range(PIPELINES + 1)]
        both = asyncio.create_task(shared.send([there, here, there]))
        await asyncio.sleep(0.01)
        assert await shared.send([here]) == [here]
        assert not any(each.done() for each in [*waiting, both])
        server.gate.set()
        assert await both == [there, here, there]
        await asyncio.gather(*waiting)
        await shared.close()

    run(work())


def test_the_next_waiter_is_woken():
    """Whoever leaves wakes those that are admitted then, with one connection, too; the others sleep on."""
    for count, waiting in itertools.product((1, 3), (1, 2)):
        limit, woken = PoolLimit(count), []
        waiters = [Waiter() for _ in range(count + waiting)]
        assert [limit.enter(each) for each in waiters] == [True] * count + [False] * waiting
        for number, each in enumerate(waiters[count:]):
            each.wake = functools.partial(woken.append, number)
        limit.leave(waiters[0])
        assert woken == [0]
