"""A request that names itself: whichever process repeats it, whatever has changed meanwhile, the answer is the same."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.proxy import Fault, Proxy, first

from urifilter_redis import AnswerLost, UriFilter, UriFilterError
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send, Timeouts
from urifilter_redis.flows import items as flow
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.service.filters import Filters
from urifilter_redis.transport.connections import AsyncConnector, SharedConnector
from urifilter_redis.transport.url import Address

KEY = CallKey("0123456789abcdef/7/1")

RETENTIONS = {
    "forever": {"capacity": 20_000, "shards": 3},
    "classic": {"capacity": 20_000, "layout": "classic", "shards": 2},
    "growing": {"capacity": 300, "retention": "growing"},
    "ring": {"capacity": 20_000, "retention": "ring", "slices": 12, "period": "1d"},
    "all": {"capacity": 20_000, "retention": "ring", "slices": 4, "period": "1d", "write": "all"},
    "rolling": {"capacity": 20_000, "retention": "rolling", "slices": 4, "period": "1d", "shards": 2},
}


@contextlib.asynccontextmanager
async def worker(url, meddle=None):
    """A worker of the service, as far as it talks to Redis; ``meddle`` takes and returns what sends."""
    connector = AsyncConnector(Address(url), Timeouts())
    if meddle is not None:
        connector.send = meddle(connector.send)
    opened = Filters(SharedConnector(connector, 3.0))
    try:
        yield opened
    finally:
        await opened.close()


def inserting(items, key=None):
    """The flow that inserts items."""
    return lambda session: flow.answer(session, "insert", items, call_key=key)


def answer(url, items, key=KEY, command="insert"):
    """The answers that a worker of its own gives."""

    async def ask():
        async with worker(url) as filters:
            return await filters.run("news", lambda session: flow.answer(session, command, items, call_key=key))

    return asyncio.run(ask())


@pytest.fixture(params=RETENTIONS)
def news(request, make_filter):
    settings = {"error_rate": 1e-8, "seed": 1} | RETENTIONS[request.param]
    return make_filter(**settings)


def test_another_worker_repeats_it(news, any_server):
    """2,000 items, in many calls over all shards: the repeat by a second worker answers what the first did."""
    items = [f"https://example.com/{i % 1900}" for i in range(2000)]
    news.insert_many(items[:50])
    first = answer(any_server.url, items)
    assert (first.count(0), sum(age > 0 for age in first)) == (1850, 150)
    assert answer(any_server.url, items) == first
    assert answer(any_server.url, items, None).count(0) == 0


def test_slices_change_before_the_repeat(news, any_server):
    """The filter turned, so that calls would be cut otherwise: the repeat still finds the answers."""
    items = [f"https://example.com/{i}" for i in range(1200)]
    first = answer(any_server.url, items)
    assert set(first) == {0}
    if news.config.retention in {"ring", "rolling"}:
        news.rotate()
    news.insert_many(f"https://example.org/{i}" for i in range(1200))
    assert answer(any_server.url, items) == first


def test_part_of_it_was_done(news, any_server):
    """A worker died in the middle: the repeat does the rest, and every item is new once."""
    items = [f"https://example.com/{i}" for i in range(6000)]

    def dies(send):
        done = False

        async def once(commands):
            nonlocal done
            if done:
                raise RuntimeError("dead")
            outcomes = await send(commands)
            done = any(isinstance(outcome, list) and 0 in outcome for outcome in outcomes)
            return outcomes

        return once

    async def die():
        async with worker(any_server.url, dies) as filters:
            await filters.run("news", inserting(items, KEY))

    with pytest.raises(RuntimeError, match="dead"):
        asyncio.run(die())
    before = news.inserted()
    assert answer(any_server.url, items) == [0] * 6000
    assert news.inserted() >= 6000 > before


def test_a_later_request_of_the_slot_ends_it(any_server):
    """The slot's next request overwrites its records; what comes late then is refused, and does nothing."""
    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8) as news:
        answer(any_server.url, ["a", "b"])
        answer(any_server.url, ["c"], CallKey("0123456789abcdef/7/2"))
        with pytest.raises(UriFilterError, match="OLDCALL"):
            answer(any_server.url, ["d"], KEY)
        assert news.ages(["a", "b", "c", "d"]) == [1, 1, 1, 0]
        (record,) = any_server.ask("hkeys", "urifilter:{news:0}:replies")
        assert record.endswith(b"/2100000")


