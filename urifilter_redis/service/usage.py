"""When tokens were last used, and how often addresses were refused, over all workers.

Each worker notes both in memory. Once a second it adds its notes to a file that all workers share.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from urifilter_redis.service import FOLDER_VARIABLE
from urifilter_redis.service.tokens import Token

#: Addresses, and names of tokens, that are remembered: those that were noted last.
MOST_ADDRESSES, MOST_NAMES = 256, 10_000

#: Seconds until a worker's notes are with the others'.
PAUSE = 1.0

_FILE = "usage.json"

T = TypeVar("T")


class Refused(NamedTuple):
    """The number of refusals of an address, and the time of the last one."""

    times: int
    last: float


@dataclass
class Used:
    """The use of a service; times are in seconds since 1970."""

    tokens: dict[str, float] = field(default_factory=dict)  # by name, when each token was last used
    refused: dict[str, Refused] = field(default_factory=dict)  # by address

    def with_more(self, more: Used) -> Used:
        """Return both together, without the oldest if that is too much."""
        tokens = self.tokens | {name: max(last, self.tokens.get(name, 0.0)) for name, last in more.tokens.items()}
        refused = dict(self.refused)
        for address, (times, last) in more.refused.items():
            before = refused.get(address, Refused(0, 0.0))
            refused[address] = Refused(before.times + times, max(before.last, last))
        return Used(
            _newest(tokens, MOST_NAMES, lambda last: last), _newest(refused, MOST_ADDRESSES, lambda each: each.last)
        )


class Usage:
    """The notes of one worker; without the folder of all workers there is one, and nothing is written."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._kept, self._own = folder, Used(), Used()

    @classmethod
    def of_service(cls) -> Usage:
        """Return the notes of a worker of this service."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None)

    def use(self, token: str) -> None:
        """Note that the token of a name was used."""
        self._own.tokens[token] = time.time()

    def refuse(self, address: str) -> None:
        """Note that a request from an address was refused."""
        own = self._own.refused
        before = own.pop(address, Refused(0, 0.0))
        own[address] = Refused(before.times + 1, time.time())
        if len(own) > MOST_ADDRESSES:
            del own[next(iter(own))]

    def told(self) -> Used:
        """Return what this worker has noted, and what the others have shared."""
        return self._shared().with_more(self._own)

    def answer(self, tokens: Iterable[Token]) -> dict[str, Any]:
        """Return what was noted, in the form of ``responses.Access``; ``tokens``: those that there are."""
        used = self.told()
        latest = sorted(used.refused.items(), key=lambda each: -each[1].last)
        return {
            "now": time.time(),
            "tokens": [
                {
                    "name": each.name,
                    "filters": each.filters,
                    "access": each.access,
                    "last_used": used.tokens.get(each.name),
                }
                for each in tokens
            ],
            "refusals": [{"address": address, "count": times, "last": last} for address, (times, last) in latest],
        }

    def share(self) -> None:
        """Add the notes to those of all workers; if another worker is about to, or the disk is full, they wait."""
        if not (self._own.tokens or self._own.refused):
            return
        with contextlib.suppress(OSError):
            if self._folder is None:
                self._kept = self.told()
            else:
                self._write(self._folder)
            self._own = Used()

    async def keep_sharing(self) -> None:
        """Share once a second; until it is cancelled."""
        while True:
            await asyncio.sleep(PAUSE)
            self.share()

    def _write(self, folder: Path) -> None:
        with (folder / f"{_FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part = folder / f"{_FILE}.part"
            part.write_text(json.dumps(vars(self.told())))
            part.replace(folder / _FILE)

    def _shared(self) -> Used:
        if self._folder is None:
            return self._kept
        try:
            found = json.loads((self._folder / _FILE).read_text())
        except FileNotFoundError:
            return Used()
        return Used(found["tokens"], {address: Refused(*each) for address, each in found["refused"].items()})


def _newest(values: Mapping[str, T], most: int, time_of: Callable[[T], float]) -> dict[str, T]:
    if len(values) <= most:
        return dict(values)
    return dict(sorted(values.items(), key=lambda each: time_of(each[1]))[-most:])
