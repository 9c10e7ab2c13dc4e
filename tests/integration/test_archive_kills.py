"""SIGKILL before and after every step of every flow that touches an archive: a second run completes it.

No slice is lost or doubled, and prune leaves nothing that nobody needs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.archives import leftovers, let_restorers_die, sound
from support.in_flight import Holder, in_flight
from support.killer import Killer
from support.servers import Saved

from urifilter_redis import UriFilter
from urifilter_redis.archive.export import export
from urifilter_redis.base_blocking import drop_filter
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage import documents
from urifilter_redis.storage.backends import open_backend

#: Two shards, three pieces a bitmap.
SETTINGS = {"capacity": 180_000, "error_rate": 1e-8, "shards": 2, "seed": 1}
RETENTIONS = {
    "forever": {},
    "ring": {"retention": "ring", "slices": 2, "period": "1d"},
    "rolling": {"retention": "rolling", "slices": 4, "period": "1d"},
}
FLOWS = [
    ("forever", "create"),
    ("ring", "checkpoint"),
    ("rolling", "checkpoint"),
    ("ring", "open"),
    ("rolling", "open"),
    ("rolling", "rotate"),
    ("forever", "drop"),
    ("forever", "prune"),
    ("forever", "import"),
]

#: Those that are tried quickly, too.
QUICK = [("rolling", "checkpoint"), ("rolling", "open"), ("forever", "drop")]

#: MongoDB's emulator, and FerretDB, take minutes for all.
FLOWS_OF_MONGODB = [each for each in FLOWS if each[0] != "ring"]

_SEEN = range(300)

#: Items in flight, with entries of both kinds.
_IN_FLIGHT = range(2000, 2020)


@pytest.fixture
def killer():
    with Killer() as started:
        yield started


class Scene:
    """One filter before one of the flows."""

    def __init__(self, retention, method, server, archive, folder) -> None:
        self.settings = SETTINGS | RETENTIONS[retention]
        self.method, self.server, self.archive, self.folder = method, server, archive, folder
        self.more = [self.settings] if method == "create" else []
        self._made: tuple[Saved, Path] | None = None

    def set(self) -> None:
        """Make it; from the second time on bring it back, which is quicker, if its archive is a folder."""
        if self._made is not None:
            saved, kept = self._made
            saved.bring_back()
            shutil.rmtree(self.folder / "archive", ignore_errors=True)
            shutil.copytree(kept, self.folder / "archive")
            return
        self.server.ask("flushall")
        self._make()
        if self.method != "create" and self.archive.startswith("file:"):
            self._made = Saved(self.server), self.folder / "kept"
            shutil.copytree(self.folder / "archive", self._made[1])

    def _make(self) -> None:
        """Make 100 items in each of three epochs, or in one, and some in flight; three checkpoints."""
        if self.method == "create":
            drop_filter("news", redis=self.server.url, archive=self.archive)
            return
        with UriFilter.create("news", redis=self.server.url, archive=self.archive, **self.settings) as news:
            for start in range(0, 300, 100):
                news.insert_many(range(start, start + 100))
                some = _IN_FLIGHT[start // 100 :: 3]
                assert Holder(news, payload="x" * 20 * start).claim(some) == [0] * len(some)
                news.checkpoint()
                if "period" in self.settings and start == 100:
                    news.rotate()
            if self.method == "checkpoint":
                news.insert_many(range(1000, 1100))
            if (self.method, self.settings.get("retention")) == ("open", "rolling"):
                news.rotate()  # its closed slice is in the archive, and in no checkpoint
        if self.method == "prune":
            backend = open_backend(self.archive)
            for blob in drive(backend.blobs("news"))[:1]:
                upload = backend.upload("news", blob.id.split("-")[0] + "-" + "0" * 16)
                drive(upload.write(b"left"))
                drive(upload.finish())
            drive(backend.close())
        if self.method == "open":
            self.server.ask("flushall")
        if self.method == "import":
            self.more = [str(self.folder / "exported")]
            backend = open_backend(self.archive)
            drive(export(backend, "news", self.folder / "exported", lambda *_: None))
            drive(backend.close())
            drop_filter("news", redis=self.server.url, archive=self.archive)

    def what(self):
        return self.method, self.server.url, self.archive, *self.more

    def check(self) -> None:
        """The second run has completed it."""
        if self.method == "drop":
            assert self.server.ask("keys") == []
            assert leftovers(self.archive) == 0
            assert sound(self.archive) == 0
            return
        with UriFilter.open("news", redis=self.server.url, archive=self.archive) as news:
            if self.method != "create":
                assert 0 not in news.ages(_SEEN)
                assert news.insert_ages(_IN_FLIGHT) == [-1] * len(_IN_FLIGHT)
                with self.server.client() as admin:
                    assert set(in_flight(news, admin)) == {str(item) for item in _IN_FLIGHT}
            assert news.ages(range(5000, 5100)) == [0] * 100
            assert news.info().phase == "idle"
            assert news.insert_ages(range(6000, 6100)) == [0] * 100
        leftovers(self.archive)
        sound(self.archive)

    def clear(self) -> None:
        drop_filter("news", redis=self.server.url, archive=self.archive)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("retention", "method"), [each if each in QUICK else pytest.param(*each, marks=pytest.mark.slow) for each in FLOWS]
)
def test_killed_at_each_step(retention, method, any_server, folder, tmp_path, killer, sample):
    """After the first and the last step of each name, which is before the next.

    A ring writes the steps of rolling to its archive, of whose points all are tried.
    """
    scene = Scene(retention, method, any_server, folder, tmp_path)
    names = steps_of(scene, killer)
    last = {name: number for number, name in enumerate(names, 1)}
    first = {name: number for number, name in reversed(list(enumerate(names, 1)))}
    points = [(1, "before"), *((number, "after") for number in sorted({*first.values(), *last.values()}))]
    kill_at(scene, killer, sample(points, 2, most=8 if (retention, method) == ("ring", "checkpoint") else None))


@pytest.mark.nightly
@pytest.mark.parametrize(("retention", "method"), FLOWS_OF_MONGODB)
def test_killed_at_each_step_with_mongodb(retention, method, any_server, mongodb, tmp_path, killer):
    """After the last step of each name."""
    if mongodb.startswith("mongodb://mock"):
        pytest.skip("mongomock is of this process alone: TEST_URIFILTER_FERRETDB or TEST_URIFILTER_MONGOECO")
    scene = Scene(retention, method, any_server, mongodb, tmp_path)
    last = {name: number for number, name in enumerate(steps_of(scene, killer), 1)}
    kill_at(scene, killer, [(number, "after") for number in sorted(last.values())])


def steps_of(scene, killer) -> list[str]:
    """Return the names of the flow's steps."""
    scene.set()
    names = killer.steps(*scene.what())
    scene.check()
    scene.clear()
    assert len(set(names)) > 3
    return names


def kill_at(scene, killer, points) -> None:
    """Kill it at each of these points; a second run completes it."""
    died = 0
    for number, when in points:
        scene.set()
        died += killer.kill(number, when, *scene.what())
        if scene.method != "prune":
            let_restorers_die(scene.server)
        killer.steps(*scene.what())
        scene.check()
        scene.clear()
    assert died >= len(points) / 2


def test_pieces():
    """The filters here have several pieces a bitmap."""
    from urifilter_redis.protocol.config import Config, Settings

    config = Config.new(Settings(**SETTINGS))
    assert len(list(documents.piece_spans(config.bytes))) == 3
