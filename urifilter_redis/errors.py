"""The exceptions of this library, in one tree.

::

    UriFilterError
    ├── FilterNotFound       the server has no filter of that name
    ├── ConfigMismatch       the filter has other settings, or was dropped and created anew
    ├── SliceLost            a bitmap or the meta of a live filter is missing, or has another length
    ├── TooLarge             the filter was not made: it needs more memory than is free, or leaves too little
    ├── FilterFull           growing: no further slice can be made
    ├── OverCapacity         nothing was merged: the result would hold more than the filter is made for
    ├── Restoring            the filter is being restored from its archive
    ├── BadItem              an item cannot be filtered
    ├── RotationConflict     another process rotated first
    ├── Unsupported          the server will never do this: it lacks commands, or is of another kind
    ├── ServerUnavailable    the server is away, or refuses (MISCONF, READONLY, NOPERM, LOADING …)
    │   ├── ServerFull       … because its memory is full
    │   └── AnswerLost       … and a call that was sent may have inserted
    ├── ArchiveError         the archive failed
    │   ├── ArchiveMissing   the archive, or a part of it, is missing or was not named
    │   └── ArchiveCorrupt   a part of the archive is damaged
    └── FilterAPIError       the SDK's error: it has the service's error_code and the HTTP status

No exception of redis-py or pymongo leaves the library. Wrong arguments of a call (a negative capacity, an
unknown layout) raise ``ValueError`` or ``TypeError``, as everywhere in Python.

In the examples ``UriFilter`` and ``errors`` are imported from ``urifilter_redis``, ``news`` is an open filter, and
``uris`` is a list of URIs.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

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
    "OverCapacity",
    "Restoring",
    "RotationConflict",
    "ServerFull",
    "ServerUnavailable",
    "SliceLost",
    "TooLarge",
    "Unsupported",
    "UriFilterError",
]

E = TypeVar("E", bound="UriFilterError")


class Answering(Protocol):
    """The items of one call, and the answers that have arrived so far."""

    @property
    def answers(self) -> Sequence[int | None]:
        """An answer for each item; None for an item without one."""
        ...

    @property
    def items(self) -> Sequence[object]:
        """The items, or the objects that a key makes items of, in the caller's order."""
        ...

    @property
    def method(self) -> str:
        """The kind of the call; see ``UriFilterError``."""
        ...

    @property
    def key(self) -> Callable[[Any], object] | None:
        """The function that makes an item of each object; None if the objects are the items."""
        ...

    @property
    def term(self) -> Callable[[int], int]:
        """The function that makes an answer, in the terms of the caller's method, of a script's answer."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """As much of a call as goes through pickle: it cannot be gone on with, because its call ids stay where they are."""

    answers: list[int | None]
    items: list[object]
    method: str
    key: None = None
    term: Callable[[int], int] = int


class UriFilterError(Exception):
    """The root of the tree.

    An error goes through pickle with all its attributes, but not as ``retry=``: only the object that raised it, in its
    own process, can ask again for the same answers. A copy (``copy.copy``, ``copy.deepcopy``) is as good as the error.

    Attributes:
        batch: the items and answers of the call that failed, from which ``retry=error`` goes on; None if the call is
            not about items, or nothing was sent.
        term: makes an answer, in the terms of the method that raised the error, of a script's answer.
        answers: the answers that arrived before the error, one per item of the call, in the terms of the method that
            raised it: ``insert_many`` and ``unique`` have True for new, ``insert_ages`` has ages; None in place of each
            answer that did not arrive. The whole is None without a batch.
        items: the items of the call, in the caller's order; None without a batch.
        method: the kind of the call, by the name of its plainest method: ``insert`` (also of ``insert_many``,
            ``insert_ages`` and ``unique``), ``contains``, ``forget``, ``remove``, ``claim``, ``commit``, ``release``,
            or the SDK's ``filter``; any method of this kind takes the error as ``retry=``. None without a batch.

    Example:
        >>> try:
        ...     answers = news.insert_many(uris)
        ... except errors.UriFilterError as error:
        ...     print(f"not inserted: {error}")
        ...     answers = error.answers or [None] * len(uris)
    """

    batch: Answering | None = None
    term: Callable[[int], int] = int

    @property
    def answers(self) -> list[int | None] | None:
        """The answers that arrived, None in place of each other one; None if the call has no batch."""
        if self.batch is None:
            return None
        return [None if each is None else self.term(each) for each in self.batch.answers]

    @property
    def items(self) -> Sequence[object] | None:
        """The items of the call, in the caller's order; None if the call has no batch."""
        return None if self.batch is None else self.batch.items

    @property
    def method(self) -> str | None:
        """The kind of the call, by the name of its plainest method; None if the call has no batch."""
        return None if self.batch is None else self.batch.method

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if self.batch is not None:
            key = self.batch.key
            items = [_plain(each, key) for each in self.batch.items]
            state["batch"] = Past(list(self.batch.answers), items, self.batch.method)
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


