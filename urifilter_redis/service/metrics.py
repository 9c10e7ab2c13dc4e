"""Metrics for Prometheus: counts of the service's answers over all its workers, and gauges of filters.

Each worker counts in files of its own in ``PROMETHEUS_MULTIPROC_DIR``. The parent sets this variable before any import
of prometheus_client. The worker that is asked adds up the counts of all workers, dead ones too. During an outage the
gauges show the last known values, which are kept beside the counts, so that every worker can show them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import json
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from redis.exceptions import RedisError

from urifilter_redis._version import __version__
from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.problems import fullness
from urifilter_redis.protocol.outcomes import text_of
from urifilter_redis.service import FOLDER_VARIABLE
from urifilter_redis.service.filters import Filters, Measured
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.protocol import LOAD
from urifilter_redis.service.usage import Used

#: The content type of the text that ``exposed`` returns.
CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Seconds for which the load of another worker is told; that of the worker that is asked is read when it is asked.
LOAD_AGE = 1.0

#: Addresses that the metrics show: those that were refused most often.
SHOWN = 20

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_items = Counter("urifilter_items", "Items answered.", ["filter", "command", "answer"])
_requests = Counter("urifilter_requests", "Requests answered.", ["command", "status", "error_code"])
_seconds = Histogram(
    "urifilter_request_seconds", "From the request's head to its answer.", ["command"], buckets=_SECONDS
)
_seconds.labels("other")  # opens the file of histograms now, as metrics without labels do it for theirs
_script_errors = Counter("urifilter_script_errors", "Errors that Redis answered, by their first word.", ["word"])
_token_requests = Counter(
    "urifilter_token_requests",
    "Requests answered, by the name of their token and the filter that answered; either is empty if there was none.",
    ["token", "filter", "status"],
)
_restarts = Counter("urifilter_worker_restarts", "Workers that died, and were replaced.")


log = logging.getLogger("urifilter_redis.service")

#: Seconds that listing the filters may take, and seconds that reading their gauges may take: Prometheus gives up after
#: some seconds, and needs the metrics most during an outage.
PATIENCE = 0.4

#: The gauges of a filter, by their names behind ``_OF_FILTER``.
Values: TypeAlias = Mapping[str, float]

_FILE = "gauges.json"
_RESTORING = "restoring"
_RESTORING_SHARDS = "restoring_shards"
_SHARDS = "shards"

#: Beside the gauges that are kept: when their reading began, by the monotonic clock, which is the same for all workers.
_BEGAN = "began"

#: The beginning of the names of a filter's gauges.
_OF_FILTER = "urifilter_filter_"


def _of_claims(figure: str) -> Callable[[Measured], Any]:
    """Return a function that reads a figure of a filter's claims, None if nobody has claimed."""
    return lambda m: m.info.claims and getattr(m.info.claims, figure)


