"""While a filter is being restored nobody is told new or seen; who says so waits for it."""

from __future__ import annotations

import threading

import pytest
from support.surfaces import PYTHON, on, refused

from urifilter_redis import Timeouts
from urifilter_redis.sdk import Timeouts as OfService


@pytest.fixture
def phase(surface):
    """Set the phase of the filter's only shard."""
    with surface.server.client() as admin:
        yield lambda phase: admin.hset("urifilter:{news:0}:meta", "phase", phase)


def test_it_is_told_and_nothing_changes(make, phase):
    """Neither by items nor by claims."""
    news = make(shards=1)
    news.insert_many(["a"])
    with news.claims() as mine:
        mine.claim_many(["b"])
        phase("restoring")
        for method in (news.insert_many, news.unique, news.contains_many, news.forget):
            with refused("restoring"):
                method(["a", "c"])
        for method in (mine.claim_many, mine.commit, mine.release):
            with refused("restoring"):
                method(["b", "c"])
        phase("idle")
        assert news.contains_many(["a", "b", "c"]) == [True, True, False]
        assert mine.commit(["b", "c"]) == [True, True]


@on(*PYTHON)
def test_who_says_so_waits(make, surface, phase):
    make(shards=1)
    waits = (OfService if surface.is_service else Timeouts)(restoring=60)
    news = surface.open(timeouts=waits)
    with news.claims() as mine:
        # The service tells the SDK to wait for a second.
        methods = (news.insert_many,) if surface.is_service else (news.insert_many, mine.claim_many)
        for number, method in enumerate(methods):
            phase("restoring")
            back = threading.Timer(0.2, phase, ["idle"])
            back.start()
            assert method([str(number)]) == [True]
            back.join()
