"""Put an exported filter into an archive, as it is or with another number of shards.

With another number it can grow out of a server, or shrink into one. The bitmaps stay as they are: a bitmap has the
items of one of T equal ranges of digests, whatever shard it is in. What is kept of single items (forgotten digests,
leases, dead letters) goes to the shards of their digests. The records of calls are left out, because a call's items are
in other shards now. So no call may be without its answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.bloom.retention import growing_slice, size_first
from urifilter_redis.bloom.sizing import SHARDS_LIMIT
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing, ConfigMismatch
from urifilter_redis.protocol.config import FORMAT, Config
from urifilter_redis.protocol.meta import Closed, ShardState
from urifilter_redis.storage.blobs import PIECES_AT_ONCE, Writer
from urifilter_redis.storage.checkpoints import Place, last_good, newest, places, publish_checkpoint
from urifilter_redis.storage.documents import Checkpoint, Content, Manifest, Piece, piece_spans
from urifilter_redis.storage.records import KINDS
from urifilter_redis.storage.registry import note_complete, register

log = logging.getLogger("urifilter_redis")


def import_(
    backend: Backend, path: Path, report: Callable[[int, int], object], shards: int | None = None
) -> Flow[tuple[str, Config]]:
    """Put an exported filter into an archive, so that it can be restored from there.

    A shard keeps the archive's checkpoint if that is as new as the file's, or newer, and is whole. Until the end of the
    import the filter cannot be restored, because some shards would be empty; an interrupted import is to be repeated.

    Args:
        backend: the backend of the archive.
        path: the file that ``export`` wrote.
        shards: the number of shards that the filter gets, and with it a uid of its own (``Resharded``); None: as it is.
        report: called after each shard with the number of shards done and the number of all.

    Returns:
        The filter's name and configuration.

    Example:
        >>> name, config = drive(import_(backend, Path("news.urifilter"), lambda done, total: None))

    Raises:
        ConfigMismatch: the archive has another filter of this name.
        ArchiveCorrupt: the file is damaged; the archive is unchanged.
        ArchiveError: the file cannot be read, the archive failed, or another process wrote a checkpoint meanwhile; or
            the filter's shards are not in one epoch, and are to be others.
        ValueError: the filter cannot have so many shards with its bitmaps.
    """
    with ExportedFilter(path) as file:
        file.verify()
        exported = file if shards in {None, file.config.shards} else Resharded(file, shards)
        name, config = exported.name, exported.config
        found, _ = yield from register(backend, name, config, complete=True)
        if found.uid != config.uid:
            raise ConfigMismatch(f"archive {backend.shown}: there is another filter {name!r}, of uid {found.uid}")
        yield from note_complete(backend, name)  # it may be registered, and without a checkpoint
        for each in exported.checkpoints:
            yield from _import_shard(backend, exported, each)
            report(each.shard + 1, config.shards)
    return name, config


def _import_shard(backend: Backend, exported: ExportedFilter | Resharded, checkpoint: Checkpoint) -> Flow[None]:
    config = exported.config
    found = yield from _sound_places(backend, exported.name, config, checkpoint)
    kept = newest(found)
    if kept is not None and kept.number >= checkpoint.number:
        if kept.number > checkpoint.number:
            text = "archive %s: shard %d: its checkpoint %d stays, because it is newer than the file's"
            log.warning(text, backend.shown, checkpoint.shard, kept.number)
        return
    writers: list[Writer] = []
    try:
        made = yield from _copy(backend, exported, checkpoint, writers)
        made.check(config, checkpoint.shard)
        for writer in writers:
            writer.check_age()
    except GeneratorExit:  # the driver has stopped, so no step would run
        raise
    except BaseException:
        yield from _abandon(writers)
        raise
    try:  # after another error the document may name these blobs, so they stay
        done = yield from publish_checkpoint(backend, found, made)
    except ArchiveMissing:
        yield from _abandon(writers)
        raise
    if not done:
        yield from _abandon(writers)
        raise ArchiveError(f"archive {backend.shown}: another process has written a checkpoint meanwhile: try again")


def _sound_places(backend: Backend, name: str, config: Config, checkpoint: Checkpoint) -> Flow[list[Place]]:
    """Return both places of a shard; one whose checkpoint is as new as the file's, and damaged, counts as empty."""
    found = yield from places(backend, name, config, checkpoint.shard)
    for number, place in enumerate(found):
        if place.checkpoint and place.checkpoint.number >= checkpoint.number:
            try:
                yield from last_good(backend, name, [place])
            except ArchiveCorrupt:
                found[number] = replace(place, checkpoint=None)
    return found


