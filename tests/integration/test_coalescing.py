"""Single calls of many tasks are sent together, and each task is answered as if it had asked alone."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import random
from functools import partial

import pytest
from support.forked import in_child
from support.gate import Gate, settle
from support.proxy import Fault, Proxy, at_random, first
from support.room import leave_room, make_room
from support.servers import PATIENCE, wait_until
from support.together import together

from urifilter_redis import (
    AnswerLost,
    AsyncUriFilter,
    BadItem,
    ConfigMismatch,
    FilterNotFound,
    ServerFull,
    ServerUnavailable,
    SliceLost,
    Timeouts,
    UriFilter,
    UriFilterError,
    drop_filter,
)
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.engine.steps import Pause
from urifilter_redis.flows import items

QUICK = Timeouts(connect=1, reply=0.3, total=0.3)

#: For calls of which some have waited too long, and others, which came a second later, have not.
LATER = Timeouts(total=1.5)


def create(server, **settings) -> None:
    with UriFilter.create("news", redis=server.url, **{"capacity": 10_000, "error_rate": 1e-9} | settings) as news:
        news.contains("load the script")
        news.insert("load the script")


def asked(call, *items) -> list[asyncio.Task]:
    return [asyncio.create_task(call(item)) for item in items]


def run_test(server, monkeypatch, test, **options) -> None:
    """Run a test with an open filter and, if it wants one, a gate: ``test(news, gate)``, or ``test(news)``."""

    async def run() -> None:
        async with AsyncUriFilter.open("news", redis=server.url, **options) as news:
            if "gate" not in inspect.signature(test).parameters:
                return await test(news)
            gate = Gate(monkeypatch)
            try:
                await test(news, gate)
            finally:
                gate.open()

    asyncio.run(run())


def opened(settings=None, **options):
    """Make a test of a coroutine function ``test(news)``, which may ask for a ``gate`` and for fixtures, too."""

    def decorate(test):
        more = [name for name in inspect.signature(test).parameters if name not in {"news", "gate"}]

        def run(**given) -> None:
            create(given["server"], **(settings or {}))
            rest = {name: given[name] for name in more}
            run_test(given["server"], given["monkeypatch"], partial(test, **rest), **options)

        fixtures = dict.fromkeys(["server", "monkeypatch", *more])
        run.__signature__ = inspect.Signature(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures
        )
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


async def led(call, gate, *items):
    """Send one call and have others wait behind it; return its task, its pipeline at the gate, and their tasks."""
    leader = asyncio.create_task(call("leader"))
    head = await gate.pipeline()
    tasks = asked(call, *items)
    await settle()
    return leader, head, tasks


async def behind(news, gate, *items, later=(), call=None):
    """Likewise; return their tasks once they are at the gate together. Some may be asked a second later."""
    leader, head, tasks = await led(call or news.insert, gate, *items)
    if later:
        await asyncio.sleep(1)
        tasks += asked(call or news.insert, *later)
        await settle()
    assert gate.is_empty
    head.go()
    pipeline = await gate.pipeline()
    assert await leader is (call is None)
    return tasks, pipeline


async def all_lost(gate, tasks, pipeline) -> list[BaseException]:
    """Lose all replies until the tasks give up; return their errors."""
    ended = asyncio.gather(*tasks, return_exceptions=True)
    while not ended.done():
        pipeline.lose()
        waiter = asyncio.create_task(gate.pipeline())
        await asyncio.wait([waiter, ended], return_when=asyncio.FIRST_COMPLETED)
        pipeline = waiter.result() if waiter.done() else waiter.cancel()
    return ended.result()


async def check_unresolved(news, item) -> None:
    """Check that the answer "new" of one item, and nothing else, is in ``unresolved``, and is had by ``retry=``."""
    (lost,) = news.unresolved
    assert (lost.items, lost.answers) == ([item], [True])
    assert await news.insert(item, retry=lost) is True
    assert news.unresolved == []


def is_told(task) -> bool:
    """Whether the future for which a task waits is done, so that the task runs in the loop's next pass."""
    coroutine = task.get_coro()
    while (single := coroutine.cr_frame.f_locals.get("single")) is None:
        coroutine = coroutine.cr_await
    return single.told.done()


