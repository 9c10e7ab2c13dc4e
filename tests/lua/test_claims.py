"""The scripts of claims, point by point; in any order they are compared with the model in test_claims_machine.py."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from redis.exceptions import ResponseError
from support.leases import dead_letters_of, holders_of, in_flight_of_holder, leases_of
from support.servers import wait_until
from support.shard import KEYS, Shard, geometry, md5, refused
from support.states import dumped

from urifilter_redis.flows.turn import names_after
from urifilter_redis.protocol import calls, claims, scripts
from urifilter_redis.protocol.claims import NO_HOLDER, Holding

A, B, C = (md5(text) for text in (b"a", b"b", b"c"))
ONE, TWO = Holding("11" * 8, 60_000), Holding("22" * 8, 60_000)
MINE = bytes.fromhex(ONE.holder)
TEN_MINUTES, HOUR, DAY, WEEK = 600_000, 3_600_000, 86_400_000, 7 * 86_400_000
#: The commands of claims that a server may refuse in a script, and those that they share with the others.
TRIED = ("HDEL", "HGET", "HMGET", "HSET", "TIME", "ZADD", "ZLEXCOUNT", "ZRANDMEMBER", "ZRANGEBYLEX", "ZRANGEBYSCORE")
TRIED += ("ZREM", "ZREVRANGE", "ZSCORE", "EXISTS", "HRANDFIELD", "SETRANGE", "GETRANGE")


@pytest.fixture
def shard(client):
    """A shard that has seen nothing."""
    return Shard(client, geometry("blocked", 12, 100))


def die(shard, *holdings):
    """Let holders die: their leases are over."""
    for each in holdings:
        shard.client.zadd(KEYS.holders, {bytes.fromhex(each.holder): shard.now() - 1})


@pytest.mark.sampled
@pytest.mark.parametrize("script", scripts.variants((8, 12, 16)), ids=lambda script: script.name)
def test_every_script_compiles(client, script):
    """Lua allows a script 200 locals and 60 upvalues."""
    assert client.script_load(script.source) == script.sha1


def test_wrong_arguments(shard):
    """BADARG, with nothing done: holders, leases, texts, delays, delay holders and limits."""
    delay_holder = claims.new_delay_holder()
    wrong = [
        shard.made("claim", A, holding=NO_HOLDER, kept=[b""]),
        shard.made("claim", A + B, holding=ONE, kept=[b""]),
        shard.made("claim", [A, B], holding=ONE, kept=[b""]),
        shard.made("claim", A, holding=ONE, kept=[b"", b""]),
        shard.made("claim", A, holding=ONE, kept=[]),
        shard.made("claim", A, holding=ONE, kept=[b"s" + b"x" * claims.BYTES_A_CALL]),
        shard.made("claim", A, holding=Holding(delay_holder, 1), kept=[b""]),
        shard.made("claim", A, holding=Holding("1" * 15, 1), kept=[b""]),
        *(shard.made("claim", A, holding=Holding(ONE.holder, lease), kept=[b""]) for lease in (0, -1, HOUR + 1, 0.5)),
        shard.made("commit", A, holding=Holding(delay_holder, 1)),
        shard.made("commit", A, holding=ONE, reason=b"r" * 201),
        shard.made("commit", A, holding=NO_HOLDER, reason=b""),
        shard.made("release", A, holding=ONE, delay_holder=ONE.holder),
        shard.made("release", A, holding=ONE, delay_holder="00"),
        *(shard.made("release", A, holding=ONE, delay=delay) for delay in (-1, WEEK + 1, 0.5)),
        *(shard.made("reclaim", b"", holding=ONE, limit=limit) for limit in (0, 101, 1.5)),
        shard.made("reclaim", b"", holding=NO_HOLDER),
        claims.beat(shard.config.uid, KEYS, NO_HOLDER),
    ]
    for call in wrong:
        refused(shard, call, "BADARG")


@pytest.mark.parametrize("command", ["claim", "commit", "release", "reclaim"])
def test_too_few_arguments(shard, command):
    """BADARG for every number of arguments that is too small."""
    call = shard.made(command, A, holding=ONE, kept=[b"kept"])
    for count in range(len(call.args)):
        with pytest.raises(ResponseError, match="^(BADARG|NOFILTER|MISMATCH) "):
            shard.call(dataclasses.replace(call, args=call.args[:count]))
    beat = claims.beat(shard.config.uid, KEYS, ONE)
    for count in (1, 2):
        refused(shard, dataclasses.replace(beat, args=beat.args[:count]), "BADARG")


@pytest.mark.parametrize(("phase", "word"), [("restoring", "RESTORING"), ("dropping", "NOFILTER")])
def test_phases(shard, phase, word):
    """Nothing is claimed, released, reclaimed or prolonged meanwhile, and no claim is answered from its record."""
    the_id, reclaimed = shard.call_id(), shard.call_id(slot=1)
    assert shard.claim(ONE, A, call_id=the_id) == [0]
    assert shard.reclaim(ONE, call_id=reclaimed) == []
    shard.client.hset(KEYS.meta, "phase", phase)
    for command in ("claim", "commit", "release", "reclaim"):
        refused(shard, shard.made(command, A, shard.call_id(slot=2), ONE, kept=[b""]), word)
    refused(shard, claims.beat(shard.config.uid, KEYS, ONE), word)
    refused(shard, shard.made("claim", A, the_id, ONE, kept=[b""]), word)
    refused(shard, shard.made("reclaim", b"", reclaimed, ONE), word)


def test_the_first_claim(shard):
    """From then on the scripts for shards without claims answer STALE with the longest lease; those with them run."""
    before = {name: shard.made(name, B) for name in ("insert", "contains", "forget")}
    assert shard.ask("insert", B) == [0]
    assert shard.claim(ONE, B) == [1]
    assert "claims" not in shard.meta()  # nothing was claimed
    assert shard.claim(Holding(ONE.holder, 70_000), A) == [0]
    assert shard.claim(ONE, C) == [0]
    assert (shard.meta()["claims"], shard.meta()["claimed"]) == ("70000", "2")
    for call in before.values():
        assert ", claims 70000, live slices today:" in refused(shard, call, "STALE")
    assert [shard.ask(name, B) for name in before] == [[1], [1], [1]]


@pytest.mark.parametrize("mended", ["0", "x", ""])
def test_claims_that_were_mended_by_hand(shard, mended):
    """The field alone decides: without it STALE says claims 0, so that views correct themselves; with it at least 1."""
    shard.claim(ONE, A)
    after = shard.made("insert", B)
    shard.client.hdel(KEYS.meta, "claims")
    assert ", claims 0, live slices" in refused(shard, after, "STALE")
    shard.view = dataclasses.replace(shard.view, claims=0)
    assert shard.ask("insert", B) == [0]
    shard.client.hset(KEYS.meta, "claims", mended)
    assert ", claims 1, live slices" in refused(shard, shard.made("insert", B), "STALE")


def test_an_item_in_flight_that_was_forgotten(shard):
    """It stays in flight when somebody inserts it, and what was forgotten stays so until it is committed."""
    shard.ask("insert", A)
    shard.ask("forget", A)
    assert shard.claim(ONE, A) == [0]
    assert shard.client.zcard(KEYS.forgotten) == 1
    for answers in (shard.ask("insert", A), shard.ask("insert", A, shard.call_id()), shard.ask("contains", A)):
        assert answers == [-1]
    assert set(leases_of(shard.client)) == {A}
    assert shard.client.zcard(KEYS.forgotten) == 1
    assert shard.commit(ONE, A) == [0]
    assert shard.client.zcard(KEYS.forgotten) == 0
    assert shard.ask("insert", A) == [1]


@pytest.mark.parametrize("layout", [("blocked", 12, 1), ("counting", 3, 20)])
def test_a_false_positive_swallows_nothing(client, layout):
    """An item that seems to be seen after it was claimed is reclaimed, claimed, or inserted; counting counts it."""
    shard = Shard(client, geometry(*layout))
    assert shard.claim(ONE, A + B + C) == [0, 0, 0]
    full = b"\x11" if layout[0] == "counting" else b"\xff"
    shard.client.set(KEYS.slice("today"), full * shard.config.bytes)
    die(shard, ONE)
    assert shard.ask("contains", A + B) == [0, 0]
    assert shard.claim(TWO, A) == [0, 1, 0, 1]
    before = shard.today()
    assert shard.ask("insert", B) == [0]
    assert [each.digest for each in shard.reclaim(TWO)] == [C]
    assert (shard.today() != before) == (layout[0] == "counting")
    before = shard.today()
    assert shard.commit(TWO, A + C) == [0, 0]
    assert (shard.today() != before) == (layout[0] == "counting")
    assert not leases_of(client)
    assert shard.meta()["inserted"] == "3"


def test_lapses_and_failures(shard):
    """Dead holders are counted, delay holders are not; both counts stop at 65,535."""
    assert shard.claim(ONE, A, [b"kept"]) == [0]
    assert shard.release(ONE, A, failed=True) == [1]
    assert [(each.failures, each.lapses) for each in shard.reclaim(ONE)] == [(1, 0)]
    die(shard, ONE)
    assert [(each.failures, each.lapses) for each in shard.reclaim(TWO)] == [(1, 1)]
    die(shard, TWO)
    assert shard.claim(ONE, A, [b"kept"]) == [0, 1, 1, 2]
    assert leases_of(shard.client)[A].lapses == 2
    shard.client.hset(KEYS.leases, A, MINE + struct.pack("<HH", 65535, 65535) + b"kept")
    die(shard, ONE)
    assert [(each.failures, each.lapses) for each in shard.reclaim(TWO)] == [(65535, 65535)]
    assert shard.release(TWO, A, failed=True) == [1]
    assert leases_of(shard.client)[A].failures == 65535


def test_a_claim_tells_failures_and_lapses(shard):
    """Of items that have any, in the end of the reply; a repeat tells them too, and the commit ends them."""
    the_id, delayed = shard.call_id(), [shard.call_id(slot) for slot in (1, 2)]
    shard.claim(ONE, A + B)
    shard.release(ONE, A, delay=TEN_MINUTES, failed=True)
    assert shard.claim(TWO, A + B + C, call_id=delayed[0]) == [-1, -1, 0]  # the delay is not over
    shard.client.zadd(KEYS.holders, dict.fromkeys(holders_of(shard.client), shard.now() - 1))
    told = [-1, 0, 0, 2, 0, 1, 3, 1, 0]
    assert shard.claim(TWO, C + B + A, call_id=the_id) == told
    assert shard.claim(TWO, C + B + A, call_id=the_id) == told
    shard.release(TWO, A, failed=True)
    assert shard.claim(TWO, C + B + A, call_id=the_id) == [-1, 0, -1, 2, 0, 1]
    assert shard.claim(ONE, A, call_id=delayed[1]) == [0, 1, 2, 0]
    assert shard.commit(ONE, A + B) == [0, 0]
    shard.ask("forget", A + B)
    assert shard.claim(ONE, A + B) == [0, 0]


def test_giving_up(shard):
    """A commit with a note, of what this holder has; a repeat has the same answers, and writes no second note."""
    ids = [shard.call_id(slot) for slot in range(2)]
    shard.claim(ONE, A + B, [b"kept", b"l" * 2000])
    shard.release(ONE, A + B, failed=True)
    shard.claim(ONE, A + B, [b"kept", b"l" * 2000])
    shard.claim(TWO, C)
    for _ in range(2):
        assert shard.reject(ONE, A + B + C + A, b"404", ids[0]) == [0, 0, -1, -1]
        assert dead_letters_of(shard.client) == {A: (1, 0, b"404", b"kept"), B: (1, 0, b"404", b"l" * 2000)}
    assert shard.ask("contains", A + B + C) == [1, 1, -1]
    assert set(leases_of(shard.client)) == {C}
    assert shard.meta()["rejected"] == "2"
    refused(shard, shard.made("commit", A + B + C + A, ids[0], ONE), "BADARG")
    assert shard.reject(ONE, C, b"", ids[1]) == shard.reject(ONE, C, b"", ids[1]) == [-1]
    shard.claim(ONE, C)
    assert shard.commit(TWO, C) == [0]
    assert shard.meta()["rejected"] == "2"


@pytest.mark.parametrize("layout", [("blocked", 12, 100), ("counting", 3, 300)])
def test_what_deletes_a_dead_letter(client, layout):
    """A commit, forget, remove, and a claim of an item that has expired; a checkpoint then finds a change."""
    shard = Shard(client, geometry(*layout))
    ways = [lambda: shard.commit(NO_HOLDER, A), lambda: shard.ask("forget", A)]
    if layout[0] == "counting":
        ways.append(lambda: shard.ask("remove", A))
    else:
        ways.append(lambda: (expire(shard), shard.claim(TWO, A)))
    for way in ways:
        shard.ask("forget", A)
        assert shard.claim(ONE, A + B)[0] == 0
        assert shard.reject(ONE, A, b"404") == [0]
        before = [shard.meta().get(name) for name in ("claimed", "changed")]
        way()
        assert dead_letters_of(client) == {}
        assert before != [shard.meta().get(name) for name in ("claimed", "changed")]


@pytest.mark.parametrize("end", ["commit", "reject", "insert", "remove"])
def test_what_is_offered_once_more_is_counted_once(client, end):
    """Its counters are there already. However it ends, removing it makes it new."""
    shard = Shard(client, geometry("counting", 3, 300))
    shard.claim(ONE, A)
    assert shard.reject(ONE, A, b"404") == [0]
    once = shard.today()
    assert shard.retry(A) == [1]
    assert shard.retry(A) == [0]
    assert "changed" in shard.meta()
    if end in {"commit", "reject"}:
        assert shard.claim(TWO, A) == [0]
        assert getattr(shard, end)(TWO, A) == [0]
    elif end == "insert":
        assert shard.ask("insert", A) == [0]
    assert shard.today() == once
    assert shard.ask("remove", A) == [1]
    assert shard.ask("contains", A) == [0]
    assert (set(shard.today()) == {0}) == (end != "remove")


def test_a_repeat_after_a_restore_spares_what_is_offered_once_more(shard):
    """The call that gave an item up comes late: it must not end the item that somebody wants to be fetched again."""
    the_id = shard.call_id()
    shard.claim(ONE, A + B)
    assert shard.reject(ONE, A + B, b"404", the_id) == [0, 0]
    ended = shard.now()
    while shard.now() <= ended + 2:  # the time of what is forgotten is right to 2 ms
        pass
    assert shard.retry(A) == [1]
    shard.client.hset(KEYS.meta, "restored", shard.now())
    assert shard.reject(ONE, A + B, b"404", the_id) == [0, 0]
    assert set(leases_of(shard.client)) == {A}
    assert shard.claim(TWO, A + B) == [0, 1]


def expire(shard):
    """Let all that was seen expire."""
    shard.client.setrange(KEYS.slice("today"), 0, b"\0" * shard.config.bytes)


def test_an_insert_deletes_dead_letters(shard):
    """Of what it answers new: it has expired since. The notes of what is seen, or in flight, stay."""
    shard.claim(ONE, A + B + C)
    assert shard.reject(ONE, A + B, b"404") == [0, 0]
    assert shard.ask("insert", A + B) == [1, 1]
    assert set(dead_letters_of(shard.client)) == {A, B}
    expire(shard)
    assert shard.ask("insert", C + A + A) == [-1, 0, 1]
    assert set(dead_letters_of(shard.client)) == {B}
    assert shard.retry(A + B) == [0, 1]
    assert shard.ask("insert", A + B) == [1, 0]
    assert dead_letters_of(shard.client) == {}
    assert set(leases_of(shard.client)) == {C}


def test_the_oldest_dead_letters_go_first(shard):
    """At most a mebibyte of them is kept; the total goes on."""
    items = [md5(b"%d" % number) for number in range(30)]
    for number, item in enumerate(items):
        shard.claim(ONE, item, [b"k" * 60_000])
        assert shard.reject(ONE, item, b"%d" % number) == [0]
        shard.client.zadd(KEYS.of_dead_letters[1], {item: number})
    notes = shard.client.hgetall(KEYS.of_dead_letters[0])
    assert set(notes) == {b"bytes", *items[-17:]}
    assert int(notes[b"bytes"]) <= 1 << 20
    assert shard.meta()["rejected"] == "30"


def test_the_newest_dead_letters_stay(shard):
    """Also after the clock was set back; old ones go for a long one; of more than a mebibyte in a call a part stays."""
    key, times = KEYS.of_dead_letters
    old = [md5(b"%d" % number) for number in range(250)]
    shard.claim(ONE, old, [b"k" * 3500] * 250)
    shard.reject(ONE, old, b"404")
    shard.client.zadd(times, dict.fromkeys(old, shard.now() + DAY))
    shard.client.zadd(times, {b"it has no note": 0})
    shard.claim(ONE, A, [b"l" * 256_000])
    assert shard.reject(ONE, A, b"500") == [0]
    notes = shard.client.hgetall(key)
    assert A in notes
    assert 200 < len(notes) < 250
    many = [md5(b"many %d" % number) for number in range(12)]
    shard.claim(ONE, many, [b"l" * 100_000] * 12)
    assert shard.reject(ONE, many, b"500") == [0] * 12
    notes = shard.client.hgetall(key)
    assert set(notes) == {b"bytes", *many[-10:]}
    assert int(notes[b"bytes"]) <= 1 << 20
    assert len(dead_letters_of(shard.client)) == 10


def test_a_holders_own_lapsed_entries(shard):
    """It cannot claim or reclaim them; any call of it revives them, and its release finds them."""
    shard.claim(ONE, A + B)
    die(shard, ONE)
    assert shard.claim(ONE, A) == [-1]
    assert holders_of(shard.client)[MINE] > shard.now()
    die(shard, ONE)
    assert shard.reclaim(ONE) == []
    assert holders_of(shard.client)[MINE] > shard.now()
    die(shard, ONE)
    assert shard.release(ONE, A) == [1]
    die(shard, ONE)
    assert shard.beat(ONE) == 1
    assert shard.claim(TWO, A + B) == [0, -1]


def test_a_holder_with_nothing_in_flight_is_none(shard):
    """Its last call removes it."""
    for end in (shard.commit, shard.release):
        shard.claim(ONE, C + (A if end == shard.commit else B))
        end(ONE, A + B + C)
        assert MINE not in holders_of(shard.client)
        assert shard.beat(ONE) == 0


@pytest.mark.sampled
def test_dead_holders_do_not_pile_up(shard):
    """Whoever adds one removes dead ones that have nothing; one that has something stays, and is reclaimed from."""
    shard.claim(ONE, A)
    die(shard, ONE)
    for number in range(300):
        item = md5(b"%d" % number)
        shard.claim(TWO, item)
        shard.release(NO_HOLDER, item)
        shard.commit(NO_HOLDER, item)
    assert len(holders_of(shard.client)) < 60
    assert [each.digest for each in shard.reclaim(TWO)] == [A]


def test_reclaim_passes_over_holders_without_anything(shard):
    """However many of them have died before the one who had something."""
    shard.claim(ONE, A)
    die(shard, ONE)
    shard.client.zadd(KEYS.holders, {b"\x33" + struct.pack(">Q", number)[1:]: number + 1 for number in range(500)})
    assert [each.digest for each in shard.reclaim(TWO)] == [A]
    assert set(holders_of(shard.client)) == {bytes.fromhex(TWO.holder)}


def test_a_member_of_hands_without_an_entry(shard):
    """It is removed, and what stands behind it is not forgotten."""
    first, second = sorted([A, B])
    shard.claim(ONE, first + second)
    shard.client.hdel(KEYS.leases, first)
    die(shard, ONE)
    assert [each.digest for number in range(2) for each in shard.reclaim(TWO, limit=1)] == [second]
    assert in_flight_of_holder(shard.client) == [(bytes.fromhex(TWO.holder), second)]


@pytest.mark.parametrize("how", ["beat", "reclaim"])
def test_a_clock_that_was_set_back(shard, how):
    """A holder that would live for years lives for ten minutes, or the longest lease; a delay holder for a week."""
    shard.claim(ONE, A)
    for longest, lasts in ((60_000, TEN_MINUTES), (HOUR, HOUR)):
        for days in (2, 200):
            shard.client.hset(KEYS.meta, "claims", longest)
            shard.client.zadd(KEYS.holders, dict.fromkeys((MINE, b"\0" * 8), shard.now() + days * DAY))
            shard.beat(TWO) if how == "beat" else shard.reclaim(TWO)
            found = holders_of(shard.client)
            assert set(found) == {MINE, b"\0" * 8}
            assert 0 <= shard.now() + lasts - found[MINE] < 60_000
            assert 0 <= shard.now() + min(days * DAY, WEEK) - found[b"\0" * 8] < 60_000


def test_holders_of_a_clock_that_was_set_back_among_many_delays(shard):
    """None is overlooked, however many delay holders live longer than it, and those keep their delays."""
    digests = [md5(b"%d" % number) for number in range(60)]
    holders = [Holding(f"{4 * number + 4:02x}" * 8, 60_000) for number in range(20)]
    for number, holding in enumerate(holders):
        shard.claim(holding, digests[number])
    delays = {bytes([0, number]) * 4: shard.now() + DAY + number for number in range(200)}
    for number, delay_holder in enumerate(delays):
        holding = Holding("fe" * 8, 60_000)
        if number < 40:
            shard.claim(holding, digests[20 + number])
            shard.release(holding, digests[20 + number], delay=WEEK, delay_holder=delay_holder.hex())
    shard.client.zadd(KEYS.holders, delays | {bytes.fromhex(each.holder): shard.now() + 2 * DAY for each in holders})

    def mended():
        shard.beat(TWO)
        found = holders_of(shard.client)
        return all(found[bytes.fromhex(each.holder)] < shard.now() + HOUR for each in holders)

    wait_until(mended, "some holders live on")
    assert delays.items() <= holders_of(shard.client).items()


def test_a_beat_for_longer_than_any_lease(shard):
    """Meta learns of it, so that others do not take it for a holder of a clock that was set back."""
    shard.claim(ONE, A)
    assert shard.beat(Holding(ONE.holder, HOUR)) == 1
    assert shard.meta()["claims"] == str(HOUR)
    until = holders_of(shard.client)[MINE]
    shard.beat(TWO)
    assert holders_of(shard.client)[MINE] == until


def test_long_payloads(shard):
    """64 KiB each come back, at most 256 KiB at a time; none is left when the item is gone."""
    items = [md5(b"%d" % number) for number in range(6)]
    kept = [b"%d" % number * 65536 for number in range(5)] + [b"l" * claims.BYTES_A_CALL]
    assert shard.claim(ONE, items, kept) == [0] * 6
    die(shard, ONE)
    found = []
    for _ in range(6):
        some = shard.reclaim(TWO)
        assert sum(len(each.kept) for each in some) <= claims.BYTES_A_CALL
        found += some
    assert {each.digest: each.kept for each in found} == dict(zip(items, kept, strict=True))
    die(shard, TWO)
    assert shard.claim(ONE, items[:1], [b"short"]) == [0, 1, 0, 2]
    assert shard.commit(ONE, items[:2]) == [0, 0]
    assert shard.ask("insert", items[2]) == [0]
    assert shard.ask("forget", items[3]) == [1]
    assert shard.release(NO_HOLDER, items[4:]) == [1, 1]
    assert shard.commit(NO_HOLDER, items[4:]) == [0, 0]
    assert shard.client.exists(KEYS.leases, KEYS.in_flight) == 0


def test_repeats(shard):
    """Answers of the first run, but a claim's only for what is still its holder's, and never anybody else's."""
    ids = [shard.call_id(slot) for slot in range(4)]
    assert shard.claim(ONE, A + A + B, call_id=ids[0]) == [0, -1, 0]
    assert shard.claim(ONE, A + A + B, [b"other"] * 3, ids[0]) == [0, -1, 0]
    assert leases_of(shard.client)[A].kept == b""
    assert shard.commit(ONE, B, ids[1]) == shard.commit(ONE, B, ids[1]) == [0]
    assert shard.claim(ONE, A + A + B, call_id=ids[0]) == [0, -1, -1]
    die(shard, ONE)
    found = shard.reclaim(TWO, ids[2])
    assert found == shard.reclaim(TWO, ids[2])
    assert shard.claim(ONE, A + A + B, call_id=ids[0]) == [-1, -1, -1]
    assert shard.release(TWO, A, ids[3], delay=TEN_MINUTES) == shard.release(TWO, A, ids[3], delay=TEN_MINUTES) == [1]
    assert shard.reclaim(TWO, ids[2]) == []


