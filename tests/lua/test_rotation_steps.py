"""The steps of a rotation, each refused when it is not its turn; a refusal changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
from redis.exceptions import ResponseError
from support.shard import KEYS, Shard, geometry, md5
from support.states import dumped

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.flows.turn import names_after
from urifilter_redis.protocol import calls

TOKEN, OTHER = "a" * 16, "b" * 16
A, B = md5(b"a"), md5(b"b")


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture
def shard(client):
    """A rolling shard of three slices that has seen A."""
    config = geometry("blocked", 8, 64, retention="rolling", slices=3, period="1d", expire_after="first-seen")
    shard = Shard(client, dataclasses.replace(config, archive="redis"))
    shard.ask("insert", A)
    return shard


def turn(shard, step, *, token=TOKEN, state=None, size=None):
    state, config = state or shard.state(), shard.config
    new = Slice("today", config.units, size or config.bytes)
    names = names_after(state, config.retention, config.slices)
    return calls.turn(step, KEYS, state, token, new, names=names)


def build(shard, step, state=None, **more):
    return calls.build(step, KEYS, state or shard.state(), **{"number": 0} | more)


def refused(shard, call, word="BADPHASE"):
    before = dumped(shard.client)
    with pytest.raises(ResponseError, match=f"^{word} "):
        shard.call(call)
    assert before == dumped(shard.client)


def turned(shard):
    before = shard.state()
    for step in ("allocate", "turn"):
        shard.call(turn(shard, step))
    shard.refresh()
    return before


def test_turn_needs_its_bitmap(shard):
    """Nothing turns before the next bitmap is allocated in full."""
    refused(shard, turn(shard, "turn"))
    shard.client.setrange(KEYS.next, 100, b"\0")
    refused(shard, turn(shard, "turn"))
    refused(shard, turn(shard, "sleep"), "BADARG")


def test_turn_once(shard):
    """A second turn from the same epoch, or while the first is unfinished, is refused, whoever's it is."""
    before = turned(shard)
    for token in (TOKEN, OTHER):
        for step in ("allocate", "turn"):
            refused(shard, turn(shard, step, state=before, token=token))
            refused(shard, turn(shard, step, token=token))
    assert shard.state().token == TOKEN
    assert shard.ask("contains", A + B) == [2, 0]


def test_allocating_again_leaves_it(shard):
    """Allocate is idempotent, and mends a bitmap of a wrong length."""
    shard.client.set(KEYS.next, b"left over")
    for _ in range(2):
        shard.call(turn(shard, "allocate"))
        assert shard.client.strlen(KEYS.next) == shard.config.bytes
    assert shard.client.bitcount(KEYS.next) == 0


def test_store_and_archived_in_their_order(shard):
    """Only the rotation under way writes, and only until the slice is said to be in the archive."""
    refused(shard, calls.store("write", KEYS, shard.state(), 0, "0", b"data"))
    refused(shard, build(shard, "archived"))
    before = turned(shard)
    refused(shard, calls.store("write", KEYS, before, 0, "0", b"data"))
    refused(shard, calls.store("write", KEYS, dataclasses.replace(shard.state(), token=OTHER), 0, "0", b"data"))
    shard.call(calls.store("write", KEYS, shard.state(), 0, "0", b"data"))
    refused(shard, build(shard, "piece", data=b"\0" * 8))
    refused(shard, build(shard, "finish", number=3))
    shard.call(build(shard, "archived"))
    refused(shard, build(shard, "archived"))
    refused(shard, calls.store("write", KEYS, shard.state(), 0, "0", b"other"))
    refused(shard, calls.store("forget", KEYS, shard.state(), 0), "BADARG")


def test_pieces_in_their_order(shard):
    """Each piece once, the next one only; nothing is finished before the last."""
    turned(shard)
    shard.call(build(shard, "archived"))
    state = shard.state()
    half = shard.config.bytes // 2
    refused(shard, build(shard, "piece", number=1, offset=half, data=b"\xff" * half))
    shard.call(build(shard, "piece", number=0, data=b"\xff" * half))
    refused(shard, build(shard, "piece", number=0, data=b"\xff" * half))
    refused(shard, build(shard, "finish", number=2))
    refused(shard, build(shard, "piece", number=1, offset=half + 1, data=b"\xff" * half), "BADARG")
    refused(shard, build(shard, "piece", dataclasses.replace(state, token=OTHER), number=1, offset=half, data=b"x"))
    shard.call(build(shard, "piece", number=1, offset=half, data=b"\xff" * half))
    refused(shard, build(shard, "piece", number=2, offset=0, data=b"\xff" * (shard.config.bytes + 1)), "BADARG")
    shard.call(build(shard, "finish", number=2))
    shard.refresh()
    assert [each.name for each in shard.view.slices] == ["history", "today"]
    assert shard.ask("contains", A + B) == [2, 2]  # all bits of history are set
    refused(shard, build(shard, "finish", state, number=2))
    assert shard.state().phase == "idle"


@pytest.mark.parametrize("length", [0, -1, 1], ids=["gone", "shorter", "longer"])
def test_no_step_over_a_damaged_slice(server, length):
    """LOST: a slice of another length than in meta is not closed, nor is the next history built beside it."""
    with server.client() as client:
        shard = Shard(client, geometry("blocked", 8, 64, retention="rolling", slices=3, period="1d"))

        def damaged(name):
            client.set(KEYS.slice(name), bytes(shard.config.bytes + length) if length else b"")

        shard.call(turn(shard, "allocate"))
        whole = client.get(KEYS.slice("today"))
        damaged("today")
        refused(shard, turn(shard, "turn"), "LOST")
        client.set(KEYS.slice("today"), whole)
        shard.call(turn(shard, "turn"))
        damaged("history_1")
        refused(shard, build(shard, "archived"), "LOST")