def test_keys_of_two_tokens(any_server):
    """A key of another token is another request, of either form, and a later one of it ends none of this token's."""
    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8):
        for number, text in enumerate((KEY.text, "any words")):
            items = [f"{number} a", f"{number} b"]
            assert answer(any_server.url, items, CallKey(text, "one")) == [0, 0]
            assert answer(any_server.url, items, CallKey(text, "two")) == [1, 1]
            assert answer(any_server.url, items, CallKey(text, "one")) == [0, 0]
        assert answer(any_server.url, ["c"], CallKey("0123456789abcdef/7/9", "two")) == [0]
        assert answer(any_server.url, ["d"], CallKey("0123456789abcdef/7/2", "one")) == [0]


def test_a_key_for_other_items(any_server):
    """It is refused, in both forms; a text of the library is a key for its items alone."""
    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8) as news:
        assert answer(any_server.url, ["a", "b"]) == [0, 0]
        for others in (["c", "d"], ["c", "b"], ["b", "a"], ["b"]):
            with pytest.raises(UriFilterError, match="other items"):
                answer(any_server.url, others)
        assert answer(any_server.url, ["a", "b"], command="forget") == [1, 1]
        assert answer(any_server.url, ["a", "b"]) == [0, 0]
        assert news.insert_ages(["a", "b"]) == [0, 0]
        assert answer(any_server.url, ["g"], CallKey("8e03978e-40d5-43dd-bc93-6894a57f9324")) == [0]
        for others in (["h"], ["g", "h"]):
            with pytest.raises(UriFilterError, match="other items"):
                answer(any_server.url, others, CallKey("8e03978e-40d5-43dd-bc93-6894a57f9324"))
        assert not news.contains("h")
        uuid = CallKey("8e03978e-40d5-43dd-bc93-6894a57f9324", "crawlers", of_items=True)
        assert [answer(any_server.url, items, uuid) for items in (["e", "x"], ["e", "x"], ["f", "x"])] == [
            [0, 0],
            [0, 0],
            [0, 1],
        ]
        assert answer(any_server.url, ["e", "x"], CallKey(uuid.text, "another token", of_items=True)) == [1, 1]
        assert answer(any_server.url, ["e", "x"], uuid, "forget") == [1, 1]
        assert answer(any_server.url, ["e", "x"], uuid) == [0, 0]
        assert news.contains("c") is False


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("first", [1, 100, 3000])
@pytest.mark.parametrize("text", ["any words", KEY.text])
def test_a_key_for_other_items_in_many_calls(any_server, shards, first, text):
    """It is refused whole: no answer has arrived, and nothing is inserted.

    Under a text with a slot all requests must have items of the first shard for that.
    """
    items = [f"https://example.com/{number}" for number in range(first)]
    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8, shards=shards) as news:
        assert answer(any_server.url, items, CallKey(text)) == [0] * first
        before = news.inserted()
        for others in (items[: first // 2], [*items, "x"], [f"https://example.org/{number}" for number in range(5000)]):
            if others and (text != KEY.text or shards == 1 or first >= 100):
                with pytest.raises(UriFilterError, match="other items") as caught:
                    answer(any_server.url, others, CallKey(text))
                assert set(caught.value.answers) == {None}
        assert news.inserted() == before
        assert answer(any_server.url, items, CallKey(text)) == [0] * first


@pytest.mark.parametrize("numbers", [(0, 1), (1, 2), (3, 1)])
def test_a_key_for_an_item_of_another_shard(any_server, numbers):
    """A text has one call to the first shard in each request, so all of them meet there; and that call ends, too."""
    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8, shards=4) as news:
        one, other = (
            next(item for item in map(str, range(100)) if shard_of(news._session.digester([item])[0], 4) == shard)
            for shard in numbers
        )
        for command, given in (("insert", 0), ("forget", 1)):
            assert answer(any_server.url, [one], CallKey("words"), command) == [given]
            with pytest.raises(UriFilterError, match="other items"):
                answer(any_server.url, [other], CallKey("words"), command)
            assert answer(any_server.url, [one], CallKey("words"), command) == [given]
        assert not news.contains(other)
        assert len(any_server.ask("hkeys", "urifilter:{news:0}:replies")) == 2


def test_tasks_share_pipelines_and_never_a_call(any_server):
    """100 requests at once: as many script calls, in far fewer pipelines; each gets its own answers."""
    sizes = []

    def counts(send):
        async def counted(commands):
            sizes.append(len(commands))
            return await send(commands)

        return counted

    async def ask():
        async with worker(any_server.url, counts) as filters:
            await filters.run("news", lambda session: flow.answer(session, "contains", ["a"]))
            sizes.clear()
            tasks = [filters.run("news", inserting([f"https://example.com/{i // 2}"])) for i in range(100)]
            return await asyncio.gather(*tasks)

    with UriFilter.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8):
        answers = asyncio.run(ask())
        calls = any_server.client().info("commandstats")["cmdstat_evalsha"]["calls"]
    assert sum(each == [0] for each in answers) == 50
    assert all(sorted(pair) == [[0], [1]] for pair in zip(answers[::2], answers[1::2], strict=True))
    assert calls - sum(sizes) <= 5
    assert len(sizes) < 20


