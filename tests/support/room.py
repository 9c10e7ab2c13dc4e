"""Slices of layout redisbloom that have room for so many more items."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis

    from urifilter_redis import UriFilter


def leave_room(admin: redis.Redis, news: UriFilter, room: int, name: str = "today") -> None:
    """Put another filter of the module in the place of a segment: full but for so many items, and it does not grow."""
    today = _reserved(admin, news, name, "NONSCALING")
    admin.execute_command("BF.MADD", today, *range(10**9, 10**9 + news.config.units - room))
    assert admin.execute_command("BF.INFO", today, "ITEMS") == [news.config.units - room]


def make_room(admin: redis.Redis, news: UriFilter, name: str = "today") -> None:
    """Put an empty one in its place."""
    _reserved(admin, news, name)


def _reserved(admin: redis.Redis, news: UriFilter, name: str, *options: str) -> str:
    today = news._session.keys.shard(0).slice(name)
    admin.unlink(today)
    admin.execute_command("BF.RESERVE", today, 1e-9, news.config.units, *options)
    return today
