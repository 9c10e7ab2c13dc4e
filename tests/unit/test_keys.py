"""The names of keys: which hash tag a shard has, and how tags lie over the slots and masters of a Redis Cluster."""

from __future__ import annotations

import binascii
import json
from bisect import bisect
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.by_hand import config_of, meta_of
from support.tags import first_slots as dealt
from support.tags import slot_of, spread_tag

from urifilter_redis.bloom.digest import shard_of as shard_of_digest
from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.protocol.calls import ITEMS_A_SEGMENT, SegmentNames
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.protocol.routing import first_slots, shards_by_master
from urifilter_redis.protocol.scripts import vectors

KNOWN = json.loads(vectors())["tags"]

names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


def tag_of(keys: FilterKeys, shard: int) -> str:
    return keys.shard(shard).base.removeprefix("urifilter:{").removesuffix("}:")


@pytest.mark.sampled
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['name'][:20]} {known['shards']}")
def test_known_tags(known):
    """The known answers, which came from CLUSTER KEYSLOT; the model of the tests has them, too."""
    keys = FilterKeys("urifilter", known["name"], known["shards"])
    assert slot_of(f"{known['name']}:0") == known["slot_of_shard_0"]
    for shard, tag in known["tags"].items():
        assert tag_of(keys, int(shard)) == tag
        if known["shards"] <= 256:  # the model is slow
            assert spread_tag(known["name"], int(shard), known["shards"]) == tag


@pytest.mark.slow
@given(names, st.sampled_from([1, 2, 3, 5, 18, 48, 63, 64, 256, 1024]), st.data())
def test_tags_are_those_of_the_model(name, shards, data):
    """For any name and number of shards; shard 0 has the same keys whatever that number is."""
    keys = FilterKeys("urifilter", name, shards)
    shard = data.draw(st.integers(0, shards - 1))
    assert tag_of(keys, shard) == spread_tag(name, shard, shards)
    assert keys.shard(0) == FilterKeys("urifilter", name).shard(0)


def test_no_two_shards_have_one_tag():
    """Not those of one filter, nor those of filters whose names end like a shard and its salt."""
    alike = ["news", "news-1", "news-1-2", "news.1", "1", "1-1", "-1", "1-"]
    whose: dict[str, tuple[str, int]] = {}
    for name in alike:
        for shards in (2, 3, 18, 64, 256):
            keys = FilterKeys("urifilter", name, shards)
            for shard in range(shards):
                assert whose.setdefault(keys.shard(shard).base, (name, shard)) == (name, shard)
                assert keys.shard(shard) is keys.shard(shard)  # the search for a salt is done once


def test_whose_a_key_is():
    """A shard is found again in any of its keys, whatever its salt; keys of other filters are none of this one's."""
    keys = FilterKeys("a:b", "news")
    for shards in (3, 18):
        for shard in map(FilterKeys("a:b", "news", shards).shard, range(shards)):
            for key in (shard.meta, shard.slice("today_next"), shard.archived(7)):
                assert key.startswith(keys.beginning)
                assert keys.shard_of(key) == shard
    others = ["a:{news:0}:meta", "a:b:{news-1:0}:meta", "a:b:{news:1-}:meta", "a:b:{news:-1}:meta", "a:b:{news:1-2-3}:"]
    for key in [*others, "a:b:{news:x}:meta", "a:b:{news:1-2", "a:b:{news:\u0661}:meta", "x a:b:{news:1}:meta"]:
        assert keys.shard_of(key) is None


def test_other_shards_than_0_have_no_keys_before_the_filter_is_known():
    """A key that is made of a guess would be that of an empty shard, in which every item is new."""
    keys = FilterKeys("urifilter", "news")
    for shard in (1, -1):
        with pytest.raises(IndexError):
            keys.shard(shard)
    with pytest.raises(IndexError):
        keys.of(18).shard(18)


def test_what_meta_tells():
    """The number of shards; nothing if it is damaged."""
    keys, meta = FilterKeys("urifilter", "news"), meta_of(config_of(shards=5))
    assert keys.of_meta(meta) == keys.of(5)
    assert keys.of_meta(meta | {"shards": "x"}) is None
    assert keys.of_meta({}) is None


def tags_in(name: str, shards: int, masters: int) -> list[int]:
    """How many shards each master has, if redis-cli made the cluster."""
    keys, first = FilterKeys("urifilter", name, shards), dealt(masters)
    slots = (binascii.crc_hqx(tag_of(keys, shard).encode(), 0) % 16384 for shard in range(shards))
    found = Counter(bisect(first, slot) for slot in slots)
    return [found[master + 1] for master in range(masters)]


