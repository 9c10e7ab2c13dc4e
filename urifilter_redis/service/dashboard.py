"""The page's data: all filters at a glance, one filter with its plots, Redis, and the service."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from urifilter_redis._version import __version__
from urifilter_redis.engine.queries import server_time
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows import samples
from urifilter_redis.flows.capacity import full_in
from urifilter_redis.flows.doctor import findings_of, gather
from urifilter_redis.flows.info import FilterInfo
from urifilter_redis.flows.probe import name_of
from urifilter_redis.flows.problems import fullness, problems_of, room
from urifilter_redis.flows.samples import DAY, HOUR, Sample
from urifilter_redis.service import BEGAN_VARIABLE
from urifilter_redis.service.bodies import PageQuery
from urifilter_redis.service.errors import refusal_of
from urifilter_redis.service.filters import Filters, Measured
from urifilter_redis.service.responses import Row
from urifilter_redis.service.sampling import Sampler, Series, now_in
from urifilter_redis.service.tokens import EVERYTHING, Token

#: Reading all filters may take this share of the time, unless a result would then be older than so many seconds.
SHARE = 0.006
LONGEST_AGE = 5.0

#: Seconds for which a result is used again in any case.
LEAST_AGE = 1.0

#: Seconds that an answer waits for figures that are slow to read; without them it says that they are being read.
PATIENCE = 1.0

#: Seconds over which the speed of now is averaged.
LATELY = 120.0

#: Seconds for which a rotation may be under way before that is a problem.
ROTATES = 600.0

#: Seconds for which the examination of Redis is used again.
REDIS_AGE = 60.0

#: The times that are plotted, in seconds.
SPANS = {"hour": HOUR, "day": DAY}

#: The figures of a row that are not what ``info()`` has under their names: see ``Overview._figures``.
OTHERWISE = {"capacity", "live_slices", "claims"}

_OF_INFO = {each.name for each in fields(FilterInfo)} - OTHERWISE
_FIGURES = [each for each in Row.model_fields if each in _OF_INFO]


@dataclass(frozen=True, slots=True)
class Glance:
    """All filters at one time."""

    now: float  # of Redis, seconds since 1970
    latency: float  # seconds that Redis took for a command
    rows: Mapping[str, Mapping[str, Any]]  # by filter, its figures and problems
    until: float  # by this process's monotonic clock, the time until which this is used again


class Overview:
    """The figures of all filters, read once for concurrent tasks of one event loop."""

    def __init__(self, filters: Filters, sampler: Sampler) -> None:
        """Read nothing yet."""
        self._filters, self._sampler = filters, sampler
        self._looking: asyncio.Task[Glance] | None = None
        self._reading: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._known: Mapping[str, Mapping[str, Any]] = {}

    async def look(self) -> Glance:
        """Return all filters as they are, or were a moment ago; raises UriFilterError if Redis is away."""
        task = self._looking
        if task is None or (task.done() and _is_over(task)):
            task = self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(task)

    async def of(self, name: str) -> tuple[Measured, Mapping[str, Any], Series]:
        """Return the state of a filter, its row of the overview, and its samples; raises UriFilterError."""
        measured = await self._filters.measured(name)
        row, series = await self._figures(name, measured)
        return measured, row, series

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
            return task.result()
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
    """Return the samples of the last ``seconds`` in columns; beyond an hour there is one for each ten minutes.

    ``speed`` is the speed since the sample before, None for the first of a series.
    """
    some = [each for each in series if each.at >= now - seconds]
    if seconds > HOUR:
        buckets = {each.minute // samples.COARSE: each for each in reversed(some)}
        some = sorted(buckets.values(), key=lambda sample: sample.at)
    pairs = zip([None, *some], some, strict=False)
    speeds = [
        None if first is None or last.total < first.total else (last.total - first.total) / (last.at - first.at)
        for first, last in pairs
    ]
    return {
        "at": [each.at for each in some],
        "items": [each.items for each in some],
        "speed": speeds,
        "fill": [each.fill for each in some],
        "error_rate": [each.error_rate for each in some],
    }


def _is_over(task: asyncio.Task[Glance]) -> bool:
    return task.cancelled() or task.exception() is not None or task.result().until < time.monotonic()


class Dashboard:
    """What the page shows of filters, of Redis, and of the service itself.

    Attributes:
        sampler: takes the samples for the plots while it runs.
    """

    def __init__(self, filters: Filters, workers: int) -> None:
        """Read nothing yet; ``workers`` is the number of the service's workers."""
        self._filters = filters
        self.sampler = Sampler(filters)
        self._overview = Overview(filters, self.sampler)
        self._workers = workers
        self._began = float(os.environ.get(BEGAN_VARIABLE) or time.time())
        self._redis: tuple[dict[str, Any], float] = ({}, 0.0)
        self._one = asyncio.Lock()

    async def overview(self, token: Token, page: PageQuery) -> dict[str, Any]:
        """Return the overview of the filters of a token; of Redis and the service only to a token of all filters."""
        glance = await self._overview.look()
        names, more = page.page_of(filter(token.may_use, glance.rows))
        return {
            "now": glance.now,
            "access": token.access,
            "latency": glance.latency,
            "filters": [glance.rows[name] for name in names],
            **more,
            "redis": await self._examined() if token.may_use_all else None,
            "service": self._service(token) if token.may_use_all else None,
        }

    async def detail(self, token: Token, name: str) -> dict[str, Any]:
        """Return a filter with its plots; raises UriFilterError if it does not answer."""
        measured, row, series = await self._overview.of(name)
        now = measured.at + time.monotonic() - measured.taken
        known = series.of(measured.info.uid)
        return {
            "filter": name,
            "now": now,
            "measured": measured.at,
            "access": token.access,
            "row": row,
            "info": measured.info.to_dict(),
            "plots": {span: plotted(known, seconds, now) for span, seconds in SPANS.items()},
            "plots_refused": series.refused,
            "meta": self._filters.meta_of(name),
        }

    def _service(self, token: Token) -> dict[str, Any]:
        """Return the state of the service: version, workers, seconds since it started, and whether it has tokens."""
        uptime = time.time() - self._began
        return {
            "version": __version__, "workers": self._workers, "uptime": uptime, "has_tokens": token is not EVERYTHING,
        }  # fmt: skip

    async def _examined(self) -> dict[str, Any]:
        """Return the masters' versions, memory and uptime, and the doctor's findings, once for all who look at them."""
        async with self._one:
            found, until = self._redis
            if time.monotonic() > until:
                found = await self._filters.of_server(_examine)
                self._redis = found, time.monotonic() + REDIS_AGE
            return found


def _examine(session: Session) -> Flow[dict[str, Any]]:
    facts = yield from gather(session)
    return {
        "masters": [_master(node, each.info) for node, each in facts.items() if each.info],
        "findings": [asdict(each) for each in findings_of(session, facts)],
    }


def _master(node: str, info: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": node,
        "version": name_of(info),
        "memory": int(info.get("used_memory", 0)),
        "limit": int(info.get("maxmemory", 0)) or None,
        "uptime": int(info.get("uptime_in_seconds", 0)),
        "clients": int(info.get("connected_clients", 0)),
        "persistence": "append-only" if info.get("aof_enabled") == "1" else "snapshots or none",
    }