def test_a_repeated_reclaim_of_nothing(shard):
    """It is of nothing, also if something has lapsed meanwhile."""
    the_id = shard.call_id()
    shard.claim(ONE, A)
    assert shard.reclaim(TWO, the_id) == []
    die(shard, ONE)
    assert shard.reclaim(TWO, the_id) == []
    assert len(shard.reclaim(TWO, shard.call_id(slot=1))) == 1


def test_repeats_that_changed_nothing(shard):
    """An insert answers -1 or seen and takes no entry out; a claim claims nothing; a commit makes nothing final."""
    ids = [shard.call_id(slot) for slot in range(3)]
    shard.ask("insert", A)
    shard.claim(ONE, B)
    assert shard.ask("insert", A + B, ids[0]) == [1, -1]
    assert shard.claim(TWO, A + B, call_id=ids[1]) == [1, -1]
    assert shard.commit(TWO, A, ids[2]) == [1]
    shard.ask("forget", A)
    die(shard, ONE)
    before = dumped(shard.client)
    assert shard.ask("insert", A + B, ids[0]) == [1, 1]
    assert shard.claim(TWO, A + B, call_id=ids[1]) == [1, -1]
    assert shard.commit(TWO, A, ids[2]) == [1]
    assert before == dumped(shard.client)


