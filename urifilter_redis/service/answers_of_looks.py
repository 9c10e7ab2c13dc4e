"""The models of the answers for the page, for their description in OpenAPI."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from urifilter_redis.flows.claims_info import ClaimsInfo  # noqa: TC001 - pydantic reads annotations
from urifilter_redis.flows.info import FilterInfo  # noqa: TC001 - likewise

__all__ = ["Detail", "Master", "Overview", "Plot", "Problem", "RedisState", "Row", "ServiceState"]

_Now = Annotated[float, Field(description="time of Redis, in seconds since 1970")]
_Access = Annotated[str, Field(description="what the token may do: `read`, `write` or `admin`")]
_Level = Annotated[str, Field(description="`ok`, `note` (it depends on your needs) or `danger` (a promise is broken)")]


class Problem(BaseModel):
    """A problem of a filter."""

    code: str = Field(description="the word for the problem, for programs")
    level: _Level
    text: str = Field(description="the facts and the advice, for people")


class Row(BaseModel):
    """A filter at a glance. A filter that does not answer has a name and problems alone."""

    name: str = Field(description="the filter's name")
    problems: list[Problem] = Field(description="its problems, the worst first")
    retention: str | None = Field(default=None, description="`forever`, `growing`, `ring` or `rolling`")
    layout: str | None = Field(default=None, description="`blocked`, `classic` or `counting`")
    slices: int | None = Field(default=None, description="ring and rolling: the number of slices of the window")
    period: str | None = Field(default=None, description="ring and rolling: the time between rotations")
    shards: int | None = Field(default=None, description="the number of shards")
    write: str | None = Field(default=None, description="ring: `newest` or `all`")
    expire_after: str | None = Field(default=None, description="`first-seen` or `last-seen`")
    archive: str | None = Field(default=None, description="the archive; `redis`: beside the filter; null: none")
    phase: str | None = Field(default=None, description="`idle`, `creating`, `rotating` or `restoring`")
    error_rate: float | None = Field(default=None, description="the error rate that was asked for")
    error_rate_now: float | None = Field(default=None, description="the probability that a new item is taken for seen")
    fill: float | None = Field(default=None, description="the share of the bits that are set")
    memory: int | None = Field(default=None, description="bytes in Redis")
    checkpointed: float | None = Field(default=None, description="when the last checkpoint began; null: there is none")
    next_rotation: float | None = Field(default=None, description="when the next rotation is due")
    epoch: int | None = Field(default=None, description="rotations so far")
    items: int | None = Field(default=None, description="items that were new and have not expired")
    capacity: int | None = Field(default=None, description="items that fit; growing: into all slices so far")
    full: float | None = Field(default=None, description="the used share of the capacity; growing: null")
    full_in: float | None = Field(
        default=None, description="seconds until it is full at the speed of the last hour; null: unknown, or never"
    )
    speed: float | None = Field(default=None, description="new items a second, over the last two minutes")
    speed_in_hour: float | None = Field(default=None, description="new items a second, over the last hour")
    live_slices: int | None = Field(default=None, description="the number of live slices")
    claims: ClaimsInfo | None = Field(default=None, description="what is in hand; null: nobody has claimed")


class Master(BaseModel):
    """A server: the only one, or a master of a Redis Cluster."""

    name: str = Field(description="its address in a Redis Cluster, otherwise empty")
    version: str = Field(description="its kind and version")
    memory: int = Field(description="bytes in use")
    limit: int | None = Field(description="bytes that it may use; null: no limit")
    uptime: int = Field(description="seconds since it started")
    clients: int = Field(description="connections")
    persistence: str = Field(description="`append-only`, or `snapshots or none`")


class Finding(BaseModel):
    """A result of `urifilter doctor`."""

    level: _Level
    subject: str = Field(description="the examined thing")
    text: str = Field(description="the facts and the advice")


class RedisState(BaseModel):
    """The state of Redis, at most a minute old."""

    masters: list[Master] = Field(description="the servers; none if this user may not run INFO")
    findings: list[Finding] = Field(description="the results of the doctor")


class ServiceState(BaseModel):
    """The state of the service."""

    version: str = Field(description="the release")
    workers: int = Field(description="the number of workers")
    uptime: float = Field(description="seconds since it started")


class Overview(BaseModel):
    """All filters of the token at a glance, at most some seconds old."""

    now: _Now
    access: _Access
    latency: float = Field(description="seconds that Redis took for a command")
    filters: list[Row] = Field(description="the filters, by name")
    redis: RedisState | None = Field(description="null: the token is not for all filters")
    service: ServiceState | None = Field(description="likewise")


class Plot(BaseModel):
    """Samples in columns, oldest first."""

    at: list[float] = Field(description="times of Redis, in seconds since 1970")
    items: list[int] = Field(description="items that were new and had not expired")
    speed: list[float | None] = Field(description="new items a second since the sample before; null: unknown")
    fill: list[float] = Field(description="the share of the bits that were set")
    error_rate: list[float] = Field(description="the probability that a new item was taken for seen")


class Plots(BaseModel):
    """The plots."""

    hour: Plot = Field(description="a sample a minute")
    day: Plot = Field(description="a sample each ten minutes")


class Detail(BaseModel):
    """A filter, with its plots."""

    filter_typeid: str = Field(description="the filter's name")
    now: _Now
    measured: float = Field(description="when `info` was read, likewise")
    access: _Access
    row: Row = Field(description="the filter at a glance")
    info: FilterInfo = Field(description="the filter's settings and state")
    plots: Plots = Field(description="its past")
    plots_refused: str = Field(
        description="why Redis does not keep the plots, so that this worker alone has them; empty if it keeps them"
    )
    meta: str = Field(description="the key of the filter's settings in Redis")
