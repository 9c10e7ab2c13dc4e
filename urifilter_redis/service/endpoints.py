"""The endpoints of items, claims, and the state of filters and of the service."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from urifilter_redis.bloom.encoding import encode_item
from urifilter_redis.engine.holdings import Claim, ClaimOptions, Holdings
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ServerUnavailable, UriFilterError
from urifilter_redis.flows import claims, dead_letters, items, reclaim
from urifilter_redis.flows.dead_letters import After
from urifilter_redis.http_api import KEY_HEADER, OPERATIONS
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.protocol.claims import NO_HOLDER, Counts, DeadLetter, Holding, InFlight
from urifilter_redis.service import metrics
from urifilter_redis.service.access import Admission
from urifilter_redis.service.bodies import (
    BeatRequest,
    ClaimRequest,
    ClaimsQuery,
    CommitRequest,
    EndRequest,
    ItemsRequest,
    OfItems,
    OlderItems,
    PageQuery,
    ReclaimRequest,
    ReleaseRequest,
    RetryRequest,
)
from urifilter_redis.service.dashboard import Dashboard
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.filters import Filters, connect
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.middleware import COMMAND, COUNTS
from urifilter_redis.service.requests import check_items, header, headers_of, parse, query, read, receive, tokens_in
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.settings import ServiceSettings
from urifilter_redis.service.tokens import EVERYTHING, Token, bound

if TYPE_CHECKING:
    OfClaims: TypeAlias = Claim | InFlight | DeadLetter
    Lists: TypeAlias = Callable[[Session, int, After | None], Flow[tuple[list[Any], After | None]]]

log = logging.getLogger("urifilter_redis.service")

T = TypeVar("T")

#: Seconds between two attempts to open the filters, while Redis is away at the start.
PAUSE = 2.0

#: Seconds for which the sum of all workers' counts is used again.
COUNTS_AGE = 0.5

_KEY = KEY_HEADER.lower().encode()

#: Characters that an Idempotency-Key has at most.
KEY_LENGTH = 200

#: Two characters in Python that JSON cannot tell from one beyond U+FFFF.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class Service(Admission):
    """The state of one worker, and its endpoints.

    Attributes:
        filters: the filters, while the application runs.
        dashboard: the page's data, likewise.
    """

    filters: Filters
    dashboard: Dashboard

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings)
        self._counts: tuple[float, dict[tuple[str, str], int]] = (0.0, {})

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Hold the connections for as long as the application runs."""
        self.filters = await connect(self.settings, metrics.note_script_error)
        self.dashboard = Dashboard(self.filters, self.settings.workers)
        tasks = [
            asyncio.create_task(self._open_all()),
            asyncio.create_task(self.usage.keep_sharing()),
            asyncio.create_task(metrics.keep_noting(lambda: self.filters.queued)),
            asyncio.create_task(self.dashboard.sampler.run()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            self.usage.share()
            await self.filters.close()

    def knows(self, filter_name: str) -> bool:
        """Whether there is such a filter, as far as this worker knows."""
        return self.filters.knows(filter_name)

    async def _open_all(self) -> None:
        seldom = Seldom()
        while True:
            try:
                await self.filters.open_all()
            except UriFilterError as error:
                if seldom.passes(str(error)):
                    log.warning("%s", error)
                await asyncio.sleep(PAUSE)
            else:
                if seldom.has_passed:
                    log.warning("all filters are open now")
                return

    # The requests

    async def unique(self, request: Request) -> Response:
        """Insert items; answer the new ones, in the names of the older interface."""
        request.scope[COMMAND] = "insert"
        token = self.whose(request) if b"authorization" in headers_of(request.scope) else None
        data = await receive(request, self.settings.limits)
        if token is None:
            self.whose(request, *tokens_in(data))  # parsing is costly, and so only for known senders
        asked = parse(data, OlderItems)
        token = token or self.whose(request, asked.access_token or "")
        flow = flow_of("insert", ItemsRequest(items=asked.URI_list), asked.URI_list, token)
        ages = await self._answer(request, token, asked.filter_typeid, "insert", asked.URI_list, flow)
        new = [item for item, age in zip(asked.URI_list, ages, strict=True) if age == 0]
        content = {"filter_typeid": asked.filter_typeid, "URI_list_unique": new, "total": len(ages), "unique": len(new)}
        return Answer(content)

    async def command(self, request: Request, name: str, command: str, kind: type[OfItems]) -> Response:
        """Do a command about items, with a body of some kind; answer a value for each."""
        token = self.whose(request)
        asked = await read(request, kind, self.settings.limits)
        given = items_in(asked)
        counts: dict[int, Counts] = {}
        flow = flow_of(command, asked, given, token, counts)
        answers = await self._answer(request, token, name, command, given, flow)
        operation = OPERATIONS[command]
        ages = operation.field == "ages"
        content = {
            "filter": name,
            operation.field: answers if ages else [each == 1 for each in answers],
            **({operation.new: [age == 0 for age in answers]} if operation.new else {}),
            **({"counts": counts_of(answers, counts)} if command == "claim" else {}),
            "total": len(answers),
            operation.count: answers.count(0) if operation.count == "unique" else len(answers) - answers.count(0),
        }
        return Answer(content)

    async def reclaim(self, request: Request, name: str) -> Response:
        """Claim what dead holders had and what is due again; answer it."""
        token = self.whose(request)
        asked = await read(request, ReclaimRequest, self.settings.limits)
        async with self.allowed(token, name, writes=True):
            content = await self._run(name, take(asked, token, _key(request, token)))
        _note(request, name, "reclaim", content["total"], content["total"])
        return Answer({"filter": name, **content})

    async def beat(self, request: Request, name: str) -> Response:
        """Keep what a holder has in flight; answer how many items these are."""
        token = self.whose(request)
        asked = await read(request, BeatRequest, self.settings.limits)
        async with self.allowed(token, name, writes=True):
            in_flight = await self._run(
                name, lambda session: reclaim.beat_all(session, _holding(session, asked, token))
            )
        request.scope[COUNTS] = {"filter": name, "items": in_flight}
        return Answer({"filter": name, "in_flight": in_flight})

    async def in_flight(self, request: Request, name: str) -> Response:
        """Answer what is in flight; a token must be able to claim, because it learns what claimants keep."""
        return await self._listed(request, name, "in_flight", dead_letters.in_flight_page, ("holder", "lease"))

    async def dead_letters(self, request: Request, name: str) -> Response:
        """Answer the dead letters, the latest first; likewise."""
        return await self._listed(request, name, "dead_letters", dead_letters.dead_letters_page, ("at", "reason"))

    async def _listed(self, request: Request, name: str, command: str, page: Lists, more: tuple[str, ...]) -> Response:
        token = self.whose(request)
        asked = query(request, ClaimsQuery)
        async with self.allowed(token, name, writes=True):
            found, place = await self._run(name, lambda session: page(session, asked.limit, asked.place))
        request.scope[COUNTS] = {"filter": name, "items": len(found)}
        listed = [_with_counts(each) | {field: getattr(each, field) for field in more} for each in found]
        behind = {} if place is None else {"next": ClaimsQuery.after_of(place)}
        return Answer({"filter": name, command: listed, **behind})

    async def retry_dead_letters(self, request: Request, name: str) -> Response:
        """Offer the dead letters once more; answer which items, if the request names some, and how many."""
        token = self.whose(request)
        asked = await read(request, RetryRequest, self.settings.limits)
        if asked.items is None and asked.base64:
            raise Refusal("bad_request", "base64: there are no items")
        given = None if asked.items is None else items_in(asked)
        async with self.allowed(token, name, writes=True):
            check_items(given or (), self.settings.limits)
            key = _key(request, token)  # a wrong one is refused, even if all letters are asked for, which take none
            key, field = (None, None) if given is None else (key, "was_there")
            answers = await self._run(name, lambda session: dead_letters.retry(session, given, call_key=key), field)
        self.filters.measure_anew(name)  # so that the page tells how many are left
        offered, was_there = answers.count(1), [] if given is None else [each == 1 for each in answers]
        request.scope[COUNTS] = {"filter": name, "items": offered}
        return Answer({"filter": name, "was_there": was_there, "total": len(was_there), "offered": offered})

    async def _answer(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        request: Request,
        token: Token,
        name: str,
        command: str,
        items: Sequence[Any],
        flow: Callable[[Session, CallKey | None], Flow[list[int]]],
    ) -> list[int]:
        operation = OPERATIONS[command]
        async with self.allowed(token, name, writes=operation.keyed):
            check_items(items, self.settings.limits)
            key = _key(request, token)
            answers = await self._run(
                name, lambda session: flow(session, key), operation.field if operation.keyed else None
            )
        _note(request, name, command, len(answers), answers.count(0))
        return answers

    async def _run(self, name: str, flow: Callable[[Session], Flow[T]], field: str | None = None) -> T:
        """Run a flow on a filter; ``field`` is that of ``refusal_of``."""
        try:
            return await self.filters.run(name, flow)
        except UriFilterError as error:
            raise refusal_of(error, field) from None
        except ValueError as error:
            raise Refusal("not_for_this_filter", str(error)) from None

    async def list(self, request: Request) -> Response:
        """Answer the names of the filters that the token may use, and their problems."""
        request.scope[COMMAND] = "list"
        token = self.whose(request)
        asked = query(request, PageQuery)
        names, more = asked.page_of(filter(token.may_use, await self.filters.names()))
        problems = {name: problem for name in names if (problem := self.filters.problem_of(name))}
        return Answer({"filters": names, **({"problems": problems} if problems else {}), **more})

    async def info(self, request: Request, name: str) -> Response:
        """Answer the state of a filter."""
        async with self.allowed(self.whose(request), name, writes=False):
            measured = await self.filters.measured(name)
        request.scope[COUNTS] = {"filter": name}
        return Answer(
            {
                "filter": name,
                "now": measured.at + time.monotonic() - measured.taken,
                "measured": measured.at,
                "answered": {answer: self._answered().get((name, answer), 0) for answer in ("new", "seen")},
                "info": measured.info.to_dict(),
                **({"problem": problem} if (problem := self.filters.problem_of(name)) else {}),
            }
        )

    async def overview(self, request: Request) -> Response:
        """Answer all filters of the token at a glance."""
        request.scope[COMMAND] = "overview"
        token = self.whose(request)
        return Answer(await self.dashboard.overview(token, query(request, PageQuery)))

    async def detail(self, request: Request, name: str) -> Response:
        """Answer the state of a filter, its problems, and its plots."""
        token = self.whose(request)
        async with self.allowed(token, name, writes=False):
            return Answer(await self.dashboard.detail(token, name))

    def _answered(self) -> dict[tuple[str, str], int]:
        taken, counts = self._counts
        if time.monotonic() > taken + COUNTS_AGE:
            counts = metrics.answered()
            self._counts = time.monotonic(), counts
        return counts

    # The state of the service

    async def healthz(self, _: Request) -> Response:
        """Say that the process runs."""
        return Answer({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Say that Redis answers, and so do the filters of the settings."""
        try:
            await self.filters.ping()
        except ServerUnavailable:
            raise
        except UriFilterError as error:
            raise Refusal("not_ready", refusal_of(error).content["error"]) from None
        return Answer({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Answer the metrics of all workers and filters to a token of all filters."""
        self._check_all(request, "metrics are")
        usage = metrics.UsageGauges(self.usage.told(), [each.name for each in self._tokens])
        gauges = await metrics.read_gauges(self.filters)
        metrics.note_load(self.filters.queued)
        return Response(metrics.exposed(gauges, usage), media_type=metrics.CONTENT_TYPE)

    async def access(self, request: Request) -> Response:
        """Answer when each token was last used, and which addresses were refused, to a token of all filters."""
        request.scope[COMMAND] = "access"
        self._check_all(request, "the use of tokens is")
        return Answer(self.usage.answer(self._tokens))

    def _check_all(self, request: Request, what: str) -> None:
        if not self.whose(request).may_use_all:
            raise Refusal("forbidden", f"{what} for tokens of all filters: filters = ['*']")


def _note(request: Request, name: str, command: str, count: int, new: int) -> None:
    """Count the items of a request for the metrics and the log."""
    metrics.count_items(name, command, new=new, seen=count - new)
    request.scope[COUNTS] = {"filter": name, "items": count, "new": new}


def _key(request: Request, token: Token) -> CallKey | None:
    """Return the key of a request; None if it has none."""
    if _KEY not in headers_of(request.scope):
        return None
    text = header(request.scope, KEY_HEADER)
    if not (text.isascii() and text.isprintable() and 0 < len(text) <= KEY_LENGTH):
        raise Refusal("bad_request", f"{KEY_HEADER}: 1 to {KEY_LENGTH} printable ASCII characters")
    return CallKey(text, token.name)


def items_in(asked: OfItems | RetryRequest) -> Sequence[Any]:
    """Return the items of a body.

    Raises:
        Refusal: a position of ``base64`` is none of an item or comes twice, or its item is no base64.
    """
    places = asked.base64 if isinstance(asked, EndRequest | RetryRequest) else []
    listed = asked.items or []
    if not places:
        return listed
    if len(set(places)) < len(places):  # a long item of a million positions would keep the worker busy for hours
        raise Refusal("bad_request", "base64: a position comes twice")
    found = list(listed)
    for place in places:
        try:
            found[place] = base64.b64decode(listed[place], validate=True)
        except IndexError:
            raise Refusal("bad_request", f"base64: there is no item {place}") from None
        except (TypeError, ValueError, binascii.Error):
            raise Refusal("bad_item", f"item {place} is no base64", more={"indices": [place]}) from None
    return found


def flow_of(
    command: str, asked: OfItems, given: Sequence[Any], token: Token, counts: dict[int, Counts] | None = None
) -> Callable[[Session, CallKey | None], Flow[list[int]]]:
    """Return the flow of a command about the items ``given`` by a body; a claim notes ``counts`` by index.

    Raises:
        Refusal: the payloads are not as many as the items, or a release names no holder and the service has tokens.
    """
    options: Callable[[Holding], ClaimOptions]
    objects, of_item, payload = given, None, None
    if isinstance(asked, ClaimRequest):
        if asked.payloads is not None:
            if len(asked.payloads) != len(given):
                raise Refusal("bad_request", f"payloads: {len(asked.payloads):,} for {len(given):,} items")
            objects, of_item, payload = list(zip(given, asked.payloads, strict=True)), itemgetter(0), itemgetter(1)
        options = partial(claims.options_of_claim, objects=objects, key=of_item, payload=payload, counts=counts)
    elif isinstance(asked, ReleaseRequest):
        if asked.holder is None and token is not EVERYTHING:
            text = "a release without a holder gives back what others have in flight: name the holder"
            raise Refusal("forbidden", text)
        options = partial(claims.options_of_release, delay=asked.delay, failed=asked.failed)
    elif isinstance(asked, CommitRequest):
        if asked.holder is None and asked.reason is not None:
            raise Refusal("bad_request", "reason: only a holder rejects items: name the holder")
        options = partial(claims.options_of_commit, reason=asked.reason)
    else:
        return lambda session, key: items.answer(session, command, given, asked.max_age, call_key=key)

    def flow(session: Session, call_key: CallKey | None) -> Flow[list[int]]:
        made = options(_holding(session, asked, token))
        return items.answer(session, command, objects, key=of_item, call_key=call_key, claim_options=made)

    return flow


def take(asked: ReclaimRequest, token: Token, key: CallKey | None) -> Callable[[Session], Flow[dict[str, Any]]]:
    """Return the flow that claims items, and makes the answer."""

    def flow(session: Session) -> Flow[dict[str, Any]]:
        holding = _holding(session, asked, token)
        holdings, found = Holdings(holding.lease / 1000, holding.holder, pauses=False), []
        if asked.limit:
            found = yield from reclaim.reclaim_round(session, holdings, reclaim.Round(asked.limit, key))
        else:
            yield from reclaim.outstanding(session, holdings)
        others = None if holdings.partial else asdict(holdings.outstanding())
        return {"claims": list(map(_with_counts, found)), "total": len(found), "outstanding": others}

    return flow


def counts_of(answers: Sequence[int], counts: dict[int, Counts]) -> list[dict[str, int]]:
    """Return the failures and lapses of claimed items, as far as they have any."""
    return [
        {"index": index, "failures": failures, "lapses": lapses}
        for index, (failures, lapses) in sorted(counts.items())
        if answers[index] == 0
    ]


def _holding(session: Session, asked: ClaimRequest | EndRequest | BeatRequest, token: Token) -> Holding:
    """Return the holder of a request in the terms of the scripts; see ``tokens.bound``."""
    if asked.holder is None:
        return NO_HOLDER
    return claims.holding_of(session, bound(token, asked.holder), asked.lease)


def _with_counts(each: OfClaims) -> dict[str, Any]:
    """Return the fields that tell of an item with its payload and counts."""
    counts = {"failures": each.failures, "lapses": each.lapses}
    return _shown("item", each.item) | _shown("payload", each.payload) | counts


def _shown(name: str, value: object) -> dict[str, Any]:
    """Return a field with an item or payload: bytes as text, if they are UTF-8, because this text is the same item."""
    text = value
    if isinstance(value, bytes):
        try:
            text = value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            text = value
    if isinstance(text, bytes) or (isinstance(text, str) and _PAIR.search(text)):
        return {f"{name}_base64": base64.b64encode(encode_item(value)).decode()}
    return {name: text}
