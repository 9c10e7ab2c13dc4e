"""Time passes by itself: whoever inserts turns rings, and rolling filters whose closed slices are in Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import cli
from support.interrupts import Interrupt
from support.service import Service
from support.shard_keys import shard_key
from support.turning import (
    HOUR,
    RING,
    ROLLING,
    Ticks,
    child,
    end_lease,
    epochs,
    insert_until_done,
    insert_until_killed,
    is_done,
    make_late,
    states,
    status_of,
)
from support.users import User

from urifilter_redis import AsyncUriFilter, ServerUnavailable, UriFilter
from urifilter_redis.engine import driver, rotation_timer
from urifilter_redis.engine.steps import Send
from urifilter_redis.flows import auto_rotate, items
from urifilter_redis.protocol import calls, scripts
from urifilter_redis.sdk import FilterAPI

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # pytest's own
]

BOTH = pytest.mark.parametrize("settings", [RING, ROLLING], ids=["ring", "rolling"])
ROOT = Path(__file__).parents[2]


def make(server, name="news", **settings) -> None:
    """Make a filter that has seen "old", and let its period be over."""
    with UriFilter.create(name, redis=server.url, **settings) as made:
        made.insert("old")
    make_late(server, name)


@pytest.fixture
def slowly(monkeypatch):
    """Each call goes on with a rotation for one part only, and ``close`` too."""
    monkeypatch.setattr(auto_rotate, "A_CALL", 0.0)
    monkeypatch.setattr(auto_rotate, "AT_CLOSE", 0.0)


@pytest.mark.parametrize("retention", ["ring", "rolling"])
def test_a_window_of_two_seconds(server, retention):
    """With nobody but a process that inserts, what was seen is forgotten after one to two periods, and not before."""
    settings = RING | {"retention": retention, "slices": 2, "period": "1s"}
    with UriFilter.create("news", redis=server.url, **settings) as news:
        began = time.monotonic()
        assert news.insert("old")
        while "old" in news:
            news.insert(f"{time.monotonic()}")
            assert time.monotonic() < began + 60
            time.sleep(0.02)
        assert time.monotonic() >= began + 1
        assert news.epoch() >= 2


@BOTH
def test_one_call(any_server, settings):
    """A client that is opened after the period was over turns all shards, the call has its answer, once a period."""
    make(any_server, shards=3, **settings)
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.insert("old") is False
        insert_until_done(any_server, news)
        for _ in range(20):
            assert news.insert("old") is False
        assert epochs(any_server) == [1, 1, 1]
    assert leased(any_server) is None


def leased(server, name="news") -> bytes | None:
    return server.ask("hget", f"urifilter:{{{name}:0}}:meta", "worker")


@BOTH
def test_asyncio(any_server, settings):
    """The same, awaited, by many tasks at once."""
    make(any_server, shards=3, **settings)

    async def work():
        async with await AsyncUriFilter.open("news", redis=any_server.url) as news:
            for number in range(200):
                some = await asyncio.gather(*(news.insert(f"{number}/{n}") for n in range(5)))
                assert some == [True] * 5
                if is_done(any_server):
                    return
        raise AssertionError(states(any_server))

    asyncio.run(work())
    assert leased(any_server) is None


def test_a_reader_turns_nothing(any_server):
    """Neither by its calls nor as it is closed; a filter into which nobody inserts stays as it is."""
    make(any_server, **RING)
    with any_server.client() as admin:
        before = admin.hgetall("urifilter:{news:0}:meta")
        with UriFilter.open("news", redis=any_server.url) as news:
            assert "old" in news
            assert news.ages(["old", "new"]) == [1, 0]
            assert news.info().next_rotation < admin.time()[0]
            assert news.due() == 1
        assert admin.hgetall("urifilter:{news:0}:meta") == before


def test_never(any_server, monkeypatch):
    """rotate="never", or the environment, leaves it to worker and cron; what is said in the call comes first."""
    make(any_server, **RING)

    async def awaited(**said):
        async with await AsyncUriFilter.open("news", redis=any_server.url, **said) as news:
            await news.insert("b")

    with UriFilter.open("news", redis=any_server.url, rotate="never") as news:
        news.insert("a")
    with UriFilter.create("news", redis=any_server.url, rotate="never", **RING) as news:
        news.insert("b")
    asyncio.run(awaited(rotate="never"))
    monkeypatch.setenv("URIFILTER_ROTATE", "never")
    with UriFilter.open("news", redis=any_server.url) as news:
        news.insert("c")
    asyncio.run(awaited())
    cli.run("add", "--redis", any_server.url, "--filter", "news", given=b"d\n")
    assert epochs(any_server) == [0]
    with UriFilter.open("news", redis=any_server.url, rotate="auto") as news:
        insert_until_done(any_server, news)
    with pytest.raises(ValueError, match="rotate= is auto or never and not 'daily'"):
        UriFilter.open("news", redis=any_server.url, rotate="daily")
    monkeypatch.setenv("URIFILTER_ROTATE", "daily")
    with pytest.raises(ValueError, match="URIFILTER_ROTATE is auto or never and not 'daily'"):
        UriFilter.create("news", redis=any_server.url, **RING)


@pytest.mark.parametrize("command", ["add", "dedupe"])
def test_the_command_line(any_server, command):
    """``add`` and ``dedupe`` turn a filter whose period is over."""
    make(any_server, shards=2, **RING)
    for _ in range(20):  # the first does it, unless the machine is slow
        cli.run(command, "--redis", any_server.url, "--filter", "news", given=b"a\nb\n")
        if is_done(any_server):
            break
    assert epochs(any_server) == [1, 1]


def test_the_service(any_server):
    """Requests that insert turn a filter, unless the settings say never; others do not."""
    for name in ("news", "other"):
        make(any_server, name, **RING)
    with Service(any_server.url, URIFILTER_ROTATE="never") as service:
        assert FilterAPI("other", ["a"], url=service.url)["unique"] == 1
    with Service(any_server.url) as service:
        for number in range(100):
            assert FilterAPI("news", [f"{number}"], url=service.url)["unique"] == 1
            if is_done(any_server):
                break
    assert (epochs(any_server), epochs(any_server, "other")) == ([1], [0])


def test_an_archive_elsewhere(any_server, folder, caplog):
    """Inserts do not turn it; its creator is told so, once, in the log, or by the command line on stderr."""
    said = "inserts do not rotate it: run urifilter worker, or urifilter rotate --due from cron"
    with UriFilter.create("news", redis=any_server.url, archive=folder, **RING) as news:
        assert said in caplog.text
    caplog.clear()
    make_late(any_server)
    with UriFilter.create("news", redis=any_server.url, archive=folder, **RING) as news:
        news.insert("a")
    for name, more in (("forever", {"capacity": 10}), ("ring", RING), ("rolling", ROLLING)):
        UriFilter.create(name, redis=any_server.url, archive="" if "period" in more else folder, **more).close()
    assert caplog.text == ""
    assert epochs(any_server) == [0]
    settings = ("--capacity", "1k", "--retention", "ring", "--slices", "3", "--period", "1d")
    archived = ("create", "more", "--redis", any_server.url, "--archive", folder, *settings)
    assert said in cli.run(*archived)[1]
    assert cli.run(*archived)[1] == ""


def test_many_at_the_boundary(any_server):
    """Fifty processes that find the period over turn each shard once; the states of all shards are read once."""
    make(any_server, shards=4, **RING)
    reading, writing = os.pipe()
    ready, told = os.pipe()

    def work():
        auto_rotate.AT_CLOSE = 60.0  # so that the one that turns comes to the end, on any machine
        os.close(writing)
        with UriFilter.open("news", redis=any_server.url) as news:
            os.write(told, b".")
            os.read(reading, 1)  # ends for all at once
            news.insert(f"{os.getpid()}")

    children = [child(work) for _ in range(50)]
    for _ in children:
        assert os.read(ready, 1) == b"."
    with any_server.client() as admin:
        admin.config_resetstat()
        os.close(writing)
        assert [status_of(pid) for pid in children] == [0] * 50
        stats = admin.info("commandstats")
    for descriptor in (reading, ready, told):
        os.close(descriptor)
    assert epochs(any_server) == [1] * 4
    assert stats["cmdstat_hgetall"]["calls"] <= 4 + 3 * 4  # and each shard before, after, and between


@BOTH
def test_many_after_a_pause(any_server, settings):
    """All find that periods were missed before they insert; each shard goes forward by those once."""
    make(any_server, shards=4, **settings)
    make_late(any_server, seconds=4 * HOUR + 1800)

    def work():
        with UriFilter.open("news", redis=any_server.url) as news:
            news.insert_many(range(100))

    children = [child(work) for _ in range(6)]
    assert [status_of(pid) for pid in children] == [0] * 6
    assert epochs(any_server) == [5] * 4
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.ages(range(100)) == [1] * 100
        assert "old" not in news


def calls_shard(news, item) -> int:
    (call,) = items.batch_of(news._session, "contains", [item]).open
    return call.shard


@pytest.mark.parametrize("seconds", [HOUR + 60, 9 * HOUR], ids=["a period", "a pause"])
def test_a_failure_is_not_the_callers(any_server, caplog, seconds):
    """A shard that cannot turn: inserts are answered all the same, and it is told in the log once."""
    make(any_server, shards=3, **RING)
    make_late(any_server, seconds=seconds - HOUR - 60)
    with UriFilter.open("news", redis=any_server.url) as news:
        any_server.ask("delete", shard_key("news", 2, 3, "today"))
        some = [f"{number}" for number in range(50) if calls_shard(news, f"{number}") != 2]
        for new in (True, False):
            for item in some:
                assert news.insert(item) is new
                news._session.rotation_timer.check_in(0)
        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert "a rotation failed, and is tried again later" in record.message
        assert "LOST" in record.message
        assert record.exc_info is None
        assert [epoch > 0 for epoch in epochs(any_server)] == [False, True, False]
        assert leased(any_server) is None


def kills_after(turns):
    """Die as that many shards have turned."""
    turned = []

    def dies(step, outcome):
        turned.extend(each for each in step.commands if "turn" in each and outcome == [1])
        return len(turned) == turns

    return dies


@pytest.mark.parametrize("turns", [1, 2, 3])
@BOTH
def test_killed_after_any_shard(any_server, settings, turns):
    """SIGKILL of the one that turns: another goes on once the lease is over; each shard has turned once."""
    make(any_server, shards=3, **settings)
    assert status_of(child(lambda: insert_until_killed(any_server.url, kills_after(turns)))) == -signal.SIGKILL
    assert sum(epochs(any_server)) == turns
    assert epochs(any_server)[0] == (turns == 3)
    with UriFilter.open("news", redis=any_server.url) as news:
        before = epochs(any_server)
        news.insert("while the lease of the dead holds")
        assert epochs(any_server) == before
    end_lease(any_server)
    if not is_done(any_server):
        with UriFilter.open("news", redis=any_server.url) as news:
            insert_until_done(any_server, news)
    assert epochs(any_server) == [1, 1, 1]
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.contains("old")
        assert all(state.opened_by(10**15) == state.opened for state in states(any_server))


def test_killed_again_and_again(any_server):
    """A rolling filter whose turner is killed soon, each time: what is built only grows, and it ends."""
    settings = ROLLING | {"capacity": 600_000, "error_rate": 1e-8, "slices": 4}
    with UriFilter.create("news", redis=any_server.url, rotate="never", **settings) as news:
        news.insert("old")
        for _ in range(3):
            news.rotate()
        pieces = -(-news.config.bytes // (256 << 10))
    make_late(any_server)
    life, seen = 2 * pieces + 25, []  # to read what is archived already takes two pipelines a piece
    while not is_done(any_server, 4):
        status_of(child(lambda: insert_until_killed(any_server.url, after(life))))
        end_lease(any_server)
        (state,) = states(any_server)
        seen.append((state.epoch, state.phase == "idle", -1 if state.pieces is None else state.pieces))
        assert len(seen) < 100
    built = [count for _, idle, count in seen if not idle and count >= 0]
    assert built == sorted(set(built)), "each built a piece at least"
    assert len(built) > 1
    assert seen == sorted(seen, key=lambda each: (each[0], each[1], each[2]))


def after(sends):
    """Die after so many pipelines."""
    count = itertools.count(1)
    return lambda *_: next(count) == sends


def test_processes_that_insert_once(any_server, slowly):
    """Each is opened, inserts once and is closed: together they turn all shards, each a part."""
    make(any_server, shards=4, **RING)
    done = []
    while not is_done(any_server):
        with UriFilter.open("news", redis=any_server.url) as news:
            news.insert(f"{len(done)}")
        assert leased(any_server) is None
        done.append(epochs(any_server))
        assert len(done) < 100
    assert len(done) > 2
    assert epochs(any_server) == [1] * 4


def test_close_goes_on(any_server, monkeypatch):
    """A client that is closed with a rotation in flight goes on with it, and gives the lease back."""
    monkeypatch.setattr(auto_rotate, "A_CALL", 0.0)
    monkeypatch.setattr(auto_rotate, "AT_CLOSE", 60.0)
    make(any_server, shards=3, **RING)
    with UriFilter.open("news", redis=any_server.url) as news:
        news.insert("a")
        assert leased(any_server) is not None
        assert epochs(any_server) == [0, 0, 0]
    assert epochs(any_server) == [1, 1, 1]
    assert leased(any_server) is None


def test_a_fork_meanwhile(any_server, slowly):
    """The child has neither lease nor rotation; the parent goes on with its own."""
    make(any_server, shards=3, **RING)
    news = UriFilter.open("news", redis=any_server.url)
    news.insert("a")
    holder = leased(any_server)
    assert holder == news._session.rotation_timer.token.encode()

    def inserting():
        for number in range(50):
            news.insert(f"child/{number}")
        assert news._session.rotation_timer.leased is None
        assert news._session.rotation_timer.token.encode() != holder
        news.close()

    assert status_of(child(inserting)) == 0
    assert (leased(any_server), epochs(any_server)) == (holder, [0, 0, 0])
    insert_until_done(any_server, news)
    news.close()


FORKING = """
import os, sys, threading
from urifilter_redis import UriFilter
from urifilter_redis.flows import auto_rotate

