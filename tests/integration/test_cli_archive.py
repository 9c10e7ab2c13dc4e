"""``archive``, ``checkpoint``, ``restore`` and ``worker``, and what other commands do with an archive."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from support import cli
from support.archives import checkpoints, files, leftovers, on, root, sound
from support.disk import fill, mounted
from support.forked import in_child
from support.pipelines import pipelines
from support.servers import silent_port, wait_until
from support.turning import make_late
from urifilter_redis.cli.signals import Signals

from urifilter_redis import UriFilter
from urifilter_redis.archive.maintenance import Document, Entry, Pruned, Verified, examine_archive, show
from urifilter_redis.base_blocking import connect
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.session import Restored
from urifilter_redis.flows.checkpoint import Written
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Served, Worker

NEWS = ("create", "news", "--capacity", "100k", "--error-rate", "1e-8", "--seed", "1")
SETTINGS = {"capacity": 100_000, "error_rate": 1e-8, "seed": 1}
RING = {"retention": "ring", "slices": 3, "period": "1d"}
ROLLING = RING | {"retention": "rolling"}

#: The number of the user nobody.
NO_HOLDER = 65534


@pytest.fixture
def there(there, folder, monkeypatch):
    """A server and an archive, both named by the environment."""
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    return there


def names(kind) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def numbers(*span) -> bytes:
    return b"".join(b"%d\n" % number for number in range(*span))


def make(**more) -> None:
    """Make the filter that NEWS makes; what is not the subject of a test is done without a process."""
    UriFilter.create("news", **SETTINGS, **more).close()


def add(*span) -> None:
    with UriFilter.open("news") as news:
        assert news.insert_ages(numbers(*span).split()) == [0] * len(range(*span))


def write_back() -> None:
    with UriFilter.open("news") as news:
        news.checkpoint()


def make_kept(*span) -> None:
    """Make the filter, insert numbers, and write it back."""
    make()
    add(*span)
    write_back()


def rotate() -> None:
    with UriFilter.open("news") as news:
        news.rotate()


def check(*span, **where) -> set[bool]:
    """Return whether the numbers have been seen."""
    with UriFilter.open("news", **where) as news:
        return {age > 0 for age in news.ages(numbers(*span).split())}


def documents(archive, name="news") -> list[Document]:
    return on(archive, show, name)[1]


def flip(path, at=-1) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# checkpoint and restore


def test_there_and_back(any_server, archive, monkeypatch):
    """Created with --archive, checkpointed, flushed, restored: seen is seen; said on stdout, exit 0."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    where = ("--archive", archive)
    cli.run(*NEWS, *where)
    cli.run("add", "-q", "--filter", "news", *where, given=numbers(500))
    out, err = cli.run("checkpoint", "news", *where)
    assert out.startswith(b"news: checkpoint 1: 1 of 1 shards, ")
    assert err == ""
    assert cli.run("checkpoint", "news", *where) == (b"news: checkpoint 1: 0 of 1 shards, 0 B\n", "")
    any_server.ask("flushall")
    out, err = cli.run("restore", "news", *where)
    assert out.startswith(b"news: restored 1 shard to checkpoint 1 of 20")
    assert err == ""
    out, err = cli.run("check", "--filter", "news", *where, given=numbers(450, 550))
    assert ([line.split(b"\t")[0] for line in out.splitlines()], err) == ([b"seen"] * 50 + [b"new"] * 50, "")
    assert cli.run("restore", "news", *where) == (b"news: nothing to restore: Redis has what the archive has\n", "")
    sound(archive)
    assert leftovers(archive) == 0


