"""The rotation timer, by clocks of the test: when a client looks, who is at work, how much longer a call takes."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import config_of, meta_of, session_of

from urifilter_redis.engine import rotation_timer
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.rotation_timer import LONGEST_SPREAD, RECHECK, SPREAD, RotationTimer
from urifilter_redis.engine.steps import REST, Pause, Send, Work
from urifilter_redis.errors import RotationConflict, ServerUnavailable, UriFilterError
from urifilter_redis.flows import auto_rotate, items
from urifilter_redis.protocol import calls

TIMED = {"slices": 3, "period": "1h"}
RING, ROLLING = config_of(retention="ring", **TIMED), config_of(retention="rolling", **TIMED)
HOUR = 3600


class Clocks:
    """A monotonic clock and a wall clock, which need not agree; the modules look at these."""

    def __init__(self, patch) -> None:
        self.monotonic, self.wall = 1000.0, 1_700_000_000.0
        for module in (rotation_timer, auto_rotate):
            patch.setattr(module, "monotonic", lambda: self.monotonic)
        patch.setattr(rotation_timer, "time", lambda: self.wall)

    def sleep(self, seconds: float) -> None:
        self.monotonic, self.wall = self.monotonic + seconds, self.wall + seconds


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def turns(session) -> bool:
    """Whether a call of this client may be told to turn the filter."""
    return session.turned_by_inserts and session.rotation_timer.turns


def keeper_of(config=RING, opened=0.0) -> RotationTimer:
    """One whose client has inserted; shard 0 has turned so many seconds ago."""
    made = RotationTimer()
    made.take()
    made.learn(config, round(-1000 * opened), 0)
    return made


def due_after(keeper, clocks, step=1.0, most=100_000) -> float:
    """Sleep, as long as there is nothing to do; return the seconds."""
    began = clocks.monotonic
    while clocks.monotonic < keeper.at or not keeper.take():
        clocks.sleep(step)
        assert clocks.monotonic < began + most
    return clocks.monotonic - began


@pytest.mark.parametrize(
    "config", [config_of(), config_of(retention="growing"), config_of("file:///a", retention="ring", **TIMED)]
)
def test_filters_that_inserts_do_not_turn(clocks, config):
    """After the first insert nothing is ever due; one comparison says so."""
    keeper = keeper_of(config)
    assert keeper.at == math.inf
    assert not config.turned_by_inserts


def test_the_first_insert(clocks):
    """Before it nothing is planned, so that a client that only reads is known by that."""
    keeper = RotationTimer()
    keeper.learn(RING, 0, 0)
    assert (keeper.at, keeper.inserted) == (0.0, False)
    assert keeper.take() == []
    assert (keeper.at, keeper.inserted) == (clocks.monotonic + RECHECK, True)


@pytest.mark.parametrize(("period", "spread"), [("1s", 0.1), ("1m", 6.0), ("1h", 30.0), ("1w", 30.0)])
def test_when_it_looks(clocks, period, spread):
    """A period after the turn, and a random time later: a tenth of the period, 30 s at most."""
    config = config_of(retention="ring", slices=3, period=period)
    seconds = rotation_timer.seconds_of(period)
    assert min(SPREAD * seconds, LONGEST_SPREAD) == spread
    looks = []
    for _ in range(200):
        keeper = keeper_of(config, opened=0.25 * seconds)
        looks.append(keeper._due - clocks.monotonic)
    assert all(0.75 * seconds <= each <= 0.75 * seconds + spread for each in looks)
    assert max(looks) - min(looks) > 0.8 * spread


def test_it_looks_at_once(clocks):
    """If the period was over long ago, or shard 0 was opened in the future."""
    for opened in (2 * HOUR, -(10**6)):
        assert keeper_of(opened=opened).take() == [None]


@pytest.mark.parametrize("leap", [-(10**9), 10**9])
def test_a_wall_clock_that_is_set(clocks, leap):
    """Set back, the monotonic clock counts; set forward, or after a sleep of the machine, it looks within a minute."""
    keeper = keeper_of()
    clocks.wall += leap
    waited = due_after(keeper, clocks)
    assert waited == pytest.approx(RECHECK, abs=1) if leap > 0 else HOUR <= waited <= HOUR + LONGEST_SPREAD + 1


def test_one_at_a_time(clocks):
    """While one thread or task is at work the others have nothing to do; if it never ends, they go on after a lease."""
    keeper = keeper_of(opened=2 * HOUR)
    assert keeper.take() == [None]
    assert keeper.take() == []
    assert keeper.at == clocks.monotonic + keeper.lease
    clocks.sleep(keeper.lease - 1)
    assert keeper.take() == []
    clocks.sleep(2)
    assert keeper.take() == [None]


def nothing():
    yield REST


def test_what_was_left(clocks):
    """It is taken by the next call, or by the first after the pause that it wants."""
    keeper, flow = keeper_of(opened=2 * HOUR), nothing()
    keeper.take()
    keeper.put(flow)
    assert keeper.at <= clocks.monotonic
    assert keeper.take() == [flow]
    keeper.put(flow, 0.5)
    assert keeper.take() == []
    assert keeper.at == clocks.monotonic + 0.5
    clocks.sleep(0.5)
    assert keeper.take() == [flow]
    keeper.learn(RING, 0, 0)
    keeper.put()
    assert keeper.take() == []


def test_a_forked_child(clocks, monkeypatch):
    """It has neither lease nor rotation, another token, and looks at another time."""
    keeper = keeper_of(opened=2 * HOUR)
    keeper.take()
    keeper.took_lease(clocks.monotonic)
    keeper.put(nothing())
    token, due = keeper.token, keeper._due
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert keeper.take() == [None]
    assert (keeper.leased, keeper.token == token, keeper._due == due) == (None, False, False)


def test_leases(clocks):
    """A minute, or a period if that is shorter; old after two thirds; earned by a tenth of it."""
    assert keeper_of().lease == calls.LEASE == 60
    assert keeper_of(config_of(retention="ring", slices=2, period="10s")).lease == 10
    assert calls.lease_of(config_of("file:///a", retention="ring", slices=2, period="10s")) == 60
    keeper = keeper_of(opened=2 * HOUR)
    assert not keeper.lease_is_old
    keeper.took_lease(clocks.monotonic)
    clocks.sleep(39)
    assert not keeper.lease_is_old
    clocks.sleep(2)
    assert keeper.lease_is_old
    for _ in range(3):
        assert not keeper.lease_is_earned
        assert keeper.take()
        clocks.sleep(2.1)
        keeper.put(nothing())
    assert keeper.lease_is_earned


def test_problems_are_told_seldom(clocks):
    """The same one every ten minutes at most."""
    keeper = RotationTimer()
    assert [keeper.may_report(text) for text in ("a", "a", "b", "a", "a")] == [True, False, True, True, False]
    clocks.sleep(601)
    assert keeper.may_report("a")


def test_a_session_tells_its_timekeeper(clocks):
    """From the meta of shard 0 and from STALE: when it has turned; an unfinished turn is looked after a lease."""
    session = session_of(ROLLING)
    keeper = session.rotation_timer
    keeper.take()
    now = session.ids.clock.now()
    geometry = f"{ROLLING.units}:{ROLLING.bytes}:1"

    def left():
        return keeper._due - clocks.monotonic

    for shard, ago, some, least in (
        (0, 0, "history today", HOUR),
        (1, HOUR, "history today", HOUR),
        (0, HOUR - 100, "history today", 100),
        (0, 0, "history history_1 today", 60),
        (0, -5 * HOUR, "history today", 0),
    ):
        slices = " ".join(f"{name}:{geometry}" for name in some.split())
        session.learn_turn(shard, {"epoch": "7", "opened": str(now - 1000 * ago), "slices": slices})
        assert least - 1 <= left() <= least + LONGEST_SPREAD, (shard, ago)
    session.learn(meta_of(ROLLING, opened=now, slices=f"history_1:{geometry} today:{geometry}"))
    assert left() <= 0
    session.learn(meta_of(ROLLING, opened=now + 10**6, ahead=f"{now - 10**7} x"))
    assert left() <= 0
    session.learn(meta_of(ROLLING, opened=now - 10**7, ahead=now))
    assert left() > HOUR - 1
    session.learn(meta_of(ROLLING, opened="damaged"))


class Server:
    """Answers what is sent: the lease as it is told, everything else by 1; each step takes 5 ms."""

    def __init__(self, clocks, lease=1) -> None:
        self.clocks, self.lease, self.sent = clocks, lease, []

    def perform(self, step, _):
        self.clocks.sleep(step.seconds if isinstance(step, Pause) else 0.005)
        if isinstance(step, Send):
            self.sent += [
                next((word for word in each if word in {"take", "release"}), each[0]) for each in step.commands
            ]
            return [self.lease if "take" in each else 1 for each in step.commands]
        return step.do() if isinstance(step, Work) else None


def session_over():
    """Its period is over; its rotation is what a test puts in its place."""
    made = session_of(RING)
    made.rotation_timer.take()
    made.rotation_timer.learn(RING, 0, 10**10)
    return made


@pytest.fixture
def session(clocks):
    return session_over()


def attend_with(session, server, flow, monkeypatch, calls_=1):
    monkeypatch.setattr(auto_rotate, "rotate_if_due", lambda _: flow)
    for _ in range(calls_):
        drive(auto_rotate.auto_rotate(session), perform=server.perform)


def parts(count, steps=1):
    """A rotation of so many parts."""
    for _ in range(count):
        for _ in range(steps):
            yield Send([("PING",)])
        yield REST


@given(count=st.integers(1, 60), steps=st.integers(1, 8))
def test_twenty_milliseconds_a_call(count, steps):
    """A call ends with the first part that ends after 20 ms; the rotation goes on where it was, to its end."""
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch)
        session, server = session_over(), Server(clocks)
        flow = parts(count, steps)
        patch.setattr(auto_rotate, "rotate_if_due", lambda _: flow)
        while flow.gi_frame is not None:
            before, sent = clocks.monotonic, len(server.sent)
            drive(auto_rotate.auto_rotate(session), perform=server.perform)
            assert clocks.monotonic - before < auto_rotate.A_CALL + 0.005 * steps
            assert (len(server.sent) - sent) % steps == 0
        assert len(server.sent) == count * steps


def test_a_pause_is_not_waited_for(session, clocks, monkeypatch):
    """A rotation that has to wait is left, and goes on with the first call after that."""

    def waiting():
        yield Pause(0.3)
        yield Send([("PING",)])

    server, flow = Server(clocks), waiting()
    began = clocks.monotonic
    attend_with(session, server, flow, monkeypatch, 3)
    assert (clocks.monotonic, server.sent) == (began, [])
    clocks.sleep(0.3)
    attend_with(session, server, flow, monkeypatch)
    assert server.sent == ["PING"]


@pytest.mark.parametrize(
    ("error", "level", "stops"),
    [
        (RotationConflict("another was first"), "DEBUG", False),
        (UriFilterError("a fault of the filter"), "WARNING", False),
        (ServerUnavailable("OOM"), "WARNING", False),
        (ServerUnavailable("NOPERM"), "WARNING", True),
        (KeyError("a fault of ours"), "WARNING", False),
    ],
)
def test_failures(session, clocks, monkeypatch, caplog, error, level, stops):
    """They are logged, the same one seldom; it is tried again a lease later, or not at all without the right."""
    caplog.set_level("DEBUG", "urifilter_redis")  # whose level another test may have set

    def failing(_):
        yield Send([("PING",)])
        raise error

    server, keeper = Server(clocks), session.rotation_timer
    monkeypatch.setattr(auto_rotate, "rotate_if_due", failing)
    keeper.took_lease(clocks.monotonic)
    drive(auto_rotate.auto_rotate(session), perform=server.perform)
    assert [record.levelname for record in caplog.records] == [level]
    assert ("release" in server.sent) == (not isinstance(error, ServerUnavailable) or stops)
    assert keeper.leased is None
    drive(auto_rotate.auto_rotate(session), perform=server.perform)
    assert server.sent.count("PING") == 1
    clocks.sleep(keeper.lease + LONGEST_SPREAD)
    drive(auto_rotate.auto_rotate(session), perform=server.perform)
    assert server.sent.count("PING") == (1 if stops else 2)
    assert len(caplog.records) == (2 if level == "DEBUG" else 1)


def test_an_interruption_is_raised(session, clocks, monkeypatch):
    """Ctrl-C, or an error of the caller's own ``check``, is no failure of the rotation; the next call looks anew."""
    flows = []

    def round_(_):
        flows.append(parts(3))
        return flows[-1]

    monkeypatch.setattr(auto_rotate, "rotate_if_due", round_)
    for error in (KeyboardInterrupt(), UriFilterError("by check")):
        flow = auto_rotate.auto_rotate(session)
        assert isinstance(next(flow), Send)
        with pytest.raises(type(error)):
            flow.throw(error)
        assert session.rotation_timer.at <= clocks.monotonic
    drive(auto_rotate.auto_rotate(session), perform=Server(clocks).perform)
    assert len(flows) == 3


