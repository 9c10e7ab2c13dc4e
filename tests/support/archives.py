"""What tests look at in an archive."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from urifilter_redis.archive.maintenance import prune, verify_all
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_backend


def sound(archive: str, *, slices: bool = True) -> int:
    """Check everything in an archive; return how many documents it has beside registrations.

    Without ``slices`` closed ones may be missing: what is imported has none.
    """
    backend = open_backend(archive)
    found = drive(verify_all(backend, None, lambda *_: None))
    drive(backend.close())
    assert [each for each in found.problems if slices or not each.startswith("slice ")] == []
    return found.documents


def checkpoints(archive: str) -> list[Path]:
    """Return the documents of the checkpoints in a folder, the newest last."""
    found = Path(urlsplit(archive).path).glob("*.filter/*/checkpoint-*.json")
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
