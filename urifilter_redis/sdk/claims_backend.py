"""The backend of claims over HTTP."""

from __future__ import annotations

import base64
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any

from urifilter_redis.bloom.encoding import encode_item, encode_items
from urifilter_redis.checks import check_flag, check_function, check_text
from urifilter_redis.claiming.base import ClaimsBackend
from urifilter_redis.engine.batch import CLAIM_AGES, COMMIT, RELEASE, Key, Method, listed
from urifilter_redis.engine.holdings import Claim, Found, Holdings
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import FilterAPIError, UriFilterError
from urifilter_redis.protocol.claims import (
    IN_FLIGHT,
    RECLAIMED_A_CALL,
    DeadLetter,
    Holding,
    InFlight,
    check_delay,
    check_lease,
    check_limit,
    new_holder,
)
from urifilter_redis.sdk.api import API
from urifilter_redis.sdk.calls import APICall, Part, cuts, cuts_of, in_json, sizes

#: The only shard of the holdings here, because the service does not tell the shards of items.
SHARD = 0


class ClaimsCall(APICall):
    """One call about claims.

    Attributes:
        holdings: what notes the answers; None: nothing does.
        payloads: claim: the payload of each item; None: each item is its own.
        ends: whether it ends claims: it commits, rejects or releases.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is what a call is
        self,
        filter_typeid: str,
        method: Method[Any],
        more: dict[str, Any],
        objects: Sequence[Any],
        key: Key = None,
        payloads: Sequence[Any] | None = None,
        holdings: Holdings | None = None,
    ) -> None:
        """Check and cut the items.

        Raises:
            FilterAPIError: JSON cannot carry some items or payloads (``bad_item``).
        """
        self.payloads, self.ends = payloads, method.command != "claim"
        what = (filter_typeid, "reject" if "reason" in more else method.command, None)
        super().__init__(what, method.command, more, objects, self._cuts, key)
        self.holdings, self.term = holdings, method.term
        # as of ``ClaimOptions``
        self._ended: dict[bytes, Claim | None] = {}

    def is_like(self, other: APICall) -> bool:
        """Whether both calls are for the same items, of one process, and of one object of claims."""
        return super().is_like(other) and self.holdings is other.holdings

    def body(self, part: Part) -> dict[str, Any]:
        """Return the body of the request for a part; items that JSON cannot carry are sent as base64 of their bytes."""
        content = super().body(part)
        if self.payloads is not None:
            content["payloads"] = list(self.payloads[part.start : part.start + len(part.items)])
        return content | _in_base64(part.items) if self.ends else content

    @contextlib.contextmanager
    def under_way(self, part: Part) -> Iterator[None]:
        """Note that a part is under way, and later its answers."""
        if self.holdings is None:
            yield
            return
        held = self.holdings.held[SHARD]
        for item in part.items if self.ends else ():
            encoded = encode_item(item)
            self._ended.setdefault(encoded, held.get(encoded))
        self.holdings.begin(SHARD, part)
        try:
            yield
        finally:
            self._note(self.holdings, part)
            if part.in_doubt and not self.ends:
                self.holdings.suspects.add(SHARD)
            self.holdings.end(SHARD, part, answered=part.reply is not None, in_doubt=part.in_doubt)

    def _note(self, holdings: Holdings, part: Part) -> None:
        answers = self.answers_of(part)
        told = False
        counts = {each["index"]: each for each in (part.reply or {}).get("counts", ())}
        for index, (item, answer) in enumerate(zip(part.items, answers, strict=True)):
            if answer is None:
                continue
            if self.ends:
                encoded = encode_item(item)
                holdings.drop_claim(SHARD, encoded, self._ended.get(encoded))
            elif answer == IN_FLIGHT:
                told = told or not holdings.has(SHARD, encode_item(item))
            elif answer == 0:
                payload = item if self.payloads is None else self.payloads[part.start + index]
                failures, lapses = (counts.get(index, {}).get(name, 0) for name in ("failures", "lapses"))
                holdings.take(SHARD, encode_item(item), Claim(item, payload, failures, lapses))
        if told:
            holdings.note_others()
        if self.what[1] == "release" and any(answers):
            holdings.note_released(SHARD, self.more["delay"])

    def _cuts(self, items: Sequence[object]) -> list[int]:
        weights = sizes(items, in_base64=self.ends)
        if self.payloads is not None:
            weights = list(map(operator.add, weights, sizes([0 if each is None else each for each in self.payloads])))
        return cuts(weights)


class HTTPClaims(ClaimsBackend[ClaimsCall]):
    """A backend that asks the HTTP service.

    Args:
        api: the service.
        filter_typeid: the filter's name.
        lease: seconds for which items stay in flight without a sign of life.

    Raises:
        ValueError: the lease is not 5 seconds to an hour.
    """

    def __init__(self, api: API, filter_typeid: str, lease: float) -> None:
        check_text("filter_typeid", filter_typeid)
        super().__init__(filter_typeid, api.session, Holdings(check_lease(lease)))
        self._api = api

    def names_of(self, items: Sequence[Any]) -> list[tuple[int, bytes]]:
        """Return the only shard, and the bytes of each item."""
        return [(SHARD, each) for each in encode_items(items)]

    def claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> ClaimsCall:
        check_function("payload", payload)
        payloads = None if payload is None else [payload(each) for each in objects]
        return self._call(method, objects, key, retry, payloads=payloads)

    def committing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, reason: str | None = None
    ) -> ClaimsCall:
        return self._call(COMMIT, objects, key, retry, {} if reason is None else {"reason": reason})

    def releasing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, *, delay: float, failed: bool
    ) -> ClaimsCall:
        check_flag("failed", failed)
        return self._call(RELEASE, objects, key, retry, {"delay": check_delay(delay), "failed": failed})

    def resolve(self, question: ClaimsCall) -> Flow[ClaimsCall]:
        """Ask for the answers of a call; what it claims for a holder of before ``_renew`` moves to the present one."""
        answered = yield from self._api.resolve(question)
        asked = {name: question.more[name] for name in self._holder()}
        if not question.ends and asked != self._holder():
            claimed = {encoded for encoded, age in zip(question.encoded, answered.answers, strict=True) if age == 0}
            known = {encoded: claim for encoded, claim in self.holdings.held[SHARD].items() if encoded in claimed}
            yield from self._move(known, asked)
        return answered

    def leave(self, question: ClaimsCall, known: Sequence[int | None]) -> None:
        """Make orphans of the items of an interrupted claim; a beat then finds that the service counts others."""
        self.holdings.abandon()
        for encoded, answer, before in zip(question.encoded, question.answers, known, strict=True):
            if answer == 0 and before != 0:
                self.holdings.leave(SHARD, encoded)

    def unresolved(self) -> list[FilterAPIError]:
        return self._api.unresolved(self.holdings)

    def _reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Do as the base class has it; a failure after some items were found ends the call, and is not raised."""
        begun = self.holdings.begin_round()
        self.holdings.partial = True
        try:
            while len(found) < limit:
                most = min(limit - len(found), RECLAIMED_A_CALL)
                if (yield from self._reclaim_once(most, found)) < most:
                    break
        except FilterAPIError:
            if not found:
                raise
        self.holdings.note_round(len(found), begun)
        return [claim for _, _, claim in found]

    def read_outstanding(self, within: float | None) -> Flow[None]:  # noqa: ARG002 - one request reads all
        yield from self._reclaim_once(0, [])

    def beat(self) -> Flow[None]:
        """Beat if anything is in flight, or may be; become another holder if the service counts other items.

        Where only unknown items may be in flight, a beat waits until its number counts, because it keeps them alive.
        """
        holdings, part = self.holdings, Part(0, ())
        mark = holdings.mark(SHARD)
        if not holdings.claims and (mark is None or not holdings.has_any):
            return
        yield from self._api.post("beat", self.name, self._holder(), part, _has_count)
        assert part.reply is not None  # noqa: S101 - see post
        differs = part.reply["in_flight"] != len(holdings.held[SHARD])
        if holdings.undisturbed(SHARD, mark):
            holdings.suspects.discard(SHARD)
            holdings.orphans.clear()  # those that are there stay with the old holder
            if differs:
                yield from self._renew()

    def give_back_all(self, delay: float) -> Flow[None]:
        items = [claim.item for claim in self.holdings.claims]
        if items:  # what is not known lapses
            call = self.releasing(items, None, None, delay=delay, failed=False)
            yield from self._api.resolve(call)

    def _renew(self) -> Flow[None]:
        """Become another holder: release all items in flight, and claim them again.

        Items that the holdings lack (of a claim or reclaim whose answer was lost) lapse with the old holder.
        """
        holdings, old = self.holdings, self._holder()
        holdings.holding = Holding(new_holder(), holdings.holding.lease)
        yield from self._move(dict(holdings.held[SHARD]), old)

    def _move(self, known: dict[bytes, Claim], old: dict[str, Any]) -> Flow[None]:
        """Release items that an old holder has, and claim them for the present one; drop those that were gone."""
        holdings = self.holdings
        gone = yield from self._answers(RELEASE, [claim.item for claim in known.values()], old)
        back = [each for each, was_there in zip(known.items(), gone, strict=True) if was_there]
        moved = [(encoded, claim) for encoded, claim in back if in_json(claim.item) and in_json(claim.payload)]
        items, payloads = [claim.item for _, claim in moved], [claim.payload for _, claim in moved]
        ages = yield from self._answers(CLAIM_AGES, items, self._holder(), payloads)
        mine = {encoded for (encoded, _), age in zip(moved, ages, strict=True) if age == 0}
        ended = [claim.item for encoded, claim in moved if encoded in mine and not holdings.has(SHARD, encoded)]
        yield from self._answers(RELEASE, ended, self._holder())
        for encoded in known.keys() - mine:
            holdings.drop_claim(SHARD, encoded, known[encoded])

    def _answers(
        self, method: Method[Any], objects: Sequence[Any], holder: dict[str, Any], payloads: Sequence[Any] | None = None
    ) -> Flow[list[Any]]:
        """Return the answers to a call of a holder; the holdings do not note them. No request is sent for no items."""
        if not objects:
            return []
        call = ClaimsCall(self.name, method, holder, objects, payloads=payloads)
        return list((yield from self._api.resolve(call)).answers)

    def _call(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        retry: UriFilterError | None,
        more: dict[str, Any] | None = None,
        payloads: Sequence[Any] | None = None,
    ) -> ClaimsCall:
        """Make a call, or return the call of ``retry``."""
        body = self._holder() | (more or {})
        call = ClaimsCall(self.name, method, body, objects, key, payloads, self.holdings)
        return self._api.or_resumed(call, retry, method)

    def _reclaim_once(self, limit: int, found: Found) -> Flow[int]:
        """Send one request; note each item that it claimed in ``found``; return their number."""
        part, asked = Part(0, ()), monotonic()
        self.holdings.begin(SHARD, part)
        try:
            yield from self._api.post("reclaim", self.name, self._holder() | {"limit": limit}, part, _has_claims)
        finally:
            if part.in_doubt:
                self.holdings.suspects.add(SHARD)
            self.holdings.end(SHARD, part, answered=part.reply is not None, in_doubt=part.in_doubt)
        assert part.reply is not None  # noqa: S101 - see post
        for each in part.reply["claims"]:
            claim = Claim(*_of_item(each), *_counts(each))
            found.append((SHARD, encode_item(claim.item), claim))
            self.holdings.take(*found[-1])
        others = part.reply["outstanding"]
        self.holdings.partial = others is None
        if others is not None:
            due = others["due"]
            dies = None if due is None else monotonic() + due
            unknown = self.holdings.has_unknown(SHARD)  # others will have them
            self.holdings.note_figures(SHARD, others["others"] or int(unknown), dies, asked)
        return len(part.reply["claims"])

    def _holder(self) -> dict[str, Any]:
        """Return the holder's fields of a body."""
        return {"holder": self.holdings.holding.holder, "lease": self.holdings.lease}


