"""An example of each request with a body, and of its answer, for the description in OpenAPI.

A new service, asked in this order, answers so, and a test asks it: the uid, times, sizes, and the items that others
have in hand, differ each time. For ``union`` there is an empty filter ``old``. For ``remove`` the filter has the layout
counting, and no periods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["EXAMPLES", "FILTER", "Example"]

#: The name of the filter in all examples.
FILTER = "news"

_A, _B, _C, _D, _E = (f"https://example.com/{page}" for page in "abcde")
_HOLDER, _UID = "00112233aabbccdd", "5f0c1d2e3b4a5968"
_OF: dict[str, Any] = {"filter_typeid": FILTER}


class Example(NamedTuple):
    """A request's body, and the answer."""

    body: dict[str, Any]
    answer: dict[str, Any]


#: By operation.
EXAMPLES = {
    "create": Example({"capacity": 1_000_000, "retention": "ring", "slices": 4, "period": "1w"}, _OF | {"uid": _UID}),
    "unique": Example(_OF | {"URI_list": [_A, _B]}, _OF | {"URI_list_unique": [_A, _B], "total": 2, "unique": 2}),
    "insert": Example({"URI_list": [_B, _C]}, _OF | {"ages": [1, 0], "new": [False, True], "total": 2, "unique": 1}),
    "contains": Example({"URI_list": [_C, _D]}, _OF | {"ages": [1, 0], "total": 2, "seen": 1}),
    "forget": Example({"URI_list": [_C]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    "remove": Example({"URI_list": [_A]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    "claim": Example(
        {"URI_list": [_D, _E], "holder": _HOLDER},
        _OF | {"ages": [0, 0], "claimed": [True, True], "total": 2, "unique": 2},
    ),
    "commit": Example(
        {"URI_list": [_D], "holder": _HOLDER}, _OF | {"ages": [0], "committed": [True], "total": 1, "unique": 1}
    ),
    "release": Example(
        {"URI_list": [_E], "holder": _HOLDER, "failed": True}, _OF | {"was_there": [True], "total": 1, "seen": 1}
    ),
    "reclaim": Example(
        {"holder": _HOLDER, "limit": 10},
        _OF
        | {
            "claims": [{"item": _E, "payload": _E, "failures": 1, "lapses": 0}],
            "total": 1,
            "outstanding": {"others": 3, "due": 42.5},
        },
    ),
    "beat": Example({"holder": _HOLDER}, _OF | {"in_hand": 1}),
    "rotate": Example({"expected_epoch": 0}, _OF | {"epoch": 1, "rotated": True, "shards": 1, "problems": []}),
    "checkpoint": Example({"full": False}, _OF | {"number": 1, "begun": 1795300000.0, "shards": 1, "size": 1234}),
    "restore": Example({}, _OF | {"uid": _UID}),
    "union": Example({"sources": ["old"]}, _OF | {"added": 0}),
    "drop": Example({"confirm": FILTER, "uid": _UID}, _OF | {"dropped": True}),
}
