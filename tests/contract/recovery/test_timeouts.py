"""Each call ends within its time, and says whether it may have happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.proxy import Fault, never
from support.recovering import COMMANDS, ITEMS, PATIENT, PRECISE, Client, each_of
from support.shard_keys import shard_key
from support.surfaces import PYTHON, cases

from urifilter_redis.errors import UriFilterError


def set_phase(admin, phase: str) -> None:
    """Have all shards be restored, or not."""
    for shard in range(PRECISE["shards"]):
        admin.hset(shard_key("news", shard, PRECISE["shards"], "meta"), "phase", phase)


@pytest.fixture
def timed(any_server, service, news):
    """Make a client with timeouts of a test's own: ``timed(kind, reply=0.2)``."""
    made = []

    def make(kind, **timeouts) -> Client:
        made.append(Client(kind, any_server, service, replace(PATIENT, **timeouts)))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


def until_answered(method, *arguments, retry=None):
    """Ask again until there are answers: a busy machine takes longer than a client of short timeouts waits."""
    while True:
        try:
            return method(*arguments, retry=retry)
        except UriFilterError as error:
            retry = error


@pytest.mark.parametrize("kind", cases(*PYTHON))
def test_a_change_without_an_answer_may_have_happened(timed, kind):
    client = timed(kind, reply=0.3)
    client.network.plan = lambda _: Fault.HANG
    error = client.fail(client.news.insert_many, ITEMS)
    assert (client.code_of(error), error.answers) == ("answer_lost", [None] * 12)
    client.network.plan = never
    assert until_answered(client.news.insert_many, ITEMS, retry=error) == [True] * 12


@pytest.mark.parametrize("kind", cases(*PYTHON))
def test_a_question_without_an_answer_changed_nothing(timed, kind):
    client = timed(kind, reply=0.3)
    client.network.plan = lambda _: Fault.HANG
    error = client.fail(client.news.contains_many, ITEMS)
    assert (client.code_of(error), error.answers) == ("unreachable", [None] * 12)
    assert client.news.unresolved == []


@each_of(COMMANDS)
def test_what_was_certainly_not_sent_has_not_happened_and_may_be_retried(client, call, monkeypatch):
    call.prepare(client)
    with client.away(monkeypatch):
        error = client.fail(call.of(client), ITEMS)
    assert (client.code_of(error), error.answers) == ("unreachable", [None] * 12)
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


def test_a_call_is_tried_again_until_its_time_is_over(client):
    attempts = []

    def cut(command):
        attempts.append(command)
        if len(attempts) == 3:
            client.set_total(0)
        return Fault.CUT_BEFORE

    client.network.plan = cut
    with pytest.raises(UriFilterError, match="gave up after 0 s") as lost:
        client.news.insert_many(ITEMS)
    assert (client.code_of(lost.value), len(attempts)) == ("answer_lost", 3)


@each_of(COMMANDS)
def test_a_filter_that_is_restored_is_not_waited_for(client, call, any_server):
    call.prepare(client)
    with any_server.client() as admin:
        set_phase(admin, "restoring")
        with pytest.raises(UriFilterError) as refused:
            call.of(client)(ITEMS)
        assert client.code_of(refused.value) == "restoring"
        set_phase(admin, "idle")
    assert call.of(client)(ITEMS, retry=refused.value) == call.told(ITEMS)


@pytest.mark.parametrize("kind", cases(*PYTHON))
def test_a_filter_that_is_restored_is_waited_for_as_long_as_the_caller_says(timed, kind, any_server):
    client, asked = timed(kind, restoring=60), []
    of_second_attempt = 2 if client.is_sdk else 4  # of the service it is one request that was refused
    with any_server.client() as admin:

        def until_asked_again(command):
            asked.append(command)
            if len(asked) == of_second_attempt:
                set_phase(admin, "idle")
            return Fault.PASS

        # The service tells the SDK to wait for a second.
        calls = [client.news.insert_many] if client.is_sdk else [client.news.insert_many, client.mine.claim_many]
        for number, call in enumerate(calls):
            set_phase(admin, "restoring")
            asked.clear()
            client.network.plan = until_asked_again
            assert call([f"{number}/{item}" for item in ITEMS]) == [True] * 12
            assert len(asked) >= of_second_attempt
