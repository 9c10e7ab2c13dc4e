"""The shape of the reply to each command: a reply of another shape is one to something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.scripts import commands_by_sha1

#: Says whether a reply has the shape; gets the arguments behind the command's name, or behind the script's keys.
Shape: TypeAlias = Callable[["Arguments", Any], bool]

#: The arguments of scripts about items that stand between the encoding and the items.
_BEFORE_ITEMS: Mapping[str, int] = {
    "insert": 0, "contains": 0, "forget": 0, "remove": 0, "claim": 2, "commit": 3, "release": 5,
}  # fmt: skip

_NUMBERS = frozenset({int})


def fits(command: Arguments, reply: Any) -> bool:
    """Whether a reply, which is no error, can be the one to a command.

    A call about items takes no other function, as each costs a good part of what the server takes for an item.
    """
    if command[0] != "EVALSHA":
        shape = SHAPES.get(command[0])
        return shape is None or shape(command[1:], reply)
    name, first = commands_by_sha1.get(command[1], ""), 3 + int(command[2])
    if name not in _BEFORE_ITEMS:
        shape = SHAPES_OF_SCRIPTS.get(name)
        return shape is None or shape(command[first:], reply)
    if type(reply) is not list or not _NUMBERS.issuperset(map(type, reply)):
        return False
    items = first + 4 + _BEFORE_ITEMS[name]
    count = len(command[items]) // 16 if command[first + 3] == "bin" else len(command) - items
    if name != "claim":
        return len(reply) == count
    if command[first + 3] != "bin":
        count //= 2  # what is kept of each item stands behind the items
    return len(reply) >= count and (len(reply) - count) % 3 == 0


def _of(kind: type) -> Shape:
    """Return the shape of the replies of a type."""
    return lambda _, reply: type(reply) is kind


_number, _text, _list = map(_of, (int, bytes, list))


def _text_or_none(_: Arguments, reply: Any) -> bool:
    return reply is None or type(reply) is bytes


def _texts(_: Arguments, reply: Any) -> bool:
    return type(reply) is list and all(type(each) is bytes for each in reply)


def _fields(_: Arguments, reply: Any) -> bool:
    return _texts(_, reply) and len(reply) % 2 == 0


def _one_each(arguments: Arguments, reply: Any) -> bool:
    """One value for each field, which stand behind the key."""
    return type(reply) is list and len(reply) == len(arguments) - 1 and all(_text_or_none((), each) for each in reply)


def _members(arguments: Arguments, reply: Any) -> bool:
    return _fields(arguments, reply) if arguments[-1] == "WITHSCORES" else _texts(arguments, reply)


def _page(_: Arguments, reply: Any) -> bool:
    """The next cursor, and a list."""
    return type(reply) is list and len(reply) == 2 and type(reply[0]) is bytes and _texts((), reply[1])  # noqa: PLR2004


def _pair(_: Arguments, reply: Any) -> bool:
    return _texts((), reply) and len(reply) == 2  # noqa: PLR2004


def _sentinels(arguments: Arguments, reply: Any) -> bool:
    return reply is None or (_pair(arguments, reply) if arguments[0] == "GET-MASTER-ADDR-BY-NAME" else _list((), reply))


def _entries(_: Arguments, reply: Any) -> bool:
    """Four values an item, as ``reclaim`` answers."""
    return type(reply) is list and len(reply) % 4 == 0 and all(type(each) in {bytes, int} for each in reply)


def _number_or_fields(arguments: Arguments, reply: Any) -> bool:
    """``drop`` and ``restore`` answer meta to some steps."""
    return _fields(arguments, reply) if arguments[0] in {"begin", "abandon"} else type(reply) is int


#: The shapes of the replies to the plain commands.
SHAPES: Mapping[str | bytes, Shape] = {
    **dict.fromkeys(("ASKING", "READONLY", "READWRITE"), lambda _, reply: bool(reply == b"OK")),
    **dict.fromkeys(
        ("BITCOUNT", "EXISTS", "EXPIRE", "HDEL", "HEXISTS", "HSETNX", "SADD", "SCARD", "SISMEMBER"), _number
    ),
    **dict.fromkeys(("SREM", "STRLEN", "WAIT", "ZCARD", "ZLEXCOUNT"), _number),
    **dict.fromkeys(("GETRANGE", "INFO", "TYPE"), _text),
    **dict.fromkeys(("HGET", "ZSCORE"), _text_or_none),
    **dict.fromkeys(("CLUSTER", "COMMAND", "ROLE"), _list),
    **dict.fromkeys(("SMEMBERS", "ZRANGEBYLEX"), _texts),
    **dict.fromkeys(("CONFIG", "HGETALL"), _fields),
    **dict.fromkeys(("HSCAN", "SCAN", "SSCAN", "ZSCAN"), _page),
    "HMGET": _one_each,
    "MEMORY": lambda _, reply: reply is None or type(reply) is int,
    "PING": lambda _, reply: bool(reply == b"PONG"),
    "SCRIPT": lambda _, reply: type(reply) is bytes and len(reply) == 40,  # noqa: PLR2004 - SHA-1 in hex
    "SENTINEL": _sentinels,
    "TIME": _pair,
    "ZRANGE": _members,
}

#: The shapes of the replies to the scripts that are not about items.
SHAPES_OF_SCRIPTS: Mapping[str, Shape] = {
    **dict.fromkeys(("beat", "build", "expire", "merge", "refill", "reopen", "store", "tend", "turn"), _number),
    **dict.fromkeys(("checkpoint", "create"), _fields),
    **dict.fromkeys(("drop", "restore"), _number_or_fields),
    "probe": lambda _, reply: type(reply) is list and len(reply) == 3 and all(_texts((), each) for each in reply),  # noqa: PLR2004
    "reclaim": _entries,
}
