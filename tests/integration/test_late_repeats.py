"""Every call of a flow may arrive once more at any later time: a network that was away delivers what it held."""

from __future__ import annotations

import pytest
from support.in_flight import Holder, in_flight
from support.proxy import Repeating

from urifilter_redis import UriFilter

pytestmark = pytest.mark.slow

OLD, NEW, FORGOTTEN, IN_FLIGHT, UNKNOWN, LATER = (
    range(200),
    range(200, 400),
    range(1000, 1020),
    range(2000, 2020),
    range(9000, 9500),
    range(3000, 3100),
)

SHAPES = {
    "forever": {},
    "growing": {"retention": "growing"},
    "ring": {"retention": "ring", "slices": 4, "period": "1d"},
    "rolling": {"retention": "rolling", "slices": 4, "period": "1d"},
}


@pytest.fixture(params=[0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def late(request, any_server):
    """A proxy before a server."""
    with Repeating(any_server.port, request.param) as proxy:
        yield proxy


@pytest.fixture(params=SHAPES)
def news(request, any_server, folder):
    """A filter that has items of two slices, forgotten ones, and some in flight."""
    shape = SHAPES[request.param] | {"shards": 2, "capacity": 2000, "error_rate": 1e-8}
    with UriFilter.create("news", redis=any_server.url, archive=folder, **shape) as made:
        made.insert_many([*OLD, *FORGOTTEN])
        if "period" in shape:
            made.rotate()
        made.insert_many(NEW)
        made.forget(FORGOTTEN)
        Holder(made).claim(IN_FLIGHT)
        made.checkpoint()
        yield made


def check(news, any_server, more=()) -> None:
    """The filter has all of it, and nothing else."""
    with UriFilter.open("news", redis=any_server.url, archive=news.config.archive) as again:
        assert again.restored is None
        assert 0 not in again.ages([*OLD, *NEW, *more])
        assert set(again.ages([*FORGOTTEN, *UNKNOWN])) == {0}
        with any_server.client() as admin:
            assert set(in_flight(again, admin)) == {str(item) for item in IN_FLIGHT}


def test_restore(late, news, any_server, folder):
    """A slice that is filled stays so, and so do records, forgotten items and those in flight."""
    with any_server.client() as admin:
        admin.flushall()
    UriFilter.open("news", redis=late.url, archive=folder).close()
    check(news, any_server)


def test_checkpoint(late, news, any_server, folder):
    """What is written is whole, although earlier steps come again."""
    with UriFilter.open("news", redis=late.url, archive=folder) as again:
        again.insert_many(LATER)
        for _ in range(2):
            again.checkpoint(full=True)
    with any_server.client() as admin:
        admin.flushall()
    UriFilter.open("news", redis=any_server.url, archive=folder).close()
    check(news, any_server, LATER)


def test_rotate(late, news, any_server, folder):
    """Each item stays for its periods, and nothing turns twice."""
    if news.config.period is None:
        pytest.skip("it has no periods")
    with UriFilter.open("news", redis=late.url, archive=folder) as again:
        epoch = again.epoch()
        again.insert_many(LATER)
        again.rotate()
        assert again.epoch() == epoch + 1
    check(news, any_server, LATER)


def test_union(late, news, any_server, folder):
    """Items of another filter come once, and none goes."""
    with UriFilter.create("other", redis=any_server.url, **news.config.settings) as other:
        other.insert_many(LATER)
    with UriFilter.open("news", redis=late.url, archive=folder) as again:
        again.union("other")
    check(news, any_server, LATER)


def test_made_and_dropped(late, any_server, folder):
    """Each filter of a name is whole, and leaves nothing behind."""
    options = {"redis": late.url, "archive": folder, "shards": 2, "capacity": 2000}
    for number in range(3):
        with UriFilter.create("news", **options) as made:
            assert all(made.insert_many(OLD))
            made.checkpoint()
            if number < 2:
                late.forget()  # a creation that comes after its drop makes an empty filter: opening it says so
                made.drop()
    with UriFilter.open("news", redis=any_server.url, archive=folder) as again:
        assert 0 not in again.ages(OLD)
    with any_server.client() as admin:
        assert not [key for key in admin.keys("*") if b"merging" in key]
