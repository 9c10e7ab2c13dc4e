"""While a filter is being restored nobody is told new or seen; who says so waits for it."""

from __future__ import annotations

import pytest
from support.surfaces import refused


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
