"""What tests look at in an archive."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from urifilter_redis.archive.maintenance import prune, verify_all
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_home


def sound(archive: str, *, slices: bool = True) -> int:
    """Check everything in an archive; return how many documents it has beside registrations.

    Without ``slices`` closed ones may be missing: what is imported has none.
    """
    home = open_home(archive)
    found = drive(verify_all(home, None, lambda *_: None))
    drive(home.close())
    assert [each for each in found.problems if slices or not each.startswith("slice ")] == []
    return found.documents


def checkpoints(archive: str) -> list[Path]:
    """Return the documents of the checkpoints in a folder, the newest last."""
    found = Path(urlsplit(archive).path).glob("*.filter/*/checkpoint-*.json")
    return sorted(found, key=lambda path: json.loads(path.read_bytes())["document"]["number"])


def leftovers(archive: str) -> int:
    """Prune, and check that everything that is left is needed; return how many leftovers there were."""
    home = open_home(archive)
    removed = drive(prune(home, 0))
    assert removed.problems == ()
    assert drive(prune(home, 0)) == type(removed)(0, 0, 0, ())
    documents = [drive(home.read(key)) or b"" for key in drive(home.keys())]
    for blob in drive(home.blobs()):
        assert blob.whole
        assert any(blob.id.encode() in text for text in documents)
    drive(home.close())
    return removed.blobs
