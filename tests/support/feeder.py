"""A crawler process that inserts numbered URIs until it is stopped, and logs what it was told and when it had asked.

``python feeder.py URL ARCHIVE FILTER SEED OUT``: each line of OUT is the time (s, this machine's clock) at which the
answers of a call were there, and the numbers that were new, after the call: so whatever stands there with a time was
answered "new" before it. When the server goes away or the filter is not there it opens the filter again; archive "-"
names none.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

from urifilter_redis import AnswerLost, Timeouts, UriFilter, UriFilterError


def opened(url: str, archive: str, name: str) -> UriFilter:
    while True:
        try:
            where = {} if archive == "-" else {"archive": archive}
            return UriFilter.open(name, redis=url, timeouts=Timeouts(total=0.5, restoring=5), **where)
        except UriFilterError:
            time.sleep(0.02)


def main() -> None:
    url, archive, name, seed, out_path = sys.argv[1:]
    out = os.open(out_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    news = opened(url, archive, name)
    error: UriFilterError | None = None
    for start in itertools.count(int(seed) * 10_000_000, 100):
        uris = [f"https://example.com/{number}" for number in range(start, start + 100)]
        while True:
            try:
                ages = news.insert_ages(uris, retry=error)
                break
            except AnswerLost as lost:
                error = lost
            except UriFilterError as failed:
                error = failed if failed.answers is not None else None
                if not isinstance(error, UriFilterError) or "there is no filter" in str(failed):
                    news.close()
                    news, error = opened(url, archive, name), None
        error = None
        told = [str(start + n) for n, age in enumerate(ages) if age == 0]
        os.write(out, f"{time.time()} {' '.join(told)}\n".encode())


if __name__ == "__main__":
    main()
