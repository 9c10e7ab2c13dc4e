"""When which fault comes: drawn from a seed before the run begins, so that a seed repeats it."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: What a fault is done to. A subject has one fault at a time.
CLIENTS = ("blocking", "awaited", "serviced", "claiming", "meddling")

#: By kind of fault: its subject ("client": one of them), and its shortest and longest duration, s; 0: over at once.
KINDS: dict[str, tuple[str, float, float]] = {
    "kill the server": ("server", 0.2, 2),
    "stop the server": ("server", 5, 5),
    "set the server's clock": ("server's clock", 4, 8),
    "flush the scripts": ("server", 0, 0),
    "flush all": ("server", 0, 0),
    "kill the connections": ("server", 0, 0),
    "out of memory": ("server", 2, 5),
    "disk full": ("server", 2, 4),
    "kill a client": ("client", 0, 1),
    "stop a client": ("client", 5, 5),
    "set a client's clock": ("client", 5, 5),
    "kill the worker": ("worker", 0, 2),
    "stop the worker": ("worker", 5, 5),
    "kill the service": ("service", 0, 2),
    "stop the service": ("service", 5, 5),
    "bad network": ("network", 3, 6),
    "archive away": ("archive", 4, 8),
}

#: Seconds ahead to which the server's clock is set, and then to 0. More than a minute voids open calls, as documented.
SERVER_CLOCKS = (25, -25, 50, -50, 3600, -3600)

#: Seconds ahead to which a client's clock is set.
CLIENT_CLOCKS = (45, -45, 7200, -7200)

#: Seconds between two faults, on average; and at the beginning and the end without any.
BETWEEN, BEFORE, AFTER = 1.8, 5.0, 5.0

#: Seconds between two faults of one subject: the server's, and any other's, which works again only once it has started.
SERVER_RESTS, RESTS = 1.5, 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the schedule.

    Attributes:
        at: seconds from the beginning of the run.
        until: when it ends.
        kind: one of ``KINDS``.
        subject: what it is done to.
        chosen: a number that the fault may use for a choice of its own.
    """

    at: float
    until: float
    kind: str
    subject: str
    chosen: int

    def __str__(self) -> str:
        lasts = f" for {self.until - self.at:.1f} s" if self.until > self.at else ""
        return f"{self.at:7.1f} s  {self.kind}, {self.subject}{lasts} ({self.chosen})"


def schedule(seed: int, seconds: float, kinds: list[str]) -> list[Fault]:
    """Draw the faults of a run: all kinds in turn, each time in another order."""
    dice, at, found, deck = random.Random(seed), BEFORE, [], []
    busy: dict[str, float] = {}
    while at < seconds - AFTER:
        if not deck:
            deck = dice.sample(kinds, len(kinds))
        kind = deck.pop()
        subject, shortest, longest = KINDS[kind]
        lasts, chosen = dice.uniform(shortest, longest), dice.randrange(1 << 16)
        if subject == "client":
            subject = CLIENTS[chosen % len(CLIENTS)]
        begins = max(at, busy.get(subject, 0.0))
        if begins + lasts < seconds - AFTER:
            found.append(Fault(begins, begins + lasts, kind, subject, chosen))
            busy[subject] = begins + lasts + (SERVER_RESTS if subject == "server" else RESTS)
        at += dice.expovariate(1 / BETWEEN)
    return sorted(found, key=lambda fault: fault.at)
