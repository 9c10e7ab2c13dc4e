"""The flows that restore a filter from its archive: into an empty Redis, an older one, or one that lost slices.

A shard is in phase ``restoring`` from before the archive is read until the shard is whole. Meanwhile no client gets
an answer about its items, and so none is told "new". All bitmaps are verified before anything is written. Each step
shows that the restorer lives. If a restorer is silent, another takes over and repeats every step, which does no harm.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.engine.session import Restored
from urifilter_redis.errors import (
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    RotationConflict,
)
from urifilter_redis.flows.memory import check_free
from urifilter_redis.flows.restore_attempt import Restorer, whole_slices
from urifilter_redis.flows.rotation import finish_rotation
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.checkpoints import newest, places
from urifilter_redis.storage.registry import require_archive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["MISSING", "Restored", "ensure", "restore", "restoring"]

#: Stands for the timeline of a shard without ``meta``.
MISSING = "missing"

#: A restore is begun at most so often, because another process may take over.
TRIES = 5

#: Most tokens of a filter's failed attempts that are kept.
REMEMBERED = 16

#: The tokens of this process's failed attempts, by server and filter. An attempt cannot release its shards while the
#: server is away. The next attempt names these tokens, so it need not wait until their silence counts as death.
_given_up: dict[tuple[str, str, str], deque[str]] = {}


def ensure(session: Session) -> Flow[Restored | None]:
    """Restore the shards that are missing, have lost slices, or are older than the archive.

    Return the result; None if no shard needs it and none did since the filter was opened.

    Raises:
        Restoring: another process is restoring the filter.
        ArchiveCorrupt: the archive has no sound checkpoint of a shard; Redis is unchanged.
        ConfigMismatch: Redis has another filter of this name.
    """
    for _ in range(TRIES):
        needed = yield from _needed(session)
        if not needed:
            return session.restored
        with contextlib.suppress(RotationConflict):  # another process has taken over: look again
            session.restored = yield from restore(session, needed)
            return session.restored
    raise Restoring(f"{session.where}: another process took over the restore {TRIES} times: try again later")


def restore(session: Session, seen: Mapping[int, str]) -> Flow[Restored]:
    """Restore shards.

    Args:
        session: the filter's session.
        seen: the shards to restore, each with the ``timeline`` of its ``meta`` as it was last read, or ``MISSING``.

    Raises:
        RotationConflict: another process was faster.
    """
    where = (session.server, session.keys.filters, session.keys.name)
    restorer = Restorer(session, seen, list(_given_up.get(where, ())))
    try:
        done = yield from _attempt(session, restorer)
    except BaseException:
        _given_up.setdefault(where, deque(maxlen=REMEMBERED)).append(restorer.token)
        raise
    _given_up.pop(where, None)
    return done


def restoring(session: Session) -> Flow[tuple[int, int] | None]:
    """Return how many shards of a filter are being restored, and how many it has; None: Redis has no shard 0.

    The filter need not be open, because nobody can open it before the end of its restore.
    """
    (reply,) = yield from ask(session, session.read_meta(0))
    keys = session.keys.of_meta(to_mapping(reply))
    if keys is None:
        return None
    count = 0
    for some in chunked(range(keys.shards)):
        phases = yield from ask(session, *(("HGET", keys.shard(shard).meta, "phase") for shard in some))
        count += sum(phase in {"restoring", b"restoring"} for phase in phases)
    return count, keys.shards


def _attempt(session: Session, restorer: Restorer) -> Flow[Restored]:
    try:
        yield from restorer.begin()
        yield from restorer.look()
        yield from check_free(session, restorer.size())
        # Only now, so that a restore that is refused leaves no name in the list. A name without a filter does no harm.
        yield from ask(session, ("SADD", session.keys.filters, session.keys.name))
        return (yield from restorer.write())
    except GeneratorExit:  # a flow that is closed may not yield steps any more
        raise
    except BaseException:
        yield from restorer.give_up()
        raise


def _needed(session: Session) -> Flow[dict[int, str]]:
    home, config = require_archive(session), session.config
    needed = {}
    for some in chunked(range(config.shards)):
        metas = yield from ask(session, *(session.read_meta(shard) for shard in some))
        for shard, reply in zip(some, metas, strict=True):
            meta = to_mapping(reply)
            _check_uid(session, shard, meta)
            if not meta or meta.get("phase") == "restoring":
                needed[shard] = meta.get("timeline", "") if meta else MISSING
                continue
            state = ShardState.from_meta(meta, session.where)
            last = newest((yield from places(home, session.keys.name, config, shard)))
            present = yield from whole_slices(session, shard, state.view.slices)
            behind = last is not None and state.checkpoint < last.number
            if len(present) == len(state.view.slices) and behind and state.phase == "rotating":
                yield from finish_rotation(session, shard)  # only Redis has the slice that it closed
            if len(present) < len(state.view.slices) or behind:
                needed[shard] = state.timeline
    return needed


def _check_uid(session: Session, shard: int, meta: dict[str, str]) -> None:
    if meta and meta.get("uid") != session.config.uid:
        text = f"shard {shard} is of another filter of this name, which is not the archive's: drop that filter first"
        raise ConfigMismatch(f"{session.where}: {text}")
    if meta.get("phase") == "dropping":
        raise FilterNotFound(f"{session.where}: it is being dropped")
