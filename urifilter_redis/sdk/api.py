"""The part of both clients of the service that is written by hand: flows of requests, connectors, pickling."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import ssl
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from urifilter_redis.bloom.rules import read_rules
from urifilter_redis.checks import check_flag, check_text, check_whole
from urifilter_redis.engine.batch import UNIQUE, Key, Method, call_to_resume, listed, with_batch
from urifilter_redis.engine.holdings import Holdings
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow, Timeouts
from urifilter_redis.errors import FilterAPIError, UriFilterError
from urifilter_redis.flows.checkpoint import Written
from urifilter_redis.flows.rotation import Rotation
from urifilter_redis.http_api import ATTEMPT_HEADER, DEFAULT_PORT, KEY_HEADER, MOST_LISTED, OPERATIONS, write_json
from urifilter_redis.protocol.call_ids import PROOF_LIFE
from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.config import FilterSettings
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.sdk.calls import APICall, Limits, Part, cuts_of
from urifilter_redis.sdk.connection import (
    BAD_RESPONSE,
    TIMEOUTS,
    Verify,
    as_api_error,
    first_timeouts,
    outcome_of,
    outcome_of_failure,
    proxy_of,
    ssl_verify,
)
from urifilter_redis.transport.loops import PerLoop

A = TypeVar("A", bound=APICall)

#: The environment's address of the service, and token.
URL_VARIABLE = "URIFILTER_API_URL"
TOKEN_VARIABLE = "URIFILTER_API_TOKEN"  # noqa: S105 - the name of it

#: Connections of a client; more requests at once wait for one.
CONNECTIONS = 32

#: Seconds after which an idle connection is not used again; the service keeps them longer.
KEEP_ALIVE = 60.0


class API:
    """The service's address and the flows of requests to it; nothing here connects."""

    def __init__(
        self, url: str | None, access_token: str | None, timeouts: Timeouts, verify: Verify, proxy: str | None
    ) -> None:
        for name, value in {"url": url, "access_token": access_token, "proxy": proxy}.items():
            check_text(name, value, optional=True)
        timeouts = Timeouts.checked(timeouts)
        url = url or os.environ.get(URL_VARIABLE) or f"http://127.0.0.1:{DEFAULT_PORT}"
        token = access_token or os.environ.get(TOKEN_VARIABLE)
        advice = f"the service's address is a URL such as http://127.0.0.1:{DEFAULT_PORT}"
        try:
            self.url = httpx.URL(url.rstrip("/"))
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ValueError(f"{advice}: {error}") from None
        if self.url.userinfo:
            raise ValueError("the service's address has no user and password: give the token as access_token")
        if self.url.scheme not in {"http", "https"} or not self.url.host:
            raise ValueError(f"{advice}, and not {url!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("a token is printable ASCII")
        self.token = token
        self.forgot_token = False
        shown = str(self.url)
        first = first_timeouts(timeouts)
        self.session = Session(FilterKeys(DEFAULT_PREFIX, "any"), shown, first, where=f"the service at {shown}")
        self._timeouts = timeouts
        self._limits = Limits()
        self.options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {token}"} if token else {},
            "timeout": httpx.Timeout(timeouts.reply, connect=timeouts.connect),
            "limits": httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE),
            "trust_env": False,  # a proxy of the environment is for what is crawled
            "verify": ssl_verify(verify),
            "proxy": None if proxy is None else proxy_of(proxy),
        }

    def check_token(self) -> None:
        """Raise FilterAPIError if pickle left the token out, and the environment has none."""
        if self.forgot_token:
            text = f"{self.session.where}: pickle leaves the token out: set {TOKEN_VARIABLE}"
            raise FilterAPIError(text, error_code="unauthorized")

    @staticmethod
    def path_of(filter_typeid: str, operation: str) -> str:
        """Return the path of an operation on a filter."""
        check_text("filter_typeid", filter_typeid)
        return OPERATIONS[operation].path_of(filter_typeid)

    def request(self, command: Arguments, attempt: str) -> dict[str, Any]:
        """Return httpx's arguments for one attempt at a command (method, path, key, body); ``attempt`` names it."""
        method, path, key, body = command
        headers = {"Content-Type": "application/json"} if body else {}
        return {
            "method": method,
            "url": str(self.url) + str(path),
            "content": body or None,
            "headers": headers | {ATTEMPT_HEADER: attempt} | ({KEY_HEADER: key} if key else {}),
        }

    def outcome_of(self, attempt: str, response: httpx.Response) -> Any:
        """Return the outcome of a response; after the first one, the full timeouts hold."""
        self.session.timeouts = self._timeouts
        return outcome_of(self.session, attempt, response)

    def question(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[Any],
        filter_typeid: str,
        objects: Iterable[Any],
        max_age: int | None = None,
        retry: UriFilterError | None = None,
        key: Key = None,
    ) -> APICall:
        """Make the call of a method about items, or return the call of ``retry``; nothing is sent.

        The method's command is one of ``http_api.OPERATIONS``.

        Raises:
            FilterAPIError: JSON cannot carry some items (``bad_item``).
            TypeError: ``objects`` is one string.
            ValueError: ``retry`` is the error of another call.
        """
        check_whole("max_age", max_age)
        command, more = method.command, {} if max_age is None else {"max_age": max_age}
        call = APICall((filter_typeid, command, max_age), command, more, listed(objects), cuts_of, key)
        return self.or_resumed(call, retry, method)

    def filter(self, filter_typeid: str, items: Iterable[object], retry: UriFilterError | None) -> APICall:
        """Make a call that inserts items and tells the new ones; arguments and errors are those of ``question``."""
        call = APICall((filter_typeid, "filter", None), "insert", {}, listed(items), cuts_of)
        return self.or_resumed(call, retry, UNIQUE)

    def or_resumed(self, made: A, retry: UriFilterError | None, method: Method[Any]) -> A:
        """Return a new call, or the call of the error ``retry``; its answers are those of the method.

        Raises:
            ValueError: ``retry`` is the error of another call, or another thread or task is asking for its answers.
        """
        if retry is None:
            call = made
        else:
            call = call_to_resume(retry, type(made), made.what[1])
            self.session.pending.check_free(call)
            if not call.is_like(made):
                text = f"retry= takes what {made.what[1]} raised for these same items, in this process, not {retry!r}"
                raise ValueError(text)
            call.items, call.key = made.items, made.key
        call.term = method.term
        return call

    def get(self, path: str) -> Flow[dict[str, Any]]:
        """Read a path.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
        """
        return (yield from self._repeatable(("GET", path, "", b"")))

    def listed(self, path: str, field: str, most: int, limit: float = math.inf) -> Flow[list[Any]]:
        """Return what a path lists, ``limit`` of it at most, in answers of ``most`` each; raises as ``get``."""
        found: list[Any] = []
        after = ""
        while True:
            told = yield from self.get(f"{path}?limit={min(limit - len(found), most)}{after}")
            found += told[field]
            if len(found) >= limit or told.get("next") is None:
                return found
            after = f"&after={told['next']}"

    def names(self) -> Flow[list[str]]:
        """Return the names of the filters; raises as ``get``."""
        return self.listed(OPERATIONS["list"].path, "filters", MOST_LISTED)

    def create(self, name: str, settings: FilterSettings, *, large: bool) -> Flow[str]:
        """Make a filter; return its uid."""
        check_flag("large", large)
        content = {
            each: value.total_seconds() if isinstance(value, timedelta) else value for each, value in settings.items()
        }
        if (rules := settings.get("rules")) is not None:
            content["rules"] = read_rules(rules)
        return (yield from self._act(name, "create", content | {"large": large}))["uid"]  # type: ignore[no-any-return]

    def rotate(self, name: str, expected_epoch: int | None, *, dry_run: bool) -> Flow[Rotation]:
        """Rotate a filter from the expected epoch; None: from its present one."""
        check_flag("dry_run", dry_run)
        check_whole("expected_epoch", expected_epoch)
        answer: dict[str, Any] = {}
        if expected_epoch is None:
            answer = yield from self._act(name, "rotate", {"dry_run": True})
            expected_epoch = answer["epoch"] - 1
        if not (answer and dry_run):
            answer = yield from self._act(name, "rotate", {"expected_epoch": expected_epoch, "dry_run": dry_run})
        return Rotation(answer["epoch"], answer["shards"], tuple(answer["problems"]))

    def checkpoint(self, name: str, *, full: bool) -> Flow[Written]:
        """Write a checkpoint."""
        check_flag("full", full)
        answer = yield from self._act(name, "checkpoint", {"full": full})
        return Written(answer["number"], answer["begun"], answer["shards"], answer["size"])

    def restore(self, name: str) -> Flow[str]:
        """Restore a filter; return its uid."""
        return (yield from self._act(name, "restore", {}))["uid"]  # type: ignore[no-any-return]

    def acknowledge(self, name: str) -> Flow[int]:
        """Acknowledge the restores of a filter; return the number of shards."""
        return (yield from self._act(name, "acknowledge", {}))["shards"]  # type: ignore[no-any-return]

    def union(self, name: str, sources: Sequence[str], *, over_capacity: bool) -> Flow[int]:
        """Insert all items of other filters; return about how many were added."""
        check_flag("over_capacity", over_capacity)
        for each in sources:
            check_text("a source", each)
        content = {"sources": list(sources), "over_capacity": over_capacity}
        return (yield from self._act(name, "union", content))["added"]  # type: ignore[no-any-return]

    def drop(self, name: str, uid: str, *, keep_archive: bool) -> Flow[bool]:
        """Remove the filter with this uid; return whether there was one."""
        check_text("uid", uid)
        check_flag("keep_archive", keep_archive)
        content = {"confirm": name, "uid": uid, "keep_archive": keep_archive}
        return (yield from self._act(name, "drop", content))["dropped"]  # type: ignore[no-any-return]

    def _act(self, filter_typeid: str, action: str, content: Mapping[str, Any]) -> Flow[dict[str, Any]]:
        """Do an action on a filter; every action may be repeated.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
        """
        return (yield from self._repeatable(("POST", self.path_of(filter_typeid, action), "", write_json(content))))

    def _repeatable(self, command: Arguments) -> Flow[dict[str, Any]]:
        self.check_token()
        request = Request.of(command)
        yield from exchange(self.session, [request])
        if request.error is not None:
            raise as_api_error(request.error)
        return request.reply  # type: ignore[no-any-return]

    def resolve(self, call: A) -> Flow[A]:
        """Send the parts of a call that have no answer yet, one after the other; return the call with all answers.

        ``session.pending`` holds the call meanwhile. Parts that are too much for the service are halved.

        Raises:
            FilterAPIError: a part got no answer; the error has the answers that arrived.
        """
        self.check_token()
        at = 0
        while at < len(call.parts):
            part = call.parts[at]
            if part.reply is None and self._limits.exceeded(call, part) and call.halve(at):
                continue
            try:
                if part.reply is None:
                    yield from self._send(call, part)
                at += 1
            except FilterAPIError as error:
                if error.error_code in Limits.CODES and call.halve(at):
                    self._limits.learn(error.error_code, call, part)
                    continue
                error.indices = [part.start + index for index in error.indices]
                with_batch(error, call)
                raise
        return call

    def unresolved(self, holdings: Holdings | None = None) -> list[FilterAPIError]:
        """Make an error, for ``retry=``, of each call that was interrupted in this process.

        The calls are those of one object of claims; None: those without claims.
        """
        errors = []
        for call in self.session.pending.interrupted():
            if call.process == os.getpid() and call.holdings is holdings:
                text = f"{call.method} was interrupted: call it again with retry= for the answers"
                error = FilterAPIError(text, error_code="answer_lost")
                errors.append(with_batch(error, call))
        return errors

    def _send(self, call: APICall, part: Part) -> Flow[None]:
        with call.under_way(part):
            fits = partial(part.is_answered_by, call.field)
            yield from self.post(call.operation, call.what[0], call.body(part), part, fits)

    def post(
        self,
        operation: str,
        filter_typeid: str,
        content: dict[str, Any],
        part: Part,
        fits: Callable[[dict[str, Any]], bool],
    ) -> Flow[None]:
        """Send a request until it is answered; the part gets the reply.

        Args:
            operation: the name of the operation.
            filter_typeid: the filter's name.
            content: the body.
            part: has the key of the request.
            fits: whether a reply is to this request.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
        """
        ids, keyed = self.session.ids, OPERATIONS[operation].keyed
        if keyed and part.call_id is None:
            ids.clock.learn(1000 * time.time())  # the machine may have been suspended since
            part.call_id = ids.draw()
        key = part.call_id.key if part.call_id else ""
        path, body = self.path_of(filter_typeid, operation), write_json(content)

        def build(_: Request) -> Arguments:  # for each attempt: the machine may have been suspended before it
            now = max(ids.clock.now(), int(1000 * time.time()))
            if part.in_doubt and part.call_id and now > part.call_id.started + PROOF_LIFE:
                text = f"{self.session.where}: the answer is kept for {PROOF_LIFE // 60_000} minutes, and they are over"
                raise FilterAPIError(text, error_code="answer_lost")
            return "POST", path, key, body

        request = Request(build, None, part if keyed else None)
        yield from exchange(self.session, [request])
        if request.answered and not fits(request.reply):
            text = f"{self.session.where}: its answer is not for these items"
            request.error = FilterAPIError(text, error_code=BAD_RESPONSE)
        error = None if request.error is None else as_api_error(request.error)
        if error is None:
            part.reply = request.reply
            part.in_doubt = False
        else:
            # what a request has done in part is told once more under its key alone
            done_in_part = part.note_arrived(error.content.get(OPERATIONS[operation].field))
            request.in_doubt = request.in_doubt or done_in_part or error.error_code == BAD_RESPONSE
        if part.call_id is not None and not part.in_doubt:
            done, part.call_id = part.call_id, None
            ids.release(done)
        if error is not None:
            raise error


