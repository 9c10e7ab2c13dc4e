"""The state of Redis and of the service, for the page."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from urifilter_redis._version import __version__
from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.flows.doctor import findings_of, gather
from urifilter_redis.flows.probe import name_of
from urifilter_redis.service import BEGAN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.service.filters import Filters

__all__ = ["Status"]

#: Seconds for which the examination of Redis is used again.
AGE = 60.0


class Status:
    """Examines Redis as the doctor does, once for all who look at it."""

    def __init__(self, filters: Filters, workers: int) -> None:
        """Examine nothing yet; ``workers`` is the number of this service's workers."""
        self._filters, self._workers = filters, workers
        self._began = float(os.environ.get(BEGAN_VARIABLE) or time.time())
        self._found: dict[str, Any] | None = None
        self._until = 0.0
        self._one = asyncio.Lock()

    def service(self) -> dict[str, Any]:
        """Return the state of the service: version, workers, and the seconds since it started."""
        return {"version": __version__, "workers": self._workers, "uptime": time.time() - self._began}

    async def redis(self) -> dict[str, Any]:
        """Return the masters' versions, memory and uptime, and the doctor's findings.

        Raises:
            ServerUnavailable: Redis is away.
        """
        async with self._one:
            if self._found is None or time.monotonic() > self._until:
                self._found = await self._filters.of_server(_examine)
                self._until = time.monotonic() + AGE
            return self._found


def _examine(session: Session) -> Flow[dict[str, Any]]:
    try:
        facts = yield from gather(session)
    except ServerUnavailable as error:
        if "NOPERM" not in str(error):
            raise
        text = "this user may not run INFO, so nothing is known of Redis"
        return {"masters": [], "findings": [{"level": "note", "subject": "rights", "text": text}]}
    return {
        "masters": [_master(node, each.info) for node, each in facts.items()],
        "findings": [asdict(each) for each in findings_of(session, facts)],
    }


def _master(node: str, info: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": node,
        "version": name_of(info),
        "memory": int(info.get("used_memory", 0)),
        "limit": int(info.get("maxmemory", 0)) or None,
        "uptime": int(info.get("uptime_in_seconds", 0)),
        "clients": int(info.get("connected_clients", 0)),
        "persistence": "append-only" if info.get("aof_enabled") == "1" else "snapshots or none",
    }
