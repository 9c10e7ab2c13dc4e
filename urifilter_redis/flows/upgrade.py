"""The flow that converts a filter of an older format, in Redis and in its archive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from urifilter_redis.archive.register import upgrade_registration
from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.errors import ServerUnavailable, SliceLost
from urifilter_redis.protocol import calls, scripts
from urifilter_redis.protocol.acl import MEND
from urifilter_redis.protocol.config import FORMAT
from urifilter_redis.protocol.outcomes import text_in, to_mapping

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["Upgraded", "format_of", "upgrade"]


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of an upgrade.

    Attributes:
        before: the filter's format before, as ``info()`` gives it.
        format: the filter's format now.
        shards: the number of shards that were converted now; 0 if all had this format already.

    Example:
        >>> news.upgrade().shards
        0
    """

    before: int
    format: int
    shards: int


def upgrade(session: Session) -> Flow[Upgraded]:
    """Convert the filter to the format of new filters; a second call finishes an interrupted one.

    The registration comes first. From then on no older release can restore the filter, so no shard that was converted
    becomes one of the older format again.

    Raises:
        ArchiveMissing: the filter has an archive, which was not named or does not have the filter.
        Restoring: a shard is being restored; other shards may be converted already.
        ServerUnavailable: the server is away, or this user lacks a right.
    """
    refused = [command for command in session.forbidden if scripts.load("upgrade").calls(command)]
    if refused:
        text = f"this user may not run {', '.join(refused)}, which upgrade needs, and nothing was changed: {MEND}"
        raise ServerUnavailable(f"{session.where}: {text}")
    before = yield from format_of(session)
    config = replace(session.config, format=FORMAT)
    if config.archive not in {None, "redis"}:
        yield from upgrade_registration(session, FORMAT)
    converted = 0
    for some in chunked(range(config.shards)):
        replies = yield from ask(session, *(calls.upgrade(config, session.keys.shard(n), n) for n in some))
        converted += sum(replies)
        session.report(some[-1] + 1, config.shards)
    (reply,) = yield from ask(session, session.read_meta(0))
    meta = to_mapping(reply)
    if meta.get("uid") != config.uid:
        raise session.not_found("it was dropped meanwhile")
    session.learn(meta)
    return Upgraded(before, max(before, FORMAT), converted)


def format_of(session: Session) -> Flow[int]:
    """Return the format of the filter: the lowest of its shards', or 3 if all are upgraded and one has claims.

    The formats of shards differ while an upgrade runs, after an interrupted one, and as long as some have no claims.

    Raises:
        FilterNotFound: a shard is gone.
        SliceLost: a shard's ``meta`` is damaged.
    """
    formats: set[int] = set()
    for some in chunked(range(session.config.shards)):
        metas = [session.keys.shard(shard).meta for shard in some]
        replies = yield from ask(session, *(("HGET", meta, "format") for meta in metas))
        for meta, reply in zip(metas, replies, strict=True):
            if reply is None:
                raise session.not_found(f"it was dropped, or lost {meta}")
            if not text_in(reply).isdecimal():
                raise SliceLost(f"{session.where}: the format in {meta} is damaged: restore or drop the filter")
            formats.add(int(text_in(reply)))
    return max(formats) if min(formats) >= FORMAT else min(formats)
