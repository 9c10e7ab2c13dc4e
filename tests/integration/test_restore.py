"""A restore that is long, is interrupted, or loses replies: it ends well, or the next attempt goes on at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as ConnectionBroken
from support import cli
from support.archives import let_restorers_die
from support.in_flight import Holder, in_flight
from support.killer import name_of
from support.servers import Saved
from support.shard_keys import shard_key

from urifilter_redis import ArchiveCorrupt, AsyncUriFilter, ConfigMismatch, Restoring, SliceLost, UriFilter, drop_filter
from urifilter_redis.bloom import sizing
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.errors import FilterNotFound
from urifilter_redis.flows import restore
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.worker import Worker

#: Some shards, and a rotation, so that slices of an older server get other names.
RING = {"capacity": 2000, "retention": "ring", "slices": 4, "period": "1d", "shards": 3, "error_rate": 1e-8}

SEEN = range(300)
IN_FLIGHT = range(2000, 2040)


class Stop(BaseException):
    """As Ctrl-C is one."""


@pytest.fixture
def beats(monkeypatch):
    """A sign of life at every opportunity, as if a restore were slow."""
    monkeypatch.setattr(restore, "BEAT", 0.0)


class Scene:
    """A server that is to be restored, again and again."""

    def __init__(self, server, folder) -> None:
        self.where = {"redis": server.url, "archive": folder}
        with UriFilter.create("news", **self.where, **RING) as news:
            news.insert_many(SEEN[:100])
            Holder(news).claim(IN_FLIGHT[:20])
            news.checkpoint()
            self._older = Saved(server)
            Holder(news, payload="x" * 2000).claim(IN_FLIGHT[20:])
            for start in (100, 200):
                news.rotate()
                news.insert_many(SEEN[start : start + 100])
            news.checkpoint()
        self._server = server

    def set(self, kind) -> None:
        self._server.ask("flushall")
        if kind == "older":
            self._older.bring_back()

    def open(self) -> None:
        UriFilter.open("news", **self.where).close()

    def open_elsewhere(self) -> None:
        """Open it in another process."""
        where = (self.where["redis"], "--archive", self.where["archive"])
        cli.run("info", "news", "--redis", *where)

    def check(self) -> None:
        """Whoever opens it now has all of it, at once, and whoever comes then finds nothing to do."""
        with UriFilter.open("news", **self.where) as news:
            assert 0 not in news.ages(SEEN)
            assert news.ages(range(1000, 1100)) == [0] * 100
            assert (news.info().phase, news.epoch()) == ("idle", 2)
            with self._server.client() as admin:
                assert set(in_flight(news, admin)) == {str(item) for item in IN_FLIGHT}
        with UriFilter.open("news", **self.where) as news:
            assert news.restored is None


class Steps:
    """Counts the steps of the blocking client, and meddles with one."""

    def __init__(self, monkeypatch) -> None:
        self.names: list[str] = []
        self._at, self._how, self._perform = 0, "", driver.perform_step
        monkeypatch.setattr(driver, "perform_step", self._counted)

    def at(self, number, how) -> None:
        """Meddle with the step of that number, or with each of that name; 0 with none."""
        self.names, self._at, self._how = [], number, how

    def _counted(self, step, connector):
        self.names.append(name_of(step))
        last = self._at in {len(self.names), self.names[-1]}
        if self._how == "for good" and self._at and len(self.names) >= self._at:
            raise Stop
        if last and self._how == "before":
            raise Stop
        outcome = self._perform(step, connector)
        if last and self._how == "after":
            raise Stop
        if last and self._how == "reply lost" and isinstance(step, Send):
            return [Unanswered(ConnectionBroken("cut"))] * len(step.commands)
        return outcome

    def first_and_last(self) -> list[int]:
        """Return the numbers of the first and last step of each name."""
        last = {name: number for number, name in enumerate(self.names, 1)}
        first = {name: number for number, name in reversed(list(enumerate(self.names, 1)))}
        return sorted({*first.values(), *last.values()})


@pytest.mark.parametrize("kind", ["empty", "older"])
def test_it_lasts(any_server, folder, beats, kind):
    """Signs of life are for the shards that are not done yet: a restore of several that lasts is not disturbed."""
    scene = Scene(any_server, folder)
    scene.set(kind)
    with UriFilter.open("news", **scene.where) as news:
        assert news.restored.shards == RING["shards"]
        assert 0 not in news.ages(SEEN)
    scene.check()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["empty", "older"])
@pytest.mark.parametrize("how", ["before", "after", "for good", "reply lost"])
def test_interrupted_at_each_step(any_server, folder, beats, monkeypatch, kind, how, sample):
    """The process that gave up may try again at once, also if it could not tell the server; a lost reply is no end."""
    scene, steps = Scene(any_server, folder), Steps(monkeypatch)
    scene.set(kind)
    steps.at(0, how)
    scene.open()
    assert {"restore begin", "restore beat", "restore arrange", "restore finish"} <= set(steps.names)
    points = sample(steps.first_and_last(), 3)
    stopped = 0
    for number in points:
        scene.set(kind)
        steps.at(number, how)
        try:
            scene.open()
        except Stop:
            stopped += 1
        steps.at(0, how)
        scene.check()
    assert stopped == (0 if how == "reply lost" else len(points))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["empty", "older"])
def test_a_server_that_comes_back_older_meanwhile(any_server, folder, monkeypatch, kind, sample):
    """After some step it is again as it was before an earlier one: no step that it lost is missing in the end."""
    scene, perform = Scene(any_server, folder), driver.perform_step
    taken, kept, number, snapshot, back = 0, None, 0, 0, 0

    def counted(step, connector):
        nonlocal kept, number
        if isinstance(step, Send):
            number += 1
            if number == snapshot:
                kept = Saved(any_server)
            elif number == back:
                kept.bring_back()
        return perform(step, connector)

    monkeypatch.setattr(driver, "perform_step", counted)
    scene.set(kind)
    scene.open()
    pairs = [(first, later) for first in range(2, number) for later in range(first + 1, number + 1)]
    for pair in sample(pairs, 12, most=150):
        scene.set(kind)
        number, (snapshot, back) = 0, pair
        with contextlib.suppress(FilterNotFound):  # the shard that is written was not there yet
            scene.open()
        taken += number > back
        snapshot = back = 0
        let_restorers_die(any_server)
        scene.check()
    assert taken


def test_given_up_while_it_is_written(any_server, folder, beats, monkeypatch):
    """Others then get Restoring, not a filter of which some shards are missing; another process need not wait."""
    scene, steps = Scene(any_server, folder), Steps(monkeypatch)
    scene.set("empty")
    steps.at(0, "after")
    scene.open()
    number = steps.names.index("restore finish") + 1  # the first shard is back, the others are not
    scene.set("empty")
    steps.at(number, "after")
    with pytest.raises(Stop):
        scene.open()
    steps.at(0, "")
    with any_server.client() as admin:

        def phases():
            return {admin.hget(shard_key("news", shard, 3, "meta"), "phase") for shard in range(2)}

        assert phases() == {b"restoring"}
        scene.open_elsewhere()
        assert phases() == {b"idle"}
    scene.check()


def test_given_up_after_a_slice_was_removed(any_server, folder, beats, monkeypatch):
    """The shard of an older server that was being written to is not used as if it were whole."""
    where, steps = {"redis": any_server.url, "archive": folder}, Steps(monkeypatch)
    with UriFilter.create("news", **where, **(RING | {"retention": "rolling", "shards": 1})) as news:
        news.insert_many(SEEN)
        news.rotate()
        older = Saved(any_server)
        news.rotate()
        news.checkpoint()
        older.bring_back()
        steps.at(0, "")
        UriFilter.open("news", **where).close()
        number = steps.names.index("refill remove") + 1
        assert number < steps.names.index("restore arrange") + 1
        older.bring_back()
        steps.at(number, "after")
        with pytest.raises(Stop):
            UriFilter.open("news", **where)
        steps.at(0, "")
        with pytest.raises(Restoring):
            news.insert("x")
    with UriFilter.open("news", **where) as news:
        assert 0 not in news.ages(SEEN)


@pytest.mark.slow
def test_cancelled_with_asyncio(any_server, folder, beats, monkeypatch):
    """A task that is cancelled in the middle of a restore locks nobody out."""
    scene, perform, names, at = Scene(any_server, folder), driver.perform_step_async, [], 0

    async def counted(step, connector):
        names.append(name_of(step))
        outcome = await perform(step, connector)
        if len(names) == at:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return outcome

    monkeypatch.setattr(driver, "perform_step_async", counted)

    async def run(number):
        nonlocal at
        names.clear()
        at = number
        async with await AsyncUriFilter.open("news", **scene.where) as news:
            assert news.restored.shards == RING["shards"]

    scene.set("older")
    asyncio.run(run(0))
    for name in ("restore begin", "restore beat", "archive download", "restore arrange", "restore finish"):
        scene.set("older")
        asyncio.run(run(0))
        number = names.index(name) + 1
        scene.set("older")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run(number))
        at = 0
        scene.check()


def test_a_refused_restore_leaves_nothing(any_server, folder, tmp_path):
    """No good checkpoint: Redis is as empty as it was, without the filter's name, too."""
    scene = Scene(any_server, folder)
    scene.set("empty")
    for blob in (tmp_path / "archive").rglob("*.blob"):
        blob.write_bytes(b"")
    with pytest.raises(ArchiveCorrupt):
        scene.open()
    assert any_server.ask("keys") == []


