"""Where a command goes: to the node that has its key, or to a named one; and how shards lie over masters."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from urifilter_redis.protocol.keys import DEFAULT_PREFIX, SLOTS, FilterKeys, slot_of

#: The command before one that was sent on by ASK: the node runs it although the slot is not its own yet.
ASKING = ("ASKING",)

#: The commands before and after one that a replica of a Redis Cluster may answer. The second is for the connections to
#: masters that become replicas.
READONLY, READWRITE = ("READONLY",), ("READWRITE",)

#: The position of the key in commands that do not have it directly behind their name.
_KEY_POSITIONS: Mapping[str | bytes, int] = {"EVALSHA": 3, "EVAL": 3, "MEMORY": 2}

#: The commands without a key.
_KEYLESS = frozenset({"CLUSTER", "CONFIG", "INFO", "PING", "ROLE", "SCAN", "SCRIPT", "TIME", "WAIT"})


class Addressed(tuple[str | bytes, ...]):  # noqa: SLOT001 - a tuple has no others than __dict__
    """A command that names where it goes. To a server that is no cluster it goes as any other.

    Attributes:
        key: the key whose node gets it; "": see ``node``.
        node: the name of the node that gets it, whatever its key; "": the node of the key.
        asking: whether the key is on its way to that node.
        replica: whether a replica of the node may answer.
    """

    key: str | bytes = ""
    node: str = ""
    asking: bool = False
    replica: bool = False


def for_key(command: Sequence[str | bytes], key: str | bytes) -> Addressed:
    """Return a command that goes where a key is."""
    made = Addressed(command)
    made.key = key
    return made


def for_node(command: Sequence[str | bytes], node: str, *, asking: bool = False) -> Addressed:
    """Return a command that goes to a node."""
    made = Addressed(command)
    made.node, made.asking = node, asking
    return made


def for_replica(command: Sequence[str | bytes]) -> Addressed:
    """Return a command that goes to a replica of the node that has its key, if there is one."""
    made = Addressed(command)
    made.replica = True
    return made


def like(command: Sequence[str | bytes], other: Sequence[str | bytes]) -> Addressed:
    """Return a command without a key that goes where another goes."""
    made = Addressed(command)
    if isinstance(other, Addressed):
        made.node, made.replica = other.node, other.replica
    made.key = key_of(other)
    return made


def slot_of_command(command: Sequence[str | bytes]) -> int:
    """Return the slot of the command's key; 0 if it has none, because any node will do."""
    key = key_of(command)
    return slot_of(key) if key else 0


def key_of(command: Sequence[str | bytes]) -> str | bytes:
    """Return the first key of a command; "" if it has none.

    Example:
        >>> key_of(("EVALSHA", "0123…", "1", "urifilter:{news:0}:meta"))
        'urifilter:{news:0}:meta'
    """
    if isinstance(command, Addressed) and command.key:
        return command.key
    name = command[0]
    if name in _KEYLESS or (name in {"EVAL", "EVALSHA"} and command[2] == "0"):
        return ""
    return command[_KEY_POSITIONS.get(name, 1)]


def first_slots(masters: int) -> list[int]:
    """Return the first slot of each master, as ``redis-cli --cluster create`` deals all slots to so many.

    redis-cli adds up in single precision, which moves some slots by one from 78 masters on.

    Raises:
        ValueError: the masters are not 1 to 16,384.
    """
    if not 1 <= masters <= SLOTS:
        raise ValueError(f"nodes are 1 to {SLOTS:,} masters, and not {masters:,}")
    each, cursor = _single(SLOTS / masters), 0.0
    firsts = [0]
    for _ in range(masters - 1):
        last = math.floor(_single(_single(cursor + each) - 1) + 0.5)
        firsts.append(max(last, firsts[-1]) + 1)
        cursor = _single(cursor + each)
    return firsts


def shards_by_master(names: Iterable[str], shards: int, masters: int) -> list[int]:
    """Return the number of shards that each master has of filters with these names, which decide the slots.

    Raises:
        ValueError: a name cannot be a filter's, or the masters are not 1 to 16,384.

    Example:
        >>> shards_by_master(["news"], 18, 3)
        [6, 6, 6]
    """
    firsts, found = first_slots(masters), Counter[int]()
    for name in names:
        found.update(bisect(firsts, slot_of(keys.meta)) - 1 for keys in FilterKeys(DEFAULT_PREFIX, name, shards).all)
    return [found[master] for master in range(masters)]


def _single(number: float) -> float:
    """Return the nearest number of single precision."""
    return ctypes.c_float(number).value
