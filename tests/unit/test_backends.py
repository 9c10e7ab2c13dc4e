"""What a backend of an archive promises, in a folder and in MongoDB."""

from __future__ import annotations

import time
from functools import partial

import pytest
from support.together import together

from urifilter_redis import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import named_backend, open_backend
from urifilter_redis.storage.mongodb import CHUNK

KEY = Key("news", "slice", "0123456789abcdef", 3, 7)
BLOB = "0123456789abcdef-00000000000000aa"


@pytest.fixture
def backend(archive):
    opened = open_backend(archive)
    yield opened
    drive(opened.close())


@pytest.fixture
def registered(backend):
    """A backend that has the filter's place."""
    assert drive(backend.swap(Key("news"), None, b"text"))
    return backend


def write(backend, blob, *parts, name="news"):
    upload = backend.upload(name, blob)
    for part in parts:
        drive(upload.write(part))
    return upload


def test_documents_are_replaced_by_who_knows_what_they_replace(registered):
    """A swap with another old text does nothing, also for what is not there."""
    backend = registered
    assert drive(backend.read(KEY)) is None
    assert not drive(backend.swap(KEY, b"old", b"new"))
    assert drive(backend.swap(KEY, None, b"one"))
    assert not drive(backend.swap(KEY, None, b"two"))
    assert not drive(backend.swap(KEY, b"two", b"three"))
    assert drive(backend.swap(KEY, b"one", b"two"))
    assert drive(backend.read(KEY)) == b"two"
    assert not drive(backend.swap(KEY, b"one", None))
    assert drive(backend.swap(KEY, b"two", None))
    assert drive(backend.read(KEY)) is None


@pytest.fixture
def rivals(archive):
    """Eight backends of one archive, as eight processes have them."""
    opened = [open_backend(archive) for _ in range(8)]
    drive(opened[0].swap(Key("news"), None, b"text"))
    yield opened
    for each in opened:
        drive(each.close())


def test_of_many_new_documents_one_is_kept(archive, rivals):
    """8 threads, 20 documents: each has one writer, and its text."""
    if archive.startswith("mongodb://mock"):
        pytest.skip("an insert of mongomock is not atomic: pip install mongoeco into a Python 3.13")
    for number in range(20):
        key, wins = Key("news", "checkpoint", KEY.uid, 0, number), []

        def work(backend, text, key=key, wins=wins):
            if drive(backend.swap(key, None, text)):
                wins.append(text)

        together(partial(work, backend, b"%d" % n) for n, backend in enumerate(rivals))
        assert wins == [drive(rivals[0].read(key))]


def test_of_many_swaps_one_wins(archive, rivals):
    """8 threads, 20 rounds: each round has one winner."""
    if archive.startswith("mongodb://mock"):
        pytest.skip("an update of mongomock is not atomic: pip install mongoeco into a Python 3.13")
    if drive(rivals[0].obstacles(0)):
        pytest.skip("an update of FerretDB 1 is not atomic, which doctor says")
    drive(rivals[0].swap(KEY, None, b"begin"))
    wins = []

    def work(backend, number):
        if drive(backend.swap(KEY, text, b"%d" % number)):
            wins.append(number)

    for number in range(20):
        text = drive(rivals[0].read(KEY))
        together(partial(work, backend, 10 * number + n) for n, backend in enumerate(rivals))
        assert len(wins) == number + 1
        assert drive(rivals[0].read(KEY)) == b"%d" % wins[-1]


def test_keys(backend):
    """All documents are listed, or those of one filter; names that are paths elsewhere are names."""
    keys = [Key(".."), Key("."), Key("news"), KEY, Key("news", "checkpoint", KEY.uid, 4096, 1), Key("pages")]
    for key in keys:
        assert drive(backend.swap(key, None, b"text"))
    assert drive(backend.keys()) == sorted(keys)
    assert drive(backend.keys("news")) == sorted(key for key in keys if key.filter == "news")
    assert drive(backend.keys("none")) == []


