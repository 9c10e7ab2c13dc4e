"""What a home of an archive promises, in a folder and in MongoDB."""

from __future__ import annotations

import threading
import time

import pytest

from urifilter_redis import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import named_home, open_home
from urifilter_redis.storage.mongodb import CHUNK

KEY = Key("news", "slice", "0123456789abcdef", 3, 7)
BLOB = "0123456789abcdef-00000000000000aa"


@pytest.fixture
def home(archive):
    opened = open_home(archive)
    yield opened
    drive(opened.close())


@pytest.fixture
def registered(home):
    """A home that has the filter's place."""
    assert drive(home.swap(Key("news"), None, b"text"))
    return home


def write(home, blob, *parts, name="news"):
    upload = home.upload(name, blob)
    for part in parts:
        drive(upload.write(part))
    return upload


def test_documents_are_replaced_by_who_knows_what_they_replace(registered):
    """A swap with another old text does nothing, also for what is not there."""
    home = registered
    assert drive(home.read(KEY)) is None
    assert not drive(home.swap(KEY, b"old", b"new"))
    assert drive(home.swap(KEY, None, b"one"))
    assert not drive(home.swap(KEY, None, b"two"))
    assert not drive(home.swap(KEY, b"two", b"three"))
    assert drive(home.swap(KEY, b"one", b"two"))
    assert drive(home.read(KEY)) == b"two"
    assert not drive(home.swap(KEY, b"one", None))
    assert drive(home.swap(KEY, b"two", None))
    assert drive(home.read(KEY)) is None


