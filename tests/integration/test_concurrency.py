"""Atomicity, tested by counting."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading

import pytest
from support import crawler
from support.together import together

from urifilter_redis import UriFilter


@pytest.mark.parametrize("count", [5_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_eight_processes(valkey, tmp_path, count):
    """8 processes insert the same URIs in different orders: each is answered "new" exactly once."""
    UriFilter.create("news", redis=valkey.url, capacity=100_000, error_rate=1e-8, shards=3).close()
    out = tmp_path / "new"
    arguments = [sys.executable, crawler.__file__, valkey.url, "news", str(count)]
    running = [subprocess.Popen([*arguments, str(seed), "1000", "1", "1", str(out)]) for seed in range(8)]
    assert [each.wait(200) for each in running] == [0] * 8
    told = collections.Counter(out.read_text().split())
    assert len(told) == count
    assert set(told.values()) == {1}
    assert UriFilter.open("news", redis=valkey.url).inserted() == count + 1  # and the warm-up


def test_many_create_one_filter(server):
    """20 processes' worth of creators at once, with seeds left open: one filter, one uid, one seed."""
    made, all_there = [], threading.Barrier(20)

    def create() -> None:
        all_there.wait()
        made.append(UriFilter.create("news", redis=server.url, capacity=10_000, shards=9))

    together(create for _ in range(20))
    assert len({(each.config.uid, each.config.seed) for each in made}) == 1
    assert sum(each.insert("a") for each in made) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("count", "fresh", "most"),
    [(50_000, 100_000, 1.5e-4), pytest.param(250_000, 1_000_000, 1.2e-4, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("layout", ["blocked", "classic"])
def test_error_rate_at_capacity(valkey, layout, count, fresh, most):
    """Filled to its capacity and asked about fresh items: about the error rate that was asked, no false negative."""
    with UriFilter.create("news", redis=valkey.url, capacity=count, layout=layout, seed=1) as news:
        assert sum(age for age in news.insert_ages([f"https://example.com/{i}" for i in range(count)])) < 100
        assert news.ages([f"https://example.com/{i}" for i in range(count)]) == [1] * count
        wrong = sum(news.ages([f"https://example.org/{i}" for i in range(fresh)]))
        info = news.info()
    assert wrong / fresh <= most
    assert 0.85e-4 <= info.error_rate_now <= 1.15e-4
    assert info.error_rate_at_capacity == pytest.approx(1e-4, rel=0.01)
    assert not info.over_capacity