def in_flight(api: API, filter_typeid: str, limit: int) -> Flow[list[InFlight]]:
    """Return at most ``limit`` items that somebody has in flight; raises ValueError, and as ``API.get``."""
    found = yield from _pages(api, filter_typeid, "in_flight", limit)
    return [InFlight(*_of_item(each), each["holder"], *_counts(each), each["lease"]) for each in found]


def dead_letters(api: API, filter_typeid: str, limit: int) -> Flow[list[DeadLetter]]:
    """Return at most ``limit`` items that were rejected, the latest first; raises likewise."""
    found = yield from _pages(api, filter_typeid, "dead_letters", limit)
    return [DeadLetter(*_of_item(each), *_counts(each), each["at"], each["reason"]) for each in found]


class RetryCall(APICall):
    """One call that offers items once more which were rejected; without items all of them."""

    def body(self, part: Part) -> dict[str, Any]:
        """Return the body of the request for a part, likewise."""
        return super().body(part) | _in_base64(part.items)

    @property
    def offered(self) -> int:
        """How many items are offered, as far as the service has answered."""
        return sum(part.reply["offered"] for part in self.parts if part.reply is not None)


def retry_dead_letters(
    api: API, filter_typeid: str, objects: Iterable[Any] | None, key: Key, retry: UriFilterError | None
) -> RetryCall:
    """Make the call that offers items once more which were rejected, or all of them; or return the call of ``retry``.

    Raises:
        FilterAPIError: some items cannot be filtered (``bad_item``).
        TypeError: one string was given instead of a list.
        ValueError: ``retry`` is the error of another call.
    """
    name = "retry_dead_letters"
    more, items = ({"items": None}, ()) if objects is None else ({}, listed(objects))
    call = RetryCall((filter_typeid, name, None), name, more, items, partial(cuts_of, in_base64=True), key)
    return api.or_resumed(call, retry, RELEASE)


