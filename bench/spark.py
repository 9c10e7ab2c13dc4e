"""Mark a column of URLs with Spark, beside Spark's own ``dropDuplicates``.

``PYTHONPATH=examples python bench/spark.py`` needs Java, ``pip install pyspark pyarrow 'pandas<3'``, and a server that
``URIFILTER_REDIS_URL`` names. A million URLs, four in ten of which come again, are read from text files and written to
Parquet: copied; without duplicates; marked by a filter that is empty; and marked again, when all of them are seen. The
figures are seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from spark_unique import mark

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    from collections.abc import Callable


def measure(what: str, work: Callable[[], object]) -> None:
    """Print how long something takes."""
    begun = time.monotonic()
    work()
    print(f"{what:<28}{time.monotonic() - begun:6.1f}")


def main() -> None:
    """Measure each way, so many times in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="the URLs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured (%(default)s)")
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        url = f"format_string('https://www.example.com/news/2026/11/%012d/', id * 7919 % {options.items * 6 // 10})"
        spark.range(0, options.items, 1, 8).selectExpr(url).write.text(f"{folder}/dump")
        dump = spark.read.text(f"{folder}/dump").withColumnRenamed("value", "url")
        for _ in range(options.rounds):
            with UriFilter.create(f"bench-{uuid.uuid4().hex}", capacity=options.items) as news:
                ways: dict[str, Callable[[], object]] = {
                    "copied": lambda: dump.write.mode("overwrite").parquet(f"{folder}/copied"),
                    "dropDuplicates": lambda: dump.dropDuplicates().write.mode("overwrite").parquet(f"{folder}/unique"),
                    "marked, filter empty": lambda news=news: mark(dump, news, "first", f"{folder}/marked"),
                    "marked, all seen": lambda news=news: mark(dump, news, "second", f"{folder}/marked"),
                }
                for what, work in ways.items():
                    measure(what, work)
                news.drop()
    spark.stop()


if __name__ == "__main__":
    main()
