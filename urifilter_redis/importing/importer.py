"""The import itself: windows of a source go into a filter, and a note says how far the import came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from urifilter_redis.client import UriFilter
from urifilter_redis.engine.batch import INSERT_MANY
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.flows import items as flows
from urifilter_redis.flows.importing import Condition, condition_of
from urifilter_redis.importing.notes import Counts, Note, NoteFile, doubt, loss
from urifilter_redis.importing.sources import Source, Window
from urifilter_redis.streaming import persist

#: Windows between two notes. Writing a small file may take a twentieth of the time of a window.
WINDOWS_A_NOTE = 5

#: The most messages about parts that are left out; further ones are only counted.
REPORTED = 10


class Receiver(UriFilter):
    """A filter that an import fills."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The texts that tell the filter from others: its server, its prefix and its name."""
        return self.server, self._session.keys.prefix, self.name

    def condition(self) -> Condition:
        """Return the filter's condition, which shows later whether it has lost items.

        Raises:
            UriFilterError: any of the tree in ``errors``.
        """
        return self._run(condition_of(self._session))

    def take(self, items: list[bytes], *, digests: bool, retry: AnswerLost | None = None) -> list[bool]:
        """Insert items, or with ``digests`` their digests of 16 bytes; return whether each is new.

        Args:
            items: the items or digests.
            digests: whether they are digests.
            retry: the error that this method raised for the same items; their answers are asked for again.

        Raises:
            AnswerLost: the retries ran out, and items may have been inserted.
            UriFilterError: any other of the tree in ``errors``.
        """
        digester = cast("Callable[[Sequence[object]], list[bytes]]", list) if digests else None
        batch = flows.batch_of(self._session, "insert", items, retry, digester=digester)
        pending = self._session.pending
        pending.begin(batch)
        try:
            return pending.answered(batch, INSERT_MANY.result(self._run(flows.resolve(self._session, batch))))
        except BaseException as error:
            pending.failed(batch, error)
            raise


class Import:
    """One import of a source into a filter.

    Attributes:
        counts: the items so far, those of earlier runs included.
        resumed: the number of items of earlier runs, which are not read again.
        begun_anew: the reason why the import began anew in spite of an earlier run; else empty.
        can_resume: whether an interrupted import can go on where it stopped.

    Args:
        receiver: the filter.
        source: the source.
        bad: called with a message for each part of the source that is left out.
        digests: whether the source's items are digests of the filter's own hash, of 16 bytes each (``Digests``).
        restart: whether to begin anew in spite of an earlier run.

    Raises:
        UriFilterError: any of the tree in ``errors``.

    Example:
        >>> with Receiver.open("news") as news, SetSource(b"spider:dupefilter") as fingerprints:
        ...     importing = Import(news, fingerprints, print)
        ...     for window in importing.windows():
        ...         importing.insert(window)
        ...     importing.finish()
    """

    def __init__(
        self,
        receiver: Receiver,
        source: Source,
        bad: Callable[[str], None],
        *,
        digests: bool = False,
        restart: bool = False,
    ) -> None:
        self._receiver, self._source, self._bad, self._digests = receiver, source, bad, digests
        self.counts, self.resumed, self.begun_anew = Counts(), 0, ""
        self._file = NoteFile((*receiver.identity, "digests" if digests else "items", *source.names))
        self._state, self._condition, self._place = source.state(), receiver.condition(), None
        self.can_resume = self._state is not None and bool(self._condition.run)
        self._note: Note | None = None
        self._unnoted = 0
        if not restart:
            self._resume()

    def _resume(self) -> None:
        note = self._file.read()
        if note is None:
            return
        self.begun_anew = doubt(note, self._condition, self._receiver.config)
        if not self.begun_anew and not self._source.is_still(note.state, note.place):
            self.begun_anew = f"the source of the {self._source.noun}s has changed"
        if not self.begun_anew:
            self._condition, self._place, self.counts = note.condition, note.place, replace(note.counts)
            self.resumed = note.counts.items

    def windows(self) -> Iterator[Window]:
        """Yield the windows of the source that are not in the filter yet; pass each to ``insert``.

        Raises:
            ValueError: the source has digests, and the first window has none.
            UriFilterError: the source cannot be read.
        """
        return self._source.windows(self._place, self.report_bad)

    def report_bad(self, message: str) -> None:
        """Count a part of the source that is left out; report the first ones."""
        self.counts.bad += 1
        if self.counts.bad <= REPORTED:
            self._bad(message)

    def insert(self, window: Window) -> None:
        """Insert the items of a window; after every fifth, note that they are in the filter.

        Raises:
            UriFilterError: any of the tree in ``errors``.
        """
        if window.begun_anew:
            self.counts, self.resumed, self.begun_anew = Counts(), 0, window.begun_anew
            self._state, self._condition, self._note = self._source.state(), self._receiver.condition(), None
        answers = persist(self._receiver.take, window.items, digests=self._digests)
        self.counts.items += len(answers)
        self.counts.new += sum(answers)
        if self.can_resume and self._state is not None:
            self._note = Note(self._condition, self._state, window.place, replace(self.counts))
        self._unnoted += 1
        if self._unnoted >= WINDOWS_A_NOTE or self.counts.items == len(answers):  # the first one at once
            self.keep()

    def keep(self) -> None:
        """Write down that all windows up to now are in the filter, so that a later import goes on there."""
        self._unnoted = 0
        if self._note is not None:
            self._file.write(self._note)

    def finish(self) -> None:
        """Check that the filter has lost nothing meanwhile, once all windows are inserted; remove the note.

        Raises:
            UriFilterError: the filter may have lost items while the import ran.
        """
        done = Note(self._condition, {}, None, self.counts)
        reason = loss(done, self._receiver.condition(), self._receiver.config)
        self.can_resume = False
        self._file.remove()
        if reason:
            text = f"while the import ran, {reason}; some of its items may be missing: give the same command again"
            raise UriFilterError(f"filter {self._receiver.name!r}: {text}")
