"""The near cache: digests that the server has answered as seen, kept in this process.

It holds two generations of digests. New ones go into the young generation. When that is full, or half of the time of an
entry is over, it becomes the old one, and the generation that was old is dropped. So nothing is noted about a hit.

Threads share it without a lock, because Ctrl-C or a fork could leave a lock locked. Each operation on a set is one call
of C, which no other thread interrupts, and the order of these operations does the rest: see ``begin`` and ``forget``.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.checks import is_whole
from urifilter_redis.protocol.config import Config

#: The time of an entry in seconds, unless the caller sets another.
SECONDS = 60.0

#: The longest time of an entry, as a share of the filter's period.
SHARE_OF_PERIOD = 0.1

#: Seconds of a clock that goes on while the machine sleeps, where the system has one.
_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    _clock = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class NearCacheSettings:
    """A caller's wish for a near cache.

    Attributes:
        entries: the most digests that it holds; 0: there is no near cache.
        seconds: the longest time that it holds a digest.

    Raises:
        ValueError: one of them is not possible.
    """

    entries: int = 0
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        entries, seconds = self.entries, self.seconds
        if not is_whole(entries, 0) or entries == 1:
            raise ValueError(f"near_cache is a number of entries from 2 up, or 0 for none, and not {entries!r}")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ValueError(f"near_cache_seconds is a number of seconds above 0 and not {seconds!r}")


@dataclass(frozen=True, slots=True)
class NearCacheInfo:
    """The use of a client's near cache so far; these attributes are the keys of its JSON.

    Attributes:
        limit: the most digests that the cache holds.
        seconds: the longest time that it holds a digest.
        entries: the number of digests that it holds now.
        hits: the number of items that it has answered, in this process.
        misses: the number of items that it was asked about and that the server had to answer, in this process.

    Example:
        >>> cached = UriFilter.open("news", near_cache=100_000)
        >>> [cached.insert("https://example.com/a") for _ in range(3)]
        [True, False, False]
        >>> cached.near_cache.hits
        2
        >>> cached.close()
    """

    limit: int
    seconds: float
    entries: int
    hits: int
    misses: int


@dataclass(slots=True)
class _Generation:
    """Digests that came in after ``begun``, a time by the clock; the server gave each answer after it."""

    begun: float
    digests: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class CallInFlight:
    """A call of a script that is on its way.

    Attributes:
        digests: the call's digests in the order of its items. ``forget`` and ``clear`` empty the list, so that no
            answer to the call goes into the cache.
        into: the young generation as the call was sent.
        begun: the time before the sending, by the clock.
    """

    digests: list[bytes]
    into: _Generation
    begun: float


class NearCache:
    """Digests that are known to be seen: at most ``entries``, at least 2, each for at most ``seconds`` by ``clock``."""

    def __init__(self, entries: int, seconds: float, clock: Callable[[], float] = _clock) -> None:
        self.entries, self.seconds, self.clock = entries, seconds, clock
        self.reset()
        _alive.add(self)

    def reset(self) -> None:
        """Empty the cache, also in a forked child: the calls in flight are its parent's."""
        self._hits = self._misses = 0
        self._in_flight: dict[CallInFlight, None] = {}
        # Appending drops the old generation in the same step, so no thread can bring back one that forget missed.
        self._generations = deque([_Generation(-math.inf), _Generation(self.clock())], maxlen=2)

    @property
    def info(self) -> NearCacheInfo:
        """The use of the cache so far."""
        young, old = self._current()
        held = len(young) + len(old)
        return NearCacheInfo(self.entries, self.seconds, held, self._hits, self._misses)

    def find(self, digests: Sequence[bytes]) -> list[bool]:
        """Return whether each digest is known to be seen."""
        young, old = self._current()
        found = [digest in young or digest in old for digest in digests]
        hits = found.count(True)
        self._hits += hits
        self._misses += len(found) - hits
        return found

    def begin(self, digests: list[bytes]) -> CallInFlight:
        """Note a call before it is sent; ``end`` must follow. ``forget`` and ``clear`` may empty the list."""
        self._current()
        call = CallInFlight(digests, self._generations[-1], self.clock())
        self._in_flight[call] = None
        return call

    def end(self, call: CallInFlight, ages: Sequence[int], least: int) -> None:
        """Take in the digests of a call that was answered, and note that it is in flight no more.

        Args:
            call: the call, as ``begin`` returned it.
            ages: the call's answers; empty if none came.
            least: the lowest age that shows that the item is seen from now on.
        """
        if ages and len(ages) == len(call.digests):
            seen = [age >= least for age in ages] if min(ages) < least else None
            self._add(call, seen)
        self._in_flight.pop(call, None)  # last: until its digests are in, forget must find the call

    def forget(self, digests: Sequence[bytes]) -> None:
        """Take digests out, and let no answer in that is on its way.

        A caller that makes items new again calls it before the sending, and after the reply. An answer from before the
        reply may be older than the forgetting. The second call finds its digests: in flight, or in a generation.
        """
        self._spoil()
        for generation in tuple(self._generations):
            generation.digests.difference_update(digests)

    def clear(self) -> None:
        """Take all digests out, and let no answer in that is on its way."""
        self._spoil()
        for generation in tuple(self._generations):
            generation.digests.clear()

    def _spoil(self) -> None:
        """Empty the calls in flight; this comes first, because each may put its digests in at any moment."""
        for call in list(self._in_flight):
            call.digests.clear()

    def _current(self) -> tuple[set[bytes], set[bytes]]:
        """Return the digests of both generations whose time is not over, the young ones first."""
        now, (old, young) = self.clock(), self._generations
        if now >= young.begun + self.seconds / 2:
            old, young = young, _Generation(now)
            self._generations.append(young)
        return young.digests, old.digests if now < old.begun + self.seconds else set()

    def _add(self, call: CallInFlight, seen: list[bool] | None) -> None:
        """Put a call's digests, or those that were seen, into its generation, or a new one if that is full."""
        digests, most, into = call.digests, self.entries // 2, call.into
        if len(digests) > most - len(into.digests):
            if into is not self._generations[-1]:  # the young one may have begun after the answers
                return
            into = _Generation(call.begun)
            self._generations.append(into)
        chosen = digests if seen is None else itertools.compress(digests, seen)
        into.digests.update(itertools.islice(chosen, most))


def near_cache_of(settings: NearCacheSettings, config: Config) -> NearCache | None:
    """Return a near cache for a filter; None if none is wanted.

    With last-seen there is none: each time that an item is seen must reach the server, because it puts off its expiry.
    """
    if not settings.entries or config.expire_after == "last-seen":
        return None
    longest = SHARE_OF_PERIOD * seconds_of(config.period) if config.period else math.inf
    return NearCache(settings.entries, min(settings.seconds, longest))


_alive: weakref.WeakSet[NearCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_alive):
        cache.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
