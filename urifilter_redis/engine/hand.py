"""A hand: what one holder has claimed and not yet committed or released, as its client knows it. There is no I/O here.

There is no lock, because Ctrl-C or a fork could leave it locked. Sets and dicts change in single steps.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from dataclasses import dataclass
from time import monotonic
from typing import Any

from urifilter_redis.protocol.call_ids import CALL_LIFE
from urifilter_redis.protocol.claims import Holding, new_holder

__all__ = ["Claim", "Hand", "Outstanding"]

#: A holder beats at this share of its lease, where it has made no other call.
BEATS = 1 / 3

#: Seconds of the longest pause between two rounds that look for what dead holders had.
LONGEST_PAUSE = 600.0

#: Seconds after the next lapse is due at which the next round may find it: the clocks are read at different moments.
AFTER_DUE = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """An item that was taken in hand.

    Attributes:
        item: the item: a str, bytes or any JSON value.
        payload: what its first claimant gave as ``payload=``; by default the item itself.
        failures: how many times it was released as failed. After a claim of one's own: 0, whatever came before.
        lapses: how many holders of it have died. After a claim of one's own: 0, likewise.

    Example:
        >>> mine.claim("https://example.com/a")
        True
        >>> mine.release(["https://example.com/a"], failed=True)
        [True]
        >>> mine.reclaim(1)
        [Claim(item='https://example.com/a', payload='https://example.com/a', failures=1, lapses=0)]
    """

    item: Any
    payload: Any
    failures: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The items that others have in hand; true if there are any.

    Attributes:
        others: their number, those that were released and are not due yet included.
        due: in how many seconds the next of them may be reclaimed, if its holder is dead; 0 if some may be now; None if
            there are none.

    Example:
        >>> mine.claim("https://example.com/a")
        True
        >>> mine.outstanding()
        Outstanding(others=0, due=None)
    """

    others: int
    due: float | None

    def __bool__(self) -> bool:
        return self.others > 0


class Hand:
    """The items of one holder, by shard and digest, and the calls of it that are under way.

    A forked child has another holder and holds nothing.

    Args:
        lease: seconds for which the holder lives without a call or beat.
        holder: 16 hex digits; None: draw one.

    Attributes:
        lease: as it was given.
        held: the claims of each shard by digest.
        seen: of each shard that the last rounds looked at: how many items others have in hand, and when the first of
            these holders dies, by ``monotonic`` (None: there is none).
    """

    def __init__(self, lease: float, holder: str | None = None) -> None:
        self.lease, self._given = lease, holder
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.holding = Holding(self._given or new_holder(), round(self.lease * 1000))
        self.held: defaultdict[int, dict[bytes, Claim]] = defaultdict(dict)
        self.seen: dict[int, tuple[int, float | None]] = {}
        self._under_way: defaultdict[int, set[object]] = defaultdict(set)
        self._doubtful: dict[int, float] = {}
        self._changed: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._called: dict[int, float] = {}
        self._pause, self._next_round, self._looked = 0.0, 0.0, -math.inf

    def check_process(self) -> None:
        """In a forked child become another holder, because the old one is the parent's."""
        if self._process != os.getpid():
            self._given = None
            self._begin()

    def take(self, shard: int, digest: bytes, claim: Claim) -> None:
        """Note an item that is in hand now."""
        self.held[shard][digest] = claim

    def drop(self, shard: int, digest: bytes) -> None:
        """Note an item that is in hand no longer."""
        self.held[shard].pop(digest, None)

    def has(self, shard: int, digest: bytes) -> bool:
        """Whether an item is in hand."""
        return digest in self.held.get(shard, ())

    @property
    def claims(self) -> list[Claim]:
        """All claims that are in hand."""
        return [claim for claims in list(self.held.values()) for claim in list(claims.values())]

    def begin(self, shard: int, call: object) -> None:
        """Note a call to a shard before it is sent."""
        self._under_way[shard].add(call)
        self._changed[shard] = next(self._numbers)

    def end(self, shard: int, call: object, *, in_doubt: bool) -> None:
        """Note the end of a call to a shard. One that is in doubt may still run until its deadline."""
        if in_doubt:
            self._doubtful[shard] = monotonic() + CALL_LIFE / 1000
        else:
            self._called[shard] = monotonic()
        self._changed[shard] = next(self._numbers)
        self._under_way[shard].discard(call)

    def mark(self, shard: int) -> int | None:
        """Return a mark for ``undisturbed``; None if a call to the shard is under way, or may be."""
        if self._under_way.get(shard) or monotonic() < self._doubtful.get(shard, 0.0):
            return None
        return self._changed.get(shard, 0)

    def undisturbed(self, shard: int, mark: int | None) -> bool:
        """Whether no call to a shard was under way since ``mark``."""
        return mark is not None and mark == self.mark(shard)

    @property
    def beat_interval(self) -> float:
        """Seconds between two beats."""
        return self.lease * BEATS

    def silent_shards(self) -> list[int]:
        """Return the shards in which something is in hand, and no call was made within a third of the lease."""
        since = monotonic() - self.beat_interval * 0.99  # a beat that is hardly early must not wait for the next
        return [shard for shard, claims in list(self.held.items()) if claims and self._called.get(shard, 0.0) <= since]

    def has_beaten(self, shard: int) -> None:
        """Note that a beat was answered."""
        self._called[shard] = monotonic()

    @property
    def may_look(self) -> bool:
        """Whether the pause after the last round that found nothing is over."""
        return monotonic() >= self._next_round

    @property
    def figures_are_old(self) -> bool:
        """Whether ``seen`` is older than a third of the lease, or empty."""
        return monotonic() >= self._looked + self.lease * BEATS

    def note_look(self, shard: int, others: int, dies: float | None) -> None:
        """Note how many items others have in hand in a shard, and when the first of them dies (``monotonic``)."""
        self.seen[shard] = others, dies
        self._looked = monotonic()

    def note_reclaimed(self, shard: int, count: int) -> None:
        """Note that items which others had are in this hand now."""
        others, dies = self.seen.get(shard, (0, None))
        self.seen[shard] = max(0, others - count), dies

    def note_round(self, found: int) -> None:
        """Note the end of a round; after one that found nothing the next comes after a pause, which doubles each time.

        It comes no later than the next lapse is due, and no sooner than after a third of the lease.
        """
        if found:
            self._pause = self._next_round = 0.0
            return
        least = self.lease * BEATS
        self._pause = min(max(least, 2 * self._pause), LONGEST_PAUSE)
        due = self.outstanding().due
        pause = self._pause if due is None else max(least, min(self._pause, due + AFTER_DUE))
        self._next_round = monotonic() + pause

    def outstanding(self) -> Outstanding:
        """Return the figures of the last rounds."""
        others = sum(count for count, _ in list(self.seen.values()))
        times = [dies for _, dies in list(self.seen.values()) if dies is not None]
        due = max(0.0, min(times) - monotonic()) if times and others else None
        return Outstanding(others, due)
