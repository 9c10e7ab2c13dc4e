"""How many shards each master of a Redis Cluster has."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tags import first_slots as dealt
from support.tags import slot_of, spread_tag

from urifilter_redis.protocol.routing import first_slots, shards_by_master

names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


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