def test_a_call_id_is_for_one_holder_and_lease(shard):
    """BADARG for another one."""
    the_id = shard.call_id()
    shard.claim(ONE, A, call_id=the_id)
    for other in (TWO, Holding(ONE.holder, 61_000)):
        for command in ("claim", "commit", "release", "reclaim"):
            refused(shard, shard.made(command, A, the_id, other, kept=[b""]), "BADARG")


def test_a_growing_shard_without_room(client):
    """FULL before anything is claimed or made final; a repeat of a call that claimed nothing needs no room."""
    shard = Shard(client, geometry("blocked", 12, 100, retention="growing", capacity=10))
    limit, the_id = shard.state().limit, shard.call_id()
    items = [md5(b"%d" % number) for number in range(limit + 1)]
    refused(shard, shard.made("claim", items, holding=ONE, kept=[b""] * len(items)), "FULL")
    assert shard.claim(ONE, items[:-1]) == [0] * limit
    refused(shard, shard.made("commit", items, holding=ONE), "FULL")
    assert shard.claim(TWO, items[:-1], call_id=the_id) == [-1] * limit
    assert shard.commit(ONE, items[:-1]) == [0] * limit
    assert shard.claim(ONE, items[:-1]) == [1] * limit
    refused(shard, shard.made("claim", items[-1], holding=ONE, kept=[b""]), "FULL")
    assert 0 not in shard.claim(TWO, items[:-1], call_id=the_id)


