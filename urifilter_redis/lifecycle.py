"""The flows that make, open and drop a filter."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, TypeVar

from urifilter_redis import calls, known
from urifilter_redis.archive.register import check_registered, register, registered, unregister
from urifilter_redis.config import Config, Settings
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing, ConfigMismatch, FilterNotFound, SliceLost
from urifilter_redis.exchange import ask, server_time
from urifilter_redis.keys import is_name
from urifilter_redis.replies import to_mapping
from urifilter_redis.restore import ensure
from urifilter_redis.rights import then_check_rights
from urifilter_redis.steps import Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.archive.home import Home
    from urifilter_redis.keys import ShardKeys
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["create", "drop", "names", "open_"]

T = TypeVar("T")

#: Shards made in one pipeline; making one takes the server up to 8 ms.
SHARDS_A_PIPELINE = 16

#: Keys deleted in one call; each may be a bitmap, which takes the server 1 ms to free.
KEYS_A_CALL = 8


@then_check_rights
def create(session: Session, settings: Settings) -> Flow[Config]:
    """Make the filter, or open it if it is there with these settings; complete one that is half made.

    The first creator decides, on shard 0, and with an archive there: its seed and uid are everybody's.

    Raises:
        ConfigMismatch: it exists with other settings.
        SliceLost: parts of it are missing, or parts of an earlier one are left.
        ArchiveError: it needs an archive, which was not named or is not its own, or failed.
    """
    yield from _learn_time(session)
    meta = yield from _read_first(session)
    if meta.get("phase") == "dropping":  # a drop that died half-way: finish it, then begin anew
        yield from drop(session)
        meta = {}
    if meta:
        session.learn(meta).check(settings, session.where)
        yield from _attend(session, meta)
    elif session.home is not None:
        config, new = (yield from registered(session.home, session.keys.name)), False
        if config is None:
            yield Work("note", functools.partial(known.check_unknown, session))
            yield from _check_no_leftovers(session, settings)
            config, new = yield from register(session.home, session.keys.name, Config.new(settings, session.home.shown))
        config.check(settings, session.where)
        yield from _bring_back(session, config)
        session.restored = None if new else session.restored
    else:
        yield Work("note", functools.partial(known.check_unknown, session))
        yield from _make(session, settings)
    return session.config


@then_check_rights
def open_(session: Session) -> Flow[Config]:
    """Open the filter; complete it if its creator died half-way; bring it back if its archive has what Redis has not.

    Raises:
        FilterNotFound: there is none, and none is known to have been there.
        ConfigMismatch: the archive that was named has another filter of this name; or it was named in the call, and
            the filter was made without one.
        SliceLost: ``meta`` is missing beside a slice.
        ArchiveMissing: there is none, but this user has seen one with an archive, which was not named or does not
            have it; or the archive that was named is not the filter's.
        ArchiveError: the archive failed.
    """
    yield from _learn_time(session)
    meta = yield from _read_first(session)
    if meta and meta.get("phase") != "dropping":
        session.learn(meta)
        yield from _attend(session, meta)
        return session.config
    config = (yield from registered(session.home, session.keys.name)) if session.home else None
    if config is None:
        keys = session.keys.shard(0)
        (today,) = yield from ask(session, ("EXISTS", keys.slice("today")))
        yield Work("note", functools.partial(known.check_unknown, session))
        if today and not meta:
            raise SliceLost(f"{session.where}: meta is missing beside {keys.slice('today')}")
        raise FilterNotFound(f"{session.where}: there is no such filter: create it first")
    yield from _bring_back(session, config)
    return session.config


def drop(session: Session, *, keep_archive: bool = False) -> Flow[bool]:
    """Remove the filter with all its keys, also one that lost some; return whether there was anything.

    Args:
        session: of the filter.
        keep_archive: leave what the archive has, from where it can be restored.

    Raises:
        ConfigMismatch: it was dropped and created anew meanwhile.
        ArchiveMissing: it has an archive, which was not named.
    """
    keys = session.keys
    meta = yield from _read_first(session)
    archived = False
    if not keep_archive:
        archived = yield from _drop_archive(session, meta)
    yield Work("note", functools.partial(known.forget, session))
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
    return bool(meta) or archived or removed > 0


def names(session: Session) -> Flow[list[str]]:
    """List the names of the filters that there are; what somebody has put among them, and is no name, is none."""
    (members,) = yield from ask(session, ("SMEMBERS", session.keys.filters))
    texts = (name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in members)
    known = sorted(filter(is_name, texts))
    keys = [type(session.keys)(session.keys.prefix, name) for name in known]
    exist = yield from ask(session, *(("EXISTS", each.shard(0).meta) for each in keys))
    return [name for name, there in zip(known, exist, strict=True) if there]


def _learn_time(session: Session) -> Flow[None]:
    session.ids.clock.learn((yield from server_time(session)))


def _read_first(session: Session) -> Flow[dict[str, str]]:
    (reply,) = yield from ask(session, session.read_meta(0))
    return to_mapping(reply)


def _make(session: Session, settings: Settings) -> Flow[None]:
    """Make the filter without an archive."""
    wanted = Config.new(settings)
    yield from ask(session, ("SADD", session.keys.filters, session.keys.name))
    meta = yield from _make_shard_0(session, wanted, "idle" if wanted.shards == 1 else "creating")
    session.learn(meta).check(settings, session.where)
    yield from _complete(session, meta)


def _check_archive(session: Session, home: Home) -> Flow[None]:
    """Check that the archive that was named has no other filter of this name, and if that was demanded, has this one.

    An archive that the environment names is for those filters that have one.
    """
    config = session.config
    there = yield from registered(home, session.keys.name)
    if there is not None and there.uid != config.uid:
        text = f"there are two filters of this name: Redis has uid {config.uid}, and the archive that was named"
        own = "without the archive" if config.archive in {None, "redis"} else "with its own archive"
        advice = f"to use the one in Redis, open it {own}; to restore the archive's, drop the one in Redis first"
        uids: dict[str, tuple[object, object]] = {"uid": (there.uid, config.uid)}
        raise ConfigMismatch(f"{session.where}: {text} has uid {there.uid}: {advice}", uids)
    if config.archive in {None, "redis"} and session.insists:
        differences: dict[str, tuple[object, object]] = {"archive": (home.shown, config.archive)}
        text = f"archive is {config.archive!r} and not {home.shown!r}"
        advice = "make another with --like and unite them"
        raise ConfigMismatch(f"{session.where}: the filter exists with other settings: {text} ({advice})", differences)


def _attend(session: Session, meta: dict[str, str]) -> Flow[None]:
    """See to it that a filter that is there is the one that is meant, and whole."""
    if session.home is not None:
        yield from _check_archive(session, session.home)
    if session.config.archive in {None, "redis"}:
        yield from _complete(session, meta)
        return
    yield Work("note", functools.partial(known.remember, session))
    if session.home is not None:
        yield from check_registered(session)
        yield from ensure(session)


def _check_no_leftovers(session: Session, settings: Settings) -> Flow[None]:
    """Check that no shard of a filter that is to be made has slices of an earlier one."""
    shards = Config.new(settings).shards
    for some in _pieces(range(shards), SHARDS_A_PIPELINE):
        bases = [session.keys.shard(shard) for shard in some]
        slices = [(keys, keys.slice(name)) for keys in bases for name in ("today", "history", "history_1")]
        there = yield from ask(session, *(("EXISTS", key) for _, key in slices))
        metas = yield from ask(session, *(("EXISTS", keys.meta) for keys, _ in slices))
        for (_, key), slice_, meta in zip(slices, there, metas, strict=True):
            if slice_ and not meta:  # meta, which is made before slices, was looked for after them
                raise SliceLost(
                    f"{session.where}: meta is missing beside {key}: drop what is left of an earlier filter"
                )


def _bring_back(session: Session, config: Config) -> Flow[None]:
    """Make the filter as its archive knows it, with all that is kept there."""
    assert session.home is not None  # noqa: S101 - config is from there
    home = session.home
    others = {key.uid for key in (yield from home.keys(session.keys.name)) if key.uid} - {config.uid}
    if others:
        text = f"the registration of {session.keys.name!r} is of uid {config.uid}, and there are checkpoints of"
        raise ArchiveCorrupt(f"archive {home.shown}: {text} {', '.join(sorted(others))}: bring the right one back")
    fields = config.to_meta(0, "restoring")
    session.learn(dict(zip(fields[::2], fields[1::2], strict=True)) | {"uid": config.uid})
    yield Work("note", functools.partial(known.remember, session))
    yield from ensure(session)


def _drop_archive(session: Session, meta: dict[str, str]) -> Flow[bool]:
    """Remove what the archive has of the filter; return whether there was anything."""
    home, needed = session.home, meta.get("archive", "redis")
    if home is None:
        if needed != "redis":
            text = f"it has the archive {needed}, from where it would come back: name it, or keep it (--keep-archive)"
            raise ArchiveMissing(f"{session.where}: {text}")
        return False
    config = yield from registered(home, session.keys.name)
    if config is not None and meta and meta.get("uid") != config.uid:  # another filter of this name
        return False
    return (yield from unregister(home, session.keys.name))


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
