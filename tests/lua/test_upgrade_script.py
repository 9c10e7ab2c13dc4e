"""The script that converts a shard from format 1: what it writes, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest
from redis.exceptions import ResponseError
from support.shard import KEYS, Shard, geometry, md5
from support.states import dumped

from urifilter_redis.protocol import calls

A, B, C = (md5(text) for text in (b"a", b"b", b"c"))
CALL_ID = "0123456789abcdef/0/1/{deadline}"


@pytest.fixture
def shard(server):
    """A shard of format 1 that has seen A and B, and has forgotten B."""
    with server.client() as client:
        made = Shard(client, geometry("blocked", 12, 100, format=1))
        made.ask("insert", A + B)
        made.ask("forget", B)
        yield made


def upgrade(shard, number=0):
    return calls.upgrade(dataclasses.replace(shard.config, format=2), KEYS, number)


def call_id(client) -> str:
    seconds, _ = client.time()
    return CALL_ID.format(deadline=1000 * (seconds + 60))


def test_the_meta_of_an_upgraded_shard(shard):
    """It is that of a shard of format 2 that was made so; all else stays, and a repeat changes nothing."""
    before = shard.meta()
    assert shard.call(upgrade(shard)) == 1
    newer = dataclasses.replace(shard.config, format=2)
    made = newer.to_meta(0, "idle")
    assert shard.meta() == before | dict(zip(made[::2], made[1::2], strict=True)) | {"inserted": before["inserted"]}
    after = dumped(shard.client)
    assert shard.call(upgrade(shard)) == 0
    assert after == dumped(shard.client)
    assert shard.ask("contains", A + B + C) == [1, 0, 0]


def test_forgotten_digests_without_a_noted_change(shard):
    """Restores of format 1 left them so: an upgraded shard looks for them, and a checkpoint sees no change."""
    shard.client.hdel(KEYS.meta, "changed")
    assert shard.call(upgrade(shard)) == 1
    assert shard.state().changed == 0
    assert shard.ask("contains", A + B) == [1, 0]
    assert shard.ask("insert", A + B) == [1, 0]


def test_nothing_forgotten(server):
    """Without forgotten digests no change is noted, so that calls need not look for any."""
    with server.client() as client:
        made = Shard(client, geometry("blocked", 12, 100, format=1))
        assert made.call(upgrade(made)) == 1
        assert "changed" not in made.meta()


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("phase", "restoring", "RESTORING"),
        ("phase", "dropping", "NOFILTER"),
        ("phase", "creating", "BADPHASE"),
        ("uid", "f" * 16, "MISMATCH"),
        ("format", "4", "FORMAT"),
        ("format", "", "FORMAT"),
        ("layout", "classic", "BADARG"),
        ("k", "8", "BADARG"),
        ("shard", "1", "BADARG"),
    ],
)
def test_refusals(shard, field, value, word):
    """Another filter or shard, a newer format, and phases in which the shard is not whole: nothing is written."""
    shard.client.hset(KEYS.meta, field, value)
    refused(shard, word)


def test_no_filter(shard):
    """NOFILTER, and no key comes to be."""
    shard.client.flushall()
    refused(shard, "NOFILTER")


def refused(shard, word) -> None:
    before = dumped(shard.client)
    with pytest.raises(ResponseError, match=f"^{word} "):
        shard.call(upgrade(shard))
    assert before == dumped(shard.client)


def test_rotating(shard):
    """A rotation that is under way goes on after the upgrade: its fields stay."""
    shard.client.hset(KEYS.meta, mapping={"phase": "rotating", "token": "ab", "pieces": "1"})
    assert shard.call(upgrade(shard)) == 1
    state = shard.state()
    assert (state.phase, state.token, state.pieces) == ("rotating", "ab", 1)


@pytest.mark.parametrize("items", [C, B + C, A], ids=["one new", "two new", "none new"])
def test_records_answer_after_the_upgrade(shard, items):
    """A repeat of a call of format 1 gets the recorded answers: new ones, and those of a call that changed nothing."""
    the_id = call_id(shard.client)
    first = shard.ask("insert", items, the_id)
    shard.call(upgrade(shard))
    before = dumped(shard.client)
    assert first == shard.ask("insert", items, the_id)
    assert before == dumped(shard.client)


@pytest.mark.parametrize("items", [C, B + C, A], ids=["one new", "two new", "none new"])
def test_newer_records_answer_in_format_1(shard, items):
    """An archive may have records of format 2 beside a registration of format 1, and restore both."""
    older = shard.meta()
    shard.call(upgrade(shard))
    the_id = call_id(shard.client)
    first = shard.ask("insert", items, the_id)
    shard.client.hset(KEYS.meta, mapping={"format": "1", "layout": older["layout"]})
    shard.client.hdel(KEYS.meta, "fixed")
    before = dumped(shard.client)
    assert first == shard.ask("insert", items, the_id)
    assert before == dumped(shard.client)
    with pytest.raises(ResponseError, match="^BADARG this call id was used for other items"):
        shard.ask("insert", md5(b"d"), the_id)
