"""The part of claims that is written by hand: the base of their backends, the attributes of both kinds, the beats."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from urifilter_redis.checks import check_flag, check_text
from urifilter_redis.engine.batch import Key, Method, items_of, listed
from urifilter_redis.engine.holdings import Claim, Found, Holdings
from urifilter_redis.engine.looks import shared
from urifilter_redis.engine.pending import Pending
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import Answering, FilterNotFound, UriFilterError
from urifilter_redis.protocol.claims import check_delay, check_limit

log = logging.getLogger("urifilter_redis")


class Question(Answering, Protocol):
    """A call about items that ``Pending`` can hold."""

    @property
    def writes(self) -> bool:
        """Whether its answers must not be lost."""
        ...


Q = TypeVar("Q", bound=Question)


class ClaimsBackend(ABC, Generic[Q]):
    """Flows about the claims on one filter; they note changes in ``holdings``, and raise the client's errors.

    Attributes:
        name: the filter's name.
        holdings: what the object of claims has in flight.
    """

    def __init__(self, name: str, session: Session, holdings: Holdings) -> None:
        self.name, self._session, self.holdings = name, session, holdings

    @property
    def where(self) -> str:
        """The filter or the service, for the beginning of messages."""
        return self._session.where

    @property
    def patience(self) -> float:
        """Seconds after which a flow gives up."""
        return self._session.total

    @property
    def pending(self) -> Pending[Any]:
        """The calls whose caller has no answers yet."""
        return self._session.pending

    @abstractmethod
    def names_of(self, items: Sequence[Any]) -> list[tuple[int, bytes]]:
        """Return the shard and digest under which the holdings have each item."""

    @abstractmethod
    def claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> Q:
        """Make the call of a method that claims, or return the call of ``retry``."""

    @abstractmethod
    def committing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, reason: str | None = None
    ) -> Q:
        """Make the call of ``commit``, or with a reason of ``reject``, or return the call of ``retry``."""

    @abstractmethod
    def releasing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, *, delay: float, failed: bool
    ) -> Q:
        """Make the call of ``release``, or return the call of ``retry``; ``delay`` is in seconds."""

    @abstractmethod
    def resolve(self, question: Q) -> Flow[Q]:
        """Get all answers of a call; return the call."""

    @abstractmethod
    def leave(self, question: Q, known: Sequence[int | None]) -> None:
        """Have the next beat give back the items of an interrupted claim, except those whose answers were known."""

    @abstractmethod
    def unresolved(self) -> list[Any]:
        """Return an error, for ``retry=``, of each call that was interrupted."""

    def reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Claim at most ``limit`` items of dead holders, or due again; note each in ``found``."""
        return shared(self.holdings, limit, self.patience, self._reclaim(limit, found))

    @abstractmethod
    def _reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Do as ``reclaim``, whatever other calls do."""

    @abstractmethod
    def read_outstanding(self, within: float | None) -> Flow[Any]:
        """Note how many items others have in flight; see ``Holdings.must_read``."""

    @abstractmethod
    def beat(self) -> Flow[None]:
        """Give a sign of life; correct the holdings where the server has other items."""

    @abstractmethod
    def give_back_all(self, delay: float) -> Flow[None]:
        """Release all items in flight; ``delay`` is in seconds."""


class BaseClaims:
    """The attributes of ``Claims`` and ``AsyncClaims``.

    Args:
        backend: the flows.
        run: runs a flow, in the caller's task or thread.
        beat: runs a flow that beats, in the background.
        name: the caller's name for the claims, for display.
        beats: whether to beat in the background.
    """

    def __init__(
        self,
        backend: ClaimsBackend[Any],
        run: Callable[[Flow[Any]], Any],
        beat: Callable[[Flow[None]], Any],
        *,
        name: str | None = None,
        beats: bool = True,
    ) -> None:
        check_flag("beats", beats)
        check_text("name", name, optional=True)
        self._backend, self._run, self._run_beat = backend, run, beat
        self._name, self._beats, self._may_beat = name, beats, beats
        self._holdings = backend.holdings
        self._closed = False
        self._logged: type[Exception] | None = None

    def __repr__(self) -> str:
        named = "" if self._name is None else f" {self._name!r}"
        state = "closed" if self._closed else f"{len(self.held)} in flight"
        return f"<{type(self).__name__}{named} {self.holder} of {self._backend.name}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("claims cannot be pickled: what is in flight belongs to one process")

    @property
    def holder(self) -> str:
        """The holder: 16 hex digits, new for each object, and in a forked child.

        Example:
            >>> len(mine.holder)
            16
        """
        self._holdings.check_process()
        return self._holdings.holding.holder

    @property
    def name(self) -> str | None:
        """The caller's name for these claims, for display only.

        Example:
            >>> mine.name is None
            True
        """
        return self._name

    @property
    def lease(self) -> float:
        """Seconds for which items stay in flight without a sign of life.

        Example:
            >>> mine.lease
            60.0
        """
        return self._holdings.lease

    @property
    def held(self) -> list[Claim]:
        """The claims that this object has in flight, as far as it knows.

        Example:
            >>> mine.held
            []
        """
        self._holdings.check_process()
        return self._holdings.claims

    def claimed(self, uris: Iterable[Any], *, key: Key = None) -> list[Claim]:
        """Return the claims of those items that this object has in flight, as far as it knows, in the items' order.

        They say how often an item failed before, and with how many holders it died. The server is not asked.

        Args:
            uris: any number of items, such as ``unique`` returns.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices.
            TypeError: one string was given instead of a list.

        Example:
            >>> mine.claimed(["https://example.com/a"])
            []
        """
        self._holdings.check_process()
        names = self._backend.names_of(items_of(listed(uris), key))
        return [claim for claim in map(self._holdings.claim_of, names) if claim is not None]

    @property
    def unresolved(self) -> list[UriFilterError]:
        """Commits and releases that were interrupted; pass one as ``retry=`` to get the answers.

        The ``method`` of an entry says which it was: ``commit``, ``reject`` or ``release``.

        A claim that was interrupted is given back by itself, because its caller has no answer.

        Example:
            >>> mine.unresolved
            []
        """
        return self._backend.unresolved()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("these claims are closed: make new ones with claims()")
        self._holdings.check_process()

    def _check_limit(self, limit: int) -> None:
        self._check_open()
        check_limit(limit)

    def _begin_closing(self, delay: float) -> bool:
        """Take no more calls; return whether there are items to give back."""
        check_delay(delay)
        if self._closed:
            return False
        self._holdings.check_process()
        self._closed = True
        return self._beats and self._holdings.has_any

    def _log_what_is_left(self, error: Exception) -> None:
        if isinstance(error, FilterNotFound) or getattr(error, "error_code", "") == "filter_not_found":
            log.warning("%s: the filter is gone, and what was in flight with it", self._backend.where)
        else:
            log.warning("%s: what is in flight is free after its lease only: %s", self._backend.where, error)

    def _delay_after(self, error: object) -> float:
        """Return the delay before items are offered again; after an error it is long, as the error may come again."""
        return 0.0 if error is None else self.lease

    def _log_failure(self, error: Exception) -> None:
        """Log the error of a beat; repeated errors of one type are logged once."""
        if type(error) is not self._logged:
            log.warning("claims of %s: a beat failed, and the next ones are tried: %s", self._backend.name, error)
        self._logged = type(error)


class AsyncBaseClaims(BaseClaims):
    """The beats of ``AsyncClaims``, by a task in the event loop of the first call."""

    _beating: asyncio.Task[None] | None = None
    _loop: tuple[int, asyncio.AbstractEventLoop] | None = None

    def _check_open(self) -> None:
        super()._check_open()
        self._check_loop()

    def _check_loop(self) -> None:
        """Check that this is the event loop of the first call; a forked child may have another.

        Raises:
            ValueError: it is another one.
        """
        process, loop = os.getpid(), asyncio.get_running_loop()
        if self._loop is None or self._loop[0] != process:
            self._loop, self._beating = (process, loop), None
        elif self._loop[1] is not loop:
            raise ValueError("these claims belong to another event loop: make new ones in this loop with claims()")

    def _begin_closing(self, delay: float) -> bool:
        self._check_loop()
        return super()._begin_closing(delay)

    def _begin_beating(self) -> None:
        if self._may_beat and (self._beating is None or self._beating.done()):
            beating = _beat(weakref.WeakMethod(self._beat_once), self._holdings.beat_interval)
            self._beating = asyncio.create_task(beating, name="urifilter-beat")

    async def _beat_once(self) -> None:
        try:
            await self._run_beat(self._backend.beat())
            self._logged = None
        except Exception as error:  # noqa: BLE001 - a task that ended would let everything lapse
            self._log_failure(error)

    async def _beat_with_call(self) -> None:
        """Make a call a beat where nothing beats in the background: a call itself beats only where it writes."""
        if not self._beats:
            await self._beat_once()

    async def _end_beating(self) -> None:
        """Beat no more, as these claims or their client are closed."""
        self._may_beat, beating, self._beating = False, self._beating, None
        if beating is not None and self._loop == (os.getpid(), asyncio.get_running_loop()):
            beating.cancel()
            await asyncio.wait([beating])


async def _beat(ref: weakref.WeakMethod[Callable[[], Awaitable[None]]], interval: float) -> None:
    """Beat after each interval, until the claims are collected."""
    await asyncio.sleep(interval)
    while (beat := ref()) is not None:
        await beat()
        del beat
        await asyncio.sleep(interval)


class BlockingBaseClaims(BaseClaims):
    """The beats of ``Claims``, by a thread."""

    _beating: Beating | None = None

    def _begin_beating(self) -> None:
        if self._may_beat and (self._beating is None or not self._beating.is_alive()):
            self._beating = Beating(self._beat_once, self._holdings.beat_interval)
            self._beating.start()

    def _beat_once(self) -> None:
        current = threading.current_thread()
        if isinstance(current, Beating) and (not self._may_beat or self._beating is not current):
            current.end()  # two threads may have begun to beat at once, or one as another closed
            return
        try:
            self._run_beat(self._backend.beat())
            self._logged = None
        except Exception as error:  # noqa: BLE001 - a thread that ended would let everything lapse
            self._log_failure(error)

    def _beat_with_call(self) -> None:
        """Do as ``AsyncBaseClaims._beat_with_call``."""
        if not self._beats:
            self._beat_once()

    def _end_beating(self) -> None:
        """Beat no more, as these claims or their client are closed."""
        self._may_beat, beating, self._beating = False, self._beating, None
        if beating is not None and beating.is_alive():  # in a forked child the parent's is not
            beating.stop(self._backend.patience)


class Beating(threading.Thread):
    """A thread that beats until it is stopped, or its object is collected.

    Args:
        beat: a method of the object; it raises nothing.
        interval: seconds between two beats.
    """

    def __init__(self, beat: Callable[[], None], interval: float) -> None:
        super().__init__(name="urifilter-beat", daemon=True)
        self._ended, self._interval = threading.Event(), interval
        self._beat = weakref.WeakMethod(beat, lambda _: self._ended.set())

    def run(self) -> None:
        """Beat after each interval."""
        while not self._ended.wait(self._interval):
            beat = self._beat()
            if beat is not None:
                beat()
            del beat

    def end(self) -> None:
        """Beat no more."""
        self._ended.set()

    def stop(self, patience: float) -> None:
        """Beat no more; wait for a beat under way, ``patience`` seconds at most."""
        self.end()
        if self is not threading.current_thread():
            self.join(patience)
