"""Calls of the scripts, with the keys and arguments of each. A test compares them with the headers in ``lua/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from urifilter_redis.bloom.digest import SIZE, shard_of, shards_of
from urifilter_redis.bloom.retention import seconds_of, slice_share
from urifilter_redis.bloom.sizing import REDISBLOOM, Slice, segment_capacity
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.meta import ShardState, View
from urifilter_redis.protocol.scripts import Script

#: One command with its arguments, as redis-py packs it.
Arguments: TypeAlias = tuple[str | bytes, ...]

#: Most items of one call, so that no call holds the server for long (500 items take 1 to 8 ms).
ITEMS_A_CALL = 500

#: Most items times live slices of one call; 500 items against 30 slices would take 16 ms.
SLICES_AND_ITEMS = 2000

#: Likewise of layout redisbloom: each of the bits of a new item, 15 at 1 in 10,000, may touch a page of memory first.
ITEMS_OF_MODULE = 250

#: Microseconds that a call may take on a slow server. A test of an item in one slice takes 1. A write takes ``A_WRITE``
#: (blocked, redisbloom), or ``AN_OFFSET`` for each offset (classic, counting).
A_CALL = 5500
A_WRITE = 5
AN_OFFSET = {"classic": 0.7, "counting": 2.0}

#: Most forgotten digests that one call removes (a few ms).
EXPIRED_A_CALL = 5000

#: Most segments that one command frees, because each takes the server 1 ms; see ``lua/turn.lua``, too.
SEGMENTS_FREED = 4

#: Likewise of layout redisbloom, where each takes 10 ms.
SEGMENTS_OF_MODULE_FREED = 1

#: Seconds between the ends of segments that a script lets expire.
APART = 0.1

#: Seconds for which one process leases the rotations of a filter (see ``lease_of``). It renews the lease while it
#: works; if it dies, another takes over after this time.
LEASE = 60.0

#: From so many items for each of the segments from the first to the last that they may belong to, by the least and the
#: greatest last byte of their digests, a call names all of these. To find those without an item would take the client
#: longer than their keys take the server.
ITEMS_A_SEGMENT = 5

#: The call id of a call that is not recorded.
NO_CALL_ID = "-"


def freed_after(segments: int) -> float:
    """Return the seconds until the server has freed the first segments of those that a script lets expire."""
    return APART * (segments + 2)  # Redis looks for what has expired ten times a second


@dataclass(slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: tuple[str, ...]
    args: Arguments

    @property
    def frees_for(self) -> float:
        """Seconds until the server has freed all segments that the script lets expire; 0: it lets none expire."""
        going = sum(":gone:" in key for key in self.keys)
        return freed_after(going) if going else 0.0

    def command(self) -> Arguments:
        """Return EVALSHA and its arguments."""
        return ("EVALSHA", self.script.sha1, str(len(self.keys)), *self.keys, *self.args)


class SegmentNames:
    """The keys of the live slices of a shard, from oldest to newest: of each the segments that some items belong to.

    Beside the segments of many items there may be some that none belongs to; see ``ITEMS_A_SEGMENT``.

    Attributes:
        all: the keys for any items; None: slices have several segments, so that it depends on the items.
    """

    __slots__ = ("_rows", "_shards", "all")

    def __init__(self, config: Config, keys: ShardKeys, view: View) -> None:
        self._shards = config.shards
        self._rows = [tuple(map(keys.slice, each.names)) for each in view.slices]
        self.all = None if any(len(row) > 1 for row in self._rows) else tuple(key for (key,) in self._rows)

    def of(self, digests: Sequence[bytes] | bytes) -> tuple[str, ...]:
        """Return the keys for items of the shard, given by their digests."""
        if self.all is not None:
            return self.all
        packed, shards, found = digests if isinstance(digests, bytes) else b"".join(digests), self._shards, list[str]()
        if len(packed) == SIZE:  # soonest for a single call
            return tuple([row[shard_of(packed, shards * len(row)) % len(row)] for row in self._rows])
        tops = packed[SIZE - 1 :: SIZE]
        low, high = min(tops, default=0), max(tops, default=0)
        for row in self._rows:  # the segments of a shard are neighbours
            total = shards * len(row)
            first, beyond = low * total >> 8, -(-(high + 1) * total >> 8)
            if len(tops) < ITEMS_A_SEGMENT * (beyond - first):
                found += [row[number % len(row)] for number in sorted(set(shards_of(packed, total)))]
            else:
                own = shard_of(packed[:SIZE], shards) * len(row)
                found += row[max(0, first - own) : beyond - own]
        return tuple(found)


class CallBuilder:
    """Builds calls of ``insert``, ``contains``, ``forget`` or ``remove`` to a shard, from what all of them share.

    Attributes:
        view: the live slices that the calls name.
    """

    __slots__ = ("_first", "_names", "_script", "_uid", "view")

    def __init__(self, command: str, config: Config, keys: ShardKeys, view: View) -> None:
        self.view = view
        self._script = scripts.load(command, config.layout, config.k, claims=view.claims > 0)
        self._uid, reads = config.uid, command == "contains"
        replies = () if reads else (keys.replies,)
        leases: tuple[str, ...] = () if not view.claims else (keys.leases, keys.holders) if reads else keys.of_claims
        if view.claims and not reads:
            leases += keys.of_dead_letters
        self._first = (keys.meta, *replies, keys.forgotten, *leases)
        self._names = SegmentNames(config, keys, view)

    def call(self, call_id: str, digests: Sequence[bytes] | bytes, max_age: int = 0) -> Call:
        """Build the call; see ``items``."""
        # as ``encoded`` and ``SegmentNames.of``, which the usual case is spared
        items, names = ("bin", digests) if isinstance(digests, bytes) else encoded(digests), self._names.all
        keys = self._first + (self._names.of(digests) if names is None else names)
        return Call(self._script, keys, (self._uid, call_id, str(max_age), *items))


def items(  # noqa: PLR0913, PLR0917 - the header of the scripts has as many
    command: str,
    config: Config,
    keys: ShardKeys,
    view: View,
    call_id: str,
    digests: Sequence[bytes] | bytes,
    max_age: int = 0,
) -> Call:
    """Build ``insert``, ``contains``, ``forget`` or ``remove`` for items of one shard.

    ``contains`` takes ``NO_CALL_ID`` only. Digests have 16 bytes an item: packed in one bytes object (sent as it is) or
    as a sequence (sent as hex). ``max_age``: ring: test only this many of the newest slices; 0: test all.
    """
    return CallBuilder(command, config, keys, view).call(call_id, digests, max_age)


def encoded(digests: Sequence[bytes] | bytes, *given: str | bytes) -> Arguments:
    """Return the encoding, the arguments that stand before the items, and the items."""
    if isinstance(digests, bytes):
        return "bin", *given, digests
    return "hex", *given, *(digest.hex() for digest in digests)


def items_a_call(config: Config, live: int) -> int:
    """Return the most items that a call may have on a filter with ``live`` live slices."""
    slices = config.slices or 1 if config.retention == "ring" else live
    written = slices if config.write == "all" else 1
    a_write = AN_OFFSET[config.layout] * config.k if config.layout in AN_OFFSET else A_WRITE
    most = min(ITEMS_A_CALL, SLICES_AND_ITEMS // slices, int(A_CALL / (slices + a_write * written)))
    if config.layout == REDISBLOOM:
        most = min(most, ITEMS_OF_MODULE)
    if config.retention == "growing":  # a call with more items than an empty slice holds would fit into no slice
        most = min(most, segment_capacity(config.capacity, config.segments) * config.today.segments)
    return max(1, most)


def segments_freed(layout: str | None) -> int:
    """Return the most segments that one command frees; None: it is not known of which layout they are."""
    return SEGMENTS_OF_MODULE_FREED if layout in {REDISBLOOM, None} else SEGMENTS_FREED


def create(step: str, config: Config, keys: ShardKeys, fields: Sequence[str] = ()) -> Call:
    """Build ``create``: step ``make``, ``allocate`` or ``finish``.

    ``fields``: make: the fields and values of ``meta`` in turn; allocate: the number of the segment, from 1.
    """
    names = (f"today.{fields[0]}",) if step == "allocate" else ("today", "history", "history_1")
    slices = map(keys.slice, names)
    all_keys = (keys.meta, keys.replies, keys.forgotten, *keys.of_claims, *keys.of_dead_letters, *slices)
    size = str(config.bytes)
    if config.layout == REDISBLOOM:
        size = f"{slice_share(config)}/{config.units}"
    return Call(scripts.load("create", config.layout), all_keys, (step, config.uid, size, *fields))


def turn(  # noqa: PLR0913 - likewise
    step: str,
    keys: ShardKeys,
    state: ShardState,
    token: str,
    new: Slice,
    *,
    limit: int = 0,
    period: int = 0,
    by: int = 1,
    opened: int = 0,
    rate: float | None = None,
    names: Sequence[str] = (),
    number: int = 0,
) -> Call:
    """Build ``turn``: step ``allocate`` for a segment of the next today, or ``turn``.

    Args:
        step: one of the two.
        keys: the keys of the shard.
        state: the shard's state as it was last read; its uid and epoch fence the turn.
        token: the token of this rotation.
        new: the geometry of the next today.
        limit: growing: the items that the next today is for; else 0.
        period: ms: refuse to turn before so much time has passed since the last turn; 0: turn in any case.
        by: the epochs to go forward.
        opened: ms: the time at which the next today counts as opened, at the earliest; 0: now.
        rate: redisbloom: the error rate of the next today; None: the filter has another layout.
        names: turn: the names of all segments of the live slices after the turn, oldest first; then those of other
            slices that go.
        number: allocate: the number of the segment.
    """
    made = [keys.slice(name) for name in replace(new, name="today_next").names]
    all_keys = (keys.meta, made[number]) if step == "allocate" else (keys.meta, *made, *map(keys.slice, names))
    numbers = map(str, (new.units, new.size, limit, period, by, opened, new.segments))
    arguments = (step, state.uid, str(state.epoch), token, *numbers)
    if rate is None:
        return Call(scripts.load("turn"), all_keys, arguments)
    return Call(scripts.load("turn", REDISBLOOM), all_keys, (*arguments, str(rate)))


def build(  # noqa: PLR0913 - likewise
    step: str,
    keys: ShardKeys,
    state: ShardState,
    *,
    number: int,
    oldest: int = 0,
    offset: int = 0,
    data: bytes = b"",
    late: bool = False,
    segment: int = 0,
) -> Call:
    """Build ``build``: step ``archived``, ``piece``, ``finish`` or ``halted``; its header describes the arguments."""
    today = state.view.slices[-1]
    rows = [replace(today, name=name).names for name in ("history", "history_1", "today")]
    names = [row[segment] for row in rows]
    if step == "finish":
        names += [name for pair in zip(rows[0][1:], rows[1][1:], strict=True) for name in pair]
        names += [f"gone:{state.epoch}:{n}" for n in range(1, today.segments + 1) if today.segments > SEGMENTS_FREED]
    fence = (step, state.uid, str(state.epoch), state.token)
    numbers, all_keys = map(str, (number, oldest, offset)), (keys.meta, *map(keys.slice, names))
    return Call(scripts.load("build"), all_keys, (*fence, *numbers, data, str(int(late)), str(segment)))


def store(step: str, keys: ShardKeys, state: ShardState, epoch: int, field: str = "", data: bytes = b"") -> Call:  # noqa: PLR0913, PLR0917 - likewise
    """Build ``store``: step ``write`` for one field of the archived slice ``epoch``, or ``delete`` for all of it."""
    arguments = (step, state.uid, str(state.epoch), state.token, field, data)
    return Call(scripts.load("store"), (keys.meta, keys.archived(epoch)), arguments)


def expire(uid: str, keys: ShardKeys) -> Call:
    """Build ``expire`` for at most ``EXPIRED_A_CALL`` digests."""
    return Call(scripts.load("expire"), (keys.meta, keys.forgotten), (uid, str(EXPIRED_A_CALL)))


def reopen(uid: str, keys: ShardKeys, *, doubt: bool = False) -> Call:
    """Build ``reopen``; ``doubt``: the server's clock is wrong now, or the caller's."""
    return Call(scripts.load("reopen"), (keys.meta,), (uid, str(int(doubt))))


def merge(  # noqa: PLR0913, PLR0917 - likewise
    step: str,
    config: Config,
    keys: ShardKeys,
    state: ShardState,
    number: int = 0,
    at: int = 0,
    data: bytes = b"",
    *,
    segment: int = 0,
) -> Call:
    """Build ``merge``: step ``forget``, ``piece`` or ``count``; ``number`` counts live slices, the oldest being 1.

    ``segment``: piece: the number of the segment, from 0. Of a slice with fewer segments any one is named.
    """
    script = scripts.load("merge", config.layout, config.k)
    if step == "forget":
        slices = SegmentNames(config, keys, state.view).of(data)
    else:
        slices = tuple(keys.slice(each.names[min(segment, len(each.names) - 1)]) for each in state.view.slices)
    all_keys = (keys.meta, keys.forgotten, *keys.merging, *slices)
    return Call(script, all_keys, (config.uid, step, str(number), str(at), data, str(state.epoch)))


def drop(
    step: str, meta: Mapping[str, str], keys: ShardKeys, doomed: Sequence[str] = (), *, archive: bool = False
) -> Call:
    """Build ``drop``: step ``begin`` or ``abandon``, or ``delete`` for the ``doomed`` keys of a shard.

    The script does nothing if the shard has another identity now than in ``meta``, as it was last read. ``archive``
    says whether the drop also deletes the filter's archive.
    """
    arguments = (step, identity(meta), str(int(archive)))
    doomed = doomed if step == "delete" else keys.merging[:1]
    return Call(scripts.load("drop"), (keys.meta, *doomed), arguments)


def identity(meta: Mapping[str, str]) -> str:
    """Return the identity of a shard: uid, timeline and restorer; empty without meta.

    It differs from the identity of any other filter, and changes with each restore.
    """
    return "/".join((meta["uid"], meta.get("timeline", ""), meta.get("restorer", ""))) if "uid" in meta else ""


def checkpoint(step: str, uid: str, keys: ShardKeys, number: int, begun: int = 0) -> Call:
    """Build ``checkpoint``: step ``begin`` with the archive's last number, or ``finish`` with the checkpoint's own."""
    return Call(scripts.load("checkpoint"), (keys.meta,), (step, uid, str(number), str(begun)))


def restore(  # noqa: PLR0913 - likewise
    step: str,
    uid: str,
    keys: ShardKeys,
    token: str,
    *,
    timeline: str = "-",
    number: int | None = None,
    given_up: str = "-",
    fields: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Call:
    """Build ``restore``: step ``begin``, ``beat``, ``arrange``, ``finish``, ``cancel`` or ``release``.

    ``names`` are names of slices: for ``arrange`` in pairs of old and new, for ``finish`` those of the live slices.
    Both have a ``number``, as ``refill`` has.
    The header of the script describes the other arguments.
    """
    known = timeline if number is None else str(number)
    all_keys = (keys.meta, *map(keys.slice, names))
    return Call(scripts.load("restore"), all_keys, (step, uid, token, known, given_up, *fields))


def refill(  # noqa: PLR0913 - the header of the script has as many
    step: str,
    uid: str,
    keys: ShardKeys,
    token: str,
    *,
    number: int,
    offset: int = 0,
    slices: Sequence[str] = (),
    data: Sequence[str | bytes] = (),
) -> Call:
    """Build ``refill``: ``allocate`` or ``piece`` of one slice, ``remove``, ``replies``, ``leases`` and so on.

    The header of the script describes the steps and their arguments.
    """
    of_claims = (*keys.of_claims, *keys.of_dead_letters)
    all_keys = (keys.meta, keys.replies, keys.forgotten, *keys.merging, *of_claims, *slices)
    return Call(scripts.load("refill"), all_keys, (step, uid, token, str(offset), str(number), *data))


def tend(step: str, uid: str, keys: ShardKeys, token: str, time: int = 0) -> Call:
    """Build ``tend``: step ``take`` for ``time`` ms, ``release``, or ``acknowledge``."""
    return Call(scripts.load("tend"), (keys.meta,), (step, uid, token, str(time)))


def lease_of(config: Config) -> float:
    """Return the seconds of a lease of the filter: at most a period, if clients that insert rotate it."""
    return min(LEASE, seconds_of(config.period or "")) if config.turned_by_inserts else LEASE


def probe(keys: ShardKeys, layout: str = "") -> Call:
    """Build ``probe``; for ``redisbloom`` that of the commands which only this layout needs."""
    return Call(scripts.load("probe", layout), keys.merging[:1], ("list",))