class Connector:
    """Sends requests with blocking I/O; threads may share it, and each process has connections of its own."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._clients: dict[int, httpx.Client] = {}  # by process: a child leaves its parent's connections alone

    def send(self, commands: Sequence[Arguments], _: object = None) -> list[Any]:
        """Send each request once, one after the other; return an outcome for each (see ``steps.Send``)."""
        return [self._send(command) for command in commands]

    def _send(self, command: Arguments) -> Any:
        client = self._clients.get(os.getpid()) or self._connect()
        attempt = secrets.token_hex(8)
        try:
            response = client.request(**self._api.request(command, attempt))
        except httpx.HTTPError as error:
            return outcome_of_failure(self._api.session, error)
        outcome = self._api.outcome_of(attempt, response)
        if isinstance(outcome, Unanswered):
            response.extensions["network_stream"].close()
        return outcome

    def _connect(self) -> httpx.Client:
        made = httpx.Client(**self._api.options)
        kept = self._clients.setdefault(os.getpid(), made)  # the first of several threads wins; a lock could be forked
        if kept is not made:
            made.close()
        return kept

    def close(self) -> None:
        """Close this process's connections."""
        if client := self._clients.pop(os.getpid(), None):
            client.close()


class LoopConnections:
    """The connections of one event loop, and the requests there whose callers were cancelled.

    Such a request ends by itself: httpcore that is cancelled while it takes its lock loses a connection for good.
    """

    def __init__(self, api: API) -> None:
        self.client = httpx.AsyncClient(**api.options)
        self._left: set[asyncio.Task[Any]] = set()

    def leave(self, requests: Sequence[asyncio.Task[Any]]) -> None:
        """Keep requests until they end; nobody waits for them."""
        self._left.update(requests)
        for each in requests:
            each.add_done_callback(self._forget)

    async def close(self) -> None:
        """Cancel the requests that were left, and close the connections."""
        for each in self._left:
            each.cancel()
        if self._left:
            await asyncio.wait(self._left)
        await self.client.aclose()

    def _forget(self, request: asyncio.Task[Any]) -> None:
        self._left.discard(request)
        if not request.cancelled():
            request.exception()  # else asyncio logs that nobody has asked for it


