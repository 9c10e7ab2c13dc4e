"""The flows that bring a filter back from its archive: into an empty Redis, an older one, or one that lost slices.

A shard is in phase ``restoring`` from before the archive is looked at until everything is back, so that nobody is
told "new" meanwhile. Everything is verified before anything is written. Whoever is restoring shows that it lives by
each step; a restorer that is silent is taken over, and the next one does all of it again, which changes nothing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from urifilter_redis.archive.register import require_archive
from urifilter_redis.archive.snapshots import newest, places
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["MISSING", "Restored", "ensure", "restore"]

#: What is said to have been seen of ``meta`` that is not there.
MISSING = "missing"

#: How often this is begun anew because another process has taken over.
TRIES = 5

#: Tokens kept of a filter's last attempts.
REMEMBERED = 16

#: Tokens of this process's attempts that failed, by server and filter: where they could not give back what they had
#: taken (the server was away), the next attempt does not wait until their silence counts as death.
_given_up: dict[tuple[str, str, str], deque[str]] = {}


def ensure(session: Session) -> Flow[Restored | None]:
    """Restore what is missing, lost, or older than the archive; None if nothing is.

    Raises:
        Restoring: another process is at it.
        ArchiveCorrupt: the archive has nothing good; Redis is as it was.
        ConfigMismatch: there is another filter of this name.
    """
    for _ in range(TRIES):
        needed = yield from _needed(session)
        if not needed:
            return session.restored
        with contextlib.suppress(RotationConflict):  # another process has taken over: look again
            session.restored = yield from restore(session, needed)
            return session.restored
    raise Restoring(f"{session.where}: another process is restoring it, again and again")


def restore(session: Session, seen: Mapping[int, str]) -> Flow[Restored]:
    """Restore shards.

    Args:
        session: of the filter.
        seen: for each shard the ``timeline`` of its ``meta`` as it was seen to need this, or ``MISSING``.

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


def _attempt(session: Session, restorer: Restorer) -> Flow[Restored]:
    try:
        yield from restorer.begin()
        yield from restorer.look()
        yield from check_free(session, restorer.size())
        # Only now: what is refused before leaves no name. A name alone does no harm.
        yield from ask(session, ("SADD", session.keys.filters, session.keys.name))
        return (yield from restorer.write())
    except GeneratorExit:  # nothing can be done any more
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
                yield from finish_rotation(session, shard)  # what it has closed is nowhere else yet
            if len(present) < len(state.view.slices) or behind:
                needed[shard] = state.timeline
    return needed


def _check_uid(session: Session, shard: int, meta: dict[str, str]) -> None:
    if meta and meta.get("uid") != session.config.uid:
        text = f"shard {shard} is of another filter of this name, which the archive does not know: drop it first"
        raise ConfigMismatch(f"{session.where}: {text}")
    if meta.get("phase") == "dropping":
        raise FilterNotFound(f"{session.where}: it is being dropped")
