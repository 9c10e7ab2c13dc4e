"""The part of claims that is written by hand: the attributes of both kinds, and the beats of each."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from urifilter_redis.checks import check_flag, check_text
from urifilter_redis.engine.batch import Key, items_of, listed
from urifilter_redis.engine.holdings import Claim
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import FilterNotFound, UriFilterError
from urifilter_redis.protocol.claims import check_delay, check_limit

if TYPE_CHECKING:
    from urifilter_redis.claiming.claims_backend import ClaimsBackend

log = logging.getLogger("urifilter_redis")


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
        backend: ClaimsBackend,
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
