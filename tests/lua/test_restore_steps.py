"""Restores and checkpoints, step by step: what is newer stays, and a half-written shard stays closed."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.protocol import calls

A, B = md5(b"a"), md5(b"b")


@pytest.fixture
def shard(server):
    with server.client() as client:
        yield Shard(client, geometry("blocked", 12, 100))


def restore(shard, step, token="a", **more):
    return shard.call(calls.restore(step, shard.config.uid, KEYS, token, **more))


def arrange(shard, token="a") -> None:
    restore(shard, "arrange", token, fields=["before", "idle", "worked", "0"], names=["today", "today"])


def phase(shard) -> bytes:
    return shard.client.hget(KEYS.meta, "phase")


@pytest.mark.parametrize("there", ["older", "newer", "none"])
def test_the_later_record_of_a_slot_stays(shard, there):
    """Whichever side has it: else the slot's last call, whose reply was lost, would be refused or answered "seen"."""
    slot, records, ids = "0123456789abcdef/0", {"none": None}, [shard.call_id(sequence=n) for n in (9, 10)]
    for name, item, call_id in zip(("older", "newer"), (A, B), ids, strict=True):
        assert shard.ask("insert", item, call_id) == [0]
        records[name] = shard.client.hget(KEYS.replies, slot)
    shard.client.delete(KEYS.replies)
    if records[there]:
        shard.client.hset(KEYS.replies, slot, records[there])
    archived = "older" if there == "newer" else "newer"
    restore(shard, "begin", timeline="")
    data = [slot, records[archived]]
    shard.call(calls.refill("replies", shard.config.uid, KEYS, "a", number=1, data=data))
    assert shard.client.hget(KEYS.replies, slot) == records["newer"]
    assert shard.ask("insert", B, ids[1]) == [0]


def test_cancelled_before_it_is_arranged(shard):
    """Nothing was written, so the shard is again as it was, and answers."""
    shard.ask("insert", A)
    restore(shard, "begin", timeline="")
    restore(shard, "cancel")
    assert phase(shard) == b"idle"
    assert shard.ask("insert", A + B) == [1, 0]


def test_cancelled_after_it_was_arranged(shard):
    """Its slices may be half full: it answers nobody "new", and the next restorer may begin at once."""
    shard.ask("insert", A)
    restore(shard, "begin", timeline="")
    arrange(shard)
    shard.client.hset(KEYS.meta, "restored", 0)  # the first restorer has been silent for long
    restore(shard, "begin", "b")
    restore(shard, "cancel", "b")
    assert phase(shard) == b"restoring"
    with pytest.raises(ResponseError, match="^RESTORING "):
        shard.ask("insert", B)
    restore(shard, "begin", "c")
    assert shard.client.hget(KEYS.meta, "restorer") == b"c"


def test_the_number_of_a_checkpoint(shard):
    """Above the last ones of the archive and of Redis: by a lower number a server that came back older is known."""
    for archived, made in ((0, 1), (5, 6), (2, 7)):
        shard.call(calls.checkpoint("begin", shard.config.uid, KEYS, archived))
        assert shard.client.hget(KEYS.meta, "checkpoint") == b"%d" % made
