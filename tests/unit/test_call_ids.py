"""Call ids: slots that no two calls in flight share, and keys that name the same call everywhere."""

from __future__ import annotations

import gc
import re
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.together import together

from urifilter_redis.protocol.call_ids import CALL_LIFE, KEYED, PARTS, PROOF_LIFE, CallId, CallIds, CallKey, ServerClock

ITEMS = bytes(32)


@given(st.lists(st.integers(0, 5)))
def test_slots(steps):
    """Calls in flight never share a slot, a slot's sequence only goes up, and a free one is taken again."""
    ids, flying, last = CallIds(), [], {}
    for step in steps:
        if step < 3:
            drawn = ids.draw()
            assert drawn.slot not in {each.slot for each in flying}
            assert drawn.sequence > last.get(drawn.slot, 0)
            last[drawn.slot] = drawn.sequence
            flying.append(drawn)
        elif flying and step < 5:
            ids.release(flying.pop(step % len(flying)))
        elif flying:
            renewed = ids.renew(flying[0])
            assert (renewed.client, renewed.slot) == (flying[0].client, flying[0].slot)
            assert renewed.sequence > flying[0].sequence
            flying[0] = renewed
            last[renewed.slot] = renewed.sequence
    assert len(last) <= sum(step < 3 for step in steps)


def test_as_few_slots_as_calls_in_flight():
    """One after the other, calls need one slot."""
    ids = CallIds()
    for sequence in range(1, 100):
        drawn = ids.draw()
        assert (drawn.slot, drawn.sequence) == (0, sequence)
        ids.release(drawn)


def test_threads():
    """Many threads that draw and give back at once: no two have the same id."""
    ids, drawn = CallIds(), []

    def work():
        for _ in range(300):
            call_id = ids.draw()
            drawn.append(str(call_id).rpartition("/")[0])
            ids.release(call_id)

    together(work for _ in range(8))
    assert len(set(drawn)) == len(drawn) == 2400


def test_as_the_scripts_read_it():
    """client/slot/sequence/deadline, the deadline a minute of the server's time after the start."""
    ids = CallIds()
    ids.clock.learn(5_000_000)
    call_id = ids.draw()
    assert re.fullmatch(r"[0-9a-f]{16}/0/1/\d+", str(call_id))
    assert 5_000_000 + CALL_LIFE <= int(str(call_id).rpartition("/")[2]) < 5_001_000 + CALL_LIFE
    assert call_id.key == f"{ids.client}/0/1"


@given(st.integers(-PROOF_LIFE, 2 * PROOF_LIFE))
def test_proof(after):
    """LATECALL proves something from the deadline on, and no longer than a record is certainly kept."""
    call_id = CallId("0" * 16, 0, 1, 10**12)
    assert call_id.proves_nothing_happened(10**12 + after) is (CALL_LIFE <= after < PROOF_LIFE)


@pytest.mark.parametrize(("node", "proven"), [("a:1", True), ("b:2", False), ("", False)])
def test_proof_by_the_clock_of_another_node(node, proven):
    """After a failover the new master's clock may be ahead, while the call still runs where it was sent: no proof."""
    call_id = CallId("0" * 16, 0, 1, 10**12, node="a:1")
    assert call_id.proves_nothing_happened(10**12 + CALL_LIFE, node) is proven


def test_a_forked_client():
    """It is another client, with slots of its own; what its parent drew is never given back to it."""
    ids = CallIds()
    parents, client = ids.draw(), ids.client
    ids.forked()
    assert ids.client != client
    ids.release(parents)
    assert [ids.draw().slot for _ in range(3)] == [0, 1, 2]


def test_it_is_not_kept():
    """That forks are heard of keeps no CallIds alive."""
    ids = CallIds()
    seen = weakref.ref(ids)
    del ids
    gc.collect()
    assert seen() is None


def test_the_servers_clock():
    """This machine's time until the server has told its own; from then on that, going on."""
    clock = ServerClock()
    assert abs(clock.now() - time.time() * 1000) < 1000
    clock.learn(5_000)
    assert 5_000 <= clock.now() < 6_000


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**15 - 1), st.sampled_from(KEYED), st.integers(0, PARTS - 1))
def test_keys_in_numbers(slot, sequence, command, part):
    """client/slot/sequence is a client of the scope; every command and part has its slot, exact in Lua's numbers."""
    made, *others = (
        CallKey(f"{client}/{slot}/{sequence}", scope).call_id(command, ITEMS, part, 7)
        for client, scope in [("0123456789abcdef", "anybody"), ("0123456789abcdef", "another"), ("0" * 16, "anybody")]
    )
    assert (made.sequence, made.started, made.keyed) == (sequence, 7, True)
    assert made == CallKey(f"0123456789abcdef/{slot}/{sequence}", "anybody").call_id(command, b"others", part, 7)
    assert len({"0123456789abcdef", made.client, *(each.client for each in others)}) == 4
    assert re.fullmatch("[0-9a-f]{16}", made.client)
    assert divmod(made.slot, PARTS) == (slot * len(KEYED) + KEYED.index(command), part)
    assert made.slot < 2**53
    assert len(str(made)) <= 80


OTHER = st.sampled_from(["0123456789abcdef/1", "0123456789abcdef/1/2 ", "0123456789ABCDEF/1/2", "", "\ud800", "é/1/2"])


@pytest.mark.slow
@given(st.text() | OTHER, st.text(), st.sampled_from(KEYED), st.binary(), st.integers(0, 9))
def test_keys_in_words(text, scope, command, packed, part):
    """Any other text names one request of its scope and command; of the library, one of its items, too."""
    made = CallKey(text, scope).call_id(command, packed, part, 7)
    assert made == CallKey(text, scope).call_id(command, packed + bytes(1), part, 7)
    of_items = [
        CallKey(text, scope, of_items=True).call_id(command, each, part, 7) for each in (packed + b"x", packed + b"y")
    ]
    assert re.fullmatch("[0-9a-f]{32}", made.client)
    assert (made.slot, made.sequence, made.keyed) == (part, 1, True)
    others = [
        CallKey(text + "x", scope).call_id(command, packed, part, 7),
        CallKey(text, scope + "x").call_id(command, packed, part, 7),
        CallKey(text, scope).call_id(KEYED[KEYED.index(command) - 1], packed, part, 7),
        *of_items,
    ]
    assert len({made.client, *(each.client for each in others)}) == 6


@pytest.mark.parametrize("text", ["0123456789abcdef/7/1", "any words"])
def test_keyed_calls_keep_their_name(text):
    """Renewed they have a later deadline and the same name; their slots are nobody's to give back."""
    ids = CallIds()
    call_id = CallKey(text).call_id("insert", ITEMS, 3, 7)
    renewed = ids.renew(call_id)
    assert (renewed.key, renewed.keyed) == (call_id.key, True)
    assert renewed.started > call_id.started
    ids.release(renewed)
    assert ids.draw().slot == 0
