"""Filters whose period is over, and processes that insert until they are killed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from support.shard_keys import shard_key
from urifilter_redis import UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Pause, Send
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3600
RING = {"retention": "ring", "capacity": 1000, "slices": 3, "period": "1h"}
ROLLING = RING | {"retention": "rolling"}


def make_late(server, name="news", seconds=HOUR + 60) -> None:
    """Let each shard have turned, and been written to, so much earlier: clients that open it find the period over."""
    with server.client() as admin:
        for key in admin.scan_iter(f"urifilter:{{{name}:*}}:meta"):
            for field in ("opened", "written"):
                if admin.hexists(key, field):
                    admin.hincrby(key, field, -1000 * seconds)


def end_lease(server, name="news") -> None:
    """Let the lease that somebody has be over."""
    with server.client() as admin:
        if admin.hexists(f"urifilter:{{{name}:0}}:meta", "leased"):
            admin.hset(f"urifilter:{{{name}:0}}:meta", "leased", 0)


def states(server, name="news") -> list[ShardState]:
    """Return the states of all shards; nobody learns of this."""
    with server.client() as admin:
        count = int(admin.hget(f"urifilter:{{{name}:0}}:meta", "shards"))
        metas = (to_mapping(admin.hgetall(shard_key(name, shard, count, "meta"))) for shard in range(count))
        return [ShardState.from_meta(meta, name) for meta in metas]


def epochs(server, name="news") -> list[int]:
    return [state.epoch for state in states(server, name)]


def is_done(server, epoch=1, name="news") -> bool:
    """Whether all shards are in this epoch, and nothing is left to do."""
    return all((state.epoch, state.phase) == (epoch, "idle") for state in states(server, name))


def child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    """Wait for a child; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def insert_until_killed(url: str, dies: Callable[[Send, list], bool], calls=1000) -> None:
    """Open the filter and insert, until a pipeline was sent for which ``dies`` is true: SIGKILL."""
    perform = driver.perform_step

    def watched(step, sender):
        outcome = perform(step, sender)
        if isinstance(step, Send) and dies(step, outcome):
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    news = UriFilter.open("news", redis=url)
    driver.perform_step = watched
    for number in range(calls):
        news.insert(f"{os.getpid()}/{number}")


def insert_until_done(server, news, epoch=1, most=3000) -> int:
    """Insert until the rotation is finished; return how many calls that took."""
    for number in range(1, most):
        news.insert(f"{id(news)}/{number}")
        if is_done(server, epoch, news.name):
            return number
    raise AssertionError(f"{most} calls do not finish the rotation: {states(server, news.name)}")


class Ticks:
    """A clock by which each step takes so many seconds; ``spent`` are those of the steps so far."""

    def __init__(self, monkeypatch, a_step: float, *modules) -> None:
        self.now, self.spent, self.sent = 1_000_000.0, 0.0, []
        perform = driver.perform_step

        def ticking(step, sender):
            if not isinstance(step, Pause):
                self.now, self.spent = self.now + a_step, self.spent + a_step
                self.sent.append(step)
            return perform(step, sender)

        monkeypatch.setattr(driver, "perform_step", ticking)
        for module in modules:
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
