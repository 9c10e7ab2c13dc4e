"""Filters that the release of format 1 made are converted in place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import cli
from support.archives import sound
from support.killer import Killer
from support.releases import create_old
from support.servers import Saved
from support.states import dumped

from urifilter_redis import ArchiveMissing, ServerUnavailable, SliceLost, UriFilter, UriFilterError
from urifilter_redis.archive.homes.opening import open_home
from urifilter_redis.archive.register import registered
from urifilter_redis.engine.driver import drive

SETTINGS = {"capacity": 1000, "error_rate": 1e-8, "shards": 3}
TIMED = {"slices": 3, "period": "2000w"}
FILTERS = {
    "forever": {},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing", "capacity": 100},
    "all": {"retention": "ring", "write": "all", "expire_after": "last-seen"} | TIMED,
    "rolling": {"retention": "rolling"} | TIMED,
}


def formats(server, name="news") -> list[tuple[str, bool]]:
    """The format of each shard, and whether it has the field of format 2."""
    with server.client() as admin:
        keys = sorted(admin.scan_iter(f"urifilter:{{{name}:*}}:meta"))
        return [(admin.hget(key, "format").decode(), bool(admin.hexists(key, "fixed"))) for key in keys]


def registration(archive):
    home = open_home(archive)
    return drive(registered(home, "news"))


@pytest.mark.parametrize("name", FILTERS)
def test_an_upgraded_filter(server, name):
    """All shards are converted, every answer is the same, and a second upgrade changes nothing."""
    create_old("news", server.url, **SETTINGS | FILTERS[name])
    with (
        UriFilter.open("news", redis=server.url) as news,
        UriFilter.open("news", redis=server.url) as other,
    ):
        assert (news.info().format, formats(server)) == (1, [("1", False)] * 3)
        news.forget([0, 1])
        before = news.ages(range(150))
        done = news.upgrade()
        assert (done.before, done.format, done.shards) == (1, 2, 3)
        assert (news.info().format, news.config.format, formats(server)) == (2, 2, [("2", True)] * 3)
        with server.client() as admin:
            after = dumped(admin)
            done = news.upgrade()
            assert (done.before, done.format, done.shards) == (2, 2, 0)
            assert after == dumped(admin)
        for each in (news, other):
            assert each.ages(range(150)) == before
        assert other.insert_ages([0, 200, *range(2, 100)]).count(0) == 2
        assert news.insert_ages([1, 0, 200, 201]) == [0, 1, 1, 0]
        if "period" in FILTERS[name]:
            other.rotate()
            assert 0 not in news.ages(range(2, 100))
        news.drop()
    with server.client() as admin:
        assert admin.keys() == []


def test_a_filter_that_was_made_so(redis70):
    """An upgrade of a filter of this release changes nothing."""
    with UriFilter.create("news", redis=redis70.url, **SETTINGS) as news, redis70.client() as admin:
        before = dumped(admin)
        assert news.upgrade().shards == 0
        assert before == dumped(admin)


@pytest.fixture
def killer():
    with Killer() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forever", "rolling"])
def test_killed_at_each_step(redis70, folder, killer, sample, name):
    """SIGKILL before and after each step: nothing is lost meanwhile, and the next upgrade ends it."""
    create_old("news", redis70.url, folder, **SETTINGS | FILTERS[name])
    archive = Path(urlsplit(folder).path)
    saved, copy = Saved(redis70), archive.with_name("copy")
    shutil.copytree(archive, copy)
    what = ("upgrade", redis70.url, folder)
    names = killer.steps(*what)
    assert names.count("archive swap") == 1
    points = [(1, "before"), *((number, "after") for number in range(1, len(names) + 1))]
    for point in sample(points, 6):
        shutil.rmtree(archive)
        shutil.copytree(copy, archive)
        saved.bring_back()
        killer.kill(*point, *what)
        with UriFilter.open("news", redis=redis70.url, archive=folder) as news:
            assert 0 not in news.ages(range(100))
            assert news.insert_ages(range(95, 105)).count(0) == 5
        killer.steps(*what)
        assert formats(redis70) == [("2", True)] * 3
        assert registration(folder).format == 2
        with UriFilter.open("news", redis=redis70.url, archive=folder) as news:
            assert 0 not in news.ages(range(105))
            news.checkpoint()
        sound(folder)


def test_a_restore_during_an_upgrade(redis70, folder):
    """A shard that is lost after the registration was converted comes back in the new format; then the rest follows."""
    create_old("news", redis70.url, folder, **SETTINGS)
    with redis70.client() as admin:
        first = admin.dump("urifilter:{news:0}:meta")
        with UriFilter.open("news", redis=redis70.url, archive=folder) as news:
            news.upgrade()
        admin.restore("urifilter:{news:0}:meta", 0, first, replace=True)
        admin.delete(*admin.scan_iter("urifilter:{news:1}:*"))
    with UriFilter.open("news", redis=redis70.url, archive=folder) as news:
        assert news.restored.shards == 1
        assert formats(redis70) == [("1", False), ("2", True), ("2", True)]
        assert news.info().format == 1
        assert 0 not in news.ages(range(100))
        assert (news.upgrade().before, news.info().format) == (1, 2)


def test_an_empty_redis_after_an_upgrade(redis70, archive):
    """Checkpoints of the older format are restored into a filter of the new one."""
    if archive.startswith("mongodb://mock"):
        pytest.skip("mongomock is of this process alone: TEST_URIFILTER_MONGODB or TEST_URIFILTER_MONGOECO")
    create_old("news", redis70.url, archive, **SETTINGS)
    with UriFilter.open("news", redis=redis70.url, archive=archive) as news, redis70.client() as admin:
        news.upgrade()
        admin.flushall()
    with UriFilter.open("news", redis=redis70.url, archive=archive) as news:
        assert formats(redis70) == [("2", True)] * 3
        assert 0 not in news.ages(range(100))
        assert news.insert_ages(range(90, 110)).count(0) == 10


def test_without_its_archive(redis70, folder):
    """An upgrade needs the archive of the filter, and changes nothing without it."""
    create_old("news", redis70.url, folder, **SETTINGS)
    with UriFilter.open("news", redis=redis70.url) as news, redis70.client() as admin:
        before = dumped(admin)
        with pytest.raises(ArchiveMissing, match="name it"):
            news.upgrade()
        assert before == dumped(admin)


def test_without_the_right(redis70, folder):
    """A user who may not write is refused before anything is converted, the registration too."""
    create_old("news", redis70.url, folder, **SETTINGS)
    with redis70.client() as admin:
        admin.acl_setuser("reader", enabled=True, nopass=True, commands=["+@all", "-hset"], keys=["*"])
        try:
            url = redis70.url.replace("//", "//reader:any@")
            with UriFilter.open("news", redis=url, archive=folder) as news:
                with pytest.raises(ServerUnavailable, match="HSET, which upgrade needs"):
                    news.upgrade()
                assert (registration(folder).format, formats(redis70)) == (1, [("1", False)] * 3)
        finally:
            admin.acl_deluser("reader")


def test_a_filter_that_is_gone(redis70):
    """Another process dropped it: the error of every other call."""
    create_old("news", redis70.url, **SETTINGS)
    with UriFilter.open("news", redis=redis70.url) as news, redis70.client() as admin:
        admin.flushall()
        with pytest.raises(UriFilterError, match="was dropped"):
            news.upgrade()


@pytest.mark.parametrize("damage", ["", "two"])
def test_a_damaged_format(redis70, damage):
    """A shard whose format is no number is told as damage, and nothing is converted."""
    create_old("news", redis70.url, **SETTINGS)
    with UriFilter.open("news", redis=redis70.url) as news, redis70.client() as admin:
        admin.hset("urifilter:{news:1}:meta", "format", damage)
        before = dumped(admin)
        for method in (news.upgrade, news.info):
            with pytest.raises(SliceLost, match="format in urifilter:{news:1}:meta is damaged"):
                method()
        assert before == dumped(admin)


def test_on_the_command_line(redis70, monkeypatch):
    """Filters by name or all of them; doctor and info say which are of an older format."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", redis70.url)
    create_old("old", redis70.url, **SETTINGS)
    create_old("older", redis70.url, **SETTINGS)
    UriFilter.create("news", redis=redis70.url, **SETTINGS).close()
    found, _ = cli.run("doctor", "--json", code=1)  # the tests' server keeps nothing on disk
    told = {each["subject"]: each for each in json.loads(found) if "urifilter upgrade" in each["text"]}
    assert {subject: each["level"] for subject, each in told.items()} == {"filter old": "note", "filter older": "note"}
    assert "upgrade them first" in told["filter old"]["text"]
    assert b"1: urifilter upgrade old converts it to 2" in cli.run("info", "old")[0]
    assert cli.run("upgrade", "old")[0] == b"old: upgraded 3 shards from format 1 to 2\n"
    assert cli.run("upgrade", "--all")[0].decode().splitlines() == [
        "news: is of format 2 already",
        "old: is of format 2 already",
        "older: upgraded 3 shards from format 1 to 2",
    ]
    assert json.loads(cli.run("upgrade", "old", "--json")[0]) == [
        {"filter": "old", "before": 2, "format": 2, "shards": 0}
    ]
    assert b"urifilter upgrade" not in cli.run("doctor", code=1)[0]
    assert cli.run("upgrade", "-q", "old")[0] == b""


@pytest.mark.slow
def test_wrong_use_of_the_command(redis70, folder, monkeypatch):
    """A message, an exit code, and the other filters are upgraded."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", redis70.url)
    assert "say --all" in cli.run("upgrade", code=2)[1]
    assert "say --all" in cli.run("upgrade", "old", "--all", code=2)[1]
    create_old("archived", redis70.url, folder, **SETTINGS)
    create_old("old", redis70.url, **SETTINGS)
    out, err = cli.run("upgrade", "archived", "nothing", "old", code=2)
    assert out == b"old: upgraded 3 shards from format 1 to 2\n"
    assert "name it (archive=, --archive)" in err
    assert "no such filter" in err
    out, _ = cli.run("upgrade", "--all", "--archive", folder)
    assert b"archived: upgraded 3 shards" in out
