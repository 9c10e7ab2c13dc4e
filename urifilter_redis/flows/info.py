"""The configuration and state of a filter: the flow behind ``info()``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from urifilter_redis.bloom.retention import TIMED, Shape, error_rate_at_capacity, growing_slice, size_first, slice_share
from urifilter_redis.bloom.sizing import (
    REDISBLOOM,
    Sizing,
    Slice,
    error_rate_from_fill,
    items_from_fill,
    module_fill,
    module_rate,
)
from urifilter_redis.engine.near_cache import NearCacheInfo
from urifilter_redis.engine.queries import ask, read_first, server_time, unless_withheld
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import SliceLost
from urifilter_redis.flows.claims_info import ClaimsInfo, claims_info
from urifilter_redis.flows.loss import Loss, loss_in
from urifilter_redis.flows.reading import fill_of, items_in_module
from urifilter_redis.flows.turn import next_due, read_states
from urifilter_redis.protocol.config import FORMAT, Config
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import TO_DO_IF_LOST

#: Fields of a hash that MEMORY USAGE measures: all of an archived slice, and a sufficient sample of ``replies``.
FIELDS_A_SAMPLE = 100

#: Phases in which bitmaps may be missing.
_INCOMPLETE = {"creating", "dropping", "restoring"}

#: Most lost bitmaps that an error names.
_LOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class SliceInfo:
    """One live slice, over all shards; the attributes are the keys of its JSON. Times are server times.

    Attributes:
        name: the end of the slice's key: ``today``, ``history_1`` …
        opened: the time at which the first shard's slice became today (rolling's history: the oldest of its slices),
            seconds since 1970.
        closed: the time at which the last shard's slice was closed, seconds since 1970; None for today.
        inserted: the number of items that were written to the slice; with last-seen that of all that were seen then.
        capacity: the number of items that the slice is made for.
        fill: the share of the bits that are set (counting: of the counters that are over 0; redisbloom: reckoned from
            the number of items).
        error_share: the slice's share in the filter's error rate.
        error_rate_now: the probability that an unseen item is answered "seen" by this slice, computed from the fill.
        over_capacity: whether the slice holds more items than it is made for.
        size: the bytes of the bitmaps.

    Example:
        >>> news.info().live_slices[0].name
        'today'
    """

    name: str
    opened: float
    closed: float | None
    inserted: int
    capacity: int
    fill: float
    error_share: float
    error_rate_now: float
    over_capacity: bool
    size: int


#: The attributes of a configuration that are not told as they are.
_NOT_SHOWN = {"units", "bytes", "seed", "items", "rules", "parameter_list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterInfo(Shape):
    """A filter's configuration and state; these attributes and those of its shape are the keys of its JSON.

    All times are server times in seconds since 1970. A time in the server's future, from a clock that was ahead, is
    given as the present time.

    Attributes:
        name: the filter's name.
        uid: the filter's 16 random hex digits.
        format: the format of the filter in Redis and in its archive.
        shards: the number of shards.
        segments: the number of bitmaps of a slice, over all shards.
        period: ring and rolling: the time between rotations, as text.
        k: the number of offsets of an item.
        segment_bytes: the bytes of one bitmap of the first slice.
        normalize: the normalisation of items.
        rules: the rules of the normalisation; None: it has none.
        hash: the hash of items. Its seed is secret, so it is not here: ``UriFilter.settings`` has it.
        archive: the archive's address without user and password; ``redis``: closed slices beside the filter; None:
            there is none.
        created: the time at which the filter was made.
        phase: ``idle`` if nothing is under way, else ``creating``, ``rotating`` or ``restoring``.
        checkpointed: the time at which the oldest of the shards' last checkpoints began; None if a shard has none.
        epoch: the number of rotations; shards may be an epoch behind while a rotation runs.
        next_rotation: ring and rolling: the time at which the next rotation is due; else None.
        rotated_in: the seconds from the first shard's turn to the last one's in the last rotation, or until now if it
            is unfinished; None: there was none, or nothing is left of what it closed.
        inserted: the number of items that were answered "new" and have not expired. An item that was forgotten and
            inserted anew counts twice.
        forgotten: the number of forgotten digests.
        fill: the share of the bits that are set (counting: of the counters that are over 0).
        error_rate_now: the probability that an unseen item is answered "seen", computed from the fill.
        error_rate_at_capacity: the same probability at capacity (growing: however many slices it has).
        over_capacity: whether the filter or one of its slices holds more items than it is made for.
        memory: the bytes that the server has allocated for all keys of the filter, without the samples of the service's
            plots.
        archived: the part of ``memory`` that is for compressed closed slices (archive ``redis``).
        live_slices: the live slices, from newest to oldest.
        claims: what is in flight; None: nobody has claimed.
        loss: restores from checkpoints that nobody has acknowledged; None: there are none.
        near_cache: the use of the near cache of the object that was asked; None: it has none.

    Example:
        >>> news.info().to_dict()["layout"]
        'blocked'
    """

    name: str
    uid: str
    format: int
    shards: int
    period: str | None = None
    segments: int
    k: int
    segment_bytes: int
    normalize: str
    rules: list[dict[str, Any]] | None = None
    hash: str
    archive: str | None
    created: float
    phase: str
    checkpointed: float | None
    epoch: int
    next_rotation: float | None
    rotated_in: float | None = None
    inserted: int
    forgotten: int
    fill: float
    error_rate_now: float
    error_rate_at_capacity: float
    over_capacity: bool
    memory: int
    archived: int
    live_slices: tuple[SliceInfo, ...]
    claims: ClaimsInfo | None
    loss: Loss | None = None
    near_cache: NearCacheInfo | None

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as a dictionary for JSON."""
        first = {"name": self.name, "uid": self.uid}
        return first | asdict(self) | {"live_slices": [asdict(each) for each in self.live_slices]}


