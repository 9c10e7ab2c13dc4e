"""A crawler process that asks the HTTP service: inserts the lines of a file, writes those that it was told are new.

``python api_crawler.py URL FILTER FILE SEED BATCH OUT``: all lines of FILE in an order of its own, BATCH a request;
every "new" is a line appended to OUT.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from urifilter_redis import Timeouts
from urifilter_redis.sdk import FilterAPIClient, FilterAPIError


def main() -> None:
    url, name, file, seed, batch, out_path = sys.argv[1:]
    lines = Path(file).read_bytes().decode("utf-8", "surrogateescape").split("\n")
    random.Random(int(seed)).shuffle(lines)
    out = os.open(out_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with FilterAPIClient(url, timeouts=Timeouts(connect=5, reply=5, total=60)) as api:
        for start in range(0, len(lines), int(batch)):
            some, error = lines[start : start + int(batch)], None
            while True:
                try:
                    new = api.unique(name, some, retry=error)
                    break
                except FilterAPIError as lost:
                    if lost.error_code != "answer_lost":
                        raise
                    error = lost
            os.write(out, "".join(f"{uri}\n" for uri in new).encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
