"""The flow of a union: the items of other filters are merged into one filter.

What is in somebody's hands in a source stays there: it is not seen yet, and is offered here as new.

A union only adds bits, so it may run while items are inserted. It is begun anew if it died half-way, or if a shard of
either filter turned meanwhile. If both filters are rings, and the source writes to the newest slice, each of its
slices goes into a slice that expires no earlier. In every other filter that expires, items count as inserted now.

Before anything is written, the bits of all filters are counted together. A result that holds more than the filter is
made for, or would be wrong more often than was asked for, is refused unless the caller says that it may be so.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import slice_share
from urifilter_redis.bloom.sizing import Slice, error_rate_from_fill, items_from_fill
from urifilter_redis.engine.queries import ask, ask_shard, scanned
from urifilter_redis.engine.session import Session
from urifilter_redis.errors import ConfigMismatch, OverCapacity, Restoring, RotationConflict, SliceLost, UriFilterError
from urifilter_redis.flows.info import Part, error_rate_of, is_over_capacity, items_of, parts_of, slice_sizing
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.flows.reading import fill_of, pieces_of
from urifilter_redis.flows.rotation import finish_rotation
from urifilter_redis.flows.turn import grow, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import worded
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.storage.contents import as_numbers
from urifilter_redis.storage.documents import piece_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Call
    from urifilter_redis.protocol.config import Config
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["union"]

#: The settings that must be equal in both filters.
_SAME = ("layout", "shards", "normalize", "hash", "seed")

#: The settings that decide the geometry of slices; an error names those that differ.
_GEOMETRY = ("retention", "capacity", "error_rate", "slices", "write", "expire_after", "period_capacity")

#: A result may have so many times the asked error rate: the rate of a bitmap of a hundred items scatters as much. A
#: result that holds more items than the filter is made for is refused in any case.
_SCATTER = 1.5


def union(session: Session, sources: Sequence[str], *, over_capacity: bool = False) -> Flow[int]:
    """Merge the filters ``sources`` into the session's filter; return the estimated number of items added.

    Args:
        session: the filter's session.
        sources: the names of the other filters.
        over_capacity: merge them even if the result is over capacity.

    Raises:
        OverCapacity: the result would be over capacity, or have a higher error rate than was asked for; nothing was
            written.
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
    if opened and not over_capacity:
        yield from _check_capacity(session, opened)
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
        text = f"cannot be merged into {session.keys.name!r}: {worded(differences)} (create --like makes one that can)"
        raise ConfigMismatch(f"{source.where}: {text}", differences)


def _slices_differ(ours: Config, theirs: Config) -> bool:
    """Whether the filters grow differently: only one of them grows, or their slices have other sizes."""
    growth = [(c.retention, c.capacity, c.error_rate) if c.retention == "growing" else () for c in (ours, theirs)]
    return growth[0] != growth[1]


def _check_capacity(session: Session, sources: Sequence[Session]) -> Flow[None]:
    """Check that the result holds no more than the filter is made for, at the error rate that was asked for.

    First the fills are put together as if no item were in two filters. Only a result that would be refused for that
    is counted exactly, from all bitmaps.
    """
    config = session.config
    for exactly in (False, True):
        shards: list[list[Part]] = []
        for shard in range(config.shards):
            expected = yield from _expected_shard(session, sources, shard, exactly=exactly)
            shards.append(expected)
        rate, over = error_rate_of(config, shards), is_over_capacity(config, shards)
        if not over and rate <= _SCATTER * config.error_rate:
            return
    names, items = ", ".join(source.keys.name for source in sources), items_of(config, shards)
    text = f'with {names} it would hold about {items:,} items and answer "seen" for {rate:.2g} of the new ones, not for'
    advice = f"{config.error_rate:g}: nothing was merged; say over_capacity=True (--yes) to merge all the same"
    raise OverCapacity(f"{session.where}: {text} {advice}", error_rate=rate)


def _expected_shard(session: Session, sources: Sequence[Session], shard: int, *, exactly: bool) -> Flow[list[Part]]:
    """Return the live slices that a shard will have, newest first; begin anew if a filter turns meanwhile."""
    filters = (session, *sources)
    while True:
        states: list[ShardState] = []
        for each in filters:
            state = yield from _state_of(each, shard)
            states.append(state)
        ours, *theirs = states
        pairs = [(source, _Pair(shard, ours, state)) for source, state in zip(sources, theirs, strict=True)]
        lost, parts = None, []
        try:
            parts = yield from _expected_parts(session, pairs, exactly=exactly)
        except SliceLost as error:  # unless it was only renamed
            lost = error
        moved = False
        for each, state in zip(filters, states, strict=True):
            moved = moved or (yield from _has_moved(each, shard, state))
        if lost and not moved:
            raise lost
        if not moved:
            return parts


