"""Questions that may be asked again freely, and what their replies are."""

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
    "SHARDS_A_PIPELINE",
    "ask",
    "ask_shard",
    "chunked",
    "scan",
    "scanned",
    "server_info",
    "server_run",
    "server_time",
]

T = TypeVar("T")

#: Shards that are asked about in one pipeline.
SHARDS_A_PIPELINE = 64

#: Entries asked for by one HSCAN or ZSCAN; a record of ``replies`` has some 500 bytes.
ENTRIES_A_SCAN = 500


def chunked(listed: Sequence[T], size: int = SHARDS_A_PIPELINE) -> Iterator[Sequence[T]]:
    """Yield a sequence in parts of some size, by default as many shards as one pipeline asks about."""
    for start in range(0, len(listed), size):
        yield listed[start : start + size]


def ask(session: Session, *made: Call | Arguments) -> Flow[list[Any]]:
    """Send what may be repeated freely; return the replies in order.

    Raises:
        UriFilterError: the first that was not answered.
    """
    return (yield from _answers(session, [Request.of(each) for each in made]))


def server_info(session: Session, section: str) -> Flow[dict[str, str]]:
    """Return the fields of a section of INFO; empty if this user may not ask."""
    try:
        (reply,) = yield from ask(session, ("INFO", section))
    except ServerUnavailable as error:
        if "NOPERM" not in str(error):
            raise
        return {}
    return to_fields(reply)


def server_run(session: Session) -> Flow[str]:
    """Return what tells one start of a server from any other; empty if this user may not ask."""
    return (yield from server_info(session, "server")).get("run_id", "")


def scanned(session: Session, command: str, key: str) -> Flow[list[tuple[bytes, Any]]]:
    """Return the entries of a hash (HSCAN) or sorted set (ZSCAN); one may be there twice."""
    found, cursor = [], b"0"
    while True:
        (cursor, some) = yield from scan(session, command, key, cursor)
        found += some
        if int(cursor) == 0:
            return found


def scan(session: Session, command: str, key: str, cursor: bytes) -> Flow[tuple[bytes, list[tuple[bytes, Any]]]]:
    """Return the next cursor and some entries."""
    ((after, listed),) = yield from ask(session, (command, key, cursor, "COUNT", ENTRIES_A_SCAN))
    return after, list(zip(listed[::2], listed[1::2], strict=True))


def server_time(session: Session) -> Flow[int]:
    """Return the server's time, in ms since 1970.

    Raises:
        ServerUnavailable: it does not answer, or nonsense.
    """
    (reply,) = yield from ask(session, ("TIME",))
    try:
        seconds, microseconds = map(int, reply)
    except (TypeError, ValueError) as error:
        raise nonsense(reply) from error
    return seconds * 1000 + microseconds // 1000


def ask_shard(session: Session, shard: int, *builders: Callable[[], Call]) -> Flow[list[Any]]:
    """Do as ``ask`` with calls that name a shard's live slices: they are built anew when those have changed."""

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
