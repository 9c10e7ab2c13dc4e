"""Pending batches: their callers do not have the answers yet. So Ctrl-C or a cancelled task loses no answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from urifilter_redis.errors import UriFilterError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Owner", "Pending", "current_owner"]


class _Held(Protocol):
    @property
    def writes(self) -> bool: ...


B = TypeVar("B", bound=_Held)

log = logging.getLogger("urifilter_redis")

#: The task or thread that runs a call of the library.
Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread"

#: Most interrupted batches that are kept; the oldest go first.
KEPT = 10_000


class Pending(Generic[B]):
    """The batches that are pending: a batch comes in before it is sent, and leaves with its answers or its error."""

    def __init__(self) -> None:
        self._owners: dict[B, Owner | None] = {}  # None: the batch was interrupted

    def hold(self, batch: B) -> _Hold[B]:
        """Return a context manager for the block that sends a batch and returns the answers to the caller.

        The batch leaves when the block returns, or raises an error that has the batch. After any other end it counts as
        interrupted and stays; a batch that writes nothing leaves then, too.
        """
        return _Hold(self._owners, batch)

    def check_free(self, batch: B) -> None:
        """Raise ValueError if another thread or task is asking for the answers of a batch."""
        owner = self._owners.get(batch)
        if owner is not None and owner is not current_owner() and _runs(owner):
            raise ValueError("retry=: another thread or task is asking for these answers at this moment")

    def keep(self, batch: B) -> None:
        """Count a batch as interrupted, because no caller will get its error."""
        self._owners[batch] = None
        _limit(self._owners)

    def offer(self, batch: B) -> None:
        """Count a batch as interrupted, unless a caller asks for its answers at this moment."""
        self._owners.setdefault(batch, None)
        _limit(self._owners)

    def drop(self, batch: B) -> None:
        """Forget an interrupted batch whose answers no caller needs; leave one that a caller asks again."""
        if self._owners.get(batch, batch) is None:
            del self._owners[batch]

    def interrupted(self) -> list[B]:
        """Return the batches whose call of the library has ended, oldest first."""
        asking = current_owner()
        return [batch for batch, owner in list(self._owners.items()) if owner is asking or not _runs(owner)]


class _Hold(Generic[B]):
    """The context manager of ``Pending.hold``.

    Python looks for Ctrl-C at calls. ``del`` is followed by none, so the batch cannot leave before an interruption.
    """

    def __init__(self, owners: dict[B, Owner | None], batch: B) -> None:
        self._owners, self._batch = owners, batch

    def __enter__(self) -> None:
        owners, owner = self._owners, current_owner()
        owners[self._batch] = owner  # in one step, because a batch that is retried may be in already
        if len(owners) > KEPT:
            _limit(owners)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        told_of: object = error.batch if isinstance(error, UriFilterError) else None
        if kind is None or told_of is self._batch or not self._batch.writes:
            del self._owners[self._batch]
        else:
            self._owners[self._batch] = None


def _limit(owners: dict[B, Owner | None]) -> None:
    """Let the oldest interrupted batch go if there are too many, and say so."""
    if len(owners) > KEPT:
        oldest = next((batch for batch, owner in list(owners.items()) if owner is None), None)
        if oldest is not None:
            owners.pop(oldest, None)
            text = "%d interrupted calls are unresolved: the oldest is dropped, and its answers are lost"
            log.warning(f"{text}; pass what `unresolved` has as retry= before", KEPT)  # noqa: G004


def current_owner() -> Owner:
    """Return the task that runs, or else the thread."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - as get_running_loop, which raises in every blocking call
    task = None if loop is None else asyncio.current_task(loop)
    return task or threading.current_thread()


def _runs(owner: Owner | None) -> bool:
    if isinstance(owner, threading.Thread):
        return owner.is_alive()
    return owner is not None and not owner.done()
