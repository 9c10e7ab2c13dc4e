"""The models of what a request asks for: its body, or its query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, WithJsonSchema, model_validator

from urifilter_redis.http_api import MOST_LISTED
from urifilter_redis.protocol.claims import LEAST_LEASE, MOST_DELAY, MOST_LEASE, RECLAIMED_A_CALL

#: The form of a filter's name; see ``keys.check_name``.
NAME = "[A-Za-z0-9._-]{1,64}"
NAME_PATTERN = f"^{NAME}$"

#: An item: any JSON value but null, which names nothing. ``check_items`` refuses it with its position.
Item = Annotated[Any, WithJsonSchema({"not": {"type": "null"}})]

Anything = Annotated[list[Item], Field(description="items: URIs, or any other JSON values")]


def whole(value: object) -> object:
    """Return a number in JSON's sense, in which 1.0 is 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_AGE = "ring: look only at so many of the newest slices"
Age = Annotated[int, Field(ge=1, description=_AGE), BeforeValidator(whole)] | None
Place = Annotated[int, Field(ge=0), BeforeValidator(whole)]


class Strict(BaseModel):
    """A body or query whose fields have exactly the types that are documented."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ItemsRequest(Strict):
    """Items for a command."""

    items: Anything
    max_age: Age = None


class OlderItems(Strict):
    """A filter and items, in the older interface."""

    filter_typeid: Annotated[str, Field(pattern=NAME_PATTERN, description="the filter's name")]
    URI_list: Anything
    access_token: Annotated[str | None, Field(description="or send it as Authorization: Bearer")] = None


Holder = Annotated[
    str, Field(pattern="^[0-9A-Fa-f]{16}$", description="the holder: 16 hex digits that its crawler has drawn")
]
_LEASE = (
    "seconds for which the holder lives after a `beat`; other requests prolong its life for a part of the filter only; "
    "null: 60, more for a filter of many shards"
)
Lease = Annotated[float, Field(ge=LEAST_LEASE, le=MOST_LEASE, description=_LEASE)] | None
_PAYLOADS = "a payload for each item, any JSON value of at most 64 KiB; without them each item is its own"
_REASON = "why the holder rejects the items, which become dead letters; null: it does not"
_BASE64 = "the positions of the items that are base64 of bytes, as `reclaim` answers them; each once"


class ClaimRequest(Strict):
    """Items to be claimed."""

    items: Anything
    payloads: Annotated[list[Any] | None, Field(description=_PAYLOADS)] = None
    holder: Holder
    lease: Lease = None


class EndRequest(Strict):
    """Items that are in flight no longer."""

    items: Anything
    base64: Annotated[list[Place], FailFast(), Field(description=_BASE64)] = []
    holder: Holder | None = None
    lease: Lease = None


class CommitRequest(EndRequest):
    """Items to be made final."""

    reason: Annotated[str | None, Field(description=_REASON)] = None


class ReleaseRequest(EndRequest):
    """Items to be given back."""

    delay: Annotated[float, Field(ge=0, le=MOST_DELAY, description="seconds until they are offered again")] = 0.0
    failed: Annotated[bool, Field(description="count a failure of each item")] = False


#: The bodies of the commands that answer a value for each item.
OfItems: TypeAlias = ItemsRequest | ClaimRequest | CommitRequest | ReleaseRequest


class BeatRequest(Strict):
    """A holder that is alive."""

    holder: Holder
    lease: Lease = None


class ReclaimRequest(BeatRequest):
    """A holder that wants items of dead holders, and items that are due again."""

    limit: Annotated[
        int, Field(ge=0, le=RECLAIMED_A_CALL, description="the most items; 0: only look"), BeforeValidator(whole)
    ] = RECLAIMED_A_CALL


class PageQuery(Strict):
    """The part of a list that is wanted."""

    limit: Annotated[int, Field(ge=1, le=MOST_LISTED, description="the most filters to list")] = MOST_LISTED
    after: Annotated[
        str | None, Field(pattern=NAME_PATTERN, description="list the filters behind this name: `next` of a list")
    ] = None

    def page_of(self, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        """Return the sorted names that are wanted, and the field ``next`` if there are more."""
        found = sorted(name for name in names if self.after is None or name > self.after)
        page = found[: self.limit]
        return page, {"next": page[-1]} if len(found) > len(page) else {}


class ClaimsQuery(Strict):
    """The part of a list of items that is wanted."""

    limit: Annotated[int, Field(ge=1, le=RECLAIMED_A_CALL, description="the most items to list")] = RECLAIMED_A_CALL
    after: Annotated[
        str | None,
        Field(pattern="^[0-9]{1,15}-([0-9a-f]{2}){16,24}$", description="list what comes behind: `next` of a list"),
    ] = None

    @property
    def place(self) -> tuple[int, bytes] | None:
        """The place behind which the list goes on; None: its beginning."""
        if self.after is None:
            return None
        number, _, content = self.after.partition("-")
        return int(number), bytes.fromhex(content)

    @staticmethod
    def after_of(place: tuple[int, bytes]) -> str:
        """Return the text of a place."""
        return f"{place[0]}-{place[1].hex()}"


class RetryRequest(Strict):
    """Dead letters, to be offered once more."""

    items: Annotated[list[Item] | None, Field(description="some of them; null: all")] = None
    base64: Annotated[list[Place], FailFast(), Field(description=_BASE64)] = []


_EPOCH = "rotate only from this epoch on; `info` and a dry run tell it. Wanted unless it is a dry run"
_UID = "the uid of the filter, as `info` tells it: no other of the same name is dropped"


class RotateRequest(Strict):
    """How to close the newest slice of a filter, and begin the next."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["expected_epoch"], "properties": {"expected_epoch": {"type": "integer"}}},
                {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
            ]
        }
    )

    expected_epoch: Annotated[int | None, Field(ge=0, description=_EPOCH), BeforeValidator(whole)] = None
    dry_run: Annotated[bool, Field(description="only tell the epoch that would be reached")] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.expected_epoch is None and not self.dry_run:
            raise ValueError("expected_epoch: name the epoch to rotate from, so that a repeat does not rotate again")
        return self


class CheckpointRequest(Strict):
    """What to write of a filter to its archive."""

    full: Annotated[bool, Field(description="write all shards, also unchanged ones")] = False


class RestoreRequest(Strict):
    """No fields: what Redis lacks of a filter is brought back from its archive."""


class AcknowledgeRequest(Strict):
    """No fields: whoever sends it knows of what restores of the filter may have lost."""


class UnionRequest(Strict):
    """The filters whose items are inserted."""

    sources: Annotated[
        list[Annotated[str, Field(pattern=NAME_PATTERN)]],
        Field(min_length=1, max_length=100, description="the names of the other filters"),
    ]
    over_capacity: Annotated[bool, Field(description="merge them even if the result is over capacity")] = False


class DropRequest(Strict):
    """The filter that is removed."""

    confirm: Annotated[str, Field(description="the filter's name once more")]
    uid: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description=_UID)]
    keep_archive: Annotated[bool, Field(description="keep the archive, from which it can be restored")] = False