def test_work_that_fails(session, clocks, monkeypatch):
    """Its error reaches the rotation, which may go on."""
    heard = []

    def working():
        try:
            yield Work("fails", lambda: 1 / 0)
        except ZeroDivisionError as error:
            heard.append(error)
        yield Send([("PING",)])

    server = Server(clocks)
    attend_with(session, server, working(), monkeypatch)
    assert (len(heard), server.sent) == (1, ["PING"])


@pytest.mark.parametrize(("worked", "lease", "sent"), [(7, 1, ["take", "PING"]), (7, 0, ["take"]), (5, 1, ["release"])])
def test_an_old_lease(session, clocks, monkeypatch, worked, lease, sent):
    """It is renewed if it was earned, and otherwise given back; without it nothing goes on."""
    server, keeper = Server(clocks, lease), session.rotation_timer
    monkeypatch.setattr(auto_rotate, "rotate_if_due", lambda _: parts(2, 1))
    monkeypatch.setattr(auto_rotate, "A_CALL", 0.0)
    keeper.took_lease(clocks.monotonic)
    drive(auto_rotate.auto_rotate(session), perform=server.perform)
    keeper.worked = worked
    clocks.sleep(41)
    server.sent.clear()
    drive(auto_rotate.auto_rotate(session), perform=server.perform)
    assert server.sent == sent
    assert (keeper.leased is not None) == ("PING" in sent)


