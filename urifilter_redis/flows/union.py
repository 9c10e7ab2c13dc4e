"""The flow of a union: the items of other filters are merged into one filter.

What is in somebody's hands in a source stays there: it is not seen yet, and is offered here as new.

A union only adds bits, so it may run while items are inserted. It is begun anew if it died half-way, or if a shard of
either filter turned meanwhile. If both filters are rings, and the source writes to the newest slice, each of its
slices goes into a slice that expires no earlier. In every other filter that expires, items count as inserted now.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.archive.format.manifest import piece_spans
from urifilter_redis.bloom.sizing import items_from_fill
from urifilter_redis.engine.queries import ask, ask_shard, scanned
from urifilter_redis.engine.session import Session
from urifilter_redis.errors import ConfigMismatch, Restoring, RotationConflict, UriFilterError
from urifilter_redis.flows.bitmaps import fill_of, pieces_of
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.flows.rotation import finish_rotation
from urifilter_redis.flows.turn import grow, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import told
from urifilter_redis.protocol.keys import FilterKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.bloom.sizing import Slice
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Call
    from urifilter_redis.protocol.config import Config
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["union"]

#: The settings that must be equal in both filters.
_SAME = ("layout", "shards", "normalize", "hash", "seed")

#: The settings that decide the geometry of slices; an error names those that differ.
_GEOMETRY = ("retention", "capacity", "error_rate", "slices", "write", "expire_after", "period_capacity")


def union(session: Session, sources: Sequence[str]) -> Flow[int]:
    """Merge the filters ``sources`` into the session's filter; return the estimated number of items added.

    Raises:
        ValueError: the filter itself is among the sources, or a source's name is impossible.
        FilterNotFound: a source does not exist.
        ConfigMismatch: a source has another geometry, normalisation, hash or seed.
        SliceLost: a bitmap is missing.
        Restoring: a source is being restored.
        UriFilterError: the layout is counting.
    """
    if session.keys.name in sources:
        raise ValueError(f"{session.keys.name} cannot be merged into itself")
    if session.config.layout == "counting":
        raise UriFilterError(f"{session.where}: filters of layout counting cannot be merged")
    keys = [FilterKeys(session.keys.prefix, name) for name in sources]
    opened = [Session(each, session.server, session.timeouts, routes=session.routes) for each in keys]
    for source in opened:  # all are checked before any is merged
        yield from open_(source)
        _check(session, source)
    added, done = 0.0, 0
    for source in opened:
        for shard in range(session.config.shards):
            added += yield from _merge_shard(session, source, shard)
            done += 1
            session.report(done, len(opened) * session.config.shards)
    return round(added)


def _check(session: Session, source: Session) -> None:
    ours, theirs = session.config, source.config
    names = [name for name in _SAME if getattr(ours, name) != getattr(theirs, name)]
    if (ours.k, ours.units) != (theirs.k, theirs.units) or _slices_differ(ours, theirs):
        names += [name for name in _GEOMETRY if getattr(ours, name) != getattr(theirs, name)]
    if names:
        differences = {name: (getattr(ours, name), getattr(theirs, name)) for name in names}
        text = f"cannot be merged into {session.keys.name!r}: {told(differences)} (create --like makes one that can)"
        raise ConfigMismatch(f"{source.where}: {text}", differences)


def _slices_differ(ours: Config, theirs: Config) -> bool:
    """Whether the filters grow differently: only one of them grows, or their slices have other sizes."""
    growth = [(c.retention, c.capacity, c.error_rate) if c.retention == "growing" else () for c in (ours, theirs)]
    return growth[0] != growth[1]


def _merge_shard(session: Session, source: Session, shard: int) -> Flow[float]:
    """Merge a shard; begin anew if either filter turns meanwhile, which does no harm because OR may be repeated."""
    added = 0.0
    while True:
        (theirs,) = yield from read_states(source, [shard])
        if theirs.phase == "restoring":
            raise Restoring(f"{source.where}: it is being restored from its archive: try again later")
        if session.config.retention == "growing":
            yield from _grow_to(session, shard, len(theirs.view.slices))
        yield from finish_rotation(session, shard)
        (ours,) = yield from read_states(session, [shard])
        try:
            added += yield from _merge_states(session, source, _Pair(shard, ours, theirs))
        except RotationConflict:
            continue
        (again,) = yield from read_states(source, [shard])
        if (again.epoch, again.phase, again.view) == (theirs.epoch, theirs.phase, theirs.view):
            return added


@dataclass(frozen=True, slots=True)
class _Pair:
    """A shard of both filters, as they were when a merge of it began."""

    shard: int
    ours: ShardState
    theirs: ShardState


def _merge_states(session: Session, source: Session, pair: _Pair) -> Flow[float]:
    added = 0.0
    yield from _keep_forgotten(session, source, pair)
    for age, slice_ in enumerate(reversed(pair.theirs.view.slices)):
        places = _places(session.config, source.config, pair, age)
        for number in places:
            bits = yield from _merge_slice(session, source, pair, slice_, number)
            if number == places[-1]:  # with write=all every slice gets the bits, and only today counts the items
                added += yield from _count(session, pair, number, bits)
    yield from _insert_forgotten(session, source, pair.shard)
    return added


def _places(ours: Config, theirs: Config, pair: _Pair, age: int) -> list[int]:
    """Return the numbers of our live slices (1 is the oldest) that take the source's slice ``age`` (0 is today)."""
    live = len(pair.ours.view.slices)
    if ours.retention == "growing":  # slices with the same number have the same size
        return [len(pair.theirs.view.slices) - age]
    if ours.write == "all":  # as if the items were inserted now
        return list(range(1, live + 1))
    if ours.retention == theirs.retention == "ring" and theirs.write == "newest":
        if age == 0:
            return [live]
        closed = pair.theirs.closed[-age].closed
        # our oldest slice that was closed no earlier; it stays for a whole window from then on
        return [next((n for n, each in enumerate(pair.ours.closed, 1) if each.closed >= closed), live)]
    return [live]


