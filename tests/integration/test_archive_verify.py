"""``archive verify`` lists all that is wrong, also what is not there; a restore says what it missed.

Files and documents that are there and cannot be read are as if they were missing, loudly, and never stuck.
"""

from __future__ import annotations

import functools
import itertools
import os
import resource
import shutil
import socket
import struct
from pathlib import Path

import pytest
from support import cli
from support.archives import (
    blob_of,
    checkpoints,
    export_to,
    files,
    import_from,
    leftovers,
    lie,
    on,
    piece_of,
    root,
    sound,
    verified,
)
from support.pipelines import pipelines

from urifilter_redis import ArchiveCorrupt, ArchiveError, ArchiveMissing, UriFilter, drop_filter
from urifilter_redis.archive.maintenance import entries
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows.checkpoint import checkpoint
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.storage.records import KINDS

pytestmark = pytest.mark.slow

SETTINGS = {"capacity": 2000, "error_rate": 1e-9, "seed": 1}
RING = SETTINGS | {"retention": "ring", "slices": 3, "period": "1d"}
ROLLING = SETTINGS | {"retention": "rolling", "slices": 4, "period": "1d"}


def items(*numbers):
    return [f"{number}-{n}" for number in numbers for n in range(40)]


def fill(news, *numbers):
    """Insert items, and write a checkpoint, for each of some numbers."""
    for number in numbers:
        news.insert_many(items(number))
        news.checkpoint()


def make(server, archive, name="news", times=2, **settings):
    """Make a filter with some checkpoints, and rotations if it has any."""
    with UriFilter.create(name, redis=server.url, archive=archive, **(settings or SETTINGS)) as it:
        for number in range(times):
            fill(it, number)
            if "period" in settings:
                it.rotate()
        return it.config.uid


def problems(archive, name=None):
    return verified(archive, name).problems


def remove(archive, key):
    """Remove a document and nothing else."""
    text = on(archive, lambda backend: backend.read(key))
    assert on(archive, lambda backend: backend.swap(key, text, None))


def reopen(server, archive):
    server.ask("flushall")
    return UriFilter.open("news", redis=server.url, archive=archive)


def restored_well(server, archive, *numbers):
    """Check that the newest checkpoint is restored, with all of these items, and that the archive is sound."""
    with reopen(server, archive) as news:
        assert news.restored.problems == ()
        assert 0 not in news.ages(items(*numbers))
    leftovers(archive)
    sound(archive)


def test_registration_is_gone(any_server, archive):
    """It is a problem of its own, and the documents and contents are read all the same."""
    uid = make(any_server, archive)
    make(any_server, archive, "other")
    remove(archive, Key("news"))
    (problem,) = problems(archive)
    assert "registration of 'news' is missing" in problem
    assert problems(archive, "news") == (problem,)
    assert [each.problems for each in on(archive, entries)] == [(problem,), ()]
    blob = on(archive, lambda backend: backend.blobs("news"))[0]
    on(archive, lambda backend: backend.delete("news", [blob.id]))
    found = problems(archive)
    assert len(found) > 1
    assert any(blob.id in each for each in found)
    assert uid in blob.id


def test_what_cannot_be_listed(any_server, folder, monkeypatch):
    """A root or a filter's folder that cannot be read is told, with exit code 1 or 2, and other filters are read."""
    make(any_server, folder)
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    (root(folder) / "broken.filter").symlink_to("broken.filter")
    out, err = cli.run("archive", "verify", code=1)
    assert b"broken.filter" in out
    assert "\n2 documents, " in err
    (root(folder) / "broken.filter").unlink()
    cli.run("archive", "verify")
    root(folder).rename(root(folder).with_name("aside"))
    assert "archive is missing" in cli.run("archive", "verify", code=2)[1]
    root(folder).symlink_to(root(folder).name)
    assert "symbolic links" in cli.run("archive", "verify", code=2)[1]
    root(folder).unlink()
    root(folder).mkdir()
    assert "is that mounted" in cli.run("archive", "verify", code=1)[1]


def test_a_closed_slice_is_missing(any_server, archive):
    """Each slice that the next history needs is missed, and no other."""
    uid = make(any_server, archive, times=6, **ROLLING)
    assert problems(archive) == ()
    for epoch in (4, 3):
        remove(archive, Key("news", "slice", uid, 0, epoch))
    missed = "slice {} of 'news', shard 0: it is missing: what it held expires late"
    assert problems(archive) == (missed.format(3), missed.format(4))
    with UriFilter.open("news", redis=any_server.url, archive=archive) as news:
        while news.epoch() < 12:
            news.rotate()
    assert problems(archive) == ()
    leftovers(archive)


