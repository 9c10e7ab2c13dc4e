"""Metrics for Prometheus: what this service answered, over all its workers, and how its filters are.

Workers count in files of their own in ``PROMETHEUS_MULTIPROC_DIR``, which the parent sets before anything else
imports prometheus_client; whichever worker is asked adds them all up, those of dead ones too.
"""

from __future__ import annotations

import collections
import os
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from urifilter_redis.protocol.outcomes import text_of
from urifilter_redis.service import FOLDER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import Metric
    from redis.exceptions import RedisError

    from urifilter_redis.service.filters import Measured

__all__ = ["CONTENT_TYPE", "answered", "count_items", "exposed", "note_script_error", "observe"]

#: Of what ``exposed`` returns.
CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_items = Counter("urifilter_items", "Items answered.", ["filter", "command", "answer"])
_requests = Counter("urifilter_requests", "Requests answered.", ["command", "status", "error_code"])
_seconds = Histogram(
    "urifilter_request_seconds", "From the request's head to its answer.", ["command"], buckets=_SECONDS
)
_script_errors = Counter("urifilter_script_errors", "Errors that Redis answered, by their first word.", ["word"])

#: Gauges of a filter: name, help, and the value, None for none.
_GAUGES = (
    ("urifilter_filter_items", "Items that were answered new and have not expired.", lambda m: m.info.inserted),
    ("urifilter_filter_capacity_items", "Items that the filter is made for.", lambda m: m.info.capacity),
    ("urifilter_filter_fill_ratio", "Share of the bits that are set.", lambda m: m.info.fill),
    (
        "urifilter_filter_error_rate_now",
        "Probability that a new item is taken for seen.",
        lambda m: m.info.error_rate_now,
    ),
    ("urifilter_filter_error_rate_promised", "The error rate that was asked for.", lambda m: m.info.error_rate),
    ("urifilter_filter_over_capacity", "1: it holds more than it is made for.", lambda m: int(m.info.over_capacity)),
    ("urifilter_filter_memory_bytes", "Memory of its keys.", lambda m: m.info.memory),
    ("urifilter_filter_epoch", "How often it was rotated.", lambda m: m.info.epoch),
    ("urifilter_filter_restoring", "1: it is being restored.", lambda m: int(m.info.phase == "restoring")),
    (
        "urifilter_filter_checkpoint_age_seconds",
        "Since the last checkpoint began.",
        lambda m: _since(m, m.info.checkpointed),
    ),
    ("urifilter_filter_rotation_age_seconds", "Since the last rotation.", lambda m: _since(m, _rotated(m))),
    (
        "urifilter_filter_rotation_due_seconds",
        "Until the next rotation; below 0: it is late.",
        lambda m: _until(m, m.info.next_rotation),
    ),
)


def observe(command: str, status: int, error_code: str, seconds: float) -> None:
    """Note a request that was answered; ``error_code`` is empty for none."""
    _requests.labels(command, status, error_code).inc()
    _seconds.labels(command).observe(seconds)


def count_items(filter_name: str, command: str, *, new: int, seen: int) -> None:
    """Note items that were answered."""
    _items.labels(filter_name, command, "new").inc(new)
    _items.labels(filter_name, command, "seen").inc(seen)


def note_script_error(error: RedisError) -> None:
    """Note an error that Redis answered."""
    _script_errors.labels(text_of(error).split(" ", 1)[0]).inc()


def answered() -> dict[tuple[str, str], int]:
    """Return how many items were inserted or looked for, by filter and answer, by all workers so far."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for metric in _registry().collect():
        for sample in metric.samples:
            if sample.name == "urifilter_items_total" and sample.labels["command"] in {"insert", "contains"}:
                counts[sample.labels["filter"], sample.labels["answer"]] += int(sample.value)
    return counts


def exposed(filters: Mapping[str, Measured | None]) -> bytes:
    """Return all metrics in Prometheus's text format; None is a filter that cannot be looked at now."""
    return b"".join((generate_latest(_registry()), generate_latest(_Gauges(filters))))


def _registry() -> CollectorRegistry:
    if FOLDER_VARIABLE not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


class _Gauges(CollectorRegistry):
    """The filters' gauges, which come from Redis and are the same for all workers."""

    def __init__(self, filters: Mapping[str, Measured | None]) -> None:
        super().__init__()
        self._filters = filters

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("urifilter_filter_up", "1: it could be looked at.", labels=["filter"])
        for name, measured in self._filters.items():
            up.add_metric([name], int(measured is not None))
        yield up
        for name, text, value_of in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["filter"])
            for filter_name, measured in self._filters.items():
                value = None if measured is None else value_of(measured)
                if value is not None:
                    family.add_metric([filter_name], value)
            yield family


def _since(measured: Measured, time: float | None) -> float | None:
    return None if time is None else max(0.0, measured.at - time)


def _until(measured: Measured, time: float | None) -> float | None:
    return None if time is None else time - measured.at


def _rotated(measured: Measured) -> float | None:
    return measured.info.live_slices[0].opened if measured.info.epoch else None