def info(session: Session) -> Flow[FilterInfo]:
    """Return the configuration and state of a filter; bits are counted in pieces, so that no command takes long.

    Raises:
        FilterNotFound: the filter, or a shard of it, is gone.
        SliceLost: a bitmap of a live slice is missing, or has another length; all are named.
    """
    config = session.config
    created = int((yield from read_first(session)).get("created", 0))
    shards = []
    for number in range(config.shards):
        shard = yield from _read_shard(session, number)
        shards.append(shard)
    _check_nothing_lost(session, shards)
    states = [shard.state for shard in shards]
    now = yield from server_time(session)
    of_shards = [shard.parts for shard in shards]
    parts = [part for each in of_shards for part in each]
    total = sum(state.items for state in states)
    return FilterInfo(
        name=session.keys.name,
        **{name: value for name, value in asdict(config).items() if name not in _NOT_SHOWN},
        rules=json.loads(config.rules) if config.rules else None,
        format=FORMAT,
        segment_bytes=config.bytes,
        created=min(created, now) / 1000,
        checkpointed=min(now, *(state.checkpointed for state in states)) / 1000 or None,
        phase=next((state.phase for state in states if state.phase != "idle"), "idle"),
        epoch=max(state.epoch for state in states),
        next_rotation=next_due(config.period or "", states, now) if config.retention in TIMED else None,
        rotated_in=_rotated_in(states, now),
        inserted=total,
        forgotten=sum(shard.forgotten for shard in shards),
        fill=math.fsum(part.fill * part.slice.whole.size for part in parts)
        / sum(part.slice.whole.size for part in parts),
        error_rate_now=error_rate_of(config, of_shards),
        error_rate_at_capacity=error_rate_at_capacity(config),
        over_capacity=is_over_capacity(config, of_shards)
        or (config.retention != "growing" and total > config.capacity),
        memory=sum(shard.memory for shard in shards),
        archived=sum(shard.archived for shard in shards),
        live_slices=tuple(_slice_info(config, each, now) for each in _by_age(of_shards)),
        claims=(yield from claims_info(session, states, now)),
        loss=loss_in(states),
        near_cache=None if session.near is None else session.near.info,
    )


def inserted(session: Session) -> Flow[int]:
    """Return the number of items that were answered "new" and have not expired, from ``meta`` alone."""
    states = yield from read_states(session)
    return sum(state.items for state in states)