@opened()
async def test_calls_that_wait_go_together(news, gate):
    """The first call goes at once; those that come meanwhile go in one call, in their order; so do the next."""
    tasks, pipeline = await behind(news, gate, *range(10), 3)
    assert pipeline.counts == [11]
    more = asked(news.insert, "more", 4)
    pipeline.go()
    assert await asyncio.gather(*tasks) == [True] * 10 + [False]
    (await gate.pipeline()).go()
    assert await asyncio.gather(*more) == [True, False]
    assert gate.passed == [[1], [11], [2]]
    assert news.unresolved == []


@opened()
async def test_the_first_asker_is_new(news, gate):
    """Of tasks that ask for the same item the first is told "new", in one call and over two."""
    tasks, pipeline = await behind(news, gate, "a", "b", "a", "leader", "b")
    later = asked(news.insert, "b", "c", "c")
    pipeline.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks, *later) == [True, True, False, False, False, False, True, False]


@opened()
async def test_a_bad_item_is_its_tasks_alone(news, gate):
    """An item that cannot be filtered is refused before it waits; the others are not held up."""
    tasks, pipeline = await behind(news, gate, "a", float("nan"), "b")
    assert pipeline.counts == [2]
    pipeline.go()
    one, bad, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one, two) == (True, True)
    assert isinstance(bad, BadItem)
    assert bad.indices == [0]


@opened()
async def test_an_idle_client_sends_at_once(news, gate):
    """A client with nothing under way sends before the task has waited for anything."""
    task = asyncio.create_task(news.insert("a"))
    await asyncio.sleep(0)
    assert not gate.is_empty
    (await gate.pipeline()).go()
    assert await task is True


@opened(coalesce=False)
async def test_without_coalescing(news, gate):
    """Every call is sent at once, and alone."""
    tasks = asked(news.insert, "b", "c")
    for _ in tasks:
        (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks) == [True, True]
    assert gate.passed == [[1], [1]]


@opened()
async def test_interrupted_as_it_queues(news, gate, monkeypatch):
    """An exception of a signal's handler, at any place: the item is not sent, or its answer is in ``unresolved``."""

    def handler(_):
        raise KeyboardInterrupt

    leader, head, tasks = await led(news.insert, gate, "a")
    with monkeypatch.context() as patch:
        patch.setattr(type(news._session), "total", property(handler))
        (queue,) = news._coalescers.get()._queues.values()
        queue._timer = None
        with pytest.raises(KeyboardInterrupt):
            await news.insert("b")
    head.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(leader, *tasks) == [True, True]
    assert news.unresolved == []
    gate.shut = False
    assert await news.ages(["a", "b"]) == [1, 0]