def _plain(item: object, key: Callable[[Any], object] | None = None) -> object:
    """Return an item that goes through pickle, equal to one that a caller gave: of a parser's own kind of str, say.

    An object that does not go through pickle is replaced by the item that ``key`` makes of it.
    """
    if isinstance(item, str):
        return str.__str__(item)
    if isinstance(item, bytes):
        return bytes(memoryview(item))
    try:
        pickle.dumps(item)
    except Exception:  # noqa: BLE001 - whatever an object of the caller's raises; it was JSON when it was filtered
        return json.loads(json.dumps(item)) if key is None else _plain(key(item))
    return item


class FilterNotFound(UriFilterError):
    """The server has no filter of that name.

    A filter that was open may have been lost with its server's data. If it has an archive, the message names it:
    opening the filter with that archive restores it.

    Example:
        >>> try:
        ...     news = UriFilter.open("news")
        ... except errors.FilterNotFound:
        ...     news = UriFilter.create("news", capacity=1_000_000)
    """


class ConfigMismatch(UriFilterError):
    """The filter on the server is not the one that the caller means: its settings or its archive are others.

    Attributes:
        differences: each setting that differs, as name: (the wanted value, the filter's value). The values of a seed
            are secret: both are given as ``secret``.

    Example:
        >>> try:
        ...     news = UriFilter.create("news", capacity=1_000_000)
        ... except errors.ConfigMismatch as error:
        ...     for name, (wanted, found) in error.differences.items():
        ...         print(f"{name}: wanted {wanted}, found {found}")
    """

    def __init__(self, message: str, differences: Mapping[str, tuple[object, object]] | None = None) -> None:
        super().__init__(message)
        self.differences = dict(differences or {})
        if "seed" in self.differences:
            self.differences["seed"] = ("secret", "secret")


class SliceLost(UriFilterError):
    """A bitmap or the ``meta`` of a live filter was deleted, evicted or overwritten.

    Opening a filter that has an archive restores it; any other filter can only be dropped.

    Example:
        >>> try:
        ...     new = news.unique(uris)
        ... except errors.SliceLost:
        ...     news = UriFilter.open("news", archive="/srv/archive")
        ...     new = news.unique(uris)
    """


class TooLarge(UriFilterError):
    """The filter was not made: it needs more memory than the server has free, or leaves too little.

    Of ``maxmemory`` a quarter more than it takes when it is full must be free; where none is set, as much again of the
    machine's memory.

    Attributes:
        fits: whether the filter can be made now; if so, ``large=True`` makes the filter.

    Example:
        >>> try:
        ...     news = UriFilter.create("news", capacity=10**9)
        ... except errors.TooLarge as error:
        ...     if not error.fits:
        ...         raise
        ...     news = UriFilter.create("news", capacity=10**9, large=True)
    """

    def __init__(self, message: str, *, fits: bool) -> None:
        super().__init__(message)
        self.fits = fits


class FilterFull(UriFilterError):
    """A growing filter is full, and no further slice can be made.

    Example:
        >>> try:
        ...     new = news.unique(uris)
        ... except errors.FilterFull:
        ...     more = UriFilter.create("more", capacity=10_000_000, retention="growing")
        ...     new = more.unique(uri for uri in uris if uri not in news)
    """


class OverCapacity(UriFilterError):
    """Nothing was merged: the result would hold more items than the filter is made for, or be wrong too often.

    ``over_capacity=True`` merges all the same.

    Attributes:
        error_rate: the probability that the result answers "seen" for an unseen item.

    Example:
        >>> try:
        ...     news.union("archive")
        ... except errors.OverCapacity as error:
        ...     if error.error_rate > 1e-3:
        ...         raise
        ...     news.union("archive", over_capacity=True)
    """

    def __init__(self, message: str, *, error_rate: float) -> None:
        super().__init__(message)
        self.error_rate = error_rate


