"""Call ids: with one, a call can be repeated after its reply was lost, and gets the same answers.

A client is 8 random bytes, drawn anew in a forked child. A slot serves one call at a time, and its sequence numbers
only go up. The deadline, in milliseconds of the server's clock, ends the time in which a call may run.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

#: ms from the making of a call to its deadline. The scripts accept a deadline up to two minutes ahead. Half of that
#: allows this process to be wrong about the server's clock by a minute, either way.
CALL_LIFE = 60_000

#: ms from the making of a call in which its record is certainly kept. The scripts keep records for ten minutes; two
#: minutes are left for clocks that disagree.
PROOF_LIFE = 8 * 60_000

#: The commands that a ``CallKey`` may be for; each has its own slots.
KEYED = ("insert", "forget", "remove")

#: The commands of claims, which have slots beyond all of those: the numbers of the others stay as they were.
KEYED_CLAIMS = ("claim", "commit", "release", "reclaim")
CLAIMS_FROM = 4 * 10**14

#: A request under a ``CallKey`` is cut into at most so many calls to one shard.
PARTS = 100_000

_KEY = re.compile(r"([0-9a-f]{16})/(\d{1,9})/(\d{1,15})")


class ServerClock:
    """The clock of a server (see ``Routes`` for its name), in ms since 1970, from this process's monotonic clock."""

    def __init__(self, node: str = "") -> None:
        self.node = node
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def learn(self, now_ms: float) -> None:
        """Set the clock: the server's time is ``now_ms`` at this moment."""
        self._ahead = now_ms - time.monotonic() * 1000

    def now(self) -> int:
        """Return the server's time, in ms."""
        return int(time.monotonic() * 1000 + self._ahead)


