"""What the scripts refuse; a refusal changes nothing."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from support.shard import KEYS, Shard, geometry, md5, refused
from support.states import dumped

from urifilter_redis.protocol import calls
from urifilter_redis.storage.records import record_time

A, B, C = (md5(text) for text in (b"a", b"b", b"c"))
COMMANDS = ("insert", "contains", "forget")
WRITING = ("insert", "forget")


@pytest.fixture(params=["blocked", "classic"])
def shard(request, client):
    """A shard that has seen A and forgotten nothing."""
    shard = Shard(client, geometry(request.param, 12, 100))
    shard.ask("insert", A)
    return shard


def changed(shard, command, **replaced):
    made = calls.items(command, shard.config, KEYS, shard.view, "-", B)
    args = list(made.args)
    for name, value in replaced.items():
        args[("uid", "call_id", "max_age", "encoding", "items").index(name)] = value
    return dataclasses.replace(made, args=tuple(args))


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_arguments(shard, command):
    """BADARG, with nothing done."""
    wrong = [
        {"encoding": "base64"},
        {"items": b""},
        {"items": b"fifteen bytes.."},
        {"items": b"x" * 16 * 501},
        {"encoding": "hex", "items": "0123"},
        {"encoding": "hex", "items": "g" * 32},
        {"max_age": 1},
        {"call_id": "nonsense"},
        {"call_id": "xyz/0/1/1"},
        {"call_id": "0123456789abcdef/0/1"},
        {"call_id": "0123456789abcdef/0/1/1=0123"},
        {"call_id": "0123456789abcdef/0/1/1=0123456789abcdefg"},
    ]
    for replaced in wrong:
        refused(shard, changed(shard, command, **replaced), "BADARG")


@pytest.mark.parametrize("command", COMMANDS)
def test_another_uid(shard, command):
    """MISMATCH: the filter was dropped and created anew."""
    refused(shard, changed(shard, command, uid="f" * 16), "MISMATCH")


#: What may have happened to a filter, and the word of the refusal.
HAPPENED = {
    "gone": (lambda shard: shard.client.flushall(), "NOFILTER"),
    "being dropped": (lambda shard: shard.call(calls.drop("begin", shard.meta(), KEYS)), "NOFILTER"),
    "being restored": (lambda shard: shard.client.hset(KEYS.meta, "phase", "restoring"), "RESTORING"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("happens", "word"), HAPPENED.values(), ids=HAPPENED)
def test_what_has_happened_to_the_filter(shard, command, happens, word):
    """Nothing is answered about a filter that is not there, or not whole, and no key comes to be."""
    happens(shard)
    refused(shard, changed(shard, command), word)


@pytest.mark.parametrize("command", COMMANDS)
def test_lost_meta(shard, command):
    """LOST: a slice without meta is no empty filter."""
    shard.client.delete(KEYS.meta)
    refused(shard, changed(shard, command), "LOST")
    refused(shard, calls.create("make", shard.config, KEYS, shard.config.to_meta(0, "idle")), "LOST")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("harm", ["delete", "shorten", "lengthen"])
def test_lost_slice(shard, command, harm):
    """LOST: a slice that is gone, or has another length."""
    today = KEYS.slice("today")
    if harm == "lengthen":
        shard.client.append(today, b"x")
    else:
        shard.client.delete(today)
        if harm == "shorten":
            shard.client.set(today, b"\xff" * (shard.config.bytes - 1))
    refused(shard, changed(shard, command), "LOST")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("names", [(), ("history_1", "today"), ("history_1",)])
def test_old_list_of_slices(shard, command, names):
    """STALE: too few, too many, or others; the text has epoch, time of opening and live slices."""
    made = changed(shard, command)
    keys = made.keys[:-1] + tuple(KEYS.slice(name) for name in names)
    text = refused(shard, dataclasses.replace(made, keys=keys), "STALE")
    meta = shard.meta()
    assert text == "STALE epoch {epoch}, opened {opened}, claims 0, live slices {slices}".format_map(meta)


@pytest.mark.parametrize("command", COMMANDS)
def test_script_of_another_layout(shard, command):
    """BADARG: a script made for another layout or k must not touch the bitmap."""
    for other in ("blocked", 8), ("classic", 12), ("blocked", 16):
        if other[0] != shard.config.layout:
            config = dataclasses.replace(shard.config, layout=other[0], k=other[1])
            refused(shard, calls.items(command, config, KEYS, shard.view, "-", B), "BADARG")


@pytest.mark.parametrize("command", COMMANDS)
def test_items_of_another_shard(client, command):
    """BADARG: every item must belong to the shard, and one that does not stops the whole call."""
    shard = Shard(client, geometry("blocked", 12, 100, shards=7))
    own = [d for d in (md5(b"%d" % i) for i in range(100)) if ((d[14] >> 4) + 16 * d[15]) * 7 < 4096]
    other = next(d for d in (md5(b"%d" % i) for i in range(100)) if d not in own)
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, "-", own[0] + other), "BADARG")
    assert shard.ask(command, own[0]) == [0]


@pytest.mark.parametrize("command", COMMANDS)
def test_items_at_the_border_of_a_shard(client, command):
    """Of two shards the first has the items whose top 12 bits are below 2048."""
    shard = Shard(client, geometry("blocked", 12, 100, shards=2))
    last, other = (bytes(14) + (x << 4).to_bytes(2, "little") for x in (2047, 2048))
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, "-", other), "BADARG")
    assert shard.ask(command, last) == [0]


@pytest.mark.parametrize("command", WRITING)
def test_repeated_call_is_answered_from_its_record(shard, command):
    """The same call id: the same answers, and nothing is done again."""
    the_id = shard.call_id()
    first = shard.ask(command, A + B + B, the_id)
    before = dumped(shard.client)
    assert first == shard.ask(command, A + B + B, the_id)
    assert before == dumped(shard.client)


@pytest.mark.parametrize("command", WRITING)
def test_repeated_call_that_changed_nothing(shard, command):
    """The short record: everything was seen (insert), or nothing was (forget), and is so again."""
    the_id, item = shard.call_id(), {"insert": A, "forget": B}[command]
    first = shard.ask(command, item, the_id)
    shard.ask("forget" if command == "insert" else "insert", item)
    before = dumped(shard.client)
    assert first == shard.ask(command, item, the_id)
    assert before == dumped(shard.client)


@pytest.mark.parametrize("command", WRITING)
def test_call_id_with_other_items(shard, command):
    """BADARG: a call id stands for its items."""
    the_id = shard.call_id()
    shard.ask(command, A + B, the_id)
    for items in (A + C, A, A + B + B):
        refused(shard, calls.items(command, shard.config, KEYS, shard.view, the_id, items), "BADARG")


@pytest.mark.parametrize("command", WRITING)
def test_call_id_of_a_part_of_a_request(shard, command):
    """The request counts as a part of the items. A part without an item has a record of its own, and does nothing."""
    requests = [f"={number}123456789abcdef" for number in range(2)]
    ids = [shard.call_id(slot=slot) for slot in range(3)]
    assert shard.ask(command, B, ids[0] + requests[0]) == [0]
    assert shard.ask(command, b"", ids[1] + "+*" + requests[0]) == []
    before = dumped(shard.client)
    assert shard.ask(command, B, ids[0] + "+" + requests[0]) == [0]
    assert shard.ask(command, b"", ids[1] + requests[0]) == []
    for the_id, items in zip(ids[:2], (B, b""), strict=True):
        for request in (requests[1], ""):
            made = calls.items(command, shard.config, KEYS, shard.view, the_id + request, items)
            refused(shard, made, "BADARG")
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, ids[1] + requests[0], B), "BADARG")
    late = shard.call_id(slot=4, ahead=-1) + requests[0]
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, late, b""), "LATECALL")
    assert before == dumped(shard.client)


@pytest.mark.parametrize("command", WRITING)
def test_lower_sequence(shard, command):
    """OLDCALL: a late duplicate of an earlier call of the slot."""
    shard.ask(command, A, shard.call_id(sequence=5))
    old = shard.call_id(sequence=4)
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, old, B), "OLDCALL")
    assert shard.ask(command, B, shard.call_id(slot=1, sequence=4)) == [0]


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("ahead", [-1, 121_000])
def test_deadline(shard, command, ahead):
    """LATECALL with the server's time: past the deadline, or a deadline too far ahead."""
    late = shard.call_id(ahead=ahead)
    refused(shard, calls.items(command, shard.config, KEYS, shard.view, late, B), r"LATECALL \d{13}")