@opened()
async def test_interrupted_as_it_begins(news, gate, monkeypatch):
    """The calls after it are sent all the same."""

    def handler(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(news._session.pending, "begin", handler)
        with pytest.raises(KeyboardInterrupt):
            await news.insert("a")
    gate.shut = False
    assert await asyncio.wait_for(news.insert("a"), 5) is True


@opened({"retention": "ring", "slices": 3, "period": "1d"})
async def test_each_command_and_max_age_has_a_queue(news, gate):
    """Neither ``contains`` nor another ``max_age`` waits for an insert, nor do ``insert_many`` and ``retry=``."""
    calls = [
        news.insert("a"),
        news.insert("b", max_age=1),
        news.insert("c", max_age=2),
        news.contains("d"),
        news.contains("e", max_age=1),
        news.insert_many(["f"]),
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    await settle()
    held = [await gate.pipeline() for _ in calls]
    waiting = asked(lambda item: news.contains(item, max_age=1), "g", "h")
    await settle()
    assert gate.is_empty
    for each in held:
        each.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks) == [True, True, True, False, False, [True]]
    assert await asyncio.gather(*waiting) == [False, False]
    assert gate.passed[-1] == [2]


@opened()
async def test_cancelled_before_the_sending(news, gate):
    """The item leaves the queue: it is not sent, and nothing is unresolved. If all do so, nothing is sent."""
    leader, head, tasks = await led(news.insert, gate, *"abc")
    tasks[1].cancel()
    head.go()
    pipeline = await gate.pipeline()
    assert pipeline.counts == [2]
    gone = asked(news.insert, "d", "e")
    await settle()
    for task in gone:
        task.cancel()
    pipeline.go()
    assert await asyncio.gather(leader, tasks[0], tasks[2]) == [True, True, True]
    await settle()
    assert gate.passed == [[1], [2]]
    gate.shut = False
    assert await news.ages(["b", "d", "e"]) == [0, 0, 0]
    assert news.unresolved == []


@opened()
async def test_cancelled_after_the_sending(news, gate):
    """Nobody else's call stops. An answer "new" is in ``unresolved``, "seen" is not; ``retry=`` sends nothing."""
    tasks, pipeline = await behind(news, gate, "a", "b", "leader", "c")
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.wait(tasks[1:3])
    assert [error.items for error in news.unresolved] == [["b"], ["leader"]]
    pipeline.go()
    assert (await tasks[0], await tasks[3]) == (True, True)
    await check_unresolved(news, "b")
    assert gate.passed == [[1], [4]]


@opened()
async def test_cancelled_as_the_answer_arrives(news, gate):
    """An answer that has arrived, but not in the task, is not lost."""
    tasks, pipeline = await behind(news, gate, "a", "leader")
    tasks.append(asyncio.create_task(news.insert("later")))
    pipeline.go()
    while not is_told(tasks[0]):
        await asyncio.sleep(0)
    for task in tasks[:2]:
        assert not task.done()
        task.cancel()
    await asyncio.wait(tasks[:2])
    await check_unresolved(news, "a")
    (await gate.pipeline()).go()
    assert await tasks[2] is True


@opened()
async def test_asked_again_while_it_is_under_way(news, gate):
    """``retry=`` for a cancelled call waits for the call that is under way, and sends nothing of its own."""
    tasks, pipeline = await behind(news, gate, "a", "b")
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    (lost,) = news.unresolved
    again = asyncio.create_task(news.insert_many(["a"], retry=lost))
    await settle()
    assert gate.is_empty
    pipeline.go()
    assert await again == [True]
    assert await tasks[1] is True
    assert news.unresolved == []


@opened()
async def test_the_leader_is_cancelled(news, gate):
    """Those behind it go on; its own call is unresolved."""
    leader, _, tasks = await led(news.insert, gate, "a", "b")
    leader.cancel()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks) == [True, True]
    (lost,) = news.unresolved
    gate.shut = False
    assert await news.insert("leader", retry=lost) is True


@opened(timeouts=QUICK)
async def test_each_answer_lost_is_its_callers_own(news, gate):
    """It has the caller's item alone. All callers may ask again at once, by any method; each is told as at first."""
    tasks, pipeline = await behind(news, gate, "a", "leader", "b", "a")
    errors = await all_lost(gate, tasks, pipeline)
    assert [(type(e), e.items, e.answers) for e in errors] == [
        (AnswerLost, [item], [None]) for item in ("a", "leader", "b", "a")
    ]
    assert len({id(error) for error in errors}) == 4
    assert news.unresolved == []
    with pytest.raises(ValueError, match="same items"):
        await news.insert("b", retry=errors[0])
    gate.passed.clear()
    again = [
        asyncio.create_task(news.insert("a", retry=errors[0])),
        asyncio.create_task(news.unique(["leader"], retry=errors[1])),
        asyncio.create_task(news.insert_many(["b"], retry=errors[2])),
        asyncio.create_task(news.insert_ages(["a"], retry=copy.copy(errors[3]))),
    ]
    (await gate.pipeline()).go()
    assert await asyncio.gather(*again) == [True, [], [True], [1]]
    assert gate.passed == [[4]]
    assert await news.insert("a", retry=errors[0]) is True  # as of any error
    assert gate.passed == [[4]]
    gate.shut = False
    assert await news.insert_many(["a", "b"]) == [False, False]


