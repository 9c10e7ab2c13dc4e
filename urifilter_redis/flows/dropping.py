"""The flows that remove a filter, or shards that another one has left.

Others may drop and create the same filter meanwhile, and any of them may die, so nothing is done to a shard but what
is meant for exactly the filter that was read there (see ``lua/drop.lua``). Whether that is to go, shard 0 says: it is
made first and goes last. As long as it is the one that the drop began with, what is read of other shards belongs to
that filter or to an earlier one, and to none that somebody was told of since.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING

from urifilter_redis.archive.register import read_registration, unregister
from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.engine.steps import Work
from urifilter_redis.errors import ArchiveError, ArchiveMissing, ConfigMismatch, ServerUnavailable
from urifilter_redis.flows import known_archives
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.outcomes import to_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.keys import ShardKeys

__all__ = [
    "SHARDS_AT_ONCE",
    "abandon",
    "drop",
    "end_drop",
    "keep_listed",
    "list_or_not",
    "read_first",
    "remove",
    "still",
]

#: Shards that are made or removed in one pipeline; making one takes the server up to 8 ms.
SHARDS_AT_ONCE = 16

#: Keys deleted in one call; each may be a bitmap, which takes the server 1 ms to free.
KEYS_A_CALL = 8


def drop(session: Session, *, keep_archive: bool = False) -> Flow[bool]:
    """Remove the filter with all its keys, also one that lost some; return whether there was anything.

    Args:
        session: of the filter; one that has it open drops that one and no other.
        keep_archive: leave what the archive has, from where it can be restored.

    Raises:
        ConfigMismatch: it was dropped and created anew since it was opened.
        ArchiveMissing: it has an archive, which was not named.
    """
    first = yield from read_first(session)
    uid = session.uid or first.get("uid", "")
    if first.get("uid", uid) != uid:
        raise _anew(session)
    return (yield from _drop(session, uid, first, keep_archive=keep_archive))


def end_drop(session: Session, first: Mapping[str, str]) -> Flow[bool]:
    """End the drop that another process began, and may have died in; ``first`` is what it left of shard 0's ``meta``.

    Raises:
        ArchiveMissing: that drop was to remove the archive, too, which was not named.
    """
    keep = first.get("archive_goes") != "1"  # without the field an older release began it, and with the archive
    return (yield from _drop(session, first.get("uid", ""), first, keep_archive=keep))


def abandon(session: Session) -> Flow[bool]:
    """Remove a filter that is still being made; return whether it was."""
    first = yield from read_first(session)
    (reply,) = yield from ask(session, calls.drop("abandon", first, session.keys.shard(0)))
    begun = to_mapping(reply)
    return bool(begun) and (yield from end_drop(session, begun))


def remove(session: Session, found: Mapping[int, Mapping[str, str]]) -> Flow[None]:
    """Remove shards of which this ``meta`` was read, if it is theirs still."""
    for some in chunked(sorted(found), SHARDS_AT_ONCE):
        yield from _remove(session, {shard: found[shard] for shard in some}, {}, {})


def still(session: Session, first: Mapping[str, str]) -> Flow[bool]:
    """Whether shard 0 is of the filter of which this ``meta`` was read."""
    now = yield from read_first(session)
    return calls.identity(now) == calls.identity(first)


def read_first(session: Session) -> Flow[dict[str, str]]:
    """Return the ``meta`` of shard 0, which stands for the filter; empty if it is not there."""
    (reply,) = yield from ask(session, session.read_meta(0))
    return to_mapping(reply)


def keep_listed(session: Session) -> Flow[None]:
    """See to it that the name of a filter that is there is listed; whoever took it out may have died before it looked.

    Nothing but ``names`` depends on it, so that a server or a user that may not write is no reason to fail.
    """
    with contextlib.suppress(ServerUnavailable):
        (listed,) = yield from ask(session, ("SISMEMBER", session.keys.filters, session.keys.name))
        if not listed:
            yield from list_or_not(session)


def list_or_not(session: Session) -> Flow[None]:
    """List the name if the filter is there, and take it out if it is not.

    The list is in another slot than the filter, so that others may make or drop it between: look again until it holds.
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
    """Remove the filter of ``uid``; ``first`` is the ``meta`` of shard 0, empty if it is not there.

    Without ``uid`` it is what is left of a filter of this name.
    """
    archived_uid = uid
    if not keep_archive:
        archived_uid = yield from _look_at_archive(session, uid, first)
        if not first:  # what is registered may have been made since
            first = yield from read_first(session)
            if first.get("uid", uid) != uid:
                return False
    begun = yield from _begin(session, uid, first, archive=not keep_archive)
    archived = False
    if not keep_archive and session.home is not None:
        try:
            archived = yield from unregister(session.home, session.keys.name, archived_uid)
        except ArchiveError as error:
            raise type(error)(f"{error}; the filter is half dropped: drop it again") from error
    yield Work("note", functools.partial(known_archives.forget, session))
    if uid and first and not begun:  # another process has ended it
        return True
    removed = yield from _remove_all(session, uid, begun)
    return bool(first) or archived or removed > 0


