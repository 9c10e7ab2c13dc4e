"""Everything that this library raises on purpose, in one tree.

::

    UriFilterError
    ├── FilterNotFound       no filter of that name
    ├── ConfigMismatch       it exists with other settings, or was dropped and created anew
    ├── SliceLost            a bitmap or the meta of a live filter is missing, or has another length
    ├── TooLarge             a filter that was not made: it takes more memory than is free, or much of it
    ├── FilterFull           growing: no further slice can be made
    ├── Restoring            the filter is being brought back from its archive
    ├── BadItem              an item that cannot be filtered
    ├── RotationConflict     another rotation came first
    ├── ServerUnavailable    the server is away, or refuses (OOM, MISCONF, READONLY, NOPERM, LOADING …)
    │   └── AnswerLost       … after something was sent that may have inserted
    ├── ArchiveError
    │   ├── ArchiveMissing
    │   └── ArchiveCorrupt
    └── FilterAPIError       what the SDK raises: an error_code of the service, and the HTTP status

No exception of redis-py or pymongo leaves the library. Wrong arguments of a call (a negative capacity, an
unknown layout) are ``ValueError`` and ``TypeError`` as everywhere in Python.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

__all__ = [
    "AnswerLost",
    "ArchiveCorrupt",
    "ArchiveError",
    "ArchiveMissing",
    "BadItem",
    "ConfigMismatch",
    "FilterAPIError",
    "FilterFull",
    "FilterNotFound",
    "Restoring",
    "RotationConflict",
    "ServerUnavailable",
    "SliceLost",
    "TooLarge",
    "UriFilterError",
    "call_to_resume",
]

B = TypeVar("B")
E = TypeVar("E", bound="UriFilterError")


class Answering(Protocol):
    """A call about items, and how far it has come."""

    @property
    def answers(self) -> Sequence[int | None]:
        """An answer for each item; None for an item without one."""
        ...

    @property
    def items(self) -> Sequence[object]:
        """The items, in the caller's order."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """As much of a call as goes through pickle: it cannot be gone on with, because its call ids stay where they are."""

    answers: list[int | None]
    items: list[object]


class UriFilterError(Exception):
    """The root of the tree.

    An error goes through pickle with all its attributes, but not as ``retry=``: only the object that raised it, in its
    own process, can ask again for the same answers. A copy (``copy.copy``, ``copy.deepcopy``) is as good as the error.

    Attributes:
        answers: the answers that did arrive before the error, one per item of the call, None for each item
            whose answer did not; None when the call has no answers or nothing was sent.
        items: the items of that call, in the caller's order; None likewise.
    """

    #: What the call had done when it failed; ``retry=error`` goes on from it.
    batch: Answering | None = None

    @property
    def answers(self) -> list[int | None] | None:
        """The ages that arrived, None for each item without one; None when nothing was sent."""
        return None if self.batch is None else list(self.batch.answers)

    @property
    def items(self) -> Sequence[object] | None:
        """The items that the call was about, in the caller's order."""
        return None if self.batch is None else self.batch.items

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if self.batch is not None:
            state["batch"] = Past(list(self.batch.answers), list(map(_plain, self.batch.items)))
        return _made_again, (type(self), self.args), state

    def __copy__(self) -> Self:
        made = _made_again(type(self), self.args)
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()  # whose call is one, and has one set of call ids


def _made_again(kind: type[E], args: tuple[object, ...]) -> E:
    """Make an error without its constructor, which takes more than the message."""
    return kind.__new__(kind, *args)


def _plain(item: object) -> object:
    """Return an item that goes through pickle, equal to one that a caller gave: of a parser's own kind of str, say."""
    if isinstance(item, str):
        return str.__str__(item)
    if isinstance(item, bytes):
        return bytes(memoryview(item))
    try:
        pickle.dumps(item)
    except Exception:  # noqa: BLE001 - whatever an object of the caller's raises; it was JSON when it was filtered
        return json.loads(json.dumps(item))
    return item


def call_to_resume(retry: object, kind: type[B], command: str) -> B:
    """Return the call that ``retry=`` is about.

    Raises:
        ValueError: it is about none of this kind, or went through pickle.
    """
    batch, why = getattr(retry, "batch", None), f"not {retry!r}"
    if isinstance(batch, kind):
        return batch
    if isinstance(batch, Past):
        why = "in the same process: this error went through pickle (its answers are what had arrived)"
    raise ValueError(f"retry= takes what {command} raised for these same items, {why}")


class FilterNotFound(UriFilterError):
    """There is no filter of that name on this server.

    One that was open and has an archive may have been lost with its server's data: the message names the archive,
    from which opening it anew restores it.
    """


class ConfigMismatch(UriFilterError):
    """The filter on the server is not the one that the caller means, by its settings, or by the archive named.

    Attributes:
        differences: for each setting that differs, (what was asked for, what the filter has).
    """

    def __init__(self, message: str, differences: Mapping[str, tuple[object, object]] | None = None) -> None:
        super().__init__(message)
        self.differences = dict(differences or {})


class SliceLost(UriFilterError):
    """A bitmap or the ``meta`` of a live filter was deleted, evicted or overwritten."""


class TooLarge(UriFilterError):
    """A filter that was not made: it takes more than the server has free, or more than half of that.

    Attributes:
        fits: it is the latter, and ``large=True`` makes it.
    """

    def __init__(self, message: str, *, fits: bool) -> None:
        super().__init__(message)
        self.fits = fits


class FilterFull(UriFilterError):
    """A growing filter reached its last possible slice."""


class Restoring(UriFilterError):
    """The filter is being restored from its archive; ask again later."""


class BadItem(UriFilterError):
    """Items that cannot be filtered; nothing of the call was sent.

    Attributes:
        indices: the positions of all bad items in the call, ascending.
    """

    def __init__(self, message: str, indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indices = list(indices)


class RotationConflict(UriFilterError):
    """Another process rotated first."""


class ServerUnavailable(UriFilterError):
    """The server cannot be reached, or answers that it will not serve."""


class AnswerLost(ServerUnavailable):
    """The retries ran out after something was sent that may have inserted.

    Pass the error as ``retry=`` to the same method with the same items: it asks again only for what has no
    answer yet, under the same call ids, so that "new" is still answered exactly once.
    """


class ArchiveError(UriFilterError):
    """The archive failed."""


class ArchiveMissing(ArchiveError):
    """The archive, or something that must be in it, is not there; or it was not named, and the filter has one."""


class ArchiveCorrupt(ArchiveError):
    """Something in the archive is not what its manifest says."""


class FilterAPIError(UriFilterError):
    """The HTTP service refused, failed, or could not be reached.

    Attributes:
        error_code: the service's word for it (README, "Errors of the service"), or what the SDK itself found:
            ``answer_lost`` (it may have inserted: pass the error as ``retry=``), ``unreachable``, ``bad_item``,
            ``bad_response``.
        status: of HTTP; None when there was no response.
        retry_after: seconds after which the service wants to be asked again; 0 if it did not say.
        indices: of the bad items, when the error is about some.
    """

    def __init__(
        self,
        message: str,
        *,
        error_code: str,
        status: int | None = None,
        retry_after: float = 0.0,
        indices: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.status = status
        self.retry_after = retry_after
        self.indices = list(indices)
