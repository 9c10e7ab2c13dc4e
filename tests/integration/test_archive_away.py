"""An archive that is away as a whole: its disk is not mounted, so that its folder is empty or not there.

That changes nothing: nothing is written where it was, nothing of it counts as missing, and all goes on once it is back.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.archive_steps import ArchiveSteps
from support.archives import leftovers, let_restorers_die, sound

from urifilter_redis import (
    ArchiveError,
    ArchiveMissing,
    FilterNotFound,
    Restoring,
    RotationConflict,
    Timeouts,
    UriFilter,
    drop_filter,
)
from urifilter_redis.archive.export import export
from urifilter_redis.archive.importing import import_
from urifilter_redis.archive.maintenance import prune, verify_all
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_backend

pytestmark = pytest.mark.slow

SETTINGS = {"capacity": 2000, "error_rate": 1e-9, "seed": 1}
ROLLING = SETTINGS | {"retention": "rolling", "slices": 3, "period": "1d", "shards": 2}
META = "urifilter:{news:0}:meta"


class Disk:
    """The disk of an archive in a folder; its mount point is empty while it is away, or not there either."""

    def __init__(self, archive: str, *, point: bool = True) -> None:
        self.point = Path(urlsplit(archive).path)
        self._aside, self._left = self.point.with_name("aside"), point

    def unmount(self) -> None:
        self.point.rename(self._aside)
        if self._left:
            self.point.mkdir()

    def mount(self) -> None:
        """Bring it back; nothing was made in its place."""
        if not self._aside.exists():
            return
        assert list(self.point.rglob("*")) == []
        assert self.point.exists() == self._left
        with contextlib.suppress(FileNotFoundError):
            self.point.rmdir()
        self._aside.rename(self.point)


class Steps:
    """Unmounts a disk before the n-th step of an archive.

    Attributes:
        number: which step that is.
        ended: whether there were fewer steps.
    """

    def __init__(self, monkeypatch, disk) -> None:
        self._disk, self._steps = disk, ArchiveSteps(monkeypatch, but=frozenset({"archive close"}))
        self.number, self.ended = 0, False

    def each(self, begin: int = 1):
        """Yield for each number what is entered to have the disk away from that step on; at its end it is back."""
        self.number = begin - 1
        while not self.ended:
            self.number += 1
            yield self._away()

    @contextlib.contextmanager
    def _away(self):
        self._steps.at(self.number, self._disk.unmount)
        with contextlib.suppress(ArchiveError, FilterNotFound):
            yield
        self.ended = len(self._steps.names) < self.number
        self._steps.at(0)
        self._disk.mount()


@pytest.fixture(params=[True, False], ids=["empty", "gone"])
def disk(request, folder):
    return Disk(folder, point=request.param)


@pytest.fixture
def steps(monkeypatch, disk):
    return Steps(monkeypatch, disk)


def items(epoch):
    return [f"{epoch}-{n}" for n in range(40)]


def check(news, last):
    """The filter has turned from an epoch: what is in its window is seen, and what is not is new."""
    assert 0 not in news.ages([*items(last), *items(max(0, last - 1))])
    assert set(news.ages(items(last - 2))) == {0}


def test_rotation(any_server, folder, disk):
    """It is refused before anything has turned; once the disk is back it goes on, and nothing is late."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        for epoch in range(4):
            news.insert_many(items(epoch))
            disk.unmount()
            for rotate in (news.rotate, lambda now=epoch: news.rotate(expected_epoch=now)):
                with pytest.raises(ArchiveMissing, match="is that mounted"):
                    rotate()
            assert (news.epoch(), news.info().phase) == (epoch, "idle")
            disk.mount()
            assert news.rotate().problems == ()
            check(news, epoch)
    sound(folder)
    assert leftovers(folder) == 0


