"""Redis came back empty, and somebody made a filter of the same name there: who names the archive is told so."""

from __future__ import annotations

import asyncio
import json

import pytest
from support import cli
from support.service import Service, ask
from support.turning import make_late

from urifilter_redis import ArchiveMissing, AsyncUriFilter, ConfigMismatch, FilterNotFound, UriFilter, drop_filter
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Worker

pytestmark = pytest.mark.slow

INSERT = "/cr-clawr/uri_filter/api/uri_filter"

SEEN = [b"%d" % number for number in range(100)]


@pytest.fixture
def lost(any_server, folder, monkeypatch):
    """A filter with an archive, whose Redis came back empty: where it is."""
    where = {"redis": any_server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=1000) as news:
        news.insert_many(SEEN)
        news.checkpoint()
    any_server.ask("flushall")
    return where


def another_machine(monkeypatch, tmp_path) -> None:
    """Go on without the notes of this machine's user."""
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(tmp_path / "another"))


@pytest.fixture(params=["without an archive", "with its own"])
def impostor(request, lost, monkeypatch, tmp_path):
    """The same, and another machine has made a filter of that name."""
    another_machine(monkeypatch, tmp_path)
    own = {"archive": (tmp_path / "own").as_uri() if request.param == "with its own" else ""}
    with UriFilter.create("news", **(lost | own), capacity=1000) as other:
        assert other.ages(SEEN) == [0] * 100
    return lost


def refused(error, where) -> None:
    """Check that the message says which two there are, and what to do."""
    with UriFilter.open("news", **(where | {"archive": ""})) as there:
        uid = there.config.uid
    for part in ("uid", uid, "drop the one in Redis", "open it with"):
        assert part in str(error)


@pytest.mark.parametrize("named", ["call", "environment"])
def test_open_and_create(impostor, monkeypatch, named):
    """ConfigMismatch, blocking and asyncio; it opens without the archive; once dropped the archive's comes back."""
    where = dict(impostor)
    if named == "environment":
        monkeypatch.setenv("URIFILTER_ARCHIVE", where.pop("archive"))
    with pytest.raises(ConfigMismatch) as opened:
        UriFilter.open("news", **where)
    refused(opened.value, where)
    assert len(opened.value.differences["uid"]) == 2
    with pytest.raises(ConfigMismatch, match="two filters of this name"):
        UriFilter.create("news", **where, capacity=1000)
    for make in (AsyncUriFilter.open, lambda *name, **where: AsyncUriFilter.create(*name, **where, capacity=1000)):
        with pytest.raises(ConfigMismatch, match="two filters of this name"):
            asyncio.run(make("news", **where))
    with UriFilter.open("news", **(where | {"archive": ""})) as there:
        assert there.insert("x")
    assert drop_filter("news", **impostor, keep_archive=True)
    with UriFilter.open("news", **where) as news:
        assert 0 not in news.ages(SEEN)
        assert "x" not in news


