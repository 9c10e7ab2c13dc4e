"""Digests and seeds."""

from __future__ import annotations

import hashlib

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis.bloom.digest import HASHES, hasher, new_seed, shard_of, shards_of, words


def test_known_md5():
    """The published digest."""
    assert hasher("md5", "")([b"https://www.baidu.com/"])[0].hex() == "e81c1f5749545c5f7d247b3a100ffe62"


@given(st.binary(), st.integers(0, 2**32 - 1))
def test_mmh3(data, seed):
    """MurmurHash3 x64 128 with the seed."""
    assert hasher("mmh3", str(seed))([data, b""])[0] == mmh3.mmh3_x64_128_digest(data, seed)


@given(st.binary(), st.binary(min_size=16, max_size=16))
def test_blake2b(data, key):
    """Keyed BLAKE2b of 16 bytes."""
    assert hasher("blake2b", key.hex())([data])[0] == hashlib.blake2b(data, digest_size=16, key=key).digest()


@pytest.mark.parametrize("name", HASHES)
def test_digests_are_16_bytes(name):
    """Of the empty item too."""
    assert [len(d) for d in hasher(name, new_seed(name))([b"", b"a"])] == [16, 16]


def test_seeds_are_random():
    """Two filters have different seeds; md5 has none."""
    assert new_seed("mmh3") != new_seed("mmh3")
    assert new_seed("blake2b") != new_seed("blake2b")
    assert new_seed("md5") == ""


@pytest.mark.parametrize(
    ("name", "seed", "text"), [("mmh3", 7, "7"), ("mmh3", "007", "7"), ("blake2b", "AB" * 16, "ab" * 16)]
)
def test_given_seeds(name, seed, text):
    """A seed that is given is taken, in its one spelling."""
    assert new_seed(name, seed) == text


@pytest.mark.parametrize(
    ("name", "seed"), [("mmh3", -1), ("mmh3", 2**32), ("mmh3", "x"), ("md5", 1), ("blake2b", "ab"), ("sha1", None)]
)
def test_wrong_seeds(name, seed):
    """A seed that the hash cannot take is refused."""
    with pytest.raises(ValueError, match=r"seed|hash is one of"):
        new_seed(name, seed)


def test_no_such_hash():
    """The message lists those there are."""
    with pytest.raises(ValueError, match="mmh3, md5, blake2b"):
        hasher("sha1", "")


@given(st.binary(min_size=16, max_size=16), st.integers(1, 4096))
def test_shard_is_the_top_of_the_last_word(digest, shards):
    """Each shard has a range of the top 12 bits of d3, and the ranges are as even as can be."""
    x = words(digest)[3] >> 20
    shard = shard_of(digest, shards)
    assert shard * 4096 <= x * shards < (shard + 1) * 4096


@given(st.lists(st.binary(min_size=16, max_size=16)), st.integers(1, 4096) | st.sampled_from([2, 4, 16, 256]))
def test_shards_of_many(digests, shards):
    """As of each alone."""
    assert list(shards_of(digests, shards)) == [shard_of(digest, shards) for digest in digests]