class Restoring(UriFilterError):
    """The filter is being restored from its archive; ask again later.

    Example:
        >>> while True:
        ...     try:
        ...         new = news.unique(uris)
        ...         break
        ...     except errors.Restoring:
        ...         time.sleep(1)
    """


class BadItem(UriFilterError):
    """Some items cannot be filtered; nothing of the call was sent.

    Attributes:
        indices: the positions of all bad items in the call, from 0, ascending.

    Example:
        >>> try:
        ...     new = news.unique(uris)
        ... except errors.BadItem as error:
        ...     new = news.unique(uri for i, uri in enumerate(uris) if i not in error.indices)
    """

    def __init__(self, message: str, indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indices = list(indices)


class RotationConflict(UriFilterError):
    """Another process rotated first, so the filter has its new slice already.

    Example:
        >>> try:
        ...     daily.rotate(expected_epoch=daily.epoch())  # daily is a ring
        ... except errors.RotationConflict:
        ...     pass
    """


class Unsupported(UriFilterError):
    """The server will never do this: it lacks commands that are needed, or is of a kind that does not do.

    Asking again is useless. The message says what is missing, and which server or layout does.

    Example:
        >>> try:
        ...     news = UriFilter.create("news", capacity=1_000_000, layout="redisbloom")
        ... except errors.Unsupported:
        ...     news = UriFilter.create("news", capacity=1_000_000)
    """


class ServerUnavailable(UriFilterError):
    """The server cannot be reached, or refuses to serve.

    Example:
        >>> try:
        ...     seen = "https://example.com/a" in news
        ... except errors.ServerUnavailable as error:
        ...     print(f"try again later: {error}")
    """


class ServerFull(ServerUnavailable):
    """The server's memory is full (``maxmemory``), so it refused to write.

    Items without an answer were not written. Look-ups, ``remove`` and ``drop`` go on. After the limit is raised, the
    same call with ``retry=`` asks for the rest.

    Example:
        >>> try:
        ...     new = news.unique(uris)
        ... except errors.ServerFull as error:
        ...     print(f"raise maxmemory: {error}")
    """


class AnswerLost(ServerUnavailable):
    """The retries ran out after a call was sent that may have inserted.

    Pass the error as ``retry=`` to the same method with the same items, or to another method that inserts. The method
    asks again only for the items without an answer. It uses the same call ids, so "new" is still answered exactly once.

    Example:
        >>> try:
        ...     new = news.unique(uris)
        ... except errors.AnswerLost as error:
        ...     new = news.unique(uris, retry=error)
    """


class ArchiveError(UriFilterError):
    """The archive failed: it cannot be reached, read or written.

    Example:
        >>> try:
        ...     news.checkpoint()
        ... except errors.ArchiveError as error:
        ...     print(f"the last checkpoint is {news.checkpoint_age():.0f} s old: {error}")
    """


class ArchiveMissing(ArchiveError):
    """The archive or a part of it is missing, or the caller did not name the filter's archive.

    Example:
        >>> try:
        ...     news = UriFilter.create("news", capacity=1_000_000)
        ... except errors.ArchiveMissing:
        ...     news = UriFilter.create("news", capacity=1_000_000, archive="/srv/archive")
    """


class ArchiveCorrupt(ArchiveError):
    """A part of the archive is damaged: it is not as its manifest says.

    Example:
        >>> try:
        ...     news = UriFilter.open("news", archive="/srv/archive")
        ... except errors.ArchiveCorrupt as error:
        ...     print(f"bring a copy of the archive back, then open the filter: {error}")
    """


class FilterAPIError(UriFilterError):
    """The HTTP service refused, failed, or could not be reached.

    Attributes:
        error_code: one of the error codes of the HTTP service, or one of the SDK's own:
            ``answer_lost`` (the request may have inserted: pass the error as ``retry=``), ``unreachable``,
            ``bad_item``, ``bad_response``.
        status: the HTTP status; None if there was no response.
        retry_after: seconds to wait before the next attempt; 0 if the service did not say.
        indices: the positions of the bad items, from 0, ascending; empty if the error is not about items.
        content: the JSON object of the response; empty if there was none.

    Example:
        >>> try:
        ...     new = news.unique(uris)  # news is a filter of the SDK here
        ... except errors.FilterAPIError as error:
        ...     if error.error_code != "answer_lost":
        ...         raise
        ...     new = news.unique(uris, retry=error)
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
        self.content: dict[str, Any] = {}
