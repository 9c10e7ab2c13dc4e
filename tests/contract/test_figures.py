"""``info`` tells how much a filter has, and what is in flight."""

from __future__ import annotations

import math

import pytest
from support.servers import wait_until

MANY = [f"https://example.com/{number}" for number in range(1000)]


def figures(news, **wanted):
    """Return the figures, once some of them are as wanted: the service measures them now and then."""

    def found():
        told = news.figures()
        return told if wanted.items() <= told.items() else None

    return wait_until(found, f"the figures are not {wanted}")


def test_what_was_inserted(make):
    news = make(shards=2, capacity=10_000, error_rate=1e-4)
    news.insert_many(MANY)
    news.insert_many(MANY)
    told = figures(news, inserted=1000)
    assert (told["name"], told["layout"], told["retention"], told["phase"]) == ("news", "blocked", "forever", "idle")
    assert (told["capacity"], told["shards"], told["forgotten"], told["over_capacity"]) == (10_000, 2, 0, False)
    ones = 1000 * told["k"] / (8 * told["segment_bytes"] * told["segments"])
    assert told["fill"] == pytest.approx(-math.expm1(-ones), rel=0.05)
    assert 0 < told["error_rate_now"] < told["error_rate_at_capacity"] <= 1.01e-4
    assert told["memory"] >= told["segments"] * told["segment_bytes"]
    assert told["claims"] is None


def test_more_than_it_was_made_for(make):
    news = make(shards=1, capacity=500)
    news.insert_many(MANY)
    assert figures(news, inserted=1000)["over_capacity"] is True


def test_what_is_in_flight(news):
    """Of living holders, of dead ones, and what waits; and of rejected items."""
    with news.claims(lease=3600) as mine:
        mine.claim_many(["a", "b", "c", "d"])
        mine.release(["b"])
        mine.release(["c"], delay=600)
        mine.reject(["d"], "404")

        def of_claims():
            told = news.figures()["claims"]
            return told if told and told["rejected"] else None

        told = wait_until(of_claims, "nothing was rejected")
        each = ("in_flight", "lapsed", "delayed", "holders", "rejected", "dead_letters")
        assert {name: told[name] for name in each} == dict.fromkeys(each, 1)
        assert told["lease"] == 3600
