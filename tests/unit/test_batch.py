"""The items of one call: how they are cut, and how answers find their places."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import config_of

from urifilter_redis.bloom.digest import make_digester, shard_of, shards_of
from urifilter_redis.engine.batch import PART_OF_A_SHARD, Batch, Uncut, check_question
from urifilter_redis.engine.holdings import Claiming
from urifilter_redis.engine.near_cache import NearCache
from urifilter_redis.errors import BadItem, UriFilterError
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.protocol.claims import BYTES_A_CALL, NO_HOLDER
from urifilter_redis.protocol.config import Sorting

MD5 = make_digester("none", "md5", "")
KEY = CallKey("0123456789abcdef/7/1")


def batch_of(items, shards=1, size=10, command="insert", **more) -> Batch:
    """A batch whose calls have ``size`` items at most, and one more in each further shard."""
    return Batch(command, items, MD5(items), shards=shards, cut=lambda shard: size + shard, client="c" * 16, **more)


@given(st.lists(st.integers(), max_size=60), st.integers(1, 7), st.integers(1, 9))
def test_cut(items, shards, size):
    """Every item is in one call of its own shard, in order, with its digest; each call but a shard's last is full."""
    batch, digests = batch_of(items, shards, size), MD5(items)
    assert sorted(position for call in batch.open for position in call.positions) == list(range(len(items)))
    for shard in range(shards):
        calls = [call for call in batch.open if call.shard == shard]
        positions = [position for call in calls for position in call.positions]
        assert positions == [n for n, digest in enumerate(digests) if shard_of(digest, shards) == shard]
        assert [len(call.positions) for call in calls[:-1]] == [size + shard] * (len(calls) - 1)
        assert all(0 < len(call.positions) <= size + shard for call in calls)
    for call in batch.open:
        assert call.packed == b"".join(digests[position] for position in call.positions)
    assert batch.answers == [None] * len(items)


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 70),
    st.sampled_from([4, 18, 256]),
    st.integers(0, 1),
)
def test_sorted_by_segment(items, shards, size, part, ranges, beyond):
    """The items of a call are sorted by segment, and equal ones keep their order."""
    batch, digests = batch_of(items, shards, size, sorting=Sorting(ranges, beyond), part=part), MD5(items)
    calls = batch.cut(math.inf)
    assert sorted(position for call in calls for position in call.positions) == list(range(len(items)))
    for call in calls if len(items) > 1 else []:
        numbers = list(shards_of([digests[position] for position in call.positions], ranges))
        if beyond == 0:  # with 1 an item of a part that fills one call keeps its place
            assert numbers == sorted(numbers)
        assert call.packed == b"".join(digests[position] for position in call.positions)
    for shard in range(shards):
        positions = [position for call in calls if call.shard == shard for position in call.positions]
        of_each = [[position for position in positions if digests[position] == digest] for digest in set(digests)]
        assert all(some == sorted(some) for some in of_each)


@given(st.integers(0, 3000), st.integers(1, 5), st.integers(1, 700), st.integers(1, 9))
def test_cut_in_parts(count, shards, part, wanted):
    """However large the parts are, the calls of each shard are the same, and come as soon as they are asked for."""
    items = range(count)
    whole, batch = batch_of(items, shards, 100), batch_of(items, shards, 100, part=part)
    calls = []
    while found := batch.cut(wanted):
        assert len(found) >= wanted or len(batch.cut(wanted + 1)) == len(found)
        calls.append(found[0])
        batch.close(found[0], found[0].positions)
    assert batch.answers == list(items)
    for shard in range(shards):
        one, other = ([(list(e.positions), e.packed) for e in each if e.shard == shard] for each in (whole.open, calls))
        assert one == other


def test_no_more_than_is_asked_for_is_cut():
    """The first call of a long list is there before the list was looked through."""
    items = range(20 * PART_OF_A_SHARD)
    batch = batch_of(items, 1, 10, part=PART_OF_A_SHARD)
    assert len(batch.cut(1)) == PART_OF_A_SHARD // 10
    digests = MD5(items)
    _, rest = Uncut(digests, 2, lambda _: 10, 1).cut()
    assert rest is not None
    assert rest.start == 2 * PART_OF_A_SHARD
    assert sum(map(len, rest.left.values())) < 2 * 10


