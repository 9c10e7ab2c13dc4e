"""Metrics for Prometheus: counts of the service's answers, over all its workers; ``gauges`` has the state of filters.

Each worker counts in files of its own in ``PROMETHEUS_MULTIPROC_DIR``. The parent sets this variable before any import
of prometheus_client. The worker that is asked adds up the counts of all workers, dead ones too.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import os
from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from urifilter_redis.protocol.outcomes import text_of
from urifilter_redis.service import FOLDER_VARIABLE
from urifilter_redis.service.load import LOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric
    from redis.exceptions import RedisError

__all__ = [
    "CONTENT_TYPE",
    "answered",
    "count_items",
    "exposed",
    "forget_worker",
    "keep_noting",
    "note_load",
    "note_restart",
    "note_script_error",
    "observe",
    "observe_token",
]

#: The content type of the text that ``exposed`` returns.
CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Seconds for which the load of another worker is told; that of the worker that is asked is read when it is asked.
LOAD_AGE = 1.0

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_items = Counter("urifilter_items", "Items answered.", ["filter", "command", "answer"])
_requests = Counter("urifilter_requests", "Requests answered.", ["command", "status", "error_code"])
_seconds = Histogram(
    "urifilter_request_seconds", "From the request's head to its answer.", ["command"], buckets=_SECONDS
)
_script_errors = Counter("urifilter_script_errors", "Errors that Redis answered, by their first word.", ["word"])
_token_requests = Counter(
    "urifilter_token_requests",
    "Requests answered, by the name of their token and the filter that answered; either is empty if there was none.",
    ["token", "filter", "status"],
)
_restarts = Counter("urifilter_worker_restarts", "Workers that died, and were replaced.")


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
    """Leave out what a worker had in hand that does not run any more; its counts stay."""
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
        """Add up the counts in the files, of which a new one is empty for a moment."""
        files = [file.path for file in os.scandir(os.environ[FOLDER_VARIABLE]) if _is_begun(file)]
        return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call, no-any-return]


def _is_begun(file: os.DirEntry[str]) -> bool:
    try:
        return file.name.endswith(".db") and file.stat().st_size > 0
    except FileNotFoundError:  # a gauge of a worker that has died
        return False
