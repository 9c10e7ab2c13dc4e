"""The flows of ``in_hand``, ``given_up`` and ``retry_given_up``: lists of items in hand, and of those given up."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.batch import RELEASE, Batch, call_to_resume, items_of
from urifilter_redis.engine.holdings import ClaimOptions
from urifilter_redis.engine.queries import ask, chunked, time_at, time_of
from urifilter_redis.errors import SliceLost
from urifilter_redis.flows.items import batch_of, resolve
from urifilter_redis.protocol.claims import NO_HOLDER, GivenUp, InHand, in_hand_of, note_of
from urifilter_redis.protocol.outcomes import to_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.batch import Key
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.errors import UriFilterError
    from urifilter_redis.protocol.keys import ShardKeys

__all__ = ["given_up", "in_hand", "retry"]

T = TypeVar("T")

#: The least member of ``hands`` that belongs to a claimant, and to no delay holder.
_CLAIMANTS = b"[\1"

#: Notes that one reply has; a note has 128 KiB at most, and usually some hundred bytes.
NOTES_A_REPLY = 100

#: Shards that one pipeline asks for what is in hand.
SHARDS_AT_ONCE = 16


def given_up(session: Session, limit: int) -> Flow[list[GivenUp]]:
    """Return at most ``limit`` items that were given up, the latest first.

    Raises:
        SliceLost: a note cannot be read.
    """
    found: list[GivenUp] = []
    for shards in chunked(range(session.config.shards)):
        keys = [session.keys.shard(shard).of_given_up for shard in shards]
        replies = yield from ask(session, *(("ZRANGE", times, -limit, -1, "WITHSCORES") for _, times in keys))
        latest = [
            (at, digest, key) for (key, _), reply in zip(keys, replies, strict=True) for digest, at in to_scores(reply)
        ]
        for some in chunked(sorted(latest, reverse=True)[:limit], NOTES_A_REPLY):
            notes = yield from ask(session, *(("HGET", key, digest) for _, digest, key in some))
            found += [_read(session, "given_up", note_of, note) for note in notes if note is not None]
    return sorted(found, key=attrgetter("at"), reverse=True)[:limit]


def in_hand(session: Session, limit: int) -> Flow[list[InHand]]:
    """Return at most ``limit`` items that somebody has in hand, or had when it died; in no order.

    Raises:
        SliceLost: an entry cannot be read.
    """
    found: list[InHand] = []
    for shards in chunked(range(session.config.shards), SHARDS_AT_ONCE):
        commands: list[Any] = []
        for shard in shards:
            page = ("ZRANGEBYLEX", session.keys.shard(shard).hands, _CLAIMANTS, "+", "LIMIT", 0, limit - len(found))
            commands += [time_at(session, shard), page]
        replies = yield from ask(session, *commands)
        members = [
            (session.keys.shard(shard), time_of(now), member)
            for shard, now, page in zip(shards, replies[::2], replies[1::2], strict=True)
            for member in page
        ]
        for some in chunked(members[: limit - len(found)], NOTES_A_REPLY):
            found += yield from _in_hand(session, some)
        if len(found) >= limit:
            break
    return found


def _in_hand(session: Session, members: Sequence[tuple[ShardKeys, float, bytes]]) -> Flow[list[InHand]]:
    """Return what some members of ``hands`` tell, each with the keys of its shard and the time there, ms."""
    commands: list[Any] = []
    for keys, _, member in members:
        digest = member[8:]
        commands += [("HMGET", keys.leases, digest, digest + b"+"), ("ZSCORE", keys.holders, member[:8])]
    replies = yield from ask(session, *commands)
    found = []
    for (_, now, member), (entry, text), until in zip(members, replies[::2], replies[1::2], strict=True):
        if entry is not None and entry[:8] == member[:8]:  # else it was committed, or somebody else took it, meanwhile
            lease = max(0.0, (float(until or 0) - now) / 1000)
            found.append(_read(session, "leases", in_hand_of, entry, text, lease))
    return found


def retry(
    session: Session, items: Sequence[Any] | None, key: Key = None, error: UriFilterError | None = None
) -> Flow[int]:
    """Offer items that were given up once more, or all of them; return how many. ``error`` is of an earlier call.

    Raises:
        BadItem: some items cannot be filtered; nothing was done.
        ValueError: the error is of another call.
        UriFilterError: any other of the tree in ``errors``.
    """
    if items is not None:
        digests = session.digester(items_of(items, key))
    elif error is not None:
        digests = call_to_resume(error, Batch, "retry_given_up").digests
    else:
        digests = yield from _noted(session)
    options = ClaimOptions(NO_HOLDER, again=True)
    batch = batch_of(session, "release", digests, error, digester=lambda _: digests, claim_options=options)
    if batch.claim_options is None or not batch.claim_options.again:
        raise ValueError(f"retry= takes what retry_given_up raised, and not {batch.method}")
    batch.term = RELEASE.term
    yield from resolve(session, batch)
    return batch.answers.count(1)


def _noted(session: Session) -> Flow[list[bytes]]:
    """Return the digests of all items that have a note."""
    found: list[bytes] = []
    for shards in chunked(range(session.config.shards)):
        replies = yield from ask(session, *(("ZRANGE", session.keys.shard(n).of_given_up[1], 0, -1) for n in shards))
        found += chain.from_iterable(replies)
    return found


def _read(session: Session, key: str, read: Callable[..., T], *content: Any) -> T:
    try:
        return read(*content)
    except ValueError as error:
        raise SliceLost(f"{session.where}: {key} has an entry that cannot be read: {error}") from error
