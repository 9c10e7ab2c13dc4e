"""Streams: windows of items that are under way while the next one is read, and answers as if each were asked alone."""

from __future__ import annotations

import time

import pytest
from support.proxy import Fault, Proxy, at_random, first
from support.servers import wait_until

from urifilter_redis import AnswerLost, ServerUnavailable, Timeouts, UriFilter, UriFilterError
from urifilter_redis.bloom.encoding import pack
from urifilter_redis.engine.holdings import Claiming
from urifilter_redis.protocol.claims import Holding, new_holder
from urifilter_redis.streaming import UNDER_WAY, Stream, StreamedFilter

QUICK = Timeouts(connect=10, reply=10, total=0.6)
BRIEF = Timeouts(connect=10, reply=10, total=0.1)


@pytest.fixture
def make(any_server):
    """Make filters, and streams into a filter whose windows are taken into a list."""
    opened = []

    def make(name="news", command="insert", url=None, timeouts=QUICK, take=None, claim_options=None, **settings):
        UriFilter.create(name, redis=any_server.url, **{"capacity": 100_000, "error_rate": 1e-9} | settings).close()
        news = StreamedFilter.open(name, redis=url or any_server.url, timeouts=timeouts)
        opened.append(news)
        taken = []
        take = take or (lambda window, answers: taken.append((window, [*answers])))
        return Stream(news, command, take, claim_options=claim_options), taken

    yield make
    for each in opened:
        each.close()


def items(count: int, begin: int = 0) -> list[str]:
    return [f"https://example.com/{number}" for number in range(begin, begin + count)]


def test_windows_are_under_way_together(make, any_server):
    """A window is sent although the server has not answered the one before it."""
    stream, taken = make(timeouts=Timeouts())
    stream.put("first", ["a", "b"])
    stream.drain()  # by now the server knows the script
    with any_server.client() as admin:
        admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        stream.put("second", ["c", "a"])
        stream.put("third", ["d", "b"])
        wait_until(lambda: admin.info("clients")["blocked_clients"] == 2, "they do not wait for the server together")
        assert len(taken) == 1
        admin.execute_command("CLIENT", "UNPAUSE")
    stream.drain()
    assert taken == [("first", [0, 0]), ("second", [0, 1]), ("third", [0, 1])]


@pytest.mark.parametrize("shards", [1, 3])
def test_the_first_of_equal_items_is_new(make, shards):
    """In a window, and across windows under way, also where only the normalisation makes them equal."""
    stream, taken = make(shards=shards, normalize="whatwg")
    stream.put(1, ["http://a.com", "http://b.com/", "http://a.com/"])
    stream.put(2, ["http://b.com", "http://c.com/#top", "http://A.com"])
    stream.put(3, ["http://c.com", "http://b.com", "http://d.com"])
    stream.put(4, ["http://b.com", "http://d.com"])  # nothing is left to ask
    stream.drain()
    assert taken == [(1, [0, 0, 1]), (2, [1, 0, 1]), (3, [1, 1, 0]), (4, [1, 1])]


