"""Both drivers do the same with a flow's steps; and the questions that flows ask."""

from __future__ import annotations

import asyncio

import pytest
from support.by_hand import Hand, config_of, meta_of, said, session_of

from urifilter_redis.engine import driver, retry
from urifilter_redis.engine.queries import ask_shard, scanned, server_run, servers_info
from urifilter_redis.engine.steps import Pause, Send, Work
from urifilter_redis.errors import FilterFull, ServerUnavailable
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import calls


class Server:
    """Answers a command with itself."""

    def send(self, commands, _):
        return list(commands)


class AwaitedServer:
    async def send(self, commands, _):
        return list(commands)


def blocking(flow):
    return driver.drive(flow, Server())


def awaited(flow):
    return asyncio.run(driver.drive_async(flow, AwaitedServer()))


DRIVERS = [blocking, awaited]


@pytest.mark.parametrize("drive", DRIVERS)
def test_steps(drive):
    """What a step brings goes back into the flow, and what the flow returns is returned."""

    def flow():
        replies = yield Send([("a",), ("b",)])
        nothing = yield Pause(0)
        worked = yield Work("count", lambda: 7)
        return replies, nothing, worked

    assert drive(flow()) == ([("a",), ("b",)], None, 7)


@pytest.mark.parametrize("drive", DRIVERS)
def test_errors(drive):
    """What a step raises is raised in the flow, which may go on; what the flow raises is raised."""

    def flow(*, goes_on):
        try:
            yield Work("fail", lambda: 1 // 0)
        except ZeroDivisionError:
            if not goes_on:
                raise
        return (yield Send([("a",)]))

    assert drive(flow(goes_on=True)) == [("a",)]
    with pytest.raises(ZeroDivisionError):
        drive(flow(goes_on=False))


@pytest.mark.parametrize("drive", DRIVERS)
def test_interrupted(drive):
    """The flow hears of Ctrl-C, and may still do something."""
    seen = []

    def interrupt():
        raise KeyboardInterrupt

    def flow():
        try:
            yield Work("wait", interrupt)
        except KeyboardInterrupt:
            seen.append((yield Send([("give back",)])))
            raise

    with pytest.raises(KeyboardInterrupt):
        drive(flow())
    assert seen == [[("give back",)]]


def test_awaited_work():
    """Work that returns an awaitable is awaited; other work runs in a thread, so that the loop goes on."""

    async def later():
        return 8

    def flow():
        one = yield Work("awaited", later, awaited=True)
        other = yield Work("at once", lambda: 9, awaited=True)
        return one, other

    assert awaited(flow()) == (8, 9)


def test_checked_before_each_step():
    """What the check raises ends the flow before the step is done."""
    done = []

    def flow():
        for number in range(5):
            yield Work("count", lambda number=number: done.append(number))

    def check():
        if len(done) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        driver.drive(flow(), check=check)
    assert done == [0, 1]


@pytest.fixture
def hand(monkeypatch):
    return Hand(monkeypatch, retry)


def test_info_that_may_not_be_asked(hand):
    """Without the right there are no fields; any other refusal is raised."""
    session = session_of()
    refused = said("NOPERM this user has no permissions to run the 'info' command")
    told = hand.drive(servers_info(session, "memory"), [b"# Memory\r\nused_memory:5\r\n"])
    assert told == {"": {"used_memory": "5"}}
    assert hand.drive(servers_info(session, "memory"), [refused]) == {"": {}}
    assert hand.drive(server_run(session, "key"), [b"run_id:abc\r\n"]) == "abc"
    assert hand.drive(server_run(session, "key"), [refused]) == ""
    with pytest.raises(ServerUnavailable, match="MISCONF"):
        hand.drive(servers_info(session, "memory"), [said("MISCONF disk")])


def test_scanned(hand):
    """All entries, from cursor to cursor until it is 0 again."""
    rounds = [[[b"17", [b"a", b"1", b"b", b"2"]]]], [[[b"5", []]]], [[[b"0", [b"c", b"3"]]]]
    found = hand.drive(scanned(session_of(), "HSCAN", "key"), *(each[0] for each in rounds))
    assert found == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert [commands[0][:3] for commands in hand.sent] == [("HSCAN", "key", cursor) for cursor in (b"0", b"17", b"5")]


def test_a_question_that_there_is_no_room_for(hand):
    """It is raised: only items of a batch are asked again after a turn."""
    session = session_of(config_of(retention="growing"))

    def build():
        return calls.items("insert", session.config, session.keys.shard(0), session.view(0), "-", bytes(16))

    with pytest.raises(FilterFull):
        hand.drive(ask_shard(session, 0, build), [said("FULL today has no room")])


GROWING = config_of(retention="growing")


def test_room_again(hand):
    """Somebody else has made the next slice: nothing is turned, and the session knows the slices."""
    session = session_of(GROWING)
    meta = meta_of(GROWING, limit=1000, inserted=10)
    hand.drive(grow(session, 0, 900), [meta], [meta])
    assert {command[0] for commands in hand.sent for command in commands} == {"HGETALL"}


def test_somebody_else_grows_it(hand):
    """The turn that came second is no error."""
    session = session_of(GROWING)
    meta = meta_of(GROWING, limit=1000, inserted=1000)
    hand.drive(grow(session, 0, 1), [meta], [said("BADPHASE it is in epoch 1")], [meta])


def test_as_many_slices_as_there_can_be(hand):
    """It is full, and says what to do."""
    meta = meta_of(GROWING, epoch=99, inserted=1000)
    with pytest.raises(FilterFull, match="make a filter of a larger capacity"):
        hand.drive(grow(session_of(GROWING), 0, 1), [meta | {"limit": "1000"}])


class Slow(Server):
    """Answers once somebody waits for it."""

    def __init__(self):
        self.begun, self.left = [], 0

    def begin(self, commands):
        if commands == [("refused",)]:
            raise ZeroDivisionError
        self.begun.append(commands)
        return self

    def finish(self):
        return list(self.begun[-1])

    def leave(self):
        self.left += 1


def test_begun_flow():
    """Its first commands are sent at once, all else is done by ``finish``."""
    slow, done = Slow(), []

    def flow():
        first = yield Send([("a",)])
        done.append(first)
        return (yield Send([("b",)])), (yield Work("count", lambda: 7))

    begun = driver.StartedFlow(flow(), slow, lambda: None)
    assert (slow.begun, done) == ([[("a",)]], [])
    assert begun.finish() == ([("b",)], 7)
    assert done == [[("a",)]]


def test_begun_flow_that_sends_nothing_first():
    """It begins with other work, or is over at once."""

    def works():
        return (yield Work("count", lambda: 7))

    def over():
        return 8
        yield

    assert [driver.StartedFlow(flow(), Slow(), lambda: None).finish() for flow in (works, over)] == [7, 8]


def test_begun_flow_whose_sending_fails():
    """The flow hears of it, and it is raised."""
    heard = []

    def flow():
        try:
            yield Send([("refused",)])
        except ZeroDivisionError:
            heard.append("it failed")
            raise

    with pytest.raises(ZeroDivisionError):
        driver.StartedFlow(flow(), Slow(), lambda: None)
    assert heard == ["it failed"]


def test_begun_flow_that_is_left():
    """Its replies are not waited for; nor are they when the check fails before."""
    slow, checks = Slow(), iter([None, ZeroDivisionError()])

    def flow():
        yield Send([("a",)])

    def check():
        if error := next(checks):
            raise error

    driver.StartedFlow(flow(), slow, lambda: None).leave()
    assert slow.left == 1
    with pytest.raises(ZeroDivisionError):
        driver.StartedFlow(flow(), slow, check).finish()
    assert slow.left == 2
