"""The flows that make and open a filter."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from urifilter_redis.archive.register import check_registered, register, registered
from urifilter_redis.engine.queries import ask, chunked, server_time
from urifilter_redis.engine.steps import Work
from urifilter_redis.errors import (
    ArchiveCorrupt,
    ConfigMismatch,
    FilterNotFound,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.flows import known_archives
from urifilter_redis.flows.dropping import (
    SHARDS_AT_ONCE,
    abandon,
    end_drop,
    keep_listed,
    list_or_not,
    read_first,
    remove,
    still,
)
from urifilter_redis.flows.memory import check_room
from urifilter_redis.flows.restore import ensure
from urifilter_redis.flows.rights import then_check_rights
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.keys import is_name
from urifilter_redis.protocol.outcomes import nonsense, to_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.engine.home import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["create", "names", "open_"]

#: How often making a filter is begun anew because others drop it meanwhile.
TRIES = 20


@then_check_rights
def create(session: Session, settings: Settings, *, large: bool = False) -> Flow[Config]:
    """Make the filter, or open it if it is there with these settings; complete one that is half made.

    The first creator decides, on shard 0, and with an archive there: its seed and uid are everybody's. Whoever finds
    the filter dropped or made anew by others meanwhile reads again.

    Args:
        session: of the filter.
        settings: of the filter.
        large: it may take more than half of the memory that is free.

    Raises:
        ConfigMismatch: it exists with other settings.
        SliceLost: parts of it are missing, or parts of an earlier one are left.
        TooLarge: it takes more memory than the server has free, or more than half of that and ``large`` was not said.
        ArchiveError: it needs an archive, which was not named or is not its own, or failed.
    """
    yield from _learn_time(session)
    for last in [*[False] * (TRIES - 1), True]:
        meta = yield from read_first(session)
        if meta.get("phase") == "dropping":  # a drop that died half-way, or is under way: end it, then begin anew
            yield from end_drop(session, meta)
            meta = {}
        try:
            if meta:
                yield from _join(session, meta, settings)
            else:
                yield from _begin(session, settings, large=large)
            yield from keep_listed(session)
        except ServerUnavailable:
            raise
        except FilterNotFound:
            if last:
                raise
        except UriFilterError:
            if last or not (yield from _changed(session, meta)):
                raise
        else:
            break
    return session.config


@then_check_rights
def open_(session: Session, uid: str | None = None) -> Flow[Config]:
    """Open the filter; complete it if its creator died half-way; bring it back if its archive has what Redis has not.

    Args:
        session: of the filter.
        uid: that it must have; None: any.

    Raises:
        FilterNotFound: there is none, and none is known to have been there.
        ConfigMismatch: the archive that was named has another filter of this name; or it was named in the call, and
            the filter was made without one; or there is another than that of ``uid``.
        SliceLost: ``meta`` is missing beside a slice.
        ArchiveMissing: there is none, but this user has seen one with an archive, which was not named or does not
            have it; or the archive that was named is not the filter's.
        ArchiveError: the archive failed.
    """
    yield from _learn_time(session)
    meta = yield from read_first(session)
    if meta and meta.get("phase") != "dropping":
        _check_uid(session, uid, meta.get("uid", ""))
        session.learn(meta)
        yield from _attend(session, meta)
        yield from keep_listed(session)
        return session.config
    config = (yield from registered(session.home, session.keys.name)) if session.home else None
    if config is None:
        keys = session.keys.shard(0)
        today, reply = yield from ask(session, ("EXISTS", keys.slice("today")), session.read_meta(0))
        yield Work("note", functools.partial(known_archives.check_unknown, session))
        if today and not reply:  # meta comes and goes with it, and was read after it
            raise SliceLost(f"{session.where}: meta is missing beside {keys.slice('today')}")
        raise FilterNotFound(f"{session.where}: there is no such filter: create it first")
    _check_uid(session, uid, config.uid)
    yield from _bring_back(session, config)
    return session.config


def names(session: Session) -> Flow[list[str]]:
    """List the names of the filters that there are; what somebody has put among them, and is no name, is none."""
    (members,) = yield from ask(session, ("SMEMBERS", session.keys.filters))
    if not isinstance(members, list | set):
        raise nonsense(members)
    texts = (name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in members)
    known = sorted(filter(is_name, texts))
    keys = [type(session.keys)(session.keys.prefix, name) for name in known]
    exist = yield from ask(session, *(("EXISTS", each.shard(0).meta) for each in keys))
    return [name for name, there in zip(known, exist, strict=True) if there]


def _check_uid(session: Session, wanted: str | None, found: str) -> None:
    if wanted not in {None, found}:
        text = f"it was dropped and created anew: its uid is {found} and not {wanted}: open it anew"
        raise ConfigMismatch(f"{session.where}: {text}", {"uid": (wanted, found)})


def _learn_time(session: Session) -> Flow[None]:
    session.ids.clock.learn((yield from server_time(session)))


def _changed(session: Session, meta: Mapping[str, str]) -> Flow[bool]:
    """Whether shard 0 is not as it was read."""
    now = yield from read_first(session)
    return (calls.identity(now), now.get("phase")) != (calls.identity(meta), meta.get("phase"))


def _join(session: Session, meta: dict[str, str], settings: Settings) -> Flow[None]:
    """Open a filter that is there, if it is the one that is wanted."""
    session.learn(meta).check(settings, session.where)
    yield from _attend(session, meta)


def _begin(session: Session, settings: Settings, *, large: bool) -> Flow[None]:
    """Make the filter, of which Redis has nothing; with an archive as that knows it."""
    if session.home is None:
        yield Work("note", functools.partial(known_archives.check_unknown, session))
        yield from check_room(session, settings, large=large)
        yield from _make(session, settings)
        return
    config, new = (yield from registered(session.home, session.keys.name)), False
    if config is None:
        yield Work("note", functools.partial(known_archives.check_unknown, session))
        yield from _check_no_leftovers(session, settings)
        yield from check_room(session, settings, large=large)
        config, new = yield from register(session.home, session.keys.name, Config.new(settings, session.home.shown))
    config.check(settings, session.where)
    try:
        yield from _bring_back(session, config)
    except ServerUnavailable as error:
        if new and "OOM" in str(error):
            raise _half_made(error) from error
        raise
    session.restored = None if new else session.restored


def _make(session: Session, settings: Settings) -> Flow[None]:
    """Make the filter without an archive."""
    wanted = Config.new(settings)
    phase = "idle" if wanted.shards == 1 else "creating"
    yield from ask(session, ("SADD", session.keys.filters, session.keys.name))  # first, so that all there is is listed
    try:
        call = calls.create("make", wanted, session.keys.shard(0), wanted.to_meta(0, phase))
        (reply,) = yield from ask(session, call)
    except UriFilterError as error:
        if not isinstance(error, ServerUnavailable) or "OOM" in str(error):
            yield from list_or_not(session)
        raise
    meta = to_mapping(reply)
    if meta["phase"] == "dropping":
        raise _dropped(session)
    session.learn(meta).check(settings, session.where)
    yield from _complete(session, meta)


def _dropped(session: Session) -> FilterNotFound:
    return FilterNotFound(f"{session.where}: it was dropped while it was made")


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
    yield Work("note", functools.partial(known_archives.remember, session))
    if session.home is not None:
        yield from check_registered(session)
        yield from ensure(session)


def _check_no_leftovers(session: Session, settings: Settings) -> Flow[None]:
    """Check that no shard of a filter that is to be made has slices of an earlier one."""
    shards = Config.new(settings).shards
    for some in chunked(range(shards), SHARDS_AT_ONCE):
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
    yield Work("note", functools.partial(known_archives.remember, session))
    yield from ensure(session)
    now = yield from registered(home, session.keys.name)
    if now is None or now.uid != config.uid:  # what was brought back meanwhile is nobody's
        meta = yield from read_first(session)
        if meta.get("uid") == config.uid:
            yield from end_drop(session, meta)
        raise _dropped(session)


def _complete(session: Session, meta: Mapping[str, str]) -> Flow[None]:
    """Make the other shards of a filter that is being made; ``meta`` is shard 0's.

    Raises:
        FilterNotFound: it was dropped meanwhile; nothing that was made of it is left.
    """
    if meta["phase"] != "creating":
        return
    made: dict[int, dict[str, str]] = {}
    try:
        for some in chunked(range(1, session.config.shards), SHARDS_AT_ONCE):
            yield from _make_shards(session, meta, some, made)
        yield from ask(session, calls.create("finish", session.config, session.keys.shard(0)))
    except (FilterNotFound, ConfigMismatch):
        yield from remove(session, made)
        raise _dropped(session) from None
    except ServerUnavailable as error:
        if "OOM" not in str(error):
            raise
        try:
            removed = yield from abandon(session)
        except ServerUnavailable:
            raise _half_made(error) from error
        if not removed:  # another process has completed it, or dropped it
            raise _dropped(session) from error
        raise ServerUnavailable(f"{error}; what was made of the filter is removed again") from error


def _half_made(error: ServerUnavailable) -> ServerUnavailable:
    return ServerUnavailable(f"{error}; the filter is half made: the next create completes it, and drop removes it")


def _make_shards(
    session: Session, first: Mapping[str, str], some: Sequence[int], made: dict[int, dict[str, str]]
) -> Flow[None]:
    """Make shards of the filter whose shard 0 has the ``meta`` that is ``first``; add the ``meta`` of each to ``made``.

    What an earlier filter has left empty is removed: its creator went on after it was dropped. Shard 0 tells that it
    is an earlier one's, because it is made first and goes last.
    """
    config, waiting = session.config, list(some)
    while waiting:
        calls_ = (calls.create("make", config, session.keys.shard(n), config.to_meta(n, "idle")) for n in waiting)
        replies = yield from ask(session, *calls_)
        found = {shard: to_mapping(reply) for shard, reply in zip(waiting, replies, strict=True)}
        made |= {shard: meta for shard, meta in found.items() if meta["uid"] == config.uid}
        others = {shard: meta for shard, meta in found.items() if shard not in made}
        dropping = any(meta["phase"] == "dropping" for shard, meta in found.items() if shard in made)
        if dropping or (others and not (yield from still(session, first))):
            raise _dropped(session)
        for shard, meta in others.items():
            if (meta.get("epoch"), meta.get("inserted")) != ("0", "0") and meta["phase"] != "dropping":
                text = "belongs to an earlier filter of this name: drop it, then create it anew"
                raise SliceLost(f"{session.where}: shard {shard} {text}")
        yield from remove(session, others)
        waiting = list(others)
