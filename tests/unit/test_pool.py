"""The limit of callers that use the connections of a pool."""

from __future__ import annotations

import functools

from urifilter_redis.transport.pool import PoolLimit, Waiter


def test_the_next_waiter_is_woken():
    """Whoever leaves wakes those that are admitted then, with one connection, too; the others sleep on."""
    for count in (1, 3):
        limit, woken = PoolLimit(count), []
        waiters = [Waiter() for _ in range(count + 2)]
        assert [limit.enter(each) for each in waiters] == [True] * count + [False] * 2
        for number, each in enumerate(waiters[count:]):
            each.wake = functools.partial(woken.append, number)
        limit.leave(waiters[0])
        assert woken == [0]
