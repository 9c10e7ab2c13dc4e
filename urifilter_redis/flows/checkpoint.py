"""The flow of a checkpoint: it copies the live slices to the archive while inserts go on.

Inserts only set bits, so the copy of a bitmap has every item that was inserted before the reading began. The
forgotten digests and the records of calls are read after the bitmaps: if an item's bits were saved, so was its record.
The leases come later: if the record of a claim was saved, so was its entry, unless the item was committed meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.checks import check_flag
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.queries import ask, scan, server_run, server_time
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing, Restoring, RotationConflict
from urifilter_redis.flows.reading import archive_bitmaps, read_leases
from urifilter_redis.flows.restore import ensure
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import FORMAT
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.blobs import Writer, verify
from urifilter_redis.storage.checkpoints import Place, gone, newest, places, publish_checkpoint, to_replace
from urifilter_redis.storage.documents import STATE, Checkpoint, Content, Manifest
from urifilter_redis.storage.records import KINDS, letters_of
from urifilter_redis.storage.registry import check_registered, note_complete, require_archive

log = logging.getLogger("urifilter_redis")

#: Most attempts at a checkpoint of a shard; an attempt fails if a rotation, or another checkpoint, comes first.
TRIES = 20


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a checkpoint.

    Attributes:
        number: the highest number of the shards' last checkpoints.
        begun: the server time at which it began, seconds since 1970.
        shards: how many shards were written; the others had not changed since their last checkpoint.
        size: the bytes of the contents of these shards in the archive, old and new.

    Example:
        >>> archived.checkpoint().shards
        1
    """

    number: int
    begun: float
    shards: int
    size: int


def checkpoint(session: Session, *, full: bool = False) -> Flow[Written]:
    """Write the changes since the last checkpoint to the archive; with ``full`` write everything anew.

    Raises:
        ArchiveMissing: the filter has no archive, or the caller has not named it.
        ArchiveError: the archive failed; the last checkpoint is still there.
        Restoring: the filter is being restored.
    """
    check_flag("full", full)
    yield from check_registered(session)
    begun = yield from server_time(session)
    number = written = size = 0
    for shard in range(session.config.shards):
        made, last = yield from _checkpoint_shard(session, shard, full=full)
        number = max(number, last)
        if made is not None:
            written += 1
            size += sum(content.packed for content in made.contents)
        session.report(shard + 1, session.config.shards)
    yield from note_complete(require_archive(session), session.keys.name)
    return Written(number, begun / 1000, written, size)


def checkpoint_age(session: Session) -> Flow[float]:
    """Return the seconds since the oldest of the shards' last checkpoints began; infinity if that is not known.

    It is not known if a shard has no checkpoint, or if the time of one lies in the future because the server's clock
    was ahead.
    """
    begun = [state.checkpointed for state in (yield from read_states(session))]
    now = yield from server_time(session)
    known = all(0 < each <= now for each in begun)
    return (now - min(begun)) / 1000 if known else math.inf


def _checkpoint_shard(session: Session, shard: int, *, full: bool) -> Flow[tuple[Checkpoint | None, int]]:
    """Write a checkpoint of a shard; return it, or None if nothing has changed, and the last number."""
    for _ in range(TRIES):
        attempt = _Attempt(session, require_archive(session), shard)
        try:
            return (yield from attempt.run(full=full))
        except GeneratorExit:  # a flow that is closed may not yield steps any more
            raise
        except RotationConflict:
            yield from attempt.abandon()
        except BaseException:
            with contextlib.suppress(ArchiveError):  # the first error tells the caller more than this one
                yield from attempt.abandon()
            raise
    text = f"shard {shard}: {TRIES} checkpoints in a row were overtaken by others or by rotations: try again later"
    raise RotationConflict(f"{session.where}: {text}")


