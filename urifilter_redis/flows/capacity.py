"""Capacity: whether the servers' memory has room for a filter, and when a filter will be full."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.costs import memory_when_full
from urifilter_redis.bloom.retention import seconds_of, size_first
from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.queries import servers_info
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import TooLarge
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys

if TYPE_CHECKING:
    from urifilter_redis.flows.info import FilterInfo

log = logging.getLogger("urifilter_redis")

#: The free memory that a new filter must find unless it is ``large``, as a multiple of the full filter's. The quarter
#: more of ``maxmemory`` is for claims, forgotten items and connections. Other programs use the machine's memory, too,
#: and pages that change while the server saves exist twice.
SPARE = {"maxmemory": 1.25, "the machine's": 2}

#: The fields of INFO with the limits of a server's memory, and their names in messages.
_LIMITS = {"maxmemory": "maxmemory", "total_system_memory": "the machine's"}


def check_room(session: Session, settings: Settings, *, large: bool) -> Flow[None]:
    """Check that a new filter fits into the server's memory; if this user may not run INFO, assume that it does.

    Raises:
        TooLarge: the first slices do not fit into the free memory; or, without ``large``, the full filter leaves less
            of it than ``SPARE`` says.
    """
    sizing, full = size_first(settings), memory_when_full(settings, closed=session.backend is None)
    for share, room in (yield from _rooms(session, session.keys.of(sizing.shards))):
        now, most = round(share * sizing.memory), round(share * full)
        needed = size_text(now) + (f" at first and {size_text(most)} when full" if most > now else "")
        needed += " at first and more as it grows" if settings.retention == "growing" else ""
        text = f"{session.where}: it takes {needed}{room.where}, and the server has {room}"
        if now > room.free:
            advice = "raise maxmemory, free some, or take a lower capacity or a higher error_rate (see urifilter plan)"
            raise TooLarge(f"{text}: {advice}", fits=False)
        spare = SPARE[room.what]
        if spare * most > room.free and not large:
            wanted = f"{size_text(round(spare * most))}, {spare:g} times what it takes when it is full"
            advice = "raise maxmemory, or say large=True (--yes) to make it all the same"
            raise TooLarge(f"{text}: that is less than {wanted}: {advice}", fits=True)


def deletes_bitmaps(policy: str) -> bool:
    """Whether a ``maxmemory-policy`` may delete keys that never expire, as those of filters are."""
    return policy.startswith("allkeys-")


def _warn_of_eviction(session: Session, info: Mapping[str, str], node: str) -> None:
    policy = info.get("maxmemory_policy", "")
    if deletes_bitmaps(policy):
        on = f" on the master {node}" if node else ""
        text = f"maxmemory-policy{on} is {policy}, so the server deletes bitmaps when its memory is full"
        log.warning("%s: %s: CONFIG SET maxmemory-policy noeviction", session.where, text)


def check_free(session: Session, needed: int) -> Flow[None]:
    """Check that ``needed`` bytes of a restore fit into the server's memory; without INFO, assume that they do.

    Raises:
        TooLarge: they do not fit.
    """
    for share, room in (yield from _rooms(session, session.keys)):
        if share * needed > room.free:
            taken = size_text(round(share * needed))
            text = f"{session.where}: its restore takes {taken}{room.where}, and the server has {room}"
            raise TooLarge(f"{text}: raise maxmemory, or free some", fits=False)


def _rooms(session: Session, keys: FilterKeys) -> Flow[list[tuple[float, _Room]]]:
    """Return for each master the share of the filter's shards that it has, and its memory, as far as it is known.

    A master that may delete bitmaps is told of, because whoever asks is about to make or restore some.
    """
    infos = yield from servers_info(session, "memory")
    nodes = Counter(session.routes.node_of(each.read_meta) for each in keys.all)
    rooms = []
    for node, info in infos.items():
        _warn_of_eviction(session, info, node)
        limits = [(int(info[name]), what) for name, what in _LIMITS.items() if int(info.get(name, 0))]
        if limits:
            rooms.append((nodes[node] / keys.shards, _Room(int(info.get("used_memory", 0)), *min(limits), node)))
    return rooms


@dataclass(frozen=True, slots=True)
class _Room:
    """A server's memory: the used bytes, the lowest limit with its name, and the name of the node if it is one."""

    used: int
    limit: int
    what: str
    node: str

    @property
    def where(self) -> str:
        return f" on the master {self.node}" if self.node else ""

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)

    def __str__(self) -> str:
        return f"{size_text(self.free)} free ({size_text(self.used)} used of {self.what} {size_text(self.limit)})"


def full_in(info: FilterInfo, speed: float | None, now: float) -> float | None:
    """Return the seconds until a filter, or a slice of it, holds more than its capacity.

    Items of a ring or rolling filter expire meanwhile: each rotation is taken to come when it is due.

    Args:
        info: the filter's state.
        speed: new items a second; None: unknown.
        now: the server's time, seconds since 1970.

    Returns:
        The seconds; 0 if that is so now; None if it will not be so, or the speed is unknown. A growing filter is never
        full in this sense.
    """
    if info.over_capacity:
        return 0.0
    if info.retention == "growing" or not speed:
        return None
    if info.next_rotation is None or not info.period or not info.slices:
        return _seconds_for(info.capacity - info.inserted, speed)
    today, older = _held(info)
    whole = info.capacity if info.expire_after == "first-seen" or info.write == "all" else math.inf
    passed, left = 0.0, max(0.0, info.next_rotation - now)
    for _ in range(info.slices + 1):
        room = min(info.live_slices[0].capacity - today, whole - today - sum(older))
        if _seconds_for(room, speed) <= left:
            return passed + _seconds_for(room, speed)
        passed += left
        older = [today + speed * left, *older][: info.slices - 1]
        today, left = 0.0, float(seconds_of(info.period))
    return None


def _seconds_for(items: float, speed: float) -> float:
    return max(0.0, items) / speed


def _held(info: FilterInfo) -> tuple[float, list[float]]:
    """Return the items of today, and of each earlier period that has not expired, newest first.

    Rolling merges the earlier periods: its items are taken to have come evenly.
    """
    counts = [float(each.inserted) for each in info.live_slices]
    if info.write == "all":  # each slice has the items of all newer ones, too
        counts = [each - newer for each, newer in zip(counts, [0.0, *counts], strict=False)]
    today, *older = counts
    if info.retention == "rolling" and info.slices:
        periods = max(1, min(info.epoch, info.slices - 1))
        older = [sum(older) / periods] * periods
    return today, older
