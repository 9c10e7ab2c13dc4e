"""What the workers of a service count together, the folders that they share, and what they say seldom."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.described import info_of

from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.service import FOLDER_VARIABLE, folders, logs, metrics
from urifilter_redis.service.filters import Measured
from urifilter_redis.service.folders import own_folder

COUNT = "from urifilter_redis.service import metrics; metrics.note_restart()"


def test_a_worker_that_just_starts(tmp_path, monkeypatch):
    """Its file is empty for a moment; what the others count is told."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    subprocess.run([sys.executable, "-c", COUNT], env=os.environ, check=True)
    (tmp_path / "counter_1.db").touch()
    (tmp_path / "gauge_livesum_1.db").touch()
    assert b"\nurifilter_worker_restarts_total 1.0\n" in metrics.exposed()


COUNT_IN_PLACE = f"from urifilter_redis.service import folders\nwith folders.counting(): {COUNT}"


def test_what_a_process_counts_has_its_place_on_the_disk(tmp_path, monkeypatch):
    """A count needs no more of it, so that a full disk cannot end the process."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    subprocess.run([sys.executable, "-c", COUNT_IN_PLACE], env=os.environ, check=True)
    found = [file.stat() for file in tmp_path.iterdir()]
    assert len(found) == 3
    assert all(each.st_blocks * 512 >= each.st_size > 0 for each in found)
    assert b"\nurifilter_worker_restarts_total 1.0\n" in metrics.exposed()


def test_a_process_that_has_no_room_for_its_counts(tmp_path, monkeypatch):
    """It says so, and goes on; what the others count is told."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    subprocess.run([sys.executable, "-c", COUNT_IN_PLACE], env=os.environ, check=True)
    before = sorted(tmp_path.iterdir())
    code = f"import os\n{COUNT_IN_PLACE}\nprint(os.environ['{FOLDER_VARIABLE}'], metrics.exposed().decode())"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # noqa: E731
    process = subprocess.run(
        [sys.executable, "-Bc", code], env=os.environ, check=True, capture_output=True, text=True, preexec_fn=limit
    )
    assert "the metrics leave out what process " in process.stderr
    assert "File too large" in process.stderr
    assert process.stdout.startswith(str(tmp_path))
    assert "\nurifilter_worker_restarts_total 1.0\n" in process.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_what_a_dead_worker_has_reserved_is_given_back(tmp_path, monkeypatch):
    """What it has counted is told."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", COUNT_IN_PLACE], env=os.environ) as process:
        pass
    folders.give_back(process.pid)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10_000
    assert b"\nurifilter_worker_restarts_total 1.0\n" in metrics.exposed()


def test_the_folder_of_the_counts_is_gone(tmp_path, monkeypatch):
    """There are no counts then, and no error."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert metrics.exposed() == b""


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


def test_an_outage_is_said_once(monkeypatch, caplog):
    """At once, and not at each scrape."""
    monkeypatch.setattr(metrics, "_seldom", logs.Seldom())
    for _ in range(2):
        asyncio.run(metrics.read_gauges(Known(None)))
        assert caplog.text.count("the metrics of filters are the last known: away") == 1


class Slow(Known):
    """Nothing is read in time, and ``hangs``: how far a restore is neither."""

    hangs, ended = False, False

    async def measured(self, _: str) -> Measured:
        await asyncio.sleep(60)

    async def restoring(self, _: str) -> tuple[int, int]:
        try:
            await asyncio.sleep(60 if self.hangs else 0)
        except asyncio.CancelledError:
            self.ended = True
            raise
        return 1, 4


def test_how_far_a_restore_is_without_a_reading():
    told = asyncio.run(metrics.read_gauges(Slow(2))).collect()
    found = {each.name: [sample.value for sample in each.samples] for each in told}
    assert (found["urifilter_filter_restoring_shards"], found["urifilter_filter_shards"]) == ([1], [4])


def test_a_question_about_a_restore_that_takes_too_long_is_ended():
    async def read(filters: Slow) -> bool:
        filters.hangs = True
        await metrics.read_gauges(filters)
        await asyncio.sleep(0)
        return filters.ended  # before the loop's end cancels what is left

    assert asyncio.run(read(Slow(2)))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_dead_services(place):
    """They go when a service begins; those of others that run, and what else is there, stay."""
    dead = place / "urifilter-metrics-dead"
    dead.mkdir()
    (dead / "counter_1.db").write_bytes(b"x")
    (place / "urifilter-metrics-file").write_text("")
    (place / "urifilter-metrics-link").symlink_to(place)
    (place / "else").mkdir()
    with own_folder() as first:
        assert not dead.exists()
        with own_folder() as second:
            assert {Path(first), Path(second)} < set(place.iterdir())
        assert not Path(second).exists()
        assert Path(first).exists()
    assert sorted(each.name for each in place.iterdir()) == ["else", "urifilter-metrics-file", "urifilter-metrics-link"]


def test_one_that_begins_in_the_same_moment(place, monkeypatch):
    """A folder that another service has taken for dead, before it was locked, is made once more."""
    make, made = tempfile.mkdtemp, []

    def mkdtemp(**named):
        made.append(make(**named))
        if len(made) == 1:
            folders._remove_if_dead(Path(made[0]))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with own_folder() as folder:
        assert folder == made[1] != made[0]
        assert Path(folder).exists()


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test sets."""
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    return now


def said(seldom, clock, times, text="away") -> list[float]:
    """Return when a text passes of all the times that somebody wants to say it."""
    passed = []
    for clock[0] in times:
        if seldom.passes(text):
            passed.append(clock[0])
    return passed


def test_the_same_is_said_after_pauses_that_grow(clock):
    """They double up to a minute; at any rate it is said once a minute for as long as it lasts."""
    passed = said(logs.Seldom(), clock, [0.25 * i for i in range(4 * 400)])
    assert passed == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_what_is_new_is_said_at_once(clock):
    """Another text, and the same after a long time without it."""
    seldom = logs.Seldom()
    assert not seldom.has_passed
    assert said(seldom, clock, [0, 0.5, 1, 2]) == [0, 1]
    assert said(seldom, clock, [2.1, 2.2], "other") == [2.1]
    assert said(seldom, clock, [2.3, 60]) == [2.3, 60]
    assert said(seldom, clock, [120, 120.5, 121]) == [120, 121]
    assert seldom.has_passed
