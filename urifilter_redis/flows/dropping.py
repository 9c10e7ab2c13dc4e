"""The flows that remove a filter, or shards of an earlier filter of the same name.

Other processes may drop and create the same filter meanwhile, and any of them may die. So each command to a shard
names the identity that was read there, and does nothing if the shard has another by then (see ``lua/drop.lua``).
Shard 0 is made first and removed last. As long as it has the identity with which the drop began, the other shards
belong to the same filter or to an earlier one, and not to a filter that was created since.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import replace

from urifilter_redis.bloom.sizing import GROWN_SEGMENTS, Slice
from urifilter_redis.checks import check_flag
from urifilter_redis.engine.queries import ask, chunked, read_first
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow, Work
from urifilter_redis.errors import ArchiveError, ArchiveMissing, ConfigMismatch, ServerUnavailable, SliceLost
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.outcomes import text_in, to_mapping
from urifilter_redis.protocol.routing import for_node
from urifilter_redis.storage import registry
from urifilter_redis.storage.registry import find_registration, unregister

#: Most shards that are made or removed in one pipeline; the making of one takes the server up to 8 ms.
SHARDS_AT_ONCE = 16


def drop(session: Session, *, keep_archive: bool = False, uid: str = "") -> Flow[bool]:
    """Remove the filter with all its keys, even if some are lost; return whether there was anything to remove.

    Args:
        session: the filter's session. If it has opened the filter, it drops that filter and no other of the name.
        keep_archive: keep the filter's archive, from which it can be restored.
        uid: the uid of the filter to drop; empty: the session's, or that of any filter of the name.

    Raises:
        ConfigMismatch: the filter was dropped and created anew since it was opened.
        ArchiveMissing: the filter has an archive, and the caller has not named it.
    """
    check_flag("keep_archive", keep_archive)
    session.clear_near()
    try:
        first = yield from read_first(session)
        uid = uid or session.uid or first.get("uid", "")
        if first.get("uid", uid) != uid:
            raise _anew(session)
        return (yield from _drop(session, uid, first, keep_archive=keep_archive))
    finally:
        session.clear_near()


def end_drop(session: Session, first: Mapping[str, str]) -> Flow[bool]:
    """Finish a drop that another process began and may not finish; ``first`` is the ``meta`` of shard 0.

    Raises:
        ArchiveMissing: that drop was to remove the archive, too, and this caller has not named it.
    """
    keep = first.get("archive_goes") != "1"
    return (yield from _drop(session, first.get("uid", ""), first, keep_archive=keep))


def abandon(session: Session) -> Flow[bool]:
    """Remove a filter that is still being made; return whether there was one."""
    first = yield from read_first(session)
    (reply,) = yield from ask(session, calls.drop("abandon", first, session.keys.shard(0)))
    begun = to_mapping(reply)
    return bool(begun) and (yield from end_drop(session, begun))


def remove(session: Session, found: Mapping[ShardKeys, Mapping[str, str]]) -> Flow[None]:
    """Remove shards, each only if its identity is still that of its ``meta`` in ``found``."""
    for some in chunked(list(found), SHARDS_AT_ONCE):
        yield from _remove(session, {keys: found[keys] for keys in some}, {}, {})


def still(session: Session, first: Mapping[str, str]) -> Flow[bool]:
    """Whether shard 0 still has the identity of ``first``, its ``meta`` as it was read before."""
    now = yield from read_first(session)
    return calls.identity(now) == calls.identity(first)


def keep_listed(session: Session) -> Flow[None]:
    """List the name of an existing filter again, if it is not listed.

    A process that removed the name may have died before it noticed that the filter was made anew. Only ``names``
    depends on the list, so a server or a user that may not write is no reason to fail.
    """
    with contextlib.suppress(ServerUnavailable):
        (listed,) = yield from ask(session, ("SISMEMBER", session.keys.filters, session.keys.name))
        if not listed:
            yield from list_or_not(session)


def check_no_leftovers(session: Session, config: Config) -> Flow[None]:
    """Check that there are no slices of an earlier filter in the shards of the filter to be made.

    Raises:
        SliceLost: there are some.
    """
    for shards in chunked(session.keys.of(config.shards).all, SHARDS_AT_ONCE):
        rows = [replace(config.today, name=name) for name in ("today", "history", "history_1")]
        slices = [(keys, keys.slice(name)) for keys in shards for row in rows for name in row.names]
        there = yield from ask(session, *(("EXISTS", key) for _, key in slices))
        metas = yield from ask(session, *(("EXISTS", keys.meta) for keys, _ in slices))
        for (_, key), slice_, meta in zip(slices, there, metas, strict=True):
            if slice_ and not meta:  # meta is made before slices, and is asked for after them here
                text = "drop the filter first, to remove the slices of an earlier filter"
                raise SliceLost(f"{session.where}: meta is missing beside {key}: {text}")


def list_or_not(session: Session) -> Flow[None]:
    """List the name if the filter is there, and remove the name if it is not.

    No script can change the list together with the filter, because the list has another hash tag. Other processes may
    make or drop the filter in between. So the filter is asked for again after each write, until nothing has changed.
    """
    listed, meta = (session.keys.filters, session.keys.name), ("EXISTS", session.keys.shard(0).meta)
    (there,) = yield from ask(session, meta)
    while True:
        before = there
        yield from ask(session, ("SADD" if there else "SREM", *listed))
        (there,) = yield from ask(session, meta)
        if there == before:
            return


def _drop(session: Session, uid: str, first: Mapping[str, str], *, keep_archive: bool) -> Flow[bool]:
    """Remove the filter of ``uid``; without a ``uid``, remove the leftovers of filters of this name.

    ``first`` is the ``meta`` of shard 0, empty if there is none.
    """
    yield from ask(session, ("SREM", session.keys.filters, ""))  # a user without this right would drop half of it
    archived_uid = uid
    if not keep_archive:
        archived_uid = yield from _check_archive(session, uid, first)
        if not first:  # the registered filter may have been made since
            first = yield from read_first(session)
            if first.get("uid", uid) != uid:
                return False
    begun = yield from _begin_drop(session, uid, first, archive=not keep_archive)
    archived = False
    if not keep_archive and session.backend is not None:
        try:
            archived = yield from unregister(session.backend, session.keys.name, archived_uid)
        except ArchiveError as error:
            raise type(error)(f"{error}; the filter is half dropped: drop it again") from error
    yield Work("note", functools.partial(registry.forget, session))
    if uid and first and not begun:  # another process has finished the drop
        return True
    removed = yield from _remove_all(session, uid, begun)
    return bool(first) or archived or removed > 0


def _check_archive(session: Session, uid: str, first: Mapping[str, str]) -> Flow[str]:
    """Check, before anything is removed, that the archive can be removed; return the uid to remove there."""
    backend, needed = session.backend, first.get("archive", "redis")
    if backend is None:
        if needed == "redis":
            return uid
        text = f"it has the archive {needed}: name that to remove it too, or keep it (--keep-archive)"
        if first.get("phase") == "dropping":
            text = f"its drop was stopped half-way: drop it again; {text}"
        raise ArchiveMissing(f"{session.where}: {text}")
    there = (yield from find_registration(backend, session.keys.name)).registration
    if there is None:
        return uid
    if not first and not there.dropped and uid not in {"", there.config.uid}:
        raise _anew(session)
    return uid or there.config.uid


def _anew(session: Session) -> ConfigMismatch:
    text = "it was dropped and created anew since it was opened: open it again, or drop it by its name"
    return ConfigMismatch(f"{session.where}: {text}")


def _begin_drop(session: Session, uid: str, first: Mapping[str, str], *, archive: bool) -> Flow[dict[str, str]]:
    """Begin the drop at shard 0; return its ``meta``, which no longer changes; an empty dict if the filter is gone."""
    while uid and first.get("uid") == uid:
        (reply,) = yield from ask(session, calls.drop("begin", first, session.keys.shard(0), archive=archive))
        if begun := to_mapping(reply):
            return begun
        first = yield from read_first(session)  # another process has dropped or restored the filter
    return {}


def _remove_all(session: Session, uid: str, first: Mapping[str, str]) -> Flow[int]:
    """Remove all shards, shard 0 last, and the name; return the number of removed keys.

    It ends early if shard 0 no longer has the identity of ``first``, because another process has finished this drop.
    """
    made, shard_0 = session.keys.of_meta(first), session.keys.shard(0)
    left = {} if made else (yield from _left(session))
    every = made.all if made else list(left)
    shards = [keys for keys in reversed(every) if keys != shard_0]
    removed = 0
    for some in chunked(shards, SHARDS_AT_ONCE):
        waiting = list(some)
        while waiting:
            replies = yield from ask(session, *(keys.read_meta for keys in waiting))
            found = {keys: to_mapping(reply) for keys, reply in zip(waiting, replies, strict=True)}
            if not (yield from still(session, first)):
                return removed
            if not first and uid:  # of a filter without shard 0, only its own shards are removed
                found = {keys: meta for keys, meta in found.items() if meta.get("uid", uid) == uid}
            waiting, went = yield from _remove(session, found, first, left)
            removed += went
    refused, went = yield from _delete(session, {shard_0: first}, first, left)
    if not refused:
        yield from list_or_not(session)
    return removed + went


def _remove(
    session: Session,
    found: Mapping[ShardKeys, Mapping[str, str]],
    first: Mapping[str, str],
    left: Mapping[ShardKeys, list[str]],
) -> Flow[tuple[list[ShardKeys], int]]:
    """Remove shards as they were found; return those with another identity by then, and the number of removed keys."""
    there = [keys for keys, meta in found.items() if "uid" in meta]
    replies = yield from ask(session, *(calls.drop("begin", found[keys], keys) for keys in there))
    begun = dict(zip(there, map(to_mapping, replies), strict=True))
    overtaken = [keys for keys in there if not begun[keys]]
    metas = {keys: meta for keys, meta in {**found, **begun}.items() if keys not in overtaken}
    refused, removed = yield from _delete(session, metas, first, left)
    return overtaken + refused, removed


def _delete(
    session: Session,
    metas: Mapping[ShardKeys, Mapping[str, str]],
    first: Mapping[str, str],
    left: Mapping[ShardKeys, list[str]],
) -> Flow[tuple[list[ShardKeys], int]]:
    """Delete the keys of shards; return those with another identity by then, and the number of removed keys.

    ``metas`` has the ``meta`` of each shard, which has the shard's identity. It also tells the keys of a shard that is
    not in ``left``; for a shard without ``meta``, ``first`` does, the ``meta`` of shard 0.

    The calls are not for one pipeline: each takes the server some ms, and it can serve others between two.
    """
    refused: list[ShardKeys] = []
    removed = 0
    for keys, meta in metas.items():
        last = [keys.replies, keys.forgotten, *keys.of_claims, *keys.of_dead_letters, keys.meta]
        doomed = left.get(keys) or _keys_of(keys, meta or first)
        slices = [key for key in doomed if key not in last]
        for some in (*chunked(slices, calls.segments_freed((meta or first).get("layout"))), last):
            (reply,) = yield from ask(session, calls.drop("delete", meta, keys, some))
            if reply < 0:
                refused.append(keys)
                break
            removed += reply
    return refused, removed


def _keys_of(keys: ShardKeys, meta: Mapping[str, str]) -> list[str]:
    """Return the keys that a shard with this ``meta`` may have, including those of a rotation under way."""
    epoch, window = int(meta.get("epoch", 0)), int(meta.get("window", 0))
    entries = meta.get("slices", "").split()
    live = max(window if meta.get("retention") == "ring" else 0, len(entries) + 1)
    segments = max((int(number) for each in entries if (number := each.rpartition(":")[2]).isdecimal()), default=1)
    names = ["today", "history", *(f"history_{n}" for n in range(1, live))]
    names = [segment for name in names for segment in Slice(name, 0, 0, segments).names]
    names += Slice("today_next", 0, 0, max(segments, GROWN_SEGMENTS)).names
    archived: set[int] = set()
    if meta.get("retention") == "rolling":
        closed = (entry.partition(":")[0] for entry in meta.get("closed", "").split())
        archived = {*range(max(0, epoch - window - 1), epoch + 2), *(int(each) for each in closed if each.isdecimal())}
    return [keys.rates, *keys.merging, *map(keys.slice, names), *map(keys.archived, archived)]


def _left(session: Session) -> Flow[dict[ShardKeys, list[str]]]:
    """Return, by shard, the keys that filters of this name have left, by a SCAN of the whole database on all masters.

    A key tells its shard by its tag: filters with other numbers of shards may have left shards of the same number.
    """
    pattern = session.keys.beginning + "*"
    found: dict[ShardKeys, list[str]] = {}
    for node in session.routes.masters:
        cursor: bytes | str = "0"
        while True:
            command = for_node(("SCAN", cursor, "MATCH", pattern, "COUNT", "1000"), node)
            ((cursor, keys),) = yield from ask(session, command)
            for text in map(text_in, keys):
                if shard := session.keys.shard_of(text):
                    found.setdefault(shard, []).append(text)
            if int(cursor) == 0:
                break
    return found