class AsyncConnector:
    """Sends requests with awaited I/O; each event loop and each process has connections of its own."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._connections = PerLoop(lambda: LoopConnections(api), lambda made: made.close())

    def check_loop(self) -> None:
        """Check that this process made the running event loop.

        Raises:
            FilterAPIError: a forked child runs in its parent's loop; nothing was sent.
        """
        try:
            self._connections.get()
        except UriFilterError as error:
            raise as_api_error(error) from None

    async def send(self, commands: Sequence[Arguments], _: object = None) -> list[Any]:
        """Send each request once, all at the same time; return an outcome for each (see ``steps.Send``).

        A caller that is cancelled leaves its requests, which may still be sent.
        """
        connections = await self._connections.kept()
        requests = [asyncio.create_task(self._send(connections.client, command)) for command in commands]
        try:
            await asyncio.wait(requests)
        except asyncio.CancelledError:
            connections.leave(requests)
            raise
        return [each.result() for each in requests]

    async def _send(self, client: httpx.AsyncClient, command: Arguments) -> Any:
        attempt = secrets.token_hex(8)
        try:
            response = await client.request(**self._api.request(command, attempt))
        except httpx.HTTPError as error:
            return outcome_of_failure(self._api.session, error)
        outcome = self._api.outcome_of(attempt, response)
        if isinstance(outcome, Unanswered):
            await response.extensions["network_stream"].aclose()
        return outcome

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._connections.close()


class BaseClient:
    """The part of both clients that needs no connection; it can be pickled and copied."""

    _connector_of: ClassVar[type[Any]]
    _closed = False

    def __init__(
        self,
        url: str | None = None,
        access_token: str | None = None,
        *,
        timeouts: Timeouts = TIMEOUTS,
        verify: Verify = None,
        proxy: str | None = None,
    ) -> None:
        self._api = API(url, access_token, timeouts, verify, proxy)
        self._connector = self._connector_of(self._api)
        self._claimed: weakref.WeakSet[Any] = weakref.WeakSet()  # claims, whose beats end with this client
        self._more: dict[str, Any] = {"timeouts": timeouts, "verify": verify, "proxy": proxy}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._api.url}{': closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        """Raise ValueError if the client was closed, as a closed file does."""
        if self._closed:
            raise ValueError(f"the client of {self._api.url} is closed: make another one")

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._more["verify"], ssl.SSLContext):
            raise TypeError("a client with an ssl.SSLContext cannot be pickled: give verify= a file or folder")
        if "@" in urlsplit(self._more["proxy"] or "").netloc:
            raise TypeError("a client whose proxy has a password cannot be pickled: make a client in each process")
        had_token = self._api.token is not None or self._api.forgot_token
        return self._unpacked, (str(self._api.url), self._more, None, had_token)

    def __copy__(self) -> Self:
        return self._unpacked(str(self._api.url), self._more, self._api.token, self._api.forgot_token)

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()

    @classmethod
    def _unpacked(cls, url: str, more: dict[str, Any], token: str | None, had_token: bool) -> Self:  # noqa: FBT001 - by pickle
        made = cls(url, token, **more)
        made._api.forgot_token = had_token and made._api.token is None
        return made


class BlockingBaseClient(BaseClient):
    """The connector of ``FilterAPIClient``."""

    _connector: Connector
    _connector_of = Connector


class AsyncBaseClient(BaseClient):
    """The connector of ``AsyncFilterAPIClient``."""

    _connector: AsyncConnector
    _connector_of = AsyncConnector
