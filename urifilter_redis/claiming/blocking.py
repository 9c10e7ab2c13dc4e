# Generated from claiming/awaited.py by tools/unasync.py; edit that file.
"""Claims of the blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from urifilter_redis.checks import check_seconds, check_text
from urifilter_redis.claiming.base import BlockingBaseClaims, Question
from urifilter_redis.engine.batch import (
    CLAIM,
    CLAIM_AGES,
    CLAIM_MANY,
    CLAIM_UNIQUE,
    COMMIT,
    RELEASE,
    Key,
    Method,
    listed,
)
from urifilter_redis.engine.holdings import Claim, Found, Outstanding
from urifilter_redis.errors import UriFilterError

R = TypeVar("R")
T = TypeVar("T")


class Claims(BlockingBaseClaims):
    """The items that one crawler has in flight; ``UriFilter.claims`` makes it.

    A claimed item is "new" to this object alone, until it is committed or released, or this process dies. Then another
    crawler gets it from ``reclaim``. A thread beats in the background, so that slow work keeps its
    items. The thread survives a server that is away, ends with its client, and never keeps an
    interpreter from ending.

    Use it as a context manager: leaving gives back what is left; after an exception only a lease later.
    Threads may share it. A forked child is another holder, and has nothing in flight.

    Example:
        >>> with news.claims(lease=60) as mine:
        ...     for uri in mine.unique(["https://example.com/a", "https://example.com/b"]):
        ...         print("fetched", uri, mine.commit([uri]))
        fetched https://example.com/a [True]
        fetched https://example.com/b [True]
    """

    def claim(self, uri: object, *, payload: object = ..., retry: UriFilterError | None = None) -> bool:
        """Claim an item; return whether this object has it now.

        Args:
            uri: a str, bytes or any JSON value.
            payload: what another crawler gets if this one dies: a str, bytes or any JSON value; left out: the item
                itself.
            retry: the error that this method, or another one that claims, raised for the same item; its answer is
                asked for again.

        Raises:
            BadItem: the item or the payload cannot be kept, or has more than 64 KiB.
            ValueError: ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out, and the item may be in flight: pass the error as ``retry=``.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> mine.claim("https://example.com/a")
            True
            >>> mine.claim("https://example.com/a")
            False
        """
        return self._claim(CLAIM, [uri], None, None if payload is ... else lambda _: payload, retry)

    def claim_many(
        self,
        uris: Iterable[Any],
        *,
        key: Key = None,
        payload: Callable[[Any], object] | None = None,
        retry: UriFilterError | None = None,
    ) -> list[bool]:
        """Claim items; return whether this object has each now.

        Args:
            uris: any number of items; all are checked before any is sent.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            payload: makes of each object what another crawler gets if this one dies: a str, bytes or any JSON value,
                at most 64 KiB; None: the item itself. It is not called for what the near cache knows to be seen.
            retry: the error that this method, or another one that claims, raised for the same items; only items
                without an answer are asked again.

        Returns:
            One bool an item, in the order of the items. False: it was seen, or is in flight.

        Raises:
            BadItem: some items or payloads cannot be kept; the error has their indices; nothing was claimed.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> mine.claim_many(["https://example.com/a", "https://example.com/b", "https://example.com/a"])
            [True, True, False]
        """
        return self._claim(CLAIM_MANY, listed(uris), key, payload, retry)

    def claim_ages(
        self,
        uris: Iterable[Any],
        *,
        key: Key = None,
        payload: Callable[[Any], object] | None = None,
        retry: UriFilterError | None = None,
    ) -> list[int]:
        """Claim items; return a number for each: 0 claimed, n seen in the n-th newest slice, -1 in flight.

        This object itself may have it. Arguments and errors are those of ``claim_many``.

        Example:
            >>> mine.claim_ages(["https://example.com/a", "https://example.com/a"])
            [0, -1]
        """
        return self._claim(CLAIM_AGES, listed(uris), key, payload, retry)

    def unique(
        self,
        uris: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        payload: Callable[[T], object] | None = None,
        retry: UriFilterError | None = None,
    ) -> list[T]:
        """Claim items; return the caller's own objects of those that this object has now, in their order.

        Arguments and errors are those of ``claim_many``.

        Example:
            >>> mine.unique(["https://example.com/a", "https://example.com/a"])
            ['https://example.com/a']
        """
        return self._claim(CLAIM_UNIQUE, listed(uris), key, payload, retry)

    def commit(self, uris: Iterable[Any], *, key: Key = None, retry: UriFilterError | None = None) -> list[bool]:
        """Make items final; return whether this call did it.

        True is answered exactly once for an item, over all processes. An item is committed whoever has it in flight:
        its page was fetched. An item that nobody has in flight is inserted if it is new.

        Args:
            uris: any number of items.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was committed.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> mine.claim("https://example.com/a")
            True
            >>> mine.commit(["https://example.com/a"])
            [True]
        """
        self._check_open()
        return self._ask(COMMIT, self._backend.committing(listed(uris), key, retry))

    def reject(
        self, uris: Iterable[Any], reason: str = "", *, key: Key = None, retry: UriFilterError | None = None
    ) -> list[bool]:
        """Make dead letters of items in flight that failed too often; return whether this call did it.

        Only what this object has in flight is rejected. It is seen from then on. The filter keeps the newest dead
        letters, of a mebibyte in each shard: item, payload, failures, lapses and reason. ``claimed`` has the counts to
        decide by.

        Args:
            uris: any number of items.
            reason: the reason, for people; 200 bytes of it are kept.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was rejected.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> mine.claim("https://example.com/a")
            True
            >>> mine.reject(["https://example.com/a"], "answers 500")
            [True]
        """
        self._check_open()
        check_text("reason", reason)  # None would commit the items, without dead letters
        return self._ask(COMMIT, self._backend.committing(listed(uris), key, retry, reason))

    def release(
        self,
        uris: Iterable[Any],
        *,
        delay: float = 0,
        failed: bool = False,
        key: Key = None,
        retry: UriFilterError | None = None,
    ) -> list[bool]:
        """Give items back, to be offered again by ``reclaim``; return whether this object had each.

        Args:
            uris: any number of items.
            delay: seconds before they are offered again, at most 604,800 (7 days).
            failed: count a failure of each item, for the crawler that gives up after some.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was released.
            TypeError: one string was given instead of a list.
            ValueError: the delay is too long, or ``retry`` is the error of another call.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> mine.claim("https://example.com/a")
            True
            >>> mine.release(["https://example.com/a"], delay=30, failed=True)
            [True]
        """
        self._check_open()
        question = self._backend.releasing(listed(uris), key, retry, delay=delay, failed=failed)
        return self._ask(RELEASE, question)

    def reclaim(self, limit: int = 100) -> list[Claim]:
        """Claim what dead holders had, and what was released and is due.

        After a call that found nothing, calls find nothing without asking the server for a third of the lease at most
        while others have something in flight; otherwise for up to ten minutes. Calls that come while another call looks
        wait for its end; they look themselves only if there may be more.

        Args:
            limit: the most items.

        Returns:
            The claims, each with its item, payload, failures and lapses. An empty list means that nothing is to be had
            now; ``outstanding`` says whether there will be something.

        Raises:
            ValueError: the limit is no number of items.
            UriFilterError: the server failed before anything was found.

        Example:
            >>> mine.reclaim(100)
            []
        """
        self._check_limit(limit)
        self._beat_with_call()
        if not self._holdings.may_reclaim:
            return []
        self._begin_beating()
        found: Found = []
        try:
            return self._run(self._backend.reclaim(limit, found))  # type: ignore[no-any-return]
        except BaseException as error:
            if not isinstance(error, UriFilterError):  # also what a handler of a signal raises
                self._holdings.leave_all(found)
            raise

    def outstanding(self, within: float | None = None) -> Outstanding:
        """Return how many items others have in flight, and in how many seconds the next may be due.

        The figures are those of the last ``reclaim``, if that was within a third of the lease. That there is nothing is
        said only by figures that this call has read itself.

        Args:
            within: seconds, more than a lease: if the next may be due later only, as of items that were released with a
                long delay, the answer is false. None: however late it may be.

        Raises:
            UriFilterError: the server failed.

        Example:
            >>> mine.outstanding()
            Outstanding(others=0, due=None)
        """
        self._check_open()
        if within is not None:
            check_seconds("within", within)
        self._beat_with_call()
        if self._holdings.must_read(within):
            self._run(self._backend.read_outstanding(within))
        return self._holdings.outstanding(within)

    def close(self, delay: float = 0) -> None:
        """Give back what is left, to be offered again after ``delay`` seconds, and beat no more.

        If the server is away, or the filter was closed before, what is left lapses by itself after a lease.

        Raises:
            ValueError: the delay is not 0 to 604,800 seconds (7 days).

        Example:
            >>> mine.close()
        """
        some = self._begin_closing(delay)
        self._end_beating()
        if some:
            try:
                self._run(self._backend.give_back_all(delay))
            except (UriFilterError, ValueError) as error:  # ValueError: the filter is closed
                self._log_what_is_left(error)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close(self._delay_after(kind))

    def _claim(
        self,
        method: Method[R],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> R:
        self._check_open()
        question = self._backend.claiming(method, objects, key, payload, retry)
        self._begin_beating()
        return self._ask(method, question, list(question.answers))

    def _ask(self, method: Method[R], question: Question, known: list[int | None] | None = None) -> R:
        """Ask for the answers of a call; ``known``: of a claim, the answers that its caller had before."""
        self._beat_with_call()
        pending = self._backend.pending
        pending.begin(question)
        try:
            return pending.answered(question, method.result(self._run(self._backend.resolve(question))))
        except BaseException as error:
            pending.failed(question, error)
            if not (isinstance(error, UriFilterError) and error.batch is question):  # nobody gets the answers
                if known is None:
                    self._holdings.abandon()
                else:
                    self._backend.leave(question, known)
                    pending.drop(question)
            raise
