"""A repeat whose caller waits for replicas (+ behind the call id) writes its record again, and answers as before."""

from __future__ import annotations

import pytest
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.protocol.claims import Holding

HOLDING = Holding("a1" * 8, 60_000)
ITEMS = md5(b"a") + md5(b"b")
COMMANDS = ("insert", "forget", "remove", "claim", "commit", "release", "reclaim")


@pytest.fixture
def shard(client):
    made = Shard(client, geometry("counting", 14, 1000))
    made.claim(HOLDING, [md5(b"something else")])  # the first changes the scripts
    yield made
    client.config_set("maxmemory", 0)


def ready(shard: Shard, command: str, *, changes: bool) -> None:
    """Bring the shard into the state in which the command changes something, or nothing."""
    wanted = {"insert": "", "claim": "", "forget": "insert", "remove": "insert", "commit": "claim", "release": "claim"}
    others = {"insert": "insert", "claim": "insert", "commit": "insert"}
    before = wanted.get(command, "lapsed") if changes else others.get(command, "")
    if before == "insert":
        shard.ask("insert", ITEMS)
    elif before:
        other = HOLDING if before == "claim" else Holding("b2" * 8, 60_000)
        shard.claim(other, ITEMS)
        if before == "lapsed":
            shard.client.zadd(KEYS.holders, {bytes.fromhex(other.holder): 1})


def writes(shard: Shard) -> int:
    return shard.client.info("persistence")["rdb_changes_since_last_save"]


@pytest.mark.sampled
@pytest.mark.parametrize("full", [False, True], ids=["", "maxmemory"])
@pytest.mark.parametrize("changes", [True, False], ids=["changed", "unchanged"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_repeat_writes_its_record_again(shard, command, changes, full):
    """With + it writes, also out of memory, whatever the call did; the answers, and the record, stay as they were."""
    ready(shard, command, changes=changes)
    call_id = shard.call_id()
    made = {
        waits: shard.made(command, b"" if command == "reclaim" else ITEMS, call_id + waits, HOLDING, kept=[b"", b""])
        for waits in ("", "+")
    }
    first = shard.call(made["+"])
    record = shard.client.hget(KEYS.replies, call_id.rsplit("/", 2)[0])
    repeated = shard.call(made[""])  # of a call that changed nothing: what was new counts as seen
    if full:
        shard.client.config_set("maxmemory", 1)
    before = writes(shard)
    assert shard.call(made["+"]) == repeated
    assert writes(shard) > before
    assert shard.client.hget(KEYS.replies, call_id.rsplit("/", 2)[0]) == record
    assert command in {"claim", "release", "reclaim"} or repeated == first


def test_what_stands_behind_a_call_id(shard):
    """BADARG: more than one +, or anything else."""
    for wrong in ("++", "-", "+1", " "):
        with pytest.raises(Exception, match="BADARG a call id is"):
            shard.ask("insert", ITEMS, shard.call_id() + wrong)
