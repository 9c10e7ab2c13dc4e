"""Looks for lapsed items: calls that come while one is under way share it."""

from __future__ import annotations

from time import monotonic

from urifilter_redis.engine.holdings import Claim, Holdings, Look
from urifilter_redis.engine.steps import Flow, Pause

#: Seconds between two glances at a look of another call: the first, and the longest, to which they double.
GLANCE, LONGEST_GLANCE = 0.001, 0.05


def shared(holdings: Holdings, limit: int, patience: float, look: Flow[list[Claim]]) -> Flow[list[Claim]]:
    """Look for at most ``limit`` lapsed items, unless a look that is under way finds that there are no more.

    A look that reached its limit or failed does not tell; then each of the calls that waited for it looks itself.

    Args:
        holdings: what the caller has in flight.
        limit: the most items.
        patience: the longest time to wait for another call's look, seconds.
        look: claims items; it has not begun.
    """
    if holdings.pauses:
        other = holdings.look
        if other is not None and not other.ended:
            end, glance = monotonic() + patience, GLANCE
            while not other.ended and monotonic() < end:
                yield Pause(glance)
                glance = min(2 * glance, LONGEST_GLANCE)
            if other.saw_all:
                return []
        if not holdings.may_reclaim:
            return []
    own = holdings.look = Look()
    try:
        found = yield from look
        own.saw_all = len(found) < limit and not holdings.partial
        return found
    finally:
        own.ended = True
