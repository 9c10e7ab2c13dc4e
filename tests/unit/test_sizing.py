"""Geometry: known values, the promised error rate, and what cannot be had."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis.bloom import sizing
from urifilter_redis.bloom.digest import classic_offsets
from urifilter_redis.bloom.sizing import LAYOUTS, REDISBLOOM, segment_limit, size
from urifilter_redis.protocol.scripts import vectors

VECTORS = json.loads(vectors())

KNOWN_BITS = [
    (float(rate), int(k), bits) for rate, by_k in VECTORS["blocked_bits_per_item"].items() for k, bits in by_k.items()
]

BITMAPS = tuple(each for each in LAYOUTS if each != REDISBLOOM)
OF_THE_MODULE = [tuple(each.values()) for each in VECTORS["redisbloom"]]


def test_classic_known_values():
    """Ten million items at 1e-4: Bloom's formula gives 191,701,168 bits if k were no whole number."""
    assert sizing.classic_bits(10**7, 1e-4) == 191_729_778
    assert sizing.classic_k(191_729_778, 10**7, 1e-4) == 13
    assert sizing.classic_error_rate(10, 20) == pytest.approx(8.89e-5, rel=1e-3)


@pytest.mark.parametrize(("rate", "k", "bits"), KNOWN_BITS)
def test_blocked_known_values(rate, k, bits):
    """The published bits an item of every k and error rate."""
    assert sizing.blocked_bits_per_item(k, rate) == pytest.approx(bits, abs=1e-3)


def test_blocked_default():
    """At 1e-4: k = 12, 23.2 bits an item."""
    found = size(10**6, 1e-4)
    assert (found.layout, found.k) == ("blocked", 12)
    assert 8 * found.segment_bytes * found.segments / found.capacity == pytest.approx(23.2, abs=0.05)


@pytest.mark.parametrize(("rate", "k"), [(1e-2, 8), (1e-3, 8), (1e-4, 12), (1e-5, 16), (1e-6, 16)])
def test_blocked_takes_the_smallest_k_that_is_nearly_best(rate, k):
    """A larger k is taken only if it saves more than 5 % of the bits."""
    assert size(10**6, rate).k == k


