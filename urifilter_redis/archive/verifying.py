"""Verify the documents of an archive: read all blobs that they name, and check their counts for plausibility."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from urifilter_redis.archive.contents import verify
from urifilter_redis.archive.format.manifest import Checkpoint
from urifilter_redis.archive.listing import read_listed
from urifilter_redis.archive.snapshots import readings
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urifilter_redis.archive.format.manifest import Content, Manifest
    from urifilter_redis.archive.listing import Listed
    from urifilter_redis.engine.backend import Home
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = ["verified"]

#: How often a document that was replaced while it was verified is read again.
TRIES = 5

#: More items a millisecond than any server inserts.
FASTEST = 1000

#: More items a bit than a union ever estimates from a bitmap's fill.
DENSEST = 32


def verified(home: Home, each: Listed, config: Config | None) -> Flow[Listed | None]:
    """Read and check all contents that a document names.

    Args:
        home: the home of the archive.
        each: the document.
        config: the filter's configuration; None if the filter is not registered.

    Returns:
        The document with its problems; None if it has been removed meanwhile.
    """
    for _ in range(TRIES):
        if each.problem:
            return each
        problems = yield from _problems(home, each)
        if not problems:
            return each
        again = yield from read_listed(home, each.key, config)
        if again is None:
            return None
        if again.text == each.text:
            return replace(each, problem=f"{each.what}: {'; '.join(problems)}")
        each = again
    return each


def _problems(home: Home, each: Listed) -> Flow[list[str]]:
    problems = []
    for reading in _readings(home, each):
        try:
            yield from reading
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(str(error))
    problems = list(dict.fromkeys(problems))  # a blob that is missing is missed twice
    if isinstance(each.found, Checkpoint):
        return problems + _impossible(each.found)
    return problems + ([_TOO_MANY] if each.found and not _possible(each.found) else [])


def _readings(home: Home, each: Listed) -> Iterator[Flow[None]]:
    if isinstance(each.found, Checkpoint):
        epoch = each.found.shard_state().epoch

        def check(forgotten: list[tuple[bytes, float]]) -> Flow[None]:
            yield from ()
            if any(score >= epoch + 1 for _, score in forgotten):
                raise ArchiveCorrupt(f"a digest was forgotten in an epoch after {epoch}, the checkpoint's last one")

        yield from readings(home, each.key.filter, each.found, use_forgotten=check)
    elif each.found:
        yield verify(home, each.key.filter, each.found.content)
    for content in each.contents():
        if content.pieces:
            yield _ends(home, each.key.filter, content)


def _ends(home: Home, name: str, content: Content) -> Flow[None]:
    """Check that a blob ends where its document says."""
    end = sum(content.spans()[-1])
    if len((yield from home.download(name, content.blob, end - 1, 2))) > 1:
        raise ArchiveCorrupt(f"blob {content.blob}: it has more bytes than were written")


_TOO_MANY = "it counts more items than can have been inserted"


def _impossible(found: Checkpoint) -> list[str]:
    """Return one text for each impossible count or time of a checkpoint."""
    state, problems = found.shard_state(), []
    for bitmap in found.bitmaps:
        closed = state.closed_of(bitmap.name)
        told = (closed.opened, closed.closed, closed.inserted) if closed else (state.opened, 0, state.inserted)
        if (bitmap.opened, bitmap.closed, bitmap.inserted) != told:
            problems.append(f"{bitmap.name} has other times or counts than its shard")
    largest = max(bitmap.size for bitmap in found.bitmaps)
    counts = [(each.opened, each.closed, each.inserted) for each in state.closed]
    counts.append((state.opened, found.begun, state.inserted))
    if any(inserted > _most(largest, opened, until) for opened, until, inserted in counts):
        problems.append(_TOO_MANY)
    return problems


def _possible(found: Manifest) -> bool:
    return found.inserted <= _most(found.size, found.opened, found.closed)


def _most(size: int, opened: int, until: int) -> int:
    """Return an upper bound of the items that a slice may count.

    Args:
        size: bytes of the bitmap.
        opened: when the slice became today, server time in ms.
        until: when the slice was closed, or when the checkpoint began, server time in ms.
    """
    # the bits bound the items that are in the bitmap; an item that is forgotten and inserted again counts each time
    return DENSEST * 8 * size + FASTEST * max(0, until - opened)
