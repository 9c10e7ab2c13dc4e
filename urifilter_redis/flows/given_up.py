"""The flows of ``in_hand``, ``given_up`` and ``retry_given_up``: lists of items in hand, and of those given up."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.batch import items_of
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

__all__ = ["given_up", "in_hand", "retry"]

T = TypeVar("T")

#: The least member of ``hands`` that belongs to a claimant, and to no delay holder.
_CLAIMANTS = b"[\1"

#: Notes that one reply has; a note has 128 KiB at most, and usually some hundred bytes.
NOTES_A_REPLY = 100


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
    for shard in range(session.config.shards):
        keys, most = session.keys.shard(shard), limit - len(found)
        if most <= 0:
            break
        page = ("ZRANGEBYLEX", keys.hands, _CLAIMANTS, "+", "LIMIT", 0, most)
        now, members = yield from ask(session, time_at(session, shard), page)
        for some in chunked(members, NOTES_A_REPLY):
            entries = yield from ask(session, *(("HMGET", keys.leases, each[8:], each[8:] + b"+") for each in some))
            until = yield from ask(session, *(("ZSCORE", keys.holders, each[:8]) for each in some))
            for (entry, text), till in zip(entries, until, strict=True):
                if entry is not None:  # else it was committed meanwhile
                    lease = max(0.0, (float(till or 0) - time_of(now)) / 1000)
                    found.append(_read(session, "leases", in_hand_of, entry, text, lease))
    return found


def retry(session: Session, items: Sequence[Any] | None, key: Key = None) -> Flow[int]:
    """Offer items that were given up once more, or all of them; return how many.

    Raises:
        BadItem: some items cannot be filtered; nothing was done.
        UriFilterError: any other of the tree in ``errors``.
    """
    if items is not None:
        return (yield from _retry(session, session.digester(items_of(items, key))))
    count = 0
    for shards in chunked(range(session.config.shards)):
        replies = yield from ask(session, *(("ZRANGE", session.keys.shard(n).of_given_up[1], 0, -1) for n in shards))
        count += yield from _retry(session, [digest for reply in replies for digest in reply])
    return count


def _retry(session: Session, digests: list[bytes]) -> Flow[int]:
    claim_options = ClaimOptions(NO_HOLDER, again=True)
    batch = batch_of(session, "release", digests, digester=lambda _: digests, claim_options=claim_options)
    yield from resolve(session, batch)
    return batch.answers.count(1)


def _read(session: Session, key: str, read: Callable[..., T], *content: Any) -> T:
    try:
        return read(*content)
    except ValueError as error:
        raise SliceLost(f"{session.where}: {key} has an entry that cannot be read: {error}") from error
