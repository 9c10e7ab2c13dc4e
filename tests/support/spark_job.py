"""A job of Spark that marks URLs while its tasks fail: ``python spark_job.py FOLDER ROWS DISTINCT FAULTS``.

FAULTS is ``fail``: the first attempts of some partitions fail at their third batch. They raise, or their process is
killed, before or after they inserted; that of partition 7 waits there to be killed from outside, and the file
``waits-`` has the number of its process. FAULTS is ``slow``: the first attempt of partition 7 waits there for a second.
The last line is what was found, as JSON. ``spark_unique`` is on the path.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession, functions
from spark_unique import mark

from urifilter_redis import UriFilter

#: Partition -> what happens to its first attempt, and when.
FAULTS = {0: ("raise", "after"), 1: ("kill", "after"), 2: ("kill", "before"), 3: ("raise", "before")}

#: The batch at which it happens.
BATCH = 3


class Faulty:
    """A filter whose insert_many fails in some tasks."""

    def __init__(self, news: UriFilter, folder: str, *, slow: bool) -> None:
        self.news, self.folder, self.slow, self.calls = news, Path(folder), slow, 0

    @property
    def config(self):
        return self.news.config

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.news.close()
        task = TaskContext.get()
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (self.folder / f"done-{task.partitionId()}-{task.attemptNumber()}-{kilobytes}").touch()

    def insert_many(self, urls, call_key):
        self.calls += 1
        self._fail("before")
        new = self.news.insert_many(urls, call_key=call_key)
        self._fail("after")
        return new

    def _fail(self, when: str) -> None:
        task = TaskContext.get()
        partition, attempt = task.partitionId(), task.attemptNumber()
        if self.calls != BATCH:
            return
        (self.folder / f"attempt-{partition}-{attempt}").touch()
        if self.slow and partition == 7 and attempt == 0:
            while not list(self.folder.glob("attempt-7-[1-9]")):
                time.sleep(0.05)
        if not self.slow and partition == 7 and attempt == 0 and when == "after":
            (self.folder / f"waits-{os.getpid()}").touch()
            time.sleep(3600)
        if not self.slow and attempt == 0 and FAULTS.get(partition, (None, None))[1] == when:
            (self.folder / f"failed-{partition}").touch()
            if FAULTS[partition][0] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("this attempt fails")


def main() -> None:
    folder, rows, distinct, faults = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    spark = SparkSession.builder.getOrCreate()
    # each URL comes again in other partitions, as 7919 has no divisor in common with the number of URLs
    url = functions.format_string("https://example.com/page/%d", functions.col("id") * 7919 % distinct)
    with UriFilter.open("news") as news:
        frame = spark.range(0, rows, 1, 8).select(url.alias("url"), "id")
        marked = mark(frame, Faulty(news, folder, slow=faults == "slow"), "monday", f"{folder}/marked")
    counted = {
        "rows": "count(*)",
        "ids": "count(DISTINCT id)",
        "new": "count_if(new)",
        "distinct new": "count(DISTINCT CASE WHEN new THEN url END)",
        "null": "count_if(new IS NULL)",
    }
    found = marked.selectExpr(*(f"{what} AS `{name}`" for name, what in counted.items())).collect()
    spark.stop()
    sys.stdout.write(json.dumps(found[0].asDict()))


if __name__ == "__main__":
    main()
