"""A process that does a filter's long work and is killed (-9) on the way.

``python rotator.py URL FILTER COUNT WHEN METHOD ARGUMENT…``: SIGKILL at the COUNT-th pipeline that the method sends,
``before`` it is sent or ``after`` it was answered. It prints what the method returns if it gets that far.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

from urifilter_redis import UriFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send


def main() -> None:
    url, name, count, when, method, *arguments = sys.argv[1:]
    with UriFilter.open(name, redis=url) as news:
        perform, sent = driver.perform_step, itertools.count(1)

        def counted(step, sender):
            last = isinstance(step, Send) and next(sent) == int(count)
            if last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            outcomes = perform(step, sender)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcomes

        driver.perform_step = counted
        sys.stdout.write(f"{getattr(news, method)(*arguments)}\n")


if __name__ == "__main__":
    main()
