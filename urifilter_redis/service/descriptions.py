"""What the service says of each operation: its summary, its models, its errors, and an example.

Each example is an answer of a new service that is asked in this order, after ``create`` and ``unique``: the uid, times,
sizes, and the items that others have in flight, differ each time. For ``union`` there is an empty filter ``old``. For
``remove`` the filter has the layout counting, and no periods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.service import bodies, responses
from urifilter_redis.service.settings import FilterSettings

#: The name of the filter in all examples.
FILTER = "news"

_A, _B, _C, _D, _E = (f"https://example.com/{page}" for page in "abcde")
_HOLDER, _UID = "00112233aabbccdd", "5f0c1d2e3b4a5968"
_OF: dict[str, Any] = {"filter": FILTER}
_OLDER: dict[str, Any] = {"filter_typeid": FILTER}


class Example(NamedTuple):
    """A request's body, and the answer."""

    body: dict[str, Any]
    answer: dict[str, Any]


class Description(NamedTuple):
    """What the service says of an operation.

    Attributes:
        summary: one line.
        answer: the model of the answer; None: it is text.
        codes: the error codes that it may give.
        asks: the model of a POST's or PUT's body, or of the query of another request; None: it has none.
        example: a request and its answer.
    """

    summary: str
    answer: type[BaseModel] | None
    codes: set[str]
    asks: type[BaseModel] | None = None
    example: Example | None = None


_OF_UNIONS = {"over_capacity"}
_OF_NO_ITEMS = {"bad_http", "head_too_large", "not_found", "method_not_allowed", "not_ready"} | _OF_UNIONS
_OF_ITEMS = set(ERROR_CODES) - _OF_NO_ITEMS
_OF_ALL = {"bad_host", "behind_proxy", "foreign_origin", "internal_error"}
_OF_BODIES = {"bad_json", "body_too_large", "too_slow", "unsupported_encoding"}
_OF_TOKENS = {"unauthorized", "forbidden", "too_many_wrong_tokens"}
_OF_READS = _OF_ALL | _OF_TOKENS | {"server_full", "server_unavailable", "archive_unavailable"}
_OF_LISTS = _OF_READS | {"bad_request"}
_OF_STATES = _OF_LISTS | {
    "filter_not_found",
    "config_mismatch",
    "restoring",
    "slice_lost",
    "too_many_requests",
    "unsupported",
}
_OF_HOLDERS = _OF_STATES | _OF_BODIES
_OF_ACTIONS = _OF_HOLDERS | {"answer_lost", "refused"}

# fmt: off
_CREATE = Description(
    "Make a filter; if it exists with these settings, do nothing (for tokens with access admin)", responses.OfOne,
    _OF_ACTIONS, FilterSettings,
    Example({"capacity": 1_000_000, "retention": "ring", "slices": 4, "period": "1w"}, _OF | {"uid": _UID}),
)
_DROP = Description(
    "Remove a filter with all its items, and its archive (admin)", responses.Dropped, _OF_ACTIONS, bodies.DropRequest,
    Example({"confirm": FILTER, "uid": _UID}, _OF | {"dropped": True}),
)

