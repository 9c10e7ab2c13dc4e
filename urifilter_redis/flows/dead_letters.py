"""The flows of ``in_flight``, ``dead_letters`` and ``retry_dead_letters``: lists of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar, cast

from urifilter_redis.engine.batch import RELEASE, Batch, Key, call_to_resume, items_of
from urifilter_redis.engine.holdings import Releasing
from urifilter_redis.engine.queries import ask, ask_each, chunked, time_at, time_of
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import SliceLost, UriFilterError
from urifilter_redis.flows.items import batch_of, resolve
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.claims import NO_HOLDER, DeadLetter, InFlight, dead_letter_of, in_flight_of
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.outcomes import to_scores

T = TypeVar("T")

#: A place in a list, behind which the list goes on.
After: TypeAlias = tuple[int, bytes]

#: The least member of ``in_flight`` that belongs to a claimant, and to no delay holder.
_CLAIMANTS = b"[\1"

#: Dead letters that one reply has; one has 128 KiB at most, and usually some hundred bytes.
NOTES_A_REPLY = 100


def dead_letters_page(
    session: Session, limit: int, after: After | None = None
) -> Flow[tuple[list[DeadLetter], After | None]]:
    """Return at most ``limit`` items that were rejected behind a place in the list, the latest first.

    Returns:
        The items; and the place behind them (ms since 1970, and digest), None if there are no more.

    Raises:
        FilterNotFound: the filter is gone.
        SliceLost: a dead letter cannot be read.
    """
    yield from read_states(session, [0])  # another filter of the name may have other shards
    ranges: list[tuple[float | str, float | str, int]] = [("+inf", "-inf", limit + 1)]
    if after is not None:  # all of the same ms, and those before it
        ranges = [(after[0], after[0], -1), (f"({after[0]}", "-inf", limit + 1)]
    latest: list[tuple[int, bytes, str]] = []
    for keys in chunked([each.of_dead_letters for each in session.keys.all]):
        pages = (
            ("ZRANGE", times, str(most), str(least), "BYSCORE", "REV", "LIMIT", "0", str(count), "WITHSCORES")
            for _, times in keys
            for most, least, count in ranges
        )
        replies = yield from ask(session, *pages)
        owners = (key for key, _ in keys for _ in ranges)
        latest += [
            (round(at), digest, key)
            for key, reply in zip(owners, replies, strict=True)
            for digest, at in to_scores(reply)
            if after is None or (round(at), digest) < after
        ]
        latest = sorted(latest, reverse=True)[: limit + 1]
    asked = [("HGET", key, digest) for _, digest, key in latest[:limit]]
    texts = yield from ask_each(session, asked, NOTES_A_REPLY)
    found = [_read(session, "dead_letters", dead_letter_of, text) for text in texts if text is not None]
    return found, latest[limit - 1][:2] if len(latest) > limit else None


def in_flight_page(
    session: Session, limit: int, after: After | None = None
) -> Flow[tuple[list[InFlight], After | None]]:
    """Return at most ``limit`` items, behind a place, that somebody has in flight, or had when it died; in no order.

    Returns:
        The items; and the place behind them (shard, and member of ``in_flight``), None if there are no more.

    Raises:
        FilterNotFound: the filter is gone.
        SliceLost: an entry cannot be read.
    """
    yield from read_states(session, [0])  # likewise
    members = yield from _claimed(session, limit + 1, after)
    if not members:
        return [], None
    found: list[InFlight] = []
    shards = sorted({shard for shard, _ in members[:limit]})
    times = yield from ask(session, *(time_at(session, shard) for shard in shards))
    now = dict(zip(shards, map(time_of, times), strict=True))
    for some in chunked(members[:limit], NOTES_A_REPLY):
        found += yield from _in_flight(session, [(session.keys.shard(shard), now[shard], each) for shard, each in some])
    return found, members[limit - 1] if len(members) > limit else None


def _claimed(session: Session, limit: int, after: After | None) -> Flow[list[After]]:
    """Return the shards and members of ``in_flight`` of at most ``limit`` items that claimants have, behind a place."""
    first, last = after or (0, b"")
    found: list[After] = []
    for shards in chunked(range(first, session.config.shards)):
        begins = [b"(" + last if shard == first and last else _CLAIMANTS for shard in shards]
        asked = [(session.keys.shard(shard).in_flight, begin, "+") for shard, begin in zip(shards, begins, strict=True)]
        counts = yield from ask(session, *(("ZLEXCOUNT", *each) for each in asked))
        taken, left = [], limit - len(found)
        for shard, each, count in zip(shards, asked, counts, strict=True):
            if count and left:
                taken.append((shard, ("ZRANGEBYLEX", *each, "LIMIT", "0", str(min(count, left)))))
                left -= min(count, left)
        replies = (yield from ask(session, *(command for _, command in taken))) if taken else []
        found += [(shard, bytes(each)) for (shard, _), reply in zip(taken, replies, strict=True) for each in reply]
        if not left:
            break
    return found


def _in_flight(session: Session, members: Sequence[tuple[ShardKeys, float, bytes]]) -> Flow[list[InFlight]]:
    """Return what some members of ``in_flight`` tell, each with the keys of its shard and the time there, ms."""
    commands: list[Arguments] = []
    for keys, _, member in members:
        digest = member[8:]
        commands += [("HMGET", keys.leases, digest, digest + b"+"), ("ZSCORE", keys.holders, member[:8])]
    replies = yield from ask(session, *commands)
    found = []
    for (_, now, member), (entry, text), until in zip(members, replies[::2], replies[1::2], strict=True):
        if entry is not None and entry[:8] == member[:8]:  # else it was committed, or somebody else took it, meanwhile
            lease = max(0.0, (float(until or 0) - now) / 1000)
            found.append(_read(session, "leases", in_flight_of, entry, text, lease))
    return found


def retry(
    session: Session,
    items: Sequence[Any] | None,
    key: Key = None,
    error: UriFilterError | None = None,
    call_key: CallKey | None = None,
) -> Flow[list[int]]:
    """Offer items that were rejected once more, or all of them; return 1 for each that was rejected, else 0.

    ``error`` is of an earlier call; a ``call_key`` is for items only.

    Raises:
        BadItem: some items cannot be filtered; nothing was done.
        ValueError: the error is of another call.
        UriFilterError: any other of the tree in ``errors``.
    """
    if items is not None:
        digests = session.digester(items_of(items, key))
    elif error is not None:
        digests = call_to_resume(error, Batch, "retry_dead_letters").digests
    else:
        digests = yield from _noted(session)
    options = Releasing(NO_HOLDER, again=True)
    batch = batch_of(
        session, "release", digests, error, digester=lambda _: digests, claim_options=options, call_key=call_key
    )
    if batch.method != options.method:
        raise ValueError(f"retry= takes what retry_dead_letters raised, and not {batch.method}")
    batch.term = RELEASE.term
    return cast("list[int]", (yield from resolve(session, batch)).answers)


def _noted(session: Session) -> Flow[list[bytes]]:
    """Return the digests of all dead letters."""
    yield from read_states(session, [0])  # likewise
    asked = [("ZRANGE", keys.of_dead_letters[1], "0", "-1") for keys in session.keys.all]
    return list(chain.from_iterable((yield from ask_each(session, asked))))


def _read(session: Session, key: str, read: Callable[..., T], *content: Any) -> T:
    try:
        return read(*content)
    except ValueError as error:
        raise SliceLost(f"{session.where}: {key} has an entry that cannot be read: {error}") from error
