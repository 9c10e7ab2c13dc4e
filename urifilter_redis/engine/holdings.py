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
from typing import TYPE_CHECKING, Any, TypeAlias

from urifilter_redis.engine.pending import current_owner
from urifilter_redis.protocol.call_ids import CALL_LIFE
from urifilter_redis.protocol.claims import Holding, new_holder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from urifilter_redis.engine.pending import Owner

__all__ = ["AFTER_DUE", "Claim", "Found", "Holdings", "Outstanding"]

#: A holder beats at this share of its lease, where it has made no other call.
BEATS = 1 / 3

#: Seconds of the longest pause between two rounds that look for lapsed items.
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
        due: in how many seconds the next of them may be reclaimed, if its holder gives no sign of life; None if there
            are none. Until then ``reclaim`` finds nothing.

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


#: Items that a reclaim has taken in hand: shard, digest and claim of each.
Found: TypeAlias = list[tuple[int, bytes, Claim]]


class Holdings:
    """The items of one holder, by shard and digest, and the calls of it that are under way.

    A forked child has another holder and holds nothing.

    Args:
        lease: seconds for which the holder lives without a call or beat.
        holder: 16 hex digits; None: draw one.
        pauses: whether rounds that found nothing are followed by pauses; not where each call has a hand of its own.

    Attributes:
        lease: as it was given.
        holding: the holder and its lease in the terms of the scripts.
        held: the claims of each shard by digest.
        orphans: the digests of each shard that the server may have in the holder's hands, and of which no caller was
            told; each with the time by ``monotonic`` from which it can be given back.
        suspects: the shards where the server may have other such items, whose digests are not known here.
        partial: whether some shards may not have been looked at since the figures of others' items changed.
    """

    def __init__(self, lease: float, holder: str | None = None, *, pauses: bool = True) -> None:
        self.lease, self._given, self._pauses = lease, holder, pauses
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.holding = Holding(self._given or new_holder(), round(self.lease * 1000))
        self.held: defaultdict[int, dict[bytes, Claim]] = defaultdict(dict)
        self.orphans: defaultdict[int, dict[bytes, float]] = defaultdict(dict)
        self.suspects: set[int] = set()
        self._under_way: defaultdict[int, dict[object, tuple[Owner, float]]] = defaultdict(dict)
        self._doubtful: dict[int, float] = {}
        self._changed: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._beaten: dict[int, float] = {}
        self._seen: dict[int, _Look] = {}
        self.partial = False
        self._pause = self._next_round = 0.0

    def check_process(self) -> None:
        """In a forked child become another holder, because the old one is the parent's."""
        if self._process != os.getpid():
            self._given = None
            self._begin()

    def take(self, shard: int, digest: bytes, claim: Claim) -> None:
        """Note an item that is in hand now."""
        self.held[shard][digest] = claim
        self.orphans[shard].pop(digest, None)

    def drop(self, shard: int, digest: bytes) -> None:
        """Note an item that is in hand no longer."""
        self.held[shard].pop(digest, None)
        self.orphans[shard].pop(digest, None)

    def leave(self, shard: int, digest: bytes) -> None:
        """Note an item in hand of which no caller was told: the next beat gives it back."""
        self.orphans[shard][digest] = 0.0
        self.held[shard].pop(digest, None)

    def leave_all(self, found: Found) -> None:
        """Note that a reclaim was interrupted, after it had found so much."""
        self.abandon()
        for shard, digest, _ in found:
            self.leave(shard, digest)

    def doubt(self, shard: int, digests: Iterable[bytes], *, in_doubt: bool) -> None:
        """Note items that a call may have taken, and of which no caller was told: the next beat gives them back.

        If the call is in doubt, it may still run: then a beat after its deadline does.
        """
        at = monotonic() + CALL_LIFE / 1000 if in_doubt else 0.0
        for digest in digests:
            if not self.has(shard, digest):  # what was in hand before, the call has not taken
                self.orphans[shard][digest] = at

    def orphaned(self, now: float | None = None) -> list[bytes]:
        """Return the orphans that can be given back now; ``math.inf``: all of them."""
        by = monotonic() if now is None else now
        return [digest for each in list(self.orphans.values()) for digest, at in list(each.items()) if at <= by]

    def has(self, shard: int, digest: bytes) -> bool:
        """Whether an item is in hand."""
        return digest in self.held.get(shard, ())

    @property
    def claims(self) -> list[Claim]:
        """All claims that are in hand."""
        return [claim for claims in list(self.held.values()) for claim in list(claims.values())]

    @property
    def has_any(self) -> bool:
        """Whether something is in hand, or may be."""
        return any([*self.held.values(), *self.orphans.values(), self.suspects])

    def known(self, shard: int, count: int) -> int:
        """Return how many of these items, which the server has in these hands, are no orphans."""
        doubtful = shard in self.suspects or self.orphans.get(shard)
        return min(count, len(self.held.get(shard, ()))) if doubtful else count

    @property
    def digests(self) -> list[bytes]:
        """The digests of all items that are in hand."""
        return [digest for claims in list(self.held.values()) for digest in list(claims)]

    def begin(self, shard: int, call: object) -> None:
        """Note a call to a shard before it is sent."""
        self._under_way[shard][call] = current_owner(), monotonic()
        self._changed[shard] = next(self._numbers)

    def end(self, shard: int, call: object, *, answered: bool, in_doubt: bool) -> None:
        """Note the end of a call to a shard. One that is in doubt may still run until its deadline."""
        _, begun = self._under_way[shard].get(call, (None, 0.0))
        if answered:
            self.has_beaten(shard, begun)
        if in_doubt:
            self._doubtful[shard] = monotonic() + CALL_LIFE / 1000
        self._changed[shard] = next(self._numbers)
        self._under_way[shard].pop(call, None)

    def abandon(self) -> None:
        """Note that this thread or task was interrupted in a call: the call may still run, and was not taken in."""
        own = current_owner()
        for shard, calls in list(self._under_way.items()):
            for call, (owner, _) in list(calls.items()):
                if owner is own:
                    self.suspects.add(shard)
                    self.end(shard, call, answered=False, in_doubt=True)

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

    def shards_to_beat(self) -> list[int]:
        """Return the shards in which something is in hand, and no call was made within a third of the lease.

        The suspects are among them, because all calls there, beats too, would keep unknown items in hand.
        """
        since = monotonic() - self.beat_interval * 0.99  # a beat that is hardly early must not wait for the next
        silent = {
            shard for shard, claims in list(self.held.items()) if claims and self._beaten.get(shard, 0.0) <= since
        }
        return sorted(silent | set(self.suspects))

    def has_beaten(self, shard: int, at: float) -> None:
        """Note that a beat or a call that was sent at a time by ``monotonic`` was answered."""
        self._beaten[shard] = max(at, self._beaten.get(shard, 0.0))

    @property
    def may_look(self) -> bool:
        """Whether the pause after the last round that found nothing is over."""
        return monotonic() >= self._next_round

    @property
    def figures_are_old(self) -> bool:
        """Whether the figures of some shard are older than a third of the lease, or missing."""
        since = monotonic() - self.beat_interval
        return self.partial or min((each.at for each in list(self._seen.values())), default=-math.inf) < since

    def not_seen(self, shards: Iterable[int]) -> list[int]:
        """Return those of some shards that were not looked at within a third of the lease."""
        since = monotonic() - self.beat_interval
        return [shard for shard in shards if shard not in self._seen or self._seen[shard].at < since]

    def note_look(self, shard: int, others: int, dies: float | None) -> None:
        """Note how many items others have in a shard, and when the first of them dies (``monotonic``; None: none)."""
        self._seen[shard] = _Look(others, dies, monotonic())

    def note_reclaimed(self, shard: int, count: int) -> None:
        """Note that items which others had are in this hand now."""
        seen = self._seen.get(shard)
        if seen is not None:
            self._seen[shard] = _Look(max(0, seen.others - count), seen.dies, seen.at)

    def note_released(self, shard: int, delay: float) -> None:
        """Note that items of this hand can be reclaimed after ``delay`` seconds: no pause may be longer."""
        self._seen.pop(shard, None)
        self.partial, self._pause = True, 0.0
        self._next_round = min(self._next_round, monotonic() + delay + AFTER_DUE)

    def note_round(self, found: int) -> None:
        """Note the end of a round; after one that found nothing the next comes after a pause, which doubles each time.

        It comes no later than the next lapse is due, and no sooner than after a third of the lease.
        """
        if found or not self._pauses:
            self._pause = self._next_round = 0.0
            return
        now, least = monotonic(), min(self.beat_interval, LONGEST_PAUSE)
        self._pause = min(max(least, 2 * self._pause), LONGEST_PAUSE)
        due = self._first_lapse()
        pause = self._pause if due is None else max(least, min(self._pause, due + AFTER_DUE - now))
        self._next_round = now + pause

    def outstanding(self) -> Outstanding:
        """Return the figures of the last looks."""
        others = sum(each.others for each in list(self._seen.values()))
        if others == 0:
            return Outstanding(0, None)
        now = monotonic()
        return Outstanding(others, max(0.0, (self._first_lapse() or now) - now, self._next_round - now))

    def _first_lapse(self) -> float | None:
        """Return when the first of the other holders dies, by ``monotonic``; None if there is none."""
        times = [each.dies for each in list(self._seen.values()) if each.others and each.dies is not None]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class _Look:
    """The figures of one look at a shard.

    Attributes:
        others: how many items other holders have there.
        dies: when the first of these holders dies, by ``monotonic``; None: there is none.
        at: when it was, by ``monotonic``.
    """

    others: int
    dies: float | None
    at: float
