"""The arithmetic of costs: calls, rotations, checkpoints and closed slices, from the measured figures."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from urifilter_redis.bloom import costs
from urifilter_redis.bloom.digest import blocked_offsets
from urifilter_redis.bloom.retention import size_first
from urifilter_redis.bloom.sizing import MODULE_LIMIT, SEGMENT_LIMIT
from urifilter_redis.protocol.config import Settings
from urifilter_redis.storage.packing import pack

ROLLING = {"retention": "rolling", "slices": 30, "period": "1d"}
RING = {"retention": "ring", "slices": 4, "period": "1d"}


def settings(**more) -> Settings:
    return Settings(**({"capacity": 1000} | more))


@pytest.mark.parametrize(("shards", "items"), [(1, 3), (2, 1), (2, 5), (3, 4), (5, 3)])
def test_calls_of_a_list(shards, items):
    """The mean number of shards that a list reaches, over all ways in which its items can fall."""
    ways = [len({*way}) for way in itertools.product(range(shards), repeat=items)]
    found = costs.insert_cost(settings(shards=shards), items, 500)
    assert found.calls == pytest.approx(sum(ways) / len(ways))
    assert found.new == pytest.approx(costs.NEW["blocked"][1] + costs.A_CALL[1] * found.calls / items)
    assert found.seen == pytest.approx(costs.SEEN["blocked"] + costs.A_CALL[1] * found.calls / items)


def test_long_lists_are_cut():
    """A call has at most so many items; a list of many is cut, also for one shard."""
    assert costs.insert_cost(settings(), 10_000, 500).calls == 20
    assert costs.insert_cost(settings(), 10_000, 100).calls == 100
    assert costs.insert_cost(settings(shards=64), 1_000_000, 500).calls == 2000


@pytest.mark.parametrize("layout", ["blocked", "classic"])
@pytest.mark.parametrize("write", ["newest", "all"])
def test_more_slices_cost_more(layout, write):
    """The measured figures are kept, and those between and beyond them rise from one to the next."""
    table = (costs.NEW_IN_ALL if write == "all" else costs.NEW)[layout]
    ring = {"layout": layout, "write": write, "retention": "ring", "period": "1d"}
    found = {n: costs.insert_cost(settings(slices=n, **ring), 10**9, 10**9).new for n in (2, 3, 4, 5, 30, 400)}
    assert found == dict(sorted(found.items(), key=lambda pair: pair[1]))
    for slices in found.keys() & table.keys():
        assert found[slices] == pytest.approx(table[slices], rel=1e-6)
    assert found[3] == pytest.approx((found[2] + found[4]) / 2, rel=1e-6)


def test_forever_never_turns():
    """Nothing expires, and nothing grows."""
    assert costs.rotation_cost(settings()) is None


def test_a_ring_only_allocates():
    """The pause is that of a bitmap of the same size; shards turn one after the other."""
    found = costs.rotation_cost(settings(capacity=100_000_000, **RING))
    sizing = size_first(settings(capacity=100_000_000, **RING))
    assert found.pause == pytest.approx(costs.TURN / 1000 * sizing.segment_bytes / SEGMENT_LIMIT)
    assert found.shard == pytest.approx(found.pause * sizing.segments / sizing.shards)
    assert found.filter == pytest.approx(sizing.shards * found.shard)
    assert sizing.shards > 1


@pytest.mark.parametrize(("slices", "others"), [(2, 0), (3, 1), (30, 28)])
def test_a_rolling_filter_reads_the_other_slices(slices, others):
    """All closed slices of the window but the one that was just closed and the one that falls out."""
    rolling = settings(capacity=1_000_000, **ROLLING | {"slices": slices})
    found, size = costs.rotation_cost(rolling), size_first(rolling).segment_bytes
    built = (costs.BUILD + others * costs.BUILD_SLICE) / 1000 * size / 2**20
    assert found.shard == pytest.approx(found.pause + built)


def test_a_growing_filter_comes_to_full_slices():
    """However small the first one is, the longest pause is that of a bitmap of the highest size, and 16 are made."""
    found = costs.rotation_cost(settings(retention="growing"))
    assert (found.pause, found.shard) == pytest.approx((costs.TURN / 1000, 16 * costs.TURN / 1000))


def test_a_module_allocates_as_it_is_written_to():
    """The pause is that of the first calls on a slice of its size, and a new item is cheap."""
    ring = settings(capacity=100_000_000, layout="redisbloom", **RING)
    found, sizing = costs.rotation_cost(ring), size_first(ring)
    assert found.pause == pytest.approx(costs.TURN_OF_MODULE / 1000 * sizing.segment_bytes / MODULE_LIMIT)
    assert costs.insert_cost(ring, 500, 500).new < costs.insert_cost(settings(**RING), 500, 500).new / 3


def test_a_module_gets_items_segment_by_segment():
    """A list that reaches four of them costs that order, and three bitmaps more."""
    one, four = (settings(capacity=capacity, layout="redisbloom") for capacity in (1_000_000, 100_000_000))
    assert size_first(four).segments == 4
    more = costs.insert_cost(four, 200, 250).new - costs.insert_cost(one, 200, 250).new
    assert more == pytest.approx(costs.AN_ORDERED_ITEM + 3 * costs.A_BITMAP / 200)


def test_checkpoints_cost_by_size():
    """A figure a MiB."""
    assert costs.checkpoint_seconds(0) == 0
    assert costs.checkpoint_seconds(100 * 2**20) == pytest.approx(costs.CHECKPOINT / 10)


@pytest.mark.parametrize("slices", [2, 10, 30])
def test_closed_slices_take_what_was_said(slices):
    """A real bitmap with its part of the window's items is packed into no more, and not much less."""
    rolling = settings(capacity=20_000, **ROLLING | {"slices": slices})
    sizing, bitmap, draw = size_first(rolling), bytearray(), random.Random(1)
    bitmap.extend(bytes(sizing.segment_bytes))
    for _ in range(20_000 // slices):
        for offset in blocked_offsets(draw.randbytes(16), sizing.units, sizing.k):
            bitmap[offset // 8] |= 1 << offset % 8
    packed = (slices - 1) * len(pack(bytes(bitmap)))
    assert 0.6 * costs.closed_bytes(rolling) < packed <= costs.closed_bytes(rolling)


def test_only_rolling_filters_keep_closed_slices():
    """A ring's are live."""
    assert [costs.closed_bytes(settings(**each)) for each in ({}, RING, {"retention": "growing"})] == [0, 0, 0]


def test_the_page_has_the_measured_figures():
    """The table of the page on scale, and where it says that a filter ends, are those of the code."""
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "scale.md").read_text()
    found = re.findall(r"^\| .* \| ([\d.]+) (?:µs|ms) \|$", page, re.MULTILINE)
    new = costs.NEW["blocked"]
    calls = [costs.A_CALL[1], costs.A_BITMAP, new[1], costs.NEW["classic"][1], new[2], new[4], costs.SEEN["blocked"]]
    assert [*map(float, found)] == [*calls, costs.TURN, costs.BUILD, costs.BUILD_SLICE, costs.CHECKPOINT]
    assert f"from `{costs.COMMAND}`" in page
    assert "AMD EPYC of 2022, 2.6 GHz" in page
    assert "AMD EPYC of 2022, 2.6 GHz" in costs.MACHINE
    (most,) = re.findall(r"4,096 bitmaps in a slice: (\d+) billion items at 1 in 10,000", page)
    assert size_first(settings(capacity=int(most) * 10**9)).segments == 4096
    with pytest.raises(ValueError, match="bitmaps are too few"):
        settings(capacity=(int(most) + 1) * 10**9)
