"""A drop of a filter with an archive: stopped, or overtaken, at any step."""

from __future__ import annotations

import functools
import gc

import pytest
from support.archives import leftovers
from support.interleaved import Actor
from support.shard_keys import shard_key

from urifilter_redis import ArchiveError, ArchiveMissing, ConfigMismatch, UriFilter, drop_filter
from urifilter_redis.archive.maintenance import prune
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows import dropping
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.storage.registry import registered, unregister

SETTINGS = {"capacity": 1000, "error_rate": 1e-8, "shards": 3, "seed": 1}
KEEP = functools.partial(dropping.drop, keep_archive=True)
OLD, NEW = range(100), range(1000, 1100)


class Scene:
    """A filter with items, in Redis and in its archive."""

    def __init__(self, server, archive) -> None:
        self.server, self.archive, self.admin = server, archive, server.client()
        self.url = f"unix://{server.socket}"
        self.where = {"redis": self.url, "archive": archive}

    def set(self) -> None:
        drop_filter("news", **self.where)
        self.admin.flushall()
        with UriFilter.create("news", **self.where, **SETTINGS) as news:
            news.insert_many(OLD)
            news.checkpoint()
        self.check_whole(seen=True)

    def dropper(self, flow=dropping.drop) -> Actor:
        return Actor(self.server, flow, archive=self.archive)

    def documents(self) -> list:
        backend = open_backend(self.archive)
        found = drive(backend.keys()), drive(backend.blobs())
        drive(backend.close())
        return [*found[0], *(blob.id for blob in found[1])]

    def overtake(self, late: Actor, items=()) -> None:
        """Drop the filter and make it anew before an actor goes on, which leaves that one alone, and its archive."""
        drop_filter("news", **self.where)
        with UriFilter.create("news", **self.where, **SETTINGS) as news:
            news.insert_many(items)
            news.checkpoint()
        there = self.documents()
        late.run()
        assert late.error is None
        assert self.documents() == there

    def check_gone(self) -> None:
        assert self.admin.keys() == []
        assert self.documents() == []

    def check_whole(self, *, seen) -> None:
        """It is there with all its shards, with what it has seen or without."""
        with UriFilter.open("news", **self.where) as news:
            assert {age > 0 for age in news.ages(OLD)} == {seen}
            assert news.insert_ages(NEW).count(0) in ({0, 100} if seen else {100})
            uids = {self.admin.hget(shard_key("news", n, 3, "meta"), "uid").decode() for n in range(3)}
            assert uids == {news.config.uid}


# Actors that die leave their connections to MongoDB open.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Unclosed MongoClient:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def scene(any_server, archive):
    made = Scene(any_server, archive)
    yield made
    made.admin.close()
    gc.collect()  # what they left is collected here, and not in another test


def stops(scene, sample, begin):
    """Yield what ``begin()`` makes, an actor that has done nothing, when it has done one step, then two … up to all."""
    whole = begin()
    whole.run()
    assert whole.error is None
    assert whole.steps > 5
    most = 20 if scene.archive.startswith("mongodb") else None  # what the tests have for it is slow
    for steps in sample(range(1, whole.steps + 1), 4, most):
        actor = begin()
        actor.run(steps)
        yield actor


def drops(scene, sample, flow=dropping.drop):
    """Yield droppers of new filters."""

    def begin() -> Actor:
        scene.set()
        return scene.dropper(flow)

    return stops(scene, sample, begin)


@pytest.mark.nightly
def test_dropping_again_ends_it(scene, sample):
    """Wherever a drop died, dropping again removes all, and then create works."""
    for dropper in drops(scene, sample):
        dropper.die()
        drop_filter("news", **scene.where)
        scene.check_gone()
        with UriFilter.create("news", **scene.where, **SETTINGS) as news:
            assert news.insert_ages(OLD).count(0) == 100
            leftovers(scene.archive)


@pytest.mark.nightly
@pytest.mark.parametrize("named", [True, False])
def test_create_ends_it(scene, named, sample):
    """Wherever a drop died, create makes a new filter, or opens the one that is whole; or it says to drop again."""
    made = 0
    where = scene.where if named else {"redis": scene.url}
    for dropper in drops(scene, sample):
        dropper.die()
        begun = scene.admin.hget("urifilter:{news:0}:meta", "phase") != b"idle"
        said = None
        try:
            with UriFilter.create("news", **where, **SETTINGS) as news:
                made += 1
                assert ({0} if begun else {1}) == set(news.ages(OLD))
        except ArchiveError as error:
            said = str(error)
        assert said is None or ("drop" in said and not named)
        drop_filter("news", **scene.where)
        scene.check_gone()
    assert made