def test_checkpoint_and_restore_as_json(there):
    """--json has the attributes of what the library returns."""
    make()
    add(100)
    done = cli.json_of("checkpoint", "news")
    assert list(done) == ["filter", *names(Written)]
    assert (done["filter"], done["number"], done["shards"]) == ("news", 1, 1)
    assert done["size"] > 0
    full = cli.json_of("checkpoint", "news", "--full")
    assert (full["number"], full["shards"], full["size"]) == (2, 1, done["size"])
    assert cli.json_of("restore", "news") == {"filter": "news", "shards": 0}
    there.ask("flushall")
    back = cli.json_of("restore", "news")
    assert list(back) == ["filter", *names(Restored)]
    assert (back["shards"], back["checkpoint"], back["problems"]) == (1, 2, [])
    assert back["begun"] == pytest.approx(full["begun"], abs=1)


def test_quiet(there):
    """-q: nothing on either stream, whatever there was to do."""
    make()
    add(100)
    for command in ("checkpoint", "checkpoint", "restore"):
        assert cli.run(command, "news", "-q") == (b"", "")
    there.ask("flushall")
    assert cli.run("restore", "news", "-q") == (b"", "")
    assert check(100) == {True}


def test_restore_from_the_checkpoint_before(there, folder):
    """A damaged checkpoint: the one before is used, which is said on stderr; what came after it is offered again."""
    make()
    for start in (0, 100):
        add(start, start + 100)
        write_back()
    flip(checkpoints(folder)[-1])
    there.ask("flushall")
    out, err = cli.run("restore", "news")
    assert out.startswith(b"news: restored 1 shard to checkpoint 1 of ")
    assert err.startswith("urifilter: ")
    assert err.endswith("; something older was used\n")
    assert check(100) == {True}
    assert check(100, 200) == {False}


def test_no_archive_named(there, monkeypatch):
    """Exit 2 with what to do; nothing on stdout."""
    make()
    monkeypatch.delenv("URIFILTER_ARCHIVE")
    for command in (["restore", "news"], ["checkpoint", "news"], ["worker", "--once"]):
        assert "archive" in cli.stderr_of(*command, code=2)
    for command in (["list"], ["import", "x"], ["prune"]):
        err = cli.stderr_of("archive", *command, code=2)
        assert "which archive? Say --archive or set URIFILTER_ARCHIVE" in err
    UriFilter.create("plain", capacity=1000).close()
    assert "made without an archive" in cli.run("restore", "plain", code=2)[1]
    assert "made without an archive" in cli.run("checkpoint", "plain", code=2)[1]


def test_an_archive_that_is_none():
    """Exit 2 with the forms that there are; passwords are not shown."""
    _, err = cli.run("archive", "list", "--archive", "/var/lib/urifilter", code=2)
    assert "an archive is file:///a/folder or mongodb://host/database" in err
    _, err = cli.run("archive", "list", "--archive", "file:///nowhere/at/all", code=2)
    assert "/nowhere/at/all is missing" in err
    address = f"mongodb://somebody:secret@127.0.0.1:{silent_port()}/x?serverSelectionTimeoutMS=100"
    code, out, err = cli.invoke("archive", "verify", "-v", "--archive", address)
    assert (code, out) == (2, b"")
    assert b"secret" not in err


def test_never_an_empty_filter(there, monkeypatch):
    """Redis came back empty and the archive is not named: whatever is tried, nothing is made."""
    make_kept(100)
    there.ask("flushall")
    monkeypatch.delenv("URIFILTER_ARCHIVE")
    _, err = cli.run(*NEWS, code=2)
    assert "--archive" in err
    for command in ("add", "check", "dedupe"):
        assert cli.run(command, "--filter", "news", given=b"1\n", code=2)[0] == b""
    for command in ("info", "checkpoint", "restore"):
        assert "--archive" in cli.stderr_of(command, "news", code=2)
    assert there.ask("keys") == []


def test_the_environment_names_the_archive(there, folder, tmp_path):
    """URIFILTER_ARCHIVE is as good as --archive, which is stronger; what comes back does so by any command."""
    make_kept(100)
    other = (tmp_path / "other").as_uri()
    UriFilter.create("more", capacity=1000, archive=other).close()
    assert [each["filter"] for each in cli.json_of("archive", "list")] == ["news"]
    assert [each["filter"] for each in cli.json_of("archive", "list", "--archive", other)] == ["more"]
    assert "does not have it" in cli.run("info", "news", "--archive", other, code=2)[1]
    there.ask("flushall")
    assert check(100) == {True}
    assert cli.json_of("info", "news")["inserted"] == 100


