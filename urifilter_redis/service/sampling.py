"""The samples of all filters, one a minute: the first worker that finds none for this minute takes it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field

from urifilter_redis.engine.queries import server_time
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ServerUnavailable, UriFilterError
from urifilter_redis.flows import samples
from urifilter_redis.flows.samples import MINUTE, Sample
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import is_withheld
from urifilter_redis.service.filters import Filters
from urifilter_redis.service.logs import Seldom

log = logging.getLogger("urifilter_redis.service")

#: Seconds after which the samples of Redis are read again for a page; other workers may have written some.
READ_AGAIN = 60.0

#: Seconds for which a refused write is not tried again: rights seldom change.
REFUSED = 600.0

#: Filters that are looked at together, so that their commands share pipelines, and requests are not held up for long.
TOGETHER = 8


@dataclass(slots=True)
class Series:
    """The samples of one filter, as this worker knows them."""

    known: list[Sample] = field(default_factory=list)  # oldest first; of earlier filters of the name, too
    own: dict[int, Sample] = field(default_factory=dict)  # those that Redis has refused, by minute
    refused: str = ""  # why Redis has refused the last sample; empty if it has it
    read: float = 0.0  # by the monotonic clock, the time until which the samples count as read

    def of(self, uid: str) -> list[Sample]:
        """Return the samples of the filter with this uid, oldest first."""
        every = {each.minute: each for each in self.known if each.uid == uid} | self.own
        return [every[minute] for minute in sorted(every) if every[minute].uid == uid]

    def add(self, sample: Sample, refused: str) -> None:
        """Note a sample, and why Redis has refused it; empty if it has it."""
        self.refused = refused
        if refused:
            self.own[sample.minute] = sample
        else:
            self.known.append(sample)
        for minute in samples.outdated(self.own.values(), sample.at):
            del self.own[minute]


class Sampler:
    """Takes and keeps the samples of all filters.

    The workers of a service, and those of other services over the same Redis, wake up at different times of a minute.
    The first one takes the sample, and the others find it there. If two overlap, the minute has one sample all the
    same. A worker that may not write keeps its own samples in memory.
    """

    def __init__(self, filters: Filters) -> None:
        """Hold no sample yet; nothing is sent."""
        self._filters = filters
        self._series: dict[str, Series] = {}
        self._refused = ("", 0.0)

    async def run(self) -> None:
        """Take samples until cancelled: one at once, and then one a minute."""
        seldom = Seldom()
        while True:
            try:
                await self.take()
            except UriFilterError as error:
                if seldom.passes(str(error)):
                    log.warning("no samples for the plots: %s", error)
            await asyncio.sleep(MINUTE - time.time() % MINUTE + random.uniform(0, MINUTE / 2))  # noqa: S311 - no secret

    async def take(self) -> None:
        """Take the samples of this minute that are missing."""
        names = sorted(await self._filters.in_redis())
        for gone in self._series.keys() - names:
            del self._series[gone]
        for begin in range(0, len(names), TOGETHER):
            some = [self._take(name) for name in names[begin : begin + TOGETHER]]
            for found in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(found, BaseException) and not isinstance(found, UriFilterError):
                    raise found  # a filter that is lost or restored has no sample, and other words for that

    async def series(self, name: str) -> Series:
        """Return the samples of a filter; those of Redis are read again when they are old."""
        found = self._series.setdefault(name, Series())
        return found if time.monotonic() < found.read else await self._read(name)

    async def _read(self, name: str) -> Series:
        found = self._series.setdefault(name, Series())
        found.known = await self._filters.run(name, samples.read)
        found.read = time.monotonic() + READ_AGAIN
        return found

    async def _take(self, name: str) -> None:
        series = await self._read(name)
        at = await self._filters.run(name, server_time) / 1000
        if int(at // MINUTE) in {each.minute for each in (*series.known, *series.own.values())}:
            return
        measured = await self._filters.lately(name)
        states, at = await self._filters.run(name, now_in)
        before = series.of(measured.info.uid)
        sample = samples.take(measured.info, states, at, before[-1] if before else None)
        await self._write(name, sample, series)

    async def _write(self, name: str, sample: Sample, series: Series) -> None:
        """Write a sample; if Redis refuses it, this worker keeps it."""
        refused, until = self._refused
        if refused and time.monotonic() < until:
            series.add(sample, refused)
            return
        try:
            is_first = await self._filters.run(name, lambda session: samples.keep(session, sample, series.known))
        except ServerUnavailable as error:
            log.warning("the samples for the plots are kept in memory: %s", error)
            if is_withheld(error):
                self._refused = str(error), time.monotonic() + REFUSED
            series.add(sample, str(error))
            return
        self._refused = "", 0.0
        series.add(sample, "")
        if not is_first:
            await self._read(name)


def now_in(session: Session) -> Flow[tuple[list[ShardState], float]]:
    """Return the states of a filter's shards, and the server's time, seconds since 1970."""
    states = yield from read_states(session)
    return states, (yield from server_time(session)) / 1000
