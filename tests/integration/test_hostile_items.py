"""Items that somebody made to collide: the harm to a filter whose seed is known, and which filters they cannot harm."""

from __future__ import annotations

import random

import pytest
from support.colliding import item_of, twin_for_every_seed, uris_for_every_seed

from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher, words

pytestmark = pytest.mark.slow

KNOWN = 7
LAYOUTS = ("blocked", "classic")

#: Filters that an attacker does not know: each has a random secret.
SECRET = {"mmh3": {}, "blake2b": {"hash": "blake2b"}}


def made(server, **settings):
    return UriFilter.create("news", redis=server.url, **({"capacity": 10_000, "error_rate": 1e-9} | settings))


def of_one_digest(count: int) -> list[bytes]:
    """Return items of 32 bytes that all have the digest of a page under the known seed."""
    (digest,) = hasher("mmh3", str(KNOWN))([b"https://example.com/page"])
    dice = random.Random(1)
    return [item_of(digest, KNOWN, dice.randbytes(16)) for _ in range(count)]


def of_one_block(number: int) -> list[bytes]:
    """Return 32 items of 16 bytes that under the known seed set all bits of a block of layout blocked."""
    found = []
    for position in range(32):
        word = sum(position << 5 * group for group in range(6))
        digest = b"".join(each.to_bytes(4, "little") for each in (number, word, word, word))
        found.append(item_of(digest, KNOWN))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_known_seed_loses_all_that_collide(any_server, layout):
    """Of 1,000 items with one digest one is new, and a page that was never inserted is seen."""
    items = of_one_digest(1000)
    assert len({*items}) == 1000
    with made(any_server, layout=layout, seed=KNOWN) as news:
        assert news.insert_many(items) == [True] + [False] * 999
        assert news.contains("https://example.com/page")
        assert not news.contains("https://example.com/other")
        assert news.inserted() == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("secret", SECRET)
def test_a_secret_seed_is_not_harmed_by_them(any_server, layout, secret):
    """The same 1,000 items are 1,000 new ones, and the page is not seen."""
    with made(any_server, layout=layout, **SECRET[secret]) as news:
        assert news.insert_many(of_one_digest(1000)) == [True] * 1000
        assert not news.contains("https://example.com/page")


def test_a_known_seed_lets_a_block_be_filled(any_server):
    """After 32 items made for one block, exactly the pages of that block are seen, and none of the others."""
    uris = [f"https://example.com/{number}" for number in range(5000)]
    digests = hasher("mmh3", str(KNOWN))([uri.encode() for uri in uris])
    with made(any_server, capacity=1000, error_rate=1e-4, seed=KNOWN) as news:
        blocks = news.config.units
        items = of_one_block(3)
        assert news.insert_many(items) == [True] * 32
        in_the_block = [words(digest)[0] % blocks == 3 for digest in digests]
        assert news.contains_many(uris) == in_the_block
        assert sum(in_the_block) > 50


def test_a_known_seed_lets_a_whole_filter_be_filled(any_server):
    """32 made items a block make every page seen; as many under a secret seed make no more so than any others do."""
    uris = [f"https://example.com/{number}" for number in range(1000)]
    with made(any_server, capacity=1000, error_rate=1e-4, seed=KNOWN) as news:
        items = [item for number in range(news.config.units) for item in of_one_block(number)]
        assert news.insert_many(items) == [True] * len(items)
        assert all(news.contains_many(uris))
        news.drop()
    with made(any_server, capacity=1000, error_rate=1e-4) as news:
        news.insert_many(items)
        assert sum(news.contains_many(uris)) < 100


def test_some_uris_collide_under_every_seed_of_mmh3(any_server):
    """A secret seed does not help against these: of 1,024 URIs one is new. Only a keyed hash has all as new."""
    uris = uris_for_every_seed(10)
    assert len({*uris}) == 1024
    with made(any_server) as news:
        assert news.insert_many(uris) == [True] + [False] * 1023
        news.drop()
    with made(any_server, hash="blake2b") as news:
        assert news.insert_many(uris) == [True] * 1024


def test_a_page_is_hidden_under_every_seed_of_mmh3(any_server):
    """Of any item of 32 bytes or more there is a twin, in bytes that are seldom text; a keyed hash tells them apart."""
    page = "https://example.com/a-page-that-somebody-wants-to-hide"
    twin = twin_for_every_seed(page.encode())
    assert twin != page.encode()
    for settings in ({}, {"layout": "classic"}, {"hash": "blake2b"}):
        with made(any_server, **settings) as news:
            assert news.insert(twin)
            assert news.insert(page) is ("hash" in settings)
            news.drop()
