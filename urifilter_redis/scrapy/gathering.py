"""Batches of a page's output: the objects that a callback or ``start()`` yields, until it is time to ask about them."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from scrapy import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["MOST", "READING", "WAIT", "Gathering"]

#: The most objects of a batch.
MOST = 500

#: Seconds from the first request of a batch to its end.
WAIT = 0.05

#: The gathering whose source makes the present call; None outside of sources.
READING: ContextVar[Gathering | None] = ContextVar("READING", default=None)


class Gathering:
    """Reads a source in a task of its own, so that a batch ends in time even if the source yields nothing more."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._found: list[Any] = []
        self._due: asyncio.TimerHandle | None = None
        self._is_due = self._ended = False
        self._error: Exception | None = None
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._task = asyncio.ensure_future(self._read(source))

    async def batch(self) -> list[Any]:
        """Return the objects of the next batch, in their order; none if the source has ended.

        Raises:
            Exception: the source's own, once all that it yielded before is returned.
        """
        while not (self._ended or self._is_due or len(self._found) >= MOST):
            if self._found and self._due is None:
                break  # these are items, and nobody has to be asked about them
            self._changed.clear()
            await self._changed.wait()
        if self._due is not None:
            self._due.cancel()
        found, self._found = self._found, []
        self._due, self._is_due = None, False
        self._room.set()
        if not found and self._error is not None:
            raise self._error
        return found

    def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        if self._due is not None:
            self._due.cancel()

    async def _read(self, source: AsyncIterator[Any]) -> None:
        READING.set(self)
        try:
            async for each in source:
                self._found.append(each)
                if self._due is None and isinstance(each, Request):
                    self._due = asyncio.get_running_loop().call_later(WAIT, self._be_due)
                self._changed.set()
                if len(self._found) >= MOST:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # noqa: BLE001 - it is raised where Scrapy waits for it
            self._error = error
        finally:
            self._ended = True
            self._changed.set()

    def _be_due(self) -> None:
        self._is_due = True
        self._changed.set()