@pytest.mark.parametrize("kind", ["redis70", "valkey", "redis62"])
def test_maxmemory(make_server, kind):
    """Claim and reclaim are refused before they write; beat, release, commit, and repeats, get through."""
    with make_server(kind).client() as client:
        shard = Shard(client, geometry("blocked", 12, 100))
        the_id = shard.call_id()
        assert shard.claim(ONE, A + B + C, call_id=the_id) == [0, 0, 0]
        die(shard, ONE)
        for command in ("claim", "reclaim", "beat", "release", "commit"):  # loaded before memory is short
            made = claims.beat(shard.config.uid, KEYS, TWO) if command == "beat" else None
            shard.call(made or shard.made(command, md5(command.encode()), holding=TWO, kept=[b""]))
        shard.release(TWO, A + B + C)
        client.config_set("maxmemory", 1)
        for command in ("claim", "reclaim"):
            before = dumped(client)
            with pytest.raises(ResponseError, match="used memory"):
                shard.call(shard.made(command, md5(b"new"), shard.call_id(slot=1), TWO, kept=[b""]))
            assert before == dumped(client)
        assert shard.claim(ONE, A + B + C, call_id=the_id)[2] in {0, -1}
        assert shard.beat(ONE) == len([holder for holder, _ in in_flight_of_holder(client) if holder == MINE])
        assert shard.release(NO_HOLDER, A, shard.call_id(slot=2)) == [1]
        assert shard.commit(NO_HOLDER, A + B, shard.call_id(slot=3)) == [0, 0]
        client.config_set("maxmemory", 0)