def test_told_to_turn_in_vain(session, monkeypatch):
    """After some times that turn nothing, or one that fails, calls are not marked any more until the next look."""

    def nothing_turns(_, *, build):
        assert not build
        yield from ()

    def failing(_, *, build):
        yield from ()
        raise ServerUnavailable("OOM")

    def nothing_is_left(_):
        yield from ()

    monkeypatch.setattr(auto_rotate, "finish_missed", nothing_is_left)
    for flow, times in ((nothing_turns, rotation_timer.FRUITLESS), (failing, 1)):
        monkeypatch.setattr(auto_rotate, "rotate_due", flow)
        for left in reversed(range(times)):
            assert turns(session)
            drive(auto_rotate.turn_missed(session))
            assert turns(session) == (left > 0)
        next(auto_rotate.rotate_if_due(session))
    assert turns(session)
    assert not turns(session_of(config_of()))
    session.rotation_timer.stop()
    assert not turns(session)


def test_leaving(session, clocks, monkeypatch):
    """A client that is closed goes on for a second, and gives its lease back once; one that only read does nothing."""
    server, keeper = Server(clocks), session.rotation_timer
    monkeypatch.setattr(auto_rotate, "rotate_if_due", lambda _: parts(1000))
    keeper.took_lease(clocks.monotonic)
    began = clocks.monotonic
    drive(auto_rotate.leave(session), perform=server.perform)
    assert clocks.monotonic - began == pytest.approx(auto_rotate.AT_CLOSE, abs=0.02)
    assert server.sent[-1] == "release"
    server.sent.clear()
    reader = session_of(RING)
    reader.rotation_timer.learn(RING, 0, 10**10)
    drive(auto_rotate.leave(reader), perform=server.perform)
    assert server.sent == []


@pytest.mark.parametrize(("command", "asks"), [("insert", True), ("contains", False), ("forget", False)])
def test_which_calls_look(clocks, monkeypatch, command, asks):
    """Those that insert, as soon as it is time and not before: until then they compare two numbers."""
    session, looks = session_of(RING), []
    session.rotation_timer.take()
    monkeypatch.setattr(items, "auto_rotate", lambda _: iter(looks.append(1) or ()))
    monkeypatch.setattr(items, "monotonic", lambda: clocks.monotonic)
    session.rotation_timer.learn(RING, 0, 0)
    for _ in range(2):
        drive(items.resolve(session, items.batch_of(session, command, [])))
        assert looks == ([1] if asks and clocks.monotonic > 2000 else [])
        clocks.sleep(HOUR + LONGEST_SPREAD)
