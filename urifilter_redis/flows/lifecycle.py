"""The flows that make and open a filter."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from urifilter_redis.bloom.retention import placed
from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.checks import check_flag, check_text
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.queries import ask, chunked, read_first, server_time, time_of
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import REST, Flow, Send, Work
from urifilter_redis.errors import (
    ArchiveCorrupt,
    ConfigMismatch,
    FilterNotFound,
    ServerFull,
    ServerUnavailable,
    SliceLost,
    Unsupported,
    UriFilterError,
)
from urifilter_redis.flows import dropping
from urifilter_redis.flows.auto_rotate import tell_who_rotates
from urifilter_redis.flows.capacity import check_room
from urifilter_redis.flows.loss import acknowledge
from urifilter_redis.flows.probe import check_module, check_rights, check_server
from urifilter_redis.flows.restore import ensure
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.keys import FilterKeys, ShardKeys, is_name
from urifilter_redis.protocol.outcomes import FORBIDDEN_KEY, nonsense, text_in, to_mapping
from urifilter_redis.protocol.routing import for_node
from urifilter_redis.storage import registry
from urifilter_redis.storage.registry import check_registered, is_dropped, note_made, register, registered

#: The position of a replica's state in the reply of ROLE.
_STATE = 3

#: The most attempts to make a filter: other processes may drop it meanwhile.
TRIES = 20


def create(session: Session, settings: Settings, *, large: bool = False, items: str | None = None) -> Flow[Config]:
    """Make the filter, or open it if it exists with these settings; complete it if it is half made.

    The first creator chooses the uid and the seed for all: in shard 0, or in the archive if there is one. The attempt
    is repeated if other processes drop or create the filter meanwhile. ``large``: the filter may leave the server too
    little free memory. ``items``: what its items are.

    Raises:
        ConfigMismatch: the filter exists with other settings.
        SliceLost: parts of the filter are missing, or parts of an earlier one are left.
        TooLarge: the filter does not fit into the server's free memory, or leaves too little without ``large``.
        ArchiveError: the filter's archive failed, was not named, or another one was named.
    """
    yield from check_server(session)
    check_flag("large", large)
    check_text("items", items, optional=True)
    yield from _learn_time(session)
    yield from check_module(session, settings.layout)
    for attempt in range(1, TRIES + 1):
        meta = yield from read_first(session)
        if meta.get("phase") == "dropping":  # finish the drop of another process, which may have died
            yield from dropping.end_drop(session, meta)
            meta = {}
        try:
            if meta:
                session.learn(meta).check(settings, session.where)
                yield from _finish_making(session, meta)
            else:
                yield from _make_anew(session, settings, large=large, items=items)
            yield from dropping.keep_listed(session)
        except (ServerUnavailable, Unsupported):
            raise
        except FilterNotFound:
            if attempt == TRIES:
                raise
        except UriFilterError:
            if attempt == TRIES or not (yield from _changed(session, meta)):
                raise
        else:
            break
    check_rights(session)
    return session.config


def open_(session: Session, uid: str | None = None) -> Flow[Config]:
    """Open the filter; complete it if it is half made, and restore the shards that are missing, damaged or older.

    A caller may name the filter's ``uid``.

    Raises:
        FilterNotFound: there is no filter of this name, and this user knows of no archive of it.
        ConfigMismatch: the named archive has another filter of this name; or the caller named an archive, and the
            filter was made without one; or the filter has another uid than ``uid``.
        SliceLost: ``meta`` is missing beside a slice.
        ArchiveMissing: there is no filter, but this user has opened one with an archive. It was not named now, or does
            not have the filter. Or the named archive is not the filter's.
        ArchiveError: the archive failed.
    """
    yield from check_server(session)
    yield from _learn_time(session)
    meta = yield from read_first(session)
    if meta and meta.get("phase") != "dropping":
        _check_uid(session, uid, meta.get("uid", ""))
        yield from check_module(session, session.learn(meta).layout)
        yield from _finish_making(session, meta)
        yield from dropping.keep_listed(session)
        check_rights(session)
        return session.config
    config = (yield from registered(session.backend, session.keys.name)) if session.backend else None
    if config is None:
        keys = session.keys.shard(0)
        today, reply = yield from ask(session, ("EXISTS", keys.slice("today")), session.read_meta(0))
        yield Work("note", functools.partial(registry.check_unknown, session))
        if today and not reply:  # meta is made before today and removed after it, and was read after it here
            raise SliceLost(f"{session.where}: meta is missing beside {keys.slice('today')}: drop the filter")
        yield from _check_has_data(session)
        raise FilterNotFound(f"{session.where}: there is no such filter: create it first")
    _check_uid(session, uid, config.uid)
    yield from _restore_registered(session, config)
    check_rights(session)
    return session.config


def restore_by_hand(session: Session) -> Flow[Config]:
    """Open the filter as somebody who asks for its restore, and so knows of what is lost; raises as ``open_``."""
    session.by_hand = True
    yield from open_(session)
    yield from acknowledge(session)
    return session.config


def names(session: Session) -> Flow[list[str]]:
    """Return the names of the existing filters, sorted.

    A member of the list that cannot be a name is left out, and so is a filter whose keys this user may not touch.
    """
    (members,) = yield from ask(session, ("SMEMBERS", session.keys.filters))
    if not isinstance(members, list | set):
        raise nonsense(members)
    if not members:
        yield from _check_has_data(session)
    known = sorted(filter(is_name, map(text_in, members)))
    exist = yield from _exist(session, [FilterKeys(session.keys.prefix, name).shard(0).meta for name in known])
    return [name for name, there in zip(known, exist, strict=True) if there]


def _exist(session: Session, keys: Sequence[str]) -> Flow[list[bool]]:
    """Return whether each key is there; False if this user may not touch it."""
    try:
        return list(map(bool, (yield from ask(session, *(("EXISTS", key) for key in keys)))))
    except ServerUnavailable as error:
        if FORBIDDEN_KEY not in str(error):
            raise
    found = []
    for key in keys if len(keys) > 1 else ():  # the error does not say of all keys that are forbidden
        found += yield from _exist(session, [key])
    return found or [False]


def _check_has_data(session: Session) -> Flow[None]:
    """Check that a server without data is no replica that waits for the data of its primary."""
    if not session.routes.alone:
        return
    try:
        (role,) = yield from ask(session, ("ROLE",))
    except ServerUnavailable:  # it does not know ROLE, or this user may not ask
        return
    if not isinstance(role, list) or len(role) <= _STATE:
        return
    kind, state = text_in(role[0]), text_in(role[_STATE])
    if kind == "slave" and state != "connected":
        text = f"it is a replica that does not have the data of its primary yet ({state})"
        raise ServerUnavailable(f"{session.where}: {text}: ask again later, or give the address of the primary")


def _check_uid(session: Session, wanted: str | None, found: str) -> None:
    if wanted not in {None, found}:
        text = f"it was dropped and created anew: its uid is {found} and not {wanted}: open it anew"
        raise ConfigMismatch(f"{session.where}: {text}", {"uid": (wanted, found)})


def _learn_time(session: Session) -> Flow[None]:
    """Learn the clocks of all masters."""
    session.clock_of(0).learn((yield from server_time(session)))  # the first command to any server finds the masters
    if not session.routes.alone:
        masters = session.routes.masters
        outcomes = yield Send([for_node(("TIME",), each) for each in masters])
        for node, outcome in zip(masters, outcomes, strict=True):
            if isinstance(outcome, list):  # the clock of a master that is away is learned from its first refusal
                session.ids.clock_of(node).learn(time_of(outcome))


def _changed(session: Session, meta: Mapping[str, str]) -> Flow[bool]:
    """Whether shard 0 has another identity or phase than in ``meta``, as it was read before."""
    now = yield from read_first(session)
    return (calls.identity(now), now.get("phase")) != (calls.identity(meta), meta.get("phase"))


def _finish_making(session: Session, meta: dict[str, str]) -> Flow[None]:
    """Check the archive of an existing filter, and complete or restore the filter."""
    if session.backend is not None:
        yield from _check_archive(session, session.backend)
    if not session.config.has_backend:
        yield from _complete(session, meta)
        return
    yield Work("note", functools.partial(registry.remember, session))
    if session.backend is not None:
        yield from check_registered(session)
        yield from ensure(session)
        yield from note_made(session)


def _make_anew(session: Session, settings: Settings, *, large: bool, items: str | None) -> Flow[None]:
    """Make a filter of which Redis has nothing, from the registration in the archive if there is one."""
    backend, name = session.backend, session.keys.name
    if backend is not None and settings.layout == REDISBLOOM:
        advice = "leave archive= and URIFILTER_ARCHIVE out, or take layout blocked, or classic"
        raise ValueError(f"layout redisbloom has no archive, because the server alone can read its slices: {advice}")
    config, new = (yield from registered(backend, name)) if backend else None, False
    if config is None:
        planned = placed(settings, len(session.routes.masters))
        wanted = Config.new(planned, backend.shown if backend else None, items)
        yield Work("note", functools.partial(registry.check_unknown, session))
        yield from dropping.check_no_leftovers(session, wanted)
        yield from check_room(session, planned, large=large)
        if backend is None:
            yield from _make(session, wanted, settings)
            return
        config, new = yield from register(backend, name, wanted)
    config.check(settings, session.where)
    try:
        yield from _restore_registered(session, config)
    except ServerFull as error:
        if new:
            raise _half_made(error) from error
        raise
    if new:
        session.restored = None
        tell_who_rotates(session)


def _make(session: Session, wanted: Config, settings: Settings) -> Flow[None]:
    """Make the filter without an archive, unless another process was faster with these settings."""
    phase = "idle" if wanted.segments == 1 else "creating"
    yield from ask(session, ("SADD", session.keys.filters, session.keys.name))  # first, so that every filter is listed
    try:
        call = calls.create("make", wanted, session.keys.shard(0), wanted.to_meta(0, phase))
        (reply,) = yield from ask(session, call)
    except UriFilterError as error:
        if not isinstance(error, ServerUnavailable) or isinstance(error, ServerFull):
            yield from dropping.list_or_not(session)
        raise
    meta = to_mapping(reply)
    if meta["phase"] == "dropping":
        raise _dropped(session)
    session.learn(meta).check(settings, session.where)
    yield from _complete(session, meta)


def _dropped(session: Session) -> FilterNotFound:
    return FilterNotFound(f"{session.where}: another process dropped it while it was made: create it again")


def _check_archive(session: Session, backend: Backend) -> Flow[None]:
    """Check that the named archive has no other filter of this name, and that the filter was made with an archive.

    The second is checked only if the caller named the archive. The environment names one for all filters, and only
    those that were made with an archive use it.
    """
    config = session.config
    there = yield from registered(backend, session.keys.name)
    if there is not None and there.uid != config.uid:
        text = f"there are two filters of this name: Redis has uid {config.uid}, and the named archive"
        own = "with its own archive" if config.has_backend else "without the archive"
        advice = f"to use the one in Redis, open it {own}; to restore the archive's, drop the one in Redis first"
        uids: dict[str, tuple[object, object]] = {"uid": (there.uid, config.uid)}
        raise ConfigMismatch(f"{session.where}: {text} has uid {there.uid}: {advice}", uids)
    if not config.has_backend and session.insists:
        differences: dict[str, tuple[object, object]] = {"archive": (backend.shown, config.archive)}
        text = f"archive is {config.archive!r} and not {backend.shown!r}"
        advice = "make another with create --like, and merge this one into it with union"
        raise ConfigMismatch(f"{session.where}: the filter exists with other settings: {text} ({advice})", differences)


def _restore_registered(session: Session, config: Config) -> Flow[None]:
    """Make the filter from its registration, and restore its shards.

    Raises:
        ArchiveCorrupt: the archive has checkpoints of another filter under this name.
        ArchiveMissing: the archive went away meanwhile; a filter that was restored before that stays in Redis.
        FilterNotFound: another process dropped the filter meanwhile.
    """
    assert session.backend is not None  # noqa: S101 - config is from there
    backend = session.backend
    others = {key.uid for key in (yield from backend.keys(session.keys.name)) if key.uid} - {config.uid}
    if others:
        text = f"the registration of {session.keys.name!r} has uid {config.uid}, and checkpoints have"
        advice = "put the registration of their filter back"
        raise ArchiveCorrupt(f"archive {backend.shown}: {text} {', '.join(sorted(others))}: {advice}")
    fields = config.to_meta(0, "restoring")
    session.learn(dict(zip(fields[::2], fields[1::2], strict=True)) | {"uid": config.uid})
    yield Work("note", functools.partial(registry.remember, session))
    yield from ensure(session)
    yield from note_made(session)
    if (yield from is_dropped(session)):  # the restored shards are of a filter that was dropped meanwhile
        meta = yield from read_first(session)
        if meta.get("uid") == config.uid:
            yield from dropping.end_drop(session, meta)
        raise _dropped(session)


def _complete(session: Session, meta: Mapping[str, str]) -> Flow[None]:
    """Make the other shards, and the other segments, of a half-made filter; ``meta`` is shard 0's.

    Raises:
        FilterNotFound: another process dropped the filter meanwhile; the shards made here are removed again.
        ServerFull: the server's memory is full; the whole filter is removed again.
    """
    if meta["phase"] != "creating":
        return
    made: dict[ShardKeys, dict[str, str]] = {}
    try:
        for some in chunked(range(1, session.config.shards), dropping.SHARDS_AT_ONCE):
            yield from _make_shards(session, meta, some, made)
        for shard in range(session.config.shards):
            for number in range(1, session.config.today.segments):  # each is an allocation of some ms
                keys = session.keys.shard(shard)
                yield from ask(session, calls.create("allocate", session.config, keys, [str(number)]))
                yield REST
        yield from ask(session, calls.create("finish", session.config, session.keys.shard(0)))
    except (FilterNotFound, ConfigMismatch):
        yield from dropping.remove(session, made)
        raise _dropped(session) from None
    except ServerFull as error:
        try:
            removed = yield from dropping.abandon(session)
        except ServerUnavailable:
            raise _half_made(error) from error
        if not removed:  # another process has completed or dropped the filter
            raise _dropped(session) from error
        raise ServerFull(f"{error}; the shards that were made are removed again") from error


def _half_made(error: ServerFull) -> ServerFull:
    return ServerFull(f"{error}; the filter is half made: the next create completes it, and drop removes it")


def _make_shards(
    session: Session, first: Mapping[str, str], some: Sequence[int], made: dict[ShardKeys, dict[str, str]]
) -> Flow[None]:
    """Make shards of the filter; add the ``meta`` of each to ``made``.

    The creator of an earlier filter may have gone on after that was dropped, and left empty shards; these are removed
    first. A shard with another uid is of an earlier filter, as long as shard 0 has the identity in ``first``, its
    ``meta``, because shard 0 is made first and removed last.
    """
    config, keys, waiting = session.config, session.keys, list(some)
    while waiting:
        makes = (calls.create("make", config, keys.shard(n), config.to_meta(n, "idle")) for n in waiting)
        replies = yield from ask(session, *makes)
        found = {shard: to_mapping(reply) for shard, reply in zip(waiting, replies, strict=True)}
        ours = {shard: meta for shard, meta in found.items() if meta["uid"] == config.uid}
        made |= {keys.shard(shard): meta for shard, meta in ours.items()}
        others = {shard: meta for shard, meta in found.items() if shard not in ours}
        goes = any(meta["phase"] == "dropping" for meta in ours.values())
        if goes or (others and not (yield from dropping.still(session, first))):
            raise _dropped(session)
        for shard, meta in others.items():
            if (meta.get("epoch"), meta.get("inserted")) != ("0", "0") and meta["phase"] != "dropping":
                text = f"shard {shard} belongs to an earlier filter of this name: drop it, then create it anew"
                raise SliceLost(f"{session.where}: {text}")
        yield from dropping.remove(session, {keys.shard(shard): meta for shard, meta in others.items()})
        waiting = list(others)
