"""The machine and the versions of a run, which belong to its figures."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import redis

from bench.peers import Peer


def processor() -> str:
    """Return the processor's model, or its kind where the system does not name the model."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def machine() -> dict[str, object]:
    """Return what the figures depend on: the processor, the system, Python, and how busy the machine is."""
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "processors": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def versions(client: redis.Redis, peers: Mapping[str, Peer]) -> dict[str, str]:
    """Return the version of the server, and of each peer."""
    said = client.info("server")
    server = f"{said.get('server_name', 'redis')} {said.get('valkey_version', said['redis_version'])}"
    return {"server": server} | {name: peer.version() for name, peer in peers.items()}