def test_a_retry_that_a_module_answers_in_part(bloom, monkeypatch):
    """Layout redisbloom: those that were answered before the module failed have answers, the others its error."""
    create(bloom, layout="redisbloom", capacity=200)

    async def test(news, gate):
        with bloom.client() as admin:
            leave_room(admin, news, 3)
            errors = await all_lost(gate, *await behind(news, gate, *"abcd"))
            assert {type(each) for each in errors} == {AnswerLost}
            gate.open()
            told = await again(news, errors)
            assert told[:2] == [True, True]
            assert all("MODULE" in str(each) and "scaling filter is full" in str(each) for each in told[2:])
            assert await news.contains_many([*"abcd"]) == [True, True, False, False]
            assert all("MODULE" in str(each) for each in await again(news, told[2:]))
            make_room(admin, news)
            assert await again(news, told[2:]) == [True, True]
            assert await again(news, errors) == [True] * 4

    def again(news, errors):
        asked = (news.insert(*each.items, retry=each) for each in errors)
        return asyncio.gather(*asked, return_exceptions=True)

    run_test(bloom, monkeypatch, test, timeouts=QUICK)


@opened(timeouts=QUICK)
async def test_a_retry_whose_caller_is_cancelled(news, gate):
    """The others that ask again for answers of the same call get them; the cancelled one's is unresolved."""
    errors = await all_lost(gate, *await behind(news, gate, *"abc"))
    again = [asyncio.create_task(news.insert(item, retry=error)) for item, error in zip("abc", errors, strict=True)]
    pipeline = await gate.pipeline()
    again[1].cancel()
    pipeline.go()
    assert (await again[0], await again[2]) == (True, True)
    await check_unresolved(news, "b")


@pytest.mark.slow
@opened(timeouts=LATER)
async def test_time_counts_from_the_queuing(news, gate):
    """A call that has waited for ``total`` fails, certainly not sent. ``retry=`` sends it."""
    leader, head, (early,) = await led(news.insert, gate, "early")
    await asyncio.sleep(1)
    late = asyncio.create_task(news.insert("late"))
    with pytest.raises(ServerUnavailable, match=r"not sent, because .* 1\.5 s") as caught:
        await early
    assert type(caught.value) is ServerUnavailable
    assert not late.done()
    head.go()
    assert await leader is True
    (await gate.pipeline()).go()
    assert await late is True
    assert gate.passed == [[1], [1]]
    gate.shut = False
    assert await news.contains("early") is False
    assert await news.insert("early", retry=caught.value) is True


@pytest.mark.slow
@opened(timeouts=LATER)
async def test_callers_of_one_call_end_at_their_own_time(news, gate):
    """If replies are lost, who has waited for ``total`` is told; the others, who asked later, wait on."""
    (early, late), pipeline = await behind(news, gate, "early", later=["late"])
    assert pipeline.counts == [2]
    await asyncio.sleep(0.6)
    pipeline.lose()
    with pytest.raises(AnswerLost) as caught:
        await early
    pipeline = await gate.pipeline()
    again = asyncio.create_task(news.insert("early", retry=caught.value))
    pipeline.go()
    assert (await late, await again) == (True, True)
    assert gate.passed == [[1], [2], [2]]


@pytest.mark.slow
@opened(timeouts=LATER)
async def test_an_item_that_was_never_sent_leaves_its_call(news, gate):
    """Without a connection, who has waited for ``total`` is told that nothing was sent; the others go on without it."""
    (early, gone, late), pipeline = await behind(news, gate, "early", "gone", later=["late"])
    assert pipeline.counts == [3]
    gone.cancel()
    await asyncio.sleep(0.6)
    pipeline.refuse()
    with pytest.raises(ServerUnavailable) as caught:
        await early
    assert type(caught.value) is ServerUnavailable
    pipeline = await gate.pipeline()
    assert pipeline.counts == [1]
    pipeline.go()
    assert await late is True
    gate.shut = False
    assert await news.ages(["early", "gone"]) == [0, 0]
    assert await news.insert("early", retry=caught.value) is True


