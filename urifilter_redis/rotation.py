"""The flows that turn slices: rotation because time has passed, and growth because today is full.

Nothing here is trusted to finish: each step is a script that is fenced by epoch, phase and token, ``next_step`` says
from ``meta`` alone what is to be done, and whoever comes next goes on where the last one stopped.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from urifilter_redis import calls
from urifilter_redis.archive import archive_of
from urifilter_redis.archive.manifest import Manifest, pack, piece_spans, unpack
from urifilter_redis.errors import (
    ArchiveCorrupt,
    FilterFull,
    FilterNotFound,
    RotationConflict,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.exchange import ask
from urifilter_redis.replies import to_mapping
from urifilter_redis.retention import TIMED, growing_slice, seconds_of
from urifilter_redis.state import ShardState, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.archive import Archive
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = [
    "Rotation",
    "Step",
    "due",
    "epoch",
    "grow",
    "names_after",
    "next_due",
    "next_rotation",
    "next_step",
    "read_states",
    "rotate",
    "rotate_due",
]

log = logging.getLogger("urifilter_redis")

#: Shards whose ``meta`` is read in one pipeline.
SHARDS_A_PIPELINE = 64

#: Pieces of a closed slice that are read in one pipeline.
PIECES_A_PIPELINE = 8

#: How often in a row another process may come first before something must be wrong.
CONFLICTS = 100


class Step(Enum):
    """What is to be done next to a shard."""

    DONE = auto()
    TURN = auto()  # allocate the next bitmap and turn
    STORE = auto()  # rolling: put the closed slice into the archive
    BUILD = auto()  # rolling: write the pieces of the next history
    FINISH = auto()  # rolling: it becomes the history


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    Attributes:
        epoch: of every shard now, or later.
        shards: how many have turned or been finished by this process.
        problems: slices of the archive that are missing or corrupt. What they held expires late, never early.
    """

    epoch: int
    shards: int = 0
    problems: tuple[str, ...] = ()


def next_step(state: ShardState, target: int) -> Step:
    """Say what brings a shard nearer to the epoch ``target``."""
    if state.phase == "rotating":
        if state.pieces is None:
            return Step.STORE
        return Step.BUILD if state.pieces < _pieces(state) else Step.FINISH
    return Step.TURN if state.epoch < target else Step.DONE


def names_after(state: ShardState, retention: str, window: int | None) -> list[str]:
    """Return the names of the live slices after the next turn, oldest first."""
    live = len(state.view.slices)
    if retention == "rolling":
        return ["history", "history_1", "today"][-(live + 1) :]
    closed = min(live, window - 1) if retention == "ring" and window else live
    return [f"history_{n}" for n in range(closed, 0, -1)] + ["today"]


def rotate(session: Session, expected_epoch: int | None = None) -> Flow[Rotation]:
    """Rotate every shard once; first finish a rotation that somebody has left.

    Args:
        session: of the filter.
        expected_epoch: rotate only from this epoch, and not if anybody else has done so; None: in any case.

    Raises:
        RotationConflict: the filter is not, or not any more, in that epoch.
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    states = yield from read_states(session)
    token = secrets.token_hex(8)
    if expected_epoch is not None:
        _check_expected(session, states, expected_epoch)
        return (yield from _bring_all(session, expected_epoch + 1, token))
    target = max(each.epoch for each in states) + 1
    while not (yield from _win(session, target, token)):
        target += 1
    return (yield from _bring_all(session, target, token, won=True))


def due(session: Session) -> Flow[int | None]:
    """Return the epoch that a rotation is due to reach; None if none is due.

    One is when a shard is behind the others, or when the last that turned has done so a period ago: then nothing
    expires early, however late some shards turned.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    states = yield from read_states(session)
    ((seconds, microseconds),) = yield from ask(session, ("TIME",))
    top = max(state.epoch for state in states)
    if any(next_step(state, top) is not Step.DONE for state in states):
        return top
    now = int(seconds) + int(microseconds) / 1e6
    return top + 1 if now >= next_due(session.config.period or "", states) else None


def epoch(session: Session) -> Flow[int]:
    """Return how often the filter was rotated (growing: how many slices its largest shard has beside the first)."""
    states = yield from read_states(session)
    return max(state.epoch for state in states)


def next_rotation(session: Session) -> Flow[float]:
    """Return when the next rotation is due, in seconds since 1970, server time.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    return next_due(session.config.period or "", (yield from read_states(session)))


def next_due(period: str, states: Sequence[ShardState]) -> float:
    """Return when the next rotation is due, in seconds since 1970, server time."""
    return max(state.opened for state in states) / 1000 + seconds_of(period)


def rotate_due(session: Session) -> Flow[Rotation | None]:
    """Rotate if it is due, once however many periods were missed; None if it is not.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    target = yield from due(session)
    if target is None:
        return None
    return (yield from _bring_all(session, target, secrets.token_hex(8)))


