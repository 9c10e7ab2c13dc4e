"""The problems of one filter, for the doctor and the service: each has a code, a level, and a text with advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.flows.loss import loss_text

if TYPE_CHECKING:
    from urifilter_redis.flows.info import FilterInfo

#: The codes, the worst first, each with its level: ``danger`` (a promise does not hold) or ``note``.
CODES = {
    "lost_items": "danger",
    "over_capacity": "danger",
    "error_rate": "danger",
    "restoring": "note",
    "no_checkpoint": "note",
    "checkpoint_old": "note",
    "rotating": "note",
    "rotation_slow": "note",
    "rotation_late": "note",
    "near_capacity": "note",
    "lapsed": "note",
}

#: The share of its capacity at which a filter is near it.
NEAR = 0.8

#: The multiple of the error rate that was asked for at which the present one is a danger.
ERRING = 1.5

#: The share of a period over which a rotation is slow.
SLOW = 0.5

#: The leases after which a lapsed item shows that nobody reclaims.
LEASES_LAPSED = 3

#: Seconds after which a checkpoint of a filter that is written to is old; the worker's default is five minutes.
OLD = 86_400


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a filter.

    Attributes:
        code: one of ``CODES``.
        text: the facts and the advice.
    """

    code: str
    text: str

    @property
    def level(self) -> str:
        """``danger`` (a promise does not hold) or ``note`` (it depends on your needs)."""
        return CODES[self.code]


def problems_of(info: FilterInfo, now: float, *, written: bool = False) -> Iterator[Problem]:
    """Yield the problems of a filter, the worst first.

    Args:
        info: the filter's state.
        now: the server's time, seconds since 1970.
        written: whether items were written lately, so that there is something for a checkpoint.
    """
    if info.loss is not None:
        yield Problem("lost_items", loss_text(info.loss, info.shards, info.name))
    yield from _capacity(info)
    if info.phase == "restoring":
        yield Problem("restoring", "a restore is under way, or was left unfinished: run urifilter restore")
    yield from _checkpoint(info, now, written=written)
    yield from _rotation(info, now)
    share = fullness(info)
    if not info.over_capacity and share is not None and share >= NEAR:
        yield Problem("near_capacity", f"full to {share:.0%}: make a larger one before the error rate rises")
    yield from _lapsed(info)


def fullness(info: FilterInfo) -> float | None:
    """Return the share of the capacity that is used, of the fullest part; None for a growing filter."""
    if info.retention == "growing":
        return None
    return max(info.inserted / info.capacity, *(each.inserted / each.capacity for each in info.live_slices))


def room(info: FilterInfo) -> int:
    """Return the number of items that fit into the window (growing: into all slices)."""
    return sum(each.capacity for each in info.live_slices) if info.retention == "growing" else info.capacity


def _capacity(info: FilterInfo) -> Iterator[Problem]:
    held = f"{info.inserted:,} of {room(info):,} items"
    full = ", ".join(f"{each.name} {each.inserted:,}" for each in info.live_slices if each.over_capacity)
    rates = f"the error rate is {_one_in(info.error_rate_now)} and not {_one_in(info.error_rate)}"
    if info.layout == REDISBLOOM:
        rates = "the server's filters have grown beside it, and calls take longer"
    if info.over_capacity:
        yield Problem("over_capacity", f"over its capacity ({full or held}): {rates}; make a larger one")
    elif info.error_rate_now > ERRING * info.error_rate:
        yield Problem("error_rate", f"{held}: {rates}; make a larger one")


def _one_in(rate: float) -> str:
    """Return a rate as the page shows it: ``1 in 8,300``."""
    return f"1 in {float(f'{1 / rate:.2g}'):,.10g}" if rate else "0"


def _checkpoint(info: FilterInfo, now: float, *, written: bool) -> Iterator[Problem]:
    if info.archive in {None, "redis"}:
        return
    if info.checkpointed is None:
        yield Problem("no_checkpoint", f"no checkpoint was written to {info.archive} yet: does urifilter worker run?")
    elif written and now > info.checkpointed + OLD:
        hours = (now - info.checkpointed) / 3600
        yield Problem("checkpoint_old", f"the last checkpoint is {hours:,.0f} h old: does urifilter worker run?")


def _rotation(info: FilterInfo, now: float) -> Iterator[Problem]:
    """Yield a problem of rotations that are slow, unfinished or overdue."""
    if info.next_rotation is None or not info.period:
        return
    period = seconds_of(info.period)
    cron = "run urifilter worker, or urifilter rotate --due from cron"
    who = "the next inserts do it" if info.archive in {None, "redis"} else cron
    share = (info.rotated_in or 0.0) / period
    slow = f"over half a period ({share:.0%}): take fewer shards or a longer period, or {cron}" if share > SLOW else ""
    if info.phase == "rotating":
        text = f"a rotation is under way, or was left unfinished{f', for {slow}' if slow else f': {who}'}"
        yield Problem("rotating", text)
    elif slow:
        yield Problem("rotation_slow", f"the last rotation took {slow}")
    elif now > info.next_rotation + period:
        yield Problem("rotation_late", f"a rotation is overdue by more than a period, so nothing expires: {who}")


def _lapsed(info: FilterInfo) -> Iterator[Problem]:
    found = info.claims
    if found is None or found.oldest_lapse is None or found.oldest_lapse <= LEASES_LAPSED * found.lease:
        return
    ago = f"{found.oldest_lapse:,.0f} s ago, over {LEASES_LAPSED} leases of {found.lease:g} s"
    advice = f"nobody reclaims, so nobody fetches them: run the crawler, or urifilter reclaim {info.name}"
    yield Problem("lapsed", f"lapsed {found.lapsed:,}, the oldest {ago}: {advice}")