def _pages(api: API, filter_typeid: str, name: str, limit: int) -> Flow[list[dict[str, Any]]]:
    """Return the items of a list of a filter."""
    check_limit(limit)
    return api.listed(api.path_of(filter_typeid, name), name, RECLAIMED_A_CALL, limit)


def _in_base64(items: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a body for items some of which JSON cannot carry; none if it can carry all."""
    encoded = {
        index: base64.b64encode(encode_item(item)).decode() for index, item in enumerate(items) if not in_json(item)
    }
    if not encoded:
        return {}
    return {"items": [encoded.get(index, item) for index, item in enumerate(items)], "base64": list(encoded)}


def _of_item(told: dict[str, Any]) -> tuple[Any, Any]:
    return _value(told, "item"), _value(told, "payload")


def _counts(told: dict[str, Any]) -> tuple[int, int]:
    return told["failures"], told["lapses"]


def _value(taken: dict[str, Any], name: str) -> Any:
    """Return the item or payload of an answer; see ``ClaimsCall`` for the other direction."""
    encoded = taken.get(f"{name}_base64")
    return taken[name] if encoded is None else base64.b64decode(encoded)


def _has_claims(reply: dict[str, Any]) -> bool:
    found = reply.get("claims")
    return isinstance(found, list) and reply.get("total") == len(found) and "outstanding" in reply


def _has_count(reply: dict[str, Any]) -> bool:
    return isinstance(reply.get("in_flight"), int)