def test_rotation_at_each_step(any_server, folder, disk, steps):
    """Whenever the disk goes away: nothing is made in its place, and when it is back no slice is missing."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        for away in steps.each():
            epoch = steps.number - 1
            news.insert_many(items(epoch))
            with away:
                news.rotate(expected_epoch=epoch)
            with contextlib.suppress(RotationConflict):  # it is done
                assert news.rotate(expected_epoch=epoch).problems == ()
            check(news, epoch)
        assert steps.number > 20
    leftovers(folder)  # what was uploaded when the disk went away
    sound(folder)


def test_checkpoint_at_each_step(any_server, folder, disk, steps):
    """Whenever the disk goes away: nothing is made in its place, and the next checkpoint is whole."""
    seen = []
    with UriFilter.create("news", redis=any_server.url, archive=folder, shards=2, **SETTINGS) as news:
        for away in steps.each():
            seen += items(steps.number)
            news.insert_many(items(steps.number))
            with away:
                news.checkpoint(full=True)
            sound(folder)
        news.checkpoint()
    assert steps.number > 20
    any_server.ask("flushall")
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        assert news.restored.problems == ()
        assert 0 not in news.ages(seen)
    leftovers(folder)
    sound(folder)


def test_restore_at_each_step(any_server, admin, folder, disk, steps):
    """Whenever the disk goes away: the filter does not come back with less, and comes back when the disk does."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            news.checkpoint()
            news.rotate()
    for away in steps.each():
        admin.flushall()
        with away:
            UriFilter.open("news", redis=any_server.url, archive=folder).close()
        let_restorers_die(any_server)
        with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
            assert news.restored is None or news.restored.problems == ()
            assert 0 not in news.ages([*items(0), *items(1)])
            assert (news.epoch(), news.info().phase) == (2, "idle")
    assert steps.number > 20


def test_create_at_each_step(any_server, admin, folder, disk, steps):
    """Whenever the disk goes away: nothing is made in its place, by this create or the next, and nothing seen is new.

    If it goes away when all is restored, Redis keeps the filter: it may have been inserted into by then.
    """
    made, phases = {"redis": any_server.url, "archive": folder} | SETTINGS, []
    with UriFilter.create("news", **made) as news:
        news.insert_many(items(0))
        news.checkpoint()
    for away in steps.each():
        admin.flushall()
        with away:
            UriFilter.create("news", **made).close()
        if steps.ended:
            break
        disk.unmount()
        with pytest.raises((ArchiveError, Restoring)):
            UriFilter.create("news", **made, timeouts=Timeouts(restoring=0))
        phases.append(admin.hget(META, "phase"))
        disk.mount()
        let_restorers_die(any_server)
        with UriFilter.create("news", **made) as news:
            assert 0 not in news.ages(items(0))
    assert steps.number > 10
    assert phases[-1] == b"idle"


def test_import_at_each_step(any_server, folder, disk, steps, tmp_path):
    """Whenever the disk goes away after the filter was found there: nothing is made, and importing again ends it."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, shards=2, **SETTINGS) as news:
        news.insert_many(items(0))
        news.checkpoint()
    backend = open_backend(folder)
    drive(export(backend, "news", tmp_path / "exported", lambda *_: None))
    for away in steps.each(2):
        drop_filter("news", redis=any_server.url, archive=folder)
        uid = drive(import_(backend, tmp_path / "exported", lambda *_: None))[1].uid
        for path in disk.point.glob(f"news.filter/{uid}/checkpoint-1-*"):  # the first shard is there
            path.unlink()
        with away:
            drive(import_(backend, tmp_path / "exported", lambda *_: None))
        drive(import_(backend, tmp_path / "exported", lambda *_: None))
        leftovers(folder)
        sound(folder)
    assert steps.number > 5


def test_upkeep(folder, any_server, tmp_path):
    """Export, prune and verify say that there is no archive, or nothing in it, and make nothing there."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **SETTINGS) as news:
        news.checkpoint()
    backend, disk = open_backend(folder), Disk(folder, point=False)
    disk.unmount()
    for flow in (
        export(backend, "news", tmp_path / "exported", lambda *_: None),
        prune(backend, 0),
        verify_all(backend, None, lambda *_: None),
        verify_all(backend, "news", lambda *_: None),
    ):
        with pytest.raises(ArchiveMissing):
            drive(flow)
    disk.mount()
    assert not (tmp_path / "exported").exists()


def test_dropped_while_a_slice_is_archived(any_server, archive, monkeypatch):
    """A rotation that publishes its slice when the filter is dropped leaves nothing, and a new filter can be made."""
    made = {"redis": any_server.url, "archive": archive} | ROLLING
    steps = ArchiveSteps(monkeypatch)
    for number in (1, 3, 6, 9, 12, 15):
        with UriFilter.create("news", **made) as news:
            news.insert_many(items(0))
            steps.at(number, lambda: drop_filter("news", redis=any_server.url, archive=archive))
            with contextlib.suppress(Exception):
                news.rotate()
            steps.at(0)
        drop_filter("news", redis=any_server.url, archive=archive)
        backend = open_backend(archive)
        assert drive(backend.keys()) == []
        drive(backend.close())
