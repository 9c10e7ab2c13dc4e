"""Samples of a filter's state, for plots of the last hour and day: kept in Redis under one bounded key a filter.

The key is a hash, ``ShardKeys.rates`` of shard 0: the minute since 1970 -> a sample in JSON. It holds a sample for each
minute of the last hour, and one for each ten minutes of the last day. If many processes write, the first sample of a
minute stays. The hash is no part of the filter: no archive has it, and it expires a day after the last sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.flows.info import FilterInfo
from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping

#: Seconds.
MINUTE, HOUR, DAY = 60, 3600, 86_400

#: Minutes for which one sample is kept once it is older than an hour.
COARSE = 10

#: Seconds after the last sample at which the key expires: the service may be down for a night.
EXPIRES = DAY + HOUR


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a filter at one time. The attributes in their order are the JSON of its field.

    Attributes:
        uid: the filter's uid; samples of an earlier filter of the same name are ignored.
        at: the server's time, seconds since 1970.
        epoch: the lowest epoch of the shards.
        counted: the number of items that were written to the slices of that epoch and later ones.
        total: the number of items that were written since the first sample of a series. A lower one than before begins
            a new series.
        items: the number of items that were answered "new" and have not expired.
        fill: the share of the bits that are set.
        error_rate: the probability that an unseen item is answered "seen".
    """

    uid: str
    at: float
    epoch: int
    counted: int
    total: int
    items: int
    fill: float
    error_rate: float

    @property
    def minute(self) -> int:
        """The minute since 1970."""
        return int(self.at // MINUTE)


def take(info: FilterInfo, states: Sequence[ShardState], at: float, before: Sample | None) -> Sample:
    """Return a sample.

    Args:
        info: the filter's state; it may be somewhat older than ``states``.
        states: the states of all shards.
        at: the server's time at which they were read, seconds since 1970.
        before: the sample before this one; None: there is none.
    """
    epoch = min(state.epoch for state in states)
    written = None if before is None else _counted(states, before.epoch)
    total = 0 if before is None or written is None else before.total + max(0, written - before.counted)
    return Sample(
        uid=info.uid,
        at=at,
        epoch=epoch,
        counted=_counted(states, epoch) or 0,
        total=total,
        items=sum(state.items for state in states),
        fill=info.fill,
        error_rate=info.error_rate_now,
    )


def _counted(states: Sequence[ShardState], epoch: int) -> int | None:
    """Return how many items were written to slices since an epoch began; None if some of these have expired."""
    total = 0
    for state in states:
        if epoch < state.oldest:
            return None
        closed = [each.inserted for each in state.closed if each.epoch >= epoch]
        total += sum(closed) + (state.inserted if state.epoch >= epoch else 0)
    return total


def speed(samples: Sequence[Sample], last: Sample, seconds: float) -> float | None:
    """Return the mean of new items a second in the ``seconds`` before the newest sample; ``samples`` are oldest first.

    It is None if there is no earlier sample of that time and of the same series.
    """
    first = last
    for each in reversed(samples):
        if each.at >= last.at:
            continue
        if each.at < last.at - seconds or each.total > first.total:
            break
        first = each
    return (last.total - first.total) / (last.at - first.at) if first.at < last.at else None


def outdated(samples: Iterable[Sample], now: float) -> list[int]:
    """Return the minutes whose samples are not kept any longer; ``now`` is in seconds since 1970."""
    gone, coarse = [], set()
    for each in sorted(samples, key=lambda sample: sample.at):
        age, bucket = now - each.at, each.minute // COARSE
        if age > DAY or age < -HOUR or (age > HOUR and bucket in coarse):
            gone.append(each.minute)
        coarse.add(bucket)
    return gone


def read(session: Session) -> Flow[list[Sample]]:
    """Return the samples of a filter that Redis has, oldest first.

    Raises:
        ServerUnavailable: Redis is away.
    """
    (reply,) = yield from ask(session, ("HGETALL", session.keys.shard(0).rates))
    found = map(_decode, to_mapping(reply).values())
    return sorted((each for each in found if each is not None), key=lambda sample: sample.at)


def keep(session: Session, sample: Sample, known: Sequence[Sample]) -> Flow[bool]:
    """Write a sample, and remove what is outdated; return whether it is the first of its minute.

    ``known`` are the samples that Redis has, those of other filters of the same name included.

    Raises:
        ServerUnavailable: Redis is away, or does not let this user write.
    """
    key = session.keys.shard(0).rates
    gone = {*outdated(known, sample.at), *(each.minute for each in known if each.uid != sample.uid)} - {sample.minute}
    text = json.dumps(astuple(sample), separators=(",", ":"))
    commands: list[Arguments] = [("HSETNX", key, str(sample.minute), text)]
    if gone:
        commands.append(("HDEL", key, *map(str, gone)))
    written, *_ = yield from ask(session, *commands, ("EXPIRE", key, str(EXPIRES)))
    return bool(written)


def _decode(text: str) -> Sample | None:
    """Return the sample of a field; None if another release has written it."""
    try:
        found: list[Any] = json.loads(text)
        sample = Sample(*found)
    except (ValueError, TypeError):
        return None
    uid, *numbers = astuple(sample)
    return sample if isinstance(uid, str) and all(isinstance(each, int | float) for each in numbers) else None
