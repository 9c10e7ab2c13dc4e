"""What is in flight, for ``info()``: items are counted by holder, and no entry is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.protocol.claims import in_flight_range
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_scores

#: Holders of a shard that one reply has.
HOLDERS_A_REPLY = 1000

#: Dead holders whose entries are counted in one pipeline, 1 us each.
COUNTS_A_PIPELINE = 1000

#: The first byte of a delay holder, which has released items until they are due; a claimant's is another.
_DELAY_HOLDER = 0

#: The range of the members of ``in_flight`` that belong to delay holders.
_OF_DELAY_HOLDERS = (b"[\0", b"(\1")

#: A dead holder: a shard, and a member of ``holders`` with the time until which it lived, ms.
_Dead = tuple["ShardKeys", bytes, float]


@dataclass(frozen=True, slots=True)
class ClaimsInfo:
    """What is in flight; the attributes are the keys of its JSON. Other clients may claim while it is counted.

    Attributes:
        in_flight: the number of items that living holders have.
        lapsed: the number of items that anybody may take: their holders are dead, or they were released and are due.
        delayed: the number of released items whose delay is not over.
        holders: the number of living holders.
        oldest_lapse: the seconds since the first of the lapsed items lapsed; None: none has.
        lease: the longest lease that was used, seconds.
        rejected: the number of items that were rejected in all, those included whose dead letters are gone.
        dead_letters: the number of dead letters that are kept.

    Example:
        >>> news.info().claims is None
        True
    """

    in_flight: int
    lapsed: int
    delayed: int
    holders: int
    oldest_lapse: float | None
    lease: float
    rejected: int = 0
    dead_letters: int = 0


@dataclass(slots=True)
class _Counted:
    """The counts so far; ``oldest`` is the time of the oldest lapse, ms."""

    entries: int = 0
    released: int = 0
    lapsed: int = 0
    lapsed_released: int = 0
    dead_letters: int = 0
    living: set[bytes] = field(default_factory=set)
    oldest: float | None = None


def claims_info(session: Session, states: Sequence[ShardState], now: int) -> Flow[ClaimsInfo | None]:
    """Count what is in flight; None if nobody has claimed. ``states`` are of all shards, ``now`` is in ms."""
    claiming = [session.keys.shard(number) for number, state in enumerate(states) if state.view.claims]
    if not claiming:
        return None
    counted = _Counted()
    for some in chunked(claiming):
        counted.entries += sum((yield from ask(session, *(("ZCARD", keys.in_flight) for keys in some))))
        counted.dead_letters += sum((yield from ask(session, *(("ZCARD", keys.of_dead_letters[1]) for keys in some))))
        released = (("ZLEXCOUNT", keys.in_flight, *_OF_DELAY_HOLDERS) for keys in some)
        counted.released += sum((yield from ask(session, *released)))
        dead = yield from _dead_holders(session, some, now, counted)
        yield from _count_lapsed(session, dead, counted)
    delayed = max(0, counted.released - counted.lapsed_released)
    return ClaimsInfo(
        in_flight=max(0, counted.entries - counted.lapsed - delayed),
        lapsed=counted.lapsed,
        delayed=delayed,
        holders=len(counted.living),
        oldest_lapse=None if counted.oldest is None else (now - counted.oldest) / 1000,
        lease=max(state.view.claims for state in states) / 1000,
        rejected=sum(state.rejected for state in states),
        dead_letters=counted.dead_letters,
    )


def _dead_holders(session: Session, shards: Sequence[ShardKeys], now: int, counted: _Counted) -> Flow[list[_Dead]]:
    """Note the living holders of some shards; return the dead ones."""
    dead: list[_Dead] = []
    first, waiting = 0, shards
    while waiting:
        last = first + HOLDERS_A_REPLY - 1
        span = (str(first), str(last), "WITHSCORES")
        replies = yield from ask(session, *(("ZRANGE", keys.holders, *span) for keys in waiting))
        pages = [to_scores(reply) for reply in replies]
        for keys, page in zip(waiting, pages, strict=True):
            counted.living.update(holder for holder, until in page if until > now and holder[0] != _DELAY_HOLDER)
            dead += [(keys, holder, until) for holder, until in page if until <= now]
        waiting = [keys for keys, page in zip(waiting, pages, strict=True) if len(page) == HOLDERS_A_REPLY]
        first = last + 1
    return dead


def _count_lapsed(session: Session, dead: Sequence[_Dead], counted: _Counted) -> Flow[None]:
    for some in chunked(dead, COUNTS_A_PIPELINE):
        replies = yield from ask(
            session, *(("ZLEXCOUNT", keys.in_flight, *in_flight_range(each)) for keys, each, _ in some)
        )
        for (_, holder, until), count in zip(some, replies, strict=True):
            if count:
                counted.lapsed += count
                counted.lapsed_released += count if holder[0] == _DELAY_HOLDER else 0
                counted.oldest = until if counted.oldest is None else min(until, counted.oldest)
