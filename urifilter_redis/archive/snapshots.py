"""The checkpoints of a shard in a home: two documents, written in turn, so that the one before is there still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.archive import documents
from urifilter_redis.archive.contents import nothing, read_records, verify
from urifilter_redis.archive.home import Key
from urifilter_redis.archive.manifest import Checkpoint
from urifilter_redis.archive.records import split_forgotten, split_replies
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.archive.home import Home
    from urifilter_redis.config import Config
    from urifilter_redis.steps import Flow

__all__ = ["Place", "last_good", "newest", "places", "to_replace"]


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two documents.

    Attributes:
        key: of the document.
        text: what it is; None if there is none.
        checkpoint: what it says; None if there is none or it is damaged.
        problem: why it cannot be used, if it is there.
    """

    key: Key
    text: bytes | None
    checkpoint: Checkpoint | None
    problem: str = ""


def places(home: Home, name: str, config: Config, shard: int) -> Flow[list[Place]]:
    """Read both documents of a shard; contents are not looked at."""
    found = []
    for turn in (0, 1):
        key = Key(name, "checkpoint", config.uid, shard, turn)
        text = yield from home.read(key)
        found.append(_place(key, text, config))
    return found


def _place(key: Key, text: bytes | None, config: Config) -> Place:
    if text is None:
        return Place(key, None, None)
    try:
        checkpoint = documents.load(Checkpoint, text, f"a checkpoint of {key.filter!r}, shard {key.shard},")
        checkpoint.check(config, key.shard)
    except ArchiveCorrupt as error:
        return Place(key, text, None, str(error))
    return Place(key, text, checkpoint)


def newest(found: Sequence[Place]) -> Checkpoint | None:
    """Return the checkpoint with the highest number."""
    return max((place.checkpoint for place in found if place.checkpoint), key=lambda each: each.number, default=None)


def to_replace(found: Sequence[Place]) -> Place:
    """Return the place of the next checkpoint: not that of the newest."""
    return min(found, key=lambda place: place.checkpoint.number if place.checkpoint else 0)


def last_good(
    home: Home, name: str, found: Sequence[Place], between: Callable[[], Flow[None]] = nothing
) -> Flow[tuple[Checkpoint | None, list[str]]]:
    """Return the newest checkpoint all of whose contents are what they must be, and what was wrong with newer ones.

    ``between`` is run again and again meanwhile.

    Raises:
        ArchiveCorrupt: there are checkpoints, and none is good.
    """
    problems = [place.problem for place in found if place.problem]
    whole = [place.checkpoint for place in found if place.checkpoint is not None]
    for checkpoint in sorted(whole, key=lambda each: -each.number):
        try:
            for bitmap in checkpoint.bitmaps:
                yield from verify(home, name, bitmap.content, between)
            yield from read_records(home, name, checkpoint.replies, split_replies, lambda _: between())
            yield from read_records(home, name, checkpoint.forgotten, split_forgotten, lambda _: between())
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(f"checkpoint {checkpoint.number}, shard {checkpoint.shard}: {error}")
        else:
            return checkpoint, problems
    if problems:
        raise ArchiveCorrupt(f"archive {home.shown}: no checkpoint of {name!r} is good: {'; '.join(problems)}")
    return None, []
