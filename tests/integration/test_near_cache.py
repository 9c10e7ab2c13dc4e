"""Clients with a near cache: which questions it answers, and which answers it takes in."""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.interrupts import Interrupt
from support.proxy import Fault, Proxy, never
from support.together import together

from urifilter_redis import (
    AnswerLost,
    AsyncUriFilter,
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    SliceLost,
    Timeouts,
    UriFilter,
)
from urifilter_redis.engine import driver
from urifilter_redis.engine.batch import CONTAINS_MANY, FORGET, INSERT_MANY
from urifilter_redis.engine.steps import Send
from urifilter_redis.flows import dropping, items
from urifilter_redis.protocol.call_ids import CallKey

PRECISE = {"capacity": 10_000, "error_rate": 1e-8}
RING = {"capacity": 1000, "retention": "ring", "slices": 3, "period": "10m", "rotate": "never"}

#: One that comes while a generator is closed reaches nobody, and the call ends as if there had been none.
interrupting = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=[1, 3])
def news(request, valkey):
    with UriFilter.create("news", redis=valkey.url, shards=request.param, **PRECISE) as loading:
        for ask_ in (loading.insert_many, loading.contains_many, loading.forget):  # so that each script is loaded
            ask_(["first"])
    with UriFilter.open("news", redis=valkey.url, near_cache=1000) as made:
        yield made


@pytest.fixture
def proxy(valkey):
    """A way to the server that loses nothing at first."""
    with Proxy(valkey.port) as made:
        yield made


@pytest.fixture
def lossy(proxy, news):
    """An object with a cache behind the proxy."""
    quick = Timeouts(connect=10, reply=10, total=0.2)
    with UriFilter.open("news", redis=proxy.url, near_cache=1000, timeouts=quick) as made:
        yield made


def lost(proxy, call, *arguments):
    """Make a call whose replies are lost; return its error."""
    proxy.plan = lambda _: Fault.CUT_AFTER
    with pytest.raises(AnswerLost) as caught:
        call(*arguments)
    proxy.plan = never
    return caught.value


@pytest.fixture
def other(valkey, news):
    """Another client of the filter, without a cache."""
    with UriFilter.open("news", redis=valkey.url) as made:
        yield made