@opened({"shards": 4})
async def test_a_shard_that_is_away_holds_up_no_other(news, gate):
    """Callers of the other shards have their answers at the first attempt, and ask on; its own wait for it."""
    items = [f"u{n}" for n in range(40)]
    tasks, pipeline = await behind(news, gate, *items)
    assert len(pipeline.counts) == 4
    pipeline.lose(2)
    repeated = await gate.pipeline()
    assert repeated.counts == [pipeline.counts[2]]
    await settle()
    left = [task for task in tasks if not task.done()]
    assert len(left) == pipeline.counts[2]
    more = asked(news.insert, *(f"v{n}" for n in range(40)))
    await settle()
    (await gate.pipeline()).go()  # the first of another shard
    (await gate.pipeline()).go()  # all others of other shards
    await settle()
    await asyncio.wait([task for task in more if not task.done()], timeout=0.1)
    held = [task for task in more if not task.done()]
    assert 0 < len(held) < 40
    repeated.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks, *more) == [True] * 80


@opened()
async def test_closing_sends_what_waits(news, gate):
    """All that was asked before is answered; later calls are refused."""
    leader, head, tasks = await led(news.insert, gate, "a", "b")
    closing = asyncio.create_task(news.close())
    await settle()
    with pytest.raises(ValueError, match="closed"):
        await news.insert("c")
    head.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks) == [True, True]
    await closing
    assert await leader is True


def test_closing_waits_for_a_call_that_was_sent_alone(server, monkeypatch):
    """Its caller has the answer, and no connection is opened after the end."""
    create(server)
    with server.client() as admin:  # the server is that of other tests, too, whose connections the collector closes
        strangers = {each["id"] for each in admin.client_list()}

    async def test(news, gate):
        alone = asyncio.create_task(news.insert("a"))
        pipeline = await gate.pipeline()
        closing = asyncio.create_task(news.close())
        assert not (await asyncio.wait([closing], timeout=0.05))[0]
        pipeline.go()
        await closing
        assert await alone is True
        with UriFilter.open("news", redis=server.url) as other:
            other.info()
        with server.client() as admin:
            known = {str(admin.client_id()), *strangers}
            wait_until(
                lambda: known.issuperset(each["id"] for each in admin.client_list()),
                "a connection was opened after the end",
            )

    run_test(server, monkeypatch, test)


def test_closing_fails_what_cannot_be_sent(make_server):
    """Without a server nobody waits for ever; those that waited were certainly not sent."""
    server = make_server("redis70")
    create(server)

    async def run():
        news = await AsyncUriFilter.open("news", redis=server.url, timeouts=QUICK)
        server.kill()
        tasks = asked(news.insert, *"abcd")
        await settle()
        await asyncio.wait_for(news.close(), 10)
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(run())
    assert isinstance(first, ServerUnavailable)
    assert {type(error) for error in others} == {ServerUnavailable}


def test_the_end_of_the_loop(server, monkeypatch):
    """As asyncio.run ends, all waiting calls are cancelled: those that were sent are unresolved, and to be had."""
    create(server)
    news = asyncio.run(AsyncUriFilter.open("news", redis=server.url))

    async def run():
        gate = Gate(monkeypatch)
        tasks, pipeline = await behind(news, gate, "a", "b")
        tasks += asked(news.insert, "c")
        await settle()
        assert len(tasks) == 3
        del pipeline

    asyncio.run(run())
    monkeypatch.undo()

    async def after():
        lost = news.unresolved
        assert sorted(error.items for error in lost) == [["a"], ["b"]]
        assert [await news.insert(*error.items, retry=error) for error in lost] == [True, True]
        assert await news.insert("c") is True
        await news.close()

    asyncio.run(after())


@opened()
async def test_the_own_task_is_cancelled(news, gate):
    """Callers whose call was under way hear AnswerLost, and retry= gets the answers; those that waited are sent."""
    tasks, _ = await behind(news, gate, "a", "b")
    tasks += asked(news.insert, "c")
    await settle()
    (own,) = asyncio.all_tasks() - {asyncio.current_task(), *tasks}
    own.cancel()
    (await gate.pipeline()).go()
    assert await tasks[2] is True
    errors = await asyncio.gather(*tasks[:2], return_exceptions=True)
    assert [(type(error), error.items) for error in errors] == [(AnswerLost, ["a"]), (AnswerLost, ["b"])]
    again = [asyncio.create_task(news.insert(*error.items, retry=error)) for error in errors]
    (await gate.pipeline()).go()
    assert await asyncio.gather(*again) == [True, True]


