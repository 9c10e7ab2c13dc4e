"""The flows of an import, which read the set of another tool, and the facts that show whether a filter lost items."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from urifilter_redis.engine.queries import ask, server_run, servers_info
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol.acl import MEND
from urifilter_redis.protocol.outcomes import text_in
from urifilter_redis.transport.url import redis_cli

#: For a key's type: the commands that count its members, read them and look for one; the values of a member as read.
_READ_BY = {"set": ("SCARD", "SSCAN", "SISMEMBER", 1), "zset": ("ZCARD", "ZSCAN", "ZSCORE", 2)}

#: The advice for a key of another type; ``{cli}`` is redis-cli with the server's address, ``{key}`` is the key.
_ADVICE = {
    "list": "pipe its elements: {cli} --raw LRANGE {key} 0 -1 | urifilter import NAME",
    "hash": "pipe its fields: {cli} --raw HKEYS {key} | urifilter import NAME",
    "string": "it may be a bitmap of another filter, which does not have the items: import the list of URLs instead",
    "MBbloom--": "a Bloom filter does not have the items: import the list of URLs instead",
}


@dataclass(frozen=True, slots=True)
class SetState:
    """A set before it is read.

    Attributes:
        run: the run id of its server, which is new at each start.
        kind: the key's type: ``set`` or ``zset``.
        size: the number of its members.
    """

    run: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a filter: the facts from which it can be told, later, whether it has lost items.

    Attributes:
        uid: the filter's uid.
        run: the run ids and the replication ids of its servers; empty if this user may not run INFO.
        restores: a fingerprint of the last restores of all shards.
        epoch: the lowest epoch of its shards.
        newest_epoch: the highest epoch of its shards.
        inserted: the number of items that were answered "new" and have not expired.
    """

    uid: str
    run: str
    restores: str
    epoch: int
    newest_epoch: int
    inserted: int


def look_at_set(session: Session, key: bytes) -> Flow[SetState]:
    """Return the state of a set or sorted set.

    Raises:
        UriFilterError: the key is missing, or is of another type; or this user may not run INFO.
        ServerUnavailable: the server is away, or refuses a command.
    """
    run, shown = (yield from _run_of(session, key)), key.decode(errors="backslashreplace")
    (reply,) = yield from ask(session, ("TYPE", key))
    kind, cli = text_in(reply), shlex.join(redis_cli(session.server))
    if kind == "none":
        text = f"look for the right one ({cli} --scan), and say the database at the end of the address (/1)"
        raise UriFilterError(f"{session.where}: there is no key {shown!r}: {text}")
    if kind not in _READ_BY:
        advice = _ADVICE.get(kind, "pipe its items: … | urifilter import NAME").format(cli=cli, key=_quoted(key))
        text = f"the key {shown!r} is of type {kind}, and only sets and sorted sets are read"
        raise UriFilterError(f"{session.where}: {text}: {advice}")
    (size,) = yield from ask(session, (_READ_BY[kind][0], key))
    return SetState(run, kind, size)


def read_members(
    session: Session, kind: str, key: bytes, cursor: str, count: int
) -> Flow[tuple[str, str, list[bytes]]]:
    """Return the server's run id, the next cursor, and about ``count`` members; the cursor "0" is the end.

    A cursor counts for one run of a server only. The run id is read after the members: if it is still that of the
    cursor, the same run of the server has answered.
    """
    _, command, _, values = _READ_BY[kind]
    ((after, listed),) = yield from ask(session, (command, key, cursor, "COUNT", str(count)))
    run = yield from _run_of(session, key)
    return run, text_in(after), listed[::values]


def has_members(session: Session, kind: str, key: bytes, members: Sequence[bytes]) -> Flow[bool]:
    """Return whether a set or sorted set has all of some members."""
    command = _READ_BY[kind][2]
    replies = yield from ask(session, *((command, key, member) for member in members))
    return all(reply not in {None, 0} for reply in replies)


def condition_of(session: Session) -> Flow[Condition]:
    """Return the present condition of a filter.

    Raises:
        UriFilterError: any of the tree in ``errors``.
    """
    servers = yield from servers_info(session, "server")
    replications = yield from servers_info(session, "replication")
    runs = sorted(each.get("run_id", "") for each in servers.values())
    ids = runs + sorted(each.get("master_replid", "") for each in replications.values())
    states = yield from read_states(session)
    timelines = "\n".join(state.timeline for state in states)
    return Condition(
        uid=session.uid,
        run="/".join(ids) if all(ids) else "",
        restores=hashlib.sha256(timelines.encode()).hexdigest()[:32],
        epoch=min(state.epoch for state in states),
        newest_epoch=max(state.epoch for state in states),
        inserted=sum(state.inserted_in_all for state in states),
    )


def _run_of(session: Session, key: bytes) -> Flow[str]:
    run = yield from server_run(session, key)
    if not run:
        text = f"this user may not run INFO, or the server does not know it: it tells of restarts: {MEND}"
        raise UriFilterError(f"{session.where}: {text}")
    return run


def _quoted(key: bytes) -> str:
    """Return a key as a word for a shell."""
    text = key.decode(errors="backslashreplace")
    if text.isprintable() and text.encode() == key:
        return shlex.quote(text)
    escaped = "".join(f"\\x{byte:02x}" for byte in key)
    return f"$'{escaped}'"
