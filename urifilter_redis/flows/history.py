"""The history of a rolling filter: the closed slice goes to the archive, and the next history is built.

The slice that was just closed, history_1, becomes the next history in its own place. Piece by piece it gets the bits
of the older slices of the window, from the archive. The old history has these bits too, so no answer changes
meanwhile, and the build needs no third bitmap beside today.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.steps import REST, Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing, RotationConflict
from urifilter_redis.flows.reading import archive_bitmaps, bits_of, items_in
from urifilter_redis.flows.turn import piece_count, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage.blobs import as_numbers
from urifilter_redis.storage.documents import Manifest, row_spans
from urifilter_redis.storage.slices import Archive, archive_of

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session


def archive_closed(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Write the closed slice to the archive, read it back, and only then note in ``meta`` that it is there.

    If periods were missed, the slice may have expired, and all older ones with it. Then no history is built of them.
    """
    if state.closed[-1].epoch >= _oldest(session, state):
        yield from _archive(session, shard, state)
    # Without another closed slice in the window, history_1 is the next history already.
    built = 0 if _others(session, state) else piece_count(state)
    yield from ask(session, calls.build("archived", session.keys.shard(shard), state, number=built))


def build_next(session: Session, shard: int, state: ShardState) -> Flow[list[str]]:
    """Build the remaining pieces of the next history; return the problems of the archive.

    The first part is one piece, and each part is at most twice the one before, so that a process that dies soon has
    built something.
    """
    archive, keys, today = archive_of(session), session.keys.shard(shard), session.config.today
    manifests, problems = yield from _sound_manifests(session, archive, shard, _others(session, state))
    history, closed = (replace(today, name=name).names for name in ("history", "history_1"))
    spans = row_spans(today)
    start, most = state.pieces or 0, 1
    while start < len(spans):
        segment = spans[start][0]
        some = [(at, size) for n, at, size in spans[start : start + most] if n == segment]
        merged = yield from bits_of(session, keys.slice(closed[segment]), some)
        for epoch, manifest in manifests.items():
            try:
                pieces = yield from archive.read(session, shard, manifest, start, start + len(some))
                merged = [new | there for new, there in zip(merged, as_numbers(pieces), strict=True)]
            except (ArchiveCorrupt, ArchiveMissing) as error:
                problems.append(f"{session.where}: shard {shard}, slice {epoch}: {error}")
        late = bool(problems)
        # The old history has every item that the archive has lost. It also has expired ones: late, never early.
        if late:
            yield from archive.check(session)
            old = yield from bits_of(session, keys.slice(history[segment]), some)
            merged = [new | kept for new, kept in zip(merged, old, strict=True)]
        piece = functools.partial(calls.build, "piece", keys, state, late=late, segment=segment)
        built = (
            piece(number=number, offset=at, data=bits.to_bytes(size, "little"))
            for number, (bits, (at, size)) in enumerate(zip(merged, some, strict=True), start)
        )
        yield from ask(session, *built)
        start, most = start + len(some), min(2 * most, archive.at_once)
        yield REST
    return problems


def finish_next(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Delete the expired slices from the archive, then make the built bitmap the history."""
    keys, oldest = session.keys.shard(shard), _oldest(session, state)
    for closed in state.closed:
        if closed.epoch < oldest:
            yield from archive_of(session).delete(session, shard, state, closed.epoch)
    count = b""
    # Many items of the history were seen in several slices, so the history's own fill tells their number.
    if session.config.expire_after == "last-seen" and len(state.view.slices) > 1:
        today = state.view.slices[-1]  # of the same size as history_1
        items = yield from items_in(session, keys, replace(today, name="history_1"))
        count = b"%d" % (32 * today.whole.size if items is None else items)  # full bitmaps have room for any number
    made = calls.build("finish", keys, state, number=piece_count(state), oldest=oldest, data=count)
    yield from ask(session, made)
    session.freed_at = monotonic() + made.frees_for


def _archive(session: Session, shard: int, state: ShardState) -> Flow[None]:
    archive = archive_of(session)
    writer = yield from archive.writer(session, shard, state)
    try:
        closed = replace(session.config.today, name="history_1")
        row = [session.keys.shard(shard).slice(name) for name in closed.names]
        moved = functools.partial(_raise_if_moved, session, shard, state)
        content = yield from archive_bitmaps(session, row, closed.size, writer, moved, at_once=archive.at_once)
        yield from _raise_if_moved(session, shard, state)
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


def _raise_if_moved(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Check that the rotation has not gone on: otherwise the slices that were read may be others.

    Raises:
        RotationConflict: another process has continued the rotation.
    """
    (now,) = yield from read_states(session, [shard])
    if (now.epoch, now.phase, now.token, now.pieces) != (state.epoch, state.phase, state.token, state.pieces):
        raise RotationConflict(f"{session.where}: another process has continued the rotation")


def _sound_manifests(
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
            manifest.check(session.config, shard, session.config.today, kind="slice", epoch=epoch)
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
