"""The rotation timer: when a client looks whether its filter's period is over, and what it has in hand of a rotation.

The client's clocks and the time of the last turn that it knows are hints. They only say when to ask the server.
"""

from __future__ import annotations

import math
import os
import random
import secrets
from time import monotonic, time
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.protocol import calls

if TYPE_CHECKING:
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = ["ROTATE", "ROTATE_VARIABLE", "RotationTimer"]

#: Whether clients that insert turn the filter, or leave that to worker, cron and calls by hand.
ROTATE = ("auto", "never")

#: The environment's variable that has one of these, for filters of which nothing else is said.
ROTATE_VARIABLE = "URIFILTER_ROTATE"

#: Clients look at different times after a period is over: spread over this share of it, and so many seconds at most.
SPREAD = 0.1
LONGEST_SPREAD = 30.0

#: Seconds after which the wall clock is looked at again, because the monotonic clock may stop while a machine sleeps.
RECHECK = 60.0

#: A lease is renewed once this share of its time is over, if its holder worked the other share of that time.
OLD = 2 / 3
WORKED = 0.1

#: After so many times that a client was told to turn the filter, and did not, its calls insert all the same.
FRUITLESS = 3

#: Seconds for which the same problem is not told again.
SILENCE = 600.0


class RotationTimer:
    """When this client looks next, its lease, and the rotation that it has in hand.

    It has no lock. Two threads that meet in it look twice, which does no harm.

    Args:
        rotate: one of ``ROTATE``; None: that of the environment, else auto.

    Attributes:
        rotate: as it was given.
        at: the time by ``monotonic`` before which a call that inserts has nothing more to do.
        inserted: whether this client has inserted; one that only reads turns nothing.
        lease: seconds of a lease.
        token: the name of this client in its lease.
        leased: the time by ``monotonic`` at which it took the lease; None: it has none.
        worked: seconds that it has worked under its lease.
        fruitless: how often it was told to turn the filter and did not, since it last looked.

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
        self._told = ("", -math.inf)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.token, self.leased, self.worked = secrets.token_hex(8), None, 0.0
        # a rotation that was left, or None, and when to go on; empty: another thread or task has it
        self._hand: list[tuple[Flow[None] | None, float]] = [(None, 0.0)]
        self._taken = -math.inf

    def learn(self, config: Config, opened: int, now: int) -> None:
        """Note when shard 0 has turned, and the present time, both by the server's clock, ms.

        If the turn lies in the future, the server's clock was ahead, or is behind now: this client looks at once.
        """
        if config.turned_by_inserts:
            self._period, self.lease = seconds_of(config.period or ""), calls.lease_of(config)
            if opened > now:
                self.look_in(0)
            else:
                self.wait((opened - now) / 1000 + self._period)

    def wait(self, seconds: float) -> None:
        """Look after so many seconds and a random time, which keeps clients apart."""
        self.look_in(seconds + random.uniform(0, min(SPREAD * self._period, LONGEST_SPREAD)))  # noqa: S311 - no secret

    def look_in(self, seconds: float) -> None:
        """Look after so many seconds."""
        self._due, self._due_by_wall = monotonic() + seconds, time() + seconds
        self._plan()

    def stop(self) -> None:
        """Look no more."""
        self._never, self.at = True, math.inf

    def take(self) -> list[Flow[None] | None]:
        """Take what is in hand, if it is time: a list of the rotation that was left, or of None: to look.

        The list is empty if it is not time yet, or if another thread or task is at work. If that has taken longer than
        a lease, it was interrupted.
        """
        self.inserted = True
        self.check_process()
        flow, until = self._hand[-1] if self._hand else (None, self._taken + self.lease)
        waits = self._never or monotonic() < until
        if waits or (flow is None and monotonic() < self._due and time() < self._due_by_wall):
            self._plan()
            return []
        try:
            flow = self._hand.pop()[0] if self._hand else None
        except IndexError:
            return []
        self._taken = monotonic()
        return [flow]

    def put(self, flow: Flow[None] | None = None, pause: float = 0.0) -> None:
        """Put back what was taken: a rotation to go on with after some seconds, or None."""
        now = monotonic()
        self.worked += now - self._taken
        self._hand[:] = [(flow, now + pause if flow else 0.0)]
        self._plan()

    def check_process(self) -> None:
        """In a forked child drop what the parent has in hand, and look at another time than it."""
        if self._process != os.getpid():
            self._begin()
            self.wait(self._due - monotonic())

    @property
    def turns(self) -> bool:
        """Whether this client lets itself be told to turn the filter; no more after some times that did nothing."""
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

    def may_tell(self, text: str) -> bool:
        """Whether to tell a problem: it is another one than the last, or that was long ago."""
        told, at = self._told
        if text == told and monotonic() < at + SILENCE:
            return False
        self._told = text, monotonic()
        return True

    def _plan(self) -> None:
        """Set the time before which there is nothing to do."""
        if self._never:
            self.at = math.inf
        elif self.inserted:
            flow, until = self._hand[-1] if self._hand else (None, self._taken + self.lease)
            recheck = math.inf if self._due == math.inf else monotonic() + RECHECK
            self.at = until if flow is not None else max(until, min(self._due, recheck))