def test_wait_for_a_restore(there, folder, started):
    """While a filter is being restored: exit 2, and never "new"; with --wait the answer as soon as it is back."""
    make_kept(100)
    there.ask("flushall")
    connector, session = connect(ClientOptions("news", folder, there.url))
    restorer = pipelines(open_(session), connector)
    with there.client() as admin:
        while admin.hget("urifilter:{news:0}:meta", "phase") != b"restoring":
            next(restorer)
    assert "restor" in cli.stderr_of("check", "--filter", "news", given=numbers(100), code=2)
    waiting = started("check", "--filter", "news", "--wait", "2m")
    waiting.stdin.write(numbers(100))
    waiting.stdin.close()
    waiting.stdin = None
    for _ in restorer:
        pass
    connector.close()
    assert session.restored.shards == 1
    out, err = waiting.communicate(timeout=120)
    assert (out.count(b"seen\t"), err, waiting.returncode) == (100, b"", 0)


# archive


@pytest.mark.usefixtures("usual_timeouts")
def test_archive_list_and_show(there, folder):
    """What is there, in text and JSON, with Redis away: settings, checkpoints and closed slices."""
    make(**ROLLING)
    UriFilter.create("fresh", capacity=1000, shards=2).close()
    for start in (0, 100):
        add(start, start + 100)
        rotate()
    write_back()
    away = os.environ | {"URIFILTER_REDIS_URL": f"redis://127.0.0.1:{silent_port()}/0"}
    listed = cli.json_of("archive", "list", env=away)
    assert [list(each) for each in listed] == [names(Entry)] * 2
    fresh, news = listed
    assert (fresh["filter"], fresh["shards"], fresh["checkpointed"], fresh["begun"]) == ("fresh", 2, 0, None)
    assert (news["filter"], news["retention"], news["checkpointed"], news["problems"]) == ("news", "rolling", 1, [])
    assert news["slices"] > 0
    assert abs(news["begun"] - time.time()) < 600
    out, err = cli.run("archive", "list", env=away)
    rows = out.decode().splitlines()
    assert [row.split()[0] for row in rows] == ["name", "fresh", "news"]
    assert "none yet" in rows[1]
    assert "damaged" not in out.decode()
    assert err == ""
    shown = cli.json_of("archive", "show", "news", env=away)
    assert list(shown) == ["filter", "created", "config", "documents"]
    assert shown["config"]["uid"] == news["uid"]
    assert [list(each) for each in shown["documents"]] == [names(Document)] * (1 + news["slices"])
    assert [dataclasses.asdict(each) for each in documents(folder)] == shown["documents"]
    text = cli.run("archive", "show", "news", env=away)[0].decode()
    assert {line.split()[0] for line in text.split("\n\n")[1].splitlines()} == {"kind", "checkpoint", "slice"}
    assert "there is no filter 'nope'" in cli.stderr_of("archive", "show", "nope", env=away, code=2)


