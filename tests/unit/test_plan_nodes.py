"""``plan --nodes``: a filter on the masters of a Redis Cluster."""

from __future__ import annotations

import json
import re

import pytest
from support import cli
from urifilter_redis.cli.plan import FILTERS

from urifilter_redis.bloom import costs
from urifilter_redis.bloom.retention import memory
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.routing import shards_by_master

BILLION = 10**9


def run(*arguments: str, code: int = 0) -> str:
    out, err = cli.run("plan", *arguments, code=code)
    return out.decode() + err


def planned(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json"))


def test_the_table():
    """Shards, memory, items a second, checkpoint, and where the figures come from."""
    text = run("--capacity", "1G", "--nodes", "3", "--name", "news")
    rows = {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line)[1:] for line in text.splitlines() if "  " in line}
    assert text.startswith(
        "news: 1,000,000,000 items at 0.0001, blocked, forever: 6 shards of 32 bitmaps of 15.6 MB, on 3 masters"
    )
    assert rows["a master"] == ["least", "most", "in all"]
    assert rows["shards"] == ["2", "2", "6"]
    assert rows["memory"] == ["1.07 GB", "1.07 GB", "3.22 GB"]
    assert {"new items a second", "seen items a second", "size of a full checkpoint"} <= rows.keys()
    assert not any("rotation" in label for label in rows)
    assert costs.COMMAND in text
    assert costs.MACHINE in text


@pytest.mark.parametrize(("name", "shards", "nodes"), [("any", 1, 1), ("news", 18, 4), ("news", 7, 3), ("a", 512, 12)])
def test_what_a_master_has(name, shards, nodes):
    """Least and most are those of the slots of the filter's tags; everything else is in proportion to the shards."""
    found = planned("--capacity", "1M", "--shards", str(shards), "--nodes", str(nodes), "--name", name)
    masters = shards_by_master([name], shards, nodes)
    a_node, whole = found["a_node"], memory(Settings(capacity=1_000_000, shards=shards))
    assert a_node["shards"] == {"least": min(masters), "most": max(masters), "all": shards}
    assert a_node["memory"]["all"] == whole
    assert a_node["memory"]["most"] == whole // shards * max(masters)
    assert a_node["new"]["most"] == pytest.approx(1e6 / found["microseconds"]["new"])
    assert a_node["new"]["all"] == pytest.approx(a_node["new"]["most"] * shards / max(masters))
    assert found["checkpoint"]["bytes"]["filter"] == found["segments"] * found["segment_bytes"]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_few_shards_gain_nothing_by_more_masters(shards):
    """However many masters there are, each shard has one at most. A line says so, and a number of shards that helps."""
    for nodes in (shards + 1, 10):
        found = planned("--capacity", "1M", "--shards", str(shards), "--nodes", str(nodes))
        assert found["a_node"]["shards"]["least"] == 0
        assert found["a_node"]["new"]["all"] <= shards * 1e6 / found["microseconds"]["new"] * (1 + 1e-9)
        (note,) = (each for each in found["notes"] if "more masters do not help" in each)
        (named,) = re.findall(r"--shards (\d+)", note)
        better = planned("--capacity", "1M", "--shards", named, "--nodes", str(nodes))
        assert better["a_node"]["shards"]["least"] > 0
        assert len(better["notes"]) == 1


def test_uneven_shards_are_told():
    """Four shards on three masters do twice the work of one."""
    found = planned("--capacity", "20M", "--nodes", "3", "--shards", "4")
    assert found["a_node"]["shards"] == {"least": 1, "most": 2, "all": 4}
    assert "3 masters do 2 times the work of one. --shards 6 lie evenly" in found["notes"][0]


