"""The flow of a union: what other filters have seen, a filter has seen too.

Bits are only added, so a union may run while items are inserted, and one that died half-way is begun anew. The
source's slices are read from newest to oldest: what turns meanwhile becomes older, and is come across again. Nothing
expires earlier than in the source.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from urifilter_redis import calls
from urifilter_redis.archive.manifest import piece_spans
from urifilter_redis.errors import ConfigMismatch, SliceLost, UriFilterError
from urifilter_redis.exchange import ask, ask_shard
from urifilter_redis.fill import fill_of
from urifilter_redis.keys import FilterKeys
from urifilter_redis.lifecycle import open_
from urifilter_redis.session import Session
from urifilter_redis.sizing import items_from_fill
from urifilter_redis.turning import grow, read_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.calls import Call
    from urifilter_redis.state import Slice
    from urifilter_redis.steps import Flow

__all__ = ["union"]

#: What must be equal, and by which name a user knows it.
_SAME = ("layout", "shards", "normalize", "hash", "seed")

#: What decides the geometry of slices; named when it differs.
_GEOMETRY = ("retention", "capacity", "error_rate", "slices", "write", "expire_after", "period_capacity")


def union(session: Session, sources: Sequence[str]) -> Flow[int]:
    """Merge filters into one; return about how many items that added.

    Raises:
        ValueError: the filter itself is among the sources.
        FilterNotFound: there is no such filter.
        ConfigMismatch: one is of other geometry, hash or seed.
        SliceLost: a bitmap is missing.
        UriFilterError: the layout is counting.
    """
    if session.keys.name in sources:
        raise ValueError(f"{session.keys.name} cannot be merged into itself")
    if session.config.layout == "counting":
        raise UriFilterError(f"{session.where}: filters of layout counting cannot be merged")
    opened = []
    for name in sources:  # all are looked at before any is merged
        source = Session(FilterKeys(session.keys.prefix, name), session.server, session.timeouts)
        yield from open_(source)
        _check(session, source)
        opened.append(source)
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
    growing = "growing" in {ours.retention, theirs.retention}
    if (ours.k, ours.units) != (theirs.k, theirs.units) or (growing and ours.retention != theirs.retention):
        names += [name for name in _GEOMETRY if getattr(ours, name) != getattr(theirs, name)]
    if names:
        differences = {name: (getattr(ours, name), getattr(theirs, name)) for name in names}
        each = ", ".join(f"{name} is {has!r} and not {want!r}" for name, (want, has) in differences.items())
        text = f"cannot be merged into {session.keys.name!r}: {each} (create --like makes one that can)"
        raise ConfigMismatch(f"{source.where}: {text}", differences)


def _merge_shard(session: Session, source: Session, shard: int) -> Flow[float]:
    yield from _keep_forgotten(session, source, shard)
    added, age = 0.0, 0
    while True:
        (theirs,) = yield from read_states(source, [shard])
        live = theirs.view.slices[::-1]  # newest first
        if age >= len(live):
            break
        if session.config.retention == "growing":
            yield from _grow_to(session, shard, len(live))
        (ours,) = yield from read_states(session, [shard])
        for number in _places(session, len(ours.view.slices), len(live), age):
            added += yield from _merge_slice(session, source, shard, live[age], number)
        age += 1
    yield from _insert_forgotten(session, source, shard)
    return added


def _places(session: Session, ours: int, theirs: int, age: int) -> list[int]:
    """Return which of our live slices (the oldest being 1) take the source's slice of an age (from 0)."""
    config = session.config
    if config.retention == "growing":  # slices of one index are of one size
        return [theirs - age]
    if config.write == "all":  # as if inserted now
        return list(range(1, ours + 1))
    if config.retention == "ring":
        return [ours - min(age, ours - 1)]
    return [ours]


def _grow_to(session: Session, shard: int, slices: int) -> Flow[None]:
    while len(session.view(shard).slices) < slices:
        yield from grow(session, shard)


def _merge_slice(session: Session, source: Session, shard: int, theirs: Slice, number: int) -> Flow[float]:
    """OR a bitmap of the source into our live slice ``number``; return about how many items that added."""
    key, bits = source.keys.shard(shard).slice(theirs.name), 0
    for offset, length in piece_spans(theirs.size):
        (piece,) = yield from ask(session, ("GETRANGE", key, offset, offset + length - 1))
        if len(piece) != length:
            yield from _check_still(source, shard, theirs)
            break  # it has turned meanwhile, and is come across again
        if piece.count(0) < length:
            (added,) = yield from _call(session, shard, "piece", number, offset, piece)
            bits += added
    config, ours = session.config, session.view(shard).slices[number - 1]
    after = yield from fill_of(session, session.keys.shard(shard).slice(ours.name), ours)
    before = max(0.0, after - bits / (8 * ours.size))
    inverted = [items_from_fill(config.layout, config.k, ours.units, fill) for fill in (after, before)]
    items = max(0.0, inverted[0] - inverted[1]) if after < 1 else 0.0
    yield from _call(session, shard, "count", number, round(items))
    return items


def _check_still(source: Session, shard: int, slice_: Slice) -> Flow[None]:
    (state,) = yield from read_states(source, [shard])
    if slice_ in state.view.slices:
        key = source.keys.shard(shard).slice(slice_.name)
        (size,) = yield from ask(source, ("STRLEN", key))
        if size != slice_.size:
            raise SliceLost(f"{source.where}: {key} has {size} bytes and should have {slice_.size}")


def _keep_forgotten(session: Session, source: Session, shard: int) -> Flow[None]:
    """Keep new what only the source has forgotten."""
    for digests in (yield from _forgotten(source, shard)):
        yield from _call(session, shard, "forget", data=digests)


def _insert_forgotten(session: Session, source: Session, shard: int) -> Flow[None]:
    """Insert what we have forgotten and the source has seen."""
    for digests in (yield from _forgotten(session, shard)):
        (ages,) = yield from ask_shard(source, shard, functools.partial(_items, "contains", source, shard, digests))
        seen = b"".join(digests[16 * i : 16 * i + 16] for i, age in enumerate(ages) if age)
        if seen and session.config.retention == "growing":
            yield from grow(session, shard, len(seen) // 16)
        if seen:
            yield from ask_shard(session, shard, functools.partial(_items, "insert", session, shard, seen))


def _forgotten(session: Session, shard: int) -> Flow[list[bytes]]:
    """Return the digests that are forgotten, packed, as many at a time as a call may have."""
    size = calls.items_a_call(session.config, len(session.view(shard).slices))
    (digests,) = yield from ask(session, ("ZRANGE", session.keys.shard(shard).forgotten, 0, -1))
    return [b"".join(digests[start : start + size]) for start in range(0, len(digests), size)]


def _items(command: str, session: Session, shard: int, digests: bytes) -> Call:
    keys, view = session.keys.shard(shard), session.view(shard)
    return calls.items(command, session.config, keys, view, calls.NO_CALL_ID, digests)


def _call(session: Session, shard: int, step: str, number: int = 0, at: int = 0, data: bytes = b"") -> Flow[list[Any]]:  # noqa: PLR0913, PLR0917 - the header of the script has as many
    def build() -> Call:
        keys, view = session.keys.shard(shard), session.view(shard)
        return calls.merge(step, session.config, keys, view, number, at, data)

    return (yield from ask_shard(session, shard, build))
