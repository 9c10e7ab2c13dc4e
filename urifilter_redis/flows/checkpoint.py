"""The flow of a checkpoint: the live slices go to the archive while inserts go on.

Bits are only set, so that what is read of a bitmap has everything that was inserted before the reading began. What
was forgotten and the kept replies are read after the bitmaps: whose bits are in them, his reply is too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from urifilter_redis.archive.contents import PIECES_AT_ONCE, Writer, cut, verify
from urifilter_redis.archive.format.manifest import FORMAT, PIECE, Checkpoint, Content, Manifest, piece_spans
from urifilter_redis.archive.format.records import write_forgotten, write_replies
from urifilter_redis.archive.register import check_registered, note_complete, require_archive
from urifilter_redis.archive.snapshots import Place, gone, newest, places, publish_checkpoint, to_replace
from urifilter_redis.engine.queries import ask, scan, server_run, server_time
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing, Restoring, RotationConflict
from urifilter_redis.flows.bitmaps import pieces_of
from urifilter_redis.flows.restore import restore
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.bloom.sizing import Slice
    from urifilter_redis.engine.home import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["Written", "checkpoint", "checkpoint_age"]

log = logging.getLogger("urifilter_redis")

#: How often a checkpoint of a shard is begun anew because a rotation, or another checkpoint, came first.
TRIES = 20

#: The fields of ``meta`` that change and that a restore brings back.
_STATE = (
    "created", "epoch", "phase", "token", "pieces", "late", "opened", "inserted", "limit", "closed", "oldest",
    "slices", "changed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """What a checkpoint did.

    Attributes:
        number: the highest of the shards' numbers.
        begun: when it began, server time, seconds since 1970.
        shards: how many were written; the others had not changed since the last.
        size: bytes that were written to the archive.
    """

    number: int
    begun: float
    shards: int
    size: int


def checkpoint(session: Session, *, full: bool = False) -> Flow[Written]:
    """Write back what has changed since the last checkpoint; with ``full`` everything.

    Raises:
        ArchiveMissing: the filter has no archive, or the caller has not named it.
        ArchiveError: the archive failed; the last checkpoint is there still.
        Restoring: the filter is being restored.
    """
    yield from check_registered(session)
    begun = yield from server_time(session)
    done: list[Checkpoint | None] = []
    number = size = 0
    for shard in range(session.config.shards):
        made, last = yield from _shard(session, shard, full=full)
        done.append(made)
        number = max(number, last)
        size += 0 if made is None else sum(p.packed for c in made.contents for p in c.pieces)
        session.report(shard + 1, session.config.shards)
    yield from note_complete(require_archive(session), session.keys.name)
    return Written(number, begun / 1000, sum(each is not None for each in done), size)


def checkpoint_age(session: Session) -> Flow[float]:
    """Return the seconds since the last checkpoint of any shard began; infinity if that of one is not known.

    It is not if there was none, or if its time lies in the future, because the server's clock was ahead.
    """
    begun = [state.checkpointed for state in (yield from read_states(session))]
    now = yield from server_time(session)
    known = all(0 < each <= now for each in begun)
    return (now - min(begun)) / 1000 if known else math.inf


def _shard(session: Session, shard: int, *, full: bool) -> Flow[tuple[Checkpoint | None, int]]:
    """Write a shard back unless nothing has changed; return the checkpoint if so, and the last number."""
    for _ in range(TRIES):
        attempt = _Attempt(session, require_archive(session), shard)
        try:
            found = yield from attempt.run(full=full)
        except GeneratorExit:  # nothing can be done any more
            raise
        except RotationConflict:
            yield from attempt.abandon()
        except BaseException:
            with contextlib.suppress(ArchiveError):  # what it was is worth more than that this failed too
                yield from attempt.abandon()
            raise
        else:
            return found
    raise RotationConflict(f"{session.where}: shard {shard}: {TRIES} checkpoints were overtaken, one after the other")


class _Attempt:
    """One attempt at a checkpoint of a shard; it knows what it has uploaded and nothing points to."""

    def __init__(self, session: Session, home: Home, shard: int) -> None:
        self._session, self._home, self._shard = session, home, shard
        self._keys, self._config = session.keys.shard(shard), session.config
        self._writers: list[Writer] = []
        self._run = ""

    def abandon(self) -> Flow[None]:
        """Remove what was uploaded."""
        for writer in self._writers:
            yield from writer.abandon()

    def run(self, *, full: bool) -> Flow[tuple[Checkpoint | None, int]]:
        """Do it; RotationConflict if it was overtaken."""
        session, uid = self._session, self._config.uid
        found = yield from places(self._home, session.keys.name, self._config, self._shard)
        last = newest(found)
        number = last.number if last else 0
        begun = yield from server_time(session)  # before anything of it is looked at
        (state,) = yield from read_states(session, [self._shard])
        if state.phase == "restoring":
            raise Restoring(f"{session.where}: it is being restored from its archive")
        if state.checkpoint < number:
            yield from restore(session, {self._shard: state.timeline})
            raise RotationConflict(f"{session.where}: its archive was ahead")
        if last and not full and not gone(found) and _same(last, state):
            yield from ask(session, calls.checkpoint("finish", uid, self._keys, number, begun))
            return None, number
        self._run = yield from server_run(session)
        (reply,) = yield from ask(session, calls.checkpoint("begin", uid, self._keys, number))
        meta = to_mapping(reply)
        meta["opened"] = str(ShardState.from_meta(meta, session.where).opened_by(begun))
        made = yield from self._write(meta, begun, None if full else last)
        yield from self._check_still(ShardState.from_meta(meta, session.where))
        yield from self._publish(found, made)
        place = to_replace(found)
        if place.checkpoint:
            kept = made.blobs | (last.blobs if last else set())
            yield from self._home.delete(session.keys.name, sorted(place.checkpoint.blobs - kept - {""}))
        yield from ask(session, calls.checkpoint("finish", uid, self._keys, made.number, begun))
        return made, made.number

    def _publish(self, found: Sequence[Place], made: Checkpoint) -> Flow[None]:
        made.check(self._config, self._shard)
        for writer in self._writers:
            writer.check_age()
        # Once this is asked it may have happened, whatever is heard of it: what was uploaded is not removed any more.
        writers, self._writers = self._writers, []
        try:
            done = yield from publish_checkpoint(self._home, found, made)
        except ArchiveMissing:
            self._writers = writers
            raise
        if not done:
            self._writers = writers
            raise RotationConflict(f"{self._session.where}: another checkpoint came first")

    def _write(self, meta: dict[str, str], begun: int, last: Checkpoint | None) -> Flow[Checkpoint]:
        """Upload what is needed and say what it is."""
        state, number = ShardState.from_meta(meta, self._session.where), int(meta["checkpoint"])
        bitmaps: list[Manifest] = []
        # Newest first: of what is inserted meanwhile, with write=all, older slices then have at least what newer ones
        # have, as it must be: otherwise an item that is new would be seen once the oldest slice is gone.
        for slice_ in state.view.slices[::-1]:
            content = yield from self._taken_over(last, state, slice_)
            content = content or (yield from self._bitmap(state, slice_))
            known = (self._config, self._session.keys.name, self._shard, state, slice_)
            bitmaps.insert(0, Manifest.of(*known, kind="checkpoint", number=number, content=content))
        # What is forgotten is read before and after the replies, and both count: an item that is inserted anew between
        # them is new once more, and not seen by who has lost its reply; one that is forgotten between them stays so.
        forgotten = self._writer()
        yield from self._scanned("ZSCAN", self._keys.forgotten, _forgotten, forgotten)
        replies = self._writer()
        yield from self._scanned("HSCAN", self._keys.replies, write_replies, replies)
        yield from self._scanned("ZSCAN", self._keys.forgotten, _forgotten, forgotten)
        return Checkpoint(
            format=FORMAT,
            filter=self._session.keys.name,
            uid=self._config.uid,
            shard=self._shard,
            shards=self._config.shards,
            number=number,
            begun=begun,
            state={field: meta[field] for field in _STATE if field in meta},
            bitmaps=bitmaps,
            replies=(yield from replies.finish()),
            forgotten=(yield from forgotten.finish()),
        )

    def _writer(self) -> Writer:
        writer = Writer(self._home, self._session.keys.name, self._config.uid)
        self._writers.append(writer)
        return writer

    def _taken_over(self, last: Checkpoint | None, state: ShardState, slice_: Slice) -> Flow[Content | None]:
        """Return where the archive has a slice already, if it has not changed and is still what it was."""
        content = _unchanged(last, state, slice_, self._config.write)
        if content is not None:
            try:
                yield from verify(self._home, self._session.keys.name, content)
            except (ArchiveCorrupt, ArchiveMissing) as error:
                log.warning("%s: shard %d, %s: %s: it is written anew", self._session.where, self._shard, slice_, error)
                return None
        return content

    def _bitmap(self, state: ShardState, slice_: Slice) -> Flow[Content]:
        writer, key = self._writer(), self._keys.slice(slice_.name)
        spans = list(piece_spans(slice_.size))
        for start in range(0, len(spans), PIECES_AT_ONCE):
            some = spans[start : start + PIECES_AT_ONCE]
            moved = functools.partial(self._check_still, state)
            yield from writer.write((yield from pieces_of(self._session, key, some, moved)))
        return (yield from writer.finish())

    def _scanned(
        self, command: str, key: str, encode: Callable[[list[tuple[bytes, Any]]], bytes], writer: Writer
    ) -> Flow[None]:
        """Upload the entries of a hash or sorted set; one that changes meanwhile is in it as it was or as it is."""
        cursor, data = b"0", b""
        while True:
            cursor, entries = yield from scan(self._session, command, key, cursor)
            data += encode(entries)
            whole = len(data) if int(cursor) == 0 else len(data) // PIECE * PIECE
            for pieces in cut(data[:whole]):
                yield from writer.write(pieces)
            data = data[whole:]
            if int(cursor) == 0:
                return

    def _check_still(self, before: ShardState) -> Flow[None]:
        """Check that no slice has become another while it was read, and that it is the same server still.

        One that came back with less than it had does not have the replies of all whose bits were read.
        """
        (now,) = yield from read_states(self._session, [self._shard])
        run = yield from server_run(self._session)
        if (_slices(now), now.timeline, run) != (_slices(before), before.timeline, self._run):
            raise RotationConflict(f"{self._session.where}: it has turned, or came back, meanwhile")
        if now.checkpoint < before.checkpoint:
            raise RotationConflict(f"{self._session.where}: it came back meanwhile")


def _forgotten(pairs: list[tuple[bytes, Any]]) -> bytes:
    return write_forgotten((digest, float(score)) for digest, score in pairs)


def _slices(state: ShardState) -> tuple[object, ...]:
    return state.uid, state.epoch, state.phase, state.view, state.pieces is None


def _same(last: Checkpoint, state: ShardState) -> bool:
    """Whether nothing was inserted, forgotten or turned since a checkpoint began."""
    then = last.shard_state()
    return (*_slices(then), then.inserted, then.changed, then.pieces) == (
        *_slices(state), state.inserted, state.changed, state.pieces,
    )  # fmt: skip


def _unchanged(last: Checkpoint | None, state: ShardState, slice_: Slice, write: str | None) -> Content | None:
    """Return where the last checkpoint has a slice that was closed then already, and has not changed since."""
    if last is None or write == "all" or slice_.name == "today":
        return None
    then = last.shard_state()
    if then.changed != state.changed or "rotating" in {then.phase, state.phase}:
        return None
    if slice_.name == "history" and then.epoch != state.epoch:
        return None
    same = (each for each in last.bitmaps if each.name != "today" and each.epoch == state.epoch_of(slice_.name))
    return next((each.content for each in same), None)
