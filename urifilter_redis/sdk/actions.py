"""The flows of actions on whole filters, which both clients run; an action may be repeated after a lost reply."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from urifilter_redis.flows.checkpoint import Written
from urifilter_redis.flows.rotation import Rotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import FilterSettings
    from urifilter_redis.sdk.api import API

__all__ = ["checkpoint", "create", "drop", "restore", "rotate", "union"]


def create(api: API, name: str, settings: FilterSettings, *, large: bool) -> Flow[str]:
    """Make a filter; return its uid."""
    content = {
        each: value.total_seconds() if isinstance(value, timedelta) else value for each, value in settings.items()
    }
    return (yield from api.act(name, "create", content | {"large": large}))["uid"]  # type: ignore[no-any-return]


def rotate(api: API, name: str, expected_epoch: int | None, *, dry_run: bool) -> Flow[Rotation]:
    """Rotate a filter, from the epoch that it is in if none is expected."""
    told: dict[str, Any] = {}
    if expected_epoch is None:
        told = yield from api.act(name, "rotate", {"dry_run": True})
        expected_epoch = told["epoch"] - 1
    if not (told and dry_run):
        told = yield from api.act(name, "rotate", {"expected_epoch": expected_epoch, "dry_run": dry_run})
    return Rotation(told["epoch"], told["shards"], tuple(told["problems"]))


def checkpoint(api: API, name: str, *, full: bool) -> Flow[Written]:
    """Write a checkpoint."""
    told = yield from api.act(name, "checkpoint", {"full": full})
    return Written(told["number"], told["begun"], told["shards"], told["size"])


def restore(api: API, name: str) -> Flow[str]:
    """Restore a filter; return its uid."""
    return (yield from api.act(name, "restore", {}))["uid"]  # type: ignore[no-any-return]


def union(api: API, name: str, sources: Sequence[str], *, over_capacity: bool) -> Flow[int]:
    """Insert all items of other filters; return about how many were added."""
    content = {"sources": list(sources), "over_capacity": over_capacity}
    return (yield from api.act(name, "union", content))["added"]  # type: ignore[no-any-return]


def drop(api: API, name: str, uid: str, *, keep_archive: bool) -> Flow[bool]:
    """Remove the filter with this uid; return whether there was one."""
    content = {"confirm": name, "uid": uid, "keep_archive": keep_archive}
    return (yield from api.act(name, "drop", content))["dropped"]  # type: ignore[no-any-return]
