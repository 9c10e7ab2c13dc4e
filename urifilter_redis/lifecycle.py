"""The flows that make, open and drop a filter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from urifilter_redis import calls
from urifilter_redis.config import Config, Settings
from urifilter_redis.errors import FilterNotFound, SliceLost
from urifilter_redis.exchange import ask, server_time
from urifilter_redis.replies import to_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.keys import ShardKeys
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["create", "drop", "names", "open_"]

T = TypeVar("T")

#: Shards made in one pipeline; making one takes the server up to 8 ms.
SHARDS_A_PIPELINE = 16

#: Keys deleted in one call; each may be a bitmap, which takes the server 1 ms to free.
KEYS_A_CALL = 8


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
    left: dict[int, list[str]] = {}
    if meta:
        shards = list(range(int(meta["shards"])))
        yield from ask(session, calls.drop("begin", meta["uid"], keys.shard(0)))
    else:
        left = yield from _left(session)
        shards = sorted(left)
    # Before shard 0 is gone, so that the name of a filter that is created anew meanwhile stays.
    yield from ask(session, ("SREM", keys.filters, keys.name))
    removed = yield from _delete(session, meta, shards[::-1], left)
    return bool(meta) or removed > 0


def names(session: Session) -> Flow[list[str]]:
    """List the names of the filters that there are."""
    (members,) = yield from ask(session, ("SMEMBERS", session.keys.filters))
    known = sorted(name.decode() if isinstance(name, bytes) else str(name) for name in members)
    keys = [type(session.keys)(session.keys.prefix, name) for name in known]
    exist = yield from ask(session, *(("EXISTS", each.shard(0).meta) for each in keys))
    return [name for name, there in zip(known, exist, strict=True) if there]


def _learn_time(session: Session) -> Flow[None]:
    session.ids.clock.learn((yield from server_time(session)))


def _make_shard_0(session: Session, wanted: Config, phase: str) -> Flow[dict[str, str]]:
    call = calls.create("make", wanted, session.keys.shard(0), wanted.to_meta(0, phase))
    (reply,) = yield from ask(session, call)
    return to_mapping(reply)


def _complete(session: Session, meta: dict[str, str]) -> Flow[None]:
    if meta["phase"] != "creating":
        return
    config, keys = session.config, session.keys
    for some in _pieces(range(1, config.shards), SHARDS_A_PIPELINE):
        made = (calls.create("make", config, keys.shard(n), config.to_meta(n, "idle")) for n in some)
        replies = yield from ask(session, *made)
        for shard, reply in zip(some, replies, strict=True):
            if to_mapping(reply)["uid"] != config.uid:
                text = "belongs to an earlier filter of this name: drop it, then create it anew"
                raise SliceLost(f"{session.where}: shard {shard} {text}")
    yield from ask(session, calls.create("finish", config, keys.shard(0)))


def _delete(session: Session, first: dict[str, str], shards: Sequence[int], left: dict[int, list[str]]) -> Flow[int]:
    """Delete shards; shard 0 only if it still is the filter of ``first``, others whatever filter they were left by.

    ``left``: the keys that were found of each shard; where there are none, ``meta`` says which there are.
    """
    removed = 0
    for some in _pieces(shards, SHARDS_A_PIPELINE):
        replies = yield from ask(session, *(session.read_meta(shard) for shard in some))
        metas = [
            first if first and shard == 0 else to_mapping(reply) for shard, reply in zip(some, replies, strict=True)
        ]
        begun, deleted = [], []
        for shard, meta in zip(some, metas, strict=True):
            keys, uid = session.keys.shard(shard), meta.get("uid", "")
            begun += [calls.drop("begin", uid, keys)] if uid else []
            doomed = left.get(shard) or _keys_of(keys, meta or first)
            last = [keys.replies, keys.forgotten, keys.meta]
            in_order = [key for key in doomed if key not in last] + last
            deleted += [calls.drop("delete", uid, keys, each) for each in _pieces(in_order, KEYS_A_CALL)]
        yield from ask(session, *begun)
        removed += sum((yield from ask(session, *deleted)))
    return removed


def _keys_of(keys: ShardKeys, meta: dict[str, str]) -> list[str]:
    """Return the keys that a shard with this ``meta`` may have, those of a rotation under way too."""
    epoch, window = int(meta.get("epoch", 0)), int(meta.get("window", 0))
    live = max(window if meta.get("retention") == "ring" else 0, len(meta.get("slices", "").split()) + 1)
    names = ["today", "history", *(f"history_{n}" for n in range(1, live))]
    archived = range(max(0, epoch - window - 1), epoch + 2) if meta.get("retention") == "rolling" else ()
    return [keys.next, *keys.merging, *map(keys.slice, names), *map(keys.archived, archived)]


def _left(session: Session) -> Flow[dict[int, list[str]]]:
    """Find what is left of a filter whose ``meta`` is gone, by looking through all keys: the keys of each shard."""
    before, after = session.keys.shard(0).base.split("0}:")[0], "}:"
    form = re.compile(re.escape(before) + r"(\d+)" + re.escape(after) + ".*", re.DOTALL)
    found: dict[int, list[str]] = {}
    cursor: bytes | str | int = 0
    while True:
        ((cursor, keys),) = yield from ask(session, ("SCAN", cursor, "MATCH", f"{before}*", "COUNT", 1000))
        for key in keys:
            text = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
            if match := form.fullmatch(text):
                found.setdefault(int(match[1]), []).append(text)
        if int(cursor) == 0:
            return found


def _pieces(listed: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(listed), size):
        yield listed[start : start + size]
