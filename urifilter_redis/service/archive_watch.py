"""The service's view of the archive: an archive that is away is asked again until it is back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from urifilter_redis.archive.maintenance import names as registered_names
from urifilter_redis.engine.driver import drive_async
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from urifilter_redis.engine.backend import Backend
    from urifilter_redis.transport.connections import SharedConnector

__all__ = ["ArchiveWatch", "is_away"]

log = logging.getLogger("urifilter_redis.service")

#: Seconds between two questions to an archive that is away.
PAUSE = 5.0


def is_away(error: Exception) -> bool:
    """Whether an archive failed or cannot be reached; a damaged archive is not away."""
    return isinstance(error, ArchiveError) and not isinstance(error, ArchiveCorrupt)


class ArchiveWatch:
    """Asks an archive for the names of its filters, and notices when the archive is away and when it is back.

    Attributes:
        backend: the archive.
        away: the reason why the archive cannot be asked; empty if it can.
        answered: whether the archive answered the last question; False before its first answer.
    """

    def __init__(self, backend: Backend, connector: SharedConnector, again: Callable[[], Awaitable[bool]]) -> None:
        """Watch an archive.

        Args:
            backend: the archive.
            connector: sends the commands of an archive in Redis.
            again: tries once more to open the filters that missed the archive, and returns whether all could be opened.
        """
        self.backend, self.away, self.answered = backend, "", False
        self._connector, self._again = connector, again
        self._known: list[str] = []
        self._asking: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def names(self) -> list[str]:
        """Return the filters that the archive has; while it is away, those of its last answer."""
        if not self.away:
            self._asking = self._asking or asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)  # a waiting request may be cancelled
        return self._known

    def miss(self, error: ArchiveError) -> None:
        """Note that a filter missed the archive; ``again`` is called when the archive is back."""
        if type(error) is ArchiveError:
            self._note(str(error))
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    async def close(self) -> None:
        """Stop asking, and close the archive."""
        for task in filter(None, (self._asking, self._waiting)):
            task.cancel()
        await drive_async(self.backend.close(), self._connector)

    async def _ask(self) -> None:
        try:
            self._known = await drive_async(registered_names(self.backend), self._connector)
        except ArchiveError as error:
            self.miss(error)
            self._note(str(error))
        else:
            if self.away:
                log.warning("the archive is back")
            self.away, self.answered = "", True
        finally:
            self._asking = None

    def _note(self, away: str) -> None:
        if not self.away:
            log.warning("the archive cannot be asked, so filters are answered from Redis alone: %s", away)
        self.away, self.answered = away, False

    async def _wait(self) -> None:
        done = False
        while not done:
            await asyncio.sleep(PAUSE)
            await self._ask()
            done = not self.away and await self._again()
        self._waiting = None