def own_tasks(name: str) -> list[asyncio.Task]:
    """Return the client's own tasks that run a method of this name."""
    return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__.endswith(name)]


@pytest.mark.parametrize("passes", range(6))
@opened()
async def test_an_own_task_is_cancelled_at_any_moment(news, gate, passes):
    """Also before it begins and after its answers: nobody who waits hangs, and later calls are sent."""
    leader, head, tasks = await led(news.insert, gate, "a", "b")
    head.go()
    gate.open()
    while not own_tasks("._run"):
        await asyncio.sleep(0)
    for _ in range(passes):
        await asyncio.sleep(0)
    for own in own_tasks("._run"):
        own.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    errors = [each for each in ended if isinstance(each, UriFilterError)]
    again = [await news.insert(*error.items, retry=error) for error in errors]
    assert [each for each in [*ended, *again] if each not in errors] == [True, True]
    assert await leader is await news.insert("later") is True


@opened(timeouts=QUICK)
async def test_an_own_task_that_asks_again_is_cancelled(news, gate):
    """The caller that passed ``retry=`` hears AnswerLost, and can ask again."""
    tasks, pipeline = await behind(news, gate, "a", "b")
    lost, _ = await all_lost(gate, tasks, pipeline)
    again = asyncio.create_task(news.insert("a", retry=lost))
    while not (own := own_tasks("._repeat")):
        await asyncio.sleep(0)
    own[0].cancel()
    (error,) = await asyncio.wait_for(asyncio.gather(again, return_exceptions=True), 10)
    assert (type(error), error.items) == (AnswerLost, ["a"])
    gate.open()
    assert await news.insert("a", retry=error) is True


@opened(timeouts=QUICK)
async def test_asked_again_while_the_first_attempt_is_under_way(news, gate):
    """The caller waits for the end of that attempt; if it fails, the caller hears the error of its own call."""
    tasks, pipeline = await behind(news, gate, "a", "b")
    tasks[0].cancel()
    await settle()
    (lost,) = news.unresolved
    again = asyncio.create_task(news.insert("a", retry=lost))
    mine, other = await all_lost(gate, [again, tasks[1]], pipeline)
    assert [type(mine), mine.items, type(other), other.items] == [AnswerLost, ["a"], AnswerLost, ["b"]]
    assert "gave up" in str(mine)
    gate.open()
    assert await news.insert("a", retry=mine) is await news.insert("b", retry=other) is True


@pytest.mark.parametrize("error", [FilterNotFound, ConfigMismatch])
@opened()
async def test_errors_of_the_filter(news, server, error):
    """A filter that is gone, or another of its name: each caller hears so, with its own item, and nothing hangs."""
    drop_filter("news", redis=server.url)
    if error is ConfigMismatch:
        create(server)
    errors = await asyncio.gather(*asked(news.insert, *"abc"), return_exceptions=True)
    assert [(type(each), each.items) for each in errors] == [(error, [item]) for item in "abc"]
    assert news.unresolved == []


@opened({"shards": 4})
async def test_a_lost_slice_is_its_shards_alone(news, gate, server):
    """Callers whose shard lost its bitmap hear SliceLost; all others have their answers."""
    tasks, pipeline = await behind(news, gate, *(f"u{n}" for n in range(40)), call=news.contains)
    with server.client() as admin:
        admin.delete(min(admin.scan_iter("*:today")))
    gate.shut = False
    pipeline.go()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    lost = [each for each in answers if isinstance(each, SliceLost)]
    assert 0 < len(lost) == min(pipeline.counts, key=lambda count: abs(count - len(lost)))
    assert answers.count(False) == 40 - len(lost)


@opened({"capacity": 100, "retention": "growing"})
async def test_growing(news):
    """A full slice makes the next one, once, while 300 tasks insert; each item is new once."""
    answers = await asyncio.gather(*asked(news.insert, *(n % 1000 for n in range(2000))))
    assert sum(answers) == 1000
    assert len(news.view(0).slices) > 2