def lose(server, kind, older) -> None:
    """Let a server lose a bitmap, all, or what was written since it was saved."""
    with server.client() as admin:
        if kind == "bitmap":
            admin.delete(shard_key("news", 1, 2, "today"))
        elif kind == "shard":
            admin.delete(*(shard_key("news", 1, 2, end) for end in ("today", "meta")))
        else:
            admin.flushall()
    if kind == "older":
        older.bring_back()


@pytest.mark.parametrize("kind", ["bitmap", "shard", "empty", "older"])
def test_what_was_lost(server, folder, caplog, kind):
    """A restore that nobody asked for is an error in the log, in info and for doctor, until it is acknowledged."""
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000, shards=2) as news:
        assert news.info().loss is None
        news.insert_many(SEEN[:100])
        older = Saved(server)
        news.checkpoint()
        news.insert_many(SEEN[100:])
    lose(server, kind, older)
    caplog.clear()
    with UriFilter.open("news", **where) as news:
        loss, shards = news.info().loss, news.restored.shards
        assert (loss.shards, loss.since) == (shards, news.restored.begun)
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "urifilter acknowledge news" in record.getMessage()
        out, _ = cli.run("doctor", "--json", "--redis", server.url, code=1)
        (found,) = [each for each in json.loads(out) if each["subject"] == "filter news"]
        assert (found["level"], "urifilter acknowledge news" in found["text"]) == ("danger", True)
        assert b"urifilter acknowledge news" in cli.run("info", "news", "--redis", server.url)[0]
        news.checkpoint()
        assert cli.run("acknowledge", "news", "--redis", server.url)[0].startswith(b"news: restores of ")
        assert (news.info().loss, news.acknowledge()) == (None, 0)