@pytest.mark.parametrize("name", ["../news", "a/b", "/", "", "a b", "n" * 65])
def test_impossible_names(backend, name):
    """Each method that takes a filter's name refuses one that would lead elsewhere, before it looks."""
    for use in (
        lambda: drive(backend.read(Key(name))),
        lambda: drive(backend.keys(name)),
        lambda: drive(backend.swap(Key(name, "slice", KEY.uid), None, b"text")),
        lambda: drive(write(backend, BLOB, b"x", name=name).finish()),
        lambda: drive(backend.download(name, BLOB, 0, 1)),
        lambda: drive(backend.delete(name, [BLOB])),
        lambda: drive(backend.blobs(name)),
    ):
        with pytest.raises(ValueError, match="a filter's name is 1 to 64"):
            use()
    if hasattr(backend, "root"):
        assert list(backend.root.parent.rglob("*.filter")) == []


@pytest.mark.parametrize("uid", ["", ".", "..", "../../news", "/"])
def test_impossible_uids(folder, uid):
    """Nor does a uid that Redis has lead elsewhere in a folder."""
    with pytest.raises(ArchiveCorrupt, match="is no filter's uid"):
        drive(open_backend(folder).swap(Key("news", "slice", uid), None, b"text"))


def test_blobs(registered):
    """A blob is whole once it is finished; any part of it is read; what ends, ends."""
    backend = registered
    data = bytes(range(256)) * (3 * CHUNK // 256) + b"end"
    upload = write(backend, BLOB, data[:1000], data[1000:])
    with pytest.raises(ArchiveMissing):
        read = drive(backend.download("news", BLOB, 0, 10))
        assert read is None, "a folder shows nothing before the end; MongoDB may have chunks, which nothing points to"
        raise ArchiveMissing
    drive(upload.finish())
    for offset, length in ((0, len(data)), (5, 10), (CHUNK - 1, 2), (CHUNK, CHUNK), (len(data) - 2, 100), (999, 2)):
        assert drive(backend.download("news", BLOB, offset, length)) == data[offset : offset + length]
    (found,) = drive(backend.blobs())
    assert (found.filter, found.id, found.size, found.whole) == ("news", BLOB, len(data), True)
    assert 0 <= found.age < 60
    assert drive(backend.blobs("pages")) == []
    drive(backend.delete("news", [BLOB]))
    assert drive(backend.blobs()) == []
    with pytest.raises(ArchiveMissing, match=r"missing"):
        drive(backend.download("news", BLOB, 0, 10))


def leave(backend, blob):
    """Leave of an upload what a crash does."""
    if hasattr(backend, "root"):
        write(backend, blob, b"x" * 1000)
        return
    backend._chunks.insert_one({"files_id": f"news/{blob}", "n": 0, "data": b"x" * 1000})


def test_unfinished_uploads_are_known_and_removed(registered):
    """What a crash leaves of an upload has an age, and can be deleted; so can an abandoned one."""
    backend = registered
    leave(backend, BLOB)
    (found,) = drive(backend.blobs())
    assert (found.filter, found.id, found.whole) == ("news", BLOB, False)
    assert 0 <= found.age < 60
    drive(backend.delete("news", [BLOB]))
    assert drive(backend.blobs()) == []
    other = write(backend, BLOB.replace("a", "b"), b"y")
    drive(other.finish())
    drive(other.abandon())
    assert drive(backend.blobs()) == []


@pytest.mark.sampled
def test_age_is_that_of_the_last_write(registered):
    """An upload that is written to is young."""
    backend = registered
    leave(backend, BLOB)
    time.sleep(1.5)
    (found,) = drive(backend.blobs())
    assert found.age >= 0.5  # MongoDB's ids count whole seconds
    if hasattr(backend, "root"):
        backend._blob("news", BLOB).with_suffix(".part").write_bytes(b"more")
    else:
        backend._chunks.insert_one({"files_id": f"news/{BLOB}", "n": 1, "data": b"y"})
    (again,) = drive(backend.blobs())
    assert again.age < found.age


def test_what_is_not_ours_in_mongodb(mongodb):
    """Documents of others, and damaged ones, stop nobody."""
    backend = open_backend(mongodb)
    assert drive(backend.swap(KEY, None, b"text"))
    backend._pointers.insert_one({"filter": "news", "kind": 7})
    backend._pointers.insert_one({"filter": "a b", "kind": "filter", "uid": "", "shard": 0, "epoch": 0})
    backend._files.insert_one({"_id": "somebody's"})
    backend._files.insert_one({"_id": f"a b/{BLOB}"})
    backend._files.insert_one({"_id": f"news/{BLOB}"})
    backend._chunks.insert_one({"files_id": f"news/{BLOB}", "n": 0, "data": 10**9})
    assert drive(backend.keys()) == [KEY]
    assert [each.id for each in drive(backend.blobs())] == [BLOB]
    assert drive(backend.download("news", BLOB, 0, 10)) == b""
    drive(backend.close())


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
        ("mongodb://user:pa/ss@host/db?w=1", "%2F"),
        ("mongodb://user:x?pa/ss@host/db", "%2F"),
        ("mongodb://me:pa%2Fss@host/db?foo=1", r"cannot be used \(foo\): Unknown option"),
        ("mongodb+srv://me:pa%2Fss@a.b.c/db?foo=1", r"cannot be used \(foo\): Unknown option"),
        ("mongodb://host/db?tls=true&tlsCAFile=/nowhere", "tlscafile file is not readable|No such file"),
        (f"mongodb://host/db?tls=true&tlsCAFile={__file__}", r"\(tls, tlsCAFile\)"),
        (f"mongodb+srv://a.b.c/db?tlsCertificateKeyFile={__file__}", "tlsCertificateKeyFile"),
        ("mongodb+srv://a.b.c,d.e.f/db", "one host, without a port"),
        ("mongodb+srv://a.b.c:27017/db", "one host, without a port"),
        ("mongodb://host/db?socketTimeoutMS=x", "must be an integer"),
        ("mongodb://host/db?w=0", "cannot have w=0"),
    ],
)
def test_addresses_that_are_none(url, message):
    """The message says what an address is, and has nothing of a password."""
    with pytest.raises(ValueError, match=message) as caught:
        open_backend(url)
    assert "pa/ss" not in str(caught.value)