@opened({"capacity": 100, "retention": "growing", "shards": 2})
async def test_retried_while_a_slice_is_made(news, server, monkeypatch):
    """The answer that has arrived is told, also if the call of another shard waits until its next slice is there."""
    grow, begun, may_grow = items.grow, [], []

    def slow(*arguments):
        begun.append(arguments)
        while not may_grow:
            yield Pause(0.01)
        return (yield from grow(*arguments))

    monkeypatch.setattr(items, "grow", slow)
    limit, inserted = server.ask("hmget", "urifilter:{news:0}:meta", "limit", "inserted")
    room = int(limit) - int(inserted)
    of_shard = [[], []]
    for number in range(10 * room):
        (digest,) = news._session.digester([number])
        of_shard[shard_of(digest, 2)].append(number)
    full, other = of_shard
    await news.insert_many(full[:room])
    leader, cancelled, waits = asked(news.insert, other[0], other[1], full[room])
    async with asyncio.timeout(PATIENCE):
        while not begun:
            await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    (lost,) = news.unresolved
    try:
        assert await news.insert(other[1], retry=lost) is True
    finally:
        may_grow.append(True)
    assert await asyncio.gather(leader, waits) == [True, True]


def test_a_refused_call_that_runs_late(make_server):
    """A late copy of a call that was refused runs: each of its callers is still told "new" by ``retry=``."""
    server = make_server("redis70")
    create(server)

    async def run(admin):
        async with AsyncUriFilter.open("news", redis=proxy.url) as news:
            await news.insert("the script is loaded now")
            admin.config_set("maxmemory", "1")
            errors = await asyncio.gather(*asked(news.insert, *"abcd"), return_exceptions=True)
            admin.config_set("maxmemory", "0")
            assert {type(error) for error in errors} == {ServerFull}
            proxy.release()
            again = (news.insert(item, retry=error) for item, error in zip("abcd", errors, strict=True))
            assert await asyncio.gather(*again) == [True] * 4
            assert await news.insert_many(list("abcd")) == [False] * 4

    with Proxy(server.port, first(Fault.PASS, Fault.DUPLICATE, Fault.DUPLICATE)) as proxy, server.client() as admin:
        asyncio.run(run(admin))


def test_a_refused_caller_that_does_not_come_back(make_server, monkeypatch):
    """If another caller's ``retry=`` inserts its item, the answer "new" is in ``unresolved``."""
    server = make_server("redis70")
    create(server)

    async def test(news, gate):
        tasks, pipeline = await behind(news, gate, "a", "b", "leader")
        with server.client() as admin:
            admin.config_set("maxmemory", "1")
            pipeline.go()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            admin.config_set("maxmemory", "0")
        assert news.unresolved == []
        gate.shut = False
        assert await news.insert("a", retry=errors[0]) is True
        assert await news.insert("b") is False
        await check_unresolved(news, "b")

    run_test(server, monkeypatch, test)


@opened({"retention": "ring", "slices": 3, "period": "1d"})
async def test_time_passes(news, gate, server):
    """Calls that were sent together turn a ring whose period is over, after they have told their callers."""
    tasks, pipeline = await behind(news, gate, *"abc")
    opened = int(server.ask("hget", "urifilter:{news:0}:meta", "opened"))
    server.ask("hset", "urifilter:{news:0}:meta", "opened", opened - 129_600_000)
    news._session.rotation_timer.check_in(0)
    gate.shut = False
    pipeline.go()
    assert await asyncio.gather(*tasks) == [True] * 3
    await news.close()
    with UriFilter.open("news", redis=server.url) as other:
        assert other.epoch() == 1


def test_two_loops_at_once(server):
    """Tasks of two event loops in two threads share a client: each item is new once."""
    create(server, shards=3)
    news = asyncio.run(AsyncUriFilter.open("news", redis=server.url))
    new: list[bool] = []

    async def run():
        new.extend(await asyncio.gather(*asked(news.insert, *(n % 500 for n in range(1000)))))

    together(partial(asyncio.run, run()) for _ in range(2))
    assert (len(new), sum(new)) == (2000, 500)
    asyncio.run(news.close())


