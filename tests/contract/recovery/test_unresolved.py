"""``unresolved``: the calls that were interrupted, and whose answers nobody has."""

from __future__ import annotations

import pytest
from support.recovering import BLOCKING, COMMANDS, ITEMS, WHEN, each_of

#: Calls that are kept when they are interrupted. What an interrupted claim took is given back.
KEPT = [each for each in COMMANDS if each.command != "claim"]


@pytest.mark.parametrize("sent", [pytest.param(False, marks=pytest.mark.slow), True], ids=WHEN)
@each_of(KEPT, quick=True)
def test_an_interrupted_call_is_there_until_it_is_retried(client, call, sent, monkeypatch):
    """Whether or not it was sent: what it says is that nobody has its answers."""
    call.prepare(client)
    owner = client.mine if call.of_claims else client.news
    assert client.interrupt(monkeypatch, call.of(client), ITEMS, sent=sent)
    if not sent and not owner.unresolved:
        assert call.of(client)(ITEMS) == call.told(ITEMS)
        return
    (error,) = owner.unresolved
    assert (client.code_of(error), error.method, error.items) == ("answer_lost", call.command, ITEMS)
    assert f"{call.command} was interrupted: call it again with retry= for the answers" in str(error)
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)
    assert owner.unresolved == []
    assert call.of(client)(ITEMS) == call.again(ITEMS)


@each_of([each for each in KEPT if each.of_claims])
def test_calls_of_claims_are_with_their_claims_alone(client, call, monkeypatch):
    call.prepare(client)
    theirs = client.news.claims()
    assert client.interrupt(monkeypatch, call.of(client), ITEMS)
    assert len(client.mine.unresolved) == 1
    assert client.news.unresolved == theirs.unresolved == []
    theirs.close()


def test_the_oldest_is_first_and_each_is_retried_by_itself(client, monkeypatch):
    calls = [ITEMS[:4], ITEMS[4:8], ITEMS[8:]]
    for items in calls:
        assert client.interrupt(monkeypatch, client.news.insert_many, items)
    errors = client.news.unresolved
    assert [error.items for error in errors] == calls
    assert client.news.insert_many(calls[1], retry=errors[1]) == [True] * 4
    assert [error.items for error in client.news.unresolved] == [calls[0], calls[2]]
    assert client.news.insert_many(calls[2], retry=errors[2]) == [True] * 4
    assert client.news.insert_many(calls[0], retry=errors[0]) == [True] * 4
    assert client.news.unresolved == []


def test_a_question_is_not_there(client, monkeypatch):
    assert client.interrupt(monkeypatch, client.news.contains_many, ITEMS)
    assert client.interrupt(monkeypatch, client.news.ages, ITEMS)
    assert client.news.unresolved == []


@each_of(COMMANDS)
def test_a_call_whose_caller_got_its_error_is_not_there(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    assert client.news.unresolved == client.mine.unresolved == []
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


def test_an_interrupted_claim_is_not_there_and_nothing_of_it_is_in_flight(client, monkeypatch):
    assert client.interrupt(monkeypatch, client.mine.claim_many, ITEMS)
    assert client.news.unresolved == client.mine.unresolved == client.mine.held == []


@each_of(KEPT)
def test_a_retry_that_is_interrupted_is_there_again(client, call, monkeypatch):
    call.prepare(client)
    owner = client.mine if call.of_claims else client.news
    error = client.lose(call.of(client), ITEMS)
    assert client.interrupt(monkeypatch, call.of(client), ITEMS, retry=error)
    (again,) = owner.unresolved
    assert call.of(client)(ITEMS, retry=again) == call.told(ITEMS)
    assert owner.unresolved == []


def test_an_interrupted_retry_of_a_claim_leaves_what_the_error_had_told(client, monkeypatch):
    error = client.lose(client.mine.claim_many, ITEMS, after=1)
    known = {item for item, answer in zip(ITEMS, error.answers, strict=True) if answer}
    assert 0 < len(known) < 12
    assert client.interrupt(monkeypatch, client.mine.claim_many, ITEMS, retry=error)
    assert {claim.item for claim in client.mine.held} == known
    assert client.mine.unresolved == []


@pytest.mark.parametrize("client", BLOCKING, indirect=True)
def test_a_call_that_is_under_way_in_another_thread_is_not_there(client):
    with client.under_way(client.news.insert_many, ITEMS) as answer:
        assert client.news.unresolved == []
    assert (answer, client.news.unresolved) == ([[True] * 12], [])
