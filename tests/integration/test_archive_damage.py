"""Archives that are damaged, lie, are bombs, fill up, or whose server dies: refused or healed, and never half used.

What is restored has all that was inserted before the older of two checkpoints; else there is an error of the tree,
and Redis has nothing of the filter.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.archive_steps import ArchiveSteps
from support.archives import (
    blob_of,
    drop_field,
    export_to,
    import_from,
    leftovers,
    lie,
    more,
    on,
    piece_of,
    put,
    sound,
    verified,
)
from support.disk import mounted
from support.mongo import MongoServer
from support.servers import Server, wait_until

from urifilter_redis import (
    ArchiveCorrupt,
    ArchiveError,
    AsyncUriFilter,
    ConfigMismatch,
    FilterNotFound,
    UriFilter,
    UriFilterError,
)
from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.archive.importing import import_
from urifilter_redis.archive.maintenance import entries, examine_archive, show
from urifilter_redis.base_blocking import drop_filter
from urifilter_redis.protocol.config import FORMAT
from urifilter_redis.storage import documents
from urifilter_redis.storage.documents import PIECE
from urifilter_redis.storage.packing import pack
from urifilter_redis.storage.records import KINDS

SETTINGS = {"capacity": 2000, "error_rate": 1e-9, "seed": 1}

#: The first format that no release reads yet.
OTHER = FORMAT + 1
RETENTIONS = {
    "forever": {},
    "ring": {"retention": "ring", "slices": 2, "period": "1d", "shards": 2},
    "rolling": {"retention": "rolling", "slices": 4, "period": "1d"},
}
FIRST, SECOND, THIRD, NEVER = range(100), range(100, 200), range(200, 300), range(5000, 5100)

#: Shrinking takes minutes, and the first example that fails says enough.
fuzzed = functools.partial(
    settings,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def make(server, archive, name, **more):
    """Insert some, write back, turn, insert others, write back, and close that slice if it is kept."""
    with UriFilter.create(
        name, redis=server.url, archive=archive.as_uri(), **SETTINGS, **RETENTIONS[name], **more
    ) as it:
        for some in (FIRST, SECOND):
            it.insert_many(some)
            it.checkpoint()
            if name == "rolling" or (name == "ring" and some == FIRST):
                it.rotate()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two archives with a filter of each retention, and the files to which those of the first are exported."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch, Server("redis70") as server:
        patch.setenv("URIFILTER_DATA_DIR", str(root / "data"))
        for folder in ("archive", "other"):
            for name in RETENTIONS:
                make(server, root / folder, name)
            server.ask("flushall")
            shutil.rmtree(root / "data")
    for name in RETENTIONS:
        export_to((root / "archive").as_uri(), name, root / f"{name}.uf")
    return root


@pytest.fixture
def copied(made, tmp_path):
    """The first archive, as a folder that may be damaged, made anew by each call."""

    def copy():
        shutil.rmtree(tmp_path / "archive", ignore_errors=True)
        return Path(shutil.copytree(made / "archive", tmp_path / "archive"))

    return copy


def look(server, archive, name, *, also=()):
    """Open a filter in an empty Redis: return what was restored, all that must be seen being seen, or the error."""
    address = archive.as_uri() if isinstance(archive, Path) else archive
    with server.client() as admin:
        admin.flushall()
        try:
            with UriFilter.open(name, redis=server.url, archive=address) as opened:
                assert 0 not in opened.ages([*FIRST, *also])
                assert not any(opened.ages(NEVER))
                assert opened.info().phase == "idle"
                return opened.restored
        except UriFilterError as error:
            failed = error
        assert isinstance(failed, ArchiveError | ConfigMismatch | FilterNotFound)
        assert name in str(failed)
        assert admin.keys() == []
        return failed


def kind(path):
    return path.suffix if path.suffix == ".blob" else path.name.split("-")[0]


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in {".blob", ".json"})


def checkpoint_documents(archive, name):
    """Return the documents of the checkpoints, the newest ones and the others."""
    paths = sorted((archive / f"{name}.filter").rglob("checkpoint-*.json"))
    number = {path: json.loads(path.read_bytes())["document"]["number"] for path in paths}
    return [path for path in paths if number[path] == 2], [path for path in paths if number[path] == 1]


def flip_or_cut(data, path):
    """Flip one byte, or shorten the file; say which."""
    text = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1), "at")
    if data.draw(st.booleans(), "flip"):
        text[at] ^= data.draw(st.integers(1, 255), "by")
        path.write_bytes(text)
        return "flip"
    path.write_bytes(text[:at])
    return "cut"


def damage(data, path, others):
    """Damage a file in a way that is drawn; say in which."""
    how = data.draw(st.sampled_from(["bytes", "bytes", "empty", "remove", "replace", "swap"]), "how")
    if how == "bytes":
        return flip_or_cut(data, path)
    if how == "empty":
        path.write_bytes(b"")
    elif how == "remove":
        path.unlink()
    else:
        mine = path.read_bytes()
        other = data.draw(st.sampled_from([each for each in others if each.read_bytes() != mine]), "other")
        its = other.read_bytes()
        path.write_bytes(its)
        if how == "swap" and path.is_relative_to(other.parents[2]):
            other.write_bytes(mine)
    return how


@pytest.mark.slow
@pytest.mark.parametrize("name", RETENTIONS)
@fuzzed(max_examples=80)
@given(data=st.data())
def test_any_file_damaged_in_any_way(name, made, copied, any_server, data):
    """Refused with Redis untouched, or all that was inserted before the older checkpoint is seen, and no more."""
    archive = copied()
    path = data.draw(st.sampled_from(files(archive / f"{name}.filter")), "path")
    others = [each for each in files(archive) if kind(each) == kind(path) and each != path]
    if path.name != "filter.json":  # for that see below
        others += [each for each in files(made / "other") if kind(each) == kind(path)]
    how = damage(data, path, others)
    found = look(any_server, archive, name)
    assert not isinstance(found, UriFilterError) or path.name == "filter.json" or how == "swap"


def test_registration_of_another_filter_of_the_name(made, copied, any_server):
    """It is refused if the archive has checkpoints of this name that are not its."""
    archive = copied()
    shutil.copy(made / "other" / "forever.filter" / "filter.json", archive / "forever.filter" / "filter.json")
    assert isinstance(look(any_server, archive, "forever"), ArchiveError)


def spoiled(whole: bytes):
    """A registration that is flipped here and there, cut, or empty."""
    for at in range(5, len(whole), 101):
        yield whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    yield whole[: len(whole) // 2]
    yield b""


def test_registration_with_a_flipped_bit(made, copied, any_server):
    """The checkpoints have it, too: it is written anew when the filter is opened."""
    whole = (made / "archive" / "forever.filter" / "filter.json").read_bytes()
    for text in spoiled(whole):
        archive = copied()
        path = archive / "forever.filter" / "filter.json"
        path.write_bytes(text)
        assert look(any_server, archive, "forever").checkpoint == 2
        assert verified(archive.as_uri(), "forever").problems == ()
        found, again = (json.loads(each)["document"] for each in (path.read_bytes(), whole))
        assert (found["config"], documents.note_of(path.read_bytes())) == (again["config"], 1)


def test_who_only_looks_at_a_flipped_bit(copied):
    """Verify, list, doctor and show say it, and go on: they write nothing."""
    archive = copied()
    path, address = archive / "forever.filter" / "filter.json", archive.as_uri()
    path.write_bytes(path.read_bytes()[:-30])
    damaged = path.read_bytes()
    found = verified(address, "forever")
    (problem,) = found.problems
    assert ("the newest checkpoint has it, too" in problem, found.checkpoints["forever"]) == (True, [2])
    (listed,) = [each for each in on(address, entries) if each.filter == "forever"]
    assert (listed.problems, listed.capacity) == ((problem,), SETTINGS["capacity"])
    registration, shown = on(address, show, "forever")
    assert (registration.config.uid, len(shown)) == (listed.uid, 2)
    findings = {each.subject: each.level for each in on(address, examine_archive)}
    assert findings["archive of forever"] == "danger"
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("why", ["dropped", "two filters", "no checkpoint"])
def test_a_flipped_bit_that_nothing_mends(made, copied, any_server, why):
    """It stays an error if the filter was being removed, or its checkpoints are gone or of several filters."""
    archive = copied()
    path = archive / "forever.filter" / "filter.json"
    text = path.read_bytes()
    if why == "dropped":
        text = text.replace(b'"dropped": false', b'"dropped": true')
    elif why == "two filters":
        shutil.copytree(made / "other" / "forever.filter", path.parent, dirs_exist_ok=True)
    else:
        for each in path.parent.rglob("checkpoint-*.json"):
            each.unlink()
    path.write_bytes(b"[" + text[1:])
    assert isinstance(look(any_server, archive, "forever"), ArchiveError)


@pytest.mark.slow
@pytest.mark.parametrize("name", RETENTIONS)
@fuzzed(max_examples=20)
@given(data=st.data())
def test_newest_checkpoint_damaged(name, made, copied, any_server, data):
    """The one before is used, what is wrong is told, and all that follows is as if nothing had been."""
    archive = copied()
    newest, older = checkpoint_documents(archive, name)
    path = data.draw(st.sampled_from(newest), "document")
    shard = int(path.name.split("-")[1])
    needed, text = b"".join(each.read_bytes() for each in older), path.read_bytes()
    blobs = [each for each in files(path.parent) if each.stem.encode() in text and each.stem.encode() not in needed]
    path = data.draw(st.sampled_from([path, *blobs]), "path")
    others = [each for each in files(made / "other" / f"{name}.filter") if kind(each) == kind(path)]
    how = damage(data, path, others) if path.suffix == ".blob" else flip_or_cut(data, path)
    restored = look(any_server, archive, name)
    if how == "flip" and not restored.problems:  # white space, or the last bits of what is packed
        assert look(any_server, archive, name, also=SECOND).problems == ()
        return
    assert any(f"shard {shard}" in problem for problem in restored.problems)
    where = {"redis": any_server.url, "archive": archive.as_uri()}
    with UriFilter.open(name, **where) as opened:
        opened.insert_many(THIRD)
        assert opened.checkpoint().shards == opened.config.shards
    assert look(any_server, archive, name, also=THIRD).problems == ()
    with UriFilter.open(name, **where) as opened:
        opened.checkpoint(full=True)
    drop_others(archive, name)
    leftovers(archive.as_uri())  # what only a damaged document named
    sound(archive.as_uri())


def drop_others(archive, name):
    for other in set(RETENTIONS) - {name}:
        shutil.rmtree(archive / f"{other}.filter")


_BITMAP, _PIECE = ("bitmaps", 0), ("bitmaps", 0, "content", "pieces", 0)
_OUTSIDE = "0123456789abcdef-0123456789abcdef"


def twice(values):
    values["bitmaps"][0]["content"]["pieces"] *= 2


def far_away(values):
    values["state"] |= {"epoch": "9" * 15, "oldest": "0"}


#: Of a checkpoint: each is refused, by what it says alone or by the contents that it names.
LIES = {
    "bitmap's size": more(*_BITMAP, "size"),
    "bitmap's units": more(*_BITMAP, "units"),
    "bitmap's k": more(*_BITMAP, "k"),
    "bitmap's layout": put("classic", *_BITMAP, "layout"),
    "bitmap's seed": put("2", *_BITMAP, "seed"),
    "bitmap's shard": more(*_BITMAP, "shard"),
    "bitmap's shards": more(*_BITMAP, "shards"),
    "bitmap's uid": put("0" * 16, *_BITMAP, "uid"),
    "bitmap's epoch": more(*_BITMAP, "epoch"),
    "bitmap's kind": put("slice", *_BITMAP, "kind"),
    "bitmap's name": put("today_1", *_BITMAP, "name"),
    "bitmap's format": put(OTHER, *_BITMAP, "format"),
    "bitmap's inserted": put(-1, *_BITMAP, "inserted"),
    "bitmap's normalize": put("whatwg", *_BITMAP, "normalize"),
    "bitmap's retention": put("growing", *_BITMAP, "retention"),
    "no bitmaps": put([], "bitmaps"),
    "piece's length": more(*_PIECE, "length"),
    "piece's length 0": put(0, *_PIECE, "length"),
    "piece's length below 0": put(-1, *_PIECE, "length"),
    "piece's packed length": more(*_PIECE, "packed"),
    "piece's packed length 0": put(0, *_PIECE, "packed"),
    "piece's packed length huge": put(2**53, *_PIECE, "packed"),
    "piece's SHA-256": put("0" * 64, *_PIECE, "sha256"),
    "a piece twice": twice,
    "no pieces": put([], *_PIECE[:-1]),
    "blob of the folder above": put(f"../{_OUTSIDE}", *_BITMAP, "content", "blob"),
    "blob anywhere": put(f"/{_OUTSIDE}", *_BITMAP, "content", "blob"),
    "blob nowhere": put("", *_BITMAP, "content", "blob"),
    "blob of another": put(_OUTSIDE, *_BITMAP, "content", "blob"),
    "shard": put(7, "shard"),
    "shards": more("shards"),
    "uid": put("0" * 16, "uid"),
    "format": put(OTHER, "format"),
    "claims": put("5000", "state", "claims"),
    "claims of no number": put("-1", "state", "claims"),
    "claimed of no number": put("many", "state", "claimed"),
    "number 0": put(0, "number"),
    "number below 0": put(-1, "number"),
    "number too large": put(2**53 + 1, "number"),
    "number with a point": put(2.5, "number"),
    "number as text": put("2", "number"),
    "number true": put(True, "number"),  # noqa: FBT003 - it is what is told
    "begun": put(0, "begun"),
    "phase dropping": put("dropping", "state", "phase"),
    "phase restoring": put("restoring", "state", "phase"),
    "phase rotating": put("rotating", "state", "phase"),
    "closed is not numbers": put("a:b:c:d", "state", "closed"),
    "closed too short": put("0:1", "state", "closed"),
    "closed of other epochs": put("7:1:2:3", "state", "closed"),
    "closed empty": put("", "state", "closed"),
    "inserted below 0": put("-1", "state", "inserted"),
    "epoch": put("7", "state", "epoch"),
    "epoch far away": far_away,
    "oldest": put("7", "state", "oldest"),
    "slices of others": put("today:1:1:1", "state", "slices"),
    "slices empty": put("", "state", "slices"),
    "state of other things": put("1", "state", "restorer"),
    "state as a list": put([], "state"),
    "pieces": put("1", "state", "pieces"),
    "limit": put("1", "state", "limit"),
    **{f"no {name}": drop_field("state", name) for name in ("created", "epoch", "phase", "opened", "slices")},
    **{f"nothing of {name}": drop_field(name) for name in ("number", "bitmaps", "state", "records")},
    **{f"no {name}": drop_field("records", name) for name in KINDS},
    "records of another kind": put({"blob": "", "pieces": []}, "records", "others"),
    "more than there is": put(1, "more"),
    "nothing": dict.clear,
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LIES)
def test_lying_checkpoint(name, copied, any_server):
    """The one before is used, and what is wrong is told; if both lie, they are refused."""
    archive = copied()
    blob = next(path for path in files(archive / "ring.filter") if path.suffix == ".blob")
    for folder in (blob.parents[1], blob.parents[2]):
        shutil.copy(blob, folder / f"{_OUTSIDE}.blob")  # where a path would lead, all seems well
    newest, older = checkpoint_documents(archive, "ring")
    for path in newest:
        lie(path, LIES[name])
    restored = look(any_server, archive, "ring")
    assert restored.checkpoint == 1
    assert len(restored.problems) == 2
    if name in {"bitmap's epoch", "closed empty", "epoch", "oldest", "phase rotating"}:
        return  # the older ones are of epoch 0, where some of this is so
    for path in older:
        lie(path, LIES[name])
    assert isinstance(look(any_server, archive, "ring"), ArchiveCorrupt)


@pytest.mark.sampled
@pytest.mark.parametrize("number", [3, 2**53 - 1, 2**53])
def test_checkpoint_with_a_large_number(number, copied, any_server):
    """It is refused, or the checkpoints that follow are as good as any."""
    archive = copied()
    for path in checkpoint_documents(archive, "forever")[0]:
        lie(path, put(number, "number"))
    look(any_server, archive, "forever")
    with UriFilter.open("forever", redis=any_server.url, archive=archive.as_uri()) as opened:
        for some in (THIRD, range(1000, 1100)):
            opened.insert_many(some)
            opened.checkpoint()
    assert look(any_server, archive, "forever", also=[*THIRD, *range(1000, 1100)]).problems == ()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("replies", b"no records"),
        ("forgotten", b"no digests"),
        ("forgotten", struct.pack(">d16s", float("nan"), b"0" * 16)),
        ("forgotten", struct.pack(">d16s", float("inf"), b"0" * 16)),
    ],
    ids=["replies", "forgotten", "not a number", "infinity"],
)
def test_records_that_are_none(name, data, copied, any_server):
    """What is no record is found before Redis is touched: the checkpoint before is used, or nothing."""
    archive = copied()
    newest, older = checkpoint_documents(archive, "forever")
    packed, piece = piece_of(data)
    blob_of(newest[0], name, packed, [piece])
    assert look(any_server, archive, "forever").checkpoint == 1
    blob_of(older[0], name, packed, [piece])
    assert isinstance(look(any_server, archive, "forever"), ArchiveCorrupt)


REGISTRATIONS = {
    "name": put("other", "filter"),
    "format": put(OTHER, "format"),
    "created": put(-1.0, "created"),
    "created never": put(float("1e999"), "created"),
    "dropped": put(True, "dropped"),  # noqa: FBT003 - it is what is told
    "nothing": dict.clear,
    "no config": drop_field("config"),
    "config as a list": put([], "config"),
    **{
        f"{name} {value!r}": put(value, "config", name)
        for name, value in [
            ("uid", "../../x"), ("uid", "/x"), ("uid", ""), ("uid", "0" * 15 + "G"), ("uid", "0" * 16 + "\n"),
            ("layout", "classic"), ("layout", "x"), ("retention", "forever"), ("retention", "x"), ("k", 0), ("k", 99),
            ("units", 0), ("units", -1), ("units", 2**53), ("bytes", 0), ("bytes", 2**40), ("capacity", 0),
            ("capacity", -1), ("capacity", 2**53), ("capacity", True), ("error_rate", 0.0), ("error_rate", -1.0),
            ("error_rate", 1e999), ("shards", 0), ("shards", -1), ("shards", 1), ("shards", 3), ("shards", 2**53),
            ("slices", 1), ("slices", 0), ("slices", 2**53), ("slices", None), ("period", "x"), ("period", None),
            ("period", "0s"), ("write", "x"), ("expire_after", "x"), ("normalize", "x"), ("normalize", "whatwg"),
            ("hash", "x"), ("hash", "md5"), ("seed", "x"), ("seed", "01"), ("seed", ""), ("seed", "2"),
            ("archive", None), ("archive", "redis"), ("period_capacity", 0), ("period_capacity", 2**53),
        ]
    },
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", REGISTRATIONS)
def test_lying_registration(name, copied, any_server):
    """It is refused, and nothing outside the archive is made or removed."""
    archive = copied()
    lie(archive / "ring.filter" / "filter.json", REGISTRATIONS[name])
    before = files(archive.parent)
    assert isinstance(look(any_server, archive, "ring"), UriFilterError)
    with contextlib.suppress(UriFilterError):
        drop_filter("ring", redis=any_server.url, archive=archive.as_uri())
    after = [each for each in before if (archive / "ring.filter") not in each.parents]
    assert [each for each in files(archive.parent) if each in after] == after


@pytest.mark.parametrize("archive_of_it", ["\ud800", "file:///elsewhere", "\0", "x" * 100_000], ids=range(4))
def test_registration_with_another_address(archive_of_it, copied, any_server):
    """It is refused, or does no harm: the archive that was named counts."""
    archive = copied()
    lie(archive / "ring.filter" / "filter.json", put(archive_of_it, "config", "archive"))
    look(any_server, archive, "ring")


#: Of a closed slice.
SLICES = {
    "size": more("size"),
    "units": more("units"),
    "shard": more("shard"),
    "shards": more("shards"),
    "epoch": more("epoch"),
    "kind": put("checkpoint", "kind"),
    "uid": put("0" * 16, "uid"),
    "retention": put("ring", "retention"),
    "normalize": put("whatwg", "normalize"),
    "closed": put(-1, "closed"),
    "format": put(OTHER, "format"),
    "piece's length": more("content", "pieces", 0, "length"),
    "piece's SHA-256": put("0" * 64, "content", "pieces", 0, "sha256"),
    "no pieces": put([], "content", "pieces"),
    "blob of the folder above": put(f"../{_OUTSIDE}", "content", "blob"),
    "nothing": dict.clear,
}


@pytest.mark.sampled
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("name", SLICES)
def test_lying_slice(name, epoch, copied, any_server):
    """It is not used, which is told, and what it had is in the checkpoints; rotations go on."""
    archive = copied()
    (path,) = (archive / "rolling.filter").glob(f"*/slice-0-{epoch}.json")
    lie(path, SLICES[name])
    restored = look(any_server, archive, "rolling", also=SECOND)
    assert any(f"slice {epoch} " in problem for problem in restored.problems)
    with UriFilter.open("rolling", redis=any_server.url, archive=archive.as_uri()) as opened:
        turned = opened.rotate().epoch
        assert 0 not in opened.ages([*FIRST, *SECOND])
        while turned < 8:
            turned = opened.rotate().epoch
        assert not any(opened.ages([*FIRST, *SECOND]))
    drop_others(archive, "rolling")
    leftovers(archive.as_uri())


@pytest.mark.parametrize("epoch", [0, 1])
def test_rotation_removes_nothing_outside(epoch, copied, any_server, tmp_path):
    """A slice that expires, or is archived anew, takes no file with it that is not its own."""
    archive = copied()
    victim, other = tmp_path / "victim.blob", tmp_path / "victim.part"
    victim.touch()
    other.touch()
    look(any_server, archive, "rolling")
    (path,) = (archive / "rolling.filter").glob(f"*/slice-0-{epoch}.json")
    lie(path, put(str(victim.with_suffix("")), "content", "blob"))
    with UriFilter.open("rolling", redis=any_server.url, archive=archive.as_uri()) as opened:
        while opened.rotate().epoch < 8:
            pass
    drop_filter("rolling", redis=any_server.url, archive=archive.as_uri())
    assert victim.exists()
    assert other.exists()


def deflated(size):
    coder = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    parts = [coder.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"\2" + b"".join(parts) + coder.flush()


def zstandard_of(size, told):
    coder = zstandard.ZstdCompressor(level=1).compressobj(size=size if told else -1)
    return b"\1" + b"".join(coder.compress(bytes(1 << 20)) for _ in range(size >> 20)) + coder.flush()


def told_shorter(size):
    """Return zstd's frame of more than its header says: a header of 4 bytes of size, told to be of a piece."""
    frame = bytearray(zstandard_of(size, told=True))
    at = frame.index(size.to_bytes(4, "little"))
    frame[at : at + 4] = PIECE.to_bytes(4, "little")
    return bytes(frame)