def test_asked_again_in_another_loop(server, monkeypatch):
    """An error of one loop is retried in another, also by all its callers at once."""
    create(server)
    patient = Timeouts(connect=5, reply=1, total=1)  # the other loop makes new connections
    news = asyncio.run(AsyncUriFilter.open("news", redis=server.url, timeouts=patient))

    async def lose():
        gate = Gate(monkeypatch)
        return await all_lost(gate, *await behind(news, gate, *"abc"))

    errors = asyncio.run(lose())
    monkeypatch.undo()

    async def again():
        answers = await asyncio.gather(*(news.insert(*error.items, retry=error) for error in errors))
        await news.close()
        return answers

    assert asyncio.run(again()) == [True] * 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@opened()
async def test_a_forked_child(news, gate, monkeypatch):
    """It has no call of its parent's: it asks its own, and the parent's go on."""

    def ask_alone():
        monkeypatch.undo()
        return asyncio.run(ask())

    async def ask():
        return await asyncio.gather(*asked(news.insert, *range(20))), news.unresolved

    tasks, pipeline = await behind(news, gate, *"abc")
    waiting = asked(news.insert, *"de")
    await settle()
    assert await asyncio.to_thread(in_child, ask_alone) == ([True] * 20, [])
    pipeline.go()
    (await gate.pipeline()).go()
    assert await asyncio.gather(*tasks, *waiting) == [True] * 5


def test_copies(server, monkeypatch):
    """A copy sends calls together if its origin did, also those of its opening."""
    create(server)

    async def run(*, coalesce):
        async with AsyncUriFilter.open("news", redis=server.url, coalesce=coalesce) as origin:
            gate = Gate(monkeypatch)
            gate.shut = False
            async with copy.copy(origin) as news:
                await news.contains("open")
                gate.passed.clear()
                assert await asyncio.gather(*asked(news.insert, *range(50))) == [coalesce] * 50
                return gate.passed

    assert asyncio.run(run(coalesce=True)) == [[1], [49]]
    monkeypatch.undo()
    alone = asyncio.run(run(coalesce=False))
    assert len(alone) >= 50  # more if connecting takes long and is tried again
    assert set(map(tuple, alone)) == {(1,)}


@pytest.mark.parametrize("steps", range(6))
@opened()
async def test_a_cancellation_is_never_swallowed(news, steps):
    """A task that is cancelled at any step of its call ends as cancelled, and ``retry=`` has its answer."""
    assert await news.insert_many(["open a connection"]) == [True]
    task = asyncio.create_task(news.insert("a"))
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.done():  # the answer was quicker
        return
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    lost = news.unresolved
    assert [each.items for each in lost] == ([["a"]] if lost else [])
    assert await news.insert_many(["a"], retry=lost[0] if lost else None) == [True]


async def answer(news, item, retry=None) -> bool:
    """Insert an item until there is an answer: a busy machine takes longer than the client waits."""
    while True:
        try:
            return await news.insert(item, retry=retry)
        except UriFilterError as error:
            retry = error


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_at_random(server, seed):
    """Replies are lost, tasks are cancelled at any moment: each item is new once, told or in ``unresolved``."""
    create(server, shards=1 + seed % 3)
    dice, told, errors = random.Random(seed), [], []

    async def ask(news, item):
        retry = None
        while True:
            try:
                new = await news.insert(item, retry=retry)
            except UriFilterError as error:
                if dice.random() < 0.3:
                    errors.append(error)
                    return
                retry = error
            else:
                told.append((item, new))
                return

    async def run():
        with Proxy(server.port, at_random(seed, 0.3), late_after=3) as proxy:
            news = await AsyncUriFilter.open("news", redis=proxy.url, timeouts=Timeouts(reply=0.3, total=0.15))
            tasks = []
            for _ in range(60):
                tasks += [asyncio.create_task(ask(news, dice.randrange(300))) for _ in range(dice.randrange(20))]
                await asyncio.sleep(dice.choice([0, 0, 0.001, 0.003]))
                for task in dice.sample(tasks, min(len(tasks), dice.randrange(6))):
                    task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            proxy.plan = first()
            lost = [*errors, *news.unresolved]
            told.extend([(*error.items, await answer(news, *error.items, retry=error)) for error in lost])
            assert news.unresolved == []
            proxy.release()
            left = [item for item in range(300) if await answer(news, item)]
            await news.close()
            return left

    left = asyncio.run(run())
    new = [item for item, is_new in told if is_new]
    assert sorted([*new, *left]) == list(range(300))
