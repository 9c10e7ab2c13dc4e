"""The history of a rolling filter: the closed slice goes to the archive, and the next history is built.

history_1, the slice that was just closed, becomes the next history in its own place. Piece by piece it gets the bits
of the older slices of the window, from the archive. The old history has these bits too, so no answer changes
meanwhile, and the build needs no third bitmap beside today.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.sizing import Slice, items_from_fill
from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.steps import REST
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing, RotationConflict
from urifilter_redis.flows.reading import archived, fill_of
from urifilter_redis.flows.turn import piece_count, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.storage.contents import as_numbers
from urifilter_redis.storage.documents import Manifest, piece_spans
from urifilter_redis.storage.slices import archive_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState
    from urifilter_redis.storage.slices import Archive

__all__ = ["archive_closed", "build_next", "finish_next"]


def archive_closed(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Write the closed slice to the archive, read it back, and only then note in ``meta`` that it is there.

    One that has expired, because periods were missed, is gone, and so is all that is older.
    """
    if state.closed[-1].epoch < _oldest(session, state):  # no history is built of it
        yield from ask(session, calls.build("archived", session.keys.shard(shard), state, number=piece_count(state)))
        return
    archive = archive_of(session)
    writer = yield from archive.writer(session, shard, state)
    try:
        key = session.keys.shard(shard).slice("history_1")
        moved = functools.partial(_raise_if_moved, session, shard, state)
        content = yield from archived(session, key, session.config.bytes, writer, moved, archive.at_once)
        yield from _raise_if_moved(session, shard, state)
        closed = Slice("history_1", session.config.units, session.config.bytes)
        known = (session.config, session.keys.name, shard, state, closed)
        yield from writer.publish(Manifest.of(*known, kind="slice", content=content))
    except GeneratorExit:  # a flow that is closed may not yield steps any more
        raise
    except BaseException as error:
        with contextlib.suppress(ArchiveError):  # the first error tells the caller more than this one
            yield from writer.abandon()
        if isinstance(error, ArchiveCorrupt):
            yield from _raise_if_moved(session, shard, state)
        raise
    # Without another closed slice in the window, history_1 is the next history already.
    nothing_to_build = piece_count(state) if not _others(session, state) else 0
    call = calls.build("archived", session.keys.shard(shard), state, number=nothing_to_build)
    yield from ask(session, call)


def _raise_if_moved(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Check that the rotation has not gone on; if it has, the slices that were read may be others.

    Raises:
        RotationConflict: another process has continued the rotation.
    """
    (now,) = yield from read_states(session, [shard])
    if (now.epoch, now.phase, now.token, now.pieces) != (state.epoch, state.phase, state.token, state.pieces):
        raise RotationConflict(f"{session.where}: another process has continued the rotation")


def build_next(session: Session, shard: int, state: ShardState) -> Flow[list[str]]:
    """Build the remaining pieces of the next history; return the problems of the archive.

    The first part is one piece, and each part is at most twice the one before: a process that dies soon has built
    something.
    """
    archive, keys = archive_of(session), session.keys.shard(shard)
    manifests, problems = yield from _sound(session, archive, shard, _others(session, state))
    spans = list(piece_spans(session.config.bytes))
    for start, length in _parts(state.pieces or 0, len(spans), archive.at_once):
        some = spans[start : start + length]
        merged = yield from _read(session, keys.slice("history_1"), some)
        for epoch, manifest in manifests.items():
            try:
                pieces = yield from archive.read(session, shard, manifest, start, start + len(some))
                merged = [new | there for new, there in zip(merged, as_numbers(pieces), strict=True)]
            except (ArchiveCorrupt, ArchiveMissing) as error:
                problems.append(f"{session.where}: shard {shard}, slice {epoch}: {error}")
        # The old history has every item that the archive has lost. It also has expired ones: late, never early.
        if problems:
            yield from archive.check(session)
            old = yield from _read(session, keys.slice("history"), some)
            merged = [new | kept for new, kept in zip(merged, old, strict=True)]
        late = bool(problems)
        data = [piece.to_bytes(length, "little") for piece, (_, length) in zip(merged, some, strict=True)]
        made = (
            calls.build("piece", keys, state, number=number, offset=spans[number][0], data=piece, late=late)
            for number, piece in enumerate(data, start)
        )
        yield from ask(session, *made)
        yield REST
    return problems


def _parts(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first piece and the number of pieces of each part."""
    length = 1
    while start < end:
        yield start, length
        start, length = start + length, min(2 * length, most)


def _read(session: Session, key: str, spans: Sequence[tuple[int, int]]) -> Flow[list[int]]:
    """Read pieces of a bitmap as integers, so that ``|`` merges them."""
    pieces = yield from ask(session, *(("GETRANGE", key, at, at + length - 1) for at, length in spans))
    return as_numbers(pieces)


def finish_next(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Delete the expired slices from the archive, then make the built bitmap the history."""
    keys, oldest = session.keys.shard(shard), _oldest(session, state)
    for expired in (each.epoch for each in state.closed if each.epoch < oldest):
        yield from archive_of(session).delete(session, shard, state, expired)
    more: dict[str, Any] = {"number": piece_count(state), "oldest": oldest}
    if (
        session.config.expire_after == "last-seen" and len(state.view.slices) > 1
    ):  # its items are counted, as many were seen in several slices
        more["data"] = yield from _counted(session, keys.slice("history_1"), state.view.slices[-1])
    yield from ask(session, calls.build("finish", keys, state, **more))


def _counted(session: Session, key: str, slice_: Slice) -> Flow[bytes]:
    """Return the estimated number of items of a bitmap, as text."""
    fill, config = (yield from fill_of(session, key, slice_)), session.config
    most = 32 * slice_.size  # a bitmap with all bits set has room for any number
    return b"%d" % (round(items_from_fill(config.layout, config.k, slice_.units, fill)) if fill < 1 else most)


def _sound(
    session: Session, archive: Archive, shard: int, epochs: Sequence[int]
) -> Flow[tuple[dict[int, Manifest], list[str]]]:
    """Read the manifests of slices; return the sound ones by epoch, and the problems of the others."""
    manifests, problems = {}, []
    found = yield from archive.manifests(session, shard, epochs)
    for epoch, manifest in zip(epochs, found, strict=True):
        if isinstance(manifest, str):
            problems.append(f"{session.where}: shard {shard}, slice {epoch} of the archive: {manifest}")
            continue
        try:
            closed = Slice("history_1", session.config.units, session.config.bytes)
            manifest.check(session.config, shard, closed, kind="slice", epoch=epoch)
            manifests[epoch] = manifest
        except ArchiveCorrupt as error:
            problems.append(f"{session.where}: {error}")
    return manifests, problems


def _others(session: Session, state: ShardState) -> list[int]:
    """Return the epochs of the closed slices that the next history merges with the one that was just closed."""
    return [each.epoch for each in state.closed[:-1] if each.epoch >= _oldest(session, state)]


def _oldest(session: Session, state: ShardState) -> int:
    """Return the lowest epoch whose items have not expired."""
    return max(0, state.epoch - (session.config.slices or 0) + 1)
