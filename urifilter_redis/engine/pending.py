"""Pending batches: their callers do not have the answers yet. So Ctrl-C or a cancelled task loses no answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from urifilter_redis.errors import UriFilterError


class _Held(Protocol):
    @property
    def writes(self) -> bool: ...


B = TypeVar("B", bound=_Held)
T = TypeVar("T")

log = logging.getLogger("urifilter_redis")

#: The task or thread that runs a call of the library.
Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread"

#: Most interrupted batches that are kept; the oldest go first.
KEPT = 10_000


class Pending(Generic[B]):
    """The batches that are pending: a batch comes in before it is sent, and leaves with its answers or its error."""

    def __init__(self) -> None:
        self._owners: dict[B, Owner | None] = {}  # None: the batch was interrupted

    def begin(self, batch: B) -> None:
        """Let a batch in.

        The call that sends it, and returns the answers to the caller, has this form::

        pending.begin(batch)
        try:
            return pending.answered(batch, answers_of(batch))
        except BaseException as error:
            pending.failed(batch, error)
            raise
        """
        owners, owner = self._owners, current_owner()
        owners[batch] = owner  # in one step, because a batch that is retried may be in already
        if len(owners) > KEPT:
            _limit(owners)

    def answered(self, batch: B, answers: T) -> T:
        """Let a batch go, and return its answers, which the caller returns at once.

        Python looks for signals as a function begins, and behind calls of C. Neither comes between the removal and the
        caller's own caller: a ``with`` block has a place for them behind its end, at which the answers are lost.
        """
        del self._owners[batch]
        return answers

    def failed(self, batch: B, error: BaseException) -> None:
        """Let a batch go whose caller gets its error; after any other one it counts as interrupted, if it writes."""
        told_of: object = error.batch if isinstance(error, UriFilterError) else None
        if told_of is batch or not batch.writes:
            self._owners.pop(batch, None)
        else:
            self._owners[batch] = None

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
