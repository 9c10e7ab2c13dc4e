"""What a filter is and how it does: the flow behind ``info()``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from urifilter_redis.config import Config, Slice, View
from urifilter_redis.errors import FilterNotFound
from urifilter_redis.exchange import ask
from urifilter_redis.replies import to_mapping
from urifilter_redis.sizing import error_rate_from_fill, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urifilter_redis.keys import ShardKeys
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Arguments, Flow

__all__ = ["FilterInfo", "info", "inserted"]

#: Bytes whose bits are counted in one command (BITCOUNT takes a fraction of a millisecond for as many).
BYTES_A_COUNT = 1 << 20

#: Commands in one pipeline.
COMMANDS_A_PIPELINE = 32


@dataclass(frozen=True, slots=True)
class FilterInfo:
    """A filter's configuration and state; the attributes are the keys of its JSON.

    Attributes:
        name: of the filter.
        uid: its random 16 hex digits.
        layout: ``blocked`` or ``classic``.
        retention: ``forever``.
        capacity: items over the whole filter.
        error_rate: what was asked for.
        shards: how many.
        k: offsets an item.
        slice_bytes: of one shard's bitmap.
        normalize: of items.
        hash: of items.
        seed: of the hash, as text.
        created: server time in seconds since 1970.
        phase: ``idle`` when nothing is under way.
        inserted: items answered "new" so far, forgotten and inserted anew counted anew.
        forgotten: items that count as new once more.
        fill: share of the bits that are set.
        error_rate_now: the probability that an item not seen is taken for seen, inverted from the fill.
        error_rate_at_capacity: the same at capacity.
        over_capacity: more was inserted than it was made for.
        memory: bytes that the server has allocated for all keys of the filter.
    """

    name: str
    uid: str
    layout: str
    retention: str
    capacity: int
    error_rate: float
    shards: int
    k: int
    slice_bytes: int
    normalize: str
    hash: str
    seed: str
    created: float
    phase: str
    inserted: int
    forgotten: int
    fill: float
    error_rate_now: float
    error_rate_at_capacity: float
    over_capacity: bool
    memory: int

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as a dictionary for JSON."""
        return asdict(self)


@dataclass(slots=True)
class _Shard:
    meta: dict[str, str]
    forgotten: int
    memory: int
    bits_set: int = 0


def info(session: Session) -> Flow[FilterInfo]:
    """Gather it; bits are counted in pieces, so that the server is never held for long.

    Raises:
        FilterNotFound: the filter, or a shard of it, is gone.
    """
    config = session.config
    shards = []
    for number in range(config.shards):
        shard = yield from _shard(session, session.keys.shard(number))
        shards.append(shard)
    fills = [shard.bits_set / (8 * config.bytes) for shard in shards]
    inserted = sum(int(shard.meta["inserted"]) for shard in shards)
    sizing = size(config.capacity, config.error_rate, config.layout, config.shards)
    rates = [error_rate_from_fill(config.layout, config.k, fill) for fill in fills]
    return FilterInfo(
        name=session.keys.name,
        **_settings(config),
        slice_bytes=config.bytes,
        created=int(shards[0].meta["created"]) / 1000,
        phase=shards[0].meta["phase"],
        inserted=inserted,
        forgotten=sum(shard.forgotten for shard in shards),
        fill=math.fsum(fills) / len(fills),
        error_rate_now=math.fsum(rates) / len(rates),
        error_rate_at_capacity=sizing.error_rate_at_capacity,
        over_capacity=inserted > config.capacity,
        memory=sum(shard.memory for shard in shards),
    )


def inserted(session: Session) -> Flow[int]:
    """Count the items answered "new" so far, without counting bits."""
    shards = [session.keys.shard(number) for number in range(session.config.shards)]
    counts = yield from ask(session, *(("HGET", keys.meta, "inserted") for keys in shards))
    return sum(int(count or 0) for count in counts)


def _settings(config: Config) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in {"units", "bytes"}}


def _shard(session: Session, keys: ShardKeys) -> Flow[_Shard]:
    (reply,) = yield from ask(session, ("HGETALL", keys.meta))
    meta = to_mapping(reply)
    if meta.get("uid") != session.config.uid:
        raise FilterNotFound(f"{session.where}: it was dropped, or lost {keys.meta}")
    slices = View.from_meta(meta, session.where).slices
    all_keys = [keys.meta, keys.replies, keys.forgotten, *(keys.slice(each.name) for each in slices)]
    usage = (("MEMORY", "USAGE", key) for key in all_keys)
    forgotten, *memory = yield from ask(session, ("ZCARD", keys.forgotten), *usage)
    shard = _Shard(meta, forgotten, sum(bytes_ or 0 for bytes_ in memory))
    for pieces in _count_commands(keys, slices):
        shard.bits_set += sum((yield from ask(session, *pieces)))
    return shard


def _count_commands(keys: ShardKeys, slices: tuple[Slice, ...]) -> Iterator[list[Arguments]]:
    commands: list[Arguments] = [
        ("BITCOUNT", keys.slice(each.name), start, min(start + BYTES_A_COUNT, each.size) - 1)
        for each in slices
        for start in range(0, each.size, BYTES_A_COUNT)
    ]
    for start in range(0, len(commands), COMMANDS_A_PIPELINE):
        yield commands[start : start + COMMANDS_A_PIPELINE]