def calls_of(server) -> int:
    """Return how often scripts were called."""
    return server.ask("info", "commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def known(news, *uris) -> list[bool]:
    """Return which items the cache knows."""
    return news._session.near.find(news._session.digester(uris))


def perform_with(meanwhile, before=lambda: None):
    """Do steps as the driver does; call ``meanwhile`` once between the server's answer and its arrival.

    ``before`` is called once between the sending and the server's answer.
    """
    todo = [meanwhile, before]

    def perform(step, sender):
        if not (isinstance(step, Send) and todo):
            return driver.perform_step(step, sender)
        todo.pop()()
        outcome = driver.perform_step(step, sender)
        todo.pop()()
        return outcome

    return perform


def ask(news, method, uris, meanwhile):
    """Call a method; ``meanwhile`` happens while its answer is on its way."""
    batch = items.question(news._session, method, uris)
    driver.drive(items.resolve(news._session, batch), news._connector, perform=perform_with(meanwhile))
    return method.result(batch)


def test_hits(news, valkey):
    """Every method that says "new" or "seen" is answered by the cache, and the server hears nothing of it."""
    assert news.insert_many(["a", "b", "a"]) == [True, True, False]
    before = calls_of(valkey)
    assert news.insert("a") is False
    assert news.insert_many(["a", "b"]) == [False, False]
    assert news.unique(["b", "a"]) == news(["a"]) == list(news.iter_unique(iter(["a", "b"]))) == []
    assert news.contains("a") is True
    assert news.contains_many(["b", "a"]) == [True, True]
    assert "b" in news
    assert news.unique([{"url": "a"}], key=lambda page: page["url"]) == []
    assert calls_of(valkey) == before
    assert (news.near_cache.hits, news.near_cache.misses, news.near_cache.entries) == (13, 3, 2)


def test_hits_and_misses_in_one_call(news, valkey):
    """The server is asked for the items that the cache does not know, and all answers stand where their items do."""
    news.insert_many([f"old/{n}" for n in range(0, 4000, 7)])
    uris = [f"old/{n}" for n in range(4000)] + ["old/0", "old/1"]
    wanted = [n % 7 != 0 for n in range(4000)] + [False, False]
    assert news.contains_many(uris)[:4000] == [not each for each in wanted[:4000]]
    assert news.insert_many(uris) == wanted
    assert sum(known(news, *uris)) >= 500
    assert news.insert_many(uris) == [False] * 4002


def test_info(news, other):
    """``info`` tells of the cache of the object that is asked."""
    news.insert("a")
    news.insert("a")
    assert news.info().near_cache == news.near_cache
    assert news.info().to_dict()["near_cache"] == {"limit": 1000, "seconds": 60.0, "entries": 1, "hits": 1, "misses": 1}
    assert other.info().near_cache is other.near_cache is None
    assert other.info().to_dict()["near_cache"] is None


def test_asyncio(valkey):
    """The asyncio client has the same cache, and its tasks share it."""

    async def crawl():
        async with AsyncUriFilter.create("news", redis=valkey.url, near_cache=1000, **PRECISE) as news:
            assert await news.insert("a") is True
            before = calls_of(valkey)
            assert await asyncio.gather(*(news.insert("a") for _ in range(20))) == [False] * 20
            assert await news.contains("a") is True
            assert await news.unique(["a"]) == [uri async for uri in news.iter_unique(["a"])] == []
            assert calls_of(valkey) == before
            assert (await news.info()).near_cache.hits == news.near_cache.hits == 23
            assert await news.forget(["a"]) == [True]
            assert await news.insert("a") is True

    asyncio.run(crawl())


def test_questions_that_the_server_must_answer(news, other):
    """Ages, calls under a key, and calls that go on with another, are answered by the server alone."""
    news.insert("a")
    other.forget(["a"])
    assert news.insert("a") is False  # the cache withholds it, for a while
    assert news.ages(["a"]) == [0]
    for command in ("contains", "insert"):
        flow = items.answer(news._session, command, ["a"], call_key=CallKey("k"))
        assert driver.drive(flow, news._connector) == [0]
    other.forget(["a"])
    assert news.insert_ages(["a"]) == [0]


def test_max_age(valkey):
    """A question about some slices is the server's; so is every question of a filter with last-seen."""
    with UriFilter.create("news", redis=valkey.url, near_cache=1000, **RING) as news:
        assert news.near_cache.seconds == 60
        news.insert("a")
        with UriFilter.open("news", redis=valkey.url) as other:
            other.rotate()
        assert news.insert("a", max_age=1) is True
        news.forget(["a"])
        assert known(news, "a") == [False]
        assert news.insert("a", max_age=2) is True
        assert known(news, "a") == [False]
    with UriFilter.create("last", redis=valkey.url, near_cache=1000, expire_after="last-seen", **RING) as last:
        assert last.near_cache is None
        assert [last.insert("a") for _ in range(2)] == [True, False]


def test_not_seen_is_not_kept(news, other):
    """An item that was not seen is asked about again, as anybody may insert it."""
    assert news.contains_many(["a", "b"]) == [False, False]
    other.insert("a")
    assert news.contains_many(["a", "b"]) == [True, False]
    assert known(news, "a", "b") == [True, False]


def test_own_forget(news):
    """What this object forgets is new at once, whatever is in the cache; the rest stays there."""
    news.insert_many(["a", "b"])
    assert news.forget(["a", "c"]) == [True, False]
    assert known(news, "a", "b") == [False, True]
    assert news.insert_many(["a", "b"]) == [True, False]


def test_own_remove(valkey):
    """What this object removes is new at once."""
    with UriFilter.create("news", redis=valkey.url, near_cache=100, layout="counting", capacity=1000) as news:
        news.insert_many(["a", "b"])
        assert news.remove(["a"]) == [True]
        assert news.insert_many(["a", "b"]) == [True, False]


def test_items_that_are_not_yielded(news):
    """Those that ``iter_unique`` gives back are new at once."""
    stream = news.iter_unique(["a", "b", "c"])
    assert next(stream) == "a"
    stream.close()
    assert known(news, "a", "b", "c") == [True, False, False]
    assert news.insert_many(["a", "b", "c"]) == [False, True, True]


@pytest.mark.parametrize("method", [INSERT_MANY, CONTAINS_MANY])
def test_forgotten_after_the_answer_and_before_it_arrives(news, method):
    """An answer "seen" that the server gave before this object forgot is not taken in as it arrives."""
    news.insert("a")
    news._session.near.clear()
    ask(news, method, ["a"], lambda: news.forget(["a"]))
    assert known(news, "a") == [False]
    assert news.insert("a") is True


def test_asked_while_a_forgetting_is_on_its_way(news):
    """An answer that arrives between the forgetting and its reply is dropped with the reply."""
    news.insert("a")
    assert ask(news, FORGET, ["a"], lambda: news.insert("a")) == [True]
    assert known(news, "a") == [False]
    assert news.contains("a") is True


def test_asked_before_a_forgetting_is_answered(news):
    """An answer from before the forgetting that arrives before the reply to it is dropped with that reply."""
    news.insert("a")

    def forget() -> None:
        news._session.near.clear()
        batch = items.question(news._session, FORGET, ["a"])
        flow = items.resolve(news._session, batch)
        steps.append((flow, next(flow)))  # sent, as far as this process is concerned

    steps: list = []
    assert ask(news, INSERT_MANY, ["b"], forget) == [True]
    assert news.insert("a") is False  # the server has not forgotten it yet
    assert known(news, "a") == [True]
    ((flow, step),) = steps
    with pytest.raises(StopIteration):
        flow.send(news._connector.send(step.commands))
    assert known(news, "a", "b") == [False, False]
    assert news.insert("a") is True


def test_dropped_while_an_answer_is_on_its_way(news, valkey):
    """An answer from before a drop by this object is not taken in, and nothing is known after the drop."""
    news.insert("b")
    ask(news, INSERT_MANY, ["a"], news.drop)
    assert known(news, "a", "b") == [False, False]
    with pytest.raises(FilterNotFound):
        news.insert("b")


def test_asked_while_a_drop_is_on_its_way(news):
    """Nothing is known from its beginning; an answer that arrives before its last reply is dropped with that reply."""
    news.insert("a")
    flow = dropping.drop(news._session)
    next(flow)
    assert known(news, "a") == [False]
    flow.close()
    flow = dropping.drop(news._session)
    assert driver.drive(flow, news._connector, perform=perform_with(lambda: news.insert("b"))) is True
    assert known(news, "a", "b") == [False, False]


def test_rotated_by_this_object(valkey):
    """What expires by a rotation of this object is new at once, also if an answer was on its way meanwhile."""
    with UriFilter.create("news", redis=valkey.url, near_cache=1000, shards=3, **RING) as news:
        news.insert_many(["a", "b"])
        news.rotate()
        news.rotate()
        assert news.insert_many(["a"]) == [False]
        ask(news, INSERT_MANY, ["b"], news.rotate)
        assert news.insert_many(["a", "b"]) == [True, True]


def test_expired_by_others(valkey):
    """What expires as others rotate is new once the time of the entry is over: a tenth of the period at most."""
    with UriFilter.create("news", redis=valkey.url, near_cache=1000, near_cache_seconds=3600, **RING) as news:
        near, clock = news._session.near, itertools.count()
        assert near.seconds == 60
        news.insert("a")
        with UriFilter.open("news", redis=valkey.url) as other:
            for _ in range(3):
                other.rotate()
            assert news.insert("a") is False
            near.clock = lambda now=near.clock: now() + 60 + next(clock)
            assert news.insert("a") is True


def test_retry(news, other, proxy, lossy):
    """The cache's answers are in the batch, so a retry finds them; it asks the server for the others alone."""
    news.insert("a")
    assert lossy.insert("a") is False
    error = lost(proxy, lossy.insert_many, ["a", "b"])
    assert error.answers == [False, None]
    other.forget(["a"])
    assert lossy.insert_many(["a", "b"], retry=error) == [False, True]
    assert known(lossy, "b") == [False]  # what a repeated call is told may be from before a forgetting
    assert lossy.insert_many(["b"]) == [False]


def test_ages_of_a_retry(news, other, proxy, lossy):
    """A retry that wants ages asks the server about the items that the cache has answered."""
    news.insert("a")
    assert lossy.insert_many(["a"]) == [False]
    error = lost(proxy, lossy.insert_many, ["b", "a", "c", "a"])
    assert error.answers[1::2] == [False, False]
    other.forget(["a"])
    assert lossy.insert_ages(["b", "a", "c", "a"], retry=error) == [0, 0, 0, 1]


def test_forgotten_before_a_retry(proxy, lossy):
    """A call that was lost, and forgotten before its answer came, leaves nothing in the cache."""
    error = lost(proxy, lossy.insert_many, ["a"])
    assert lossy.forget(["a"]) == [True]
    assert lossy.insert_many(["a"], retry=error) == [True]
    assert lossy.insert("a") is True


@interrupting
def test_a_forgetting_that_is_interrupted(news, sample):
    """Wherever Ctrl-C comes, the item is new once its forgetting is resolved."""
    news.insert("counted")
    with Interrupt() as counted:
        news.forget(["counted"])
    for at in sample(range(1, counted.places + 1), 40):
        item = f"item/{at}"
        news.insert(item)
        with Interrupt(at):
            try:
                told = news.forget([item])
            except KeyboardInterrupt:
                told = None
        if told is None:
            lost = news.unresolved
            told = news.forget([item], retry=lost[0]) if lost else news.forget([item])
        assert told == [True], at
        assert news.insert(item) is True, at


def test_made_anew_by_another(news, other, valkey):
    """Once the server says that the filter is gone, or is another one, nothing is known any more."""
    other.drop()
    for error in (FilterNotFound, ConfigMismatch):
        if error is ConfigMismatch:
            UriFilter.create("news", redis=valkey.url, shards=news.config.shards, **PRECISE).close()
        digests = news._session.digester(["a"])
        news._session.near.end(news._session.near.begin(digests), [1], 0)
        with pytest.raises(error):
            news.insert("b")
        assert known(news, "a") == [False]


@pytest.mark.parametrize("state", ["lost", "restoring"])
def test_lost_or_restoring(valkey, state):
    """A filter that lost a part, or is being restored, may not know what it did: nor does the cache."""
    with UriFilter.create("news", redis=valkey.url, near_cache=1000, **PRECISE) as news:
        news.insert("a")
        if state == "lost":
            valkey.ask("delete", "urifilter:{news:0}:today")
        else:
            valkey.ask("hset", "urifilter:{news:0}:meta", "phase", "restoring")
        assert news.insert("a") is False
        with pytest.raises(SliceLost if state == "lost" else Restoring):
            news.insert("b")
        assert known(news, "a") == [False]


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, lambda news: pickle.loads(pickle.dumps(news))])
def test_copies(news, valkey, monkeypatch, take):
    """A copy has a cache of its own, of the same size, empty."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", valkey.url)
    news.insert("a")
    with take(news) as copied:
        assert copied.near_cache.limit == 1000
        assert copied.near_cache.entries == 0
        assert [copied.insert("a") for _ in range(2)] == [False, False]
        assert (copied.near_cache.hits, copied.near_cache.misses) == (1, 1)


def test_threads(valkey):
    """Threads share a cache: each item that a thread forgets is new to it at once, and new once."""
    with UriFilter.create("news", redis=valkey.url, near_cache=64, **PRECISE) as news:
        wrong: list[object] = []

        def crawl(number: int) -> None:
            for turn in range(30):
                mine, ours = f"{number}/{turn % 7}", f"ours/{turn % 11}"
                news.insert_many([ours, f"{number}/{turn}/x"])
                if news.insert_many([mine, mine]) != [True, False] or news.forget([mine]) != [True]:
                    wrong.append((number, turn))
                if news.contains(mine):
                    wrong.append((number, turn, "forgotten"))

        together(partial(crawl, number) for number in range(8))
        assert wrong == []
        assert news.near_cache.entries <= 64


SECONDS, LIMIT = 10, 4
WHO = st.integers(0, 2)
HOW = st.sampled_from([INSERT_MANY, INSERT_MANY, CONTAINS_MANY, FORGET])
URIS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3)
QUESTION = st.tuples(WHO, HOW, URIS)


class Machine(RuleBasedStateMachine):
    """The clients and the model: the items that are seen, and who forgot each of the others last, and when.

    Two clients have a cache, a third has none. Each may ask anything while the answer to another question is on its
    way. All share one clock, which moves as the test says.
    """

    url: str

    def __init__(self) -> None:
        super().__init__()
        wish = {"near_cache": LIMIT, "near_cache_seconds": SECONDS}
        first = UriFilter.create("news", redis=self.url, capacity=1000, error_rate=1e-9, shards=2, **wish)
        others = [UriFilter.open("news", redis=self.url, **more) for more in (wish, {})]
        self.clients, self.now = [first, *others], 0.0
        for ask in (first.insert_many, first.contains_many, first.forget):
            ask(["z"])  # so that each script is loaded
        for each in self.clients[:2]:
            near = each._session.near
            near.clock = lambda: self.now
            near.reset()
        self.seen: set[str] = set()
        self.forgotten: dict[str, tuple[int, float]] = {}

    def teardown(self) -> None:
        self.clients[0].drop()
        for each in self.clients:
            each.close()

    @rule(question=QUESTION)
    def ask(self, question) -> None:
        self.answer(question, lambda: None)

    @rule(question=QUESTION, other=QUESTION, seconds=st.integers(0, 6), early=st.booleans())
    def ask_while_another_question_is_on_its_way(self, question, other, seconds, early) -> None:
        def meanwhile() -> None:
            self.now += seconds
            self.answer(other, lambda: None)

        self.answer(question, meanwhile, early=early)

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds) -> None:
        self.now += seconds

    @invariant()
    def bounded(self) -> None:
        assert all(each.near_cache.entries <= LIMIT for each in self.clients[:2])

    def answer(self, question, meanwhile, *, early=False) -> None:
        """Ask a question; ``meanwhile`` happens between its sending and the server's answer, or after that."""
        who, method, uris = question
        news, expected = self.clients[who], []
        batch = items.question(news._session, method, uris)
        asked = [answer is None for answer in batch.answers]
        for uri, sent in zip(uris, asked, strict=True):
            assert sent or self.may_withhold(who, uri), uri

        def answered() -> None:
            expected.extend(self.serve(question, asked))
            if not early:
                meanwhile()

        perform = perform_with(answered, before=meanwhile if early else lambda: None)
        driver.drive(items.resolve(news._session, batch), news._connector, perform=perform)
        told = [bool(answer) for answer, sent in zip(batch.answers, asked, strict=True) if sent]
        assert told == expected

    def may_withhold(self, who: int, uri: str) -> bool:
        """Whether a cache may say that an item was seen: it is, or another client forgot it not long ago."""
        if uri in self.seen:
            return True
        forgetter, at = self.forgotten[uri]
        return forgetter != who and self.now < at + SECONDS

    def serve(self, question, asked) -> list[bool]:
        """Answer as the server does: whether each item that it was asked about was there."""
        who, method, uris = question
        answers = []
        for uri, sent in zip(uris, asked, strict=True):
            if sent:
                answers.append(uri in self.seen)
                if method is INSERT_MANY:
                    self.seen.add(uri)
                elif method is FORGET and uri in self.seen:
                    self.seen.remove(uri)
                    self.forgotten[uri] = (who, self.now)
        return answers


@pytest.mark.nightly
@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_model(valkey, examples):
    """The server's answers are right; a cache withholds only what another client forgot, and not for longer than set.

    An item that this client forgets is never withheld from it.
    """
    machine = type("Bound", (Machine,), {"url": f"unix://{valkey.socket}"})
    phases = [Phase.generate] if examples == 25 else list(Phase)
    few = settings(
        max_examples=examples, stateful_step_count=40, phases=phases, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=few)