@given(st.lists(st.integers(), max_size=60), st.integers(1, 7), st.randoms(use_true_random=False))
def test_answers_in_any_order(items, shards, dice):
    """Answers may come in any order of the calls; each item has its own, and none is there before its call's."""
    batch = batch_of(items, shards, 4)
    calls = list(batch.open)
    dice.shuffle(calls)
    answered = set()
    for call in calls:
        assert {n for n, answer in enumerate(batch.answers) if answer is not None} == answered
        batch.close(call, [100 + position for position in call.positions])
        answered |= set(call.positions)
    assert batch.open == []
    assert batch.answers == [100 + position for position in range(len(items))]


def test_answers_of_another_number():
    """A reply with more or fewer answers than items is not taken over, with one shard or several."""
    for shards in (1, 3):
        batch = batch_of(range(30), shards)
        call = batch.open[0]
        for answers in ([0] * (len(call.positions) - 1), [0] * (len(call.positions) + 1), []):
            with pytest.raises(UriFilterError, match="items were asked about"):
                batch.close(call, answers)
        assert batch.answers == [None] * 30
        assert call in batch.open


def test_calls_are_themselves():
    """Of two calls with the same items the one that was answered is closed."""
    batch = batch_of(["a", "a"], size=1)
    first, second = batch.open
    batch.close(second, [1])
    assert batch.open == [first]
    assert batch.answers == [None, 1]


@given(st.lists(st.integers(), min_size=1, max_size=60), st.integers(1, 5))
def test_calls_named_by_a_key(items, shards):
    """The same request under the same key has the same ids, whoever makes it and when; no two calls of a shard do."""
    one, other = batch_of(items, shards, 3), batch_of(items, shards, 3)
    one.name_calls(KEY, shards, lambda _: 1000)
    other.name_calls(KEY, shards, lambda _: 2000)
    assert [call.call_id.key for call in one.open] == [call.call_id.key for call in other.open]
    assert {call.call_id.started for call in one.open} == {1000}
    assert all(call.call_id.keyed for call in one.open)
    named = [(call.shard, call.call_id.key) for call in one.open]
    assert len(set(named)) == len(named)


def test_other_items_or_commands_under_a_key():
    """A key in words may be for these items alone; one in numbers is a slot for each command."""

    def first_id(items, command, key):
        batch = batch_of(items, command=command)
        batch.name_calls(key, 1, lambda _: 0)
        return batch.open[0].call_id.key

    words = CallKey("any words", of_items=True)
    asked = [(["a"], "insert"), (["b"], "insert"), (["a"], "forget"), (["a", "b"], "insert")]
    assert len({first_id(*each, words) for each in asked}) == 4
    assert len({first_id(*each, KEY) for each in asked}) == 2


def test_what_it_is_of():
    """A batch is of one command, age and list of items, whatever their type."""
    batch = batch_of(("a", "b"), command="contains", max_age=2)
    assert batch.is_of("contains", MD5(["a", "b"]), 2)
    assert batch.is_of("contains", MD5([b"a", "b"]), 2)
    assert not batch.is_of("insert", MD5(["a", "b"]), 2)
    assert not batch.is_of("contains", MD5(["a", "b"]), 0)
    assert not batch.is_of("contains", MD5(["b", "a"]), 2)
    assert not batch.is_of("contains", MD5(["a"]), 2)
    assert not batch.is_of("contains", MD5([]), 2)


def test_what_writes():
    """All but contains."""
    commands = ("insert", "contains", "forget", "remove")
    assert [batch_of([], command=command).writes for command in commands] == [True, False, True, True]


