"""Files and documents of an archive that are there and cannot be read: as if they were missing, loudly, never stuck."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.archives import checkpoints, leftovers, sound

from urifilter_redis import ArchiveCorrupt, ArchiveError, ArchiveMissing, UriFilter, drop_filter
from urifilter_redis.archive.maintenance import verify_all
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_backend

pytestmark = pytest.mark.slow

SETTINGS = {"capacity": 2000, "error_rate": 1e-9, "seed": 1}
RING = SETTINGS | {"retention": "ring", "slices": 3, "period": "1d"}
ROLLING = SETTINGS | {"retention": "rolling", "slices": 4, "period": "1d"}


def folder_with_a_file(path):
    path.mkdir()
    (path / "file").touch()


def unix_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # addresses are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


#: What may have come in the place of a file, and a part of the reason that is told.
WAYS = {
    "a folder": (Path.mkdir, "no file"),
    "a folder with a file": (folder_with_a_file, "no file"),
    "a loop of links": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "an input/output error": (lambda path: path.symlink_to("/proc/self/mem"), "Input/output error"),
    "a link to a name that is too long": (lambda path: path.symlink_to("x" * 300), "name too long"),
    "a pipe": (os.mkfifo, "no file"),
    "a socket": (unix_socket, "No such device"),
    "a device without an end": (lambda path: path.symlink_to("/dev/zero"), "no file"),
}


@pytest.fixture(params=WAYS)
def spoil(request):
    """Put something in the place of a file that cannot be read; return a part of the reason that is told."""

    def spoil(path):
        do, reason = WAYS[request.param]
        if path.exists():
            path.unlink()
        do(path)
        return reason

    return spoil


def items(epoch):
    return [f"{epoch}-{n}" for n in range(40)]


def files(folder, pattern):
    return list(Path(urlsplit(folder).path).glob(f"*.filter/*/{pattern}"))


def blob_of(document):
    """Return the largest blob that a document names."""
    text = document.read_text()
    return max(
        (path for path in document.parent.glob("*.blob") if path.stem in text), key=lambda path: path.stat().st_size
    )


def slice_of(folder, epoch):
    (document,) = files(folder, f"slice-0-{epoch}.json")
    return document


def check(folder, name="news"):
    """Return what is wrong with an archive."""
    backend = open_backend(folder)
    problems = drive(verify_all(backend, name, lambda *_: None)).problems
    drive(backend.close())
    return problems


@pytest.mark.parametrize("what", ["document", "blob"])
def test_rotation(what, spoil, any_server, folder):
    """The old history stays in: nothing is lost, which and why is told, and later rotations are as ever."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            assert news.rotate().problems == ()
        document = slice_of(folder, 1)
        path = document if what == "document" else blob_of(document)
        reason = spoil(path)
        news.insert_many(items(2))
        problems = news.rotate().problems
        assert all("slice 1" in problem for problem in problems)
        assert any(str(path) in problem and reason in problem for problem in problems)
        assert (news.epoch(), news.info().phase) == (3, "idle")
        assert 0 not in news.ages([*items(0), *items(1), *items(2)])
        while news.epoch() < 7:
            news.rotate()
        assert news.rotate().problems == ()
        assert set(news.ages([*items(0), *items(1), *items(2)])) == {0}
        news.drop()
    leftovers(folder)


def test_archiving_over_what_cannot_be_read(spoil, any_server, folder):
    """A slice whose place is taken is archived all the same."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        news.rotate()
        news.insert_many(items(1))
        spoil(slice_of(folder, 0).with_name("slice-0-1.json"))
        assert news.rotate().problems == ()
        assert 0 not in news.ages(items(1))
        assert news.rotate().problems == ()
        assert 0 not in news.ages(items(1))
    leftovers(folder)
    sound(folder)


@pytest.mark.parametrize("what", ["document", "blob"])
def test_restore(what, spoil, any_server, folder):
    """The checkpoint before is used, which and why is told, and all that follows is as if nothing had been."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **SETTINGS) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            news.checkpoint()
    document = checkpoints(folder)[-1]
    path = document if what == "document" else blob_of(document)
    reason = spoil(path)
    (problem,) = check(folder)
    assert str(path) in problem
    assert reason in problem
    with any_server.client() as admin:
        admin.flushall()
        with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
            (problem,) = news.restored.problems
            assert str(path) in problem
            assert reason in problem
            assert 0 not in news.ages(items(0))
            news.insert_many(items(1))
            news.checkpoint()
            news.insert_many(items(2))
            news.checkpoint()
        admin.flushall()
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        assert news.restored.problems == ()
        assert 0 not in news.ages([*items(0), *items(1), *items(2)])
    leftovers(folder)
    sound(folder)


def test_nothing_good_to_restore(spoil, any_server, folder):
    """If neither checkpoint can be read there is an error that says why, and Redis is left as it was."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **SETTINGS) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            news.checkpoint()
    reasons = [spoil(path) for path in checkpoints(folder)]
    with any_server.client() as admin:
        admin.flushall()
        with pytest.raises(ArchiveCorrupt, match=reasons[0]):
            UriFilter.open("news", redis=any_server.url, archive=folder)
        assert set(admin.keys()) <= {b"urifilter:filters"}
    assert drop_filter("news", redis=any_server.url, archive=folder)
    leftovers(folder)
    with UriFilter.create("news", redis=any_server.url, archive=folder, **SETTINGS) as news:
        news.checkpoint()
    sound(folder)


def test_checkpoint_that_takes_over(spoil, any_server, folder):
    """A closed slice whose file cannot be read is written anew."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **RING) as news:
        news.insert_many(items(0))
        news.rotate()
        news.checkpoint()
        for blob in files(folder, "*.blob"):
            spoil(blob)
        news.insert_many(items(1))
        news.checkpoint()
        news.insert_many(items(2))
        news.checkpoint()
    any_server.ask("flushall")
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        assert news.restored.problems == ()
        assert 0 not in news.ages([*items(0), *items(1), *items(2)])
    leftovers(folder)
    sound(folder)