@pytest.mark.slow
def test_a_missing_right(server):
    """Whichever command is forbidden: what is refused is not half done, and its repeat does it."""
    url = f"redis://crawler:pw@127.0.0.1:{server.port}/0"
    with server.client() as admin, type(admin).from_url(url, protocol=2) as client:
        shard = Shard(admin, geometry("blocked", 12, 1000))
        shard.claim(ONE, A)
        for number, command in enumerate(TRIED):
            items = [md5(b"%d/%d" % (number, item)) for item in range(4)]
            shard.claim(ONE, items[:2])
            die(shard, ONE)
            for slot, name in enumerate(("claim", "reclaim", "release", "commit", "insert", "forget")):
                holding = NO_HOLDER if name in {"insert", "forget"} else TWO
                call = shard.made(name, items, shard.call_id(slot, number + 1), holding, kept=[b""] * 4)
                admin.script_load(call.script.source)
                admin.acl_setuser("crawler", enabled=True, reset=True, passwords="+pw", commands=["+@all"], keys=["*"])
                admin.execute_command("ACL", "SETUSER", "crawler", f"-{command.lower()}")
                before = leases_of(admin), sorted(in_flight_of_holder(admin)), shard.today()
                try:
                    client.execute_command(*call.command())
                except ResponseError:
                    assert before == (leases_of(admin), sorted(in_flight_of_holder(admin)), shard.today()), (
                        command,
                        name,
                    )
                shard.call(call)
                having = {holder for holder, _ in in_flight_of_holder(admin)}
                assert having <= set(holders_of(admin)), (command, name)
        admin.acl_deluser("crawler")


def test_last_seen(client):
    """A seen item that is claimed is seen again, and so lives on, as if it had been inserted."""
    ring = {"retention": "ring", "slices": 3, "period": "1d", "write": "newest", "expire_after": "last-seen"}
    shard = Shard(client, geometry("blocked", 12, 100, **ring))
    shard.ask("insert", A)
    state, new = shard.state(), shard.view.slices[-1]
    for step in ("allocate", "turn"):
        shard.call(calls.turn(step, KEYS, state, "ab", new, names=names_after(state, "ring", 3)))
    shard.refresh()
    the_id = shard.call_id()
    assert shard.claim(ONE, A + B, call_id=the_id) == [2, 0]
    assert shard.claim(ONE, A + B, call_id=the_id) == [2, 0]
    assert shard.ask("contains", A) == [1]
    assert shard.meta()["inserted"] == "1"
