"""What happens to a filter over time, by arithmetic alone: shares, sizes and names of slices."""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import config_of, meta_of

from urifilter_redis.bloom import retention
from urifilter_redis.bloom.retention import growing_share, growing_slice, period_of, seconds_of, slices_at
from urifilter_redis.bloom.sizing import GROWN_SEGMENTS, MODULE_LIMIT, SEGMENT_LIMIT, segment_limit
from urifilter_redis.errors import ConfigMismatch, SliceLost, UriFilterError
from urifilter_redis.protocol.config import FORMAT, Config, Settings
from urifilter_redis.service.settings import FilterSettings
from urifilter_redis.storage.documents import Manifest

TIMED = {"slices": 4, "period": "1d"}
ALL = [
    {},
    {"layout": "classic"},
    {"layout": "counting"},
    {"retention": "growing"},
    {"retention": "growing", "layout": "classic", "error_rate": 1e-3},
    {"retention": "ring", **TIMED},
    {"retention": "ring", "write": "all", "expire_after": "last-seen", **TIMED},
    {"retention": "ring", "period_capacity": 300, **TIMED},
    {"retention": "rolling", "normalize": "whatwg", "hash": "blake2b", **TIMED},
]


@given(st.integers(1, 10**6), st.sampled_from("smhdw"))
def test_periods(number, unit):
    """Text with the largest unit that divides it, and back; a number is seconds."""
    seconds = number * {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[unit]
    if seconds > 100 * 366 * 86_400:
        with pytest.raises(ValueError, match="100 years"):
            period_of(f"{number}{unit}")
        return
    text = period_of(f"{number}{unit}")
    assert seconds_of(text) == seconds
    assert period_of(seconds) == period_of(f" {seconds} ") == period_of(text) == text
    assert period_of(timedelta(seconds=seconds)) == text


NO_PERIODS = ["", "0s", 0, -1, "1.5d", "d", "1y", True, "1 d", 10**12]
NO_PERIODS += [timedelta(0), timedelta(days=-1), timedelta(milliseconds=1500)]


@pytest.mark.parametrize("value", NO_PERIODS, ids=repr)
def test_no_periods(value):
    """The message says how they are written."""
    with pytest.raises(ValueError, match="45s, 10m, 6h, 1d or 2w"):
        period_of(value)


@given(st.floats(1e-12, 0.5))
def test_shares_of_a_growing_filter(rate):
    """However many slices there are, their shares add up to no more than the error rate."""
    total = sum(growing_share(rate, index) for index in range(retention.GROWN_LIMIT))
    assert 0.99 * rate < total < rate


@pytest.mark.parametrize("more", [{}, {"layout": "classic", "error_rate": 1e-3}, {"layout": "redisbloom"}])
def test_growing_slices(more):
    """Each holds twice the one before, until its bitmaps are the largest and the most; a shard has at most 900."""
    config = config_of(retention="growing", capacity=10**4, **more)
    made = [growing_slice(config, index) for index in range(retention.GROWN_LIMIT + 1)]
    there = [each for each in made if each]
    assert made[len(there) :] == [None] * (len(made) - len(there))
    assert len(there) <= retention.GROWN_LIMIT
    assert all(each.segment_bytes <= segment_limit(config.layout) for each in there)
    rows = [each.segments for each in there]
    assert [each.shard_capacity for each in there[:10]] == [there[0].shard_capacity * 2**n for n in range(10)]
    assert (rows, rows[-1]) == (sorted(rows), GROWN_SEGMENTS)
    assert sum(rows) <= retention.BITMAPS_A_SHARD
    assert slices_at(config, config.today, len(there)) == []
    assert len(slices_at(config, config.today, len(there) - 1)) == len(there)


@pytest.mark.parametrize("more", [{"capacity": 20_000_000}, {"capacity": 80_000_000, "layout": "redisbloom"}])
def test_growing_slices_of_other_shards(more):
    """Their bitmaps do not depend on the number of shards."""
    asked = {"retention": "growing", **more}
    assert config_of(**asked).segments == 4
    made = [[growing_slice(config_of(**asked, shards=shards), index) for index in range(50)] for shards in (1, 2, 4)]
    of_whole = [[(each.segments, each.units, each.segment_capacity) for each in slices] for slices in made]
    assert of_whole[1:] == [of_whole[0]] * 2


def test_what_cannot_grow():
    """A classic filter that could hold but little more than its first slice is refused, with what to take."""
    with pytest.raises(ValueError, match="take layout blocked or a higher error_rate"):
        config_of(retention="growing", layout="classic", capacity=10**7, error_rate=1e-9)


@pytest.mark.parametrize(
    ("capacity", "slices", "masters", "shards", "segments"),
    [
        (10_000_000, 3, 1, 2, 2),  # two bitmaps are two shards
        (60_000_000, 3, 1, 4, 12),
        (90_000_000, 3, 1, 6, 18),  # the least divisor of 18 from 4 up, and not 4 with 24 bitmaps
        (100_000_000, 3, 3, 6, 18),
        (1_000_000_000, 12, 1, 4, 48),
        (1_000_000_000, 12, 3, 9, 72),  # a shard of a cluster has 1 GiB in all its slices, and not in each
        (1_000_000_000, 12, 4, 8, 48),
    ],
)
def test_shards_of_a_ring(capacity, slices, masters, shards, segments):
    """A turn needs a spare row of one shard, so a ring has four or more; on a cluster so many for each master."""
    given = Settings(capacity=capacity, error_rate=1e-4, retention="ring", slices=slices, period="1d")
    found = retention.placed(given, masters)
    assert (found.shards, retention.size_first(found).segments) == (shards, segments)


def test_forever_has_one_slice():
    """It never turns."""
    config = config_of()
    assert [each.name for each in slices_at(config, config.today, 0)] == ["today"]
    assert slices_at(config, config.today, 1) == []


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_the_promise_at_capacity(settings):
    """The error rates of all slices that are live together come to no more than was asked."""
    config = config_of(**settings)
    assert 0 < retention.error_rate_at_capacity(config) <= config.error_rate * 1.001
    slices = retention.live_slices(config)
    assert retention.memory(config) >= slices * config.bytes


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_meta_and_back(settings):
    """A configuration is read as it was written; its settings make the same geometry and seed."""
    config = config_of(**settings)
    assert Config.from_meta(meta_of(config), "news") == config
    again = Config.new(Settings(**config.settings))
    assert (again.k, again.units, again.bytes, again.seed) == (config.k, config.units, config.bytes, config.seed)
    config.check(Settings(**{"capacity": 1000} | settings), "news")


def test_other_settings():
    """Each that differs is named, with both values but for a seed's; what was left open does not differ."""
    config = config_of(seed=1, shards=3)
    config.check(Settings(capacity=1000), "news")
    with pytest.raises(ConfigMismatch, match="capacity is 1000 and not 2000, seed is another$") as caught:
        config.check(Settings(capacity=2000, seed=2, hash="mmh3"), "news")
    assert caught.value.differences == {"capacity": (2000, 1000), "seed": ("secret", "secret")}


@pytest.mark.parametrize("shown", [Settings, FilterSettings, config_of])
def test_no_repr_has_the_seed(shown):
    """Who knows it makes items that hide others; a log may have the repr of anything."""
    made = shown(capacity=1000, hash="blake2b", seed="0123456789abcdef" * 2)
    assert made.seed == "0123456789abcdef" * 2
    assert made.seed not in f"{made!r} {made}"
    assert not next(each for each in fields(Manifest) if each.name == "seed").repr


@pytest.mark.parametrize("field", ["format", "fixed", "capacity", "k", "units", "bytes", "uid", "shards", "error_rate"])
def test_a_configuration_that_is_damaged(field):
    """A field that is missing, or no number where there must be one, is told as damage."""
    meta = meta_of(config_of())
    del meta[field]
    with pytest.raises(SliceLost, match="^news: meta is damaged"):
        Config.from_meta(meta, "news")
    if field != "uid":
        with pytest.raises(SliceLost, match="^news: meta is damaged"):
            Config.from_meta(meta | {field: "x"}, "news")


@pytest.mark.parametrize("found", [FORMAT - 1, FORMAT + 1])
def test_another_format(found):
    """It is refused before anything else of it is read."""
    with pytest.raises(UriFilterError, match=f"^news: it is of format {found}, and this .* {FORMAT}:"):
        Config.from_meta({"format": str(found)}, "news")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slices": 4}, "slices is not for retention forever"),
        ({"retention": "ring", "slices": 4}, "needs slices"),
        ({"retention": "ring", "slices": 1, "period": "1d"}, "slices are 2 to 400 for ring"),
        ({"retention": "rolling", "slices": 1001, "period": "1d"}, "slices are 2 to 1000 for rolling"),
        ({"retention": "ring", "slices": True, "period": "1d"}, "slices are 2 to 400"),
        ({"retention": "rolling", "write": "all", **TIMED}, "write is not for retention rolling"),
        ({"retention": "ring", "write": "oldest", **TIMED}, "write is one of newest, all"),
        ({"retention": "ring", "expire_after": "never", **TIMED}, "expire_after is one of"),
        ({"retention": "ring", "write": "all", "period_capacity": 5, **TIMED}, "ring with write newest"),
        ({"period_capacity": 5}, "ring with write newest"),
        *(({"retention": "ring", "period_capacity": n, **TIMED}, "whole number") for n in (0, -1, True, 1.5)),
        ({"layout": "counting", "retention": "growing"}, "forever only"),
        ({"retention": "sometimes"}, "retention is one of forever"),
        ({"normalize": "all"}, "normalize is one of"),
        ({"hash": "sha1"}, "hash is one of"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    """The message says what is possible."""
    with pytest.raises(ValueError, match=message):
        Settings(**{"capacity": 1000} | settings)


@pytest.mark.slow
@given(st.integers(1, 10**7), st.integers(2, 400))
def test_items_of_a_period(capacity, slices):
    """A ring's slice is made for twice its part of the window, and never for more than all of it."""
    config = config_of(capacity=capacity, retention="ring", slices=slices, period="1d", error_rate=1e-3)
    assert retention.slice_capacity(config) == min(capacity, math.ceil(2 * capacity / slices))


def test_periods_that_bring_more():
    """What the caller says a period may bring; all of the window, if what is seen again is written again."""
    ring = {"retention": "ring", "capacity": 1000, "slices": 10, "period": "1d"}
    assert retention.slice_capacity(config_of(**ring, period_capacity=700)) == 700
    assert retention.slice_capacity(config_of(**ring, expire_after="last-seen")) == 1000
    assert retention.slice_capacity(config_of(**ring, write="all")) == 1000


@pytest.mark.parametrize(
    ("more", "shards", "segments"),
    [
        ({}, 1, 4),
        ({"capacity": 10**9}, 1, 48),
        ({"capacity": 10**9, "shards": 6}, 6, 48),
        ({"capacity": 10**9, "retention": "ring", **TIMED}, 4, 24),
        ({"capacity": 5_500_000}, 1, 1),
    ],
)
def test_segments_of_the_module(more, shards, segments):
    """Layout redisbloom has shards by the same rules as others, and segments of at most 64 MiB."""
    found = retention.size_first(Settings(**{"capacity": 10**8, "layout": "redisbloom"} | more))
    assert (found.shards, found.segments) == (shards, segments)
    assert found.segment_bytes <= MODULE_LIMIT
    assert found.error_rate_at_capacity * (4 if "retention" in more else 1) <= 1e-4


@pytest.mark.parametrize(
    ("kind", "most"),
    [({"retention": "growing"}, 8), ({"retention": "ring", "slices": 30, "period": "1d"}, 29)],
    ids=["growing", "ring"],
)
def test_segments_of_one_shard(kind, most):
    """A turn renames all bitmaps of a shard in one script, so there are only so many."""
    capacity, fits = 5_000_000, 1
    while fits:
        try:
            found = retention.size_first(Settings(capacity=capacity, shards=1, **kind))
        except ValueError as error:
            assert str(error).startswith("shards=1 is too few for ")  # noqa: PT017 - what ends the search
            break
        assert found.segment_bytes <= SEGMENT_LIMIT
        fits, capacity = found.segments, capacity * 9 // 8
    assert most - 4 <= fits <= most
