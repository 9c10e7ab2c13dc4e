"""``retry=``: who did not hear an answer asks again, and is told what the first attempt did."""

from __future__ import annotations

import copy
import pickle

import pytest
from support.proxy import Fault
from support.recovering import BLOCKING, CALLS, COMMANDS, ITEMS, Client, each_of
from support.surfaces import LIBRARY, SDK

from urifilter_redis import UriFilterError
from urifilter_redis.errors import FilterAPIError

#: Minutes for which an answer is kept.
KEPT = 8

INSERT, *OTHERS = COMMANDS


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY, Fault.DUPLICATE])
@pytest.mark.parametrize("call", [INSERT, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)], ids=str)
def test_one_message_that_is_lost_late_or_doubled_changes_no_answer(client, call, fault):
    call.prepare(client)
    client.meet(fault, after=1)
    assert call.of(client)(ITEMS) == call.told(ITEMS)
    client.network.release()
    assert client.network.counts[fault] == 1
    assert call.of(client)(ITEMS) == call.again(ITEMS)


def test_an_answer_of_a_reclaim_that_is_lost_once_is_told(client, news):
    with news.claims() as dead:
        dead.claim_many(ITEMS)
    client.meet(Fault.CUT_AFTER)
    assert sorted(claim.item for claim in client.mine.reclaim()) == sorted(ITEMS)
    assert len(client.mine.held) == 12


@each_of(COMMANDS, quick=True)
def test_retry_tells_what_the_lost_answer_told(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    assert (client.code_of(error), error.method) == ("answer_lost", call.command)
    assert (error.items, error.answers) == (ITEMS, [None] * 12)
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)
    assert call.of(client)(ITEMS) == call.again(ITEMS)


