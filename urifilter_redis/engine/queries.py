"""Queries: commands that may be repeated freely, and what their replies say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import FilterFull, ServerUnavailable
from urifilter_redis.protocol.calls import Arguments, Call
from urifilter_redis.protocol.outcomes import is_withheld, nonsense, to_fields, to_mapping
from urifilter_redis.protocol.routing import for_key, for_node

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

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


def ask_each(session: Session, made: Sequence[Call | Arguments], size: int = SHARDS_A_PIPELINE) -> Flow[list[Any]]:
    """Send any number of commands and calls like ``ask``, at most ``size`` of them in one pipeline."""
    replies: list[Any] = []
    for some in chunked(made, size):
        replies += yield from ask(session, *some)
    return replies


def read_first(session: Session) -> Flow[dict[str, str]]:
    """Return the ``meta`` of shard 0, which stands for the whole filter; an empty dict if there is none."""
    (reply,) = yield from ask(session, session.read_meta(0))
    return to_mapping(reply)


def ask_masters(session: Session, *commands: Arguments) -> Flow[dict[str, list[Any]]]:
    """Send commands to each master; return the replies of each by its name; raises as ``ask``."""
    if session.routes.must_search:
        yield from server_time(session)  # whatever is asked first finds the masters
    masters = session.routes.masters
    replies = yield from ask(session, *(for_node(each, node) for node in masters for each in commands))
    return dict(zip(masters, map(list, chunked(replies, len(commands))), strict=True))


def servers_info(session: Session, section: str) -> Flow[dict[str, dict[str, str]]]:
    """Return the fields of a section of INFO of each master; empty dicts if this user may not run INFO."""
    replies = yield from unless_withheld(ask_masters(session, ("INFO", section)))
    if replies is None:
        return {each: {} for each in session.routes.masters}
    return {node: to_fields(reply) for node, (reply,) in replies.items()}


def server_run(session: Session, key: str | bytes) -> Flow[str]:
    """Return the run id of the server that has a key; "" if this user may not run INFO.

    It is new at each start of the server.
    """
    replies = yield from unless_withheld(ask(session, for_key(("INFO", "server"), key)))
    return "" if replies is None else to_fields(replies[0]).get("run_id", "")


def masters_without(session: Session, command: str) -> Flow[list[str]]:
    """Return the names of the masters that do not know a command; [] if a master refuses COMMAND."""
    try:
        replies = yield from ask_masters(session, ("COMMAND", "INFO", command))
    except ServerUnavailable:  # this user may not run it, or a hosted server hides it
        return []
    return [node for node, ((told,),) in replies.items() if told is None]


def unless_withheld(flow: Flow[T]) -> Flow[T | None]:
    """Return the result of a flow; None if this user may not run its command, or the server does not know it."""
    try:
        return (yield from flow)
    except ServerUnavailable as error:
        if not is_withheld(error):
            raise
        return None


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
    ((after, listed),) = yield from ask(session, (command, key, cursor, "COUNT", str(count)))
    return after, list(zip(listed[::2], listed[1::2], strict=True))


def time_at(session: Session, shard: int) -> Arguments:
    """Return the command that asks for the time of the server that has a shard."""
    return for_key(("TIME",), session.keys.shard(shard).meta)


def server_time(session: Session, shard: int = 0) -> Flow[int]:
    """Return the time of the server that has a shard, in ms since 1970; raise as ``ask`` and ``time_of``."""
    (reply,) = yield from ask(session, time_at(session, shard))
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


def ask_shard(session: Session, shard: int, build: Callable[[], Call]) -> Flow[Any]:
    """Send a call that names a shard's live slices, and return its reply; raises as ``ask``.

    The call is built anew when the slices have changed.
    """
    (reply,) = yield from _answers(session, [Request(lambda _: build(), shard)])
    return reply


def _answers(session: Session, requests: Sequence[Request]) -> Flow[list[Any]]:
    yield from exchange(session, requests)
    for request in requests:
        if request.full:
            raise FilterFull(f"{session.where}: today has no room for these items")
        if request.error is not None:
            raise request.error
    return [request.reply for request in requests]
