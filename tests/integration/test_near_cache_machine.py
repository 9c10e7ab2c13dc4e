"""Clients with and without a near cache, in any order, against a model that remembers exact items and times.

Two clients have a cache, a third has none. Each may ask anything while the answer to another question is on its way.
All share one clock, which moves as the test says.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from urifilter_redis import UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.batch import CONTAINS_MANY, FORGET, INSERT_MANY
from urifilter_redis.engine.steps import Send
from urifilter_redis.flows import items

pytestmark = pytest.mark.slow

SECONDS, LIMIT = 10, 4
WHO = st.integers(0, 2)
HOW = st.sampled_from([INSERT_MANY, INSERT_MANY, CONTAINS_MANY, FORGET])
URIS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3)
QUESTION = st.tuples(WHO, HOW, URIS)


class Machine(RuleBasedStateMachine):
    """The clients and the model: the items that are seen, and who forgot each of the others last, and when."""

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
        news, expected, first = self.clients[who], [], True
        batch = items.question(news._session, method, uris)
        asked = [answer is None for answer in batch.answers]
        for uri, sent in zip(uris, asked, strict=True):
            assert sent or self.may_withhold(who, uri), uri

        def perform(step, sender):
            nonlocal first
            if not (isinstance(step, Send) and first):
                return driver.perform_step(step, sender)
            first = False
            if early:
                meanwhile()
            outcome = driver.perform_step(step, sender)
            expected.extend(self.serve(question, asked))
            if not early:
                meanwhile()
            return outcome

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