def test_a_restore_by_hand(server, folder, caplog):
    """Who asks for a restore knows what is lost: nobody is told, of an earlier loss neither."""
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000, shards=2) as news:
        news.insert_many(SEEN)
        news.checkpoint()
    lose(server, "bitmap", None)
    UriFilter.open("news", **where).close()
    lose(server, "empty", None)
    caplog.clear()
    out, err = cli.run("restore", "news", "--redis", server.url, "--archive", folder)
    assert (out.startswith(b"news: restored 2 shards"), err) == (True, "")
    with UriFilter.open("news", **where) as news:
        assert (news.info().loss, caplog.records) == (None, [])


@pytest.mark.parametrize("kind", ["bitmap", "shard"])
def test_a_lost_bitmap_without_a_checkpoint(server, folder, kind):
    """Nobody makes an empty bitmap of one that has no copy; Redis stays as it is."""
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000, shards=2) as news:
        news.insert_many(SEEN)
    lose(server, kind, None)
    for attempt in (UriFilter.open, partial(UriFilter.create, capacity=2000, shards=2)):
        with pytest.raises(SliceLost, match="shard 1 has LOST .*, and the archive has no checkpoint"):
            attempt("news", **where)
    (done,) = Worker(server.url, "urifilter", folder, named_backend(folder), every=1.0).once()
    assert "no checkpoint of it" in done.error
    assert not server.ask("exists", shard_key("news", 1, 2, "today"))
    assert server.ask("hget", shard_key("news", 0, 2, "meta"), "phase") in {"idle", b"idle"}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", ["meta", "shard 0", "all"])
