"""A rolling filter under load: answers stay right while rotations run one after another; its memory; its bench."""

from __future__ import annotations

import collections
import csv
import math
import subprocess
import sys
import time

import pytest
from support import crawler

from bench.rolling import CALL, NEW, Crawl, charts, main
from urifilter_redis import UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.storage.documents import PIECE

pytestmark = pytest.mark.slow

#: The window of 30 is not to be left, however fast the machine rotates.
MOST_ROTATIONS = 28


@pytest.mark.parametrize(
    ("kind", "capacity", "count"),
    [("any_server", 1_000_000, 10_000), pytest.param("valkey", 20_000_000, 60_000, marks=pytest.mark.slow)],
)
def test_inserts_without_pause_while_rotations_run(request, kind, capacity, count, tmp_path):
    """3 processes insert while the filter rotates: each item is new once, and stays seen."""
    server = request.getfixturevalue(kind)
    settings = {"capacity": capacity, "retention": "rolling", "slices": 30, "period": "1d", "seed": 1, "shards": 4}
    with UriFilter.create("news", redis=server.url, **settings) as news:
        out = tmp_path / "new"
        arguments = [sys.executable, crawler.__file__, server.url, "news", str(count)]
        running = [subprocess.Popen([*arguments, str(seed), "500", "1", "1", str(out)]) for seed in range(3)]
        rotations = 0
        while any(each.poll() is None for each in running):
            if rotations == MOST_ROTATIONS:
                time.sleep(0.05)
                continue
            done = news.rotate()
            assert done.problems == ()
            rotations += 1
        assert [each.wait(60) for each in running] == [0] * 3
        assert rotations > 0
        told = collections.Counter(out.read_text().split())
        uris = [f"https://example.com/{i}" for i in range(count)]
        assert 0 not in news.ages(uris)
        assert set(told.values()) == {1}
        assert count * (1 - 1e-4) < len(told) <= count


@pytest.mark.nightly
def test_memory(any_server, monkeypatch):
    """Two bitmaps a shard and the compressed closed slices; one bitmap more of one shard while it rotates."""
    settings = {"capacity": 8_000_000, "retention": "rolling", "slices": 5, "period": "1d", "shards": 2}
    with UriFilter.create("news", redis=any_server.url, **settings) as news, any_server.client() as admin:
        empty = admin.info("memory")["used_memory"]
        one = news.info().memory / 2
        perform, most = driver.perform_step, []

        def watched(step, sender):
            outcomes = perform(step, sender)
            bitmaps = admin.keys("urifilter:{*}:today*") + admin.keys("urifilter:{*}:history*")
            most.append(sum(admin.strlen(key) for key in bitmaps))
            return outcomes

        for day in range(4):
            news.insert_many(range(60_000 * day, 60_000 * (day + 1)))
            with monkeypatch.context() as patched:
                patched.setattr(driver, "perform_step", watched)
                news.rotate()
        segment_bytes = news.config.bytes
        assert max(most) == 5 * segment_bytes  # two of each shard, and one more
        info = news.info()
        usage = sum(admin.memory_usage(key, samples=0) for key in admin.keys("urifilter:{*"))
        assert info.memory == pytest.approx(usage, rel=0.01)
        grown = admin.info("memory")["used_memory"] - empty
        assert info.memory == pytest.approx(2 * one + grown, rel=0.05)
        assert info.memory == pytest.approx(4 * one + info.archived, rel=0.05)
        assert info.archived < 4 * 2 * 0.2 * segment_bytes


def test_what_a_closed_slice_takes(any_server):
    """The bytes of a slice with a 30th of a window's items, against the entropy of its bits."""
    settings = {"capacity": 3_000_000, "retention": "rolling", "slices": 30, "period": "1d"}
    with UriFilter.create("news", redis=any_server.url, **settings) as news:
        news.insert_many(range(100_000))
        fill = news.info().fill
        news.rotate()
        entropy = -(fill * math.log2(fill) + (1 - fill) * math.log2(1 - fill)) * news.config.bytes
        packed = sum(map(len, any_server.ask("hvals", "urifilter:{news:0}:slice:0")))
        assert news.config.bytes > PIECE
        assert packed < 0.85 * entropy  # bits of blocked are not independent: whole blocks are empty


def test_a_short_run(tmp_path):
    """The filter turns beside inserts and checkpoints, no answer is wrong, and the rows can be drawn."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "rolling.csv"
    with pytest.raises(SystemExit) as ended:
        main(["--minutes", "0.15", "--period", "1", "--slices", "5", "--csv", str(path)])
    assert ended.value.code == 0
    with path.open() as file:
        found = [*csv.DictReader(file)]
    assert int(found[-1]["turns"]) > 1
    assert all(int(row["wrong"]) == 0 < int(row["again"]) for row in found)
    assert all(float(row[name]) > 0 for row in found for name in ("longest_call_ms", "longest_command_ms"))
    assert "checkpoint" in path.with_suffix(".worker.log").read_text()
    main(["--chart", str(path), "--out", str(tmp_path)])
    assert {each.stem for each in tmp_path.glob("*.svg")} == {*charts(found)}


def test_what_expires_early_is_noticed(server):
    """Items that a rotation by hand takes out of the window too soon are wrong answers."""
    settings = {"capacity": 50_000, "retention": "rolling", "slices": 2, "period": "1h"}
    with UriFilter.create("news", redis=server.url, **settings) as news:
        crawl = Crawl(news, kept=3600, seed=1)
        crawl.step()
        assert crawl.counts == {"new": NEW * CALL, "mistaken": 0, "again": 2 * CALL, "wrong": 0}
        for _ in range(2):
            news.rotate()
        crawl.step()
        assert crawl.counts["wrong"] >= CALL