def _copy(
    backend: Backend, exported: ExportedFilter | Resharded, checkpoint: Checkpoint, writers: list[Writer]
) -> Flow[Checkpoint]:
    """Upload all contents of a checkpoint; return the checkpoint with their new blobs.

    Each writer is appended to ``writers``, so that the caller can abandon it.
    """
    moved = []
    for content in checkpoint.contents:
        writers.append(Writer(backend, exported.name, exported.config.uid))
        for first in range(0, len(content.pieces), PIECES_AT_ONCE):
            last = min(first + PIECES_AT_ONCE, len(content.pieces))
            yield from writers[-1].write([exported.piece(content, number) for number in range(first, last)])
        moved.append((yield from writers[-1].finish()))
    bitmaps = [dataclasses.replace(b, content=c) for b, c in zip(checkpoint.bitmaps, moved, strict=False)]
    records = dict(zip(checkpoint.records, moved[len(bitmaps) :], strict=True))
    return dataclasses.replace(checkpoint, bitmaps=bitmaps, records=records, config=exported.config)


def _abandon(writers: Iterable[Writer]) -> Flow[None]:
    with contextlib.suppress(ArchiveError):  # the caller raises the first error, which says more
        for writer in writers:
            yield from writer.abandon()


class Resharded:
    """An exported filter in another number of shards. It is another filter: it has a uid of its own.

    What is kept of single items is held in memory, packed: 24 bytes a forgotten digest, and the whole texts of leases
    and dead letters.

    Attributes:
        name: the filter's name.
        config: its configuration with the new number of shards. The same file and number give the same uid.
        checkpoints: one for each shard. Their bitmaps are those of the file; ``piece`` reads all contents.

    Raises:
        ValueError: the filter cannot have so many shards with these bitmaps; the message has the possible numbers.
        ArchiveError: the shards of the file are not in one epoch.
    """

    def __init__(self, exported: ExportedFilter, shards: int) -> None:
        self._exported, self.name = exported, exported.name
        self.config = _with_shards(exported.config, shards)
        self._states = [each.shard_state() for each in exported.checkpoints]
        self._check_states()
        self._made: dict[str, bytes] = {}
        inserted, new = self._counts("inserted"), self._counts("new")
        records = {kind: self._by_shard(kind) for kind in KINDS}
        self.checkpoints = [
            self._checkpoint(
                shard,
                self._state(shard, inserted[shard], new[shard]),
                {
                    kind: self._content(f"{kind} {shard}", KINDS[kind].write(found[shard]))
                    for kind, found in records.items()
                },
            )
            for shard in range(shards)
        ]

    def piece(self, content: Content, number: int) -> bytes:
        """Return one piece of a content, unpacked; raises as ``ExportedFilter.piece``."""
        if content.blob not in self._made:
            return self._exported.piece(content, number)
        at, length = list(piece_spans(len(self._made[content.blob])))[number]
        return self._made[content.blob][at : at + length]

    def _check_states(self) -> None:
        first = self._states[0]
        for shard, state in enumerate(self._states):
            epochs = [each.epoch for each in state.closed]
            alike = (state.epoch, state.view) == (first.epoch, first.view) and epochs == [e.epoch for e in first.closed]
            if state.phase != "idle" or not alike:
                text = f"shard {shard} of {self.name!r} is in epoch {state.epoch}, {state.phase}, and shard 0 in"
                advice = "wait until all have turned, checkpoint, and export again"
                raise ArchiveError(f"{text} epoch {first.epoch}, {first.phase}: {advice}")

    def _counts(self, field: str) -> list[list[int]]:
        """Return for each new shard its number of items in each closed slice, oldest first, and in today.

        The number of a shard is divided by the bits that are set: its bitmaps are of equal size. The closed slices of a
        rolling filter are merged in its history.
        """
        made = [[0.0] * (len(self._states[0].closed) + 1) for _ in range(self.config.shards)]
        for old, (state, checkpoint) in enumerate(zip(self._states, self._exported.checkpoints, strict=True)):
            bits, rows = [self._bits_of(each.content) for each in checkpoint.bitmaps], checkpoint.rows
            for at, each in enumerate([*state.closed, state]):
                age = -1 if each is state else 0 if self.config.retention == "rolling" else at
                theirs = bits[rows[age].start : rows[age].stop]
                row = len(theirs) * len(self._states) // self.config.shards  # bitmaps of a new shard
                for segment, number in enumerate(theirs, old * len(theirs)):
                    made[segment // row][at] += getattr(each, field) * number / max(1, sum(theirs))
        rounded = [_rounded(column) for column in zip(*made, strict=True)]
        return [list(each) for each in zip(*rounded, strict=True)]

    def _bits_of(self, content: Content) -> int:
        pieces = (self._exported.piece(content, number) for number in range(len(content.pieces)))
        return sum(int.from_bytes(each, "little").bit_count() for each in pieces)

    def _by_shard(self, kind: str) -> list[list[Any]]:
        """Return records by the shards of their digests, which come first in a record. Those of calls are left out."""
        found: list[list[Any]] = [[] for _ in range(self.config.shards)]
        for checkpoint in self._exported.checkpoints if kind != "replies" else ():
            content, rest = checkpoint.records[kind], b""
            for number in range(len(content.pieces)):
                records, rest = KINDS[kind].split(rest + self._exported.piece(content, number))
                for record in records:
                    found[shard_of(record[0], self.config.shards)].append(record)
        return found

    def _content(self, blob: str, data: bytes) -> Content:
        self._made[blob] = data
        return Content(blob, [Piece(length, 0, "") for _, length in piece_spans(len(data))])

    def _state(self, shard: int, inserted: Sequence[int], new: Sequence[int]) -> dict[str, str]:
        """Return the fields of a new shard's state; of several times the latest: items expire late, never early."""
        states, config, first = self._states, self.config, self._states[0]
        closed = []
        for at, theirs in enumerate(zip(*(state.closed for state in states), strict=True)):
            opened, ended = max(each.opened for each in theirs), max(each.closed for each in theirs)
            closed.append(Closed(theirs[0].epoch, opened, ended, inserted[at], new[at]))
        last_seen = config.expire_after == "last-seen"
        row = [replace(each, segments=each.segments * len(states) // config.shards) for each in first.view.slices]
        sizing = growing_slice(config, first.epoch) if config.retention == "growing" else None
        first_of = [old * config.shards // len(states) for old in range(len(states))]
        values: dict[str, object] = {
            "created": min(int(each.state["created"]) for each in self._exported.checkpoints),
            "epoch": first.epoch,
            "phase": "idle",
            "opened": max(each.opened for each in states),
            "written": max(each.written for each in states) or None,
            "inserted": inserted[-1],
            "new": new[-1] if last_seen else None,
            "limit": sizing.shard_capacity if sizing else None,
            "closed": " ".join(each.entry(with_new=last_seen) for each in closed),
            "oldest": min(each.oldest for each in states),
            "slices": " ".join(map(str, row)),
            "changed": max(each.changed for each in states),
            "claims": max(each.view.claims for each in states) or None,
            "claimed": max(each.claimed for each in states) or None,
            "rejected": sum(s.rejected for s, at in zip(states, first_of, strict=True) if at == shard) or None,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def _checkpoint(self, shard: int, fields: dict[str, str], records: dict[str, Content]) -> Checkpoint:
        config, theirs = self.config, self._exported.checkpoints
        state = ShardState.from_meta(fields | {"uid": config.uid}, self.name)
        number, rows = max(each.number for each in theirs), [each.rows for each in theirs]
        bitmaps = []
        for age, slice_ in enumerate(state.view.slices):
            for segment in range(slice_.segments):
                old, at = divmod(shard * slice_.segments + segment, len(rows[0][age]))
                content = theirs[old].bitmaps[rows[old][age][at]].content
                known = (config, self.name, shard, state, slice_)
                bitmaps.append(Manifest.of(*known, kind="checkpoint", segment=segment, number=number, content=content))
        return Checkpoint(
            format=FORMAT,
            filter=self.name,
            uid=config.uid,
            shard=shard,
            shards=config.shards,
            number=number,
            begun=min(each.begun for each in theirs),
            state=fields,
            bitmaps=bitmaps,
            records=records,
            config=config,
        )


def _with_shards(config: Config, shards: int) -> Config:
    uid = hashlib.sha256(f"{config.uid} {shards}".encode()).hexdigest()[:16]
    made = replace(config, uid=uid, shards=shards)
    if shards not in (possible := [each for each in range(1, SHARDS_LIMIT + 1) if _keeps_bitmaps(config, each)]):
        text = f"{config.segments:,} bitmaps a slice can be in {', '.join(map(str, possible))} shards, and not {shards}"
        raise ValueError(f"{text} (retention {config.retention}, layout {config.layout})")
    return made


def _keeps_bitmaps(config: Config, shards: int) -> bool:
    """Whether a filter of so many shards has the same bitmaps."""
    if config.segments % shards:
        return False
    try:
        sizing = size_first(replace(config, shards=shards))
    except ValueError:
        return False
    return (sizing.segments, sizing.units, sizing.k) == (config.segments, config.units, config.k)


def _rounded(numbers: Sequence[float]) -> list[int]:
    """Round numbers so that their sum stays the same."""
    ends = [round(each) for each in accumulate(numbers, initial=0.0)]
    return [end - start for start, end in pairwise(ends)]