@pytest.mark.sampled
@pytest.mark.parametrize("masters", [3, 6, 100])
@pytest.mark.parametrize("shards", [1, 2, 18, 48, 64, 256, 4096])
def test_shards_lie_evenly_over_the_masters_of_a_cluster(shards, masters):
    """No master has more than one shard too many."""
    for name in (f"filter-{n}" for n in range(max(4, 5000 // shards))):
        found = tags_in(name, shards, masters)
        assert sum(found) == shards
        assert max(found) <= -(-shards // masters) + 1, (name, found)


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [18, 48])
def test_shards_of_three_masters_are_equally_many(shards):
    """A third of the groups is a third of the slots; but redis-cli rounds slot 5461 away from the first master."""
    for n in range(300):
        keys = FilterKeys("urifilter", f"filter-{n}", shards)
        slots = [binascii.crc_hqx(tag_of(keys, shard).encode(), 0) % 16384 for shard in range(shards)]
        assert Counter(3 * slot // 16384 for slot in slots) == dict.fromkeys(range(3), shards // 3)
        moved = slots.count(5461)
        assert tags_in(keys.name, shards, 3) == [shards // 3 - moved, shards // 3 + moved, shards // 3]


@settings(max_examples=25)
@given(st.lists(names, min_size=1, max_size=2, unique=True), st.integers(1, 18), st.integers(1, 70))
def test_shards_are_counted_as_slot_by_slot(given_names, shards, masters):
    """A brute-force count: the owner of every single slot, and the slot of every tag of the model."""
    ends = [*dealt(masters), 16384]
    owners = [master for master in range(masters) for _ in range(ends[master], ends[master + 1])]
    assert len(owners) == 16384
    found = [0] * masters
    for name in given_names:
        for shard in range(shards):
            found[owners[slot_of(spread_tag(name, shard, shards))]] += 1
    assert shards_by_master(given_names, shards, masters) == found


@pytest.mark.parametrize("masters", [1, 2, 3, 5, 6, 7, 64, 77, 16384])
def test_slots_are_dealt_evenly(masters):
    """Each master has its share of the slots, rounded down or up, and none is left out."""
    firsts = first_slots(masters)
    sizes = [end - first for first, end in zip(firsts, [*firsts[1:], 16384], strict=True)]
    assert (firsts[0], len(firsts), sum(sizes)) == (0, masters, 16384)
    assert {*sizes} <= {16384 // masters, -(-16384 // masters)}
    assert firsts == dealt(masters)


def test_slots_are_dealt_as_redis_cli_does():
    """Known answers of redis-cli 7.0 for 87 masters: it adds in single precision, and rounds one slot the other way."""
    wrong = [(master, slot) for master, slot in enumerate(first_slots(87)) if slot != dealt(87)[master]]
    assert wrong == [(73, 13748)]


@pytest.mark.parametrize("masters", [0, -1, 16385])
def test_impossible_numbers_of_masters(masters):
    """A master without a slot would have nothing."""
    with pytest.raises(ValueError, match="nodes are 1 to 16,384 masters, and not"):
        shards_by_master(["news"], 3, masters)


@given(
    st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=150),
    st.sampled_from([1, 2, 3, 18, 180, 900]),
    st.sampled_from([1, 2, 5, 64]),
    st.booleans(),
)
def test_segments_that_a_call_names(digests, count, shards, near):
    """Those of its items; of many, also such as lie between the first and the last that they may belong to."""
    if near:  # the items of one call of a long list
        digests = [digest[:15] + digests[0][15:] for digest in digests]
    shard = shard_of_digest(digests[0], shards)
    digests = [digest for digest in digests if shard_of_digest(digest, shards) == shard]
    keys = FilterKeys("urifilter", "news", shards).shard(shard)
    view = View((Slice("history_1", 1000, 48_000, 1), Slice("today", 1000, 48_000, count)))
    named = SegmentNames(config_of(shards=shards), keys, view).of(b"".join(digests))
    if count == 1:
        assert named == (keys.slice("history_1"), keys.slice("today"))
        return
    row = [keys.slice(name) for name in view.slices[1].names]
    numbers = [row.index(key) for key in named[1:]]
    needed = {number % count for number in shards_of(digests, shards * count)}
    assert named[0] == keys.slice("history_1")
    assert needed <= set(numbers)
    assert numbers == sorted(set(numbers))
    if len(digests) < ITEMS_A_SEGMENT * len(needed):
        assert set(numbers) == needed
    a_byte = -(-shards * count // 256)  # the client looks at the last byte of a digest
    assert min(needed) - a_byte <= numbers[0]
    assert numbers[-1] <= max(needed) + a_byte
