"""What tests look at in an archive."""

from __future__ import annotations

from urifilter_redis.archive.home import open_home
from urifilter_redis.archive.upkeep import prune, verify_all
from urifilter_redis.client import drive


def sound(archive: str) -> int:
    """Check everything in an archive; return how many documents it has beside registrations."""
    home = open_home(archive)
    found = drive(verify_all(home, None, lambda *_: None))
    drive(home.close())
    assert found.problems == ()
    return found.documents


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
