"""Mark a column of URLs with Spark, beside Spark's own ``dropDuplicates``.

``PYTHONPATH=examples python -m bench spark`` needs Java, ``pip install pyspark pyarrow 'pandas<3'``, and a server that
``URIFILTER_REDIS_URL`` names. A million URLs, four in ten of which come again, are read from text files and written to
Parquet: copied; without duplicates; marked by a filter that is empty; and marked again, when all of them are seen. The
figures are seconds.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import SparkSession
from spark_unique import mark

from bench.runner import Row, timed
from urifilter_redis import UriFilter


def main(items: int = 1_000_000, rounds: int = 3) -> Iterator[Row]:
    """Measure each way, so many times in turn.

    Options:
        items: the URLs
        rounds: how often each way is measured
    """
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        url = f"format_string('https://www.example.com/news/2026/11/%012d/', id * 7919 % {items * 6 // 10})"
        spark.range(0, items, 1, 8).selectExpr(url).write.text(f"{folder}/dump")
        dump = spark.read.text(f"{folder}/dump").withColumnRenamed("value", "url")
        for _ in range(rounds):
            with UriFilter.create(f"bench-{uuid.uuid4().hex}", capacity=items) as news:
                ways: dict[str, Callable[[], object]] = {
                    "copied": lambda: dump.write.mode("overwrite").parquet(f"{folder}/copied"),
                    "dropDuplicates": lambda: dump.dropDuplicates().write.mode("overwrite").parquet(f"{folder}/unique"),
                    "marked, filter empty": partial(mark, dump, news, "first", f"{folder}/marked"),
                    "marked, all seen": partial(mark, dump, news, "second", f"{folder}/marked"),
                }
                for way, work in ways.items():
                    yield {"way": way, "seconds": timed(work)[0]}
                news.drop()
    spark.stop()
