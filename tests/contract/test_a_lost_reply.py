"""A request or a reply that is lost, late or doubled changes no answer: whoever was told new is told so again."""

from __future__ import annotations

import pytest
from support.proxy import Fault
from support.surfaces import PYTHON, on

from urifilter_redis import Claim

pytestmark = pytest.mark.parametrize(
    "fault",
    [
        Fault.CUT_AFTER,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (Fault.CUT_BEFORE, Fault.DELAY, Fault.DUPLICATE)),
    ],
)
ITEMS = [f"https://example.com/{number}" for number in range(20)]


class Lossy:
    """Objects about a filter over a line that has one fault a call, and the scripts of all calls on the server."""

    def __init__(self, surface, fault) -> None:
        self.proxy, self.fault, self.faults = surface.proxy(), fault, 0
        self.news = surface.open(through=self.proxy)
        self.straight = surface.open()

    def __call__(self, method, *given, **more):
        """Call a method, the first request of which has the fault; what is late arrives before this returns."""
        left = [self.fault]
        self.proxy.plan = lambda _: left.pop() if left else Fault.PASS
        answers = method(*given, **more)
        self.proxy.plan = lambda _: Fault.PASS
        assert not left
        self.faults += 1
        assert self.proxy.counts[self.fault] == self.faults
        self.proxy.release()
        return answers


@pytest.fixture
def lossy(make, surface, fault):
    news = make()
    with news.claims() as mine:  # which loads the scripts
        mine.claim_many(["l", "m"])
        mine.commit(["l"])
        mine.release(["m"])
        mine.commit([each.item for each in mine.reclaim()])
        news.insert_many(["n"])
        news.forget(["n"])
    return Lossy(surface, fault)


def test_what_is_new_is_told_new_once(lossy):
    news = lossy.news
    assert lossy(news.insert_many, ITEMS[:10]) == [True] * 10
    assert lossy(news.unique, ITEMS[5:15]) == ITEMS[10:15]
    assert lossy(news.contains_many, [*ITEMS[10:], "x"]) == [*[True] * 5, *[False] * 6]
    assert lossy.straight.insert_many(ITEMS) == [place >= 15 for place in range(20)]


def test_what_was_forgotten_is_told_so_once(lossy):
    lossy.straight.insert_many(ITEMS[:10])
    assert lossy(lossy.news.forget, ITEMS[5:12]) == [True] * 5 + [False] * 2
    assert lossy.straight.unique(ITEMS[:10]) == ITEMS[5:10]


def test_claims_go_from_holder_to_holder_once(lossy):
    with lossy.news.claims() as mine, lossy.straight.claims() as theirs:
        assert lossy(mine.claim_many, ITEMS) == [True] * 20
        assert lossy(mine.commit, ITEMS[:5]) == [True] * 5
        assert lossy(mine.release, ITEMS[3:10], failed=True) == [*[False] * 2, *[True] * 5]
        assert theirs.reclaim(2)[0].failures == 1
        found = lossy(mine.reclaim)
        assert found == [Claim(each.item, each.item, failures=1) for each in found]
        assert len(found) == 3
        assert theirs.reclaim() == []
        assert len(lossy.straight.in_flight()) == 15


def test_a_rejection_is_told_once(lossy):
    with lossy.news.claims() as mine:
        mine.claim_many(ITEMS[:6])
        assert lossy(mine.reject, ITEMS[2:8], "404") == [*[True] * 4, *[False] * 2]
        assert sorted(each.item for each in lossy.straight.dead_letters()) == ITEMS[2:6]
        assert {each.failures for each in lossy.straight.dead_letters()} == {0}


@on(*PYTHON, "http")
def test_what_is_offered_once_more_is_told_once(lossy):
    with lossy.news.claims() as mine:
        mine.claim_many(ITEMS[:6])
        mine.reject(ITEMS[:6], "404")
        assert lossy(lossy.news.retry_dead_letters, [*ITEMS[:2], "never"]) == 2
        assert sorted(each.item for each in lossy.straight.dead_letters()) == ITEMS[2:6]


def test_of_all_that_is_offered_nothing_stays(lossy, surface):
    """By the service it is not told how many these were; all are offered."""
    with lossy.news.claims() as mine:
        mine.claim_many(ITEMS[:6])
        mine.reject(ITEMS[:6], "404")
        assert lossy(lossy.news.retry_dead_letters) == 6 or surface.is_service
        assert lossy.straight.dead_letters() == []
        assert sorted(each.item for each in mine.reclaim()) == ITEMS[:6]