def test_newest_checkpoint_is_gone(any_server, archive):
    """Of one shard of two: verify, list and the restore, which takes the one before, say so; the next one ends it."""
    uid = make(any_server, archive, times=3, shards=2, **SETTINGS)
    remove(archive, Key("news", "checkpoint", uid, 1, 0))  # of 1, 2 and 3 the third
    (problem,) = problems(archive)
    assert problem == "checkpoint 3 of 'news', shard 1: its document is gone"
    assert on(archive, entries)[0].problems == (problem,)
    with reopen(any_server, archive) as news:
        assert news.restored.problems == ("checkpoint 3, shard 1: its document is gone",)
        assert 0 not in news.ages(items(0, 1))
        news.checkpoint()
    assert problems(archive) == ()
    restored_well(any_server, archive, 0, 1)


def test_checkpoint_before_is_gone(any_server, archive):
    """The older of two: verify says so, and how many there are of each shard; the next checkpoint ends it."""
    uid = make(any_server, archive, times=3, shards=2, **SETTINGS)
    remove(archive, Key("news", "checkpoint", uid, 1, 1))  # of 2 and 3 the second
    assert problems(archive) == ("checkpoint 2 of 'news', shard 1: its document is gone",)
    out, err = cli.run("archive", "verify", "--archive", archive, code=1)
    assert out.decode() == "checkpoint 2 of 'news', shard 1: its document is gone\n"
    assert err.startswith("news: 2 checkpoints of each shard can be restored, but 1 of shard 1\n")
    with UriFilter.open("news", redis=any_server.url, archive=archive) as news:
        fill(news, 4)
    assert problems(archive) == ()
    err = cli.run("archive", "verify", "--archive", archive)[1]
    assert err.splitlines()[0] == "news: 2 checkpoints of each shard can be restored"
    leftovers(archive)


def test_a_blob_with_more_bytes(any_server, folder):
    """They are noticed, of a bitmap and of records, though all that was written is there."""
    make(any_server, folder, times=1)
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        news.forget(items(0)[:1])
        news.checkpoint()
    blobs = sorted(root(folder).glob("*/*/*.blob"))
    for blob in blobs:
        with blob.open("ab") as file:
            file.write(b"x")
    found = "; ".join(problems(folder))
    assert [blob.stem in found for blob in blobs] == [True] * len(blobs)
    assert found.count("it has more bytes than were written") >= len(blobs)


def test_a_checkpoint_of_what_is_gone(any_server, folder):
    """It is written though nothing has changed since; a copy of an older document in its place does not hide it."""
    make(any_server, folder)
    older = shutil.copy(checkpoints(folder)[0], root(folder) / "older")
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        fill(news, 2)
        shutil.copy(older, checkpoints(folder)[-1])
        assert any("checkpoint 3 " in problem for problem in problems(folder))
        assert news.checkpoint().shards == 1
    sound(folder)


def test_all_checkpoints_are_gone(any_server, archive):
    """The only one of a shard: it is told, and the filter is not brought back with less; none is missed before it."""
    with UriFilter.create("news", redis=any_server.url, archive=archive, shards=2, **SETTINGS) as news:
        assert problems(archive) == ()
        fill(news, 0)
        uid = news.config.uid
    remove(archive, Key("news", "checkpoint", uid, 1, 0))
    assert problems(archive) == ("checkpoints of 'news', shard 1: they are gone",)
    with pytest.raises(ArchiveCorrupt, match="shard 1: its checkpoints are gone"):
        reopen(any_server, archive)
    assert set(any_server.ask("keys")) <= {b"urifilter:filters"}


def test_killed_before_it_is_noted(any_server, folder):
    """A checkpoint that dies anywhere is not taken for one whose document is gone."""
    make(any_server, folder, times=1)
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        for steps in range(30):
            news.insert_many(items(steps + 1))
            for number, _ in enumerate(pipelines(checkpoint(news._session, full=True), news._connector)):
                if number == steps:
                    break
            sound(folder)