def behind_a_mask():
    mask = pack(b"\1" * (PIECE // 8))
    return b"\3" + len(mask).to_bytes(4) + mask + deflated(80 << 20)


BOMBS = {
    "zlib": lambda: deflated(160 << 20),
    "zstd": lambda: zstandard_of(512 << 20, told=True),
    "zstd that does not say how long it is": lambda: zstandard_of(512 << 20, told=False),
    "zstd that says it is shorter": lambda: told_shorter(512 << 20),
    "mask": lambda: b"\3" + len(deflated(80 << 20)).to_bytes(4) + deflated(80 << 20) + b"\0",
    "bytes behind a mask": behind_a_mask,
}


@contextlib.contextmanager
def little_memory():
    """Check that less than 64 MiB are taken at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bomb(name, copied, any_server):
    """It is refused, and takes no more memory than a piece."""
    archive, bomb = copied(), BOMBS[name]()
    newest, older = checkpoint_documents(archive, "forever")
    piece = {"length": PIECE, "packed": len(bomb), "sha256": hashlib.sha256(bytes(PIECE)).hexdigest()}
    assert len(bomb) <= PIECE + 1
    blob_of(newest[0], "replies", bomb, [piece])
    with little_memory():
        restored = look(any_server, archive, "forever")
    assert restored.checkpoint == 1
    assert len(restored.problems) == 1
    blob_of(older[0], "replies", bomb, [piece])
    with little_memory():
        assert isinstance(look(any_server, archive, "forever"), ArchiveCorrupt)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["replies", "forgotten"])
def test_bomb_of_many_pieces(name, copied, any_server):
    """Records that are packed to a thousandth take no more memory than others, and are refused if they are none."""
    archive = copied()
    packed, piece = piece_of(b"\xff" * PIECE)
    newest, _ = checkpoint_documents(archive, "forever")
    blob_of(newest[0], name, packed * 401, [piece] * 401)
    with little_memory():
        restored = look(any_server, archive, "forever")
    assert restored.checkpoint == 1


def right(ages, seen):
    return (0 not in ages) if seen else not any(ages)


@pytest.mark.slow
@pytest.mark.parametrize("name", RETENTIONS)
@fuzzed(max_examples=80)
@given(data=st.data())
def test_damaged_export(name, made, tmp_path, data):
    """It answers rightly or not at all, and what is damaged is not imported, nor a part of it."""
    path = Path(shutil.copy(made / f"{name}.uf", tmp_path / "exported"))
    harmless = flip_or_cut(data, path) == "flip"
    for some, seen in ((FIRST, True), (NEVER, False)):
        with contextlib.suppress(ArchiveError), ExportedFilter(path) as exported:
            assert right(exported.ages(some), seen)
    shutil.rmtree(tmp_path / "archive", ignore_errors=True)
    (tmp_path / "archive").mkdir()
    archive = (tmp_path / "archive").as_uri()
    try:
        with ExportedFilter(path) as exported:
            exported.verify()
    except ArchiveError:
        with pytest.raises(ArchiveError):
            import_from(archive, path)
        assert on(archive, lambda backend: backend.keys()) == []
        assert on(archive, lambda backend: backend.blobs()) == []
    else:
        assert harmless
        import_from(archive, path)
        sound(archive, slices=name != "rolling")


def lying_export(path, change):
    """Change the header of an exported file, and give it the SHA-256 and length that are right then."""
    magic, _, rest = path.read_bytes().split(b"\n", 2)
    _, end = json.JSONDecoder().raw_decode(rest.decode("latin-1"))
    header = path.with_name("header")
    header.write_bytes(rest[:end])
    lie(header, change)
    text = header.read_bytes()
    path.write_bytes(b"%s\n%d\n%s%s" % (magic, len(text), text, rest[end:]))


_LAST, _NO_PIECE = ("checkpoints", 0), {"length": 1, "packed": 1, "sha256": "0" * 64}


def same_blob(values):
    """Let records be in the blob of the bitmap, and be longer."""
    content = values["checkpoints"][0]["bitmaps"][0]["content"]
    values["checkpoints"][0]["records"]["forgotten"] = {"blob": content["blob"], "pieces": content["pieces"] * 2}
    values["sizes"][values["blobs"].index(content["blob"])] *= 2


EXPORTS = {
    "number": put(0, *_LAST, "number"),
    "shard": put(1, *_LAST, "shard"),
    "uid": put("0" * 16, *_LAST, "uid"),
    "size": more(*_LAST, *_BITMAP, "size"),
    "blob": put("../x", *_LAST, *_BITMAP, "content", "blob"),
    "name": put("../x", "registration", "filter"),
    "name anywhere": put("/x", "registration", "filter"),
    "name empty": put("", "registration", "filter"),
    "registration's uid": put("../../x", "registration", "config", "uid"),
    "sizes": put([0], "sizes"),
    "sizes below 0": put([-1], "sizes"),
    "blobs missing": put([], "blobs"),
    "no checkpoints": put([], "checkpoints"),
    "epoch far away": lambda values: far_away(values["checkpoints"][0]),
    "one blob twice": same_blob,
    "no blob": put({"blob": "", "pieces": [_NO_PIECE]}, *_LAST, "records", "forgotten"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_lying_export(name, made, tmp_path):
    """It is refused, and nothing is imported, nor anything made outside the archive."""
    path = Path(shutil.copy(made / "forever.uf", tmp_path / "exported"))
    lying_export(path, EXPORTS[name])
    (tmp_path / "deep" / "archive").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArchiveError):
        import_from((tmp_path / "deep" / "archive").as_uri(), path)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ArchiveError), ExportedFilter(path) as exported:
        exported.contains_many(FIRST)
        exported.verify()


@pytest.mark.sampled
@pytest.mark.parametrize("name", RETENTIONS)
def test_import(name, made, archive, any_server):
    """What was exported is restored from where it was imported; again, or older, it changes nothing."""
    for _ in range(2):
        assert import_from(archive, made / f"{name}.uf")[0] == name
    with UriFilter.open(name, redis=any_server.url, archive=archive) as opened:
        assert opened.restored.checkpoint == 2
        assert 0 not in opened.ages([*FIRST, *SECOND])
        opened.insert_many(THIRD)
        opened.checkpoint()
    import_from(archive, made / f"{name}.uf")
    assert look(any_server, archive, name, also=[*SECOND, *THIRD]).checkpoint == 3
    assert leftovers(archive) == 0
    sound(archive, slices=name != "rolling")


@pytest.fixture
def exported(any_server, tmp_path):
    """The file of a filter of two shards with the items FIRST."""
    folder, file = (tmp_path / "exported").as_uri(), tmp_path / "news.uf"
    with UriFilter.create("news", redis=any_server.url, archive=folder, shards=2, **SETTINGS) as news:
        news.insert_many(FIRST)
        news.checkpoint()
    export_to(folder, "news", file)
    any_server.ask("flushall")
    return file


def test_an_import_that_stops(exported, archive, any_server):
    """Until it is repeated nobody gets a filter whose other shards are empty."""

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on(archive, import_, exported, stop)
    for method in (UriFilter.open, functools.partial(UriFilter.create, shards=2, **SETTINGS)):
        with pytest.raises(ArchiveCorrupt, match="shard 1: .* if an import has not ended, end or repeat that"):
            method("news", redis=any_server.url, archive=archive)
    import_from(archive, exported)
    with UriFilter.open("news", redis=any_server.url, archive=archive) as opened:
        assert 0 not in opened.ages(FIRST)


def test_an_import_mends(exported, archive, any_server, caplog):
    """A checkpoint that is as new, and damaged, is replaced; one that is whole and newer stays, and that is said."""
    import_from(archive, exported)
    blobs = on(archive, lambda backend: backend.blobs("news"))
    on(archive, lambda backend: backend.delete("news", [each.id for each in blobs]))
    import_from(archive, exported)
    sound(archive)
    with UriFilter.open("news", redis=any_server.url, archive=archive) as opened:
        assert 0 not in opened.ages(FIRST)
        opened.insert_many(SECOND)
        opened.checkpoint()
    import_from(archive, exported)
    assert "shard 1: its checkpoint 2 stays, because it is newer than the file's" in caplog.text
    any_server.ask("flushall")
    with UriFilter.open("news", redis=any_server.url, archive=archive) as opened:
        assert 0 not in opened.ages([*FIRST, *SECOND])
    assert leftovers(archive) == 0


def test_an_import_that_takes_long(exported, archive, monkeypatch):
    """Prune may have removed its first blobs by then: no document names them."""
    monkeypatch.setattr("urifilter_redis.storage.blobs.UPLOAD_LIFE", 0)
    with pytest.raises(ArchiveError, match="an upload took over 0 s: begin anew"):
        import_from(archive, exported)
    assert leftovers(archive) == 0


def test_import_over_another(made, archive, any_server):
    """Another filter of the name is left as it is."""
    with UriFilter.create("forever", redis=any_server.url, archive=archive, **SETTINGS) as other:
        other.insert_many(THIRD)
        other.checkpoint()
    with pytest.raises(ConfigMismatch, match="forever"):
        import_from(archive, made / "forever.uf")
    any_server.ask("flushall")
    with UriFilter.open("forever", redis=any_server.url, archive=archive) as other:
        assert 0 not in other.ages(THIRD)
        assert not any(other.ages(FIRST))
    assert leftovers(archive) == 0


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(folder, "size=600k"):
        yield folder


def fill_up(folder, but):
    """Fill a disk but for some blocks."""
    room = shutil.disk_usage(folder).free - but * 4096
    if room > 0:
        (folder / "ballast").write_bytes(bytes(room))


@pytest.mark.sampled
@pytest.mark.parametrize("name", RETENTIONS)
def test_full_disk(name, small_disk, any_server):
    """What does not fit is an error, and harms nothing that is there; with room again all goes on."""
    folder = small_disk / "archive"
    make(any_server, folder, name)
    archive, blocks, known = folder.as_uri(), -1, [*SECOND]
    while True:
        blocks += 1
        more = range(10_000 + 100 * blocks, 10_100 + 100 * blocks)
        with UriFilter.open(name, redis=any_server.url, archive=archive) as opened:
            opened.insert_many(more)
            fill_up(small_disk, blocks)
            failed = ""
            try:
                opened.checkpoint(full=True)
            except ArchiveError as error:
                failed = str(error)
            if not failed:
                break
            assert "disk is full" in failed
            assert archive in failed
            assert 0 not in opened.ages(more)
        assert look(any_server, folder, name, also=known).problems == ()
        leftovers(archive)
        (small_disk / "ballast").unlink()
        with UriFilter.open(name, redis=any_server.url, archive=archive) as opened:
            opened.insert_many(more)
            opened.checkpoint()
        known += more
        assert look(any_server, folder, name, also=known).problems == ()
        assert leftovers(archive) == 0
        sound(archive)
    assert blocks > 2
    (small_disk / "ballast").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def kept_mongo():
    server = MongoServer(kept=True)
    yield server
    server.stop()


def some_of(names, *wanted):
    """Return the numbers of the last step of each of some names."""
    last = {name: number for number, name in enumerate(names, 1)}
    return sorted(last[name] for name in wanted)


#: For a client that meets a dead server. pymongo looks for one that was away each half second, which is longer: so the
#: client may have to be asked again once the server is back.
IMPATIENT = "?serverSelectionTimeoutMS=300"


def completes(act) -> bool:
    """Whether an act succeeds, and the archive does not fail."""
    try:
        act()
    except ArchiveError:
        return False
    return True


@pytest.mark.slow
def test_mongodb_killed_in_a_checkpoint(kept_mongo, any_server, monkeypatch):
    """It fails with an error of the archive; once the server is back, another one completes it."""
    archive, options = kept_mongo.url, SETTINGS | RETENTIONS["ring"]
    steps = ArchiveSteps(monkeypatch)
    with UriFilter.create("news", redis=any_server.url, archive=archive + IMPATIENT, **options) as news:
        news.insert_many(FIRST)
        steps.at(0, kept_mongo.kill)
        news.checkpoint()
        numbers = some_of(steps.names, "archive write", "archive swap")
        seen = [*FIRST]
        for number in numbers:
            seen += range(1000 * number, 1000 * number + 100)
            news.insert_many(seen)
            steps.at(number, kept_mongo.kill)
            with pytest.raises(ArchiveError, match="mongodb://"):
                news.checkpoint(full=True)
            kept_mongo.start()
            steps.at(0, kept_mongo.kill)
            wait_until(lambda: completes(news.checkpoint), "its client does not find the server again")
            assert not isinstance(look(any_server, archive, "news", also=seen), UriFilterError)
            leftovers(archive)
            sound(archive)
        news.drop()


@pytest.mark.slow
def test_mongodb_killed_in_a_restore(kept_mongo, any_server, admin, monkeypatch):
    """It fails with an error of the archive; once the server is back, another one completes it."""
    archive, options = kept_mongo.url, SETTINGS | RETENTIONS["rolling"]
    steps = ArchiveSteps(monkeypatch)
    with UriFilter.create("old", redis=any_server.url, archive=archive, **options) as old:
        for some in (FIRST, SECOND):
            old.insert_many(some)
            old.checkpoint()
            old.rotate()
    admin.flushall()
    steps.at(0, kept_mongo.kill)
    UriFilter.open("old", redis=any_server.url, archive=archive).close()
    for number in some_of(steps.names[:-1], "archive read", "archive download"):
        admin.flushall()
        steps.at(number, kept_mongo.kill)
        with pytest.raises(ArchiveError, match="mongodb://"):
            UriFilter.open("old", redis=any_server.url, archive=archive + IMPATIENT)
        kept_mongo.start()
        steps.at(0, kept_mongo.kill)
        with UriFilter.open("old", redis=any_server.url, archive=archive) as old:
            assert 0 not in old.ages([*FIRST, *SECOND])
            assert not any(old.ages(NEVER))
            assert old.info().phase == "idle"
        assert leftovers(archive) == 0
        sound(archive)


@pytest.fixture
def async_archive(archive):
    if archive.startswith("mongodb://mock"):
        pytest.skip("mongomock does not await: TEST_URIFILTER_FERRETDB or TEST_URIFILTER_MONGOECO")
    return archive


def test_asyncio(async_archive, any_server):
    """Checkpoint, crash, restore and rotation, awaited."""

    async def main():
        where = {"redis": any_server.url, "archive": async_archive}
        options = SETTINGS | RETENTIONS["rolling"]
        async with await AsyncUriFilter.create("news", **where, **options) as news:
            assert await news.insert_ages(FIRST) == [0] * 100
            assert (await news.checkpoint()).number == 1
            assert (await news.rotate()).epoch == 1
            await news.insert_many(SECOND)
            assert (await news.checkpoint()).number == 2
        any_server.ask("flushall")
        async with await AsyncUriFilter.open("news", **where) as news:
            assert news.restored.checkpoint == 2
            assert news.restored.problems == ()
            assert await news.ages([*FIRST, *SECOND]) == [2] * 100 + [1] * 100
            assert await news.ages(NEVER) == [0] * 100
            while (await news.rotate()).epoch < 5:
                pass
            assert await news.ages([*FIRST, *SECOND]) == [0] * 200

    asyncio.run(main())
    assert leftovers(async_archive) == 0
    sound(async_archive)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_cancelled_checkpoint(after, async_archive, any_server, monkeypatch, sample):
    """A task that is cancelled in any step leaves the archive sound, and another one completes it."""
    steps = ArchiveSteps(monkeypatch, "perform_step_async")

    async def cancelled(news, number):
        task = asyncio.create_task(news.checkpoint(full=True))
        steps.at(number, task.cancel, after=after)
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    async def main():
        where = {"redis": any_server.url, "archive": async_archive}
        async with await AsyncUriFilter.create("news", **where, **SETTINGS, **RETENTIONS["ring"]) as news:
            await news.insert_many(FIRST)
            await news.checkpoint()
            steps.at(0)
            await news.checkpoint(full=True)
            assert len(steps.names) > 10
            died, numbers = 0, sample(range(1, len(steps.names)), 4)
            for number in numbers:
                await news.insert_many(range(1000 * number, 1000 * number + 20))
                died += await cancelled(news, number)
                await asyncio.to_thread(sound, async_archive)
            assert died == len(numbers)
            steps.at(0)
            await news.checkpoint()
        return numbers

    tried = asyncio.run(main())
    any_server.ask("flushall")
    seen = [item for number in tried for item in range(1000 * number, 1000 * number + 20)]
    with UriFilter.open("news", redis=any_server.url, archive=async_archive) as news:
        assert 0 not in news.ages([*FIRST, *seen])
        assert not any(news.ages(range(900_000, 900_100)))
    leftovers(async_archive)
    sound(async_archive)