@dataclass(slots=True)
class Part:
    """A live slice of one shard: its times in ms, the items that it has and is made for, and its error rate."""

    slice: Slice
    opened: int
    closed: int | None
    inserted: int
    capacity: int
    share: float
    fill: float = 0.0
    rate: float = 0.0


@dataclass(slots=True)
class _Shard:
    state: ShardState
    forgotten: int
    memory: int
    archived: int
    lengths: list[int]  # of the live bitmaps, as ``state`` lists them
    parts: list[Part]  # newest first


def _read_shard(session: Session, number: int) -> Flow[_Shard]:
    """Read a shard, and read it again if it turned meanwhile."""
    keys, config = session.keys.shard(number), session.config
    while True:
        (state,) = yield from read_states(session, [number])
        epochs: set[int] = set()
        if config.archive == "redis":
            epochs.update(range(max(0, state.epoch - (config.slices or 0)), state.epoch + 1))
            epochs.update(each.epoch for each in state.closed)
        live = [keys.slice(name) for name in state.view.names]
        following = map(keys.slice, replace(state.view.slices[-1], name="today_next").names)
        own = [keys.meta, keys.replies, keys.forgotten, *keys.of_claims, *keys.of_dead_letters, *following, *live]
        every = [*own, *map(keys.archived, sorted(epochs))]
        usage = (("MEMORY", "USAGE", key, "SAMPLES", str(FIELDS_A_SAMPLE)) for key in every)
        (forgotten,) = yield from ask(session, ("ZCARD", keys.forgotten))
        memory = [each or 0 for each in (yield from unless_withheld(ask(session, *usage))) or ()]
        parts = parts_of(config, state)
        if config.layout == REDISBLOOM:
            lengths = yield from _read_module(session, keys, parts)
        else:
            lengths = yield from ask(session, *(("STRLEN", key) for key in live))
        for part in parts if config.layout != REDISBLOOM else ():
            part.fill = yield from fill_of(session, keys, part.slice)
            part.rate = error_rate_from_fill(config.layout, config.k, part.slice.units, part.fill)
        (again,) = yield from read_states(session, [number])
        if again.view == state.view and again.epoch == state.epoch:
            return _Shard(state, forgotten, sum(memory or lengths), sum(memory[len(own) :]), lengths, parts)


def _read_module(session: Session, keys: ShardKeys, parts: Sequence[Part]) -> Flow[list[int]]:
    """Note the fill and the rate of slices of layout redisbloom, newest first.

    Return the lengths of their segments, oldest slice first: 0 of one that is missing, or was made by another program.
    """
    lengths: list[int] = []
    for part in reversed(parts):
        reserved, row = part.slice.units, part.slice.segments
        items: list[int] = []
        for key in map(keys.slice, part.slice.names):
            found = yield from items_in_module(session, key, part.slice)
            items.append(found or 0)
            lengths.append(0 if found is None else part.slice.size)
        part.fill = math.fsum(module_fill(each, reserved, part.share) for each in items) / row
        part.rate = math.fsum(module_rate(each, reserved, part.share) for each in items) / row
    return lengths


def _check_nothing_lost(session: Session, shards: Sequence[_Shard]) -> None:
    lost = []
    for number, shard in enumerate(shards):
        if shard.state.phase in _INCOMPLETE:
            continue
        named = [(name, each.size) for each in shard.state.view.slices for name in each.names]
        for (name, size), length in zip(named, shard.lengths, strict=True):
            if length != size:
                found = f"has {length:,} bytes and should have {size:,}" if length else "is missing"
                lost.append(f"{session.keys.shard(number).slice(name)} {found}")
    if lost:
        more = f", and {len(lost) - _LOST_TOLD} more" if len(lost) > _LOST_TOLD else ""
        raise SliceLost(f"{session.where}: LOST {', '.join(lost[:_LOST_TOLD])}{more}: {TO_DO_IF_LOST}")


