"""Mark the URLs of a dump as new or seen, with PySpark.

    pip install pyspark pyarrow 'pandas<3'
    export URIFILTER_REDIS_URL=redis://localhost:6379/0
    spark-submit examples/spark_unique.py dump.txt marked --run dump-2026-11

Executors ask the filter about a batch of URLs at a time. Spark repeats tasks: some fail, some run twice at once. A
repeat has to get the answers of the first attempt. Otherwise all URLs that this inserted are "seen", and nobody fetches
them. So each batch has a name, made of run, partition and number:

- it is the ``call_key`` of the call, under which the server answers a repeat alike for eight minutes;
- under it the answers are noted in Redis, a bit a URL, for days.

A repeat that comes too late for the one, and finds nothing in the other, answers null instead of "seen": nobody knows
whether an earlier attempt inserted the URL. Fetch those, too: ``where("new IS NOT FALSE")``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import redis

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Seconds for which a call under a ``call_key`` is certainly answered alike.
REPEATABLE = 8 * 60

#: Seconds after the first start of a run in which its tasks may begin, and the job may be started again.
RUN = 7 * 24 * 3600

#: Seconds for which answers are noted, at the least: a task that begins in time finds them to its end.
NOTED = 2 * RUN


class CannotRepeatError(Exception):
    """The answers of an earlier attempt cannot be given again: it is too late, or the URLs are others."""


class Notes:
    """What the attempts of one partition have begun, and what they were answered: a hash in Redis.

    Raises:
        CannotRepeatError: the run was first started too long ago.

    Attributes:
        key: the key of the hash; the fields of batch 7 are ``7 begun`` and ``7 answers``.
    """

    def __init__(self, news: UriFilter, run: str, partition: int = 0) -> None:
        self.key = f"urifilter-spark:{news.config.uid}:{run}:{partition}"
        self._server = redis.Redis.from_url(os.environ["URIFILTER_REDIS_URL"])
        started, now = f"urifilter-spark:{news.config.uid}:{run}:started", self._now()
        self._server.setnx(started, now)  # it stays: a run that is too old must not look like one that is new
        if now - float(self._server.get(started)) > RUN:
            raise CannotRepeatError(f"run {run} was first started over {RUN // 86400} days ago: its notes are gone")

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def answers(self, number: int, urls: list[str], ask: Callable[[], list[bool]]) -> list[bool | None]:
        """Return the answers of a batch: those that are noted, else those that ``ask`` returns, which are noted.

        Of two attempts that note answers at the same time the first counts, for both of them.

        Raises:
            CannotRepeatError: another attempt noted other URLs.
        """
        begun, noted = self._begin(number, _digest(urls))
        if noted is None:
            new = ask()
            is_sure = self._now() - begun < REPEATABLE
            bits = np.packbits(np.array(new, bool)).tobytes()
            noted = self._note(f"{number} answers", (b"+" if is_sure else b"?") + bits)
        otherwise = None if noted.startswith(b"?") else False
        bits = np.unpackbits(np.frombuffer(noted, np.uint8, offset=1), count=len(urls))
        return [True if bit else otherwise for bit in bits.tolist()]

    def _begin(self, number: int, digest: str) -> tuple[float, bytes | None]:
        """Note that a batch is begun; return when it first was, in the server's time, and the noted answers."""
        first = self._note(f"{number} begun", f"{self._now()} {digest}".encode()).decode()
        begun, noted_digest = first.split()
        if noted_digest != digest:
            raise CannotRepeatError(f"{self.key}: batch {number} has other URLs than in an earlier attempt")
        return float(begun), self._server.hget(self.key, f"{number} answers")

    def _note(self, field: str, value: bytes) -> bytes:
        """Write a field if it is not there; return its value."""
        pipeline = self._server.pipeline()
        pipeline.hsetnx(self.key, field, value).hget(self.key, field).expire(self.key, NOTED)
        return pipeline.execute()[1]

    def _now(self) -> float:
        seconds, microseconds = self._server.time()
        return seconds + microseconds / 1e6


def _digest(urls: list[str]) -> str:
    return hashlib.blake2b(json.dumps(urls).encode(), digest_size=16).hexdigest()


def answered(news: UriFilter, notes: Notes, batches: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a partition with one more column, ``new``: true, false, or null for "nobody knows".

    A row without a URL gets null.
    """
    import pyarrow as pa  # noqa: PLC0415 - only where there is Spark

    for number, batch in enumerate(batches):
        urls = batch.column(column)
        there = urls.drop_null().to_pylist()
        ask = functools.partial(news.insert_many, there, call_key=f"{notes.key} {number}")
        told = iter(notes.answers(number, there, ask))
        new = pa.array((next(told) if each else None for each in urls.is_valid().to_pylist()), pa.bool_())
        yield pa.RecordBatch.from_arrays([*batch.columns, new], names=[*batch.schema.names, "new"])


def answered_task(
    batches: Iterable[pa.RecordBatch], *, news: UriFilter, column: str, run: str
) -> Iterator[pa.RecordBatch]:
    """Run ``answered`` in a task of Spark. The filter came by pickle, without a password, and is opened here."""
    from pyspark import TaskContext  # noqa: PLC0415 - likewise

    with news, contextlib.closing(Notes(news, run, TaskContext.get().partitionId())) as notes:
        yield from answered(news, notes, batches, column)


def mark(frame: DataFrame, news: UriFilter, run: str, folder: str, column: str = "url") -> DataFrame:
    """Write the rows with the column ``new`` to Parquet in a folder, and return what is written.

    The answers are final only once they are written: so nothing that is done with them later asks the filter again.

    Args:
        frame: the rows; a partition must have the same rows in the same order in each attempt.
        news: the filter.
        run: the name of the run. A job that failed may be started again under the name of its run, within a week.
        folder: where the rows are written; rows of an earlier start of the run are replaced.
        column: the column of the URLs.

    Raises:
        CannotRepeatError: the run was first started too long ago; nothing is replaced.
    """
    from pyspark.sql.types import BooleanType, StructType  # noqa: PLC0415 - likewise

    Notes(news, run).close()
    task: Any = functools.partial(answered_task, news=news, column=column, run=run)
    schema = StructType(list(frame.schema.fields)).add("new", BooleanType())
    place = f"{folder}/{run}"
    frame.mapInArrow(task, schema).write.mode("overwrite").parquet(place)
    return frame.sparkSession.read.parquet(place)


def main() -> None:
    """Mark the lines of text files, one URL each, and count them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", help="the text files, in any form that Spark reads: a path, a folder, s3a://…")
    parser.add_argument("folder", help="where the marked URLs are written")
    parser.add_argument("--run", required=True, help="the name of this run: the same if it is started again")
    parser.add_argument("--filter", default="spark", help="the name of the filter (%(default)s)")
    parser.add_argument("--capacity", type=int, default=10_000_000, help="the URLs that it holds (%(default)s)")
    options = parser.parse_args()

    from pyspark.sql import SparkSession  # noqa: PLC0415 - likewise

    spark = SparkSession.builder.appName("urifilter").getOrCreate()
    with UriFilter.create(options.filter, capacity=options.capacity) as news:
        frame = spark.read.text(options.dump).withColumnRenamed("value", "url")
        marked = mark(frame, news, options.run, options.folder)
        counts = {row["new"]: row["count"] for row in marked.groupBy("new").count().collect()}
    spark.stop()
    new, seen, unsure = (counts.get(answer, 0) for answer in (True, False, None))
    print(f"{new + seen + unsure:,} URLs: {new:,} new, {seen:,} seen, {unsure:,} that nobody knows")


if __name__ == "__main__":
    main()
