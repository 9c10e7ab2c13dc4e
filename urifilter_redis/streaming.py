"""Questions about the items of a long stream: reading, hashing, sending and waiting overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from urifilter_redis.client import UriFilter
from urifilter_redis.engine.batch import SEEN, Batch
from urifilter_redis.engine.driver import StartedFlow
from urifilter_redis.engine.holdings import ClaimOptions
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.flows import items as flows

#: The most items of a stream under way. A killed process has inserted at most so many without printing them.
UNDER_WAY = flows.WINDOW

#: The most windows of a stream under way; each takes a connection.
WINDOWS = 4

#: How often a call is repeated after its retries ran out.
ASK_AGAIN = 2

#: One answer an item: 0 for a new item, any other number (which is no age) for a seen one, None for a missing answer.
Answers: TypeAlias = "Sequence[int | None]"

T = TypeVar("T")
W = TypeVar("W")


def persist(method: Callable[..., T], *items: object, **more: Any) -> T:
    """Call a writing method of a filter, which takes ``retry=``; if its answer is lost, repeat the same call.

    Raises:
        AnswerLost: the answer was lost again and again.
    """
    error: AnswerLost | None = None
    for _ in range(ASK_AGAIN):
        try:
            return method(*items, retry=error, **more)
        except AnswerLost as lost:
            error = lost
    return method(*items, retry=error, **more)


class StreamedFilter(UriFilter):
    """A filter that a ``Stream`` asks."""

    @property
    def connections(self) -> int:
        """The most connections to the server."""
        return self._connector.most

    def digests(self, items: Sequence[object]) -> list[bytes]:
        """Return the digests of items, 16 bytes each.

        Raises:
            BadItem: some items cannot be filtered; the error has the indices of all of them.
        """
        return self._session.digester(items)

    def batch(
        self, command: str, digests: list[bytes], max_age: int | None, claim_options: ClaimOptions | None = None
    ) -> Batch:
        """Make the batch of a command about items whose digests are known; nothing is sent.

        The near cache, if the filter was opened with one, answers an insert as it answers ``insert_many``.
        """
        as_they_are = cast("Callable[[Sequence[object]], list[bytes]]", list)
        near = self._session.near if command == "insert" and max_age is None else None
        more = {"max_age": max_age, "digester": as_they_are, "near": near, "claim_options": claim_options}
        return flows.batch_of(self._session, command, digests, **more)  # type: ignore[arg-type]

    def begin(self, batch: Batch) -> StartedFlow[Batch]:
        """Send the first calls of a batch, and do not wait for their answers."""
        self._check_open()
        session = self._session
        check = session.check and session.check_step
        return StartedFlow(flows.resolve(session, batch), self._connector, check)


@dataclass(slots=True)
class _Asked(Generic[W]):
    """A window under way.

    Attributes:
        window: the caller's window.
        count: the number of its items.
        digests: the digests that no other window may ask about meanwhile.
        positions: the position in the window of each item of the batch; None: the batch has all items.
        batch: the batch of the items.
        begun: the calls of the batch; the first of them were sent.
    """

    window: W
    count: int
    digests: AbstractSet[bytes]
    positions: Sequence[int] | None
    batch: Batch
    begun: StartedFlow[Batch]

    @property
    def answers(self) -> Answers:
        """The answers for all items of the window."""
        if self.positions is None:
            return self.batch.answers
        answers: list[int | None] = [SEEN] * self.count
        for position, answer in zip(self.positions, self.batch.answers, strict=True):
            answers[position] = answer
        return answers


class Stream(Generic[W]):
    """Asks a filter about windows of items. While some windows are under way, the caller reads the next one.

    An item is inserted, or claimed, once while it is under way: it is "new" where it comes first.

    Attributes:
        filter: the filter.

    Args:
        news: the filter.
        command: ``insert``, ``contains``, ``forget`` or ``remove``; or ``claim``, ``commit`` or ``release``, with
            ``claim_options``.
        take: called with each window and its answers, in the order of the windows.
        max_age: see ``UriFilter.insert_ages``.
        claim_options: makes the options of a batch from its items; None: the command is not about claims.

    Example:
        >>> with StreamedFilter.open("news") as news:
        ...     stream = Stream(news, "insert", print)
        ...     stream.put("a window", ["https://example.com/a", "https://example.com/a"])
        ...     stream.drain()
        a window [0, 1]
    """

    def __init__(
        self,
        news: StreamedFilter,
        command: str,
        take: Callable[[W, Answers], object],
        max_age: int | None = None,
        claim_options: Callable[[Sequence[Any]], ClaimOptions] | None = None,
    ) -> None:
        self.filter, self._command, self._take, self._max_age = news, command, take, max_age
        self._claim_options = claim_options
        self._under_way: deque[_Asked[W]] = deque()
        self._items = 0

    @property
    def windows(self) -> int:
        """The number of windows under way."""
        return len(self._under_way)

    def put(self, window: W, items: Sequence[object]) -> None:
        """Send a window. If there would be too many items under way, the oldest windows are finished first.

        Args:
            window: the window, for ``take``.
            items: its items, at most ``UNDER_WAY``.

        Raises:
            BadItem: some items cannot be filtered; nothing of this window was sent.
            UriFilterError: as ``drain``; nothing of this window was sent.
        """
        digests = self.filter.digests(items)
        count, most = len(digests), min(WINDOWS, self.filter.connections)
        while self._under_way and (self._items + count > UNDER_WAY or len(self._under_way) >= most):
            self._receive()
        reserved: AbstractSet[bytes] = frozenset()
        positions: Sequence[int] | None = None
        if self._command == "insert":
            digests, positions, reserved = self._fresh(digests)
        elif self._command == "claim":
            reserved = set(digests)
            self._settle(reserved)
        claim_options = None if self._claim_options is None else self._claim_options(items)
        batch = self.filter.batch(self._command, digests, self._max_age, claim_options)
        self._under_way.append(_Asked(window, count, reserved, positions, batch, self.filter.begin(batch)))
        self._items += count

    def drain(self) -> None:
        """Finish all windows under way.

        Raises:
            UriFilterError: a window failed. ``take`` got all windows under way, with None for each missing answer.
        """
        while self._under_way:
            self._receive()

    def _fresh(self, digests: list[bytes]) -> tuple[list[bytes], Sequence[int] | None, AbstractSet[bytes]]:
        """Return the digests that are not under way, each once; their positions (None: all are fresh); their set."""
        first = dict(zip(reversed(digests), range(len(digests) - 1, -1, -1), strict=True))
        for asked in self._under_way:
            for digest in first.keys() & asked.digests:
                del first[digest]
        if len(first) == len(digests):
            return digests, None, first.keys()
        positions = sorted(first.values())
        return [digests[position] for position in positions], positions, first.keys()

    def _settle(self, digests: AbstractSet[bytes]) -> None:
        """Finish the windows that have any of these digests, so that the first of two equal lines is claimed."""
        while any(not asked.digests.isdisjoint(digests) for asked in self._under_way):
            self._receive()

    def _receive(self) -> None:
        """Finish the oldest window; if it fails, finish the others too, and raise its error."""
        errors = [self._finish(lambda asked: persist(self._answers, asked))]
        if errors[0] is not None:
            while self._under_way:
                errors.append(self._finish(self._answers))  # only once: the server is most likely away
            raise next((error for error in errors if isinstance(error, AnswerLost)), errors[0])

    def _finish(self, wait: Callable[[_Asked[W]], object]) -> UriFilterError | None:
        """Pass the answers of the oldest window to ``take``; return the error that left some without an answer."""
        asked, failed = self._under_way.popleft(), None
        self._items -= asked.count
        try:
            wait(asked)
        except UriFilterError as error:
            failed = error
        except BaseException:
            if asked.batch.writes:
                self._take(asked.window, asked.answers)
            raise
        if failed is None or asked.batch.writes:  # a failed question that changes nothing is no loss
            self._take(asked.window, asked.answers)
        return failed

    def _answers(self, asked: _Asked[W], *, retry: UriFilterError | None = None) -> None:
        """Wait for the answers to a window; with ``retry`` ask again for the missing ones."""
        if retry is not None:
            asked.batch.near = None  # the near cache answers no repeated call
            asked.begun = self.filter.begin(asked.batch)
        asked.begun.finish()
