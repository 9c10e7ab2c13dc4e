"""The flows of ``reclaim`` and ``beat``, and the count of the items that others have in flight."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from urifilter_redis.bloom.encoding import unpack
from urifilter_redis.engine.holdings import Claim, Found, Holdings, Outstanding
from urifilter_redis.engine.queries import ask, ask_each, chunked, time_at, time_of
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import SliceLost, UriFilterError
from urifilter_redis.flows.claims import options_of_release
from urifilter_redis.flows.items import batch_of, resolve
from urifilter_redis.protocol import calls, claims
from urifilter_redis.protocol.call_ids import CallId, CallKey
from urifilter_redis.protocol.calls import Call
from urifilter_redis.protocol.claims import Entry, Holding
from urifilter_redis.protocol.outcomes import to_scores

#: The shards that one pipeline inspects.
INSPECTED_AT_ONCE = 16

#: The digests in one reply about the items of a holder.
A_PAGE = 1000


@dataclass(slots=True, eq=False)
class Round:
    """One search for lapsed items in all shards, until enough are found.

    Attributes:
        limit: the most items.
        call_key: makes the call ids of all calls, so that another process may repeat the request; None: nobody will.
        found: the items that were claimed: shard, digest and claim of each.
        error: the first failure.
    """

    limit: int
    call_key: CallKey | None = None
    found: Found = field(default_factory=list)
    error: UriFilterError | None = None

    def start(self, shards: int) -> tuple[int, str]:
        """Return the first shard, and the name of the records that an earlier attempt may have left ("": none).

        A repeat begins where the first attempt did, and the next request of its slot a shard later.
        """
        if self.call_key is None:
            return random.randrange(shards), ""  # noqa: S311 - nothing secret
        first = self.call_key.call_id("reclaim", b"", 0, 0)
        return (int(first.client, 16) + first.sequence) % shards, f"{first.client}/{first.slot}"


@dataclass(slots=True, eq=False)
class _Numbered:
    """A call of ``reclaim``; see ``retry.Numbered``."""

    call_id: CallId | None
    in_doubt: bool = False


def reclaim_round(session: Session, holdings: Holdings, made: Round) -> Flow[list[Claim]]:
    """Claim the items of dead holders, and the released ones that are due; note them in ``holdings``.

    A failure after something was found ends the round, and is not raised.
    """
    shards, begun = session.config.shards, holdings.begin_round()
    first, record = made.start(shards)
    order = [*range(first, shards), *range(first)]
    holdings.partial = True
    try:
        if record and shards > INSPECTED_AT_ONCE:  # those with a record come first, see _inspect
            there = yield from ask(session, *(("HEXISTS", session.keys.shard(n).replies, record) for n in order))
            order = [shard for _, shard in sorted(zip(there, order, strict=True), key=lambda pair: -pair[0])]
        for some in chunked(order, INSPECTED_AT_ONCE):
            for shard in (yield from _inspect(session, holdings, some, record)):
                part = 0
                while len(made.found) < made.limit and (yield from _reclaim_part(session, holdings, shard, made, part)):
                    part += 1
            if record and made.found:  # what an earlier attempt found was this holder's before
                yield from _inspect(session, holdings, some)
            if len(made.found) >= made.limit:
                break
        else:
            holdings.partial = False
    except UriFilterError as error:
        made.error = made.error or error
    if made.error is not None and not made.found:
        raise made.error
    holdings.note_round(len(made.found), begun)
    return [claim for _, _, claim in made.found]


def outstanding(session: Session, holdings: Holdings, within: float | None = None) -> Flow[Outstanding]:
    """Return how much others have in flight, after an inspection of the shards that had none of late.

    That there is nothing is said only after an inspection of all shards, because a crawl ends by it.
    """
    begun, shards = monotonic(), range(session.config.shards)
    for some in chunked(holdings.with_old_figures(shards), INSPECTED_AT_ONCE):
        yield from _inspect(session, holdings, some)
    holdings.partial = False
    if holdings.must_read(within):
        for some in chunked(holdings.read_before(shards, begun), INSPECTED_AT_ONCE):
            yield from _inspect(session, holdings, some)
    return holdings.outstanding(within)


def _inspect(session: Session, holdings: Holdings, shards: Sequence[int], record: str = "") -> Flow[list[int]]:
    """Note how much others have in some shards; return the shards where something may be due.

    Or where somebody lives for longer than any lease: if the clock was set back, the script shortens that, and nobody
    who has nothing in flight beats.

    Those come first that have a record of this name: an earlier attempt of the same request may have left it, and what
    that claimed must be told before the limit is reached.

    Of a filter that was dropped, or lost, nothing is in flight either, and no crawl may end by that: a beat, which is a
    script, is refused there.
    """
    own = bytes.fromhex(holdings.holding.holder)
    commands: list[calls.Arguments] = []
    for shard in shards:
        keys = session.keys.shard(shard)
        commands += [
            time_at(session, shard),
            ("ZCARD", keys.in_flight),
            ("ZLEXCOUNT", keys.in_flight, *claims.in_flight_range(own)),
            ("ZRANGE", keys.holders, "0", "1", "WITHSCORES"),
            ("ZRANGE", keys.holders, "-1", "-1", "WITHSCORES"),
            ("HEXISTS", keys.replies, record),
            ("HGET", keys.meta, "fixed"),
        ]
    asked = monotonic()
    replies = yield from ask(session, *commands)
    at = monotonic()
    due: list[int] = []
    again: list[int] = []
    columns = zip(shards, *(replies[n::7] for n in range(7)), strict=True)
    for shard, time, in_flight, owned, earliest, latest, recorded, fixed in columns:
        if (fixed or b"").rstrip() != session.config.fixed(shard).encode():
            yield from ask(session, claims.beat(session.config.uid, session.keys.shard(shard), holdings.holding))
        now = time_of(time)
        longest = max(session.view(shard).claims, 1000 * claims.LEASE_OF_MANY)
        too_long = any(until > now + longest for _, until in to_scores(latest))
        dies = next((until for holder, until in to_scores(earliest) if holder != own), None)
        others = int(in_flight) - holdings.known(shard, int(owned))
        holdings.note_figures(shard, others, None if dies is None else at + (dies - now) / 1000, asked)
        if recorded:
            again.append(shard)
        elif (dies is not None and dies <= now) or too_long:
            due.append(shard)
    return [*again, *due]


def _reclaim_part(session: Session, holdings: Holdings, shard: int, made: Round, part: int) -> Flow[int]:
    """Take some items of a shard in flight; return their number."""
    ids, keys, key, clock = session.ids, session.keys.shard(shard), made.call_key, session.clock_of(shard)
    most = min(claims.RECLAIMED_A_CALL, made.limit - len(made.found))
    call = _Numbered(ids.draw(clock) if key is None else key.call_id("reclaim", b"", part, clock.now()))

    def build(_: Request) -> Call:
        call_id = calls.NO_CALL_ID if call.call_id is None else call.call_id.text(waits=session.wait_replicas > 0)
        return claims.reclaim(session.config.uid, keys, call_id, holdings.holding, most)

    request = Request(build, numbered=call)
    holdings.begin(shard, call)
    count = 0
    try:
        yield from exchange(session, [request])
        if request.answered:
            count = _take(session, holdings, shard, claims.entries_of(request.reply), made)
            call.in_doubt = False
    finally:
        if call.in_doubt:
            holdings.suspects.add(shard)
        holdings.end(shard, call, answered=request.answered, in_doubt=call.in_doubt)
    if request.error is not None:
        raise request.error
    if call.call_id is not None:
        ids.release(call.call_id)
    return count


def _take(session: Session, holdings: Holdings, shard: int, entries: Sequence[Entry], made: Round) -> int:
    """Note entries that were claimed; return their number. One that cannot be read is given back by a beat."""
    for entry in entries:
        try:
            claim = Claim(*unpack(entry.kept), entry.failures, entry.lapses)
        except ValueError as error:
            text = f"{session.where}: leases has an entry {entry.digest.hex()} that cannot be read: {error}"
            made.error = made.error or SliceLost(text)
            holdings.leave(shard, entry.digest)
        else:
            made.found.append((shard, entry.digest, claim))
            holdings.take(shard, entry.digest, claim)
    holdings.note_reclaimed(shard, len(entries))
    return len(entries)


def beat(session: Session, holdings: Holdings) -> Flow[None]:
    """Beat where the holder has something in flight and made no call of late; agree with the server on what that is.

    Raises:
        UriFilterError: the first failure; all that did not fail was done.
    """
    errors: list[UriFilterError] = []
    differing: list[int] = []
    for shards in chunked(holdings.shards_to_beat()):
        marks = {shard: holdings.mark(shard) for shard in shards}
        answered = yield from _beat_in(session, holdings, shards, errors)
        for shard, count in answered.items():
            differs = count != len(holdings.held[shard]) or shard in holdings.suspects
            if holdings.undisturbed(shard, marks[shard]):
                holdings.suspects.discard(shard)
                differing += [shard] if differs else []
    flows = [_reconcile(session, holdings, shard) for shard in differing]
    if orphans := holdings.orphaned():
        flows = [_give_back(session, holdings, orphans), *flows]
    for flow in flows:
        try:
            yield from flow
        except UriFilterError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def prolong(session: Session, holdings: Holdings) -> Flow[None]:
    """Beat where the holder has something in flight, or may have, and made no call of late; nothing is given back.

    Raises:
        UriFilterError: the first failure; all that did not fail was done.
    """
    errors: list[UriFilterError] = []
    for shards in chunked(holdings.silent(range(session.config.shards))):
        yield from _beat_in(session, holdings, shards, errors)
    if errors:
        raise errors[0]


def _beat_in(
    session: Session, holdings: Holdings, shards: Sequence[int], errors: list[UriFilterError]
) -> Flow[dict[int, int]]:
    """Beat in some shards; return how many items the holder has in each that answered, and append others' errors."""
    at, uid, keys = monotonic(), session.config.uid, session.keys
    requests = [Request.of(claims.beat(uid, keys.shard(shard), holdings.holding)) for shard in shards]
    yield from exchange(session, requests)
    answered = {}
    for shard, request in zip(shards, requests, strict=True):
        if request.error is None:
            holdings.has_beaten(shard, at)
            answered[shard] = request.reply
        else:
            errors.append(request.error)
    return answered