def _grow_to(session: Session, shard: int, slices: int) -> Flow[None]:
    while True:
        (state,) = yield from read_states(session, [shard])
        if len(state.view.slices) >= slices:
            return
        yield from grow(session, shard)


def _merge_slice(session: Session, source: Session, pair: _Pair, theirs: Slice, number: int) -> Flow[int]:
    """Merge a bitmap of the source into our live slice ``number``; return the number of added bits."""
    key, bits = source.keys.shard(pair.shard).slice(theirs.name), 0
    moved = functools.partial(_check_unmoved, source, pair)
    for offset, length in piece_spans(theirs.size):
        (piece,) = yield from pieces_of(source, key, [(offset, length)], moved)
        if piece.count(0) < length:
            bits += yield from _call(session, pair, "piece", number, offset, piece)
    return bits


def _count(session: Session, pair: _Pair, number: int, bits: int) -> Flow[float]:
    """Raise a slice's item count to the estimate from its fill; return the estimated number of items of ``bits``."""
    config, ours = session.config, pair.ours.view.slices[number - 1]
    after = yield from fill_of(session, session.keys.shard(pair.shard).slice(ours.name), ours)
    if after >= 1:
        return 0.0
    before = max(0.0, after - bits / (8 * ours.size))
    with_, without = (items_from_fill(config.layout, config.k, ours.units, fill) for fill in (after, before))
    yield from _call(session, pair, "count", number, round(with_))
    return with_ - without


def _check_unmoved(source: Session, pair: _Pair) -> Flow[None]:
    (now,) = yield from read_states(source, [pair.shard])
    if (now.epoch, now.phase) != (pair.theirs.epoch, pair.theirs.phase):
        raise RotationConflict(f"{source.where}: it turned meanwhile")


def _keep_forgotten(session: Session, source: Session, pair: _Pair) -> Flow[None]:
    """Forget the items that the source has forgotten, and that we have not seen or have forgotten too."""
    for digests in (yield from _forgotten(source, pair.shard)):
        yield from _call(session, pair, "forget", data=digests)


def _insert_forgotten(session: Session, source: Session, shard: int) -> Flow[None]:
    """Insert the items that we have forgotten and the source has seen."""
    for digests in (yield from _forgotten(session, shard)):
        (ages,) = yield from ask_shard(source, shard, functools.partial(_items, "contains", source, shard, digests))
        seen = b"".join(digests[16 * i : 16 * i + 16] for i, age in enumerate(ages) if age > 0)
        if seen and session.config.retention == "growing":
            yield from grow(session, shard, len(seen) // 16)
        if seen:
            yield from ask_shard(session, shard, functools.partial(_items, "insert", session, shard, seen))


def _forgotten(session: Session, shard: int) -> Flow[list[bytes]]:
    """Return the forgotten digests of a shard, packed in parts that one call may have."""
    size = calls.items_a_call(session.config, len(session.view(shard).slices))
    entries = yield from scanned(session, "ZSCAN", session.keys.shard(shard).forgotten)
    digests = list({digest for digest, _ in entries})
    return [b"".join(digests[start : start + size]) for start in range(0, len(digests), size)]


def _items(command: str, session: Session, shard: int, digests: bytes) -> Call:
    keys, view = session.keys.shard(shard), session.view(shard)
    return calls.items(command, session.config, keys, view, calls.NO_CALL_ID, digests)


def _call(  # noqa: PLR0913, PLR0917 - the header of the script has as many
    session: Session, pair: _Pair, step: str, number: int = 0, at: int = 0, data: bytes = b""
) -> Flow[int]:
    keys = session.keys.shard(pair.shard)
    (reply,) = yield from ask(session, calls.merge(step, session.config, keys, pair.ours, number, at, data))
    return int(reply)