auto_rotate.A_CALL = auto_rotate.AT_CLOSE = 0.0
news = UriFilter.open("news", redis=sys.argv[1])
news.insert("a")
assert threading.active_count() == 1
pid = os.fork()
news.insert(str(pid))
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
news.close()
"""


@pytest.mark.parametrize("name", [sys.executable, "python3.12", "python3.13"])
def test_a_fork_makes_no_warning(any_server, name):
    """No thread runs, so that newer Pythons do not warn of a fork; warnings are errors here."""
    python = shutil.which(name)
    needed = "import can_ada, mmh3, pymongo, redis, rich, zstandard"
    if python is None or subprocess.run([python, "-c", needed], capture_output=True).returncode:
        pytest.skip(f"there is no {name} with the library's requirements")
    make(any_server, shards=3, **RING)
    more = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [python, "-W", "error", "-c", FORKING, any_server.url], env=more, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_loop_that_ends_meanwhile(any_server, slowly):
    """A rotation that one event loop has begun goes on in the next, and in the next."""
    make(any_server, shards=3, **RING)
    news = asyncio.run(AsyncUriFilter.open("news", redis=any_server.url))
    for number in range(200):
        assert asyncio.run(news.insert(f"{number}"))
        if is_done(any_server):
            break
    asyncio.run(news.close())
    assert number > 3
    assert epochs(any_server) == [1, 1, 1]


def test_cancelled_meanwhile(any_server, monkeypatch):
    """The answers of a call that is cancelled while it turns are in ``unresolved``; a retry sends nothing."""
    make(any_server, shards=3, **RING)
    perform, sent, task = driver.perform_step_async, [], None

    async def cancelling(step, sender):
        sent.append(step)
        outcome = await perform(step, sender)
        if isinstance(step, Send) and "take" in step.commands[0]:
            task.cancel()
            await asyncio.sleep(0)
        return outcome

    async def work():
        nonlocal task
        async with await AsyncUriFilter.open("news", redis=any_server.url) as news:
            monkeypatch.setattr(driver, "perform_step_async", cancelling)
            task = asyncio.create_task(news.unique(["old", "new"]))
            with pytest.raises(asyncio.CancelledError):
                await task
            (lost,) = news.unresolved
            sent.clear()
            monkeypatch.setattr(auto_rotate, "A_CALL", 0.0)
            news._session.rotation_timer.check_in(HOUR)
            assert await news.unique(["old", "new"], retry=lost) == ["new"]
            assert (news.unresolved, sent) == ([], [])
            monkeypatch.undo()
            news._session.rotation_timer.check_in(0)
            for number in range(100):
                await news.insert(f"{number}")

    asyncio.run(work())
    assert epochs(any_server) == [1, 1, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C as a generator is closed
def test_interrupted_meanwhile(any_server, sample):
    """Ctrl-C at any place of a call that turns: its answers arrive, or are to be had, and the filter turns later."""
    make(any_server, shards=2, **RING)

    def turning(number, at):
        make_late(any_server)
        end_lease(any_server)
        with UriFilter.open("news", redis=any_server.url) as news:
            with Interrupt(at) as interrupt:
                try:
                    assert news.unique([f"{number}"]) == [f"{number}"]
                except KeyboardInterrupt:
                    retry = next(iter(news.unresolved), None)  # None: it came before anything was sent
                    assert news.unique([f"{number}"], retry=retry) == [f"{number}"]
            assert news.unresolved == []
        return interrupt.places

    places = turning("all", 0)
    for number, at in enumerate(sample(range(1, places), 25, most=400)):
        turning(number, at)
    for more in (len(set(epochs(any_server))) == 1, 1):  # first the shard that may be behind
        make_late(any_server)
        end_lease(any_server)
        with UriFilter.open("news", redis=any_server.url) as other:
            insert_until_done(any_server, other, max(epochs(any_server)) + more)


@pytest.mark.parametrize("command", ["hmget", "rename", "setrange"])
def test_a_right_that_is_missing(any_server, command, caplog):
    """A user who may insert and not rotate gets all answers; it is said once, and the lease is given back."""
    make(any_server, shards=2, **(RING | {"layout": "classic"}))
    with User(any_server) as user:
        with UriFilter.open("news", redis=user.url) as news:
            with user.without(command):
                caplog.clear()
                try:
                    assert news.insert("a")
                except ServerUnavailable:  # hmget, setrange: it may not insert either
                    assert command != "rename"
                else:
                    assert [news.insert(f"{number}") for number in range(20)] == [True] * 20
                    (record,) = caplog.records
                    assert "leaves rotations to others" in record.message
                    assert leased(any_server) is None
            news.insert("z")
        with UriFilter.open("news", redis=user.url) as news:  # which is opened anew, and may
            insert_until_done(any_server, news)


def test_an_error_of_any_kind_is_not_the_callers(any_server, monkeypatch, caplog):
    """Also a fault of this library: the log has its traceback."""
    make(any_server, **RING)

    def broken(session):
        yield from ()
        raise RuntimeError("a fault")

    monkeypatch.setattr(auto_rotate, "rotate_due", broken)
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.insert("a")
        assert news.insert("b")
    assert "RuntimeError: a fault" in caplog.text
    assert leased(any_server) is None


def test_opened_in_the_future(any_server):
    """A time of opening that is ahead of the server's clock is rewritten by the next insert, and counts from then."""
    make(any_server, shards=2, **RING)
    make_late(any_server, seconds=-10 * 365 * 24 * HOUR)
    with UriFilter.open("news", redis=any_server.url) as news:
        news.insert("a")
        now = 1000 * (any_server.ask("time")[0] + 1)
        assert now - 60_000 < states(any_server)[0].opened <= now
        assert epochs(any_server) == [0, 0]


