"""An object goes on after an error as if there had been none; one that was closed says so."""

from __future__ import annotations

import pytest
from support.recovering import CALLS, COMMANDS, ITEMS

from urifilter_redis import UriFilterError


def goes_on(client, news) -> None:
    """Each call answers as at first, and nothing is left over."""
    for call in COMMANDS:
        items = [f"{call}: {item}" for item in ITEMS[:4]]
        call.prepare(client, items)
        assert call.of(client)(items) == call.told(items)
        assert call.of(client)(items) == call.again(items)
    assert client.news.contains_many(ITEMS) == news.contains_many(ITEMS)
    assert client.news.unresolved == client.mine.unresolved == []


def test_after_lost_answers_that_nobody_asks_for(client, news):
    for call in (client.news.insert_many, client.mine.claim_many):
        client.lose(call, ITEMS, after=1)
    goes_on(client, news)


def test_after_a_bad_item(client, news):
    asked = client.asked
    for call in CALLS:
        with pytest.raises(UriFilterError) as bad:
            call.of(client)([*ITEMS, float("nan"), "more", float("inf")])
        assert (client.code_of(bad.value), bad.value.indices) == ("bad_item", [12, 14])
    assert client.asked == asked
    assert news.contains_many(ITEMS) == [False] * 12
    goes_on(client, news)


def test_after_a_refused_retry(client, news):
    with pytest.raises(ValueError, match="retry="):
        client.news.insert_many(ITEMS, retry=KeyError("another's"))
    with pytest.raises(ValueError, match="retry="):
        client.mine.claim_many(ITEMS, retry=KeyError("another's"))
    goes_on(client, news)


def test_after_the_server_was_away(client, news, monkeypatch):
    with client.away(monkeypatch):
        for call in COMMANDS:
            assert client.code_of(client.fail(call.of(client), ITEMS)) == "unreachable"
    goes_on(client, news)


def test_after_an_interruption(client, news, monkeypatch):
    client.interrupt_hanging(client.news.insert_many, ITEMS)
    (error,) = client.news.unresolved
    assert client.news.insert_many(ITEMS, retry=error) == [True] * 12
    goes_on(client, news)


def test_a_closed_object_says_so_and_sends_nothing(client):
    methods = [call.of(client) for call in CALLS if not call.of_claims]
    client.news.close()
    client.news.close()
    asked = client.asked
    for method in [*methods, client.news.contains_many, client.news.ages, client.news.retry_dead_letters]:
        with pytest.raises(ValueError, match="is closed"):
            method(ITEMS)
    for method in (client.news.info, client.enter):
        with pytest.raises(ValueError, match="is closed"):
            method()
    assert (client.asked, client.news.unresolved) == (asked, [])
    assert "closed" in repr(client.news)


def test_closed_claims_say_so_and_send_nothing(client):
    assert client.mine.claim_many(ITEMS) == [True] * 12
    client.mine.close()
    client.mine.close()
    asked = client.asked
    for call in CALLS:
        if call.of_claims:
            with pytest.raises(ValueError, match="these claims are closed"):
                call.of(client)(ITEMS)
    for method in (client.mine.reclaim, client.mine.outstanding):
        with pytest.raises(ValueError, match="these claims are closed"):
            method()
    assert (client.asked, client.mine.unresolved) == (asked, [])
    assert "closed" in repr(client.mine)


def test_claims_of_a_closed_object_say_so_and_what_they_had_lapses(client, news, caplog):
    client.mine.claim_many(ITEMS)
    client.news.close()
    with pytest.raises(ValueError, match="is closed"):
        client.mine.commit(ITEMS)
    client.mine.close()
    assert "what is in flight is free after its lease only" in caplog.text
    with news.claims() as theirs:
        assert theirs.claim_many(ITEMS) == [False] * 12
