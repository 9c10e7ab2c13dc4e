"""Call ids: what makes an answer survive a lost reply.

A client is 8 random bytes, drawn anew in a forked child. A slot is one call in flight; its sequence numbers only
go up. The deadline, in milliseconds of the server's clock, ends the time in which a call may run.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PARTS", "CallId", "CallIds", "CallKey", "ServerClock"]

#: ms; a call may run for as long after it was first made. The scripts accept up to two minutes; half of that
#: leaves a minute for this process's idea of the server's clock to be wrong either way.
CALL_LIFE = 60_000

#: ms; within this time after a call's start its record has certainly not been removed (the scripts keep records
#: for ten minutes; two are left for clocks that disagree).
PROOF_LIFE = 8 * 60_000

#: Commands that a key may be for; each has slots of its own.
KEYED = ("insert", "forget", "remove")

#: Calls to one shard that one request under a ``CallKey`` may be cut into.
PARTS = 100_000

_KEY = re.compile(r"([0-9a-f]{16})/(\d{1,9})/(\d{1,15})")


class ServerClock:
    """The server's clock, in ms since 1970, reckoned from this process's monotonic clock."""

    def __init__(self) -> None:
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def learn(self, now_ms: float) -> None:
        """Take ``now_ms`` for the server's time now."""
        self._ahead = now_ms - time.monotonic() * 1000

    def now(self) -> int:
        """Return the server's time, in ms."""
        return int(time.monotonic() * 1000 + self._ahead)


@dataclass(frozen=True, slots=True)
class CallId:
    """The id of one call.

    Attributes:
        client: 16 hex digits.
        slot: which of the client's calls in flight this is.
        sequence: how many calls the slot has made.
        started: server time at which the call was made, ms.
        keyed: it was made of a ``CallKey``, so whoever repeats the call makes the same.
    """

    client: str
    slot: int
    sequence: int
    started: int
    keyed: bool = False

    @property
    def key(self) -> str:
        """What names the call for a service that makes its call ids of it; see ``CallKey``."""
        return f"{self.client}/{self.slot}/{self.sequence}"

    def __str__(self) -> str:
        return f"{self.client}/{self.slot}/{self.sequence}/{self.started + CALL_LIFE}"

    def proves_nothing_happened(self, late_at: int) -> bool:
        """Whether LATECALL at server time ``late_at`` means that this call never ran and never will."""
        return self.started + CALL_LIFE <= late_at < self.started + PROOF_LIFE


@dataclass(frozen=True, slots=True)
class CallKey:
    """What a caller names a request, so that whichever process gets it, and however often, makes the same call ids.

    Attributes:
        text: client/slot/sequence (16 hex digits, then numbers; the sequence of a slot goes up): the slot's next call
            overwrites its records. Anything else names this request alone: the same command, items and scope.
        scope: whose key it is.
    """

    text: str
    scope: str = ""

    def call_id(self, command: str, packed: bytes, part: int, started: int) -> CallId:
        """Make the id of the part-th call to a shard, below ``PARTS``, of a request with these digests."""
        found = _KEY.fullmatch(self.text)
        if found:
            slot = (int(found[2]) * len(KEYED) + KEYED.index(command)) * PARTS + part
            return CallId(found[1], slot, int(found[3]), started, keyed=True)
        named = f"{self.scope}\0{command}\0{self.text}".encode("utf-8", "surrogatepass")
        return CallId(blake2b(packed, key=blake2b(named).digest(), digest_size=16).hexdigest(), part, 1, started, True)  # noqa: FBT003


@dataclass(slots=True)
class _Slots:
    """The slots of one client; without a lock, which Ctrl-C or a fork could leave locked."""

    client: str = field(default_factory=lambda: secrets.token_hex(8))
    free: deque[tuple[int, int]] = field(default_factory=deque)  # (slot, last sequence)
    unused: Iterator[int] = field(default_factory=itertools.count)


class CallIds:
    """Draws call ids from a pool of slots; thread-safe and fork-safe."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self._slots = _Slots()
        _alive.add(self)

    @property
    def client(self) -> str:
        """The client's 16 hex digits."""
        return self._slots.client

    def draw(self) -> CallId:
        """Take a slot for a call; give it back by ``release`` once the call is resolved."""
        slots = self._slots
        try:
            slot, sequence = slots.free.pop()
        except IndexError:
            slot, sequence = next(slots.unused), 0
        return CallId(slots.client, slot, sequence + 1, self.clock.now())

    def renew(self, call_id: CallId) -> CallId:
        """Return a new id in the same slot, for a call that certainly did nothing under the old one.

        One made of a key keeps its sequence: only the deadline is new.
        """
        if call_id.keyed:
            return replace(call_id, started=self.clock.now())
        return CallId(call_id.client, call_id.slot, call_id.sequence + 1, self.clock.now())

    def release(self, call_id: CallId) -> None:
        """Give a slot back, its call being answered."""
        slots = self._slots
        if call_id.client == slots.client:
            slots.free.append((call_id.slot, call_id.sequence))

    def forked(self) -> None:
        """Become another client, in a forked child; the parent's slots are the parent's."""
        self._slots = _Slots()


_alive: weakref.WeakSet[CallIds] = weakref.WeakSet()


def _after_fork() -> None:
    for ids in list(_alive):
        ids.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