def test_archive_verify(there, folder):
    """Exit 0 and a count on stderr; one byte of a blob damaged: exit 1, and what it is of on stdout."""
    make_kept(100)
    with UriFilter.create("other", capacity=1000) as other:
        other.checkpoint()
    err = cli.stderr_of("archive", "verify")
    assert err.splitlines()[:2] == [f"{name}: 1 checkpoint of each shard can be restored" for name in ("news", "other")]
    assert err.splitlines()[2].startswith("2 documents, ")
    assert err.endswith(": 0 damaged\n")
    (blob, *_) = sorted(files(folder, "*.blob"), key=lambda path: -path.stat().st_size)
    flip(blob, blob.stat().st_size // 2)
    out, err = cli.run("archive", "verify", code=1)
    (line,) = out.decode().splitlines()
    assert line.startswith("checkpoint of 'news', shard 0, epoch 0: ")
    assert err.endswith(": 1 damaged\n")
    found = cli.json_of("archive", "verify", "news", code=1)
    assert list(found) == names(Verified)
    assert found["problems"] == [line]
    assert found["checkpoints"] == {"news": [0]}
    cli.run("archive", "verify", "other")
    assert cli.run("archive", "verify", "nope", code=2)[0] == b""


def test_a_damaged_document(there, folder):
    """``archive list`` and ``show`` say so, ``verify`` exits with 1, ``prune`` keeps what it may need."""
    make_kept(100)
    (document,) = files(folder, "checkpoint-*.json")
    flip(document, 20)
    before = files(folder, "*")
    assert "1 damaged: urifilter archive verify" in cli.run("archive", "list")[0].decode()
    (listed,) = cli.json_of("archive", "list")
    assert len(listed["problems"]) == 1
    (shown,) = cli.json_of("archive", "show", "news")["documents"]
    assert shown["problem"] == listed["problems"][0]
    assert cli.run("archive", "verify", code=1)[0].decode() == f"{shown['problem']}\n"
    _, err = cli.run("archive", "prune", "--older-than", "0s", code=1)
    assert "leftovers of 'news' were kept" in err
    assert files(folder, "*") == before
    (document.parents[1] / "filter.json").write_text("{")
    assert "1 damaged" in cli.run("archive", "list")[0].decode()
    assert "registration" in cli.run("archive", "verify", code=1)[0].decode()


@pytest.mark.slow
def test_export_is_asked_without_a_server(there, tmp_path):
    """``check --archive-file`` answers as ``check`` did, with neither server nor archive reachable."""
    make(**RING)
    for start in (0, 100, 200):
        add(start, start + 100)
        rotate()
    with UriFilter.open("news") as news:
        news.forget(numbers(10).split())
    write_back()
    file = tmp_path / "news.urifilter"
    assert cli.stderr_of("archive", "export", "news", file).startswith(f"{file}: news as of 20")
    told = cli.json_of("archive", "export", "news", file)
    assert (told["filter"], told["file"], told["size"]) == ("news", str(file), file.stat().st_size)
    asked = [((), 0, (0, 500)), (("--new",), 0, (0, 500)), (("--max-age", "2"), 0, (0, 500)), ((), 1, (900, 950))]
    answers = [
        cli.run("check", "--filter", "news", *more, given=numbers(*span), code=code) for more, code, span in asked
    ]
    away = os.environ | {"URIFILTER_REDIS_URL": f"redis://127.0.0.1:{silent_port()}/0"}
    away |= {"URIFILTER_ARCHIVE": (tmp_path / "away").as_uri()}
    (tmp_path / "archive").rename(tmp_path / "gone")
    for (more, code, span), answer in zip(asked, answers, strict=True):
        assert cli.run("check", "--archive-file", file, *more, given=numbers(*span), code=code, env=away) == answer
    flip(file, file.stat().st_size - 1)
    data = file.read_bytes()
    for damaged in (b"something else\n", data[: len(data) // 2]):
        file.write_bytes(damaged)
        assert str(file) in cli.stderr_of("check", "--archive-file", file, given=numbers(500), code=2, env=away)


def test_export_of_nothing(there, tmp_path):
    """No checkpoint yet, or no such filter: exit 2, and a file that is there stays."""
    make()
    file = tmp_path / "news.urifilter"
    file.write_text("mine")
    assert "urifilter checkpoint news" in cli.run("archive", "export", "news", file, code=2)[1]
    assert "no filter 'nope'" in cli.run("archive", "export", "nope", file, code=2)[1]
    assert file.read_text() == "mine"
    assert list(tmp_path.glob("*.part")) == []


def test_import_elsewhere(there, other_server, folder, tmp_path):
    """An exported filter goes into another archive and from there into another Redis."""
    make_kept(100)
    file = tmp_path / "news.urifilter"
    cli.run("archive", "export", "news", file)
    other = (tmp_path / "other").as_uri()
    assert "urifilter restore news" in cli.stderr_of("archive", "import", file, "--archive", other)
    where = ("--archive", other, "--redis", other_server.url)
    assert cli.run("restore", "news", *where)[0].startswith(b"news: restored 1 shard to checkpoint 1 of ")
    assert check(100, archive=other, redis=other_server.url) == {True}
    told = cli.json_of("archive", "import", file, "--archive", other)
    assert told == {"filter": "news", "uid": cli.json_of("archive", "list")[0]["uid"], "shards": 1}
    cli.run("drop", "news", "--yes")
    make()
    assert "another filter 'news'" in cli.run("archive", "import", file, code=2)[1]
    flip(file)
    cli.stderr_of("archive", "import", file, "--archive", (tmp_path / "third").as_uri(), code=2)
    assert not (tmp_path / "third").exists()
    sound(other)
    sound(folder)


def test_prune(there, folder):
    """Leftovers go when they are older than --older-than, never younger ones, nor anything that is needed."""
    make_kept(100)
    needed = files(folder, "*")
    ages = {"0" * 16: 7200, "1" * 16: 1800}
    left = []
    for path in needed:
        os.utime(path, (time.time() - 9 * 86_400,) * 2)
    for number, age in ages.items():
        for suffix in (".blob", ".part"):
            path = needed[0].parent / f"{needed[0].parent.name}-{number}{suffix}"
            path.write_bytes(b"left")
            os.utime(path, (time.time() - age,) * 2)
            left.append(path)
    assert cli.run("archive", "prune", "--older-than", "3h")[1].startswith("removed 0 leftovers, 0 B")
    assert cli.stderr_of("archive", "prune").startswith("removed 2 leftovers, 8 B, and 0 expired documents")
    assert [path.exists() for path in left] == [False, False, True, True]
    done = cli.json_of("archive", "prune", "news", "--older-than", "10m")
    assert list(done) == names(Pruned)
    assert done == {"blobs": 2, "packed": 8, "documents": 0, "problems": []}
    assert set(files(folder, "*")) == set(needed)
    assert sound(folder) == 1
    assert "a period is" in cli.run("archive", "prune", "--older-than", "soon", code=2)[1]


def test_drop(there, folder, monkeypatch):
    """Refused while the archive is not named; --keep-archive leaves what can be restored; else both are empty."""
    make_kept(100)
    with monkeypatch.context() as without:
        without.delenv("URIFILTER_ARCHIVE")
        assert "--keep-archive" in cli.stderr_of("drop", "news", "--yes", code=2)
        assert check(100, archive=folder) == {True}
        assert cli.run("drop", "news", "--yes", "--keep-archive") == (b"", "dropped news\n")
        assert there.ask("keys") == []
    assert sound(folder) == 1
    cli.run("restore", "news", "-q")
    assert check(100) == {True}
    assert cli.run("drop", "news", "--yes") == (b"", "dropped news\n")
    assert there.ask("keys") == []
    assert cli.json_of("archive", "list") == []
    assert files(folder, "*") == []
    assert "there is no filter 'news'" in cli.run("drop", "news", "--yes", code=2)[1]
    make()
    assert check(100) == {False}


# worker


def test_worker_once(there, folder):
    """Rotates what is due and writes all back; the JSON has the attributes; the log is on stderr."""
    make(**ROLLING)
    UriFilter.create("forever", capacity=1000).close()
    add(100)
    make_late(there, seconds=86_401)
    out, err = cli.run("worker", "--once", "--json")
    done = json.loads(out)
    assert [list(each) for each in done] == [names(Served)] * 2
    forever, news = done
    assert (forever["filter"], forever["epoch"], forever["checkpoint"]) == ("forever", None, 1)
    assert (news["filter"], news["epoch"], news["checkpoint"], news["shards"]) == ("news", 1, 1, 1)
    assert all((each["error"], each["busy"], each["problems"]) == (None, False, []) for each in done)
    assert "news: rotated to epoch 1" in err
    assert "news: checkpoint 1, 1 of 1 shards" in err
    err = cli.stderr_of("worker", "--once", "--filter", "news")
    assert "rotated" not in err
    assert "forever" not in err
    assert {(each.kind, each.epoch) for each in documents(folder)} == {("slice", 0), ("checkpoint", 1)}
    there.ask("flushall")
    assert [each["restored"] for each in cli.json_of("worker", "--once")] == [1, 1]
    assert check(100) == {True}
    sound(folder)


def test_worker_once_with_a_broken_filter(there):
    """The others are written back; the error is logged and in the JSON, and the exit code is 2."""
    UriFilter.create("a-broken", capacity=1000).close()
    make()
    add(100)
    there.ask("hset", "urifilter:{a-broken:0}:meta", "k", "x")
    out, err = cli.run("worker", "--once", "--json", code=2)
    broken, news = json.loads(out)
    assert "a-broken" in broken["error"]
    assert (news["error"], news["checkpoint"]) == (None, 1)
    assert "ERROR" in err
    assert "news: checkpoint 1" in err


@pytest.mark.parametrize(
    "wrong",
    [["--once", "--archive", "nonsense"], ["--checkpoint-every", "soon"], ["--once", "--filter", "nope"]],
    ids=" ".join,
)
def test_worker_wrong_use(there, folder, wrong):
    """Exit 2 with a message."""
    root(folder).mkdir()
    assert cli.stderr_of("worker", *wrong, code=2).strip()


@pytest.mark.slow
def test_worker_in_a_loop(make_server, folder, monkeypatch, started, tmp_path):
    """It writes back while others insert, brings back what a killed server has lost, and ends at SIGTERM with 0."""
    server = make_server("redis70")
    monkeypatch.setenv("URIFILTER_REDIS_URL", server.url)
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    make()
    with (tmp_path / "log").open("wb") as log:
        worker = started("worker", "--checkpoint-every", "1s", stderr=log)
    crawler = started("add", "--filter", "news")
    given = 0

    def written_back() -> bool:
        nonlocal given
        cli.feed(crawler, numbers(given, given + 20))
        given += 20
        return max((each.number for each in documents(folder)), default=0) > 1

    wait_until(written_back, "it does not write back")
    assert crawler.communicate(timeout=60)[0] == b""
    assert crawler.returncode == 0
    inserted = cli.json_of("info", "news")["inserted"]
    wait_until(lambda: max(each.inserted for each in documents(folder)) == inserted, "it does not write back the rest")
    server.kill()
    server.start()
    with server.client() as admin:
        wait_until(lambda: admin.hget("urifilter:{news:0}:meta", "phase") == b"idle", "it does not bring it back")
    monkeypatch.delenv("URIFILTER_ARCHIVE")
    assert check(given) == {True}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    text = (tmp_path / "log").read_text()
    assert "news: restored 1 shard to checkpoint" in text
    assert text.endswith("INFO stopped\n")
    assert "Traceback" not in text
    sound(folder)
    assert leftovers(folder) == 0


def test_worker_once_is_stopped(there, folder, monkeypatch):
    """A round that has not ended is none: the exit code is the signal's, and not that of a good round."""
    make()
    add(100)
    once = Worker.once

    def stopped(worker, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        return once(worker, **more)

    monkeypatch.setattr(Worker, "once", stopped)
    assert cli.run("worker", "--once", "--json", code=128 + signal.SIGTERM)[0] == b""


def test_worker_once_is_no_daemon(tmp_path):
    assert "--daemon would hide its exit code" in cli.run("worker", "--once", "--daemon", code=2)[1]


@pytest.mark.slow
def test_worker_is_stopped_before_each_step(there, folder):
    """Whenever it is asked to stop, it leaves a sound archive, the filter let go, and no blob that nobody needs."""
    make()
    write_back()
    backend = open_backend(folder)
    for number in itertools.count(1):
        add(100 * number, 100 * number + 10)
        checks = itertools.count(1)

        def check(checks=checks, number=number) -> None:
            if next(checks) == number:
                raise Stopped

        worker = Worker(there.url, "urifilter", folder, backend, 1.0, check=check)
        try:
            worker.once(force=True)
        except Stopped:
            assert leftovers(folder) == 0
            sound(folder)
            assert there.ask("hget", "urifilter:{news:0}:meta", "worker") is None
        else:
            break
    drive(backend.close())
    assert number > 20


class Stopped(Exception):
    """A worker was asked to stop."""


@contextlib.contextmanager
def held(archive):
    """Hold the lock of the filter's documents: a checkpoint uploads, and waits before it counts."""
    with (root(archive) / "news.filter" / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def uploading(archive, checkpoints) -> bool:
    """Whether there are more blobs than so many checkpoints, of which each has two, need."""
    # Only counted: a file that is renamed meanwhile can be missed (it is asked again), but no file is looked at.
    found = [path for pattern in ("*.blob", "*.part") for path in root(archive).glob(f"*.filter/*/{pattern}")]
    return len(found) > 2 * checkpoints


@pytest.mark.slow
def test_two_workers(there, folder, started):
    """One is suspended in the middle of a checkpoint for longer than its lease; the other takes over; both end well."""
    make_kept(100)
    add(100, 200)
    with held(folder):
        slow = started("worker", "--once", "--json")
        wait_until(lambda: uploading(folder, 1), "it does not upload")
        slow.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(slow.pid, os.WUNTRACED)[1])
    (busy,) = cli.json_of("worker", "--once")
    assert (busy["busy"], busy["checkpoint"], busy["error"]) == (True, None, None)
    there.ask("hset", "urifilter:{news:0}:meta", "leased", 0)
    add(200, 300)
    (quick,) = cli.json_of("worker", "--once")
    assert (quick["busy"], quick["error"], quick["shards"]) == (False, None, 1)
    add(300, 400)
    slow.send_signal(signal.SIGCONT)
    out, err = slow.communicate(timeout=60)
    assert slow.returncode == 0, err
    assert json.loads(out)[0]["checkpoint"] > quick["checkpoint"]
    there.ask("flushall")
    cli.run("restore", "news", "-q")
    assert check(400) == {True}
    assert check(400, 500) == {False}
    sound(folder)
    assert leftovers(folder) == 0


def test_a_signal_of_others_wakes_nobody():
    """While a command waits: its byte is taken out of the pipe, and the time goes on."""
    with Signals() as signals, signals.allowed():
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            began = time.monotonic()
            signals.wait(seconds=0.2)
            assert time.monotonic() >= began + 0.2
            reader, writer = os.pipe()
            signal.raise_signal(signal.SIGUSR1)
            os.write(writer, b"x")
            signals.wait(reader)
            os.close(reader)
            os.close(writer)
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_list_of_filters_with_and_without_an_archive(any_server, folder):
    """The archive that is named is for those filters that have one; the others are listed, too."""
    UriFilter.create("plain", redis=any_server.url, capacity=1000).close()
    UriFilter.create("written", redis=any_server.url, archive=folder, capacity=1000).close()
    out, err = cli.run("list", "--json", "--redis", any_server.url, "--archive", folder)
    assert [each["name"] for each in json.loads(out)] == ["plain", "written"]
    assert err == ""


@pytest.fixture
def own_disk(there, monkeypatch):
    """The folder of an archive with one filter, on a disk of 4 MB that every user may reach."""
    monkeypatch.delenv("URIFILTER_ARCHIVE")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="uf-") as above, mounted(above, "size=4m,mode=0755"):
        folder = Path(above) / "archive"
        with UriFilter.create("kept", capacity=1000, archive=folder.as_uri()) as kept:
            kept.insert("a")
            kept.checkpoint()
        yield folder


def about(folder) -> list[tuple[str, str]]:
    """Return the levels and texts of doctor about the archive."""
    found = cli.json_of("doctor", "--archive", folder.as_uri(), code=1)
    return [(each["level"], each["text"]) for each in found if each["subject"].startswith("archive")]


def as_nobody(folder) -> list[tuple[str, str]]:
    """Return what doctor says to a user without rights of his own."""

    def ask():
        os.setgroups([])
        os.setgid(NO_HOLDER)
        os.setuid(NO_HOLDER)
        return [(each.level, each.text) for each in drive(examine_archive(open_backend(folder.as_uri())))]

    return in_child(ask)


def only(found, level: str, words: str) -> None:
    """Check that doctor has one thing to say, of this level and with these words."""
    ((its_level, text),) = found
    assert (its_level, words in text) == (level, True), text


def give(folder, uid):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, -1)


def test_doctor_on_an_archive(own_disk):
    """What is well, what is damaged, and one that is not there yet; without --archive none is looked at."""
    assert about(own_disk)[0][0] == "ok"
    assert "1 filter, " in about(own_disk)[0][1]
    (document,) = own_disk.rglob("checkpoint-*.json")
    document.write_text("{")
    (_, damaged) = about(own_disk)
    only([damaged], "danger", "archive verify")
    only(about(own_disk.with_name("later")), "note", "the first create makes it")
    assert b"archive" not in cli.run("doctor", code=1)[0]


def test_doctor_on_an_archive_that_cannot_be_written(own_disk):
    """A disk without room, and one that is mounted read-only."""
    fill(own_disk.parent / "full")
    only(about(own_disk), "danger", "make room")
    (own_disk.parent / "full").unlink()
    subprocess.run(["mount", "-o", "remount,ro", own_disk.parent], check=True)
    only(about(own_disk), "danger", "mounted read-only")


def test_doctor_on_an_archive_of_somebody_else(own_disk):
    """A user who may only read it, one whose own mode is in the way, and root, whom nothing stops."""
    only(as_nobody(own_disk), "danger", f"may not read or write {own_disk} (owner root, mode 755)")
    give(own_disk, NO_HOLDER)
    assert as_nobody(own_disk)[0][0] == "ok"
    (lock,) = own_disk.rglob(".lock")
    os.chown(lock, 0, -1)
    only(as_nobody(own_disk), "danger", f"{lock} (owner root")
    only(about(own_disk), "note", "run doctor as nobody")
    own_disk.chmod(0)
    only(as_nobody(own_disk), "danger", f"{own_disk} (owner nobody, mode 000)")


def test_filter_without_an_archive_is_not_kept(there, folder, monkeypatch):
    """An archive that is named later keeps nothing of it: worker and doctor say so, and are no success."""
    monkeypatch.delenv("URIFILTER_ARCHIVE")
    UriFilter.create("plain", capacity=1000, retention="ring", slices=2, period="1d").close()
    cli.run("worker", "--once")  # nobody has asked for an archive
    assert "has no archive" not in cli.invoke("doctor")[1].decode()
    UriFilter.create("news", capacity=1000, archive=folder).close()
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    _, err = cli.run("worker", "--once", code=2)
    assert err.count("plain has no archive, so nothing keeps it") == 1
    done = cli.json_of("worker", "--once", code=2)
    assert [(each["filter"], bool(each["error"])) for each in done] == [("news", False), ("plain", True)]
    assert b"plain has no archive, so nothing keeps it" in cli.run("doctor", code=1)[0]


def test_filter_in_another_archive_is_not_kept(there, tmp_path):
    """Worker and doctor say which archive has it."""
    make()
    other = (tmp_path / "other").as_uri()
    (tmp_path / "other").mkdir()
    assert "it needs its archive" in cli.run("worker", "--once", "--archive", other, code=2)[1]
    text = cli.run("doctor", "--archive", other, code=1)[0].decode()
    assert "news is kept in" in text
    assert "name the right archive" in text