def grow(session: Session, shard: int, items: int | None = None) -> Flow[None]:
    """Make the next slice of a growing shard, unless today has room for ``items``; None: in any case.

    Raises:
        FilterFull: no further slice can be made.
    """
    (state,) = yield from read_states(session, [shard])
    if items is None or (state.limit is not None and state.limit - state.inserted < items):
        sizing = growing_slice(session.config, state.epoch + 1)
        if sizing is None:
            text = f"{len(state.view.slices)} slices are all that there can be: make a filter of a larger capacity"
            raise FilterFull(f"{session.where}: {text}")
        new = Slice("today", sizing.units, sizing.slice_bytes)
        try:
            yield from _turn(session, shard, state, secrets.token_hex(8), new, sizing.shard_capacity)
        except RotationConflict:
            log.debug("%s: somebody else made the next slice", session.where)
    yield from read_states(session, [shard])


def read_states(session: Session, shards: Sequence[int] | None = None) -> Flow[list[ShardState]]:
    """Read ``meta`` of shards, of all by default; the session learns their live slices.

    Raises:
        FilterNotFound: the filter, or one of these shards, is gone.
    """
    numbers = range(session.config.shards) if shards is None else shards
    states = []
    for start in range(0, len(numbers), SHARDS_A_PIPELINE):
        some = numbers[start : start + SHARDS_A_PIPELINE]
        replies = yield from ask(session, *(session.read_meta(shard) for shard in some))
        for shard, reply in zip(some, replies, strict=True):
            meta = to_mapping(reply)
            if meta.get("uid") != session.config.uid or meta.get("phase") == "dropping":
                raise FilterNotFound(f"{session.where}: it was dropped, or lost {session.keys.shard(shard).meta}")
            session.learn_view(shard, reply)
            states.append(ShardState.from_meta(meta, session.where))
    return states


def _check_timed(session: Session) -> None:
    retention = session.config.retention
    if retention not in TIMED:
        why = "it grows when it is full" if retention == "growing" else "nothing in it expires"
        raise UriFilterError(f"{session.where}: retention {retention} does not rotate: {why}")


def _check_expected(session: Session, states: Sequence[ShardState], expected: int) -> None:
    epochs = {state.epoch for state in states}
    unfinished = any(next_step(state, expected + 1) is not Step.DONE for state in states)
    if not epochs <= {expected, expected + 1} or not unfinished:
        text = f"it is in epoch {max(epochs)} and not in {expected}"
        raise RotationConflict(f"{session.where}: {text}: somebody else has rotated, or nobody yet")


def _bring_all(session: Session, target: int, token: str, *, won: bool = False) -> Flow[Rotation]:
    """Bring every shard to the epoch ``target``, one after the other; ``won``: shard 0 has turned already."""
    shards, problems = 0, []
    for shard in range(session.config.shards):
        did, found = yield from _bring(session, shard, target, token)
        shards += did or (won and shard == 0)
        problems += found
        session.report(shard + 1, session.config.shards)
    for problem in problems:
        log.warning("%s", problem)
    return Rotation(target, shards, tuple(problems))


def _win(session: Session, target: int, token: str) -> Flow[bool]:
    """Turn shard 0 to ``target``; False if somebody else has: a rotation by hand is one more than those of others."""
    tried = False
    while True:
        (state,) = yield from read_states(session, [0])
        if state.token == token:
            return True
        if state.epoch >= target:
            return tried and state.epoch > target  # if it was ours, a third has turned since: never twice
        try:
            if state.phase == "rotating" or state.epoch < target - 1:
                yield from _bring(session, 0, target - 1, token="")
            else:
                tried = True
                yield from _turn(session, 0, state, token, _same(session), 0)
        except RotationConflict:
            continue


def _bring(session: Session, shard: int, target: int, token: str) -> Flow[tuple[bool, list[str]]]:
    """Do to a shard what ``next_step`` says until it is in the epoch ``target``; return whether, and problems."""
    did, conflicts = False, 0
    problems: list[str] = []
    while True:
        (state,) = yield from read_states(session, [shard])
        step = next_step(state, target)
        if step is Step.DONE:
            return did, problems
        try:
            if step is Step.TURN:
                yield from _turn(session, shard, state, token, _same(session), 0)
            elif step is Step.STORE:
                yield from _store(session, shard, state)
            elif step is Step.BUILD:
                problems += yield from _build(session, shard, state)
            else:
                yield from _finish(session, shard, state)
            did, conflicts = True, 0
        except RotationConflict:
            conflicts += 1
            if conflicts > CONFLICTS:
                raise


def _same(session: Session) -> Slice:
    """Return the next today of a ring or rolling filter: all its slices are of one size."""
    return Slice("today", session.config.units, session.config.bytes)


def _turn(session: Session, shard: int, state: ShardState, token: str, new: Slice, limit: int) -> Flow[None]:  # noqa: PLR0913, PLR0917 - the header of the script has more
    keys, config = session.keys.shard(shard), session.config
    names = names_after(state, config.retention, config.slices)
    # One after the other: the allocation takes the server some ms, and others may be served between.
    for step in ("allocate", "turn"):
        yield from ask(session, calls.turn(step, keys, state, token, new, limit, names))