#: Gauges of a filter: name behind ``_OF_FILTER``, help, and the value, None for none.
_GAUGES = (
    ("items", "Items that were answered new and have not expired.", lambda m: m.info.inserted),
    ("capacity_items", "Items that the filter is made for.", lambda m: m.info.capacity),
    ("fill_ratio", "Share of the bits that are set.", lambda m: m.info.fill),
    ("error_rate_now", "Probability that a new item is taken for seen.", lambda m: m.info.error_rate_now),
    ("error_rate_promised", "The error rate that was asked for.", lambda m: m.info.error_rate),
    (
        "used_ratio",
        "Share of the capacity that is used, of the filter or of its fullest slice; none for a growing filter.",
        lambda m: fullness(m.info),
    ),
    ("over_capacity", "1: the filter holds more items than it is made for.", lambda m: int(m.info.over_capacity)),
    ("memory_bytes", "Memory of the filter's keys.", lambda m: m.info.memory),
    ("epoch", "Rotations of the filter so far.", lambda m: m.info.epoch),
    (_SHARDS, "Shards of the filter.", lambda m: m.info.shards),
    (_RESTORING, "1: the filter is being restored.", lambda m: int(m.info.phase == "restoring")),
    (_RESTORING_SHARDS, "Shards that are not restored yet.", lambda m: 0 if m.info.phase != "restoring" else None),
    (
        "restored_unacknowledged",
        "1: the filter was restored from a checkpoint, and nobody has acknowledged it.",
        lambda m: int(m.info.loss is not None),
    ),
    (
        "has_archive",
        "1: the filter has an archive outside Redis, to which checkpoints are written.",
        lambda m: int(m.info.archive not in {None, "redis"}),
    ),
    ("checkpoint_age_seconds", "Seconds since the last checkpoint began.", lambda m: _since(m, m.info.checkpointed)),
    (
        "rotation_age_seconds",
        "Seconds since the last rotation.",
        lambda m: _since(m, m.info.live_slices[0].opened if m.info.epoch else None),
    ),
    (
        "rotation_due_seconds",
        "Seconds until the next rotation; below 0: the rotation is late.",
        lambda m: None if m.info.next_rotation is None else m.info.next_rotation - m.at,
    ),
    ("period_seconds", "Seconds between two rotations.", lambda m: m.info.period and seconds_of(m.info.period)),
    ("in_flight_items", "Items that living holders have.", _of_claims("in_flight")),
    ("lapsed_items", "Items whose holders are dead, or which were released and are due.", _of_claims("lapsed")),
    ("delayed_items", "Items that were released, and are not due yet.", _of_claims("delayed")),
    ("holders", "Living holders.", _of_claims("holders")),
    (
        "oldest_lapse_seconds",
        "Seconds since the first of the lapsed items lapsed; 0: none has.",
        lambda m: m.info.claims and (m.info.claims.oldest_lapse or 0.0),
    ),
    ("lease_seconds", "The longest lease that was used.", _of_claims("lease")),
    ("dead_letters", "Dead letters that are kept: the newest, a mebibyte in each shard.", _of_claims("dead_letters")),
)

_seldom = Seldom()


def _live(name: str, text: str) -> Gauge:
    """Return a gauge of which the sum over the living workers is told."""
    return Gauge(name, text, multiprocess_mode="livesum")


_workers = _live("urifilter_workers", "Workers that run.")
_connections = _live("urifilter_connections", "Open connections of clients.")
_in_flight = _live("urifilter_requests_in_flight", "Requests that are not answered yet, this one included.")
_waiting = _live("urifilter_requests_waiting", "Requests that wait for others of their token.")
_queued = _live("urifilter_requests_queued", "Requests whose commands wait for a pipeline to Redis.")


def observe(command: str, status: int, error_code: str, seconds: float) -> None:
    """Count a request that was answered; ``error_code`` is empty if there was no error."""
    count, times = _request_metrics(command, status, error_code)
    count.inc()
    times.observe(seconds)


def observe_token(token: str, filter_name: str, status: int) -> None:
    """Count a request that was answered, by its token's name and its filter; both exist, or are empty."""
    _token_requests.labels(token, filter_name, status).inc()


def note_load(queued: int) -> None:
    """Note the load of this worker; ``queued`` requests wait for a pipeline to Redis."""
    _workers.set(1)
    _connections.set(LOAD.connections)
    _in_flight.set(LOAD.in_flight)
    _waiting.set(LOAD.waiting)
    _queued.set(queued)


async def keep_noting(queued: Callable[[], int]) -> None:
    """Note the load of this worker for the others again and again; for arguments see ``note_load``."""
    while True:
        note_load(queued())
        await asyncio.sleep(LOAD_AGE)


def note_restart() -> None:
    """Count a worker that died, and was replaced."""
    _restarts.inc()


def forget_worker(process: int) -> None:
    """Leave out what a worker had in flight that does not run any more; its counts stay."""
    mark_process_dead(process)  # type: ignore[no-untyped-call]


