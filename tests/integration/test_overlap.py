"""Long lists: while some calls are under way, the client notes the answers of earlier ones and cuts later ones."""

from __future__ import annotations

import itertools

import pytest
from support.proxy import Fault, Proxy, first, never

from urifilter_redis import AnswerLost, Timeouts, UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.protocol.calls import ITEMS_A_CALL

pytestmark = pytest.mark.slow

#: Three windows, and some more than one part, of a filter of three shards.
ITEMS = [f"https://example.com/{number}" for number in range(11_000)]
TWICE = [*ITEMS, *ITEMS[:100]]
EXPECTED = [True] * len(ITEMS) + [False] * 100


def create(url: str, **more) -> UriFilter:
    return UriFilter.create("news", redis=url, capacity=100_000, error_rate=1e-9, shards=3, **more)


@pytest.fixture
def overlapped(monkeypatch):
    """The drivers, watched: for each sending, whether it came with work, and how often that was done."""
    sendings: list[list[int]] = []

    def watched(step):
        if isinstance(step, Send) and step.meanwhile is not None:
            done, work = [0], step.meanwhile

            def count():
                done[0] += 1
                work()

            step.meanwhile = count
            sendings.append(done)
        return step

    perform, awaited = driver.perform_step, driver.perform_step_async
    monkeypatch.setattr(driver, "perform_step", lambda step, sender: perform(watched(step), sender))
    monkeypatch.setattr(driver, "perform_step_async", lambda step, sender: awaited(watched(step), sender))
    return sendings


@pytest.fixture(params=["any_server", "cluster"])
def news(request, clients):
    """A filter on one server, or on several."""
    create(request.getfixturevalue(request.param).url).close()
    return clients.open("news", redis=request.getfixturevalue(request.param).url)


def test_long_lists(news, overlapped):
    """All answers are right and in order; each window's work is done once, while its replies are on their way.

    So it is if each window goes in parts to several nodes.
    """
    assert news.insert_many(TWICE) == EXPECTED
    assert len(overlapped) >= len(ITEMS) / ITEMS_A_CALL / 8
    assert all(done == [1] for done in overlapped)
    assert news.contains_many(ITEMS) == [True] * len(ITEMS)
    assert news.unresolved == []


def test_work_that_fails(news, monkeypatch):
    """An error in that work reaches the caller; all answers are to be had, once, and on sound connections."""
    left = iter([True, False])

    def failing(step):
        if isinstance(step, Send) and step.meanwhile is not None and not next(left, True):
            step.meanwhile = lambda: 1 // 0
        return step

    perform, awaited = driver.perform_step, driver.perform_step_async
    monkeypatch.setattr(driver, "perform_step", lambda step, sender: perform(failing(step), sender))
    monkeypatch.setattr(driver, "perform_step_async", lambda step, sender: awaited(failing(step), sender))
    with pytest.raises(ZeroDivisionError):
        news.insert_many(TWICE)
    (lost,) = news.unresolved
    assert news.insert_many(TWICE, retry=lost) == EXPECTED


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize("call", [1, 9, 20])
def test_lost_replies(any_server, fault, call):
    """A reply that is lost in any window is asked for again, and the answers are right."""
    create(any_server.url).close()
    with Proxy(any_server.port) as proxy, UriFilter.open("news", redis=proxy.url) as news:
        news.insert("the script is loaded now")
        proxy.plan = first(*[Fault.PASS] * call, fault)
        assert news.insert_many(TWICE) == EXPECTED
        assert proxy.counts[fault] == 1
        assert news.unresolved == []


def test_server_that_goes_away_in_a_later_window(any_server):
    """The error has the answers of the windows before, and ``retry=`` asks for the rest, cut or not."""
    create(any_server.url).close()
    goes_away = itertools.chain([Fault.PASS] * 12, itertools.repeat(Fault.CUT_AFTER))
    quick = Timeouts(total=0.1)
    with Proxy(any_server.port) as proxy, UriFilter.open("news", redis=proxy.url, timeouts=quick) as news:
        news.insert("the script is loaded now")
        proxy.plan = lambda _: next(goes_away)
        with pytest.raises(AnswerLost) as lost:
            news.insert_many(TWICE)
        assert sum(answer is not None for answer in lost.value.answers) >= 8 * 400
        assert None in lost.value.answers
        proxy.plan = never
        assert news.insert_many(TWICE, retry=lost.value) == EXPECTED
