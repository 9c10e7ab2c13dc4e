"""Descriptions of filters that were never made, as ``info()`` would return them."""

from __future__ import annotations

from dataclasses import asdict

from support.by_hand import config_of
from urifilter_redis.bloom.retention import error_rate_at_capacity
from urifilter_redis.flows import info
from urifilter_redis.flows.info import FilterInfo, SliceInfo
from urifilter_redis.protocol.config import FORMAT

NOW = 1_700_000_000.0
DAY = 86_400.0


def slice_of(inserted: int = 0, capacity: int = 1000, **more) -> SliceInfo:
    made = {
        "name": "today",
        "opened": NOW,
        "closed": None,
        "inserted": inserted,
        "capacity": capacity,
        "fill": 0.1,
        "error_share": 1e-4,
        "error_rate_now": 1e-6,
        "over_capacity": inserted > capacity,
        "size": 100,
    }
    return SliceInfo(**(made | more))


def info_of(*slices: SliceInfo, settings: dict | None = None, archive: str | None = None, **more) -> FilterInfo:
    """Return the description of a filter with these live slices, newest first."""
    config = config_of(archive, **(settings or {}))
    live = slices or (slice_of(),)
    total = live[-1].inserted if config.write == "all" else sum(each.inserted for each in live)
    made = {
        **{name: value for name, value in asdict(config).items() if name not in info._NOT_SHOWN},
        "name": "news",
        "format": FORMAT,
        "segment_bytes": config.bytes,
        "created": NOW,
        "phase": "idle",
        "checkpointed": None,
        "epoch": len(live) - 1,
        "next_rotation": NOW + DAY if config.period else None,
        "inserted": total,
        "forgotten": 0,
        "fill": 0.1,
        "error_rate_now": 1e-6,
        "error_rate_at_capacity": error_rate_at_capacity(config),
        "over_capacity": any(each.over_capacity for each in live),
        "memory": 1000,
        "archived": 0,
        "live_slices": live,
        "claims": None,
        "near_cache": None,
    }
    return FilterInfo(**(made | more))