def _expected_parts(session: Session, pairs: Sequence[tuple[Session, _Pair]], *, exactly: bool) -> Flow[list[Part]]:
    config, (_, first) = session.config, pairs[0]
    parts = parts_of(config, first.ours)[::-1]  # as the numbers of slices go: the oldest first
    theirs: dict[int, list[tuple[Session, Part]]] = {}
    for source, pair in pairs:
        for age, part in enumerate(parts_of(source.config, pair.theirs)):
            for number in _places(config, source.config, pair, age):
                theirs.setdefault(number, []).append((source, part))
    parts += [_next_slice(config, index) for index in range(len(parts), max(theirs))]
    before = parts[-1].inserted
    for number in sorted(theirs, reverse=True):
        part, others = parts[number - 1], theirs[number]
        bitmaps = [(source, source.keys.shard(first.shard).slice(each.slice.name)) for source, each in others]
        if number <= len(first.ours.view.slices):
            bitmaps.append((session, session.keys.shard(first.shard).slice(part.slice.name)))
        part.fill = yield from _fill_together(bitmaps, part.slice, exactly=exactly)
        if config.write == "all" and number < len(parts):  # holds all that is in today, which has it already
            part.inserted += parts[-1].inserted - before
        else:
            items = items_from_fill(config.layout, config.k, part.slice.units, part.fill)
            part.inserted = _items_after(items, part.inserted, sum(each.inserted for _, each in others))
    for number, part in enumerate(parts, 1):
        if number not in theirs:
            key = session.keys.shard(first.shard).slice(part.slice.name)
            part.fill = yield from fill_of(session, key, part.slice)
        part.rate = error_rate_from_fill(config.layout, config.k, part.slice.units, part.fill)
    return parts[::-1]


def _next_slice(config: Config, index: int) -> Part:
    """Return the slice that a growing filter will make, empty."""
    sizing = slice_sizing(config, index)
    slice_ = Slice("today", sizing.units, sizing.slice_bytes)
    return Part(slice_, 0, None, 0, sizing.shard_capacity, slice_share(config, index))


def _fill_together(bitmaps: Sequence[tuple[Session, str]], slice_: Slice, *, exactly: bool) -> Flow[float]:
    """Return the share of bits that are set in any of several bitmaps, or that were if they had no item in common."""
    if not exactly:
        unset = 1.0
        for session, key in bitmaps:
            unset *= 1 - (yield from fill_of(session, key, slice_))
        return 1 - unset
    bits, (session, _) = 0, bitmaps[0]
    for span in piece_spans(slice_.size):
        pieces = []
        for owner, key in bitmaps:
            pieces += as_numbers((yield from pieces_of(owner, key, [span])))
        bits += functools.reduce(operator.or_, pieces).bit_count()
    return bits / (slice_.units if session.config.layout == "classic" else 8 * slice_.size)


def _items_after(items: float, counted: int, theirs: int) -> int:
    """Return the number of items of a slice after a merge: from its fill ``items``, and both filters' counts.

    The estimate scatters by less than the root of the items. So a count that explains the fill stays as it is.
    """
    return counted if items <= counted + math.sqrt(counted) else round(min(items, counted + theirs))


def _state_of(session: Session, shard: int) -> Flow[ShardState]:
    (state,) = yield from read_states(session, [shard])
    if state.phase == "restoring":
        raise Restoring(f"{session.where}: it is being restored from its archive: try again later")
    return state


def _merge_shard(session: Session, source: Session, shard: int) -> Flow[float]:
    """Merge a shard; begin anew if either filter turns meanwhile, which does no harm because OR may be repeated."""
    added = 0.0
    while True:
        theirs = yield from _state_of(source, shard)
        if session.config.retention == "growing":
            yield from _grow_to(session, shard, len(theirs.view.slices))
        yield from finish_rotation(session, shard)
        (ours,) = yield from read_states(session, [shard])
        try:
            added += yield from _merge_states(session, source, _Pair(shard, ours, theirs))
        except RotationConflict:
            continue
        if not (yield from _has_moved(source, shard, theirs)):
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
    for age, part in enumerate(parts_of(source.config, pair.theirs)):
        places = _places(session.config, source.config, pair, age)
        for number in places:
            bits = yield from _merge_slice(session, source, pair, part.slice, number)
            if number == places[-1]:  # with write=all every slice gets the bits, and only today counts the items
                added += yield from _count(session, pair, number, bits, part.inserted)
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
    moved = functools.partial(_check_unmoved, source, pair.shard, pair.theirs)
    for offset, length in piece_spans(theirs.size):
        (piece,) = yield from pieces_of(source, key, [(offset, length)], moved)
        if piece.count(0) < length:
            bits += yield from _call(session, pair, "piece", number, offset, piece)
    return bits


def _count(session: Session, pair: _Pair, number: int, bits: int, theirs: int) -> Flow[float]:
    """Raise a slice's item count, by at most ``theirs``; return the estimated number of items of ``bits``."""
    config, ours = session.config, pair.ours.view.slices[number - 1]
    after = yield from fill_of(session, session.keys.shard(pair.shard).slice(ours.name), ours)
    if after >= 1:
        return 0.0
    before = max(0.0, after - bits / (8 * ours.size))
    with_, without = (items_from_fill(config.layout, config.k, ours.units, fill) for fill in (after, before))
    (now,) = yield from read_states(session, [pair.shard])
    counted = now.closed_of(ours.name)
    after_all = _items_after(with_, counted.inserted if counted else now.inserted, theirs)
    yield from _call(session, pair, "count", number, after_all)
    return with_ - without


def _has_moved(session: Session, shard: int, state: ShardState) -> Flow[bool]:
    (now,) = yield from read_states(session, [shard])
    return (now.epoch, now.phase, now.view) != (state.epoch, state.phase, state.view)


def _check_unmoved(session: Session, shard: int, state: ShardState) -> Flow[None]:
    if (yield from _has_moved(session, shard, state)):
        raise RotationConflict(f"{session.where}: it turned meanwhile")


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