@pytest.mark.parametrize("rate", [1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("capacity", [1, 10, 100, 1000, 10_000, 10**6])
def test_fewest_bits_of_classic(capacity, rate):
    """Bloom's rate and the floor of double hashing, 4 n/m², are within the asked rate, and with a bit less are not."""

    def expected(bits):
        k = sizing.classic_k(bits, capacity, rate)
        return sizing.classic_error_rate(k, bits / capacity) + 4 * capacity / bits**2

    found = size(capacity, rate, "classic")
    if found.shards == 1:
        assert expected(found.units) <= rate < expected(found.units - 1)
    assert found.k <= math.ceil(-math.log2(rate))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("capacity", "rate", "filters", "asked"),
    [(1, 1e-2, 500, 200), (22, 1e-2, 60, 2000), (97, 1e-3, 40, 10_000), (3000, 1e-2, 2, 20_000)],
)
def test_measured_error_rate_of_classic(capacity, rate, filters, asked):
    """Filters at capacity, asked for what they do not hold: the asked rate is had, by tiny ones and others."""
    found = size(capacity, rate, "classic")
    draw, wrong = random.Random(1), 0
    for _ in range(filters):
        cells = set()
        for _ in range(capacity):
            cells.update(classic_offsets(draw.randbytes(16), found.units, found.k))
        for _ in range(asked):
            wrong += all(each in cells for each in classic_offsets(draw.randbytes(16), found.units, found.k))
    expected = filters * asked * rate
    assert wrong <= expected + math.sqrt(expected)  # chance moves it by as much, and not by the 8 % of a wrong size


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", [1, 3, 12, 20])
def test_grown_slices_have_their_share(layout, share, index):
    """A later slice has the k of the first, and the rate that it may add."""
    first = size(1000, 1e-4, layout)
    later = sizing.grown(first, index, share)
    if later is not None:
        assert later.k == first.k or layout == REDISBLOOM  # the module chooses it
        assert later.segment_bytes <= segment_limit(layout)
        assert later.error_rate_at_capacity <= share * (1 + 1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rate", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("capacity", [1, 1000, 10**6, 10**8, 10**10])
def test_the_asked_error_rate_is_had(layout, rate, capacity):
    """At capacity the expected error rate is the asked one, or just under."""
    if layout == "counting" and capacity > 10**9 and rate < 1e-2:
        pytest.skip("4,096 shards are too few")
    found = size(capacity, rate, layout)
    assert found.error_rate_at_capacity <= rate * (1 + 1e-9)
    assert found.segment_bytes <= segment_limit(layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capacity", [10**6, 10**7, 10**8])
def test_fewest_shards(layout, capacity):
    """One shard fewer would not fit."""
    found = size(capacity, 1e-4, layout)
    if found.shards > 1:
        with pytest.raises(ValueError, match=f"{found.shards} are needed"):
            size(capacity, 1e-4, layout, found.shards - 1)


@pytest.mark.parametrize(("items", "rate", "length", "hashes"), OF_THE_MODULE)
def test_size_of_a_module(items, rate, length, hashes):
    """As RedisBloom 2.8.2 tells them by BF.DEBUG."""
    assert sizing.module_bytes(items, rate) == length
    assert sizing.module_hashes(rate) == hashes


def test_error_rate_in_a_module():
    """It is asked for twice what it sizes for; and past its capacity it has a filter more, within what was asked."""
    assert sizing.module_rate(0, 1000, 1e-4) == 0
    assert sizing.module_rate(10**6, 10**6, 1e-4) == pytest.approx(5e-5, rel=0.1)
    assert sizing.module_rate(1001, 1000, 1e-4) == 1e-4
    assert sizing.module_fill(1000, 1000, 1e-4) == sizing.module_fill(3000, 1000, 1e-4) == pytest.approx(0.5, abs=0.02)
    assert size(10**8, 1e-4, REDISBLOOM).shards == 4
    assert size(1, 1e-4, REDISBLOOM).units > 100  # where a key is missing the module makes a filter for 100


@pytest.mark.parametrize("capacity", [1, 100, 1000, 30_000, 10**6])
@pytest.mark.parametrize("rate", [0.01, 1e-4, 1e-6, 1e-9])
def test_small_filters_of_a_module(capacity, rate):
    """Items whose bits coincide are counted, and there are bits enough for them."""
    found = size(capacity, rate, REDISBLOOM)
    assert found.error_rate_at_capacity <= 1.01 * rate
    assert sizing.module_rate(capacity, capacity, rate) > found.error_rate_at_capacity or found.units == capacity


def test_powers_of_two_above_64_shards():
    """12 bits fall evenly on powers of two only."""
    assert size(10**9).shards == 256
    assert size(365_000_000).shards == 64
    assert size(370_000_000).shards == 128
    with pytest.raises(ValueError, match="above 64 a power of two"):
        size(1000, shards=65)
    assert size(1000, shards=64).shards == 64
    assert size(1000, shards=4096).shards == 4096


def test_a_shard_has_room_for_its_luck():
    """n/S plus three standard deviations; one shard gets exactly n."""
    assert size(1000).shard_capacity == 1000
    assert size(1_000_000, shards=100 - 36).shard_capacity == math.ceil(15_625 + 3 * 125)


@pytest.mark.slow
@given(st.sampled_from(BITMAPS), st.integers(1, 10**9), st.floats(1e-7, 0.3))
def test_fill_and_error_rate_agree(layout, capacity, rate):
    """The error rate inverted from the expected fill is the one at that load."""
    found = size(capacity, rate, layout)
    cells = 8 * found.segment_bytes if layout == "blocked" else found.units
    fill = -math.expm1(-found.k * capacity / (cells * found.shards))
    now = sizing.error_rate_from_fill(layout, found.k, found.units, fill)
    assert now == pytest.approx(found.error_rate_at_capacity, rel=0.02)


@pytest.mark.parametrize("layout", BITMAPS)
def test_error_rate_from_fill_at_the_ends(layout):
    """An empty bitmap has no false positives, a full one nothing else."""
    assert sizing.error_rate_from_fill(layout, 12, 1000, 0.0) == 0.0
    assert sizing.error_rate_from_fill(layout, 12, 1000, 1.0) == 1.0


@pytest.mark.parametrize("layout", ["classic", "counting"])
def test_error_rate_from_fill_has_the_floor(layout):
    """Of a tiny filter with many offsets an item nearly all of the rate is the floor of double hashing."""
    found = size(10, 1e-6, layout)
    fill = 1 - math.exp(-found.k * 10 / found.units)
    now = sizing.error_rate_from_fill(layout, found.k, found.units, fill)
    assert now == pytest.approx(fill**found.k + 4 * 10 / found.units**2)
    assert fill**found.k < now / 1000


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_wrongly_skipped_is_the_integral(layout):
    """Many more steps change it by less than 1 %."""
    found = size(10**6, 1e-4, layout)
    steps = 20_000
    fine = sum(found.error_rate_at((i + 0.5) * 10**6 / steps) for i in range(steps)) * 10**6 / steps
    assert found.wrongly_skipped == pytest.approx(fine, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "whole number from 1 up"),
        ((1.5,), "whole number"),
        ((True,), "whole number"),
        ((1000, 0), "error_rate is from"),
        ((1000, 0.9), "error_rate is from"),
        ((1000, math.nan), "error_rate is from"),
        ((1000, 1e-4, "cuckoo"), "layout is one of blocked, classic"),
        ((1000, 1e-4, "blocked", 0), "shards are 1 to 4096"),
        ((1000, 1e-4, "blocked", 8192), "shards are 1 to 4096"),
        ((1000, 1e-4, "blocked", 2.0), "shards are 1 to 4096"),
        ((1000, 1e-4, "blocked", True), "shards are 1 to 4096"),
        ((1000, 1e-4, "blocked", "2"), "shards are 1 to 4096"),
        ((10**11,), "4096 bitmaps are too few"),
        ((10**12,), "4096 bitmaps are too few"),
        ((10**400,), "4096 bitmaps are too few"),
        ((10**8, 1e-4, "blocked", 4), "18 are needed"),
    ],
)
def test_what_cannot_be_had(arguments, message):
    """The message says what can."""
    with pytest.raises(ValueError, match=message):
        size(*arguments)


def test_an_error_rate_that_needs_more_than_any_memory():
    """So few offsets cannot have it, however many bits there are."""
    assert sizing.blocked_bits_per_item(1, 1e-7) == math.inf
    assert math.isfinite(sizing.blocked_bits_per_item(4, 1e-7))


def test_an_empty_filter_errs_never():
    """Then more with each item, up to what was asked."""
    made = size(1000, 1e-4)
    rates = [made.error_rate_at(items) for items in (0, 1, 10, 100, 1000)]
    assert rates == sorted(set(rates))
    assert (rates[0], rates[-1]) == (0, pytest.approx(made.error_rate_at_capacity))