class _Attempt:
    """One attempt at a checkpoint of a shard; it remembers its uploads until a document names them."""

    def __init__(self, session: Session, backend: Backend, shard: int) -> None:
        self._session, self._backend, self._shard = session, backend, shard
        self._keys, self._config = session.keys.shard(shard), session.config
        self._writers: list[Writer] = []
        self._run = ""

    def abandon(self) -> Flow[None]:
        """Remove the uploads that no document names."""
        for writer in self._writers:
            yield from writer.abandon()

    def run(self, *, full: bool) -> Flow[tuple[Checkpoint | None, int]]:
        """Write the checkpoint; return it, or None if nothing has changed, and the last number.

        Raises:
            RotationConflict: a rotation, a restore or another checkpoint came first.
        """
        session, uid = self._session, self._config.uid
        found = yield from places(self._backend, session.keys.name, self._config, self._shard)
        last = newest(found)
        number = last.number if last else 0
        begun = yield from server_time(session, self._shard)  # before anything of the shard is read
        (state,) = yield from read_states(session, [self._shard])
        if state.phase == "restoring":
            raise Restoring(f"{session.where}: it is being restored from its archive: try again later")
        if state.checkpoint < number:
            yield from ensure(session)  # it finishes a turn first: only Redis has the slice that this has closed
            raise RotationConflict(f"{session.where}: its archive was ahead, so the shard was restored")
        if last and not full and not gone(found) and _same(last, state):
            yield from ask(session, calls.checkpoint("finish", uid, self._keys, number, begun))
            return None, number
        self._run = yield from server_run(session, self._keys.meta)
        (reply,) = yield from ask(session, calls.checkpoint("begin", uid, self._keys, number))
        meta = to_mapping(reply)
        meta["opened"] = str(ShardState.from_meta(meta, session.where).opened_by(begun))
        made = yield from self._write(meta, begun, None if full else last)
        yield from self._check_still(ShardState.from_meta(meta, session.where))
        with session.unchecked():  # a stop between these steps would leave blobs that nobody needs
            yield from self._publish(found, made)
            place = to_replace(found)
            if place.checkpoint:
                kept = made.blobs | (last.blobs if last else set())
                yield from self._backend.delete(session.keys.name, sorted(place.checkpoint.blobs - kept - {""}))
            yield from ask(session, calls.checkpoint("finish", uid, self._keys, made.number, begun))
        return made, made.number

    def _publish(self, found: Sequence[Place], made: Checkpoint) -> Flow[None]:
        made.check(self._config, self._shard)
        for writer in self._writers:
            writer.check_age()
        # The document may be there even if the request to publish it fails. So no upload is removed from here on.
        writers, self._writers = self._writers, []
        try:
            done = yield from publish_checkpoint(self._backend, found, made)
        except ArchiveMissing:
            self._writers = writers
            raise
        if not done:
            self._writers = writers
            raise RotationConflict(f"{self._session.where}: another checkpoint came first")

    def _write(self, meta: dict[str, str], begun: int, last: Checkpoint | None) -> Flow[Checkpoint]:
        """Upload bitmaps, records, forgotten digests and leases; return the checkpoint that describes them."""
        session = self._session
        state, number = ShardState.from_meta(meta, session.where), int(meta["checkpoint"])
        bitmaps: list[Manifest] = []
        # With write=all only the oldest slice is tested, so each copy must have all items of newer copies. Otherwise
        # an item might be "new", and later "seen" once the oldest slice is gone. So the newest slice is read first.
        moved = functools.partial(self._check_still, state)
        for slice_ in state.view.slices[::-1]:
            known, row = (self._config, session.keys.name, self._shard, state, slice_), []
            for segment, name in enumerate(slice_.names):
                content = yield from self._reused(last, state, slice_, segment)
                if content is None:
                    key = self._keys.slice(name)
                    content = yield from archive_bitmaps(session, [key], slice_.size, self._writer(), moved)
                row.append(Manifest.of(*known, kind="checkpoint", segment=segment, number=number, content=content))
            bitmaps[:0] = row
        # Forgotten digests are read before and after the records, and both readings count. An item that is inserted
        # between the readings counts as new once more, so a client that lost its reply is not told "seen". An item that
        # is forgotten between the readings stays forgotten.
        writers = {kind: self._writer() for kind in KINDS}
        forgotten = ("ZSCAN", self._keys.forgotten, KINDS["forgotten"].write, writers["forgotten"])
        yield from self._upload(*forgotten)
        yield from self._upload("HSCAN", self._keys.replies, KINDS["replies"].write, writers["replies"])
        yield from self._upload(*forgotten)
        # Dead letters likewise: an item that is rejected, or offered once more, while leases are read is in one of the
        # two at least.
        if state.view.claims:
            leases, letters = KINDS["leases"], KINDS["dead_letters"]
            rejected = ("HSCAN", self._keys.of_dead_letters[0], lambda some: letters.write(letters_of(some)))
            yield from self._upload(*rejected, writers["dead_letters"])
            yield from read_leases(
                session, self._keys.leases, lambda some: writers["leases"].append(leases.write(some))
            )
            yield from self._upload(*rejected, writers["dead_letters"])
        records = {}
        for kind, writer in writers.items():
            records[kind] = yield from writer.finish()
        return Checkpoint(
            format=FORMAT,
            filter=session.keys.name,
            uid=self._config.uid,
            shard=self._shard,
            shards=self._config.shards,
            number=number,
            begun=begun,
            state={field: meta[field] for field in STATE if field in meta},
            bitmaps=bitmaps,
            records=records,
            config=self._config,
        )

    def _writer(self) -> Writer:
        writer = Writer(self._backend, self._session.keys.name, self._config.uid)
        self._writers.append(writer)
        return writer

    def _reused(self, last: Checkpoint | None, state: ShardState, slice_: Slice, segment: int) -> Flow[Content | None]:
        """Return the last checkpoint's content of a bitmap that has not changed, if it is sound; else None."""
        content = _unchanged(last, state, slice_, segment, self._config.write)
        if content is not None:
            try:
                yield from verify(self._backend, self._session.keys.name, content)
            except (ArchiveCorrupt, ArchiveMissing) as error:
                log.warning("%s: shard %d, %s: %s: it is written anew", self._session.where, self._shard, slice_, error)
                return None
        return content

    def _upload(
        self, command: str, key: str, encode: Callable[[list[tuple[bytes, Any]]], bytes], writer: Writer
    ) -> Flow[None]:
        """Upload the entries of a hash or sorted set. An entry that changes meanwhile is saved old or new."""
        cursor = b"0"
        while True:
            cursor, entries = yield from scan(self._session, command, key, cursor)
            yield from writer.append(encode(entries))
            if int(cursor) == 0:
                return

    def _check_still(self, before: ShardState) -> Flow[None]:
        """Check that the shard has not turned while its slices were read, and that its server has not restarted.

        A server that came back with older data may lack the records of items whose bits were read before.

        Raises:
            RotationConflict: the shard turned, or was restored, or the server restarted.
        """
        (now,) = yield from read_states(self._session, [self._shard])
        run = yield from server_run(self._session, self._keys.meta)
        if (_slices(now), now.timeline, run) != (_slices(before), before.timeline, self._run):
            raise RotationConflict(f"{self._session.where}: it turned or was restored, or the server restarted")
        if now.checkpoint < before.checkpoint:
            raise RotationConflict(f"{self._session.where}: the server came back with older data")


def _slices(state: ShardState) -> tuple[object, ...]:
    return state.uid, state.epoch, state.phase, state.view, state.pieces is None


def _same(last: Checkpoint, state: ShardState) -> bool:
    """Whether a shard has not changed since its last checkpoint began."""
    then, counts = last.shard_state(), attrgetter("inserted", "written", "claimed", "changed", "pieces")
    return (_slices(then), counts(then)) == (_slices(state), counts(state))


def _unchanged(
    last: Checkpoint | None, state: ShardState, slice_: Slice, segment: int, write: str | None
) -> Content | None:
    """Return the last checkpoint's content of a bitmap that was closed before it and has not changed since; or None."""
    if last is None or write == "all" or slice_.name == "today":
        return None
    then = last.shard_state()
    if then.changed != state.changed or "rotating" in {then.phase, state.phase}:
        return None
    if slice_.name == "history" and then.epoch != state.epoch:
        return None
    wanted = (state.epoch_of(slice_.name), segment)
    same = (each for each in last.bitmaps if each.name != "today" and (each.epoch, each.segment) == wanted)
    return next((each.content for each in same), None)