@pytest.mark.sampled
@pytest.mark.parametrize(("capacity", "filters"), [(BILLION, 1), (10 * BILLION, 1), (100 * BILLION, 5)])
def test_billions(capacity, filters):
    """Filters of at most 4,096 shards hold them all; several are told in words."""
    found = planned("--capacity", str(capacity), "--nodes", "12")
    assert len(found["filters"]) == filters
    assert found["capacity"] * filters >= capacity
    assert found["shards"] <= 4096
    assert found["a_node"]["shards"]["all"] == found["shards"] * filters
    assert any("5 filters. Divide by host" in each for each in found["notes"]) == (filters == 5)
    if filters > 1:
        assert found["filters"] == [f"any-{number}" for number in range(1, filters + 1)]
        with pytest.raises(ValueError, match="bitmaps are too few"):
            Settings(capacity=-(-capacity // (filters - 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "size"), [("blocked", 16), ("redisbloom", 64)])
def test_the_largest_bitmap_that_is_told(layout, size):
    """That of the layout."""
    found = planned("--capacity", "400G", "--layout", layout, "--nodes", "48")
    assert f"bitmaps of {size} MiB" in found["notes"][0]


def test_longer_lists_share_the_calls():
    """The more items a client asks about at once, the less a call costs each."""
    many = ("--capacity", "1G", "--nodes", "3", "--shards", "256", "--batch")
    short, long = (planned(*many, each) for each in ("100", "1M"))
    assert short["calls"] < 100
    assert long["calls"] == 2000
    assert long["microseconds"]["new"] < short["microseconds"]["new"] / 3


def test_few_shards_by_default():
    """As many as masters, so a page of links is a call for each of them; a bitmap that a call names has its price."""
    for nodes, shards in ((1, 1), (3, 3), (5, 5)):
        found = planned("--capacity", "100M", "--nodes", str(nodes), "--batch", "100")
        assert (found["shards"], found["notes"][:-1]) == (shards, [])
        assert found["calls"] == pytest.approx(nodes, rel=1e-6)
        assert found["segments"] % shards == 0
    small = planned("--capacity", "5M", "--nodes", "1", "--batch", "100")
    large = planned("--capacity", "100M", "--nodes", "1", "--batch", "100")
    assert small["microseconds"]["new"] < large["microseconds"]["new"] < 1.2 * small["microseconds"]["new"]


def test_rotations():
    """The rows of a filter that rotates; a rotation that takes over half of the period is told."""
    window = ["--retention", "rolling", "--slices", "30", "--nodes", "6"]
    text = run("--capacity", "1G", *window, "--period", "1d")
    assert "closed slices, in Redis" in text
    assert "over half of the period" not in text
    found = planned("--capacity", "1G", *window, "--period", "1h")
    assert found["rotation"]["filter"] == pytest.approx(found["shards"] * found["rotation"]["shard"])
    assert any("over half of the period" in each for each in found["notes"]) == (found["rotation"]["filter"] > 1800)
    assert "time of the next slice" in run("--capacity", "1M", "--retention", "growing", "--nodes", "3")
    assert planned("--capacity", "1G", "--nodes", "3")["rotation"] is None


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--capacity", "1M", "--nodes", "0"], "nodes are 1 to 16,384 masters, and not 0"),
        (["--capacity", "1M", "--nodes", "-3"], "nodes are 1 to 16,384"),
        (["--capacity", "1M", "--nodes", "20000"], "nodes are 1 to 16,384"),
        (["--capacity", "1M", "--nodes", "three"], "not a valid integer"),
        (["--capacity", "1M", "--nodes", "3", "--batch", "0"], "1 item or more at once"),
        (["--capacity", "1M", "--nodes", "3", "--name", "a/b"], "a filter's name is"),
        (["--capacity", "100G", "--nodes", "3", "--name", "a" * 64], "a filter's name is"),
        (["--capacity", "1M", "--batch", "5"], "--batch needs --nodes"),
        (["--capacity", "1M", "--layout", "classic"], "--layout needs --nodes"),
        (["--capacity", "1M", "--name", "x"], "--name needs --nodes"),
        (["--capacity", "0", "--nodes", "3"], "capacity is a whole number from 1 up"),
        (["--capacity", "1e30", "--nodes", "3"], f"need more than {FILTERS} filters"),
        (["--capacity", "10G", "--nodes", "3", "--shards", "1"], "are needed"),
        (["--capacity", "1M", "--nodes", "3", "--shards", "100"], "above 64 a power of two"),
        (["--capacity", "1M", "--nodes", "3", "--error-rate", "7"], "error_rate is from"),
        (["--capacity", "1M", "--nodes", "3", "--retention", "ring"], "needs slices"),
        (
            ["--capacity", "1M", "--nodes", "3", "--retention", "ring", "--slices", "-3", "--period", "1d"],
            "slices are 2 to 400 for ring",
        ),
        (
            ["--capacity", "1M", "--nodes", "3", "--layout", "counting", "--retention", "growing"],
            "layout counting is for retention forever only",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use(wrong, text):
    """A message that says what is wrong, no table, exit code 2."""
    said = run(*wrong, code=2)
    assert text in said
    assert "a master" not in said
