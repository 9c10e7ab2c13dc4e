"""Calls whose answers are not with their caller yet, so that Ctrl-C or a cancelled task loses none."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from urifilter_redis.errors import UriFilterError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Pending"]


class _Held(Protocol):
    @property
    def writes(self) -> bool: ...


B = TypeVar("B", bound=_Held)

#: What runs a call: a task, or a thread.
Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread"

#: Interrupted calls that are kept; the oldest go first.
KEPT = 10_000


class Pending(Generic[B]):
    """The batches of calls, from before anything of one is sent until its answers, or its error, are the caller's."""

    def __init__(self) -> None:
        self._owners: dict[B, Owner | None] = {}  # None: the call was interrupted

    def hold(self, batch: B) -> _Hold[B]:
        """Return a context manager for the block that sends a batch and ends by returning what the caller gets.

        A batch leaves when the block returns or raises an error that has the batch; otherwise it was interrupted. One
        that writes nothing is not kept then.
        """
        return _Hold(self._owners, batch)

    def keep(self, batch: B) -> None:
        """Count a batch as interrupted: its error reaches nobody."""
        self._owners[batch] = None

    def interrupted(self) -> list[B]:
        """Return the batches that no call works on any more, oldest first."""
        asking = _owner()
        return [batch for batch, owner in list(self._owners.items()) if owner is asking or not _runs(owner)]


class _Hold(Generic[B]):
    """See ``Pending.hold``. Python looks for Ctrl-C at calls, so none comes after ``del`` and before the return."""

    def __init__(self, owners: dict[B, Owner | None], batch: B) -> None:
        self._owners, self._batch = owners, batch

    def __enter__(self) -> None:
        owners, owner = self._owners, _owner()
        owners[self._batch] = owner  # in one step: that of a retry is there already
        if len(owners) > KEPT:
            oldest = next((batch for batch, owner in list(owners.items()) if owner is None), None)
            owners.pop(oldest, None)  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        told_of: object = error.batch if isinstance(error, UriFilterError) else None
        if kind is None or told_of is self._batch or not self._batch.writes:
            del self._owners[self._batch]
        else:
            self._owners[self._batch] = None


def _owner() -> Owner:
    """Return the task that runs, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop
        task = None
    return task or threading.current_thread()


def _runs(owner: Owner | None) -> bool:
    if isinstance(owner, threading.Thread):
        return owner.is_alive()
    return owner is not None and not owner.done()
