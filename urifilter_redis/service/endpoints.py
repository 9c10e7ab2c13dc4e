"""The service's answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations
from starlette.responses import Response

from urifilter_redis.errors import ServerUnavailable, UriFilterError
from urifilter_redis.http_api import COMMANDS, KEY_HEADER
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.service import metrics
from urifilter_redis.service.admission import Admission
from urifilter_redis.service.bodies import (
    Answer,
    Items,
    ItemsOf,
    ToBeat,
    ToReclaim,
    check_items,
    parse,
    read,
    receive,
    tokens_in,
)
from urifilter_redis.service.claims import BODIES, beat, flow_of, items_in, take
from urifilter_redis.service.connecting import connect
from urifilter_redis.service.failures import Refusal, refusal_of
from urifilter_redis.service.gate import COMMAND, COUNTS
from urifilter_redis.service.gauges import look
from urifilter_redis.service.heads import header, headers_of
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.looking import Looks
from urifilter_redis.service.usage import UsageGauges

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.service.filters import Filters
    from urifilter_redis.service.settings import ServiceSettings
    from urifilter_redis.service.tokens import Token

__all__ = ["KEY_LENGTH", "Service"]

log = logging.getLogger("urifilter_redis.service")

T = TypeVar("T")

#: Seconds between two attempts to open the filters, while Redis is away at the start.
PAUSE = 2.0

#: Seconds for which the sum of all workers' counts is used again.
COUNTS_AGE = 0.5

_KEY = KEY_HEADER.lower().encode()

#: Characters that an Idempotency-Key has at most.
KEY_LENGTH = 200


class Service(Admission):
    """The state of one worker, and its endpoints."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings)
        self._counts: tuple[float, dict[tuple[str, str], int]] = (0.0, {})
        self._filters: Filters | None = None
        self._looks: Looks | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Hold the connections for as long as the application runs."""
        self._filters = await connect(self.settings, metrics.note_script_error)
        self._looks = Looks(self._filters, self.settings.workers)
        tasks = [
            asyncio.create_task(self._open_all()),
            asyncio.create_task(self.usage.keep_sharing()),
            asyncio.create_task(metrics.keep_noting(lambda: self.filters.queued)),
        ]
        try:
            async with self._looks.sampling():
                yield
        finally:
            for task in tasks:
                task.cancel()
            self.usage.share()
            await self._filters.close()

    @property
    def filters(self) -> Filters:
        """The filters, while the application runs."""
        assert self._filters is not None  # noqa: S101 - see lifespan
        return self._filters

    @property
    def looks(self) -> Looks:
        """The looks at all, while the application runs."""
        assert self._looks is not None  # noqa: S101 - see lifespan
        return self._looks

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
        """Insert items; answer the new ones."""
        request.scope[COMMAND] = "insert"
        token = self.whose(request) if b"authorization" in headers_of(request.scope) else None
        data = await receive(request, self.settings.limits)
        if token is None:
            self.whose(request, *tokens_in(data))  # parsing is costly, and so only for known senders
        asked = parse(data, ItemsOf)
        token = token or self.whose(request, asked.access_token or "")
        flow = flow_of("insert", Items(URI_list=asked.URI_list), asked.URI_list, token)
        ages = await self._answer(request, token, asked.filter_typeid, "insert", asked.URI_list, flow)
        new = [item for item, age in zip(asked.URI_list, ages, strict=True) if age == 0]
        content = {"filter_typeid": asked.filter_typeid, "URI_list_unique": new, "total": len(ages), "unique": len(new)}
        return Answer(content)

    async def command(self, request: Request, filter_typeid: str, command: str) -> Response:
        """Do a command; answer a value for each item."""
        request.scope[COMMAND] = command
        token = self.whose(request)
        asked = await read(request, BODIES[command], self.settings.limits)
        given = items_in(asked)
        flow = flow_of(command, asked, given, token)
        answers = await self._answer(request, token, filter_typeid, command, given, flow)
        kind = COMMANDS[command]
        ages = kind.field == "ages"
        content = {
            "filter_typeid": filter_typeid,
            kind.field: answers if ages else [each == 1 for each in answers],
            **({kind.new: [age == 0 for age in answers]} if kind.new else {}),
            "total": len(answers),
            kind.count: answers.count(0) if kind.count == "unique" else len(answers) - answers.count(0),
        }
        return Answer(content)

    async def reclaim(self, request: Request, filter_typeid: str) -> Response:
        """Take in hand what dead holders had and what is due again; answer it."""
        request.scope[COMMAND] = "reclaim"
        token = self.whose(request)
        asked = await read(request, ToReclaim, self.settings.limits)
        async with self.allowed(token, filter_typeid, writes=True):
            content = await self._run(filter_typeid, take(asked, token, _key(request, token)))
        _note(request, filter_typeid, "reclaim", content["total"], content["total"])
        return Answer({"filter_typeid": filter_typeid, **content})

    async def beat(self, request: Request, filter_typeid: str) -> Response:
        """Keep what a holder has in its hands; answer how many items these are."""
        request.scope[COMMAND] = "beat"
        token = self.whose(request)
        asked = await read(request, ToBeat, self.settings.limits)
        async with self.allowed(token, filter_typeid, writes=True):
            in_hand = await self._run(filter_typeid, beat(asked, token))
        request.scope[COUNTS] = {"filter": filter_typeid, "items": in_hand}
        return Answer({"filter_typeid": filter_typeid, "in_hand": in_hand})

    async def _answer(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        request: Request,
        token: Token,
        name: str,
        command: str,
        items: Sequence[Any],
        flow: Callable[[Session, CallKey | None], Flow[list[int]]],
    ) -> list[int]:
        kind = COMMANDS[command]
        async with self.allowed(token, name, writes=kind.writes):
            check_items(items, self.settings.limits)
            key = _key(request, token)
            answers = await self._run(name, lambda session: flow(session, key), kind.field if kind.writes else None)
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
        names = [name for name in await self.filters.names() if token.may_use(name)]
        problems = {name: problem for name in names if (problem := self.filters.problem_of(name))}
        return Answer({"filters": names} | ({"problems": problems} if problems else {}))

    async def info(self, request: Request, filter_typeid: str) -> Response:
        """Answer the state of a filter."""
        request.scope[COMMAND] = "info"
        async with self.allowed(self.whose(request), filter_typeid, writes=False):
            measured = await self.filters.measured(filter_typeid)
        request.scope[COUNTS] = {"filter": filter_typeid}
        return Answer(
            {
                "filter_typeid": filter_typeid,
                "now": measured.at + time.monotonic() - measured.taken,
                "measured": measured.at,
                "answered": {answer: self._answered().get((filter_typeid, answer), 0) for answer in ("new", "seen")},
                "info": measured.info.to_dict(),
                **({"problem": problem} if (problem := self.filters.problem_of(filter_typeid)) else {}),
            }
        )

    async def overview(self, request: Request) -> Response:
        """Answer all filters of the token at a glance."""
        request.scope[COMMAND] = "overview"
        return Answer(await self.looks.overview(self.whose(request)))

    async def detail(self, request: Request, filter_typeid: str) -> Response:
        """Answer the state of a filter, its problems, and its plots."""
        request.scope[COMMAND] = "detail"
        token = self.whose(request)
        async with self.allowed(token, filter_typeid, writes=False):
            return Answer(await self.looks.detail(token, filter_typeid))

    def _answered(self) -> dict[tuple[str, str], int]:
        taken, counts = self._counts
        if time.monotonic() > taken + COUNTS_AGE:
            counts = metrics.answered()
            self._counts = time.monotonic(), counts
        return counts

    # The state of the service

    async def healthz(self) -> Response:
        """Say that the process runs."""
        return Answer({"status": "ok"})

    async def readyz(self) -> Response:
        """Say that Redis answers, and so do the filters of the settings.

        Raises:
            ServerUnavailable: Redis is away.
            Refusal: a filter of the settings does not answer.
        """
        try:
            await self.filters.ping()
        except ServerUnavailable:
            raise
        except UriFilterError as error:
            raise Refusal("not_ready", refusal_of(error).content["error"]) from None
        return Answer({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Answer the metrics of all workers and filters.

        Raises:
            Refusal: the token is not for all filters.
        """
        self._check_all(request, "metrics are")
        usage = UsageGauges(self.usage.told(), [each.name for each in self._tokens])
        gauges = await look(self.filters)
        metrics.note_load(self.filters.queued)
        return Response(metrics.exposed(gauges, usage), media_type=metrics.CONTENT_TYPE)

    async def access(self, request: Request) -> Response:
        """Answer when each token was last used, and which addresses were refused.

        Raises:
            Refusal: the token is not for all filters.
        """
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
    """Return the key of a request, None if it has none.

    Raises:
        Refusal: the key is not printable ASCII, or is too long.
    """
    if _KEY not in headers_of(request.scope):
        return None
    text = header(request.scope, KEY_HEADER)
    if not (text.isascii() and text.isprintable() and 0 < len(text) <= KEY_LENGTH):
        raise Refusal("bad_request", f"{KEY_HEADER}: 1 to {KEY_LENGTH} printable ASCII characters")
    return CallKey(text, token.name)