#: The descriptions of ``http_api.OPERATIONS``.
DESCRIPTIONS: Mapping[str, Description] = {
    "insert": Description(
        "Insert items; new ones have age 0", responses.Inserted, _OF_ITEMS, bodies.ItemsRequest,
        Example({"items": [_B, _C]}, _OF | {"ages": [1, 0], "new": [False, True], "total": 2, "unique": 1}),
    ),
    "contains": Description(
        "Look items up; nothing is inserted", responses.Found, _OF_ITEMS, bodies.ItemsRequest,
        Example({"items": [_C, _D]}, _OF | {"ages": [1, 0], "total": 2, "seen": 1}),
    ),
    "forget": Description(
        "Make items new again", responses.WasThere, _OF_ITEMS, bodies.ItemsRequest,
        Example({"items": [_C]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    ),
    "remove": Description(
        "Take items out again (layout counting only)", responses.WasThere, _OF_ITEMS, bodies.ItemsRequest,
        Example({"items": [_A]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    ),
    "claim": Description(
        "Claim items that are new and not in flight", responses.Claimed, _OF_ITEMS, bodies.ClaimRequest,
        Example({"items": [_D, _E], "holder": _HOLDER},
                _OF | {"ages": [0, 0], "claimed": [True, True], "counts": [], "total": 2, "unique": 2}),
    ),
    "commit": Description(
        "Make items final, whoever has them in flight", responses.Committed, _OF_ITEMS, bodies.CommitRequest,
        Example({"items": [_D], "holder": _HOLDER}, _OF | {"ages": [0], "committed": [True], "total": 1, "unique": 1}),
    ),
    "release": Description(
        "Give items back, to be offered again by reclaim", responses.Released, _OF_ITEMS, bodies.ReleaseRequest,
        Example({"items": [_E], "holder": _HOLDER, "failed": True}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    ),
    "reclaim": Description(
        "Claim what dead holders had, and what was released and is due", responses.Reclaimed, _OF_ACTIONS,
        bodies.ReclaimRequest,
        Example({"holder": _HOLDER, "limit": 10},
                _OF | {"claims": [{"item": _E, "payload": _E, "failures": 1, "lapses": 0}], "total": 1,
                       "outstanding": {"others": 3, "due": 42.5}}),
    ),
    "beat": Description(
        "Keep what a holder has in flight", responses.InFlight, _OF_HOLDERS, bodies.BeatRequest,
        Example({"holder": _HOLDER}, _OF | {"in_flight": 1}),
    ),
    "retry_dead_letters": Description(
        "Offer the dead letters once more, some of it or all", responses.Offered, _OF_ITEMS, bodies.RetryRequest,
        Example({"items": [_E]}, _OF | {"was_there": [False], "total": 1, "offered": 0}),
    ),
    "in_flight": Description(
        "List what is in flight, with its holders and counts", responses.ListInFlight, _OF_STATES, bodies.ClaimsQuery,
    ),
    "dead_letters": Description(
        "List the dead letters, the latest first", responses.ListDeadLetters, _OF_STATES, bodies.ClaimsQuery,
    ),
    "create": _CREATE,
    "rotate": Description(
        "Close the newest slice and begin the next (admin)", responses.Rotated, _OF_ACTIONS, bodies.RotateRequest,
        Example({"expected_epoch": 0}, _OF | {"epoch": 1, "rotated": True, "shards": 1, "problems": []}),
    ),
    "checkpoint": Description(
        "Write the changes since the last checkpoint to the archive (admin)", responses.Checkpointed, _OF_ACTIONS,
        bodies.CheckpointRequest,
        Example({"full": False}, _OF | {"number": 1, "begun": 1795300000.0, "shards": 1, "size": 1234}),
    ),
    "restore": Description(
        "Bring back from the archive the parts that Redis lacks (admin)", responses.OfOne, _OF_ACTIONS,
        bodies.RestoreRequest, Example({}, _OF | {"uid": _UID}),
    ),
    "acknowledge": Description(
        "Note that what restores may have lost is known (admin)", responses.Acknowledged, _OF_ACTIONS,
        bodies.AcknowledgeRequest, Example({}, _OF | {"shards": 0}),
    ),
    "union": Description(
        "Insert all items of other filters of equal geometry, hash and seed (admin)", responses.United,
        _OF_ACTIONS | _OF_UNIONS, bodies.UnionRequest, Example({"sources": ["old"]}, _OF | {"added": 0}),
    ),
    "drop": _DROP,
    "put_filter": _CREATE._replace(
        summary="Make a filter; if it exists with these settings, do nothing; with others, refuse"
    ),
    "delete_filter": _DROP._replace(codes=_OF_ACTIONS - _OF_BODIES),
    "list": Description("List the filters that the token may use", responses.Filters, _OF_LISTS, bodies.PageQuery),
    "info": Description("Tell the state of a filter: fill, error rate, slices, times", responses.Info, _OF_STATES),
    "detail": Description(
        "Tell the state of a filter, its problems, and what is plotted of the last day", responses.Detail, _OF_STATES,
    ),
    "overview": Description(
        "Tell the state and the problems of all filters of the token, of Redis, and of the service", responses.Overview,
        _OF_LISTS, bodies.PageQuery,
    ),
    "healthz": Description("Say that the process runs", responses.Status, _OF_ALL),
    "readyz": Description(
        "Say whether Redis and the filters of the settings answer", responses.Status,
        _OF_ALL | {"server_unavailable", "not_ready"},
    ),
    "metrics": Description("Metrics for Prometheus", None, _OF_READS),
    "access": Description(
        "Tell when each token was last used, and which addresses were refused", responses.Access, _OF_ALL | _OF_TOKENS,
    ),
    "unique": Description(
        "Insert items, and answer the new ones", responses.Unique, _OF_ITEMS - {"not_for_this_filter"},
        bodies.OlderItems,
        Example(_OLDER | {"URI_list": [_A, _B]}, _OLDER | {"URI_list_unique": [_A, _B], "total": 2, "unique": 2}),
    ),
}
# fmt: on
