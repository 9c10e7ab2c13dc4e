"""Sources of an import: the protocol, a set in Redis, and wrappers that peek at a source or read digests."""

from __future__ import annotations

import binascii
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from urifilter_redis.base_blocking import connect
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.importing import has_members, look_at_set, read_members
from urifilter_redis.flows.items import WINDOW

#: The COUNT of one SSCAN. A reply may have a few members more, which shall not need a further call.
MEMBERS_A_SCAN = WINDOW - WINDOW // 50

#: The place after the last members of a set.
END = "end"

#: The number of members that a place in a set remembers.
SAMPLE = 64

#: The most bytes of a member that is remembered.
LONGEST_SAMPLED = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """Some items of a source.

    Attributes:
        items: the items.
        place: the place after them, as JSON.
        done: the bytes before that place; None: bytes are not counted.
        begun_anew: the reason why the source begins with this window once more; empty if it goes on.
    """

    items: list[bytes]
    place: Any
    done: int | None = None
    begun_anew: str = ""


class Source(Protocol):
    """Items to import.

    Attributes:
        noun: the word for one item.
        names: the texts that tell the source from others: its address and key, or its paths.
        total: the number of its items, or of its bytes if they are counted; None: it is not known.
        raw: whether an item may have any bytes, so that 16 bytes may be a digest.
    """

    noun: str
    names: Sequence[str]
    total: int | None
    raw: bool

    def state(self) -> dict[str, Any] | None:
        """Return the source's state as JSON; None: it can be read once only, as a pipe."""
        ...

    def is_still(self, state: dict[str, Any], place: Any) -> bool:
        """Whether the source shows no change, so that an earlier reading may go on.

        Args:
            state: the source's state when that reading began.
            place: the place that the reading has reached.
        """
        ...

    def windows(self, place: Any, bad: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the items of a source in windows, in memory that does not grow.

        Args:
            place: the place to begin after; None: the beginning.
            bad: called with a message for each part that cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class SetPlace:
    """A place in a set.

    Attributes:
        cursor: the cursor of SSCAN; ``END``: all members are read.
        read: the number of members before the place.
        sample: some of these members, drawn at random; "" for a long one. Each byte is a character.
    """

    cursor: str = "0"
    read: int = 0
    sample: Sequence[str] = ("",) * SAMPLE

    def after(self, members: Sequence[bytes], cursor: str) -> SetPlace:
        """Return the place after some more members. Each part of the sample is any earlier member, equally likely."""
        if not members:
            return replace(self, cursor=cursor)
        read = self.read + len(members)
        draw = random.Random()  # noqa: S311 - nothing secret
        sample = [old if draw.random() * read < self.read else _text(draw.choice(members)) for old in self.sample]
        return SetPlace(cursor, read, sample)

    def sampled(self) -> list[bytes]:
        """Return the members of the sample."""
        return [each.encode("latin-1") for each in {*self.sample} - {""}]


def _text(member: bytes) -> str:
    return member.decode("latin-1") if len(member) <= LONGEST_SAMPLED else ""


class SetSource:
    """The members of a set or sorted set in Redis. It is a context manager that closes itself.

    A member that the set has from the beginning to the end of the reading is read at least once. That holds for a
    reading that was interrupted and goes on later, too. If another set came in its place meanwhile, its number of
    members differs, or it lacks members of the sample. If only some members were replaced by as many others, that may
    go unnoticed, and some of the others are not read.

    Args:
        key: the key.
        redis: the server's address; None: ``URIFILTER_REDIS_URL``, else the embedded server.
        timeouts: how long to wait for the server.

    Raises:
        UriFilterError: the key is missing, or is of another type; or this user may not run INFO.
        ServerUnavailable: the server cannot be reached, or refuses a command.
    """

    noun = "member"
    raw = True

    def __init__(self, key: bytes, *, redis: str | None = None, timeouts: Timeouts | None = None) -> None:
        self._connector, self._session = connect(ClientOptions("any", redis=redis, timeouts=timeouts), alone=True)
        self._key = key
        try:
            self._found = drive(look_at_set(self._session, key), self._connector)
        except BaseException:
            self.close()
            raise
        self.names: Sequence[str] = ("set", self._session.server, key.decode(errors="surrogateescape"))
        self.total: int | None = self._found.size

    def state(self) -> dict[str, Any]:
        """Return the run of the server, the key's type and the number of members."""
        return asdict(self._found)

    def is_still(self, state: dict[str, Any], place: Any) -> bool:
        """Whether the set is as large as before, and has the members of the sample.

        Raises:
            ServerUnavailable: the server is away, or refuses a command.
        """
        sample = SetPlace(**place).sampled()
        if state != self.state() or not sample:
            return False
        return drive(has_members(self._session, self._found.kind, self._key, sample), self._connector)

    def windows(self, place: Any, _: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the members after a cursor. If the server is restarted meanwhile, all members are yielded once more.

        Raises:
            UriFilterError: the set was deleted meanwhile.
            ServerUnavailable: the server is away, or refuses a command.
        """
        reached = SetPlace(**place) if place else SetPlace()
        if reached.cursor == END:
            return
        anew = ""
        with ThreadPoolExecutor(1, "urifilter-import") as thread:  # the next members are read while these are inserted
            reading = thread.submit(self._read, reached.cursor)
            while True:
                run, cursor, members = reading.result()
                if run != self._found.run:
                    self._refresh()
                    anew, reached = "the set's server was restarted", SetPlace()
                    reading = thread.submit(self._read, "0")
                    continue
                last = cursor == "0"
                if not last:
                    reading = thread.submit(self._read, cursor)
                if members or anew:
                    reached = reached.after(members, END if last else cursor)
                    yield Window(members, asdict(reached), begun_anew=anew)
                anew = ""
                if last:
                    break
        self._refresh()

    def _read(self, cursor: str) -> tuple[str, str, list[bytes]]:
        return drive(read_members(self._session, self._found.kind, self._key, cursor, MEMBERS_A_SCAN), self._connector)

    def _refresh(self) -> None:
        """Read the set's state anew. A set that was deleted meanwhile may have lost members before they were read."""
        try:
            self._found = drive(look_at_set(self._session, self._key), self._connector)
        except UriFilterError as error:
            raise type(error)(f"{error} (it was there when the import began)") from error

    def close(self) -> None:
        """Close the connections."""
        self._connector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WrappedSource:
    """The attributes and the state of another source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.noun, self.names, self.total, self.raw = source.noun, source.names, source.total, source.raw

    def state(self) -> dict[str, Any] | None:
        """Return the source's state."""
        return self._source.state()

    def is_still(self, state: dict[str, Any], place: Any) -> bool:
        """Whether the source shows no change."""
        return self._source.is_still(state, place)


class Peeked(WrappedSource):
    """A source whose first window is read at once, so that a wrong source is noticed before a filter is made for it.

    Its windows from the beginning can be read once.

    Attributes:
        first: the first window; None: there is none.
        messages: the messages about parts that could not be read before the end of the first window.

    Raises:
        ValueError: the source has digests, and the first window has none.
        UriFilterError: the source cannot be read.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.messages: list[str] = []
        self._bad: Callable[[str], None] = self.messages.append
        self._windows = source.windows(None, self._report)
        self.first = next(self._windows, None)

    def windows(self, place: Any, bad: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the windows after a place; from the beginning, the first one is not read again."""
        if place is not None:
            yield from self._source.windows(place, bad)
            return
        for message in self.messages:
            bad(message)
        self._bad = bad
        if self.first is not None:
            yield self.first
            yield from self._windows

    def _report(self, message: str) -> None:
        self._bad(message)

    def close(self) -> None:
        """End the reading."""
        if isinstance(self._windows, Generator):
            self._windows.close()


#: The most bytes of an item that a message shows.
SHOWN = 50

#: The bytes of a digest, and its hex digits.
_RAW, _HEX = 16, 32


def _read_digest(text: bytes, *, raw: bool) -> bytes | None:
    """Return the 16 bytes of a digest, which is 32 hex digits or, if ``raw``, 16 bytes; None if the text is none."""
    if raw and len(text) == _RAW:
        return text
    if len(text) != _HEX:
        return None
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return None


class Digests(WrappedSource):
    """The items of a source as digests of 16 bytes each. Other items are reported and left out."""

    def windows(self, place: Any, bad: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the digests after a place in windows.

        Raises:
            ValueError: the source is read from its beginning, and its first window has no digest.
        """
        wanted = f"{_HEX} hex digits" + (f", or {_RAW} bytes" if self.raw else "")
        none_yet = place is None
        for window in self._source.windows(place, bad):
            read = [_read_digest(item, raw=self.raw) for item in window.items]
            digests = [digest for digest in read if digest is not None]
            none_yet = none_yet and not digests
            if none_yet and read:
                text = f"{_shown(window.items[0])} is no digest: a digest is {wanted}"
                raise ValueError(f"{text}; other items are imported without --digests")
            for item, digest in zip(window.items, read, strict=True):
                if digest is None:
                    bad(f"{self.noun} {_shown(item)} is left out: a digest is {wanted}")
            yield replace(window, items=digests)


def _shown(item: bytes) -> str:
    text = item[:SHOWN].decode(errors="backslashreplace")
    return f"{text!r}{'…' if len(item) > SHOWN else ''} of {len(item)} bytes"