@pytest.mark.parametrize("phase", ["restoring", "dropping"])
def test_no_step_in_other_phases(shard, phase):
    """While the filter is restored or dropped nothing turns."""
    turned(shard)
    state = shard.state()
    shard.client.hset(KEYS.meta, "phase", phase)
    word = {"restoring": "RESTORING", "dropping": "NOFILTER"}[phase]
    refused(shard, turn(shard, "allocate", state=state), word)
    refused(shard, build(shard, "archived", state), word)
    refused(shard, calls.store("write", KEYS, state, 0, "0", b"data"), word)


def test_another_filter_of_the_name(shard):
    """Steps of a rotator that has not noticed that the filter was created anew."""
    state = dataclasses.replace(shard.state(), uid="f" * 16)
    refused(shard, turn(shard, "allocate", state=state), "MISMATCH")
    refused(shard, calls.store("delete", KEYS, state, 0), "MISMATCH")
    refused(shard, calls.expire("f" * 16, KEYS), "MISMATCH")
    shard.client.delete(KEYS.meta)
    refused(shard, turn(shard, "allocate", state=state), "NOFILTER")
    refused(shard, calls.expire("f" * 16, KEYS), "NOFILTER")


def test_forgotten_expire_some_at_a_time(shard):
    """What was forgotten before the oldest epoch goes; the rest stays."""
    shard.client.zadd(KEYS.forgotten, {b"%16d" % i: i // 4000 for i in range(12_000)})
    shard.client.hset(KEYS.meta, "oldest", 2)
    removed = [shard.call(calls.expire(shard.config.uid, KEYS)) for _ in range(3)]
    assert removed == [5000, 3000, 0]
    assert shard.client.zcount(KEYS.forgotten, 2, 2) == 4000


def test_merge_only_in_its_epoch(shard):
    """A union whose target has turned, or rotates, is told."""
    state = shard.state()
    assert shard.call(calls.merge("piece", shard.config, KEYS, state, 1, 0, b"\1")) == 1
    assert shard.call(calls.merge("piece", shard.config, KEYS, state, 1, 0, b"\1")) == 0
    refused(shard, calls.merge("piece", shard.config, KEYS, state, 2, 0, b"\1"), "BADARG")
    refused(shard, calls.merge("piece", shard.config, KEYS, state, 1, shard.config.bytes, b"\1"), "BADARG")
    turned(shard)
    refused(shard, calls.merge("piece", shard.config, KEYS, state, 1, 0, b"\1"))
    refused(shard, calls.merge("piece", shard.config, KEYS, shard.state(), 1, 0, b"\1"))


def test_a_union_lowers_no_count(server):
    """A count by the fill may be too low: ``len`` would say that items were lost, in today and in closed slices."""
    with server.client() as client:
        shard = Shard(client, geometry("blocked", 8, 64, retention="ring", slices=3, period="1d", write="newest"))
        shard.ask("insert", A + B)
        turned(shard)
        shard.ask("insert", md5(b"c") + md5(b"d") + md5(b"e"))
        for count, counts in ((1, (2, 3)), (7, (7, 7))):
            for slice_ in (1, 2):
                shard.call(calls.merge("count", shard.config, KEYS, shard.state(), slice_, count))
            state = shard.state()
            assert (state.closed[0].inserted, state.inserted) == counts


def test_a_union_counts_what_it_adds_once(server):
    """With last-seen: what a union adds counts as written and as items, in today and in closed slices."""
    with server.client() as client:
        more = {"retention": "ring", "slices": 3, "period": "1d", "write": "newest", "expire_after": "last-seen"}
        shard = Shard(client, geometry("blocked", 8, 64, **more))
        shard.ask("insert", A + B)
        turned(shard)
        assert shard.ask("insert", A + md5(b"c")) == [2, 0]
        for slice_, count in ((1, 5), (2, 4), (1, 3)):
            shard.call(calls.merge("count", shard.config, KEYS, shard.state(), slice_, count))
        state = shard.state()
        assert [(each.inserted, each.new) for each in (*state.closed, state)] == [(5, 4), (4, 4)]


def test_a_turn_because_a_period_is_over(shard):
    """Asked to turn only then, the shard does so by its own server's clock; asked otherwise, in any case."""
    state, new = shard.state(), shard.view.slices[-1]

    def due(step, period):
        return calls.turn(step, KEYS, shard.state(), TOKEN, new, period=period, names=["history_1", "today"])

    for step in ("allocate", "turn"):
        refused(shard, due(step, 3_600_000))
    shard.client.hset(KEYS.meta, "opened", state.opened - 3_600_001)
    for step in ("allocate", "turn"):
        shard.call(due(step, 3_600_000))
    assert shard.state().epoch == 1


@pytest.mark.parametrize(
    ("ahead", "turns"), [("", False), (" {late}", False), (" {old}", True), (" {late} {old}", True)]
)
def test_a_turn_after_a_clock_that_was_ahead(shard, ahead, turns):
    """A time of opening in the future counts as now; if an earlier one is kept that has passed, that one counts."""
    seconds = shard.client.time()[0] * 1000
    late, old, new = seconds + 9_000_000, seconds - 3_600_001, shard.view.slices[-1]
    shard.client.hset(KEYS.meta, mapping={"opened": late, "ahead": ahead.format(late=late + 1, old=old)})
    call = calls.turn("allocate", KEYS, shard.state(), TOKEN, new, period=3_600_000, names=["history_1", "today"])
    if turns:
        assert shard.call(call) == 1
    else:
        refused(shard, call)