def test_reads_of_the_primary():
    """Whatever the address says: what another node has may be older than what is to be replaced."""
    backend = open_backend("mongodb://host/db?readPreference=secondaryPreferred&w=1")
    assert backend._database.read_preference.name == "Primary"
    drive(backend.close())


def test_addresses_of_services():
    """Their own options are no mistake; nothing is looked up."""
    assert open_backend("mongodb+srv://a.b.c/db?srvMaxHosts=2&retryWrites=true").shown == "mongodb+srv://a.b.c/db"


def test_what_is_shown_has_no_password(tmp_path, monkeypatch):
    """Neither the address that is kept in Redis nor errors have one."""
    backend = open_backend("mongodb://me:secret@127.0.0.1:1/db?serverSelectionTimeoutMS=100&replicaSet=secret")
    assert backend.shown == "mongodb://127.0.0.1:1/db"
    with pytest.raises(ArchiveError) as caught:
        drive(backend.read(KEY))
    assert "secret" not in str(caught.value)
    drive(backend.close())
    monkeypatch.setenv("URIFILTER_ARCHIVE", tmp_path.as_uri())
    assert named_backend(None).shown == tmp_path.as_uri()
    assert named_backend("") is None


def test_a_folder_that_cannot_be_used(tmp_path):
    """The message says why."""
    (tmp_path / "file").write_text("")
    backend = open_backend((tmp_path / "file").as_uri())
    with pytest.raises(ArchiveError, match="Not a directory"):
        drive(backend.swap(Key("news"), None, b"text"))
    missing = open_backend((tmp_path / "missing").as_uri())
    with pytest.raises(ArchiveMissing, match="missing is missing"):
        drive(missing.keys())
