"""Holders, delay holders, leases and replies of the scripts of claims."""

from __future__ import annotations

import pytest

from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.protocol import claims
from urifilter_redis.protocol.call_ids import KEYED, KEYED_CLAIMS, PARTS, CallKey


def test_holders_and_delay_holders():
    """16 hex digits, drawn anew; a holder's first byte is never 0, and a delay holder's always is."""
    holders = {claims.new_holder() for _ in range(20_000)}  # of 255 first bytes none is missing, but once in 10³² runs
    delaying = {claims.new_delay_holder() for _ in range(20_000)}
    assert len(holders) == len(delaying) == 20_000
    assert {len(bytes.fromhex(each)) for each in holders | delaying} == {8}
    assert {each[:2] for each in delaying} == {"00"}
    assert "00" not in {each[:2] for each in holders}
    assert {"01", "ff"} <= {each[:2] for each in holders}


@pytest.mark.parametrize(
    ("shards", "seconds"), [(1, 60), (18, 60), (64, 60), (128, 128), (512, 512), (1024, 600), (4096, 600)]
)
def test_default_lease(shards, seconds):
    """A minute up to 64 shards, then a second a shard, at most ten minutes."""
    assert claims.default_lease(shards) == seconds
    assert claims.LEAST_LEASE <= seconds <= claims.MOST_LEASE


def test_entries():
    """Four values an entry; bytes as they are."""
    reply = [b"\xff" * 16, 1, 2, b"sitem", b"\0" * 16, 0, 65535, b""]
    assert claims.entries_of(reply) == [
        claims.Entry(b"\xff" * 16, 1, 2, b"sitem"),
        claims.Entry(b"\0" * 16, 0, 65535, b""),
    ]
    assert claims.entries_of([]) == []


@pytest.mark.parametrize("reply", [None, 7, b"OK", [1, 2, 3], [b"x"] * 5])
def test_no_entries(reply):
    """A reply that is none of reclaim is told."""
    with pytest.raises(ServerUnavailable, match="is there a Redis"):
        claims.entries_of(reply)


def test_slots_of_keyed_calls():
    """Every command, slot and part has its own; those of insert, forget and remove are as they were before claims."""
    last = 999_999_999
    slots = {
        CallKey(f"0123456789abcdef/{slot}/1").call_id(command, b"", part, 0).slot
        for command in KEYED + KEYED_CLAIMS
        for slot in (0, 1, 2, 7, last - 1, last)
        for part in (0, 1, PARTS - 1)
    }
    assert len(slots) == 7 * 6 * 3
    assert max(slots) < 2**53  # Lua has doubles
    for number, command in enumerate(("insert", "forget", "remove")):
        made = CallKey("0123456789abcdef/5/1").call_id(command, b"", 9, 0)
        assert made.slot == (5 * 3 + number) * 100_000 + 9
    made = CallKey("0123456789abcdef/5/1").call_id("claim", b"", 9, 0)
    assert made.slot == 400_000_000_000_000 + 20 * 100_000 + 9
    longest = CallKey(f"0123456789abcdef/{last}/{10**15 - 1}").call_id("reclaim", b"", PARTS - 1, 10**13 - 60_001)
    assert len(str(longest)) <= 80


def test_other_keys():
    """A text of another form names the command too."""
    ids = {CallKey("order 5").call_id(command, b"items", 0, 0).client for command in KEYED + KEYED_CLAIMS}
    assert len(ids) == len(KEYED + KEYED_CLAIMS)
