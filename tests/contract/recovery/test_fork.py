"""A forked child is a client of its own: it neither disturbs nor answers for its parent."""

from __future__ import annotations

import pytest
from support.recovering import COMMANDS, ITEMS, each_of

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

OTHERS = [f"{item}/other" for item in ITEMS]


def test_a_child_and_its_parent_are_two_clients_and_are_told_of_each_others_items(client):
    """With the ids of its parent a child's calls would be taken for repeats of the parent's."""
    client.news.insert_many(ITEMS)

    def ask():
        answers = client.news.insert_ages(ITEMS), client.news.insert_ages(OTHERS)
        return client.session.ids.client, *answers, client.news.close()

    child, *told = client.in_a_child(ask)
    assert told == [[1] * 12, [0] * 12, None]
    assert child != client.session.ids.client
    assert client.news.insert_ages(OTHERS) == [1] * 12
    assert client.news.insert_ages(["parent", *ITEMS]) == [0] + [1] * 12


@each_of(COMMANDS)
def test_a_child_is_refused_its_parents_lost_answers_and_the_parent_is_not(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)

    def retried():
        with pytest.raises(ValueError, match="retry= takes what"):
            call.of(client)(ITEMS, retry=error)
        return "refused"

    assert client.in_a_child(retried) == "refused"
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


def test_a_child_has_nothing_unresolved_of_its_parents(client, monkeypatch):
    client.mine.claim_many(ITEMS)
    client.interrupt(monkeypatch, client.news.insert_many, OTHERS)
    client.interrupt(monkeypatch, client.mine.commit, ITEMS)
    assert client.in_a_child(lambda: [client.news.unresolved, client.mine.unresolved]) == [[], []]
    (lost,), (ended,) = client.news.unresolved, client.mine.unresolved
    assert client.news.insert_many(OTHERS, retry=lost) == [True] * 12
    assert client.mine.commit(ITEMS, retry=ended) == [True] * 12


def test_a_child_has_none_of_its_parents_claims_by_their_items_either(client):
    client.mine.claim_many(ITEMS)
    assert client.in_a_child(lambda: client.mine.claimed(ITEMS)) == []
    assert len(client.mine.claimed(ITEMS)) == 12


def test_a_child_is_another_holder_and_has_nothing_in_flight(client, news):
    client.mine.claim_many(ITEMS)

    def ask():
        mine = client.mine
        return mine.holder, mine.held, mine.claim_many([ITEMS[0], "child"]), mine.release(ITEMS), mine.close()

    holder, *told = client.in_a_child(ask)
    assert holder != client.mine.holder
    assert told == [[], [False, True], [False] * 12, None]
    assert sorted(claim.item for claim in client.mine.held) == sorted(ITEMS)
    with news.claims() as theirs:
        assert [claim.item for claim in theirs.reclaim()] == ["child"]  # which the child gave back
    assert client.mine.commit(ITEMS) == [True] * 12


def test_a_child_that_only_closes_gives_back_nothing_of_its_parents(client, news):
    client.mine.claim_many(ITEMS)
    assert client.in_a_child(client.mine.close) is None
    with news.claims() as theirs:
        assert theirs.reclaim() == []
        assert theirs.outstanding().others == 12
    assert client.mine.commit(ITEMS) == [True] * 12