def _rotated_in(states: Sequence[ShardState], now: int) -> float | None:
    top = max(state.epoch for state in states)
    turned = [state.closed[-1].closed for state in states if state.epoch == top and state.closed]
    if not turned:
        return None
    ended = now if any(state.phase == "rotating" for state in states) else max(turned)
    return max(0, ended - min(turned)) / 1000


def parts_of(config: Config, state: ShardState) -> list[Part]:
    """Return the live slices of a shard, newest first, with the times and numbers that ``meta`` has of each."""
    parts: list[Part] = []
    for age, slice_ in enumerate(reversed(state.view.slices)):
        times = state.times_of(slice_.name)
        count = times.inserted
        if config.write == "all":  # a slice holds the items of all newer slices, too
            count = times.new + (parts[-1].inserted if parts else 0)
        index = state.epoch - age
        capacity = slice_sizing(config, index).shard_capacity
        parts.append(Part(slice_, times.opened, times.closed or None, count, capacity, slice_share(config, index)))
    return parts


def slice_sizing(config: Config, index: int) -> Sizing:
    """Return the geometry of slice ``index`` (from 0; only those of a growing filter differ)."""
    grown = growing_slice(config, index) if config.retention == "growing" else None
    return grown or size_first(config)


def error_rate_of(config: Config, shards: Sequence[Sequence[Part]]) -> float:
    """Return the error rate of a filter from the rates of its shards' live slices, newest first."""
    if config.write == "all":  # only the oldest slice is tested
        rates = [parts[-1].rate for parts in shards]
    else:
        rates = [-math.expm1(math.fsum(math.log1p(-min(each.rate, 1 - 1e-15)) for each in parts)) for parts in shards]
    return math.fsum(rates) / len(rates)


def is_over_capacity(config: Config, shards: Sequence[Sequence[Part]]) -> bool:
    """Whether a filter, or one of its slices, holds more items than it is made for; slices newest first."""
    if any(_items_in(config, parts) > _capacity_of(config, parts) for parts in _by_age(shards)):
        return True
    if config.retention == "growing" or config.expire_after == "last-seen":
        return False  # a growing filter has no fixed capacity, and with last-seen an item counts in several slices
    return items_of(config, shards) > config.capacity


def items_of(config: Config, shards: Sequence[Sequence[Part]]) -> int:
    """Return the number of items that were written to all live slices; slices newest first."""
    if config.write == "all":  # the oldest slice holds the items of all
        return sum(parts[-1].inserted for parts in shards)
    return sum(part.inserted for parts in shards for part in parts)


def _by_age(shards: Sequence[Sequence[Part]]) -> list[list[Part]]:
    return [[parts[age] for parts in shards if age < len(parts)] for age in range(max(map(len, shards)))]


def _slice_info(config: Config, parts: Sequence[Part], now: int) -> SliceInfo:
    closed = [part.closed for part in parts if part.closed is not None]
    items, capacity = _items_in(config, parts), _capacity_of(config, parts)
    return SliceInfo(
        name=parts[0].slice.name,
        opened=min(now, *(part.opened for part in parts)) / 1000,
        closed=None if len(closed) < len(parts) else min(now, max(closed)) / 1000,
        inserted=items,
        capacity=capacity,
        fill=math.fsum(part.fill for part in parts) / len(parts),
        error_share=math.fsum(part.share for part in parts) / len(parts),
        error_rate_now=math.fsum(part.rate for part in parts) / len(parts),
        over_capacity=items > capacity,
        size=sum(part.slice.whole.size for part in parts),
    )


def _capacity_of(config: Config, parts: Sequence[Part]) -> int:
    return sum(part.capacity for part in parts) if config.retention == "growing" else size_first(config).capacity


def _items_in(config: Config, parts: Sequence[Part]) -> int:
    return sum(_held(config, part) for part in parts)


def _held(config: Config, part: Part) -> int:
    """Return the number of items in a slice.

    For the merged history with last-seen it is estimated from the fill, because many were written in several periods.
    """
    if part.slice.name == "history" and config.expire_after == "last-seen":
        return min(part.inserted, round(items_from_fill(config.layout, config.k, part.slice.whole.units, part.fill)))
    return part.inserted
