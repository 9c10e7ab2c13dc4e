"""Calls that are interrupted, and those that are not."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from urifilter_redis.engine import pending
from urifilter_redis.engine.pending import Pending
from urifilter_redis.errors import AnswerLost, ServerUnavailable


class Call:
    """As much of a batch as this looks at."""

    def __init__(self, *, writes: bool = True) -> None:
        self.writes, self.answers, self.items = writes, [], []


def lost(call) -> AnswerLost:
    error = AnswerLost("lost")
    error.batch = call
    return error


@contextlib.contextmanager
def asking(held, call):
    """Send a call, in the form that ``begin`` shows."""
    held.begin(call)
    try:
        yield
    except BaseException as error:
        held.failed(call, error)
        raise
    held.answered(call, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), ServerUnavailable("x"), ValueError()])
def test_interrupted(error):
    """An error that does not have the batch loses it to the caller: it is kept, oldest first."""
    held, calls = Pending(), [Call(), Call()]
    for call in calls:
        with pytest.raises(type(error)), asking(held, call):
            raise error
    assert held.interrupted() == calls


def test_told_of():
    """An error that has the batch is all that the caller needs; one that has another's is not."""
    held, call, other = Pending(), Call(), Call()
    with pytest.raises(AnswerLost), asking(held, call):
        raise lost(call)
    assert held.interrupted() == []
    with pytest.raises(AnswerLost), asking(held, call):
        raise lost(other)
    assert held.interrupted() == [call]


def test_the_thread_that_asks():
    """What this thread was at when it was interrupted counts; a call that runs in another thread does not."""
    held, mine, theirs = Pending(), Call(), Call()
    entered, leave = threading.Event(), threading.Event()

    def work():
        with asking(held, theirs):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    with asking(held, mine):  # as from a signal handler
        assert held.interrupted() == [mine]
    leave.set()
    thread.join()
    assert held.interrupted() == []


def test_a_thread_that_is_gone():
    """What it held, nobody works on any more."""
    held, call = Pending(), Call()
    thread = threading.Thread(target=held.begin, args=(call,))
    thread.start()
    thread.join()
    assert held.interrupted() == [call]


def test_tasks():
    """Of tasks that wait side by side, those that were cancelled are interrupted."""
    held, calls = Pending(), [Call(), Call()]

    async def work(call):
        with asking(held, call):
            await asyncio.sleep(60)

    async def main():
        tasks = [asyncio.create_task(work(call)) for call in calls]
        await asyncio.sleep(0)
        assert held.interrupted() == []
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        assert held.interrupted() == calls[1:]
        tasks[0].cancel()
        await asyncio.wait(tasks)

    asyncio.run(main())
    assert set(held.interrupted()) == set(calls)


def test_so_many_are_kept(monkeypatch):
    """The oldest interrupted go first; never one that is being worked on."""
    monkeypatch.setattr(pending, "KEPT", 3)
    held, running, calls = Pending(), Call(), [Call() for _ in range(5)]
    with asking(held, running):
        for call in calls:
            with pytest.raises(KeyboardInterrupt), asking(held, call):
                raise KeyboardInterrupt
        assert held.interrupted() == [running, *calls[-2:]]
    many = [Call() for _ in range(5)]
    held = Pending()
    for call in many:
        held.begin(call)
    assert held.interrupted() == many


def test_what_is_dropped_is_said(monkeypatch, caplog):
    """A call that goes because too many are kept is lost, so the log has it."""
    monkeypatch.setattr(pending, "KEPT", 2)
    held, calls = Pending(), [Call() for _ in range(3)]
    for call in calls:
        assert not caplog.records
        held.keep(call)
    assert held.interrupted() == calls[1:]
    assert "2 interrupted calls are unresolved: the oldest is dropped" in caplog.text


def test_seen_after_all():
    """An interrupted call whose answers nobody needs leaves, unless its caller asks again; it may be offered anew."""
    held, call = Pending(), Call()
    held.drop(call)
    held.keep(call)
    held.drop(call)
    assert held.interrupted() == []
    held.offer(call)
    assert held.interrupted() == [call]

    async def asks_again():
        with asking(held, call):
            held.drop(call)
            held.offer(call)
            assert list(held._owners.values()) == [asyncio.current_task()]

    asyncio.run(asks_again())
    assert held.interrupted() == []
