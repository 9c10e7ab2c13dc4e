"""``python -m bench.rolling``: a short run has a row for each period, and its oracle notices what expires early."""

from __future__ import annotations

import csv

import pytest

from bench.rolling import CALL, NEW, Crawl, charts, main
from urifilter_redis import UriFilter

pytestmark = pytest.mark.slow


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