def test_the_record_comes_before_stale_restoring_and_the_deadline(shard):
    """A recorded answer is given whatever has happened to the filter since, unless a restore may lack its items."""
    short = f"0123456789abcdef/0/1/{shard.now() + 400}"
    answer = shard.ask("insert", B, short)
    while shard.now() <= int(short.split("/")[3]):
        pass
    assert answer == shard.ask("insert", B, short) == [0]
    shard.client.hset(KEYS.meta, "phase", "restoring")
    assert answer == shard.ask("insert", B, short)
    made = calls.items("insert", shard.config, KEYS, shard.view, short, B)
    stale = dataclasses.replace(made, keys=(*made.keys, KEYS.slice("history_1")))
    assert answer == shard.call(stale)


@pytest.mark.parametrize(("items", "request_"), [(A, ""), (b"", "=0123456789abcdef")])
def test_old_records_are_removed_by_those_who_add(client, items, request_):
    """Records over ten minutes old go as others are added; younger ones stay."""
    shard = Shard(client, geometry("blocked", 12, 100))
    for slot in range(50):
        shard.ask("insert", A, shard.call_id(slot=slot))
        shard.age(slot, 601_000)
    for slot in itertools.count(100):
        shard.ask("insert", items, shard.call_id(slot=slot) + request_)
        young = b"0123456789abcdef/%d" % slot
        assert young in client.hkeys(KEYS.replies)
        if client.hkeys(KEYS.replies) == [young]:
            break
        client.hdel(KEYS.replies, young)  # else the old ones become rare, and are seldom looked at
        assert slot < 5000


