"""The bodies of responses: their JSON, and their models for the description in OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from urifilter_redis.flows.claims_info import ClaimsInfo
from urifilter_redis.flows.info import FilterInfo
from urifilter_redis.http_api import ERROR_CODES, write_json

_Filter = Annotated[str, Field(description="the filter's name")]
_Total = Annotated[int, Field(description="items of the request")]
_Seen = Annotated[int, Field(description="items that were seen before, or were in flight")]
_NEXT = "what to give as `after` for more; without it this is all"


class Answer(JSONResponse):
    """JSON in ASCII, which carries any text that an item may have."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the answer."""
        return write_json(content)


class Error(BaseModel):
    """An error, with advice on what to do."""

    error_code: str = Field(
        description="the word for the error, for programs", json_schema_extra={"enum": [*sorted(ERROR_CODES)]}
    )
    error: str = Field(description="the error and what to do about it, for people")
    indices: list[int] = Field(default=[], description="the positions of the items that the error is about")
    ages: list[int | None] = Field(default=[], description="the ages that arrived, null for each item without one")
    was_there: list[bool | None] = Field(default=[], description="the answers that arrived, likewise")


class OfFilter(BaseModel):
    """An answer about a filter."""

    filter: _Filter


class Unique(BaseModel):
    """The items that were not seen before, in their order."""

    filter_typeid: _Filter
    URI_list_unique: list[Any] = Field(description="the items that are new, as they were sent")
    total: _Total
    unique: int = Field(description="items that are new")


class Inserted(OfFilter):
    """The age of each item before it was inserted, and whether it is new."""

    ages: list[int] = Field(description="0: new; n: seen, in the n-th newest slice; -1: in flight, so not new")
    new: list[bool] = Field(description="true: new")
    total: _Total
    unique: int = Field(description="items that are new")


class Found(OfFilter):
    """The age of each item; nothing was inserted."""

    ages: list[int] = Field(description="0: new; n: seen, in the n-th newest slice; -1: in flight")
    total: _Total
    seen: _Seen


class WasThere(OfFilter):
    """Whether each item was there."""

    was_there: list[bool] = Field(description="for each item whether it was there")
    total: _Total
    seen: int = Field(description="items that were there")


class Counts(BaseModel):
    """What a claimed item has been through before."""

    index: int = Field(description="its position in `items`, from 0")
    failures: int = Field(description="how many times it was released as failed")
    lapses: int = Field(description="how many holders of it have died")


class Claimed(OfFilter):
    """The age of each item before it was claimed, and whether the holder has it now."""

    ages: list[int] = Field(description="0: claimed; n: seen, in the n-th newest slice; -1: in flight")
    claimed: list[bool] = Field(description="true: the holder has it now")
    counts: list[Counts] = Field(description="of those claimed items that have any")
    total: _Total
    unique: int = Field(description="items that were claimed")


class Committed(OfFilter):
    """The age of each item before it was committed, and whether this request made it final."""

    ages: list[int] = Field(
        description="0: final now; n: seen before, in the n-th newest slice; "
        "-1: with a `reason`, the holder does not have it in flight"
    )
    committed: list[bool] = Field(description="true: this request made it final")
    total: _Total
    unique: int = Field(description="items that this request made final")


class Released(OfFilter):
    """Whether the holder had each item, which is given back."""

    was_there: list[bool] = Field(description="for each item whether the holder had it in flight")
    total: _Total
    seen: int = Field(description="items that were given back")


class Taken(BaseModel):
    """An item with its counts. Text that JSON cannot carry comes as base64 of its bytes."""

    item: Any = Field(default=None, description="the item")
    item_base64: str = Field(default="", description="the item, in place of `item`")
    payload: Any = Field(default=None, description="its payload")
    payload_base64: str = Field(default="", description="its payload, in place of `payload`")
    failures: int = Field(description="how many times it was released as failed")
    lapses: int = Field(description="how many holders of it have died")


class Held(Taken):
    """An item that somebody has in flight."""

    holder: str = Field(description="who has it, by the name that Redis knows: 16 hex digits")
    lease: float = Field(description="seconds for which the holder lives without a sign of life; 0: it has lapsed")


class ListInFlight(OfFilter):
    """Items that somebody has in flight."""

    in_flight: list[Held] = Field(description="the items, in no order")
    next: str | None = Field(default=None, description=_NEXT)


class DeadLetter(Taken):
    """An item that was rejected."""

    at: float = Field(description="when, in seconds since 1970")
    reason: str = Field(description="why, as its holder has said")


class ListDeadLetters(OfFilter):
    """Items that were rejected."""

    dead_letters: list[DeadLetter] = Field(description="the items, the latest first")
    next: str | None = Field(default=None, description=_NEXT)


