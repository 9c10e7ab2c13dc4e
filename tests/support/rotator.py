"""A process that rotates a filter and is killed (-9) on the way.

``python rotator.py URL FILTER COUNT WHEN``: SIGKILL at the COUNT-th pipeline that it sends, ``before`` it is sent or
``after`` it was answered. It prints the epoch if it gets that far.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

from urifilter_redis import UriFilter


def main() -> None:
    url, name, count, when = sys.argv[1:]
    with UriFilter.open(name, redis=url) as news:
        send, sent = news._connector.send, itertools.count(1)

        def counted(commands):
            last = next(sent) == int(count)
            if last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            outcomes = send(commands)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcomes

        news._connector.send = counted
        sys.stdout.write(f"{news.rotate().epoch}\n")


if __name__ == "__main__":
    main()
