"""The flows that make, open and drop a filter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from urifilter_redis import calls
from urifilter_redis.config import Config, Settings
from urifilter_redis.errors import FilterNotFound, SliceLost
from urifilter_redis.exchange import ask
from urifilter_redis.replies import to_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from urifilter_redis.keys import FilterKeys
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["create", "drop", "names", "open_"]

#: Shards made or dropped in one pipeline; making one takes the server up to 8 ms.
SHARDS_A_PIPELINE = 16

#: Every slice that a shard may have, for drop.
SLICE_NAMES = ("today",)


def create(session: Session, settings: Settings) -> Flow[Config]:
    """Make the filter, or open it if it is there with these settings; complete one that is half made.

    The first creator decides, on shard 0: its seed and uid are everybody's.

    Raises:
        ConfigMismatch: it exists with other settings.
        SliceLost: parts of it are missing, or parts of an earlier one are left.
    """
    yield from _learn_time(session)
    keys = session.keys
    wanted = Config.new(settings)
    phase = "idle" if wanted.shards == 1 else "creating"
    yield from ask(session, ("SADD", keys.filters, keys.name))
    meta = yield from _make_shard_0(session, wanted, phase)
    if meta["phase"] == "dropping":  # a drop that died half-way: finish it, then begin anew
        yield from drop(session)
        yield from ask(session, ("SADD", keys.filters, keys.name))
        meta = yield from _make_shard_0(session, wanted, phase)
    session.learn(meta).check(settings, session.where)
    yield from _complete(session, meta)
    return session.config


def open_(session: Session) -> Flow[Config]:
    """Open the filter; complete it if its creator died half-way.

    Raises:
        FilterNotFound: there is none.
        SliceLost: ``meta`` is missing beside a slice.
    """
    yield from _learn_time(session)
    keys = session.keys.shard(0)
    reply, today = yield from ask(session, session.read_meta(0), ("EXISTS", keys.slice("today")))
    meta = to_mapping(reply)
    if not meta and today:
        raise SliceLost(f"{session.where}: meta is missing beside {keys.slice('today')}")
    if not meta or meta.get("phase") == "dropping":
        raise FilterNotFound(f"{session.where}: there is no such filter: create it first")
    session.learn(meta)
    yield from _complete(session, meta)
    return session.config


def drop(session: Session) -> Flow[bool]:
    """Remove the filter with all its keys, also one that lost some; return whether there was anything.

    Raises:
        ConfigMismatch: it was dropped and created anew meanwhile.
    """
    keys = session.keys
    (reply,) = yield from ask(session, session.read_meta(0))
    meta = to_mapping(reply)
    if meta:
        uid, shards = meta["uid"], set(range(int(meta["shards"])))
        yield from ask(session, calls.drop("begin", uid, keys.shard(0), SLICE_NAMES))
    else:
        uid, shards = "", (yield from _shards_left(session))
    # Before shard 0 is gone, so that the name of a filter that is created anew meanwhile stays.
    yield from ask(session, ("SREM", keys.filters, keys.name))
    removed = yield from _delete(session, uid, sorted(shards, reverse=True))
    return bool(meta) or removed > 0


def names(session: Session) -> Flow[list[str]]:
    """List the names of the filters that there are."""
    (members,) = yield from ask(session, ("SMEMBERS", session.keys.filters))
    known = sorted(name.decode() if isinstance(name, bytes) else str(name) for name in members)
    keys = [type(session.keys)(session.keys.prefix, name) for name in known]
    exist = yield from ask(session, *(("EXISTS", each.shard(0).meta) for each in keys))
    return [name for name, there in zip(known, exist, strict=True) if there]


def _learn_time(session: Session) -> Flow[None]:
    ((seconds, microseconds),) = yield from ask(session, ("TIME",))
    session.ids.clock.learn(int(seconds) * 1000 + int(microseconds) // 1000)


def _make_shard_0(session: Session, wanted: Config, phase: str) -> Flow[dict[str, str]]:
    call = calls.create("make", wanted, session.keys.shard(0), wanted.to_meta(0, phase))
    (reply,) = yield from ask(session, call)
    return to_mapping(reply)


def _complete(session: Session, meta: dict[str, str]) -> Flow[None]:
    if meta["phase"] != "creating":
        return
    config, keys = session.config, session.keys
    for some in _pieces(range(1, config.shards)):
        made = (calls.create("make", config, keys.shard(n), config.to_meta(n, "idle")) for n in some)
        replies = yield from ask(session, *made)
        for shard, reply in zip(some, replies, strict=True):
            if to_mapping(reply)["uid"] != config.uid:
                text = "belongs to an earlier filter of this name: drop it, then create it anew"
                raise SliceLost(f"{session.where}: shard {shard} {text}")
    yield from ask(session, calls.create("finish", config, keys.shard(0)))


def _delete(session: Session, uid: str, shards: Iterable[int]) -> Flow[int]:
    """Delete shards; shard 0 only if it still is the filter ``uid``, others whatever filter they were left by."""
    removed = 0
    for some in _pieces(shards):
        keys = [session.keys.shard(shard) for shard in some]
        found = yield from ask(session, *(("HGET", each.meta, "uid") for each in keys))
        uids = [each.decode() if isinstance(each, bytes) else str(each or "") for each in found]
        if uid and some[-1] == 0:
            uids[-1] = uid
        made = (calls.drop("delete", each, key, SLICE_NAMES) for each, key in zip(uids, keys, strict=True))
        removed += sum((yield from ask(session, *made)))
    return removed


def _shards_left(session: Session) -> Flow[set[int]]:
    """Find the shards of a filter whose ``meta`` is gone, by looking through all keys."""
    pattern = _pattern(session.keys)
    found: set[int] = set()
    cursor: bytes | str | int = 0
    while True:
        ((cursor, keys),) = yield from ask(session, ("SCAN", cursor, "MATCH", pattern[0], "COUNT", 1000))
        for key in keys:
            match = pattern[1].fullmatch(key.decode() if isinstance(key, bytes) else str(key))
            if match:
                found.add(int(match[1]))
        if int(cursor) == 0:
            return found


def _pattern(keys: FilterKeys) -> tuple[str, re.Pattern[str]]:
    before, after = keys.shard(0).base.split("0}:")[0], "}:"
    return f"{before}*", re.compile(re.escape(before) + r"(\d+)" + re.escape(after) + ".*", re.DOTALL)


def _pieces(shards: Iterable[int]) -> Iterator[list[int]]:
    listed = list(shards)
    for start in range(0, len(listed), SHARDS_A_PIPELINE):
        yield listed[start : start + SHARDS_A_PIPELINE]