class Offered(OfFilter):
    """The items that are offered once more."""

    was_there: list[bool] = Field(description="for each item of the request whether it had been rejected")
    total: _Total
    offered: int = Field(description="the number of items that this request offers")


class Others(BaseModel):
    """The items that other holders have in flight, those that were released and are not due yet included."""

    others: int = Field(description="their number")
    due: float | None = Field(description="seconds until the next of them may lapse; null: there is none")


class Reclaimed(OfFilter):
    """The items that were claimed."""

    claims: list[Taken] = Field(description="the items")
    total: int = Field(description="the number of these items")
    outstanding: Others | None = Field(
        description="the items of others; null: the limit was reached before all shards were looked at"
    )


class InFlight(OfFilter):
    """The number of items that the holder has."""

    in_flight: int = Field(description="items that the holder has in flight")


class OfOne(OfFilter):
    """A filter that is there."""

    uid: str = Field(description="the filter's uid: 16 hex digits")


class Rotated(OfFilter):
    """A rotation."""

    epoch: int = Field(description="the number of the filter's rotations so far; of a dry run, after the rotation")
    rotated: bool = Field(
        description="false: a dry run, or the filter was past the expected epoch: an earlier attempt, or others, did it"
    )
    shards: int = Field(description="shards that this request turned")
    problems: list[str] = Field(description="slices of the archive that are missing: their items expire late")


class Checkpointed(OfFilter):
    """A checkpoint."""

    number: int = Field(description="the number of the checkpoint")
    begun: float = Field(description="time of Redis when it began, in seconds since 1970")
    shards: int = Field(description="shards that were written; the others had not changed")
    size: int = Field(description="bytes of these shards in the archive")


class Acknowledged(OfFilter):
    """The restores that are acknowledged."""

    shards: int = Field(description="shards whose restore was not acknowledged yet")


class United(OfFilter):
    """A union."""

    added: int = Field(description="about so many items were added")


class Dropped(OfFilter):
    """A drop."""

    dropped: bool = Field(description="false: there was no filter of this uid, perhaps because of an earlier attempt")


class Filters(BaseModel):
    """The names of the filters that the token may use."""

    filters: list[str] = Field(description="the names, in alphabetical order")
    problems: dict[str, str] = Field(
        default={}, description="by name, the problems of filters that are answered all the same"
    )
    next: str | None = Field(default=None, description="the name to give as `after` for more; without it this is all")


class Answered(BaseModel):
    """The numbers of items that all workers of this service inserted or looked up since it started."""

    new: int = Field(description="items that were new")
    seen: _Seen


class Info(OfFilter):
    """The state of a filter."""

    now: float = Field(description="time of Redis, in seconds since 1970")
    measured: float = Field(description="when `info` was read, likewise")
    answered: Answered = Field(description="the items that this service has answered")
    info: FilterInfo = Field(description="the filter's settings and state")
    problem: str | None = Field(default=None, description="the problem of a filter that is answered all the same")


class TokenUse(BaseModel):
    """An access token, and its last use."""

    name: str = Field(description="the token's name")
    filters: list[str] = Field(description="the filters that it is for: names or patterns")
    access: str = Field(description="what it may do with them")
    last_used: float | None = Field(description="when it was last used, in seconds since 1970; null: not yet")


class AddressRefusals(BaseModel):
    """The refusals of an address."""

    address: str = Field(description="an IPv4 address, or an IPv6 network of 64 bits")
    count: int = Field(description="requests that were refused")
    last: float = Field(description="when the last one was, in seconds since 1970")


class Access(BaseModel):
    """The use of tokens, and the refusals, since the service started."""

    now: float = Field(description="time of the service, in seconds since 1970")
    tokens: list[TokenUse] = Field(description="the tokens of the settings")
    refusals: list[AddressRefusals] = Field(description="the 256 addresses that were refused last, the latest first")


class Status(BaseModel):
    """The state of the process."""

    status: str = Field(description="`ok` or `ready`")


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
    layout: str | None = Field(default=None, description="`blocked`, `classic`, `counting` or `redisbloom`")
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
    claims: ClaimsInfo | None = Field(default=None, description="what is in flight; null: nobody has claimed")


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
    has_tokens: bool = Field(description="whether this request had a token; false: the service asks for none")


class Overview(BaseModel):
    """All filters of the token at a glance, at most some seconds old."""

    now: _Now
    access: _Access
    latency: float = Field(description="seconds that Redis took for a command")
    filters: list[Row] = Field(description="the filters, by name")
    next: str | None = Field(default=None, description="the name to give as `after` for more; without it this is all")
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


class Detail(OfFilter):
    """A filter, with its plots."""

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