def test_lost_before_the_first_checkpoint(server, folder, shards, kind):
    """A filter that was made once is never made anew, empty; its bitmaps stay; after a drop it may be."""
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000, shards=shards) as news:
        assert set(news.insert_ages(SEEN)) == {0}
    pattern = {"all": "*", "meta": shard_key("news", 0, shards, "meta"), "shard 0": shard_key("news", 0, shards, "*")}
    with server.client() as admin:
        admin.delete(*admin.keys(pattern[kind]))
        left = sorted(admin.keys())
        for attempt in (UriFilter.open, partial(UriFilter.create, capacity=2000, shards=shards)):
            with pytest.raises(SliceLost, match="shard 0 has LOST meta, and the archive has no checkpoint"):
                attempt("news", **where)
        assert sorted(admin.keys()) == left
    drop_filter("news", **where)
    with UriFilter.create("news", **where, capacity=2000, shards=shards) as news:
        assert set(news.insert_ages(SEEN)) == {0}


def test_noted_as_made_by_the_next_client(any_server, folder, monkeypatch):
    """The creator may have died before it could note it."""
    where, steps = {"redis": any_server.url, "archive": folder}, Steps(monkeypatch)
    steps.at("restore finish", "after")
    with pytest.raises(Stop):
        UriFilter.create("news", **where, capacity=2000)
    steps.at(0, "")
    with UriFilter.open("news", **where) as news:
        news.insert("a")
    any_server.ask("flushall")
    with pytest.raises(SliceLost, match="has LOST meta"):
        UriFilter.open("news", **where)


def test_kept_counters_that_are_lost_meanwhile(any_server, folder, monkeypatch):
    """A restorer kept a bitmap of a newer Redis, and died; then that one was lost, too: the archive's is used."""
    where = {"redis": any_server.url, "archive": folder}
    monkeypatch.setattr(sizing, "SEGMENT_LIMIT", 3000)
    with UriFilter.create("news", **where, capacity=500, layout="counting") as news:
        assert news.config.segments > 1
        news.insert_many(SEEN)
        news.checkpoint()
        news.insert("newer")
    lost = [shard_key("news", 0, 1, name) for name in ("today.1", "today")]
    any_server.ask("delete", lost[0])
    steps = Steps(monkeypatch)
    steps.at("restore arrange", "after")
    with pytest.raises(Stop):
        UriFilter.open("news", **where)
    steps.at(0, "")
    assert any_server.ask("hget", shard_key("news", 0, 1, "meta"), "kept") in {"today", b"today"}
    any_server.ask("delete", lost[1])
    with UriFilter.open("news", **where) as news:
        assert 0 not in news.ages(SEEN)


def test_older_counters_stay(any_server, folder):
    """They lack what was inserted after their own last checkpoint: the loss is told from its beginning on."""
    where = {"redis": any_server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000, layout="counting") as news:
        news.insert_many(SEEN[:100])
        first = news.checkpoint()
        older = Saved(any_server)
        news.insert_many(SEEN[100:])
        last = news.checkpoint()
        older.bring_back()
        news.insert("later")
    with UriFilter.open("news", **where) as news:
        assert news.ages(SEEN).count(0) == 200
        assert first.begun <= news.info().loss.since < last.begun


def test_another_filter_in_the_archive_by_now(server, folder):
    """A client that was packed before is refused, although Redis has nothing: the registration has another seed."""
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=1000) as old:
        packed = pickle.dumps(old)
    drop_filter("news", **where)
    UriFilter.create("news", **where, capacity=1000).close()
    with server.client() as admin:
        admin.flushall()
        with pytest.raises(ConfigMismatch, match="dropped and created anew"):
            pickle.loads(packed).insert("a")
        assert admin.keys() == []


def test_bytes_are_durable_before_their_names(server, tmp_path, monkeypatch):
    """Of each blob and document the bytes are synced, then it is renamed, then its folder is synced."""
    done: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append(("folder" if path.is_dir() else "file", str(path)))
        sync(descriptor)

    def renamed(path, target):
        done.append(("rename", str(path)))
        assert ("file", str(path)) in done, f"{path} is renamed before its bytes are on the disk"
        made.append(Path(target))
        return replace(path, target)

    made: list[Path] = []
    where = {"redis": server.url, "archive": (tmp_path / "archive").as_uri()}
    (tmp_path / "archive").mkdir()
    with UriFilter.create("news", **where, capacity=1000) as news:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", renamed)
        news.insert("a")
        news.checkpoint()
    in_archive = [each for each in made if each.is_relative_to(tmp_path / "archive")]
    assert {each.suffix for each in in_archive} == {".blob", ".json"}
    for each in in_archive:
        at = max(i for i, step in enumerate(done) if step[0] == "rename" and Path(step[1]).parent == each.parent)
        assert ("folder", str(each.parent)) in done[at:]
