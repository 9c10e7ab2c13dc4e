"""The rotation timer: when a client checks whether its filter's period is over, and the rotation that it has begun.

The client's clocks and the time of the last turn that it knows are hints. They only say when to ask the server.
"""

from __future__ import annotations

import math
import os
import random
import secrets
from time import monotonic, time

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.engine.steps import Flow
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config

#: Whether clients that insert turn the filter, or leave that to worker, cron and explicit calls.
ROTATE = ("auto", "never")

#: The environment variable with the default.
ROTATE_VARIABLE = "URIFILTER_ROTATE"

#: Clients check at different times after a period is over: spread over this share of it, and so many seconds at most.
SPREAD = 0.1
LONGEST_SPREAD = 30.0

#: Seconds between two readings of the wall clock, because the monotonic clock may stop while a machine sleeps.
RECHECK = 60.0

#: A lease is renewed once the first share of its time is over, if its holder has worked for the second share of it.
OLD = 2 / 3
WORKED = 0.1

#: After a client was told so many times to turn the filter, and did not, its calls insert all the same.
FRUITLESS = 3

#: Seconds for which the same problem is not reported again.
SILENCE = 600.0


class RotationTimer:
    """When this client checks next, its lease, and the rotation that it has begun.

    It has no lock. Two threads that meet in it check twice, which does no harm.

    Args:
        rotate: one of ``ROTATE``; None: that of the environment, else auto.

    Attributes:
        at: the time by ``monotonic`` before which a call that inserts has nothing more to do.
        inserted: whether this client has inserted; one that only reads turns nothing.
        lease: seconds of a lease.
        token: the name of this client in its lease.
        leased: the time by ``monotonic`` at which it took the lease; None: it has none.
        worked: seconds that it has worked under its lease.
        fruitless: how often it was told to turn the filter and did not, since its last check.

    Raises:
        ValueError: ``rotate``, or the environment's, is not one of ``ROTATE``.
    """

    leased: float | None

    def __init__(self, rotate: str | None = None) -> None:
        wanted = os.environ.get(ROTATE_VARIABLE) or ROTATE[0] if rotate is None else rotate
        if wanted not in ROTATE:
            name = ROTATE_VARIABLE if rotate is None else "rotate="
            raise ValueError(f"{name} is {' or '.join(ROTATE)} and not {wanted!r}")
        self.rotate, self._never, self.inserted = rotate, wanted == "never", False
        self.fruitless = 0
        self.at = math.inf if self._never else 0.0
        self._period, self.lease = 0, calls.LEASE
        self._due = self._due_by_wall = math.inf
        self._reported = ("", -math.inf)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.token, self.leased, self.worked = secrets.token_hex(8), None, 0.0
        # a rotation to go on with, or None, and when; empty: another thread or task has it
        self._slot: list[tuple[Flow[None] | None, float]] = [(None, 0.0)]
        self._taken = -math.inf

    def learn(self, config: Config, opened: int, now: int) -> None:
        """Note when shard 0 has turned, and the present time, both by the server's clock, ms.

        If the turn lies in the future, the server's clock was ahead, or is behind now: this client checks at once.
        """
        if config.turned_by_inserts:
            self._period, self.lease = seconds_of(config.period or ""), calls.lease_of(config)
            if opened > now:
                self.check_in(0)
            else:
                self.wait((opened - now) / 1000 + self._period)

    def wait(self, seconds: float) -> None:
        """Check after so many seconds and a random time, which keeps clients apart."""
        self.check_in(seconds + random.uniform(0, min(SPREAD * self._period, LONGEST_SPREAD)))  # noqa: S311 - no secret

    def check_in(self, seconds: float) -> None:
        """Check after so many seconds."""
        self._due, self._due_by_wall = monotonic() + seconds, time() + seconds
        self._plan()

    def stop(self) -> None:
        """Check no more."""
        self._never, self.at = True, math.inf

    def take(self) -> list[Flow[None] | None]:
        """If it is time, take the rotation to go on with: a list of it, or of None: to check.

        The list is empty if it is not time yet, or if another thread or task is at work. Work that has taken longer
        than a lease was interrupted.
        """
        self.inserted = True
        self.check_process()
        flow, until = self._slot[-1] if self._slot else (None, self._taken + self.lease)
        waits = self._never or monotonic() < until
        if waits or (flow is None and monotonic() < self._due and time() < self._due_by_wall):
            self._plan()
            return []
        try:
            flow = self._slot.pop()[0] if self._slot else None
        except IndexError:
            return []
        self._taken = monotonic()
        return [flow]

    def put(self, flow: Flow[None] | None = None, pause: float = 0.0) -> None:
        """Put back what was taken: a rotation to go on with after some seconds, or None."""
        now = monotonic()
        self.worked += now - self._taken
        self._slot[:] = [(flow, now + pause if flow else 0.0)]
        self._plan()

    def check_process(self) -> None:
        """In a forked child drop the parent's rotation and lease, and check at another time than the parent."""
        if self._process != os.getpid():
            self._begin()
            self.wait(self._due - monotonic())

    @property
    def turns(self) -> bool:
        """Whether this client can be told to turn the filter: no more after ``FRUITLESS`` times without a turn."""
        return not self._never and self.fruitless < FRUITLESS

    def took_lease(self, at: float) -> None:
        """Note that this client has the lease since ``at``, by ``monotonic``."""
        self.leased, self.worked = at, 0.0

    @property
    def lease_is_old(self) -> bool:
        """Whether the lease must be renewed, or given back."""
        return self.leased is not None and monotonic() >= self.leased + OLD * self.lease

    @property
    def lease_is_earned(self) -> bool:
        """Whether this client worked enough under its lease to renew it. If not, another may be faster."""
        return self.worked >= WORKED * self.lease

    def may_report(self, text: str) -> bool:
        """Whether to report a problem: it is another one than the last, or that was long ago."""
        last, at = self._reported
        if text == last and monotonic() < at + SILENCE:
            return False
        self._reported = text, monotonic()
        return True

    def _plan(self) -> None:
        """Set the time before which there is nothing to do."""
        if self._never:
            self.at = math.inf
        elif self.inserted:
            flow, until = self._slot[-1] if self._slot else (None, self._taken + self.lease)
            recheck = math.inf if self._due == math.inf else monotonic() + RECHECK
            self.at = until if flow is not None else max(until, min(self._due, recheck))
