"""The messages of Sentinels about a failover: its beginning, and its end.

From ``+selected-slave`` on, the old master may take writes that the new one will never have. So new calls are held
until there is a new master. The messages are read before each pipeline, without a thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError

from urifilter_redis.engine.topology import Routes, Service
from urifilter_redis.protocol.outcomes import Unsent, text_in

#: Seconds for which a connection to a Sentinel, and its first answer, are waited for.
PATIENCE = 0.5

#: Seconds after which a Sentinel that could not be reached is tried again.
AGAIN = 10.0

#: Seconds between two readings of the messages. A replica is promoted a tenth of a second after it was selected.
POLL = 0.01

#: Seconds between two glances at a thread that reads the messages.
GLANCE = 0.0005

#: The longest time for which calls are held, seconds. A promotion takes one.
HOLD = 5.0

#: Seconds for which Sentinels are believed while one of them is not heard, as it may be the one that leads a failover.
UNHEARD = 1.0

_BEGINS = "+selected-slave"
#: Each ends what ``_BEGINS`` began; a failover that is aborted otherwise has selected none.
_ENDS = ("+promoted-slave", "+switch-master", "-failover-abort-slave-timeout")

#: The outcome of a call whose time is over before the failover is.
HELD = Unsent(NoConnection("a failover is under way: the Sentinels have selected another master"))


class SentinelEvents:
    """The subscriptions of one process to the Sentinels of a service.

    Threads share them without a lock: one at a time reads, and the others wait until it has.

    Args:
        service: the service, with the addresses of its Sentinels.
        connection: makes a blocking connection of redis-py to a Sentinel; it is not connected.
    """

    def __init__(self, service: Service, connection: Callable[[str], Any]) -> None:
        self._service, self._connection = service, connection
        self._subscribed: dict[str, Any] = {}
        self._tried = dict.fromkeys(service.sentinels, -math.inf)
        self._read_at = -math.inf
        self._may_connect, self._may_read = [True], [True]
        self._held_until: float | None = None
        self._teller = ""
        self._told: object = None

    @property
    def must_connect(self) -> bool:
        """Whether the next poll may take longer, because it connects."""
        return bool(self._due())

    def poll(self, routes: Routes) -> bool:
        """Read the messages, and note in the routes what they say; return whether calls are to be held."""
        now = time.monotonic()
        self._connect()
        self._read_all(now)
        until = self._held_until  # once: another thread may end it
        if until is not None and now >= until:
            self._end()
        heard = not self._away() and now < self._read_at + UNHEARD
        held = self._held_until is not None  # before the routes hear of an end, so that none is missed
        routes.hear(self._teller, self._told, None if heard else UNHEARD)
        return held

    def _connect(self) -> None:
        """Subscribe to the Sentinels to which to connect now; other threads read the messages of the others."""
        if not self._due():
            return
        with self._alone(self._may_connect) as free:
            for sentinel in self._due() if free else ():
                self._tried[sentinel] = time.monotonic()
                self._subscribe(sentinel)

    def _read_all(self, now: float) -> None:
        """Read what was there at a time; if another thread is at it, wait for that."""
        while now >= self._read_at + POLL and time.monotonic() < now + PATIENCE:
            with self._alone(self._may_read) as free:
                if free:
                    begun = time.monotonic()
                    for sentinel, connection in list(self._subscribed.items()):
                        self._read(sentinel, connection)
                    self._read_at = begun
                    return
            time.sleep(GLANCE)

    @contextlib.contextmanager
    def _alone(self, free: list[bool]) -> Iterator[bool]:
        """Yield whether no other thread is at it."""
        taken: list[bool] = []
        try:
            with contextlib.suppress(IndexError):
                taken.append(free.pop())
            yield bool(taken)
        finally:
            free += taken

    def _due(self) -> list[str]:
        """Return the Sentinels to which to connect now."""
        return [each for each in self._away() if time.monotonic() >= self._tried[each] + AGAIN]

    def _away(self) -> list[str]:
        if len(self._subscribed) == len(self._tried):
            return []
        return [each for each in self._tried if each not in self._subscribed]

    def _subscribe(self, sentinel: str) -> None:
        connection = self._connection(sentinel)
        with self._closing(sentinel, connection):
            connection.connect()
            connection.send_command("SUBSCRIBE", _BEGINS, *_ENDS)
            connection.read_response()
            self._subscribed[sentinel] = connection
            self._told = object()  # a failover may have begun and ended unheard

    def _read(self, sentinel: str, connection: Any) -> None:
        """Read all messages that are there."""
        with self._closing(sentinel, connection):
            while connection.can_read(timeout=0):
                self._hear(sentinel, connection.read_response())

    @contextlib.contextmanager
    def _closing(self, sentinel: str, connection: Any) -> Iterator[None]:
        """Close a connection after any error; one of the connection is not raised."""
        try:
            yield
        except BaseException as error:
            self._subscribed.pop(sentinel, None)
            connection.disconnect()
            if not isinstance(error, RedisError | OSError):
                raise

    def _hear(self, sentinel: str, message: Any) -> None:
        kind, channel, text = map(text_in, message)
        if kind != "message" or _service_in(text) != self._service.name:
            return
        self._teller = sentinel
        if channel == _BEGINS:
            self._held_until = time.monotonic() + HOLD
        else:
            self._end()

    def _end(self) -> None:
        """Let calls go on, once the Sentinels were asked for the master."""
        self._told = object()
        self._held_until = None


def _service_in(text: str) -> str:
    """Return the service that a message is about.

    The message is ``slave NAME IP PORT @ SERVICE IP PORT``, ``master SERVICE IP PORT`` or ``SERVICE IP PORT IP PORT``.
    """
    words = text.partition(" @ ")[2].split() or text.split()
    return words[1] if len(words) == 4 else words[0]  # noqa: PLR2004


_events: weakref.WeakValueDictionary[tuple[int, str], SentinelEvents] = weakref.WeakValueDictionary()


def events_of(url: str, service: Service, connection: Callable[[str], Any]) -> SentinelEvents:
    """Return the subscriptions of this process to the Sentinels of an address; all its filters share them."""
    key = os.getpid(), url
    return _events.get(key) or _events.setdefault(key, SentinelEvents(service, connection))
