"""Restores and checkpoints, step by step: what is newer stays, and a half-written shard stays closed."""

from __future__ import annotations

from itertools import chain

import pytest
from redis.exceptions import ResponseError
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.protocol import calls, claims

A, B, C = md5(b"a"), md5(b"b"), md5(b"c")


@pytest.fixture
def shard(client):
    return Shard(client, geometry("blocked", 12, 100))


def restore(shard, step, token="a", **more):
    return shard.call(calls.restore(step, shard.config.uid, KEYS, token, **more))


def arrange(shard, token="a") -> None:
    fields = ["before", "idle", "worked", "0"]
    restore(shard, "arrange", token, number=1, fields=fields, names=["today", "today"])


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
    archived, recorded = "older" if there == "newer" else "newer", shard.now()
    while shard.now() == recorded:  # of this very millisecond they would count as of its beginning
        pass
    restore(shard, "begin", timeline="")
    data = [slot, records[archived]]
    shard.call(calls.refill("replies", shard.config.uid, KEYS, "a", number=1, data=data))
    assert shard.client.hget(KEYS.replies, slot) == records["newer"]
    restore(shard, "cancel")
    assert shard.ask("insert", B, ids[1]) == [0]


def lose_items(shard) -> None:
    """Bring the records back by a restore, and no items: as of calls that came after the bitmaps were read."""
    records = shard.client.hgetall(KEYS.replies)
    empty = bytes(shard.client.strlen(KEYS.slice("today")))
    shard.client.delete(KEYS.replies)
    restore(shard, "begin", timeline="")
    arrange(shard)
    shard.client.set(KEYS.slice("today"), empty)
    data = list(chain.from_iterable(records.items()))
    shard.call(calls.refill("replies", shard.config.uid, KEYS, "a", number=2, data=data))
    with pytest.raises(ResponseError, match="^RESTORING "):  # the answer is not given while its items are missing
        shard.ask("insert", A + B + C, shard.call_id())
    restore(shard, "finish", number=3, fields=["phase", "idle"], names=["today"])


LAYOUTS = {"blocked": (12, 100), "classic": (7, 9000), "counting": (7, 9000)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("clock", ["right", "ahead"])
def test_a_record_without_its_items(client, layout, clock):
    """A repeat has the recorded answers, and inserts what was new; others are not inserted, and it counts once."""
    shard = Shard(client, geometry(layout, *LAYOUTS[layout]))
    call_id = shard.call_id()
    shard.ask("insert", B)
    assert shard.ask("insert", A + B + C, call_id) == [0, 1, 0]
    if clock == "ahead":  # of the server that wrote the record
        shard.age(0, -60_000)
    lose_items(shard)
    before = shard.state().inserted
    for _ in range(2):
        assert shard.ask("insert", A + B + C, call_id) == [0, 1, 0]
        assert shard.ask("contains", A + B + C) == [1, 0, 1]
    assert shard.state().inserted == before + 2
    shard.ask("forget", A)
    assert shard.ask("insert", A + B + C, call_id) == [0, 1, 0]
    assert shard.ask("contains", A) == [0]  # it was forgotten after that call


def test_a_record_whose_item_is_forgotten_again(shard):
    """Forgotten before the call, and the checkpoint still has it as forgotten: the repeat inserts it anew."""
    shard.ask("insert", A)
    shard.ask("forget", A)
    forgotten = shard.client.zrange(KEYS.forgotten, 0, -1, withscores=True)
    while shard.client.time()[1] % 10_000 < 5_000:  # scores are right to 2 ms
        pass
    call_id = shard.call_id()
    assert shard.ask("insert", A + B + C, call_id) == [0, 0, 0]
    lose_items(shard)
    shard.client.zadd(KEYS.forgotten, dict(forgotten))
    assert shard.ask("insert", A + B + C, call_id) == [0, 0, 0]
    assert shard.ask("contains", A + B + C) == [1, 1, 1]


def test_a_record_of_a_commit_without_its_items(shard):
    """The repeat makes them final: nobody gets them again."""
    holding = claims.Holding("11" * 8, 60_000)
    shard.claim(holding, A + B + C)
    call_id = shard.call_id(slot=1)
    assert shard.commit(holding, A + B + C, call_id) == [0, 0, 0]
    lose_items(shard)
    assert shard.commit(holding, A + B + C, call_id) == [0, 0, 0]
    assert shard.claim(holding, A + B + C) == [1, 1, 1]


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


def test_a_record_of_a_clock_that_was_ahead(shard):
    """Redis kept it, and a restore brought an older bitmap back: the repeat inserts its items again, and says new."""
    call_id, empty = shard.call_id(), bytes(shard.client.strlen(KEYS.slice("today")))
    assert shard.ask("insert", A + B, call_id) == [0, 0]
    shard.age(0, -60_000)
    restore(shard, "begin", timeline="")
    arrange(shard)
    shard.client.set(KEYS.slice("today"), empty)
    restore(shard, "finish", number=2, fields=["phase", "idle"], names=["today"])
    assert shard.ask("insert", A + B, call_id) == [0, 0]
    assert shard.ask("contains", A + B) == [1, 1]


def test_arranged_twice(shard):
    """A repeat of the step, whose reply was lost, renames nothing once more."""
    size = shard.client.strlen(KEYS.slice("today"))
    restore(shard, "begin", timeline="")
    for _ in range(2):
        assert restore(shard, "arrange", number=1, fields=["before", "idle"], names=["today", "history_1"]) == 1
    assert shard.client.strlen(KEYS.slice("history_1")) == size


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_server_that_came_back_older(shard, lost):
    """It lacks the last steps, so the next one is refused before it changes anything; another restore begins anew."""

    def refill(name, number, **more):
        shard.call(calls.refill(name, shard.config.uid, KEYS, "a", number=number, **more))

    def take(number):
        if number == 3:
            restore(shard, "arrange", number=3, fields=["before", "idle"], names=["today", "history_1"])
        elif number == 5:
            restore(shard, "finish", number=5, fields=["phase", "idle"], names=["history_1"])
        else:
            refill("forget", number, data=[number, A])

    def state():
        others = {key: shard.client.dump(key) for key in shard.client.keys() if key != KEYS.meta.encode()}
        return shard.client.hgetall(KEYS.meta), others

    restore(shard, "begin", timeline="")
    for number in range(1, 5 - lost):
        take(number)
    older, saved = state(), {key: shard.client.dump(key) for key in shard.client.keys()}
    for number in range(5 - lost, 5):
        take(number)
    shard.client.delete(*shard.client.keys())
    for key, value in saved.items():
        shard.client.restore(key, 0, value)
    for number in range(6 - lost, 6):
        with pytest.raises(ResponseError, match="^BADPHASE this server has lost steps before this one"):
            take(number)
    assert state() == older
    assert phase(shard) == b"restoring"


def test_a_removal_that_comes_late(shard):
    """The name is another bitmap's by then, which was renamed meanwhile."""
    remove = calls.refill("remove", shard.config.uid, KEYS, "a", number=1, slices=[KEYS.slice("history_1")])
    restore(shard, "begin", timeline="")
    shard.call(remove)
    restore(shard, "arrange", number=2, fields=["before", "idle"], names=["today", "history_1"])
    with pytest.raises(ResponseError, match="^BADPHASE the step comes once more, after a later one"):
        shard.call(remove)
    assert shard.client.exists(KEYS.slice("history_1"))