def test_of_many_swaps_one_wins(archive):
    """8 threads with clients of their own, 20 rounds: each round has one winner."""
    homes = [open_home(archive) for _ in range(8)]
    drive(homes[0].swap(Key("news"), None, b"text"))
    wins = []

    def work(home, number):
        if drive(home.swap(KEY, text, b"%d" % number)):
            wins.append(number)

    for number in range(20):
        text = drive(homes[0].read(KEY))
        threads = [threading.Thread(target=work, args=(home, 10 * number + n)) for n, home in enumerate(homes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == number + 1
        assert drive(homes[0].read(KEY)) == b"%d" % wins[-1]
    for home in homes:
        drive(home.close())


def test_keys(home):
    """All documents are listed, or those of one filter; names that are paths elsewhere are names."""
    keys = [Key(".."), Key("."), Key("news"), KEY, Key("news", "checkpoint", KEY.uid, 4096, 1), Key("pages")]
    for key in keys:
        assert drive(home.swap(key, None, b"text"))
    assert drive(home.keys()) == sorted(keys)
    assert drive(home.keys("news")) == sorted(key for key in keys if key.filter == "news")
    assert drive(home.keys("none")) == []


@pytest.mark.parametrize("name", ["../news", "a/b", "/", "", "a b", "n" * 65])
def test_impossible_names(home, name):
    """Each method that takes a filter's name refuses one that would lead elsewhere, before it looks."""
    for use in (
        lambda: drive(home.read(Key(name))),
        lambda: drive(home.keys(name)),
        lambda: drive(home.swap(Key(name, "slice", KEY.uid), None, b"text")),
        lambda: drive(write(home, BLOB, b"x", name=name).finish()),
        lambda: drive(home.download(name, BLOB, 0, 1)),
        lambda: drive(home.delete(name, [BLOB])),
        lambda: drive(home.blobs(name)),
    ):
        with pytest.raises(ValueError, match="a filter's name is 1 to 64"):
            use()
    if hasattr(home, "root"):
        assert list(home.root.parent.rglob("*.filter")) == []


@pytest.mark.parametrize("uid", ["", ".", "..", "../../news", "/"])
def test_impossible_uids(folder, uid):
    """Nor does a uid that Redis has lead elsewhere in a folder."""
    with pytest.raises(ArchiveCorrupt, match="is no filter's uid"):
        drive(open_home(folder).swap(Key("news", "slice", uid), None, b"text"))


def test_blobs(registered):
    """A blob is whole once it is finished; any part of it is read; what ends, ends."""
    home = registered
    data = bytes(range(256)) * (3 * CHUNK // 256) + b"end"
    upload = write(home, BLOB, data[:1000], data[1000:])
    with pytest.raises(ArchiveMissing):
        read = drive(home.download("news", BLOB, 0, 10))
        assert read is None, "a folder shows nothing before the end; MongoDB may have chunks, which nothing points to"
        raise ArchiveMissing
    drive(upload.finish())
    for offset, length in ((0, len(data)), (5, 10), (CHUNK - 1, 2), (CHUNK, CHUNK), (len(data) - 2, 100), (999, 2)):
        assert drive(home.download("news", BLOB, offset, length)) == data[offset : offset + length]
    (found,) = drive(home.blobs())
    assert (found.filter, found.id, found.size, found.whole) == ("news", BLOB, len(data), True)
    assert 0 <= found.age < 60
    assert drive(home.blobs("pages")) == []
    drive(home.delete("news", [BLOB]))
    assert drive(home.blobs()) == []
    with pytest.raises(ArchiveMissing, match=r"missing"):
        drive(home.download("news", BLOB, 0, 10))


def leave(home, blob):
    """Leave of an upload what a crash does."""
    if hasattr(home, "root"):
        write(home, blob, b"x" * 1000)
        return
    home._chunks.insert_one({"files_id": f"news/{blob}", "n": 0, "data": b"x" * 1000})


def test_unfinished_uploads_are_known_and_removed(registered):
    """What a crash leaves of an upload has an age, and can be deleted; so can an abandoned one."""
    home = registered
    leave(home, BLOB)
    (found,) = drive(home.blobs())
    assert (found.filter, found.id, found.whole) == ("news", BLOB, False)
    assert 0 <= found.age < 60
    drive(home.delete("news", [BLOB]))
    assert drive(home.blobs()) == []
    other = write(home, BLOB.replace("a", "b"), b"y")
    drive(other.finish())
    drive(other.abandon())
    assert drive(home.blobs()) == []


@pytest.mark.sampled
def test_age_is_that_of_the_last_write(registered):
    """An upload that is written to is young."""
    home = registered
    leave(home, BLOB)
    time.sleep(1.5)
    (found,) = drive(home.blobs())
    assert found.age >= 0.5  # MongoDB's ids count whole seconds
    if hasattr(home, "root"):
        home._blob("news", BLOB).with_suffix(".part").write_bytes(b"more")
    else:
        home._chunks.insert_one({"files_id": f"news/{BLOB}", "n": 1, "data": b"y"})
    (again,) = drive(home.blobs())
    assert again.age < found.age


def test_what_is_not_ours_in_mongodb(mongodb):
    """Documents of others, and damaged ones, stop nobody."""
    home = open_home(mongodb)
    assert drive(home.swap(KEY, None, b"text"))
    home._pointers.insert_one({"filter": "news", "kind": 7})
    home._pointers.insert_one({"filter": "a b", "kind": "filter", "uid": "", "shard": 0, "epoch": 0})
    home._files.insert_one({"_id": "somebody's"})
    home._files.insert_one({"_id": f"a b/{BLOB}"})
    home._files.insert_one({"_id": f"news/{BLOB}"})
    home._chunks.insert_one({"files_id": f"news/{BLOB}", "n": 0, "data": 10**9})
    assert drive(home.keys()) == [KEY]
    assert [each.id for each in drive(home.blobs())] == [BLOB]
    assert drive(home.download("news", BLOB, 0, 10)) == b""
    drive(home.close())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/var/lib", "scheme"),
        ("http://host/x", "scheme 'http'"),
        ("file://host/x", "scheme 'file'"),
        ("file:///", "file:///"),
        ("mongodb://host", "mongodb://host/database"),
        ("mongodb://user:pa/ss@host/db", "%2F"),
        ("mongodb+srv://host", "mongodb://host/database"),
    ],
)
def test_addresses_that_are_none(url, message):
    """The message says what an address is, and has nothing of a password."""
    with pytest.raises(ValueError, match=message) as caught:
        open_home(url)
    assert "pa/ss" not in str(caught.value)


def test_what_is_shown_has_no_password(tmp_path, monkeypatch):
    """Neither the address that is kept in Redis nor errors have one."""
    home = open_home("mongodb://me:secret@127.0.0.1:1/db?serverSelectionTimeoutMS=100&replicaSet=secret")
    assert home.shown == "mongodb://127.0.0.1:1/db"
    with pytest.raises(ArchiveError) as caught:
        drive(home.read(KEY))
    assert "secret" not in str(caught.value)
    drive(home.close())
    monkeypatch.setenv("URIFILTER_ARCHIVE", tmp_path.as_uri())
    assert named_home(None).shown == tmp_path.as_uri()
    assert named_home("") is None


def test_a_folder_that_cannot_be_used(tmp_path):
    """The message says why."""
    (tmp_path / "file").write_text("")
    home = open_home((tmp_path / "file").as_uri())
    with pytest.raises(ArchiveError, match="Not a directory"):
        drive(home.swap(Key("news"), None, b"text"))
    missing = open_home((tmp_path / "missing").as_uri())
    with pytest.raises(ArchiveMissing, match="missing is missing"):
        drive(missing.keys())