def _store(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Put the slice that was closed into the archive, read it back, and only then say that it is there."""
    archive, closed = archive_of(session), state.epoch - 1
    sums = yield from _write_slice(session, archive, shard, state)
    manifest = Manifest.of_closed(session.config, session.keys.name, shard, state, sums)
    yield from archive.write_manifest(session, shard, state, manifest)
    found, _ = yield from _sound(session, archive, shard, [closed])
    if not found:
        raise ArchiveCorrupt(f"{session.where}: slice {closed} of shard {shard} was not stored as it was written")
    for number, (_, length) in enumerate(piece_spans(session.config.bytes)):
        (packed,) = yield from archive.pieces(session, shard, [closed], number)
        unpack(packed, length, sums[number])
    # With no other closed slice in the window, the next history is this one.
    nothing_to_build = _pieces(state) if not _others(session, state) else 0
    call = calls.build("archived", session.keys.shard(shard), state, number=nothing_to_build)
    yield from ask(session, call)


def _write_slice(session: Session, archive: Archive, shard: int, state: ShardState) -> Flow[list[str]]:
    """Write the pieces of history_1; return their SHA-256."""
    sums: list[str] = []
    key, spans = session.keys.shard(shard).slice("history_1"), list(piece_spans(session.config.bytes))
    for start in range(0, len(spans), PIECES_A_PIPELINE):
        some = spans[start : start + PIECES_A_PIPELINE]
        pieces = yield from ask(session, *(("GETRANGE", key, at, at + length - 1) for at, length in some))
        for (_, length), piece in zip(some, pieces, strict=True):
            if len(piece) != length:
                yield from _check_still(session, shard, state, key)
            yield from archive.write_piece(session, shard, state, len(sums), pack(piece))
            sums.append(hashlib.sha256(piece).hexdigest())
    return sums


def _check_still(session: Session, shard: int, state: ShardState, key: str) -> Flow[None]:
    """Tell a bitmap that somebody else has moved from one that is lost."""
    (now,) = yield from read_states(session, [shard])
    if now == state:
        raise SliceLost(f"{session.where}: {key} is missing or has another length")
    raise RotationConflict(f"{session.where}: somebody else has moved {key}")


def _build(session: Session, shard: int, state: ShardState) -> Flow[list[str]]:
    """Write the rest of the next history; return what was wrong with the archive."""
    archive, keys = archive_of(session), session.keys.shard(shard)
    manifests, problems = yield from _sound(session, archive, shard, _others(session, state))
    late = bool(problems)
    for number, (offset, length) in list(enumerate(piece_spans(session.config.bytes)))[state.pieces or 0 :]:
        span = (offset, offset + length - 1)
        (piece,) = yield from ask(session, ("GETRANGE", keys.slice("history_1"), *span))
        merged = int.from_bytes(piece, "little")
        packed = yield from archive.pieces(session, shard, list(manifests), number)
        try:
            for manifest, each in zip(manifests.values(), packed, strict=True):
                merged |= int.from_bytes(unpack(each, length, manifest.pieces[number]), "little")
        except ArchiveCorrupt as error:
            problems.append(f"{session.where}: shard {shard}: {error}")
            late = True
        if late:  # the old history has all that the archive has lost, and what has expired too: late, never early
            (old,) = yield from ask(session, ("GETRANGE", keys.slice("history"), *span))
            merged |= int.from_bytes(old, "little")
        data = merged.to_bytes(length, "little")
        yield from ask(session, calls.build("piece", keys, state, number=number, offset=offset, data=data, late=late))
    return problems


def _finish(session: Session, shard: int, state: ShardState) -> Flow[None]:
    keys, window = session.keys.shard(shard), session.config.slices or 0
    expired = state.epoch - window
    if expired >= 0:
        yield from archive_of(session).delete(session, shard, state, expired)
    oldest = max(0, expired + 1)
    yield from ask(session, calls.build("finish", keys, state, number=_pieces(state), oldest=oldest))


def _sound(
    session: Session, archive: Archive, shard: int, epochs: Sequence[int]
) -> Flow[tuple[dict[int, Manifest], list[str]]]:
    """Read the manifests of slices; return those that are right, and what is wrong with the others."""
    manifests, problems = {}, []
    found = yield from archive.manifests(session, shard, epochs)
    for epoch, manifest in zip(epochs, found, strict=True):
        if manifest is None:
            problems.append(f"{session.where}: shard {shard}: slice {epoch} is missing from the archive")
            continue
        try:
            manifest.check(session.config, shard, epoch)
            manifests[epoch] = manifest
        except ArchiveCorrupt as error:
            problems.append(f"{session.where}: {error}")
    return manifests, problems


def _others(session: Session, state: ShardState) -> list[int]:
    """Return the epochs of the closed slices that the next history holds beside the one just closed."""
    window = session.config.slices or 0
    return list(range(max(0, state.epoch - window + 1), state.epoch - 1))


def _pieces(state: ShardState) -> int:
    return len(list(piece_spans(state.view.slices[-1].size)))
