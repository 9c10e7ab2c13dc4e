"""The history of a rolling filter: the slice that was closed goes to the archive, and the next history is built.

history_1, the slice just closed, is made into the next history where it stands: a piece at a time it gets the bits of
the older slices of the window, from the archive. The old history has those too, so nothing is answered differently
meanwhile, and no third bitmap beside today is needed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from urifilter_redis import calls
from urifilter_redis.archive import archive_of
from urifilter_redis.archive.manifest import Manifest, pack, piece_spans, unpack
from urifilter_redis.errors import ArchiveCorrupt, RotationConflict, SliceLost, UriFilterError
from urifilter_redis.exchange import ask
from urifilter_redis.turning import piece_count, read_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.archive import Archive
    from urifilter_redis.session import Session
    from urifilter_redis.state import ShardState
    from urifilter_redis.steps import Flow

__all__ = ["build", "finish", "store"]

#: Pieces of a closed slice that are read or written in one pipeline.
PIECES_A_PIPELINE = 8


def store(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Put the slice that was closed into the archive, read it back, and only then say that it is there."""
    archive = archive_of(session)
    sums = yield from _write_slice(session, archive, shard, state)
    manifest = Manifest.of_closed(session.config, session.keys.name, shard, state, sums)
    yield from archive.write_manifest(session, shard, state, manifest)
    try:
        yield from _verify(session, archive, shard, state.epoch - 1)
    except ArchiveCorrupt as error:
        yield from _raise_unless_moved(session, shard, state, error)
    # With no other closed slice in the window, the next history is this one.
    nothing_to_build = piece_count(state) if not _others(session, state) else 0
    call = calls.build("archived", session.keys.shard(shard), state, number=nothing_to_build)
    yield from ask(session, call)


def _write_slice(session: Session, archive: Archive, shard: int, state: ShardState) -> Flow[list[str]]:
    """Write the pieces of history_1; return their SHA-256."""
    sums: list[str] = []
    key, spans = session.keys.shard(shard).slice("history_1"), list(piece_spans(session.config.bytes))
    for start in range(0, len(spans), PIECES_A_PIPELINE):
        some = spans[start : start + PIECES_A_PIPELINE]
        pieces = yield from ask(session, *(("GETRANGE", key, at, at + length - 1) for at, length in some))
        if [len(piece) for piece in pieces] != [length for _, length in some]:
            lost = SliceLost(f"{session.where}: {key} is missing or has another length")
            yield from _raise_unless_moved(session, shard, state, lost)
        packed = {start + n: pack(piece) for n, piece in enumerate(pieces)}
        yield from archive.write_pieces(session, shard, state, packed)
        sums += [hashlib.sha256(piece).hexdigest() for piece in pieces]
    return sums


def _verify(session: Session, archive: Archive, shard: int, epoch: int) -> Flow[None]:
    """Read an archived slice and compare it with its manifest."""
    manifests, problems = yield from _sound(session, archive, shard, [epoch])
    if problems:
        raise ArchiveCorrupt(problems[0])
    lengths = [length for _, length in piece_spans(session.config.bytes)]
    for start in range(0, len(lengths), PIECES_A_PIPELINE):
        wanted = [(epoch, number) for number in range(start, min(start + PIECES_A_PIPELINE, len(lengths)))]
        packed = yield from archive.read_pieces(session, shard, wanted)
        for (_, number), piece in zip(wanted, packed, strict=True):
            unpack(piece, lengths[number], manifests[epoch].pieces[number])


def _raise_unless_moved(session: Session, shard: int, state: ShardState, error: UriFilterError) -> Flow[None]:
    """Tell what is lost from what somebody else has moved on meanwhile."""
    (now,) = yield from read_states(session, [shard])
    if (now.epoch, now.phase, now.pieces) == (state.epoch, state.phase, state.pieces):
        raise error
    raise RotationConflict(f"{session.where}: somebody else has gone on") from error


def build(session: Session, shard: int, state: ShardState) -> Flow[list[str]]:
    """Write the rest of the next history; return what was wrong with the archive."""
    archive, keys = archive_of(session), session.keys.shard(shard)
    manifests, problems = yield from _sound(session, archive, shard, _others(session, state))
    spans = list(piece_spans(session.config.bytes))
    for start in range(state.pieces or 0, len(spans), PIECES_A_PIPELINE):
        numbers = range(start, min(start + PIECES_A_PIPELINE, len(spans)))
        some = [spans[number] for number in numbers]
        merged = yield from _read(session, keys.slice("history_1"), some)
        packed = yield from archive.read_pieces(session, shard, [(epoch, n) for n in numbers for epoch in manifests])
        each = iter(packed)
        for n, (_, length) in enumerate(some):
            for epoch, manifest in manifests.items():
                try:
                    merged[n] |= _number(unpack(next(each), length, manifest.pieces[numbers[n]]))
                except ArchiveCorrupt as error:
                    problems.append(f"{session.where}: shard {shard}, slice {epoch}: {error}")
        if problems:  # the old history has all that the archive has lost, and what has expired too: late, never early
            old = yield from _read(session, keys.slice("history"), some)
            merged = [new | kept for new, kept in zip(merged, old, strict=True)]
        data = [piece.to_bytes(length, "little") for piece, (_, length) in zip(merged, some, strict=True)]
        late = bool(problems)
        made = (
            calls.build("piece", keys, state, number=number, offset=spans[number][0], data=piece, late=late)
            for number, piece in zip(numbers, data, strict=True)
        )
        yield from ask(session, *made)
    return problems


def _read(session: Session, key: str, spans: Sequence[tuple[int, int]]) -> Flow[list[int]]:
    """Read pieces of a bitmap as numbers, whose OR is theirs."""
    pieces = yield from ask(session, *(("GETRANGE", key, at, at + length - 1) for at, length in spans))
    return [_number(piece) for piece in pieces]


def _number(piece: bytes) -> int:
    return int.from_bytes(piece, "little")


def finish(session: Session, shard: int, state: ShardState) -> Flow[None]:
    """Make what was built the history, after the slice that has expired is gone from the archive."""
    keys, window = session.keys.shard(shard), session.config.slices or 0
    expired = state.epoch - window
    if expired >= 0:
        yield from archive_of(session).delete(session, shard, state, expired)
    oldest = max(0, expired + 1)
    yield from ask(session, calls.build("finish", keys, state, number=piece_count(state), oldest=oldest))


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