def count_items(filter_name: str, command: str, *, new: int, seen: int) -> None:
    """Count items that were answered."""
    new_items, seen_items = _item_metrics(filter_name, command)
    if new:
        new_items.inc(new)
    if seen:
        seen_items.inc(seen)


@functools.cache  # prometheus_client keeps all of them anyway, and finds them more slowly
def _request_metrics(command: str, status: int, error_code: str) -> tuple[Counter, Histogram]:
    return _requests.labels(command, status, error_code), _seconds.labels(command)


@functools.cache
def _item_metrics(filter_name: str, command: str) -> tuple[Counter, Counter]:
    return _items.labels(filter_name, command, "new"), _items.labels(filter_name, command, "seen")


def note_script_error(error: RedisError) -> None:
    """Count an error that Redis answered."""
    _script_errors.labels(text_of(error).split(" ", 1)[0]).inc()


def answered() -> dict[tuple[str, str], int]:
    """Return how many items all workers have inserted or looked up so far, by filter and answer."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for metric in _registry().collect():
        for sample in metric.samples:
            if sample.name == "urifilter_items_total" and sample.labels["command"] in {"insert", "contains"}:
                counts[sample.labels["filter"], sample.labels["answer"]] += int(sample.value)
    return counts


def exposed(*gauges: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus's text format: the counts, and then gauges."""
    return b"".join(map(generate_latest, (_registry(), *gauges)))


def _registry() -> CollectorRegistry:
    if FOLDER_VARIABLE not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    registry.register(_AllWorkers())
    return registry


class _AllWorkers:
    """Counts of all workers; ``MultiProcessCollector`` itself raises for the file of one that just starts."""

    def collect(self) -> Iterable[Metric]:
        """Add up the counts in the files, of which a new one is empty for a moment; their folder may have gone."""
        files: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            files += [file.path for file in os.scandir(os.environ[FOLDER_VARIABLE]) if _is_begun(file)]
        return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call, no-any-return]


def _is_begun(file: os.DirEntry[str]) -> bool:
    try:
        return file.name.endswith(".db") and file.stat().st_size > 0
    except FileNotFoundError:  # a gauge of a worker that has died
        return False


async def read_gauges(filters: Filters) -> Gauges:
    """Read the gauges of all filters and servers; this takes less than a second, even during an outage."""
    known = _kept()
    try:
        async with asyncio.timeout(PATIENCE):
            names = await filters.in_redis()
    except (UriFilterError, TimeoutError) as error:
        text = str(error) or "Redis does not answer in time"
        if _seldom.passes(text):
            log.warning("the metrics of filters are the last known: %s", text)
        return Gauges({name: (False, known.get(name, {})) for name in (*known, *filters.wanted)}, 0, filters.archive_up)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE / 2):
            names |= await filters.in_archive()
    found = await _measured(filters, sorted(names), known)
    _keep({name: values for name, (_, values) in found.items()})
    return Gauges(found, 1, filters.archive_up)


async def _measured(
    filters: Filters, names: Iterable[str], known: Mapping[str, Values]
) -> dict[str, tuple[bool, Values]]:
    """Return for each filter whether it is up, and its gauges: the last known if reading fails or takes too long."""
    tasks = {name: asyncio.create_task(filters.measured(name)) for name in names}
    if tasks:
        await asyncio.wait(tasks.values(), timeout=PATIENCE)
    found: dict[str, tuple[bool, Values]] = {}
    unsure = []
    for name, task in tasks.items():
        up, values = True, known.get(name, {})
        if not task.done():
            task.cancel()  # the reading itself goes on, for the next question
            unsure.append(name)
        elif isinstance(error := task.exception(), UriFilterError):
            up = False
            unsure.append(name)
            log.warning("the metrics of filter %s are the last known: %s", name, error)
        else:
            measured = task.result()
            found_of = ((gauge, value_of(measured)) for gauge, _, value_of in _GAUGES)
            values = {gauge: value for gauge, value in found_of if value is not None} | {_BEGAN: measured.began}
            if values[_RESTORING]:
                unsure.append(name)
        found[name] = up, values
    for name, progress in (await _progress(filters, unsure)).items():
        up, values = found[name]
        found[name] = up, {**values, **progress}
    return found