def test_bad_items():
    """Nothing is made of a list with bad items; the error has all of their indices, normalised or not."""
    items = ["https://a.example/", math.nan, b"b", {"c"}, "http://[::1", [math.inf]]
    for normalize in ("none", "whatwg"):
        with pytest.raises(BadItem, match="item 1") as caught:
            make_digester(normalize, "md5", "")(items)
        assert caught.value.indices == [1, 3, 5]
    with pytest.raises(BadItem):
        batch_of(items)


def test_normalised_digests():
    """Two spellings of one URL have one digest in a filter that normalises, and two in one that does not."""
    spellings = ["HTTP://EXAMPLE.com:80/%7ea?b=1&a=2", "http://example.com/%7ea?b=1&a=2"]
    whatwg = make_digester("whatwg", "md5", "")
    assert len(set(MD5(spellings))) == 2
    assert set(whatwg(spellings)) == set(MD5(spellings[1:]))
    assert all(len(digest) == 16 for digest in whatwg(["", b"\xff", 1, [None]]))


RING = {"retention": "ring", "slices": 5, "period": "1d"}


@pytest.mark.parametrize("max_age", [1, 5])
def test_ages_that_a_ring_has(max_age):
    """One to its slices."""
    check_question(config_of(**RING), "contains", max_age)


@pytest.mark.parametrize("max_age", [0, 6, -1, True, 2.0, "2"])
def test_ages_that_a_ring_has_not(max_age):
    """The message says how many there are."""
    with pytest.raises(ValueError, match="max_age is 1 to 5"):
        check_question(config_of(**RING), "contains", max_age)


@pytest.mark.parametrize("retention", ["forever", "growing", "rolling"])
def test_ages_are_of_rings(retention):
    """Nothing else knows them, not even rolling with its slices."""
    more = {"slices": 5, "period": "1d"} if retention == "rolling" else {}
    config = config_of(retention=retention, **more)
    check_question(config, "insert", None)
    with pytest.raises(ValueError, match=f"ring and not {retention}"):
        check_question(config, "insert", 1)


@pytest.mark.parametrize("layout", ["blocked", "classic", "counting"])
def test_removing(layout):
    """Only counters can go down."""
    config = config_of(layout=layout)
    if layout == "counting":
        check_question(config, "remove", None)
    else:
        with pytest.raises(ValueError, match="use forget"):
            check_question(config, "remove", None)


@given(st.lists(st.integers(0, 140_000), min_size=1, max_size=40), st.integers(1, 3))
def test_cut_by_weight(weights, shards):
    """No call keeps more than 256 KiB, unless of one item; no two neighbours of a shard would fit into one call."""
    kept = dict(enumerate(map(bytes, weights)))
    batch = batch_of(range(len(kept)), shards, 10, "claim", claim_options=Claiming(NO_HOLDER, kept=kept))
    assert sorted(position for call in batch.open for position in call.positions) == list(range(len(kept)))
    for call in batch.open:
        assert call.packed == b"".join(batch.digests[position] for position in call.positions)
        assert len(call.positions) == 1 or sum(weights[each] for each in call.positions) <= BYTES_A_CALL
    for shard in range(shards):
        calls = [call.positions for call in batch.open if call.shard == shard]
        of_it = [position for positions in calls for position in positions]
        full = {of_it[start] for start in range(0, len(of_it), 10 + shard)}  # where calls begin in any case
        for before, after in itertools.pairwise(calls):
            assert after[0] in full or sum(weights[each] for each in [*before, after[0]]) > BYTES_A_CALL


def test_distrusted_items_are_cut_by_weight():
    """What the near cache had answered, and is asked about after all, is cut likewise."""
    near, items = NearCache(100, 60), [f"u{number}" for number in range(9)]
    near.end(near.begin(MD5(items)), [1] * 9, 0)
    kept = dict.fromkeys(range(9), bytes(100_000))
    batch = batch_of(items, 1, 100, "claim", near=near, claim_options=Claiming(NO_HOLDER, kept=kept))
    assert batch.open == []
    batch.distrust(1, lambda _: 100, None)
    assert [len(call.positions) for call in batch.open] == [2, 2, 2, 2, 1]
    assert batch.answers == [None] * 9
