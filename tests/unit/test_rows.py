"""The figures of a filter: those that info, the rows of the overview and the gauges share, and those that one lacks."""

from __future__ import annotations

from dataclasses import fields

from urifilter_redis.flows.info import FilterInfo
from urifilter_redis.service import dashboard, metrics
from urifilter_redis.service.responses import Row

OF_INFO = {each.name for each in fields(FilterInfo)}
OF_ROWS = set(Row.model_fields)

#: The attributes of ``info`` that some gauge is made of.
OF_GAUGES = OF_INFO & {name for *_, value_of in metrics._GAUGES for name in value_of.__code__.co_names}


def test_what_rows_leave_out():
    """A field of ``info`` is in the rows, too, unless it is named here."""
    settings = {"uid", "format", "segments", "k", "segment_bytes", "normalize", "rules", "hash", "created"}
    told_otherwise = {"inserted", "over_capacity", "loss"}  # as items, full, and problems
    seldom_asked = {"rotated_in", "forgotten", "error_rate_at_capacity", "archived", "near_cache", "period_capacity"}
    assert settings | told_otherwise | seldom_asked == OF_INFO - OF_ROWS


def test_what_rows_have_of_their_own():
    """They have the rest as ``info`` has it."""
    own = {"items", "full", "full_in", "speed", "speed_in_hour", "problems"}
    assert own == OF_ROWS - OF_INFO
    assert OF_ROWS - own - dashboard.OTHERWISE == set(dashboard._FIGURES)


def test_what_gauges_leave_out():
    """Rows and gauges have the same figures but for these: words, which no gauge has, and what is seldom asked."""
    words = {"retention", "layout", "write", "expire_after", "name"}
    assert words | {"slices"} == OF_ROWS & OF_INFO - OF_GAUGES
    assert {"inserted", "over_capacity", "loss"} == OF_GAUGES - OF_ROWS