async def _progress(filters: Filters, names: Iterable[str]) -> dict[str, Values]:
    """Read how far the restores of filters have come; without an answer in time, or from Redis, there is nothing."""
    tasks = {name: asyncio.create_task(filters.restoring(name)) for name in names}
    found: dict[str, Values] = {}
    if tasks:
        await asyncio.wait(tasks.values(), timeout=PATIENCE / 2)
    for name, task in tasks.items():
        if not task.done():
            task.cancel()
            continue
        with contextlib.suppress(UriFilterError):
            if (shards := task.result()) and shards[0]:
                found[name] = {_RESTORING: 1, _RESTORING_SHARDS: shards[0], _SHARDS: shards[1]}
    return found


class Gauges(CollectorRegistry):
    """The gauges of filters (for each whether it is up, and its values), of Redis and of the archive."""

    def __init__(self, filters: Mapping[str, tuple[bool, Values]], redis: int, archive: int | None) -> None:
        super().__init__()
        self._filters, self._redis, self._archive = filters, redis, archive

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        build = GaugeMetricFamily("urifilter_build_info", "1: these versions run.", labels=["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build
        yield GaugeMetricFamily("urifilter_redis_up", "1: Redis answers.", self._redis)
        if self._archive is not None:
            yield GaugeMetricFamily("urifilter_archive_up", "1: the archive answered the last question.", self._archive)
        up = {name: int(is_up) for name, (is_up, _) in self._filters.items()}
        yield _family(f"{_OF_FILTER}up", "1: the filter answers.", "filter", up)
        for gauge, text, _ in _GAUGES:
            found = {name: values[gauge] for name, (_, values) in self._filters.items() if gauge in values}
            yield _family(f"{_OF_FILTER}{gauge}", text, "filter", found)


class UsageGauges(CollectorRegistry):
    """The gauges of refused addresses, and of the tokens of these names."""

    def __init__(self, used: Used, names: Iterable[str]) -> None:
        super().__init__()
        self._used, self._names = used, names

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        yield _family(
            "urifilter_token_last_used_timestamp_seconds",
            "When the token was last used; it has no value before its first use.",
            "token",
            {name: self._used.tokens[name] for name in self._names if name in self._used.tokens},
        )
        most = sorted(self._used.refused.items(), key=lambda each: -each[1].times)[:SHOWN]
        yield _family(
            "urifilter_address_refusals",
            f"Refused requests of an address; the {SHOWN} addresses with the most.",
            "address",
            {address: refused.times for address, refused in most},
        )


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge that has a value for each value of a label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _keep(values: Mapping[str, Values]) -> None:
    """Keep the gauges of filters, for all workers; those whose reading another worker began later stay."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        part, kept = Path(folder) / f"{_FILE}.{os.getpid()}", _kept()
        newest = {
            name: max(each, kept.get(name, {}), key=lambda gauges: gauges.get(_BEGAN, 0.0))
            for name, each in values.items()
        }
        with contextlib.suppress(OSError):  # a full disk must not cost this answer
            part.write_text(json.dumps(newest))
            part.replace(Path(folder) / _FILE)


def _kept() -> dict[str, dict[str, float]]:
    try:
        return json.loads((Path(os.environ[FOLDER_VARIABLE]) / _FILE).read_text())  # type: ignore[no-any-return]
    except (KeyError, FileNotFoundError):
        return {}


def _since(measured: Measured, time: float | None) -> float | None:
    return None if time is None else max(0.0, measured.at - time)
