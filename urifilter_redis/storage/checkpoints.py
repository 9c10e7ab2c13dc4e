"""The checkpoints of a shard in a backend.

Each shard has two documents (places), written in turn, so that the previous checkpoint stays until the next one is
complete. The previous document notes the number of the new checkpoint, so that a lost new document is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from urifilter_redis.engine.backend import Backend, Key, read_to_replace
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.config import Config
from urifilter_redis.storage import documents
from urifilter_redis.storage.blobs import nothing, read_records, verify
from urifilter_redis.storage.documents import Checkpoint
from urifilter_redis.storage.records import KINDS
from urifilter_redis.storage.registry import publish


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two documents for checkpoints of a shard.

    Attributes:
        key: the document's key.
        text: the document's text; None if there is no document.
        checkpoint: the checkpoint that the text holds; None if there is no document or it is damaged.
        problem: a text that says why an existing document cannot be used; otherwise empty.
    """

    key: Key
    text: bytes | None
    checkpoint: Checkpoint | None
    problem: str = ""


def places(backend: Backend, name: str, config: Config, shard: int) -> Flow[list[Place]]:
    """Read both documents of a shard, without the contents that they name."""
    found: list[Place] = []
    for _ in range(2):  # twice: a checkpoint written between the two reads seems to be lost
        found = []
        for number in (0, 1):
            found.append((yield from _read_place(backend, Key(name, "checkpoint", config.uid, shard, number), config)))
        if not gone(found):
            break
    return found


def _read_place(backend: Backend, key: Key, config: Config) -> Flow[Place]:
    text, problem = yield from read_to_replace(backend, key)
    checkpoint = None
    if text is not None and not problem:
        try:
            checkpoint = documents.load(Checkpoint, text, f"a checkpoint of {key.filter!r}, shard {key.shard},")
            checkpoint.check(config, key.shard)
        except ArchiveCorrupt as error:
            checkpoint, problem = None, str(error)
    return Place(key, text, checkpoint, problem)


def gone(found: Sequence[Place]) -> int:
    """Return the number of the newest checkpoint if its document is known to be gone, else 0."""
    last = newest(found)
    if last is None or any(place.problem for place in found):  # a damaged document may be the newest; it is reported
        return 0
    noted = max(documents.note_of(place.text) for place in found)
    return noted if noted > last.number else 0


def previous_gone(found: Sequence[Place]) -> int:
    """Return the number of the checkpoint before the newest one if its document alone is known to be gone, else 0."""
    last = newest(found)
    if last is None or gone(found) or any(place.problem for place in found):
        return 0
    there = {place.checkpoint.number for place in found if place.checkpoint}
    return 0 if last.previous in there else last.previous


def publish_checkpoint(backend: Backend, found: Sequence[Place], made: Checkpoint) -> Flow[bool]:
    """Write a checkpoint in place of the older one, and note its number in the other document.

    Returns:
        False if another process has written a checkpoint since ``found`` was read; nothing is changed then.

    Raises:
        ArchiveMissing: the archive does not have the filter, or has lost it; the checkpoint is not there.
        ArchiveError: the archive failed; the checkpoint may or may not be there.
    """
    place = to_replace(found)
    other = next(each for each in found if each is not place)
    made = replace(made, previous=other.checkpoint.number if other.checkpoint else 0)
    if not (yield from publish(backend, place.key, place.text, documents.dump(made))):
        return False
    if other.checkpoint:  # if the swap returns False, a later checkpoint is there, which needs no note
        try:
            yield from backend.swap(other.key, other.text, documents.dump(other.checkpoint, made.number))
        except ArchiveMissing as error:  # the checkpoint was written: ArchiveMissing would say that it was not
            raise ArchiveError(str(error)) from error
    return True


def newest(found: Sequence[Place]) -> Checkpoint | None:
    """Return the checkpoint with the highest number."""
    return max((place.checkpoint for place in found if place.checkpoint), key=lambda each: each.number, default=None)


def to_replace(found: Sequence[Place]) -> Place:
    """Return the place for the next checkpoint: the one that does not hold the newest."""
    return min(found, key=lambda place: place.checkpoint.number if place.checkpoint else 0)


def last_good(
    backend: Backend, name: str, found: Sequence[Place], between: Callable[[], Flow[None]] = nothing
) -> Flow[tuple[Checkpoint | None, list[str]]]:
    """Return the newest checkpoint whose contents are all good, and one text for each problem of newer ones.

    Without any checkpoint the first is None. ``between`` is a flow that runs after each step of reading.

    Raises:
        ArchiveCorrupt: the shard has checkpoints, and none is good.
    """
    problems = [place.problem for place in found if place.problem]
    if lost := gone(found):
        problems.append(f"checkpoint {lost}, shard {found[0].key.shard}: its document is gone")
    whole = [place.checkpoint for place in found if place.checkpoint is not None]
    for checkpoint in sorted(whole, key=lambda each: -each.number):
        try:
            for reading in readings(backend, name, checkpoint, between):
                yield from reading
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(f"checkpoint {checkpoint.number}, shard {checkpoint.shard}: {error}")
        else:
            return checkpoint, problems
    if problems:
        raise ArchiveCorrupt(f"archive {backend.shown}: no checkpoint of {name!r} is good: {'; '.join(problems)}")
    return None, []


def readings(
    backend: Backend,
    name: str,
    checkpoint: Checkpoint,
    between: Callable[[], Flow[None]] = nothing,
    use_forgotten: Callable[[list[tuple[bytes, float]]], Flow[None]] = nothing,
) -> Iterator[Flow[None]]:
    """Yield one flow for each content of a checkpoint; the flow reads and checks that content.

    Each flow raises the errors of ``read_records``. ``use_forgotten`` gets the forgotten digests with their scores,
    some at a time; its errors are raised as they are.
    """
    for bitmap in checkpoint.bitmaps:
        yield verify(backend, name, bitmap.content, between)
    for kind in KINDS:
        use = use_forgotten if kind == "forgotten" else lambda _: between()
        yield read_records(backend, name, checkpoint, kind, use)