def times(client) -> list[float]:
    """The times of all records, ms."""
    return [record_time(record) for record in client.hvals(KEYS.replies)]


def test_records_of_a_clock_that_was_ahead(client):
    """They count as made now when they are come upon, are still answered from, and go like all others."""
    shard, year = Shard(client, geometry("blocked", 12, 100)), 365 * 86_400_000
    first, before = shard.call_id(), shard.now()
    for slot in range(5):
        assert shard.ask("insert", md5(b"%d" % slot), shard.call_id(slot=slot) if slot else first) == [0]
        shard.age(slot, -year)
    for slot in range(100, 5000):
        shard.ask("insert", A, shard.call_id(slot=slot))
        client.hdel(KEYS.replies, f"0123456789abcdef/{slot - 20}")  # else the first ones become rare, and seldom found
        if max(times(client)) <= shard.now():
            break
    assert before <= min(times(client)) <= max(times(client)) <= shard.now()
    assert {b"0123456789abcdef/%d" % slot for slot in range(5)} <= set(client.hkeys(KEYS.replies))
    assert shard.ask("insert", md5(b"0"), first) == [0]


def test_old_records_go_though_most_are_from_the_future(client):
    """One call removes the two old ones, however many others of the future it comes upon."""
    shard, year = Shard(client, geometry("blocked", 12, 100)), 365 * 86_400_000
    for slot in range(7):
        shard.ask("insert", A, shard.call_id(slot=slot))
    for slot in range(7):
        shard.age(slot, 601_000 if slot < 2 else -year)
    shard.ask("insert", A, shard.call_id(slot=7))
    assert set(client.hkeys(KEYS.replies)) == {b"0123456789abcdef/%d" % slot for slot in range(2, 8)}


def test_a_repeat_within_ten_minutes(client):
    """However many calls add records meanwhile, it is told "new" as the lost reply did, and never "seen"."""
    shard = Shard(client, geometry("blocked", 12, 100))
    the_id = shard.call_id()
    assert shard.ask("insert", A, the_id) == [0]
    shard.age(0, 590_000)
    for slot in range(1, 20):  # the first of them looks at this record, because there is no other
        shard.ask("insert", B, shard.call_id(slot=slot))
    assert shard.ask("insert", A, the_id) == [0]


def test_a_slots_record_is_overwritten_by_its_next_call(shard):
    """One record a slot, however many calls."""
    for sequence in range(1, 10):
        shard.ask("insert", md5(b"%d" % sequence), shard.call_id(sequence=sequence))
    assert shard.client.hlen(KEYS.replies) == 1


def test_seen_items_write_only_the_record(shard):
    """What was seen costs the append-only file and replicas a short record, and without call id nothing."""
    shard.client.config_resetstat()
    shard.ask("insert", A, shard.call_id())
    stats = shard.client.info("commandstats")
    assert {"cmdstat_hset"} == {
        name for name in stats if name in {"cmdstat_hset", "cmdstat_setrange", "cmdstat_bitfield"}
    }
    shard.client.config_resetstat()
    shard.ask("insert", A)
    assert "cmdstat_hset" not in shard.client.info("commandstats")