def _reconcile(session: Session, holdings: Holdings, shard: int) -> Flow[None]:
    """Give back the items that a holder has in flight by the server alone, and drop those that it has not.

    An unresolved reclaim, a failover or an item that others have committed leaves such a difference.
    """
    mark = holdings.mark(shard)
    there = yield from _digests_in_flight(session, holdings, shard)
    if not holdings.undisturbed(shard, mark):
        return
    for digest in list(holdings.held[shard]):
        if digest not in there:
            holdings.drop(shard, digest)
    unknown = [digest for digest in there if not holdings.has(shard, digest)]
    if unknown:
        yield from _give_back(session, holdings, unknown)


def beat_all(session: Session, holding: Holding) -> Flow[int]:
    """Beat in all shards; return how many items the holder has in flight."""
    beats = [claims.beat(session.config.uid, keys, holding) for keys in session.keys.all]
    return sum(map(int, (yield from ask_each(session, beats))))


def give_back_all(session: Session, holdings: Holdings, delay: float = 0) -> Flow[None]:
    """Release all items that are in flight, or may be; ``delay`` is in seconds."""
    digests = {*holdings.digests, *holdings.orphaned(math.inf)}
    for shard in sorted(holdings.suspects):
        digests |= yield from _digests_in_flight(session, holdings, shard)
    yield from _give_back(session, holdings, sorted(digests), delay)


def _give_back(session: Session, holdings: Holdings, digests: list[bytes], delay: float = 0) -> Flow[None]:
    """Release items by their digests; ``delay`` is in seconds."""
    claim_options = options_of_release(holdings.holding, delay, holdings)
    batch = batch_of(session, "release", digests, digester=lambda _: digests, claim_options=claim_options)
    yield from resolve(session, batch)


def _digests_in_flight(session: Session, holdings: Holdings, shard: int) -> Flow[set[bytes]]:
    """Return the digests that the holder has in flight by the server."""
    key = session.keys.shard(shard).in_flight
    there: set[bytes] = set()
    start, end = claims.in_flight_range(bytes.fromhex(holdings.holding.holder))
    while True:
        (page,) = yield from ask(session, ("ZRANGEBYLEX", key, start, end, "LIMIT", "0", str(A_PAGE)))
        there.update(member[8:] for member in page)
        if len(page) < A_PAGE:
            return there
        start = b"(" + page[-1]
