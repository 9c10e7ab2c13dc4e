"""The flows of ``reclaim`` and ``beat``, and of the look at the items that others have in hand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.payloads import unpack
from urifilter_redis.engine.hand import Claim, Hand, Outstanding
from urifilter_redis.engine.queries import ask, chunked, time_of
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import SliceLost, UriFilterError
from urifilter_redis.flows.claims import release_terms
from urifilter_redis.flows.items import batch_of, resolve
from urifilter_redis.protocol import claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.call_ids import CallId, CallKey
    from urifilter_redis.protocol.claims import Entry, Holding

__all__ = [
    "SHARDS_A_LOOK",
    "beat",
    "beat_all",
    "give_back",
    "give_back_all",
    "look",
    "outstanding",
    "reclaim",
    "reclaim_round",
]

#: The shards that one pipeline looks at.
SHARDS_A_LOOK = 16

#: The digests that one reading of a holder's hands brings.
A_PAGE = 1000


@dataclass(slots=True, eq=False)
class _Numbered:
    """A call of ``reclaim``, which is about no items that the caller knows."""

    call_id: CallId | None
    in_doubt: bool = False


def look(session: Session, hand: Hand, shards: Sequence[int], record: str = "") -> Flow[list[int]]:
    """Look at how much is in hand in some shards; the hand notes it. Return the shards where something may be due.

    Those count too that have a record of this name: an earlier attempt of the same request may have left it.
    """
    own = bytes.fromhex(hand.holding.holder)
    commands: list[Any] = [("TIME",)]
    for shard in shards:
        keys = session.keys.shard(shard)
        commands += [
            ("ZCARD", keys.hands),
            ("ZLEXCOUNT", keys.hands, *_range_of(own)),
            ("ZRANGE", keys.holders, 0, 1, "WITHSCORES"),
            ("HEXISTS", keys.replies, record),
        ]
    replies = yield from ask(session, *commands)
    now, at = time_of(replies[0]), monotonic()
    due = []
    for shard, in_hand, owned, earliest, recorded in zip(shards, *(replies[n::4] for n in (1, 2, 3, 4)), strict=True):
        dies = next((until for holder, until in _scored(earliest) if holder != own), None)
        hand.note_look(shard, int(in_hand) - int(owned), None if dies is None else at + (dies - now) / 1000)
        if recorded or (dies is not None and dies <= now):
            due.append(shard)
    return due


def outstanding(session: Session, hand: Hand) -> Flow[Outstanding]:
    """Return how much others have in hand, after a look at all shards."""
    for shards in chunked(range(session.config.shards), SHARDS_A_LOOK):
        yield from look(session, hand, shards)
    return hand.outstanding()


def reclaim_round(session: Session, hand: Hand, limit: int, call_key: CallKey | None = None) -> Flow[list[Claim]]:
    """Take in hand what dead holders had and what is due again: at most ``limit`` items; the hand notes them.

    A failure after something was found ends the round, and is not raised.
    """
    found: list[tuple[int, Entry]] = []
    record = "" if call_key is None else _record_of(call_key.call_id("reclaim", b"", 0, 0))
    first = random.randrange(session.config.shards)  # noqa: S311 - nothing secret
    order = [*range(first, session.config.shards), *range(first)]
    try:
        for shards in chunked(order, SHARDS_A_LOOK):
            for shard in (yield from look(session, hand, shards, record)):
                yield from _reclaim_shard(session, hand, shard, limit, found, call_key)
            if len(found) >= limit:
                break
        hand.note_round(len(found))
        return [_claim_of(session, entry) for _, entry in found]
    except UriFilterError:
        if found:
            return [_claim_of(session, entry) for _, entry in found]
        raise
    except BaseException:  # the caller gets none of them: a beat gives them back, or they lapse
        for shard, entry in found:
            hand.drop(shard, entry.digest)
        raise


def reclaim(session: Session, holding: Holding, limit: int, *, call_key: CallKey | None = None) -> Flow[list[Claim]]:
    """Take in hand, for a holder of which no books are kept here, what dead holders had and what is due again."""
    hand = Hand(holding.lease / 1000, holding.holder)
    return (yield from reclaim_round(session, hand, limit, call_key))


def _reclaim_shard(  # noqa: PLR0913, PLR0917 - the round so far
    session: Session, hand: Hand, shard: int, limit: int, found: list[tuple[int, Entry]], call_key: CallKey | None
) -> Flow[None]:
    part = 0
    while len(found) < limit:
        most = min(claims.RECLAIMED_A_CALL, limit - len(found))
        entries = yield from _reclaim_once(session, hand, shard, most, call_key, part)
        part += 1
        for entry in entries:
            hand.take(shard, entry.digest, _claim_of(session, entry))
            found.append((shard, entry))
        hand.note_reclaimed(shard, len(entries))
        if not entries:
            return


def _reclaim_once(  # noqa: PLR0913, PLR0917 - likewise
    session: Session, hand: Hand, shard: int, limit: int, call_key: CallKey | None, part: int
) -> Flow[list[Entry]]:
    ids, keys = session.ids, session.keys.shard(shard)
    made = ids.draw() if call_key is None else call_key.call_id("reclaim", b"", part, ids.clock.now())
    call = _Numbered(made)
    request = Request(
        lambda _: claims.reclaim(session.config.uid, keys, str(call.call_id), hand.holding, limit), numbered=call
    )
    hand.begin(shard, call)
    try:
        yield from exchange(session, [request])
    finally:
        hand.end(shard, call, in_doubt=call.in_doubt)
    if request.error is not None:
        raise request.error
    if call.call_id is not None:
        ids.release(call.call_id)
    return claims.entries_of(request.reply)


def _record_of(call_id: CallId) -> str:
    """Return the name of the record that a call leaves."""
    return f"{call_id.client}/{call_id.slot}"


def _claim_of(session: Session, entry: Entry) -> Claim:
    try:
        return Claim(*unpack(entry.kept), entry.failures, entry.lapses)
    except ValueError as error:
        raise SliceLost(f"{session.where}: leases has an entry that cannot be read: {error}") from error


def beat(session: Session, hand: Hand) -> Flow[None]:
    """Beat where the hand has something and made no call of late; mend the hand where the server knows other items.

    Raises:
        UriFilterError: the first failure of a shard; the others were beaten.
    """
    failed: UriFilterError | None = None
    for shards in chunked(hand.silent_shards()):
        marks = {shard: hand.mark(shard) for shard in shards}
        requests = [
            Request.of(claims.beat(session.config.uid, session.keys.shard(shard), hand.holding)) for shard in shards
        ]
        yield from exchange(session, requests)
        for shard, request in zip(shards, requests, strict=True):
            if not request.answered:
                failed = failed or request.error
                continue
            hand.has_beaten(shard)
            if request.reply != len(hand.held[shard]) and hand.undisturbed(shard, marks[shard]):
                yield from _mend(session, hand, shard)
    if failed is not None:
        raise failed


def beat_all(session: Session, holding: Holding) -> Flow[int]:
    """Beat in all shards; return how many items the holder has in hand."""
    count = 0
    for shards in chunked(range(session.config.shards)):
        calls = [claims.beat(session.config.uid, session.keys.shard(shard), holding) for shard in shards]
        count += sum(map(int, (yield from ask(session, *calls))))
    return count


def give_back(session: Session, hand: Hand, digests: Sequence[bytes], delay: float = 0) -> Flow[None]:
    """Release items by their digests; ``delay`` is in seconds."""
    terms = release_terms(hand.holding, delay, hand)
    batch = batch_of(session, "release", list(digests), digester=lambda _: list(digests), terms=terms)
    yield from resolve(session, batch)


def give_back_all(session: Session, hand: Hand, delay: float = 0) -> Flow[None]:
    """Release all that the hand has; ``delay`` is in seconds."""
    yield from give_back(session, hand, [digest for held in list(hand.held.values()) for digest in held], delay)


def _mend(session: Session, hand: Hand, shard: int) -> Flow[None]:
    """Make the hand and the server agree on a shard: give back what the hand does not know, drop what is gone.

    An unresolved reclaim, a failover or a claim that nobody waited for leaves such items.
    """
    mark = hand.mark(shard)
    there = yield from _in_hands(session, hand, shard)
    if not hand.undisturbed(shard, mark):
        return
    for digest in list(hand.held[shard]):
        if digest not in there:
            hand.drop(shard, digest)
    unknown = [digest for digest in there if not hand.has(shard, digest)]
    if unknown:
        yield from give_back(session, hand, unknown)


def _in_hands(session: Session, hand: Hand, shard: int) -> Flow[set[bytes]]:
    """Return the digests that the server has in the holder's hands."""
    own, key = bytes.fromhex(hand.holding.holder), session.keys.shard(shard).hands
    there: set[bytes] = set()
    start, end = _range_of(own)
    while True:
        (page,) = yield from ask(session, ("ZRANGEBYLEX", key, start, end, "LIMIT", 0, A_PAGE))
        there.update(member[8:] for member in page)
        if len(page) < A_PAGE:
            return there
        start = b"(" + page[-1]


def _range_of(holder: bytes) -> tuple[bytes, bytes]:
    """Return the first and the last member that a holder may have in ``hands``."""
    return b"[" + holder, b"(" + holder + b"\xff" * 17


def _scored(reply: Any) -> list[tuple[bytes, float]]:
    """Return the members and scores in a reply of RESP2 or RESP3."""
    if reply and isinstance(reply[0], list | tuple):
        return [(member, float(score)) for member, score in reply]
    return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]
