"""A crawler process of any release: inserts numbered URIs until it is refused for its age, and logs what it was told.

``python release_crawler.py URL FILTER FIRST COUNT SEED OUT``: inserts COUNT URIs from number FIRST on, in an order of
its own. Each line of OUT is ``new`` and a number; or ``open``, and a call that was refused without an answer, as JSON:
its shard, its call id, its digests and its numbers. A refused crawler prints the error and exits with 3.
"""

from __future__ import annotations

import json
import os
import random
import sys

from urifilter_redis import AnswerLost, Timeouts, UriFilter, UriFilterError

BATCH = 20


def main() -> None:
    url, name, first, count, seed, out_path = sys.argv[1:]
    numbers = list(range(int(first), int(first) + int(count)))
    random.Random(seed).shuffle(numbers)
    out = os.open(out_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    news = UriFilter.open(name, redis=url, timeouts=Timeouts(connect=5, reply=5, total=20))
    insert = getattr(news, "insert_ages", news.insert_many)  # of releases before insert_ages
    for start in range(0, len(numbers), BATCH):
        some, error = numbers[start : start + BATCH], None
        while True:
            try:
                ages = insert(some, retry=error)
                break
            except UriFilterError as failed:
                if "too old" in str(failed):
                    told = failed.answers or []
                    os.write(out, (new_of(some, told) + open_of(some, failed)).encode())
                    sys.stdout.write(f"{failed}\n")
                    sys.exit(3)
                if not isinstance(failed, AnswerLost):
                    raise
                error = failed
        os.write(out, new_of(some, ages).encode())


def new_of(numbers, ages) -> str:
    return "".join(f"new {number}\n" for number, age in zip(numbers, ages, strict=False) if age == 0)


def open_of(numbers, failed) -> str:
    """The calls that may have run: a crawler that ends without their answers has lost what they inserted."""
    lines = []
    for call in failed.batch.open:
        if call.in_doubt:
            known = [numbers[position] for position in call.positions]
            lines.append({"shard": call.shard, "id": str(call.call_id), "digests": call.packed.hex(), "numbers": known})
    return "".join(f"open {json.dumps(line)}\n" for line in lines)


if __name__ == "__main__":
    main()
