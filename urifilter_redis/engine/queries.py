"""Queries: commands that may be repeated freely, and the meaning of their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import FilterFull, ServerUnavailable
from urifilter_redis.protocol.outcomes import nonsense, to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Arguments, Call

__all__ = [
    "ENTRIES_A_SCAN",
    "SHARDS_A_PIPELINE",
    "ask",
    "ask_shard",
    "chunked",
    "scan",
    "scanned",
    "server_info",
    "server_run",
    "server_time",
    "time_of",
]

T = TypeVar("T")

#: Most shards that one pipeline asks about.
SHARDS_A_PIPELINE = 64

#: The COUNT of one HSCAN or ZSCAN; a record of ``replies`` has some 500 bytes.
ENTRIES_A_SCAN = 500


def chunked(listed: Sequence[T], size: int = SHARDS_A_PIPELINE) -> Iterator[Sequence[T]]:
    """Yield a sequence in parts of at most ``size``, by default the number of shards that one pipeline asks about."""
    for start in range(0, len(listed), size):
        yield listed[start : start + size]


def ask(session: Session, *made: Call | Arguments) -> Flow[list[Any]]:
    """Send commands and calls that may be repeated freely; return their replies in order.

    Raises:
        UriFilterError: the error of the first one that was not answered.
    """
    return (yield from _answers(session, [Request.of(each) for each in made]))


def server_info(session: Session, section: str) -> Flow[dict[str, str]]:
    """Return the fields of a section of INFO; an empty dict if this user may not run INFO."""
    try:
        (reply,) = yield from ask(session, ("INFO", section))
    except ServerUnavailable as error:
        if "NOPERM" not in str(error):
            raise
        return {}
    return to_fields(reply)


def server_run(session: Session) -> Flow[str]:
    """Return the server's run id, which is new at each start of the server; "" if this user may not run INFO."""
    return (yield from server_info(session, "server")).get("run_id", "")


def scanned(session: Session, command: str, key: str) -> Flow[list[tuple[bytes, Any]]]:
    """Return all entries of a hash (HSCAN) or sorted set (ZSCAN) as (field, value) or (member, score).

    An entry may appear twice.
    """
    found, cursor = [], b"0"
    while True:
        (cursor, some) = yield from scan(session, command, key, cursor)
        found += some
        if int(cursor) == 0:
            return found


def scan(
    session: Session, command: str, key: str, cursor: bytes, count: int = ENTRIES_A_SCAN
) -> Flow[tuple[bytes, list[tuple[bytes, Any]]]]:
    """Return the next cursor and about ``count`` entries; the cursor 0 is the end. See ``scanned``."""
    ((after, listed),) = yield from ask(session, (command, key, cursor, "COUNT", count))
    return after, list(zip(listed[::2], listed[1::2], strict=True))


def server_time(session: Session) -> Flow[int]:
    """Return the server's time, in ms since 1970.

    Raises:
        ServerUnavailable: the server does not answer, or its reply is no time.
    """
    (reply,) = yield from ask(session, ("TIME",))
    return time_of(reply)


def time_of(reply: Any) -> int:
    """Return the time in a reply of TIME, in ms since 1970.

    Raises:
        ServerUnavailable: the reply is no time.
    """
    try:
        seconds, microseconds = map(int, reply)
    except (TypeError, ValueError) as error:
        raise nonsense(reply) from error
    return seconds * 1000 + microseconds // 1000


def ask_shard(session: Session, shard: int, *builders: Callable[[], Call]) -> Flow[list[Any]]:
    """Send calls that name a shard's live slices, like ``ask``; they are built anew when the slices have changed."""

    def request(build: Callable[[], Call]) -> Request:
        return Request(lambda _: build(), shard)

    return (yield from _answers(session, [request(build) for build in builders]))


def _answers(session: Session, requests: Sequence[Request]) -> Flow[list[Any]]:
    yield from exchange(session, requests)
    for request in requests:
        if request.full:
            raise FilterFull(f"{session.where}: today has no room for these items")
        if request.error is not None:
            raise request.error
    return [request.reply for request in requests]