def test_no_call_takes_much_longer(any_server, monkeypatch):
    """By a clock of the steps alone: 20 ms a call, and the part that is under way then."""
    settings = ROLLING | {"capacity": 100_000, "error_rate": 1e-8, "shards": 4}
    make(any_server, **settings)
    ticks = Ticks(monkeypatch, 0.005, rotation_timer, auto_rotate, items)
    with UriFilter.open("news", redis=any_server.url) as news:
        spent = []
        while not is_done(any_server):
            before = ticks.spent
            news.insert(f"{len(spent)}")
            spent.append(ticks.spent - before)
            assert len(spent) < 500
        longest_part = 0.055  # the first: two looks, the lease, meta of all shards, the time, an allocation, scripts
        assert max(spent) <= 0.005 + 0.020 + longest_part
        assert len(spent) > 10
        for number in range(5):
            news.insert(f"the lease is given back, {number}")
        ticks.spent = 0.0
        for number in range(100):
            news.insert(f"more/{number}")
        assert ticks.spent == pytest.approx(0.5)


def test_one_caller_a_second(any_server, monkeypatch):
    """64 shards and a client that inserts once a second: it turns all, though it must give its lease back meanwhile."""
    make(any_server, shards=64, **RING)
    ticks = Ticks(monkeypatch, 0.005, rotation_timer, auto_rotate, items)
    takes = []
    with UriFilter.open("news", redis=any_server.url) as news:
        for _ in range(1000):
            news.insert(f"{ticks.now}")
            ticks.now += 1
            if is_done(any_server):
                break
        takes = [step for step in ticks.sent if "take" in getattr(step, "commands", [()])[0]]
    assert epochs(any_server) == [1] * 64
    assert len(takes) > 1