def test_the_clients_name_a_call(clients, any_server):
    """Whichever object repeats it with the same items gets the same answers; under another name it is another call."""
    items = [f"https://example.com/{i % 1900}" for i in range(2000)]
    where = {"redis": any_server.url, "near_cache": 10_000}
    news = clients.create("news", capacity=10_000, error_rate=1e-8, shards=3, **where)
    first = news.insert_many(items, call_key="monday/7")
    assert first == [True] * 1900 + [False] * 100
    news.insert_many(items)  # the near cache knows all of them now
    for each in (news, clients.open("news", **where)):
        assert each.insert_many(items, call_key="monday/7") == first
        assert not any(each.insert_many(items, call_key="monday/8"))
        assert not any(each.insert_many(items[:1900], call_key="monday/7"))
    pages = [{"url": item} for item in items]
    assert news.insert_many(pages, key=lambda page: page["url"], call_key="monday/7") == first


@pytest.mark.sampled
def test_a_named_call_whose_answers_are_lost(clients, any_server):
    """Another object gets the answers by its name, and this one, as of any call, by ``retry=``."""
    news = clients.create("news", redis=any_server.url, capacity=10_000, error_rate=1e-8)
    news.insert("c")  # the server has the script from now on
    with Proxy(any_server.port) as proxy:
        bad = clients.open("news", redis=proxy.url, timeouts=Timeouts(connect=10, reply=10, total=0.6))
        proxy.plan = first(*[Fault.CUT_AFTER] * 50)
        with pytest.raises(AnswerLost) as lost:
            bad.insert_many(["a", "b"], call_key="monday/7")
        assert news.insert_many(["a", "b"]) == [False, False]
        assert news.insert_many(["a", "b"], call_key="monday/7") == [True, True]
        proxy.plan = first()
        assert bad.insert_many(["a", "b"], retry=lost.value) == [True, True]


def test_the_first_part_goes_alone_also_once_there_is_room(server, monkeypatch):
    """Otherwise another use of the key could be refused after it was done in part."""
    perform, sent = driver.perform_step, []

    def noting(step, sender):
        if isinstance(step, Send) and isinstance(step.commands[0][-1], bytes):
            sent.append(len(step.commands))
        return perform(step, sender)

    with UriFilter.create("news", redis=server.url, capacity=100, retention="growing", shards=3) as news:
        news.insert_many(range(90))
        monkeypatch.setattr(driver, "perform_step", noting)
        assert sum(news.insert_many(range(1000, 1090), call_key="monday/7")) > 80
    assert sent[:3] == [1, 1, 2]