def test_commands(impostor, monkeypatch):
    """Exit 2, nothing on stdout but the worker's report."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", impostor["redis"])
    archive = ("--archive", impostor["archive"])
    for command in ("check", "add", "dedupe"):
        out, err = cli.run(command, "--filter", "news", *archive, given=b"1\n", code=2)
        assert out == b""
        refused(err, impostor)
    out, err = cli.run("worker", "--once", "--json", *archive, code=2)
    refused(json.loads(out)[0]["error"], impostor)


def test_worker(impostor):
    """It touches neither of the two, says so, and looks after the others; it names one without an archive."""
    where = impostor
    UriFilter.create("plain", redis=where["redis"], capacity=1000).close()
    UriFilter.create("written", **where, capacity=1000).close()
    backend = open_backend(where["archive"])
    done = Worker(where["redis"], "urifilter", where["archive"], backend, 300.0).once(force=True)
    assert [each.filter for each in done] == ["news", "plain", "written"]
    refused(done[0].error, where)
    assert done[1].error.startswith("plain has no archive, so nothing keeps it")
    assert [each.checkpoint for each in done] == [None, None, 1]
    assert done[2].error is None


def test_service(impostor):
    """It answers neither of the two, and does not tell where the archive is; without the archive it serves."""
    question = {"filter_typeid": "news", "URI_list": ["1"]}
    with Service(impostor["redis"], "--archive", impostor["archive"]) as service:
        answer = ask(service, "POST", INSERT, question)
        assert answer.status == 409
        assert "two filters of this name" in answer.json()["error"]
        assert "file:" not in answer.json()["error"]
    with Service(impostor["redis"]) as service:
        assert ask(service, "POST", INSERT, question).json()["unique"] == 1


def test_an_archive_that_does_not_know_it(any_server, folder, monkeypatch, tmp_path):
    """Named in the call that is refused, as create does; the environment names it for those that have one."""
    (tmp_path / "archive").mkdir()
    UriFilter.create("plain", redis=any_server.url, capacity=1000).close()
    for make in (UriFilter.open, lambda *name, **where: UriFilter.create(*name, **where, capacity=1000)):
        with pytest.raises(ConfigMismatch, match="archive is None and not"):
            make("plain", redis=any_server.url, archive=folder)
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    UriFilter.open("plain", redis=any_server.url).close()


def test_rotate_of_all(there, folder):
    """Of all that there are, those without an archive rotate, too; one that is named with an archive must have it."""
    ring = {"capacity": 1000, "retention": "ring", "slices": 3, "period": "1d"}
    UriFilter.create("plain", **ring).close()
    UriFilter.create("written", archive=folder, **ring).close()
    for name in ("plain", "written"):
        make_late(there, name, seconds=90_000)
    rows = json.loads(cli.run("rotate", "--due", "--json", "--archive", folder)[0])
    assert [(row["filter"], row["epoch"]) for row in rows] == [("plain", 1), ("written", 1)]
    assert "archive is None" in cli.run("rotate", "plain", "--archive", folder, code=2)[1]


def test_lost_under_an_open_filter(any_server, folder):
    """FilterNotFound names the archive and says what to do, blocking and asyncio; opened with it all is there."""
    where = {"redis": any_server.url, "archive": folder}

    async def asked():
        async with await AsyncUriFilter.open("news", redis=any_server.url) as news:
            flush()
            for asking in (news.insert, news.contains):
                with pytest.raises(FilterNotFound, match=expected):
                    await asking("x")
            for asking in (news.info, news.epoch):
                with pytest.raises(FilterNotFound, match=expected):
                    await asking()

    def flush():
        any_server.ask("flushall")

    expected = rf"it had the archive {folder}: unless it was dropped, open it with that \(archive=, --archive\)"
    with UriFilter.create("news", **where, capacity=1000) as news:
        news.insert_many(SEEN)
        news.checkpoint()
        flush()
        for asking in (lambda: news.insert("x"), lambda: "x" in news, news.info, news.epoch):
            with pytest.raises(FilterNotFound, match=expected):
                asking()
    UriFilter.open("news", **where).close()
    asyncio.run(asked())
    with UriFilter.open("news", **where) as again:
        assert 0 not in again.ages(SEEN)
    with UriFilter.create("plain", redis=any_server.url, capacity=1000) as plain:
        flush()
        with pytest.raises(FilterNotFound) as bare:
            plain.insert("x")
        assert "archive" not in str(bare.value)


def test_lost_and_known(lost, monkeypatch, tmp_path):
    """On a machine that has seen it, opening it names its archive: without one, with another, and by commands."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", lost["redis"])
    (tmp_path / "other").mkdir()
    for other in ({}, {"archive": (tmp_path / "other").as_uri()}):
        with pytest.raises(ArchiveMissing, match=f"had the archive {lost['archive']}"):
            UriFilter.open("news", **other)
        with pytest.raises(ArchiveMissing, match=f"had the archive {lost['archive']}"):
            asyncio.run(AsyncUriFilter.open("news", **other))
    for command in ("check", "add", "dedupe"):
        out, err = cli.run(command, "--filter", "news", given=b"1\n", code=2)
        assert out == b""
        assert lost["archive"] in err
        assert "urifilter create" not in err
    another_machine(monkeypatch, tmp_path)
    with pytest.raises(FilterNotFound, match="create it first"):
        UriFilter.open("news")