def test_a_lease_that_is_earned(any_server, monkeypatch):
    """A client that works much renews its lease, so that nobody takes over; one whose lease was taken stops."""
    make(any_server, shards=64, **RING)
    ticks = Ticks(monkeypatch, 0.5, rotation_timer, auto_rotate, items)
    monkeypatch.setattr(auto_rotate, "A_CALL", 0.0)
    with UriFilter.open("news", redis=any_server.url) as news:
        token, renewed = news._session.rotation_timer.token, []
        while not renewed:
            sent = len(ticks.sent)
            news.insert(f"{ticks.now}")
            first = next((step for step in ticks.sent[sent + 1 :] if hasattr(step, "commands")), None)
            renewed += [first] if first and "take" in first.commands[0] else []
            assert not is_done(any_server)
        assert leased(any_server) == token.encode()
        any_server.ask("hset", "urifilter:{news:0}:meta", "worker", "f" * 16)
        ticks.now += calls.LEASE * rotation_timer.OLD
        monkeypatch.setattr(rotation_timer, "WORKED", 0.0)
        before = epochs(any_server)
        for number in range(20):
            news.insert(f"taken/{number}")
        assert epochs(any_server) == before
        assert news._session.rotation_timer.leased is None


def test_scripts_are_loaded_anew(any_server):
    """A server that has lost its scripts gets them, and the rotation goes on."""
    make(any_server, shards=2, **RING)
    with UriFilter.open("news", redis=any_server.url) as news:
        any_server.ask("script_flush")
        assert not any_server.ask("script_exists", scripts.load("turn").sha1)[0]
        insert_until_done(any_server, news)
