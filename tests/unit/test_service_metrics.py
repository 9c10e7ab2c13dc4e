"""What the workers of a service count together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from support.described import info_of

from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.service import FOLDER_VARIABLE, metrics
from urifilter_redis.service.filters import Measured

COUNT = "from urifilter_redis.service import metrics; metrics.note_restart()"


def test_a_worker_that_just_starts(tmp_path, monkeypatch):
    """Its file is empty for a moment; what the others count is told."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    subprocess.run([sys.executable, "-c", COUNT], env=os.environ, check=True)
    (tmp_path / "counter_1.db").touch()
    (tmp_path / "gauge_livesum_1.db").touch()
    assert b"\nurifilter_worker_restarts_total 1.0\n" in metrics.exposed()


class Known:
    """The filters of one worker, which began to read ``news`` at some time; None items: Redis is away."""

    wanted, archive_up = (), None

    def __init__(self, items: int | None, began: float = 0.0, took: float = 1.0) -> None:
        self._items, self._began, self._taken = items, began, began + took

    async def in_redis(self) -> set[str]:
        if self._items is None:
            raise ServerUnavailable("away")
        return {"news"}

    async def in_archive(self) -> set[str]:
        return set()

    async def measured(self, _: str) -> Measured:
        return Measured(info_of(inserted=self._items), 0.0, self._taken, self._began, 0.0, 0.0)


def items_told(filters: Known) -> float:
    told = asyncio.run(metrics.read_gauges(filters)).collect()
    return next(each.samples[0].value for each in told if each.name == "urifilter_filter_items")


def test_the_gauges_that_were_read_last(tmp_path, monkeypatch):
    """In an outage all workers tell them, also after a worker has told what it read before that."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert items_told(Known(2, began=20.0)) == 2
    assert items_told(Known(1, began=10.0, took=60.0)) == 1
    assert items_told(Known(None)) == 2
    assert items_told(Known(3, began=30.0)) == 3
    assert items_told(Known(None)) == 3
