"""The flow of a union: the items of other filters are merged into one filter.

An item that is in flight in a source stays there: it is not seen yet, and the merged filter calls it new.

A union only adds bits, so it may run while items are inserted, and may be repeated after it died half-way. A shard is
merged anew if it turned meanwhile in either filter. If both filters are rings, and the source writes to the newest
slice, each of its slices goes into a slice that expires no earlier. In every other filter that expires, items count as
inserted now.

Before anything is written, the bits of all filters are counted together. A result that holds more than the filter is
made for, or is wrong more often than was asked for, is refused unless the caller allows it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from urifilter_redis.bloom.retention import slice_share
from urifilter_redis.bloom.sizing import REDISBLOOM, Slice, error_rate_from_fill, items_from_fill
from urifilter_redis.checks import check_flag
from urifilter_redis.engine.queries import ask, ask_shard, chunked, scanned, servers_info
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import (
    ConfigMismatch,
    FilterFull,
    OverCapacity,
    Restoring,
    RotationConflict,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.flows.info import Part, error_rate_of, is_over_capacity, items_of, parts_of, slice_sizing
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.flows.reading import fill_of, pieces_of
from urifilter_redis.flows.rotation import finish_rotation
from urifilter_redis.flows.turn import grow, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config, worded
from urifilter_redis.protocol.keys import FilterKeys, ShardKeys
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage.blobs import as_numbers
from urifilter_redis.storage.documents import piece_spans

#: The settings that must be equal in both filters.
_SAME = ("layout", "shards", "segments", "normalize", "rules", "parameter_list", "hash", "seed")

#: The settings that decide the geometry of slices; an error names those that differ.
_GEOMETRY = ("retention", "capacity", "error_rate", "slices", "write", "expire_after", "period_capacity")

#: The multiple of the asked error rate that a result may have: the rate of a bitmap of a hundred items scatters as
#: much.
_SCATTER = 1.5


def union(session: Session, sources: Sequence[str], *, over_capacity: bool = False) -> Flow[int]:
    """Merge the filters ``sources`` into the session's filter; return the estimated number of items added.

    Raises:
        OverCapacity: without ``over_capacity``: the result would be over capacity, or have a higher error rate than was
            asked for; nothing was written.
        ValueError: the filter itself is among the sources, or a source's name is impossible.
        FilterNotFound: a source does not exist.
        ConfigMismatch: a source has another geometry, normalisation, hash or seed.
        SliceLost: a bitmap is missing.
        Restoring: a source is being restored.
        UriFilterError: the layout is counting or redisbloom.
    """
    check_flag("over_capacity", over_capacity)
    if session.keys.name in sources:
        raise ValueError(f"{session.keys.name} cannot be merged into itself")
    if session.config.layout == "counting":
        raise UriFilterError(f"{session.where}: filters of layout counting cannot be merged")
    if session.config.layout == REDISBLOOM:
        text = "filters of layout redisbloom cannot be merged, because the server does not merge them"
        raise UriFilterError(f"{session.where}: {text}: take layout blocked, or classic")
    opened = [_source(session, name) for name in sources]
    for source in opened:  # all are checked before any is merged
        yield from open_(source)
        _check_settings(session, source)
    if opened and not over_capacity:
        yield from _check_capacity(session, opened)
    while True:
        runs, added, done = (yield from _runs(session)), 0.0, 0
        for source in opened:
            for shard in range(session.config.shards):
                added += yield from _merge_shard(session, source, shard)
                done += 1
                session.report(done, len(opened) * session.config.shards)
        if (yield from _runs(session)) == runs:
            return round(added)
        # a server that restarted, or took the place of another, may lack what was merged before


def _runs(session: Session) -> Flow[dict[str, str]]:
    """Return the run id of each master; see ``server_run``."""
    return {node: told.get("run_id", "") for node, told in (yield from servers_info(session, "server")).items()}


def _source(session: Session, name: str) -> Session:
    """Return a session of a source; its errors tell as much of the server as the session's own do."""
    where = f"filter {name!r}" if session.discreet else ""
    keys = FilterKeys(session.keys.prefix, name)
    return Session(
        keys, session.server, session.timeouts, where=where, discreet=session.discreet, routes=session.routes
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A shard of the filter and of a source, as both were when their merge began."""

    source: Session
    shard: int
    ours: ShardState
    theirs: ShardState


def _check_settings(session: Session, source: Session) -> None:
    ours, theirs = session.config, source.config
    names = [name for name in _SAME if getattr(ours, name) != getattr(theirs, name)]
    growth = [(c.retention, c.capacity, c.error_rate) if c.retention == "growing" else () for c in (ours, theirs)]
    if (ours.k, ours.units) != (theirs.k, theirs.units) or growth[0] != growth[1]:
        names += [name for name in _GEOMETRY if getattr(ours, name) != getattr(theirs, name)]
    if names:
        differences = {name: (getattr(ours, name), getattr(theirs, name)) for name in names}
        text = f"cannot be merged into {session.keys.name!r}: {worded(differences)} (create --like makes one that can)"
        raise ConfigMismatch(f"{source.where}: {text}", differences)


def _check_capacity(session: Session, sources: Sequence[Session]) -> Flow[None]:
    """Check that the result holds no more than the filter is made for, at the error rate that was asked for.

    First the fills are put together as if no item were in two filters. Only a result that would be refused for that
    is counted exactly, from all bitmaps.
    """
    config = session.config
    for exactly in (False, True):
        shards = []
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
    while True:
        states = []
        for each in (session, *sources):
            state = yield from _state_of(each, shard)
            states.append(state)
        ours, *theirs = states
        pairs = [_Pair(source, shard, ours, state) for source, state in zip(sources, theirs, strict=True)]
        lost, parts = None, []
        try:
            parts = yield from _expected_parts(session, pairs, exactly=exactly)
        except SliceLost as error:  # perhaps it was only renamed
            lost = error
        changed = False
        for each, state in zip((session, *sources), states, strict=True):
            changed = changed or (yield from _has_changed(each, shard, state))
        if changed:
            continue
        if lost:
            raise lost
        return parts


def _state_of(session: Session, shard: int) -> Flow[ShardState]:
    (state,) = yield from read_states(session, [shard])
    if state.phase == "restoring":
        raise Restoring(f"{session.where}: it is being restored from its archive: try again later")
    return state


def _expected_parts(session: Session, pairs: Sequence[_Pair], *, exactly: bool) -> Flow[list[Part]]:
    config, live, keys = session.config, len(pairs[0].ours.view.slices), session.keys.shard(pairs[0].shard)
    parts = parts_of(config, pairs[0].ours)[::-1]  # as the numbers of slices go: the oldest first
    theirs: dict[int, list[tuple[Session, Part]]] = {}
    for pair in pairs:
        for age, part in enumerate(parts_of(pair.source.config, pair.theirs)):
            for number in _targets(config, pair, age):
                theirs.setdefault(number, []).append((pair.source, part))
    for index in range(len(parts), max(theirs)):  # the slices that a growing filter will make, empty
        sizing = slice_sizing(config, index)
        parts.append(Part(sizing.slice(), 0, None, 0, sizing.shard_capacity, slice_share(config, index)))
    before = parts[-1].inserted
    for number in sorted(theirs, reverse=True):
        part, others = parts[number - 1], theirs[number]
        rows = [(source, source.keys.shard(pairs[0].shard), each.slice) for source, each in others]
        if number <= live:
            rows.append((session, keys, part.slice))
        part.fill = yield from _fill_together(rows, exactly=exactly)
        if config.write == "all" and number < len(parts):  # holds all that is in today, which has it already
            part.inserted += parts[-1].inserted - before
        else:
            items = items_from_fill(config.layout, config.k, part.slice.whole.units, part.fill)
            part.inserted = _items_after(items, part.inserted, sum(each.inserted for _, each in others))
    for number, part in enumerate(parts, 1):
        if number not in theirs:
            part.fill = yield from fill_of(session, keys, part.slice)
        part.rate = error_rate_from_fill(config.layout, config.k, part.slice.units, part.fill)
    return parts[::-1]


def _fill_together(rows: Sequence[tuple[Session, ShardKeys, Slice]], *, exactly: bool) -> Flow[float]:
    """Return the share of bits that are set in any of several slices, or that were if they had no item in common."""
    if not exactly:
        unset = 1.0
        for row in rows:
            unset *= 1 - (yield from fill_of(*row))
        return 1 - unset
    bits, (session, _, slice_) = 0, rows[0]
    for number in range(slice_.segments):
        for span in piece_spans(slice_.size):
            pieces = []
            for owner, keys, each in rows:
                pieces += as_numbers((yield from pieces_of(owner, keys.slice(each.names[number]), [span])))
            bits += functools.reduce(operator.or_, pieces).bit_count()
    whole = slice_.whole
    return bits / (whole.units if session.config.layout == "classic" else 8 * whole.size)


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
            added += yield from _merge_states(session, _Pair(source, shard, ours, theirs))
        except RotationConflict:
            continue
        if not (yield from _has_changed(source, shard, theirs)):
            return added


def _merge_states(session: Session, pair: _Pair) -> Flow[float]:
    added = 0.0
    for digests in (yield from _forgotten(pair.source, pair.shard)):  # those that are not seen here stay forgotten
        yield from _call(session, pair, "forget", data=digests)
    for age, part in enumerate(parts_of(pair.source.config, pair.theirs)):
        targets = _targets(session.config, pair, age)
        for number in targets:
            bits = yield from _merge_slice(session, pair, part.slice, number)
            if number == targets[-1]:  # with write=all every slice gets the bits, and only today counts the items
                added += yield from _count(session, pair, number, bits, part.inserted)
    yield from _insert_forgotten(session, pair.source, pair.shard)
    return added


def _targets(ours: Config, pair: _Pair, age: int) -> list[int]:
    """Return the numbers of our live slices (1 is the oldest) that take the source's slice ``age`` (0 is today)."""
    live, theirs = len(pair.ours.view.slices), pair.source.config
    if ours.retention == "growing":  # slices with the same number have the same size
        return [len(pair.theirs.view.slices) - age]
    if ours.write == "all":  # as if the items were inserted now
        return list(range(1, live + 1))
    if age and ours.retention == theirs.retention == "ring" and theirs.write == "newest":
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


def _merge_slice(session: Session, pair: _Pair, theirs: Slice, number: int) -> Flow[int]:
    """Merge a bitmap of the source into our live slice ``number``; return the number of added bits."""
    bits = 0
    check = functools.partial(_check_unchanged, pair)
    for segment, key in enumerate(map(pair.source.keys.shard(pair.shard).slice, theirs.names)):
        for offset, length in piece_spans(theirs.size):
            (piece,) = yield from pieces_of(pair.source, key, [(offset, length)], check)
            if piece.count(0) < length:
                bits += yield from _call(session, pair, "piece", number, offset, piece, segment=segment)
    return bits


def _check_unchanged(pair: _Pair) -> Flow[None]:
    if (yield from _has_changed(pair.source, pair.shard, pair.theirs)):
        raise RotationConflict(f"{pair.source.where}: it turned meanwhile")


def _has_changed(session: Session, shard: int, state: ShardState) -> Flow[bool]:
    (now,) = yield from read_states(session, [shard])
    return (now.epoch, now.phase, now.view) != (state.epoch, state.phase, state.view)


def _count(session: Session, pair: _Pair, number: int, bits: int, theirs: int) -> Flow[float]:
    """Raise a slice's item count, by at most ``theirs``; return the estimated number of items of ``bits``."""
    config, ours = session.config, pair.ours.view.slices[number - 1]
    fill, whole = (yield from fill_of(session, session.keys.shard(pair.shard), ours)), ours.whole
    if fill >= 1:
        return 0.0
    before = items_from_fill(config.layout, config.k, whole.units, max(0.0, fill - bits / (8 * whole.size)))
    after = items_from_fill(config.layout, config.k, whole.units, fill)
    (now,) = yield from read_states(session, [pair.shard])
    counted = now.times_of(ours.name).inserted
    yield from _call(session, pair, "count", number, _items_after(after, counted, theirs))
    return after - before


def _items_after(items: float, counted: int, theirs: int) -> int:
    """Return the number of items of a slice after a merge: from its fill ``items``, and both filters' counts.

    The estimate scatters by less than the root of the items. So a count that explains the fill stays as it is.
    """
    return counted if items <= counted + math.sqrt(counted) else round(min(items, counted + theirs))


def _insert_forgotten(session: Session, source: Session, shard: int) -> Flow[None]:
    """Insert the items that we have forgotten and the source has seen."""
    for digests in (yield from _forgotten(session, shard)):
        ages = yield from _ask_about("contains", source, shard, digests)
        seen = b"".join(digests[16 * i : 16 * i + 16] for i, age in enumerate(ages) if age > 0)
        grows = session.config.retention == "growing"
        while seen:
            if grows:
                yield from grow(session, shard, len(seen) // 16)
            try:
                yield from _ask_about("insert", session, shard, seen)
                break
            except FilterFull:
                if not grows:  # else other clients have filled the slice meanwhile
                    raise


def _forgotten(session: Session, shard: int) -> Flow[list[bytes]]:
    """Return the forgotten digests of a shard, packed in parts that one call may have."""
    size = calls.items_a_call(session.config, len(session.view(shard).slices))
    entries = yield from scanned(session, "ZSCAN", session.keys.shard(shard).forgotten)
    digests = list({digest for digest, _ in entries})
    return [b"".join(some) for some in chunked(digests, size)]


def _ask_about(command: str, session: Session, shard: int, digests: bytes) -> Flow[list[int]]:
    """Return the answers to a command about items of a shard, under no call id."""
    return ask_shard(session, shard, lambda: session.call_builder(command, shard).call(calls.NO_CALL_ID, digests))


def _call(  # noqa: PLR0913, PLR0917 - the header of the script has as many
    session: Session, pair: _Pair, step: str, number: int = 0, at: int = 0, data: bytes = b"", *, segment: int = 0
) -> Flow[int]:
    keys = session.keys.shard(pair.shard)
    call = calls.merge(step, session.config, keys, pair.ours, number, at, data, segment=segment)
    (reply,) = yield from ask(session, call)
    return int(reply)
