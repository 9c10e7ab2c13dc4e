"""All filters at a glance, for the page: read at once, and once for all who look at it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from urifilter_redis.engine.queries import server_time
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows import samples
from urifilter_redis.flows.capacity import full_in
from urifilter_redis.flows.problems import fullness, problems_of, room
from urifilter_redis.flows.samples import DAY, HOUR
from urifilter_redis.service.failures import refusal_of
from urifilter_redis.service.sampling import now_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.flows.info import FilterInfo
    from urifilter_redis.flows.samples import Sample
    from urifilter_redis.service.filters import Filters, Measured
    from urifilter_redis.service.sampling import Sampler, Series

__all__ = ["SPANS", "Glance", "Overview", "plotted"]

#: Looking at all filters may take this share of the time, unless a look would then be older than so many seconds.
SHARE = 0.006
LONGEST_AGE = 5.0

#: Seconds for which a look is used again in any case.
LEAST_AGE = 1.0

#: Seconds that an answer waits for figures that are slow to read; without them it says that they are being read.
PATIENCE = 1.0

#: Seconds over which the speed of now is averaged.
LATELY = 120.0

#: Seconds for which a rotation may be under way before that is a problem.
ROTATES = 600.0

#: The times that are plotted, in seconds.
SPANS = {"hour": HOUR, "day": DAY}

#: The figures of a filter that the overview has as ``info()`` has them.
_FIGURES = (
    *("retention", "layout", "slices", "period", "shards", "write", "expire_after", "archive", "phase", "error_rate"),
    *("error_rate_now", "fill", "memory", "checkpointed", "next_rotation", "epoch"),
)


@dataclass(frozen=True, slots=True)
class Glance:
    """All filters at one time.

    Attributes:
        now: the time of Redis, seconds since 1970.
        latency: the seconds that Redis took for a command.
        rows: by filter, its figures and problems.
        until: by this process's monotonic clock, the time until which this is used again.
    """

    now: float
    latency: float
    rows: Mapping[str, Mapping[str, Any]]
    until: float


class Overview:
    """Looks at all filters, for concurrent tasks of one event loop."""

    def __init__(self, filters: Filters, sampler: Sampler) -> None:
        """Look at nothing yet; nothing is sent."""
        self._filters, self._sampler = filters, sampler
        self._looking: asyncio.Task[Glance] | None = None
        self._reading: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._known: Mapping[str, Mapping[str, Any]] = {}

    async def look(self) -> Glance:
        """Look at all filters, or return what was seen a moment ago.

        Raises:
            UriFilterError: Redis is away, or refuses.
        """
        task = self._looking
        if task is None or (task.done() and _is_over(task)):
            task = self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(task)

    async def of(self, name: str) -> tuple[Measured, Mapping[str, Any], Series]:
        """Return the state of a filter, its row of the overview, and its samples.

        Raises:
            UriFilterError: the filter does not answer.
        """
        measured = await self._filters.measured(name)
        row, series = await self._figures(name, measured)
        return measured, {"name": name, **row}, series

    async def _look(self) -> Glance:
        began = time.monotonic()
        names = sorted(await self._filters.names())
        asked = time.monotonic()
        now = await self._filters.of_server(server_time) / 1000
        latency = time.monotonic() - asked
        under_way = {name: task for name, task in self._reading.items() if not task.done()}
        self._reading = {name: under_way.get(name) or asyncio.create_task(self._row(name)) for name in names}
        if names:
            await asyncio.wait(self._reading.values(), timeout=PATIENCE)
        rows = {name: self._row_of(name, task) for name, task in self._reading.items()}
        self._known = rows
        ended = time.monotonic()
        return Glance(now, latency, rows, ended + min(max(LEAST_AGE, (ended - began) / SHARE), LONGEST_AGE))

    async def _row(self, name: str) -> dict[str, Any]:
        row, _ = await self._figures(name, await self._filters.lately(name))
        return row

    async def _figures(self, name: str, measured: Measured) -> tuple[dict[str, Any], Series]:
        """Return the figures of a filter: items and speed as they are now, the others as they were measured."""
        states, now = await self._filters.run(name, now_in)
        series = await self._sampler.series(name)
        known = series.of(measured.info.uid)
        last = samples.take(measured.info, states, now, known[-1] if known else None)
        info = replace(measured.info, inserted=last.items)
        in_hour = samples.speed(known, last, HOUR)
        row = {
            **{field: getattr(info, field) for field in _FIGURES},
            "items": info.inserted,
            "capacity": room(info),
            "full": fullness(info),
            "full_in": full_in(info, in_hour, now),
            "speed": samples.speed(known, last, LATELY),
            "speed_in_hour": in_hour,
            "live_slices": len(info.live_slices),
            "claims": None if info.claims is None else asdict(info.claims),
            "problems": self._problems(name, info, now, written=bool(in_hour)),
        }
        return row, series

    def _row_of(self, name: str, task: asyncio.Task[dict[str, Any]]) -> Mapping[str, Any]:
        """Return the figures of a filter, the last known ones if the reading is not done, or why there are none."""
        if not task.done():
            reading = {"code": "reading", "level": "note", "text": "its figures are being read"}
            return self._known.get(name) or {"name": name, "problems": [reading]}
        error = task.exception()
        if error is None:
            return {"name": name, **task.result()}
        if not isinstance(error, UriFilterError):
            raise error
        refusal = refusal_of(error)
        return {"name": name, "problems": [{"code": refusal.code, "level": "danger", "text": str(refusal)}]}

    def _problems(self, name: str, info: FilterInfo, now: float, *, written: bool) -> list[dict[str, str]]:
        found = [
            {"code": each.code, "level": each.level, "text": each.text}
            for each in problems_of(info, now, written=written)
            if each.code != "rotating" or now > info.live_slices[0].opened + ROTATES
        ]
        if text := self._filters.problem_of(name):
            found.append({"code": "archive_away", "level": "note", "text": text})
        return found


def plotted(series: Sequence[Sample], seconds: float, now: float) -> dict[str, list[Any]]:
    """Return samples in columns; ``speed`` is that since the sample before, None for the first of a series.

    Args:
        series: the samples of a filter, oldest first.
        seconds: the time before ``now`` that is plotted; beyond an hour there is a sample for each ten minutes.
        now: seconds since 1970.
    """
    some = [each for each in series if each.at >= now - seconds]
    if seconds > HOUR:
        buckets = {each.minute // samples.COARSE: each for each in reversed(some)}
        some = sorted(buckets.values(), key=lambda sample: sample.at)
    before = [None, *some]
    speeds = [None if first is None else _speed(first, last) for first, last in zip(before, some, strict=False)]
    return {
        "at": [each.at for each in some],
        "items": [each.items for each in some],
        "speed": speeds,
        "fill": [each.fill for each in some],
        "error_rate": [each.error_rate for each in some],
    }


def _speed(first: Sample, last: Sample) -> float | None:
    return (last.total - first.total) / (last.at - first.at) if last.total >= first.total else None


def _is_over(task: asyncio.Task[Glance]) -> bool:
    return task.cancelled() or task.exception() is not None or task.result().until < time.monotonic()