def _look_at_archive(session: Session, uid: str, first: Mapping[str, str]) -> Flow[str]:
    """Check, before anything is removed, that the archive can be; return the uid of what is to be removed there."""
    home, needed = session.home, first.get("archive", "redis")
    if home is None:
        if needed == "redis":
            return uid
        text = f"it has the archive {needed}, from where it would come back: name it, or keep it (--keep-archive)"
        if first.get("phase") == "dropping":
            text = f"its drop was stopped half-way: drop it again; {text}"
        raise ArchiveMissing(f"{session.where}: {text}")
    _, there = yield from read_registration(home, session.keys.name)
    if there is None:
        return uid
    if not first and not there.dropped and uid not in {"", there.config.uid}:
        raise _anew(session)
    return uid or there.config.uid


def _anew(session: Session) -> ConfigMismatch:
    text = "it was dropped and created anew since it was opened: open it again, or drop it by its name"
    return ConfigMismatch(f"{session.where}: {text}")


def _begin(session: Session, uid: str, first: Mapping[str, str], *, archive: bool) -> Flow[dict[str, str]]:
    """Begin with shard 0; return its ``meta``, which is as it is until it goes; empty if the filter is gone."""
    while uid and first.get("uid") == uid:
        (reply,) = yield from ask(session, calls.drop("begin", first, session.keys.shard(0), archive=archive))
        if begun := to_mapping(reply):
            return begun
        first = yield from read_first(session)  # dropped by another process, or brought back from its archive
    return {}


def _remove_all(session: Session, uid: str, first: Mapping[str, str]) -> Flow[int]:
    """Remove all shards, shard 0 last, and the name; return how many keys went.

    It ends early when shard 0 is not that of ``first`` any more: then another process has ended this drop.
    """
    left = {} if "shards" in first else (yield from _left(session))
    shards = range(1, int(first["shards"])) if "shards" in first else sorted(left.keys() - {0})
    removed = 0
    for some in chunked(shards[::-1], SHARDS_AT_ONCE):
        waiting = list(some)
        while waiting:
            replies = yield from ask(session, *(session.read_meta(shard) for shard in waiting))
            found = {shard: to_mapping(reply) for shard, reply in zip(waiting, replies, strict=True)}
            if not (yield from still(session, first)):
                return removed
            if not first and uid:  # what is left of a filter that is not there goes, and of no other
                found = {shard: meta for shard, meta in found.items() if meta.get("uid", uid) == uid}
            waiting, went = yield from _remove(session, found, first, left)
            removed += went
    refused, went = yield from _delete(session, {0: first}, first, left)
    if not refused:
        yield from list_or_not(session)
    return removed + went


def _remove(
    session: Session, found: Mapping[int, Mapping[str, str]], first: Mapping[str, str], left: Mapping[int, list[str]]
) -> Flow[tuple[list[int], int]]:
    """Remove shards as they were found; return those that were another's by then, and how many keys went."""
    there = [shard for shard, meta in found.items() if "uid" in meta]
    replies = yield from ask(
        session, *(calls.drop("begin", found[shard], session.keys.shard(shard)) for shard in there)
    )
    begun = {shard: to_mapping(reply) for shard, reply in zip(there, replies, strict=True)}
    metas = {shard: begun.get(shard, meta) for shard, meta in found.items()}
    overtaken = [shard for shard in there if not metas[shard]]
    refused, removed = yield from _delete(
        session, {shard: meta for shard, meta in metas.items() if shard not in overtaken}, first, left
    )
    return overtaken + refused, removed


def _delete(
    session: Session, metas: Mapping[int, Mapping[str, str]], first: Mapping[str, str], left: Mapping[int, list[str]]
) -> Flow[tuple[list[int], int]]:
    """Delete the keys of shards, each fenced by its ``meta``; return those that were another's, and how many went.

    ``left``: the keys that were found of each shard; where there are none, ``meta`` says which there are.
    """
    made = []
    for shard, meta in metas.items():
        keys = session.keys.shard(shard)
        last = [keys.replies, keys.forgotten, keys.meta]
        doomed = left.get(shard) or _keys_of(keys, meta or first)
        in_order = [key for key in doomed if key not in last] + last
        made += [(shard, calls.drop("delete", meta, keys, each)) for each in chunked(in_order, KEYS_A_CALL)]
    replies = yield from ask(session, *(call for _, call in made))
    refused = {shard for (shard, _), reply in zip(made, replies, strict=True) if reply < 0}
    return sorted(refused), sum(reply for reply in replies if reply > 0)


def _keys_of(keys: ShardKeys, meta: Mapping[str, str]) -> list[str]:
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
        for text in _texts(keys):
            if match := form.fullmatch(text):
                found.setdefault(int(match[1]), []).append(text)
        if int(cursor) == 0:
            return found


def _texts(keys: Iterable[bytes | str]) -> Iterator[str]:
    for key in keys:
        yield key.decode("utf-8", "replace") if isinstance(key, bytes) else key