def test_registration(spoil, any_server, folder):
    """Without it the archive counts as away: nothing is changed by anybody, and the other filters are looked after."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        with UriFilter.create("other", redis=any_server.url, archive=folder, **SETTINGS) as other:
            other.checkpoint()
        news.rotate()
        (registration,) = Path(urlsplit(folder).path).glob("news.filter/filter.json")
        kept = registration.read_bytes()
        reason = spoil(registration)
        for refused in (news.rotate, news.checkpoint):
            with pytest.raises(ArchiveCorrupt, match=reason):
                refused()
        assert (news.epoch(), news.info().phase) == (1, "idle")
        with pytest.raises(ArchiveError):
            UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING)
        (problem,) = check(folder, None)
        assert reason in problem
        registration.rename(registration.with_name("aside"))
        registration.write_bytes(kept)
        assert news.rotate().problems == ()


def test_this_process_has_no_more_files(any_server, folder):
    """That says nothing of the archive: it is an error, and no slice counts as damaged."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        news.insert_many(items(0))
        news.rotate()
    backend, (_, hard) = open_backend(folder), resource.getrlimit(resource.RLIMIT_NOFILE)
    key, soft = Key("news", "slice", news.config.uid, 0, 0), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert drive(backend.read(key))
    unused = os.open("/dev/null", os.O_RDONLY)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
    try:
        with pytest.raises(ArchiveError, match="Too many open files") as caught:
            drive(backend.read(key))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, ArchiveCorrupt | ArchiveMissing)


#: What may be wrong with what MongoDB has of a blob, or with a pointer.
HARM = {
    "a chunk is missing": lambda backend, blob, _: backend._chunks.delete_one({"files_id": blob, "n": 0}),
    "all chunks are missing": lambda backend, blob, _: backend._chunks.delete_many({"files_id": blob}),
    "a chunk is empty": lambda backend, blob, _: backend._chunks.update_one(
        {"files_id": blob}, {"$set": {"data": b""}}
    ),
    "a chunk is a number": lambda backend, blob, _: backend._chunks.update_one(
        {"files_id": blob}, {"$set": {"data": 7}}
    ),
    "a chunk is text": lambda backend, blob, _: backend._chunks.update_one({"files_id": blob}, {"$set": {"data": "x"}}),
    "a pointer is a number": lambda backend, _, key: backend._pointers.update_one(key, {"$set": {"text": 7}}),
    "a pointer has no text": lambda backend, _, key: backend._pointers.update_one(key, {"$unset": {"text": 1}}),
    "a pointer is empty": lambda backend, _, key: backend._pointers.update_one(key, {"$set": {"text": b""}}),
    "a pointer is other bytes": lambda backend, _, key: backend._pointers.update_one(key, {"$set": {"text": b"{x"}}),
}


#: A blob's, and a pointer's; the others in the slow tests.
HARMED = [
    pytest.param(how, marks=() if how in {"a chunk is missing", "a pointer is empty"} else pytest.mark.slow)
    for how in HARM
]


def harm(how, backend, key):
    """Harm the document of a key, or the blob of a bitmap that it names."""
    text = drive(backend.read(key)).decode()
    blob = text.split('"blob": "')[1].split('"')[0]
    fields = {field: getattr(key, field) for field in ("filter", "kind", "uid", "shard", "epoch")}
    HARM[how](backend, f"news/{blob}", fields)


@pytest.mark.parametrize("how", HARMED)
def test_mongodb_rotation(how, any_server, mongodb):
    """As in a folder: late, loudly, and never stuck."""
    backend = open_backend(mongodb)
    with UriFilter.create("news", redis=any_server.url, archive=mongodb, **ROLLING) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            news.rotate()
        harm(how, backend, Key("news", "slice", news.config.uid, 0, 1))
        assert len(check(mongodb)) == 1
        news.insert_many(items(2))
        assert news.rotate().problems
        assert 0 not in news.ages([*items(0), *items(1), *items(2)])
        while news.epoch() < 6:
            news.rotate()
        assert news.rotate().problems == ()
        assert set(news.ages([*items(0), *items(1), *items(2)])) == {0}
    drive(backend.close())
    leftovers(mongodb)
    sound(mongodb)


@pytest.mark.parametrize("how", HARMED)
def test_mongodb_checkpoint(how, any_server, mongodb):
    """The checkpoint before is restored, and later ones take the place of what was harmed."""
    backend = open_backend(mongodb)
    with UriFilter.create("news", redis=any_server.url, archive=mongodb, **SETTINGS) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            news.checkpoint()
        harm(how, backend, Key("news", "checkpoint", news.config.uid, 0, 1))
    with any_server.client() as admin:
        admin.flushall()
        with UriFilter.open("news", redis=any_server.url, archive=mongodb) as news:
            assert len(news.restored.problems) == 1
            for epoch in range(1, 4):
                news.insert_many(items(epoch))
                news.checkpoint()
        admin.flushall()
    with UriFilter.open("news", redis=any_server.url, archive=mongodb) as news:
        assert news.restored.problems == ()
        assert 0 not in news.ages([*items(0), *items(1), *items(2), *items(3)])
    drive(backend.close())
    leftovers(mongodb)
    sound(mongodb)
