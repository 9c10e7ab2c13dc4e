"""The steps of a rotation, each refused when it is not its turn; a refusal changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
from support.shard import KEYS, Shard, geometry, md5, refused

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.flows.turn import names_after
from urifilter_redis.protocol import calls, claims

TOKEN, OTHER = "a" * 16, "b" * 16
A, B = md5(b"a"), md5(b"b")


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


def turned(shard):
    before = shard.state()
    for step in ("allocate", "turn"):
        shard.call(turn(shard, step))
    shard.refresh()
    return before


def test_turn_needs_its_bitmap(shard):
    """Nothing turns before the next bitmap is allocated in full."""
    refused(shard, turn(shard, "turn"))
    shard.client.setrange(KEYS.slice("today_next"), 100, b"\0")
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
    shard.client.set(KEYS.slice("today_next"), b"left over")
    for _ in range(2):
        shard.call(turn(shard, "allocate"))
        assert shard.client.strlen(KEYS.slice("today_next")) == shard.config.bytes
    assert shard.client.bitcount(KEYS.slice("today_next")) == 0


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
def test_no_step_over_a_damaged_slice(client, length):
    """LOST: a slice of another length than in meta is not closed, nor is the next history built beside it."""
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


def test_a_union_lowers_no_count(client):
    """A count by the fill may be too low: ``len`` would say that items were lost, in today and in closed slices."""
    shard = Shard(client, geometry("blocked", 8, 64, retention="ring", slices=3, period="1d", write="newest"))
    shard.ask("insert", A + B)
    turned(shard)
    shard.ask("insert", md5(b"c") + md5(b"d") + md5(b"e"))
    for count, counts in ((1, (2, 3)), (7, (7, 7))):
        for slice_ in (1, 2):
            shard.call(calls.merge("count", shard.config, KEYS, shard.state(), slice_, count))
        state = shard.state()
        assert (state.closed[0].inserted, state.inserted) == counts


def test_a_union_counts_what_it_adds_once(client):
    """With last-seen: what a union adds counts as written and as items, in today and in closed slices."""
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


DAY = 86_400_000


def ring(client, **more):
    return Shard(client, geometry("blocked", 8, 64, **{"retention": "ring", "slices": 4, "period": "1d"} | more))


def missed(shard, by, *, days, opened=1):
    """Let today have been opened so many days ago; then go forward by so many epochs. Return the state before."""
    state, config = shard.state(), shard.config
    age = shard.now() - round(days * DAY)
    shard.client.hset(KEYS.meta, mapping={"opened": age, "written": age})
    names = names_after(state, config.retention, config.slices, by)
    gone = [each.name for each in state.view.slices if each.name not in names]
    times = {"period": DAY, "by": by, "opened": opened}
    for step in ("allocate", "turn"):
        shard.call(calls.turn(step, KEYS, state, TOKEN, shard.view.slices[-1], names=names + gone, **times))
    shard.refresh()
    return age


@pytest.mark.parametrize("write", ["newest", "all"])
@pytest.mark.parametrize("by", [1, 2, 3, 4, 9])
def test_a_ring_passes_over_periods(client, by, write):
    """What has expired by then is gone, and its keys; the rest is as old as the slices that there are."""
    shard = ring(client, write=write, expire_after="first-seen")
    some = [md5(b"%d" % number) for number in range(4)]
    for each in some[:3]:
        shard.ask("insert", each)
        turned(shard)
    shard.ask("insert", some[3])
    opened = missed(shard, by, days=by + 0.5)
    state, left = shard.state(), max(0, 4 - by)
    assert (state.epoch, state.oldest, state.phase) == (3 + by, by, "idle")
    assert state.opened == opened + by * DAY
    assert [each.epoch for each in state.closed] == list(range(by, 4))
    assert [state.epoch_of(each.name) for each in state.view.slices] == [*range(by, 4), 3 + by]
    assert [each.name for each in state.view.slices] == [*(f"history_{n}" for n in range(left, 0, -1)), "today"]
    bitmaps = {key.decode().rsplit(":", 1)[1] for key in client.keys("*") if client.type(key) == b"string"}
    assert bitmaps == {each.name for each in state.view.slices}
    ages = [0] * (4 - left) + ([1] * left if write == "all" else list(range(left + 1, 1, -1)))
    assert shard.ask("contains", b"".join(some)) == ages
    turned(shard)  # by hand
    assert [each.epoch for each in shard.state().closed] == [*range(by + 1, 4), 3 + by]
    assert shard.ask("contains", b"".join(some)).count(0) == min(4, by + 1)


def test_no_more_periods_than_its_times_allow(client):
    """BADPHASE: a shard that was opened, or written to, too late goes forward by less; a later closing is its own."""
    shard = ring(client, write="newest", expire_after="first-seen")
    now = shard.now()
    for written, by in ((0, 4), (now - 2 * DAY + 5000, 2), (now - 3 * DAY - 5000, 4), (now + DAY, 1)):
        client.hset(KEYS.meta, mapping={"opened": now - 4 * DAY - 1000, "written": written})
        for more in range(by, 6):
            call = calls.turn("allocate", KEYS, shard.state(), TOKEN, shard.view.slices[-1], period=DAY, by=more)
            if more == by:
                assert shard.call(call) == 1
            else:
                refused(shard, call)
    refused(shard, calls.turn("allocate", KEYS, shard.state(), TOKEN, shard.view.slices[-1], by=2), "BADARG")
    client.hset(KEYS.meta, "written", now - 3 * DAY + 7)
    names = ["history_1", "today"]
    times = {"period": DAY, "by": 2, "opened": now - 3 * DAY, "names": names}
    shard.call(calls.turn("turn", KEYS, shard.state(), TOKEN, shard.view.slices[-1], **times))
    assert shard.state().opened == now - 2 * DAY + 7
    assert "written" not in shard.meta()


@pytest.mark.parametrize("by", [1, 2, 3, 5])
def test_rolling_passes_over_periods(client, by):
    """What was merged goes when the next history is built; if all has expired, at once."""
    shard = Shard(client, geometry("blocked", 8, 64, retention="rolling", slices=3, period="1d"))
    shard.ask("insert", A)
    missed(shard, by, days=by + 0.5)
    state = shard.state()
    assert (state.epoch, state.phase, state.closed[-1].epoch) == (by, "rotating", 0)
    assert shard.ask("contains", A + B) == ([0, 0] if by > 2 else [2, 0])
    shard.call(build(shard, "archived", number=1))
    shard.call(build(shard, "finish", number=1, oldest=max(0, by - 2)))
    shard.refresh()
    state = shard.state()
    assert [each.name for each in state.view.slices] == (["today"] if by > 2 else ["history", "today"])
    assert len(client.keys("*:history*")) == (by <= 2)
    assert shard.ask("contains", A + B) == ([0, 0] if by > 2 else [2, 0])
    shard.ask("insert", B)
    missed(shard, 3, days=4)
    assert shard.ask("contains", A + B) == [0, 0]
    assert client.keys("*:history*") == []


def marked(shard, slot=0, ahead=60_000):
    return shard.call_id(slot, 1, ahead) + "*"


HOLDING = claims.Holding("01" * 8, 60_000)


@pytest.mark.parametrize("waits", ["", "+"])
@pytest.mark.parametrize("command", ["insert", "claim", "commit"])
def test_a_call_that_turns_first(client, command, waits):
    """DUE, and nothing is written, once a whole period was missed; other calls, and repeats, are answered."""
    shard = ring(client, write="newest", expire_after="first-seen")
    first = shard.call_id(7) + waits + "*"
    more = {"kept": [b""]}
    made = {name: shard.made(command, A, name, HOLDING, **more) for name in (first, marked(shard, 8), shard.call_id(9))}
    assert shard.call(made[first]) == [0]
    shard.refresh()
    now = shard.now()
    for opened, written, refused_ in (
        (now - 2 * DAY + 60_000, 0, False),
        (now - 2 * DAY - 1, 0, True),
        (now - 9 * DAY, now - DAY + 60_000, False),
        (now - 9 * DAY, now - DAY - 1, True),
        (now - 9 * DAY, now + DAY, False),
        (now + DAY, 0, False),
    ):
        client.hset(KEYS.meta, mapping={"opened": opened, "written": written})
        call = shard.made(command, B, marked(shard, abs(opened + written) % 10**9), HOLDING, **more)
        if refused_:
            refused(shard, call, "DUE")
            client.hset(KEYS.meta, "phase", "rotating")  # a turn that was left is finished before the next
            refused(shard, call, "DUE")
            client.hset(KEYS.meta, "phase", "creating")
            assert shard.call(shard.made(command, A, marked(shard, 3), HOLDING, **more))[0] in {-1, 1}
            client.hset(KEYS.meta, mapping={"phase": "idle", "opened": opened, "written": written})
        else:
            shard.call(call)
    client.hset(KEYS.meta, mapping={"opened": now - 9 * DAY, "written": 0})
    assert shard.call(made[first]) == [0]  # its record
    assert shard.call(shard.made(command, A, shard.call_id(10), HOLDING, **more))[0] != 0
    assert shard.ask("contains", A) != [0]


def test_when_today_was_written_to(client):
    """With each change; with last-seen also as an item is seen again. It never goes back, and is gone after a turn."""
    for expire_after in ("first-seen", "last-seen"):
        shard = ring(client, write="newest", expire_after=expire_after)
        assert shard.state().written == 0
        for sent, wrote in ((A, True), (A, expire_after == "last-seen"), (A + B, True)):
            client.hset(KEYS.meta, "written", 5)
            before = shard.now()
            shard.ask("insert", sent)
            assert (before <= shard.state().written <= shard.now() + 1) == wrote
            assert wrote or shard.state().written == 5
        for command in ("claim", "commit"):
            client.hset(KEYS.meta, "written", 5)
            shard.call(shard.made(command, A, holding=HOLDING, kept=[b""]))
            assert (shard.state().written > 5) == (expire_after == "last-seen"), command
        shard.refresh()
        client.hset(KEYS.meta, "written", 5)
        shard.call(shard.made("claim", md5(b"c"), holding=HOLDING, kept=[b""]))
        assert shard.state().written == 5
        shard.call(shard.made("commit", md5(b"c"), holding=HOLDING))
        assert shard.state().written > 5
        shard.refresh()
        soon = shard.now() + 30_000
        for before, after in ((soon, soon), (soon + DAY, 999_999_999_999_999)):
            client.hset(KEYS.meta, "written", before)
            shard.ask("insert", md5(b"%d" % before))
            assert shard.state().written == after
        assert shard.state().closes(soon, DAY) == shard.state().opened + DAY
        client.hset(KEYS.meta, "written", 5)
        shard.call(calls.merge("piece", shard.config, KEYS, shard.state(), 1, 0, b"\xff"))
        assert shard.state().written > 5
        turned(shard)
        assert shard.state().written == 0


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("opened", "ahead", "turns"),
    [
        (-2.5, [], False),
        (-2.5, [-2.6], False),
        (-2.5, [1], True),
        (-2.5, [-2.6, 1], True),
        (2, [1, 3], True),
        (2, [0.5, 3], False),
    ],
)
def test_a_turn_after_a_clock_that_was_ahead(shard, opened, ahead, turns):
    """A time of opening in the future counts as now; if earlier ones are kept, the latest that has passed counts.

    So it does if today was opened by a clock that was ahead, but for less than has passed since.
    """
    now = shard.client.time()[0] * 1000
    times = [now - round(hours * HOUR) - (hours == 1) for hours in (opened, *ahead)]  # an hour ago: just over
    shard.client.hset(KEYS.meta, mapping={"opened": times[0], "ahead": "".join(f" {each}" for each in times[1:])})
    call = calls.turn(
        "allocate", KEYS, shard.state(), TOKEN, shard.view.slices[-1], period=HOUR, names=["history_1", "today"]
    )
    if turns:
        assert shard.call(call) == 1
    else:
        refused(shard, call)
