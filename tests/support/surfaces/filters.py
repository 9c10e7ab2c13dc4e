"""Settings of filters of each layout and retention, for promises that hold in all of them."""

from __future__ import annotations

from typing import Any

import pytest

_PERIODS = {"slices": 3, "period": "1d"}

#: Those whose slices turn, by name.
TURNING: dict[str, dict[str, Any]] = {
    "ring": {"retention": "ring", **_PERIODS},
    "ring, written to all": {"retention": "ring", "write": "all", **_PERIODS},
    "ring, last seen": {"retention": "ring", "expire_after": "last-seen", **_PERIODS},
    "rolling": {"retention": "rolling", **_PERIODS},
    "rolling, last seen": {"retention": "rolling", "expire_after": "last-seen", **_PERIODS},
}

FILTERS = {
    "blocked": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "one shard": {"shards": 1},
    "twenty shards": {"shards": 20},
    "growing": {"retention": "growing", "capacity": 50},
    **TURNING,
}

_RARE = {"rolling, last seen"}


def each(filters: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    """Run a test with each of some settings; a rare combination is slow."""
    cases = [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] if name in _RARE else [])
        for name, settings in filters.items()
    ]
    return pytest.mark.parametrize("settings", cases)