@pytest.mark.sampled
@pytest.mark.parametrize("fault", [Fault.PASS, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_first_of_equal_items_is_claimed(make, any_server, shards, fault):
    """In a window, and across windows, also if a command or a reply is lost; each item has its own payload."""
    holding = Holding(new_holder(), 60_000)
    any_server.ask("script_flush")  # the fault meets a script that is there by then
    with Proxy(any_server.port, first(*[Fault.PASS] * 6, fault)) as proxy:
        stream, taken = make(
            command="claim",
            url=proxy.url,
            shards=shards,
            claim_options=lambda some: Claiming(
                holding, kept={index: pack(item, f"of {item}") for index, item in enumerate(some)}
            ),
        )
        stream.filter.insert("seen")
        stream.put(1, ["a", "b", "a", "seen"])
        stream.put(2, ["b", "c"])
        stream.put(3, ["d", "e"])
        stream.put(4, ["e", "c", "f", "seen"])
        stream.drain()
        assert proxy.counts[fault] > 0
        assert taken == [(1, [0, 0, -1, 1]), (2, [-1, 0]), (3, [0, 0]), (4, [-1, -1, 0, 1])]
        with stream.filter.claims(holder=holding.holder, beats=False) as mine:
            assert all(mine.release([*"abcdef"]))
            assert {each.item: each.payload for each in mine.reclaim()} == {item: f"of {item}" for item in "abcdef"}


def test_no_more_than_one_window_of_the_library_is_under_way(make):
    """Items that were inserted and not handed over are at most ``UNDER_WAY``, at any time."""
    count, most = 0, 0

    def look(window, answers):
        nonlocal count, most
        most = max(most, news.inserted() - count)
        count += answers.count(0)

    stream, _ = make(take=look)
    news = stream.filter
    for begin in range(0, 5 * UNDER_WAY, UNDER_WAY // 2):
        stream.put(None, items(UNDER_WAY // 2, begin))
    stream.put(None, items(10, 5 * UNDER_WAY))
    stream.drain()
    assert count == 5 * UNDER_WAY + 10
    assert UNDER_WAY // 2 <= most <= UNDER_WAY


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY])
def test_a_fault_is_not_seen(make, any_server, fault):
    """A command or a reply that is lost in either window under way is asked for again, with the right answers."""
    for at in range(2):
        with Proxy(any_server.port, first(Fault.PASS, *[Fault.PASS] * at, fault)) as proxy:
            stream, taken = make(f"news{at}", url=proxy.url)
            stream.put(0, ["z"])
            stream.put(1, ["a", "b"])
            stream.put(2, ["b", "c", "a"])
            stream.drain()
            assert taken == [(0, [0]), (1, [0, 0]), (2, [1, 0, 1])]
            assert proxy.counts[fault] == 1


@pytest.mark.slow
def test_many_faults(make, any_server):
    """Each item is new exactly once while one command in seven is lost, delayed or repeated."""
    with Proxy(any_server.port, at_random(7, 0.15)) as proxy:
        stream, taken = make(url=proxy.url, shards=2)
        for begin in range(0, 2000, 50):
            stream.put(None, items(60, begin))  # ten of them come again in the next window
        stream.drain()
    assert [answers.count(0) for _, answers in taken] == [60] + [50] * 39


def test_a_server_that_is_gone(make, any_server):
    """Its error is raised after all windows were handed over, with the answers that are known."""
    with Proxy(any_server.port) as proxy:
        stream, taken = make(url=proxy.url, timeouts=BRIEF)
        stream.put(0, ["z"])
        stream.drain()
        proxy.plan = lambda _: Fault.CUT_AFTER
        stream.put(1, ["a", "b"])
        stream.put(2, ["b", "c"])
        with pytest.raises(AnswerLost):
            stream.drain()
        assert taken == [(0, [0]), (1, [None, None]), (2, [1, None])]
        proxy.plan = lambda _: Fault.PASS
        stream.put(3, ["d"])  # it goes on
        stream.drain()
        assert taken[-1] == (3, [0])


def test_a_question_that_fails(make, any_server):
    """Of ``contains``, which changes nothing, windows without all answers are not handed over."""
    with Proxy(any_server.port) as proxy:
        stream, taken = make(command="contains", url=proxy.url, timeouts=BRIEF)
        stream.put(0, ["z"])
        stream.drain()
        proxy.plan = lambda _: Fault.CUT_BEFORE
        stream.put(1, ["a"])
        with pytest.raises(ServerUnavailable):
            stream.drain()
        assert taken == [(0, [0])]


def test_what_take_raises_leaves_the_rest_under_way(make):
    """The caller may finish the other windows: none of them is forgotten."""
    taken = []

    def take(window, answers):
        taken.append((window, answers))
        assert window != 1

    stream, _ = make(take=take)
    stream.put(1, ["a"])
    stream.put(2, ["b"])
    with pytest.raises(AssertionError):
        stream.drain()
    stream.drain()
    assert taken == [(1, [0]), (2, [0])]


@pytest.mark.parametrize("connections", [1, 2])
def test_few_connections(make, any_server, connections):
    """Never more windows are under way than there may be connections: no window waits for one."""
    stream, taken = make(url=f"{any_server.url}?max_connections={connections}")
    for number in range(10):
        stream.put(number, [str(number)])
        assert stream.windows <= connections
    stream.drain()
    assert taken == [(number, [0]) for number in range(10)]


def test_time_in_which_nobody_waits_does_not_count(make, any_server):
    """A window that is under way for long, as its caller is busy, still has all of its time to be asked again."""
    with Proxy(any_server.port) as proxy:
        stream, _ = make(url=proxy.url)
        stream.put(0, ["z"])
        stream.drain()
        opened, proxy.plan = stream.filter, first(Fault.CUT_BEFORE)
        begun = opened.begin(opened.batch("insert", opened.digests(["a"]), None))
        time.sleep(QUICK.total)
        assert begun.finish().answers == [0]


def test_windows_that_nobody_waits_for(make):
    """They give back their connections: more of them can be under way than there are connections."""
    stream, _ = make()
    opened = stream.filter
    for number in range(200):
        opened.begin(opened.batch("insert", opened.digests([f"{number}"]), None)).leave()
    assert opened.insert("one more")


def test_one_item_after_the_other(make):
    """Windows of one item, in a filter that was dropped meanwhile: the error says so."""
    stream, taken = make()
    stream.put(1, ["a"])
    stream.drain()
    stream.filter.drop()
    stream.put(2, ["b"])
    with pytest.raises(UriFilterError, match="there is no filter here"):
        stream.drain()
    assert taken == [(1, [0]), (2, [None])]