class CallId(NamedTuple):
    """The id of one call; ``str`` makes the text that the scripts take.

    Attributes:
        client: the client's 16 hex digits.
        slot: the number of the client's slot that the call is in.
        sequence: the number of the call among the calls of its slot.
        started: the server time at which the id was made, ms.
        keyed: whether the id was made from a ``CallKey``; then every process that repeats the request makes it too.
        node: the name of the server by whose clock it was started.
        request: of a part of a keyed request, the digest of the whole, 16 hex digits; else empty.
        first: of an id made from a key that was renewed, the server time at which it was made first, ms; else 0.
    """

    client: str
    slot: int
    sequence: int
    started: int
    keyed: bool = False
    node: str = ""
    request: str = ""
    first: int = 0

    @property
    def key(self) -> str:
        """The call's name as the text of a ``CallKey``, from which the service makes the same call id."""
        return f"{self.client}/{self.slot}/{self.sequence}"

    def text(self, *, waits: bool = False, turns: bool = False) -> str:
        """Return the text that the scripts take.

        ``waits``: the caller waits for replicas to have the answer. ``turns``: it turns the shard if periods were
        missed.
        """
        marks = f"{'+' if waits else ''}{'*' if turns else ''}{self.request and f'={self.request}'}"
        return f"{self.client}/{self.slot}/{self.sequence}/{self.started + CALL_LIFE}{marks}"

    def __str__(self) -> str:
        return self.text()

    def of_rest(self, started: int) -> CallId:
        """Return the id, made at server time ``started``, of the call for the items that this one left unanswered.

        This id was made from a key; so every process that repeats the request makes that one, too.
        """
        client = blake2b(self.client.encode(), digest_size=len(self.client) // 2).hexdigest()
        return self._replace(client=client, started=started, first=0)

    def proves_nothing_happened(self, late_at: int, node: str = "") -> bool:
        """Whether the answer LATECALL at server time ``late_at`` proves that this call never ran and never will.

        The clock of another node than that of the id, which has taken over its shard, proves nothing.
        """
        return node == self.node and self.started + CALL_LIFE <= late_at < self.started + PROOF_LIFE

    def may_be_renewed(self, late_at: int, node: str = "") -> bool:
        """Whether a call that may have run gets a new id after the answer LATECALL at server time ``late_at``.

        Under a key the new attempt finds the record of the old one, as long as that is certainly kept.
        """
        if self.keyed:
            return late_at < (self.first or self.started) + PROOF_LIFE
        return self.proves_nothing_happened(late_at, node)


@dataclass(frozen=True, slots=True)
class CallKey:
    """The caller's name for a request. Every process that gets the request makes the same call ids from it.

    Attributes:
        text: ``client/slot/sequence`` (16 hex digits, then two numbers), where the slot's next call overwrites its
            records and has a higher sequence. Any other text names one request of this command and scope.
        scope: the owner of the key; keys of different scopes are different keys, also those of one client.
        of_items: whether a text of the other form names only the request with these items, so that other items are
            another request. Else the scripts refuse these, as they do for the first form.
    """

    text: str
    scope: str = ""
    of_items: bool = False

    @property
    def is_slot(self) -> bool:
        """Whether the text is ``client/slot/sequence``."""
        return _KEY.fullmatch(self.text) is not None

    def call_id(self, command: str, packed: bytes, part: int, started: int) -> CallId:
        """Make the id of one call of a request at server time ``started``, ms.

        ``packed`` has the digests of the whole request. ``part`` is the number of the call among the request's calls to
        this shard, from 0, below ``PARTS``.
        """
        found = _KEY.fullmatch(self.text)
        if found:
            owner = blake2b(self.scope.encode("utf-8", "surrogatepass")).digest()
            client = blake2b(found[1].encode(), key=owner, digest_size=8).hexdigest()
            return CallId(client, _slot(int(found[2]), command, part), int(found[3]), started, keyed=True)
        named = f"{self.scope}\0{command}\0{self.text}".encode("utf-8", "surrogatepass")
        client = blake2b(packed if self.of_items else b"", key=blake2b(named).digest(), digest_size=16).hexdigest()
        return CallId(client, part, 1, started, keyed=True)


def _slot(slot: int, command: str, part: int) -> int:
    """Return the slot of a part of a command under a key with this slot; different for each of them."""
    first, commands = (CLAIMS_FROM, KEYED_CLAIMS) if command in KEYED_CLAIMS else (0, KEYED)
    return first + (slot * len(commands) + commands.index(command)) * PARTS + part


@dataclass(slots=True)
class _Slots:
    """The slots of one client. They have no lock, because Ctrl-C or a fork could leave it locked."""

    client: str = field(default_factory=lambda: secrets.token_hex(8))
    free: deque[tuple[int, int]] = field(default_factory=deque)  # (slot, last sequence)
    unused: Iterator[int] = field(default_factory=itertools.count)


class CallIds:
    """Draws call ids from a pool of slots; thread-safe and fork-safe."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self._clocks = {self.clock.node: self.clock}
        self._slots = _Slots()
        _alive.add(self)

    @property
    def client(self) -> str:
        """The client's 16 hex digits."""
        return self._slots.client

    def clock_of(self, node: str) -> ServerClock:
        """Return the clock of a server; until it is learned, it is this machine's."""
        return self._clocks.get(node) or self._clocks.setdefault(node, ServerClock(node))

    def draw(self, clock: ServerClock | None = None) -> CallId:
        """Take a slot and return a call id in it; ``release`` gives the slot back once the call is resolved.

        ``clock`` is that of the server that the call is for; None: of the given server.
        """
        slots, clock = self._slots, clock or self.clock
        try:
            slot, sequence = slots.free.pop()
        except IndexError:
            slot, sequence = next(slots.unused), 0
        return CallId(slots.client, slot, sequence + 1, clock.now(), node=clock.node)

    def renew(self, call_id: CallId, clock: ServerClock | None = None) -> CallId:
        """Return a new id in the same slot, for a call that certainly did nothing under the old one.

        An id made from a key keeps its sequence; only its deadline is new.
        """
        clock = clock or self.clock
        if call_id.keyed:
            return call_id._replace(started=clock.now(), node=clock.node, first=call_id.first or call_id.started)
        return CallId(call_id.client, call_id.slot, call_id.sequence + 1, clock.now(), node=clock.node)

    def release(self, call_id: CallId) -> None:
        """Give back the slot of a call that is answered."""
        slots = self._slots
        if call_id.client == slots.client:
            slots.free.append((call_id.slot, call_id.sequence))

    def forked(self) -> None:
        """Become a new client in a forked child, because the old slots belong to the parent."""
        self._slots = _Slots()


_alive: weakref.WeakSet[CallIds] = weakref.WeakSet()


def _after_fork() -> None:
    for ids in list(_alive):
        ids.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
