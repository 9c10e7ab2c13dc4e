"""What tests look at in an archive, and how they let it lie."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from urifilter_redis.archive import export, importing
from urifilter_redis.archive.maintenance import Verified, prune, verify_all
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.steps import Flow
from urifilter_redis.protocol.config import Config
from urifilter_redis.storage import documents
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.storage.packing import pack


def on(archive: str, flow: Callable[..., Flow[Any]], *given: object) -> Any:
    """Run a flow about an archive; return its answer."""
    backend = open_backend(archive)
    try:
        return drive(flow(backend, *given))
    finally:
        drive(backend.close())


def verified(archive: str, name: str | None = None) -> Verified:
    return on(archive, verify_all, name, lambda *_: None)


def sound(archive: str, *, slices: bool = True) -> int:
    """Check everything in an archive; return how many documents it has beside registrations.

    Without ``slices`` closed ones may be missing: what is imported has none.
    """
    found = verified(archive)
    assert [each for each in found.problems if slices or not each.startswith("slice ")] == []
    return found.documents


def export_to(archive: str, name: str, file: Path) -> None:
    on(archive, export.export, name, file, lambda *_: None)


def import_from(archive: str, file: Path, shards: int | None = None) -> tuple[str, Config]:
    return on(archive, importing.import_, file, lambda *_: None, shards)


def root(archive: str) -> Path:
    """Return the folder of an archive in a folder."""
    return Path(urlsplit(archive).path)


def files(archive: str, pattern: str) -> list[Path]:
    """Return the files of all filters of an archive in a folder, the newest last."""
    return sorted(root(archive).glob(f"*.filter/*/{pattern}"), key=lambda path: path.stat().st_mtime_ns)


def checkpoints(archive: str) -> list[Path]:
    """Return the documents of the checkpoints in a folder, the newest last."""
    found = files(archive, "checkpoint-*.json")
    return sorted(found, key=lambda path: json.loads(path.read_bytes())["document"]["number"])


def leftovers(archive: str) -> int:
    """Prune, and check that everything that is left is needed; return how many leftovers there were."""
    backend = open_backend(archive)
    removed = drive(prune(backend, 0))
    assert removed.problems == ()
    assert drive(prune(backend, 0)) == type(removed)(0, 0, 0, ())
    documents = [drive(backend.read(key)) or b"" for key in drive(backend.keys())]
    for blob in drive(backend.blobs()):
        assert blob.whole
        assert any(blob.id.encode() in text for text in documents)
    drive(backend.close())
    return removed.blobs


def let_restorers_die(server) -> None:
    """Let restorers that were stopped have been silent for long enough to be taken over."""
    with server.client() as admin:
        for key in admin.scan_iter("*:meta"):
            if admin.hexists(key, "restored"):
                admin.hset(key, "restored", 0)


def lie(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a document, and give it the SHA-256 that is right then."""
    text = json.loads(path.read_bytes())
    change(text["document"])
    path.write_text(json.dumps(text | {"sha256": documents._sha256(text["document"])}))


def _changing(path: tuple[Any, ...], change: Callable[[Any, Any], object]) -> Callable[[dict[str, Any]], object]:
    """Return what changes, of a document, the place to which a path leads."""
    return lambda values: change(functools.reduce(operator.getitem, path[:-1], values), path[-1])


def put(value: object, *path: Any):
    """Return what puts a value into a document."""
    return _changing(path, lambda holder, name: operator.setitem(holder, name, value))


def drop_field(*path: Any):
    return _changing(path, operator.delitem)


def more(*path: Any, by: int = 1):
    return _changing(path, lambda holder, name: operator.setitem(holder, name, holder[name] + by))


def blob_of(path: Path, name: str, data: bytes, pieces: list[dict[str, Any]]) -> None:
    """Write a blob, and let a checkpoint say that it has its records of this kind."""
    blob = f"{path.parent.name}-{'0' * 15}1"
    (path.parent / f"{blob}.blob").write_bytes(data)
    lie(path, put({"blob": blob, "pieces": pieces}, "records", name))


def piece_of(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return data as they are packed, and what a document says of them."""
    packed = pack(data)
    return packed, {"length": len(data), "packed": len(packed), "sha256": hashlib.sha256(data).hexdigest()}