def test_what_is_kept_stays(scene, sample):
    """A drop that was to leave the archive, and died: who ends it leaves it, too, and it is brought back."""
    for dropper in drops(scene, sample, KEEP):
        dropper.die()
        UriFilter.create("news", **scene.where, **SETTINGS).close()
        scene.check_whole(seen=True)


@pytest.mark.nightly
def test_overtaken_by_another_drop_and_create(scene, sample):
    """A drop that stalls while another is done and the filter is made anew leaves that alone, and its archive."""
    for dropper in drops(scene, sample):
        scene.overtake(dropper, NEW)
        with UriFilter.open("news", **scene.where) as news:
            assert set(news.ages(NEW)) == {1}


@pytest.mark.slow
def test_overtaken_where_the_registration_was_lost(scene, sample):
    """Checkpoints without a registration are dropped by the name; a filter that is made meanwhile keeps its own."""
    backend = open_backend(scene.archive)

    def begin() -> Actor:
        scene.set()
        drive(backend.swap(Key("news"), drive(backend.read(Key("news"))), None))
        scene.admin.flushall()
        return scene.dropper()

    for dropper in stops(scene, sample, begin):
        scene.overtake(dropper)
    drive(backend.close())


@pytest.mark.nightly
def test_prune_is_overtaken(scene, sample):
    """Prune, which ends the drop of a registration that it read, leaves a filter that is registered meanwhile."""
    backends = []

    def begin() -> Actor:
        scene.set()
        backends.append(open_backend(scene.archive))
        dropper = scene.dropper()
        while drive(registered(backends[-1], "news")) is not None:
            dropper.step()
        dropper.die()
        return scene.dropper(lambda _: prune(backends[-1], 0))

    for pruner in stops(scene, sample, begin):
        scene.overtake(pruner)
    for backend in backends:
        drive(backend.close())


def test_half_dropped_by_an_older_release(scene):
    """Whole in Redis, and not in the archive any more: create says to drop again, and that ends it."""
    scene.set()
    backend = open_backend(scene.archive)
    drive(unregister(backend, "news", drive(registered(backend, "news")).uid))
    drive(backend.close())
    with pytest.raises(ArchiveMissing, match="drop it again"):
        UriFilter.create("news", **scene.where, **SETTINGS)
    drop_filter("news", **scene.where)
    scene.check_gone()
    UriFilter.create("news", **scene.where, **SETTINGS).close()


@pytest.mark.nightly
def test_overtaken_by_a_restore(scene, sample):
    """A drop that stalls while another ends it, and the filter is brought back from its archive, leaves that alone."""
    for dropper in drops(scene, sample, KEEP):
        begun = scene.admin.hget("urifilter:{news:0}:meta", "phase") != b"idle"
        drop_filter("news", **scene.where, keep_archive=True)
        scene.check_whole(seen=True)
        dropper.run()
        assert dropper.error is None
        if begun:
            keys = len(scene.admin.keys())
            scene.check_whole(seen=True)
            assert len(scene.admin.keys()) == keys


def test_an_object_drops_its_own(scene):
    """An object whose filter was dropped and made anew drops neither that nor its archive, wherever it is."""
    scene.set()
    with UriFilter.open("news", **scene.where) as old:
        drop_filter("news", **scene.where)
        with UriFilter.create("news", **scene.where, **SETTINGS) as new:
            new.checkpoint()
        with pytest.raises(ConfigMismatch, match="dropped and created anew since it was opened"):
            old.drop()
        scene.check_whole(seen=False)
        scene.admin.flushall()
        with pytest.raises(ConfigMismatch, match="dropped and created anew since it was opened"):
            old.drop()
        assert scene.documents()
        scene.check_whole(seen=False)


def test_its_archive_must_be_named_again(scene):
    """The message about a drop that died says that dropping again ends it."""
    scene.set()
    dropper = scene.dropper()
    while scene.admin.hget("urifilter:{news:0}:meta", "phase") != b"dropping":
        dropper.step()
    dropper.die()
    with pytest.raises(ArchiveMissing, match="stopped half-way: drop it again"):
        UriFilter.create("news", redis=scene.url, **SETTINGS)
    drop_filter("news", **scene.where)
    scene.check_gone()