@each_of(COMMANDS)
def test_a_retry_may_be_lost_too(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    error = client.lose(call.of(client), ITEMS, retry=error)
    assert client.code_of(error) == "answer_lost"
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


@each_of(COMMANDS)
def test_an_error_that_is_answered_tells_its_answers_again_and_sends_nothing(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    call.of(client)(ITEMS, retry=error)
    asked = client.asked
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)
    assert client.asked == asked


@each_of(COMMANDS)
def test_later_calls_take_nothing_from_a_lost_one(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    for number in range(3):
        others = [f"{number}/{item}" for item in ITEMS]
        call.prepare(client, others)
        assert call.of(client)(others) == call.told(others)
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


@pytest.mark.parametrize("of_claims", [False, True], ids=["filter", "claims"])
def test_each_method_of_a_kind_goes_on_with_the_error_of_another(client, of_claims):
    calls = [each for each in CALLS if each.command == ("claim" if of_claims else "insert")]
    for number, (one, other) in enumerate(zip(calls, [*calls[1:], calls[0]], strict=True)):
        items = [f"{number}/{item}" for item in ITEMS]
        error = client.lose(one.of(client), items, after=1)
        assert terms_of(error) == {(type(one.answer), one.answer)}
        again = client.lose(other.of(client), items, retry=error)
        assert terms_of(again) == {(type(other.answer), other.answer)}
        assert other.of(client)(items, retry=again) == other.told(items)


def terms_of(error) -> set:
    """The answers that there are; True is 1, but not of its type."""
    return {(type(each), each) for each in error.answers if each is not None}


def test_objects_of_the_callers_are_asked_about_again_by_their_key_and_are_those_of_the_retry(client):
    pages = [{"url": item} for item in ITEMS]
    for call in CALLS[-4:]:
        items, key = [f"{call} {item}" for item in ITEMS], lambda page, of=call: f"{of} {page['url']}"
        error = client.lose(call.of(client), pages, key=key)
        assert error.items == pages
        error = client.lose(call.of(client), items, retry=error)
        assert error.items == items
        assert call.of(client)(pages, key=key, retry=error) == (pages if call.method == "unique" else call.told(items))
        assert call.of(client)(items) == call.again(items)


@each_of(COMMANDS)
def test_retry_of_another_call_is_refused_and_sends_nothing(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    asked = client.asked
    for items in (ITEMS[:-1], [*ITEMS, "more"], ITEMS[::-1], []):
        with pytest.raises(ValueError, match="retry= takes what .* raised for these same items"):
            call.of(client)(items, retry=error)
    for other in COMMANDS:
        if other is not call:
            with pytest.raises(ValueError, match="retry= takes what"):
                other.of(client)(ITEMS, retry=error)
    assert client.asked == asked
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


def test_retry_of_what_no_call_has_raised_is_refused_and_sends_nothing(client):
    asked = client.asked
    for wrong in ("text", KeyError("a"), UriFilterError("of no call"), FilterAPIError("of none", error_code="x"), 7):
        for call in CALLS:
            with pytest.raises(ValueError, match=f"retry= takes what {call.kind} raised for these same items, not"):
                call.of(client)(ITEMS, retry=wrong)
    assert client.asked == asked


@pytest.mark.parametrize("client", BLOCKING, indirect=True)
@each_of(COMMANDS)
def test_of_two_threads_that_retry_at_once_one_is_told_and_the_other_is_refused(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    with (
        client.under_way(call.of(client), ITEMS, retry=error) as answer,
        pytest.raises(ValueError, match="retry=: another thread or task is asking"),
    ):
        call.of(client)(ITEMS, retry=error)
    assert answer == [call.told(ITEMS)]


@each_of([each for each in COMMANDS if each.of_claims])
def test_retry_by_other_claims_is_refused(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    theirs = client.news.claims()
    with pytest.raises(ValueError, match="retry= takes what"):
        getattr(theirs, call.method)(ITEMS, retry=error)
    theirs.close()
    assert call.of(client)(ITEMS, retry=error) == call.told(ITEMS)


@each_of([each for each in COMMANDS if not each.of_claims])
def test_another_object_of_the_filter_is_refused_and_one_of_the_service_is_answered(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS)
    other = getattr(client.open(), call.method)
    if not client.is_sdk:
        with pytest.raises(ValueError, match="this very filter object"):
            other(ITEMS, retry=error)
        other = call.of(client)
    assert other(ITEMS, retry=error) == call.told(ITEMS)


@pytest.mark.parametrize("client", SDK, indirect=True)
def test_retry_for_another_filter_or_max_age_is_refused(client):
    error = client.lose(client.news.insert_many, ITEMS)
    asked = client.asked
    with pytest.raises(ValueError, match="retry= takes what"):
        client.open("other").insert_many(ITEMS, retry=error)
    with pytest.raises(ValueError, match="retry= takes what"):
        client.news.insert_many(ITEMS, max_age=1, retry=error)
    with pytest.raises(ValueError, match="retry= takes what filter raised"):
        client.news.filter(ITEMS, retry=error)
    assert client.asked == asked


@pytest.mark.parametrize("client", SDK, indirect=True)
def test_the_answer_of_the_endpoint_is_put_together_of_what_arrived_and_of_a_retry(client, news):
    news.insert_many(ITEMS[1:2])
    error = client.lose(client.news.filter, ITEMS, after=1)
    assert (error.method, error.answers) == ("filter", [True, False, True, True] + [None] * 8)
    answer = client.news.filter(ITEMS, retry=error)
    assert answer["URI_list_unique"] == [item for item in ITEMS if item != ITEMS[1]]
    assert (answer["filter_typeid"], answer["total"], answer["unique"]) == ("news", 12, 11)


@each_of(COMMANDS)
def test_an_error_that_went_through_pickle_tells_its_answers_and_a_copy_may_be_retried(client, call):
    call.prepare(client)
    error = client.lose(call.of(client), ITEMS, after=1)
    told = pickle.loads(pickle.dumps(error))
    assert (told.answers, told.items, told.method) == (error.answers, ITEMS, call.command)
    with pytest.raises(ValueError, match="retry= takes what .* this error went through pickle"):
        call.of(client)(ITEMS, retry=told)
    assert call.of(client)(ITEMS, retry=copy.copy(error)) == call.told(ITEMS)
    assert call.of(client)(ITEMS, retry=copy.deepcopy(error)) == call.told(ITEMS)


@pytest.mark.parametrize("items", [(ITEMS,), ()], ids=["some", "all"])
def test_how_many_were_offered_once_more_is_told_by_a_retry(client, items):
    client.mine.claim_many(ITEMS)
    client.mine.reject(ITEMS)
    error = client.lose(client.news.retry_dead_letters, *items)
    assert (client.code_of(error), error.method) == ("answer_lost", "retry_dead_letters")
    for call in COMMANDS:
        with pytest.raises(ValueError, match="retry= takes what"):
            call.of(client)(ITEMS, retry=error)
    offered = client.news.retry_dead_letters(*items, retry=error)
    assert offered == 12 or (client.is_sdk and not items)  # of all it may be too few: they are offered all the same
    assert client.news.dead_letters() == []
    assert client.news.retry_dead_letters(*items) == 0


def test_a_rejection_that_is_retried_has_the_reason_that_it_had(client):
    client.mine.claim_many(ITEMS)
    error = client.lose(client.mine.reject, ITEMS, "a" + "ü" * 100)
    assert client.mine.reject(ITEMS, retry=error) == [True] * 12
    assert {each.reason for each in client.news.dead_letters()} == {"a" + "ü" * 99}  # 200 bytes of it are kept


class TestAfterTheRecordIsGone:
    """Nobody knows any more whether the items were new: the call fails, and calls no item seen or new."""

    @pytest.mark.parametrize("kind", LIBRARY)
    def test_of_the_server(self, kind, clocked, make_filter_at):
        server, clock = clocked
        make_filter_at(server)
        with Client(kind, server, None) as client:
            error = client.lose(client.news.insert_many, ITEMS)
            server.ask("delete", *server.ask("keys", "*:replies"))
            clock.ahead((KEPT + 1) * 60)
            with pytest.raises(UriFilterError, match="its record is too old to be certain") as gone:
                client.news.insert_many(ITEMS, retry=error)
            assert client.code_of(gone.value) == "answer_lost"
            assert gone.value.answers == [None] * 12

    @pytest.mark.parametrize("client", SDK, indirect=True)
    def test_of_the_service(self, client, monkeypatch):
        error = client.lose(client.news.insert_many, ITEMS)
        clock, asked = client.session.ids.clock, client.asked
        now = clock.now()
        monkeypatch.setattr(clock, "now", lambda: now + (KEPT + 1) * 60_000)
        with pytest.raises(FilterAPIError, match=f"kept for {KEPT} minutes") as gone:
            client.news.insert_many(ITEMS, retry=error)
        assert (client.code_of(gone.value), client.asked) == ("answer_lost", asked)
        monkeypatch.setattr(clock, "now", lambda: now + (KEPT - 1) * 60_000)
        assert client.news.insert_many(ITEMS, retry=error) == [True] * 12
