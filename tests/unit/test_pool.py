"""The limit of callers that use the connections of a pool."""

from __future__ import annotations

import functools
import itertools

from urifilter_redis.transport.pool import PoolLimit, Waiter


def test_the_next_waiter_is_woken():
    """Whoever leaves wakes those that are admitted then, with one connection, too; the others sleep on."""
    for count, waiting in itertools.product((1, 3), (1, 2)):
        limit, woken = PoolLimit(count), []
        waiters = [Waiter() for _ in range(count + waiting)]
        assert [limit.enter(each) for each in waiters] == [True] * count + [False] * waiting
        for number, each in enumerate(waiters[count:]):
            each.wake = functools.partial(woken.append, number)
        limit.leave(waiters[0])
        assert woken == [0]