RECORDS = {
    "replies that are none": ("replies", b"no records"),
    "a reply of no time": ("replies", KINDS["replies"].write([(b"0a/1", b"\x01")])),
    "a reply that is cut": ("replies", KINDS["replies"].write([(b"0a/1", b"\x01\x02\x03")])[:-1]),
    "a score that is no number": ("forgotten", struct.pack(">d16s", float("nan"), b"0" * 16)),
    "a score below 0": ("forgotten", struct.pack(">d16s", -1.0, b"0" * 16)),
    "a score of an epoch to come": ("forgotten", struct.pack(">d16s", 1.5, b"0" * 16)),
    "a digest that is cut": ("forgotten", struct.pack(">d16s", 0.5, b"0" * 16)[:-1]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_impossible_records(name, any_server, folder):
    """Records that cannot be parsed, or cannot have been written, are told."""
    make(any_server, folder)
    kept, data = RECORDS[name]
    packed, piece = piece_of(data)
    blob_of(checkpoints(folder)[-1], kept, packed, [piece])
    (problem,) = problems(folder)
    assert problem.startswith("checkpoint of 'news', shard 0, ")


def count(where, number):
    def change(values):
        if where == "state":
            values["state"]["inserted"] = str(number)
        elif where == "closed":
            first, *rest = values["state"]["closed"].rsplit(":", 1)
            values["state"]["closed"] = ":".join([first, str(number)]) if rest else ""
        values["bitmaps"][-1]["inserted"] = number if where != "closed" else values["bitmaps"][-1]["inserted"]

    return change


@pytest.mark.parametrize("number", [-1, 41, 10**9, 10**14])
@pytest.mark.parametrize("where", ["state", "bitmap", "closed"])
def test_impossible_counts(where, number, any_server, folder):
    """Counts below 0, more than can have been inserted, and those of a bitmap that are not its shard's."""
    make(any_server, folder, retention="ring", slices=3, period="1d", **SETTINGS)
    lie(checkpoints(folder)[-1], count(where, number))
    possible = number == 41 and where == "state"
    assert len(problems(folder)) == (0 if possible else 1)


def test_impossible_count_of_a_slice(any_server, folder):
    """Of a closed slice likewise."""
    make(any_server, folder, **ROLLING)
    (path,) = root(folder).glob("*/*/slice-0-0.json")
    lie(path, lambda values: values.update(inserted=10**12))
    (problem,) = problems(folder)
    assert problem == "slice of 'news', shard 0, epoch 0: it counts more items than can have been inserted"


def test_everything_that_is_wrong(any_server, folder, monkeypatch):
    """All of it is listed, one a line, and the exit code is 1."""
    make(any_server, folder, **ROLLING)
    make(any_server, folder, "other")
    make(any_server, folder, "third")
    (slice_,) = root(folder).glob("news.filter/*/slice-0-0.json")
    slice_.unlink()
    slice_.mkdir()
    first, second = sorted(root(folder).glob("other.filter/*/checkpoint-*.json"))
    first.write_text("{")
    second.unlink()
    for blob in root(folder).glob("third.filter/*/*.blob"):
        blob.unlink()
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    out, err = cli.run("archive", "verify", code=1)
    lines = out.decode().splitlines()
    assert [line.split("'")[1] for line in lines] == ["news", "other", "third", "third"]
    assert all(line.count(".blob") > 1 for line in lines[2:])
    assert err.endswith(": 4 damaged\n")


def test_after_an_import(any_server, folder, tmp_path):
    """An exported rolling filter has no closed slices: they are missing until they would have expired."""
    make(any_server, folder, **ROLLING)
    there = (tmp_path / "there").as_uri()
    export_to(folder, "news", tmp_path / "exported")
    import_from(there, tmp_path / "exported")
    assert problems(there) == ("slice 0 of 'news', shard 0: it is missing: what it held expires late",)
    with reopen(any_server, there) as news:
        assert 0 not in news.ages(items(0, 1))
        while news.epoch() < 7:
            news.rotate()
        assert news.rotate().problems == ()
    assert problems(there) == ()


def test_export_of_the_checkpoint_before(any_server, folder, tmp_path, monkeypatch):
    """It says that the newest could not be exported."""
    make(any_server, folder)
    checkpoints(folder)[-1].unlink()
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    assert "its document is gone" in cli.run("archive", "export", "news", str(tmp_path / "exported"))[1]


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


def spoil_file(way, path):
    """Put something in the place of a file that cannot be read; return a part of the reason that is told."""
    do, reason = WAYS[way]
    path.unlink(missing_ok=True)
    do(path)
    return reason


@pytest.fixture(params=WAYS)
def spoil(request):
    return functools.partial(spoil_file, request.param)


def largest_blob(document):
    """Return the largest blob that a document names."""
    text = document.read_text()
    return max(
        (path for path in document.parent.glob("*.blob") if path.stem in text), key=lambda path: path.stat().st_size
    )


def slice_of(folder, epoch):
    (document,) = files(folder, f"slice-0-{epoch}.json")
    return document


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


def spoiled(folder, way, what, key) -> list[str]:
    """Put something in the place of the document of a key, or of its largest blob; return what is told."""
    document = checkpoints(folder)[-1] if key.kind == "checkpoint" else slice_of(folder, key.epoch)
    path = document if what == "document" else largest_blob(document)
    return [str(path), spoil_file(way, path)]


def harmed(mongodb, how, key) -> list[str]:
    """Harm the document of a key, or the blob of a bitmap that it names."""
    backend = open_backend(mongodb)
    text = drive(backend.read(key)).decode()
    blob = text.split('"blob": "')[1].split('"')[0]
    fields = {field: getattr(key, field) for field in ("filter", "kind", "uid", "shard", "epoch")}
    HARM[how](backend, f"news/{blob}", fields)
    drive(backend.close())
    return []


@pytest.fixture(
    params=[*itertools.product(["folder"], WAYS, ["document", "blob"]), *itertools.product(["mongodb"], HARM)],
    ids=", ".join,
)
def harm(request):
    """An archive of each kind, and what harms a document of it by its key, and returns what is told of that."""
    home, *how = request.param
    archive = request.getfixturevalue(home)
    return archive, functools.partial(spoiled if home == "folder" else harmed, archive, *how)


def test_rotation_without_a_slice(harm, any_server):
    """The old history stays in: nothing is lost, which and why is told, and later rotations are as ever."""
    archive, do = harm
    with UriFilter.create("news", redis=any_server.url, archive=archive, **ROLLING) as news:
        for epoch in range(2):
            news.insert_many(items(epoch))
            assert news.rotate().problems == ()
        said = do(Key("news", "slice", news.config.uid, 0, 1))
        assert len(problems(archive, "news")) == 1
        news.insert_many(items(2))
        told = news.rotate().problems
        assert all("slice 1" in problem for problem in told)
        assert any(all(each in problem for each in said) for problem in told)
        assert (news.epoch(), news.info().phase) == (3, "idle")
        assert 0 not in news.ages(items(0, 1, 2))
        while news.epoch() < 7:
            news.rotate()
        assert news.rotate().problems == ()
        assert set(news.ages(items(0, 1, 2))) == {0}
        news.drop()
    leftovers(archive)


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


def test_restore_without_the_newest(harm, any_server):
    """The checkpoint before is used, which and why is told, and all that follows is as if nothing had been."""
    archive, do = harm
    said = do(Key("news", "checkpoint", make(any_server, archive), 0, 1))
    (problem,) = problems(archive, "news")
    assert all(each in problem for each in said)
    with reopen(any_server, archive) as news:
        (problem,) = news.restored.problems
        assert all(each in problem for each in said)
        assert 0 not in news.ages(items(0))
        fill(news, 1, 2)
    restored_well(any_server, archive, 0, 1, 2)


def test_nothing_good_to_restore(spoil, any_server, folder):
    """If neither checkpoint can be read there is an error that says why, and Redis is left as it was."""
    make(any_server, folder)
    reasons = [spoil(path) for path in checkpoints(folder)]
    with pytest.raises(ArchiveCorrupt, match=reasons[0]):
        reopen(any_server, folder)
    assert set(any_server.ask("keys")) <= {b"urifilter:filters"}
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
        fill(news, 1, 2)
    restored_well(any_server, folder, 0, 1, 2)


def test_registration_that_cannot_be_read(spoil, any_server, folder):
    """Without it the archive counts as away: nothing is changed by anybody, and the other filters are looked after."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        with UriFilter.create("other", redis=any_server.url, archive=folder, **SETTINGS) as other:
            other.checkpoint()
        news.rotate()
        (registration,) = root(folder).glob("news.filter/filter.json")
        kept = registration.read_bytes()
        reason = spoil(registration)
        for refused in (news.rotate, news.checkpoint):
            with pytest.raises(ArchiveCorrupt, match=reason):
                refused()
        assert (news.epoch(), news.info().phase) == (1, "idle")
        with pytest.raises(ArchiveError):
            UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING)
        (problem,) = problems(folder)
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
