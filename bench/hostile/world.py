"""What happened to the server and the archive, as far as the promises depend on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.hostile.filters import PERIOD, SLICES
from bench.hostile.journal import Asked, Line

#: Seconds by which the clocks of this computation may be wrong: the server's has ms, and is set some ms after its line.
SLACK = 0.1

#: Seconds that the server's clock may be set by while a call keeps its promise: half of what the scripts accept.
BEARABLE = 60.0

#: Seconds that an item is kept from others, by the server's clock: the longest lease, and longer than each delay.
KEPT = 5.0


@dataclass(frozen=True, slots=True)
class Span:
    """Something happened at one moment of this time, by the monotonic clock."""

    began: float
    ended: float


#: What may take its place: a call runs at one moment of its time.
Timed = Span | Asked


@dataclass(slots=True)
class World:
    """All that the oracle knows beside the answers.

    Attributes:
        flushes: each FLUSHALL.
        checkpoints: by filter, each finished checkpoint; its beginning is after ``began``.
        clock: (time, seconds ahead): each setting of the server's clock, in order.
    """

    flushes: list[Span] = field(default_factory=list)
    checkpoints: dict[str, list[Span]] = field(default_factory=dict)
    clock: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[Line]) -> World:
        """Read it from the journals."""
        world, flushing = cls(), math.nan
        for line in sorted(lines, key=lambda each: each["at"]):
            if line["what"] == "checkpoint":
                world.checkpoints.setdefault(line["filter"], []).append(Span(line["began"], line["at"]))
            elif line["what"] == "clock":
                world.clock.append((line["at"], line["ahead"]))
            elif line["what"] == "flush" and line["done"]:
                world.flushes.append(Span(flushing, line["at"]))
            elif line["what"] == "flush":
                flushing = line["at"]
        return world

    def covered(self, name: str, flush: Span) -> float:
        """Return the time until which a restore after this FLUSHALL surely brings back all items of a filter."""
        finished = (each.began for each in self.checkpoints.get(name, ()) if each.ended <= flush.began)
        return max(finished, default=-math.inf)

    def may_be_lost(self, name: str, known: Timed, missed: Timed) -> bool:
        """Whether a FLUSHALL may have taken what was known, before it was missed: no checkpoint had it."""
        return any(
            each.ended >= known.began and each.began <= missed.ended and known.ended >= self.covered(name, each)
            for each in self.flushes
        )

    def flushed_during(self, call: Asked) -> bool:
        """Whether a FLUSHALL may have taken what a call had done before it was repeated."""
        return any(each.ended >= call.began and each.began <= call.ended for each in self.flushes)

    def may_have_expired(self, known: Timed, missed: Timed) -> bool:
        """Whether so many periods were over, by the server's clock, that an item had left the window."""
        at = known.began  # its slice may have been closed at once
        for _ in range(SLICES - 1):
            at = self._due(at)
        return at - SLACK <= missed.ended

    def jumped(self, since: float, until: float) -> bool:
        """Whether the server's clock was set by more than calls bear, or was so far off when a call began."""
        before = next((ahead for at, ahead in reversed(self.clock) if at < since - 2 * BEARABLE), 0.0)
        ahead = [before, *(ahead for at, ahead in self.clock if since - 2 * BEARABLE <= at <= until)]
        return max(ahead) - min(ahead) > BEARABLE

    def withheld(self, written: Timed, asked: Timed) -> bool:
        """Whether the time until which an item is kept from others has not come by the server's clock when asked.

        The time was ``written`` by the clock as it was set then. A restore after that wrote another.
        """
        if any(written.ended <= each.ended and each.began <= asked.ended for each in self.flushes):
            return False
        until = written.ended + max(self._ahead(written)) + KEPT
        return until + SLACK > asked.began + min(self._ahead(asked))

    def _ahead(self, span: Timed) -> list[float]:
        """Return the seconds by which the server's clock was ahead during a span; its line is before its setting."""
        began = span.began - SLACK
        before = next((ahead for at, ahead in reversed(self.clock) if at <= began), 0.0)
        return [before, *(ahead for at, ahead in self.clock if began < at <= span.ended)]

    def _due(self, opened: float) -> float:
        """Return the first time at which a slice is a period old by the server's clock.

        A slice that was opened in the future counts as opened when that was noticed, so the clock's least reading
        since its opening counts.
        """
        steps = [(-math.inf, 0.0), *self.clock]
        least = math.inf
        for (begins, ahead), (ends, _) in zip(steps, [*steps[1:], (math.inf, 0.0)], strict=True):
            if ends <= opened:
                continue
            first = max(begins, opened)
            least = min(least, first + ahead)
            due = max(first, least + PERIOD - ahead)
            if due < ends:
                return due
        raise AssertionError("the last step has no end")
