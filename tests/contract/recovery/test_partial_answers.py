"""A call about many items has several requests: those that were answered are answered, whatever the others meet."""

from __future__ import annotations

import pytest
from support.recovering import CALLS, COMMANDS, ITEMS, Client, each_of
from support.shard_keys import shard_key
from support.surfaces import PYTHON, SDK, cases

from urifilter_redis.bloom.digest import shards_of


def answered(error) -> list[str]:
    return [item for item, answer in zip(error.items, error.answers, strict=True) if answer is not None]


@each_of(CALLS, quick=True)
def test_an_error_tells_the_answers_that_arrived_and_a_retry_asks_for_the_others_alone(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS, after=1)
    assert client.code_of(error) == "answer_lost"
    assert 0 < len(answered(error)) < 12
    for answer in error.answers:  # in the terms of the method
        assert answer is None or (type(answer), answer) == (type(call.answer), call.answer)
    asked = client.asked
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)
    assert client.asked == asked + 2
    assert call.of(client)(ITEMS) == call.again(ITEMS)


def test_items_seen_before_and_twice_in_the_call_have_their_own_answers(client, news):
    news.insert_many(ITEMS[:3])
    items = [*ITEMS, *ITEMS[2:4]]
    told = [False] * 3 + [True] * 9 + [False] * 2
    error = client.lose(client.news.insert_many, items, after=1)
    for answer, right in zip(error.answers, told, strict=True):
        assert answer in {None, right}
    assert client.news.insert_many(items, retry=error) == told


def test_what_a_claim_was_told_is_in_flight_and_the_rest_is_after_the_retry(client):
    error = client.lose(client.mine.claim_many, ITEMS, after=1)
    assert sorted(claim.item for claim in client.mine.held) == sorted(answered(error))
    assert client.mine.claim_many(ITEMS, retry=error) == [True] * 12
    assert sorted(claim.item for claim in client.mine.held) == sorted(ITEMS)
    assert client.mine.commit(ITEMS) == [True] * 12


@each_of([each for each in COMMANDS if each.before == "claim_many"])
def test_what_a_claim_has_ended_is_in_flight_no_more_and_the_rest_is_until_the_retry(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS, after=1)
    assert not {claim.item for claim in client.mine.held} & {*answered(error)}
    assert len(client.mine.held) == 12 - len(answered(error))
    assert call.of(client)(ITEMS, retry=error) == [True] * 12
    assert client.mine.held == []


@pytest.fixture(params=cases(*PYTHON))
def whole(request, any_server, service, news):
    """Each client; one of the service asks for all items in one request."""
    with Client(request.param, any_server, service) as made:
        yield made


@each_of([each for each in COMMANDS if each.command != "release"])
def test_a_shard_without_its_bitmap_fails_alone(whole, call, news, any_server):
    call.prepare(whole)
    key = shard_key("news", 1, 3, "today")
    with any_server.client() as admin:
        kept = admin.dump(key)
        admin.delete(key)
        error = whole.fail(call.of(whole), ITEMS)
        assert whole.code_of(error) in {"slice_lost", "answer_lost"}
        shards = shards_of(news._session.digester(ITEMS), 3)
        assert answered(error) == [item for item, shard in zip(ITEMS, shards, strict=True) if shard != 1]
        again = whole.fail(call.of(whole), ITEMS, retry=error)
        assert answered(again) == answered(error)
        admin.restore(key, 0, kept)
    assert call.of(whole)(ITEMS, retry=again) == call.told(ITEMS)
    assert call.of(whole)(ITEMS) == call.again(ITEMS)


@pytest.mark.parametrize("client", SDK, indirect=True)
def test_a_request_that_is_refused_leaves_the_answers_of_those_before_it_and_has_the_calls_indices(client):
    error = client.fail(client.news.insert_many, [*ITEMS, "short", "x" * 70_000])
    assert (client.code_of(error), error.indices) == ("item_too_long", [13])
    assert error.answers == [True] * 12 + [None] * 2
    assert client.news.contains_many([*ITEMS, "short"]) == [True] * 12 + [False]
