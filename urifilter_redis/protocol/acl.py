"""ACLs: the commands and keys that each part of a crawl needs, and the line that makes a user for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from urifilter_redis.bloom.sizing import BLOCKED_K, REDISBLOOM
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.keys import FilterKeys, check_prefix

#: The advice for a user that lacks a right.
MEND = "mend its ACL (urifilter doctor --acl prints the line)"

#: The commands of every client: it connects, asks a cluster for its map and follows it, and runs scripts.
_EVERY = ("ASKING", "CLUSTER SLOTS", "EVALSHA", "PING", "READONLY", "READWRITE", "ROLE", "SCRIPT LOAD", "TIME")

#: The commands with which a filter is opened, listed and described.
_READS = (
    *("BITCOUNT", "EXISTS", "GETRANGE", "HGET", "HGETALL", "MEMORY USAGE", "SISMEMBER", "SMEMBERS", "STRLEN"),
    *("ZCARD", "ZLEXCOUNT", "ZRANGE"),
)

#: The commands with which clients that insert and claim read due rotations and what is in flight.
_CRAWLS = ("HEXISTS", "HMGET", "WAIT", "ZRANGEBYLEX")

#: The commands with which the service keeps the samples of its plots (``ShardKeys.rates``).
_PLOTS = ("EXPIRE", "HDEL", "HSETNX")

#: The commands that make, drop, save, restore, examine, and import from a set.
_OPERATES = ("CONFIG GET", "EVAL", "HSCAN", "INFO", "SADD", "SCAN", "SCARD", "SREM", "SSCAN", "TYPE", "ZSCAN", "ZSCORE")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a crawl: the scripts that it runs, and the commands that the library sends beside theirs."""

    scripts: tuple[str, ...]
    sent: tuple[str, ...]


#: The parts by their names, the smallest first.
PARTS: Mapping[str, Part] = {
    "reader": Part(("contains",), (*_EVERY, *_READS)),
    "crawler": Part(
        (
            *("insert", "contains", "forget", "remove", "claim", "commit", "release", "reclaim", "beat"),
            *("turn", "build", "store", "expire", "reopen", "tend"),
        ),
        (*_EVERY, *_READS, *_CRAWLS, *_PLOTS),
    ),
    "operator": Part(
        tuple(each for each in scripts.COMMANDS if each != "probe"), (*_EVERY, *_READS, *_CRAWLS, *_PLOTS, *_OPERATES)
    ),
}


def commands(part: str, *, database: int = 0, layout: str = "") -> list[str]:
    """Return the commands that a part needs, sorted: those that the library sends, and those that its scripts call.

    Args:
        part: one of ``PARTS``.
        database: the number of the database that the user's clients select.
        layout: redisbloom: also the commands of the server's module, which other servers do not know.

    Example:
        >>> commands("reader")[:4]
        ['ASKING', 'BITCOUNT', 'BITFIELD_RO', 'CLUSTER SLOTS']
    """
    called = {each for each in _called(part) if layout == REDISBLOOM or not each.startswith("BF.")}
    return sorted({*PARTS[part].sent, *called, *(["SELECT"] if database else [])})


@cache
def _called(part: str) -> frozenset[str]:
    """Return the commands that the scripts of a part call."""
    names = PARTS[part].scripts
    every = (each.commands for each in scripts.variants(BLOCKED_K) if each.name.partition(":")[0] in names)
    return frozenset[str]().union(*every)


def patterns(prefix: str, name: str | None = None) -> list[str]:
    """Return the patterns of the keys of one filter, or of all filters of a prefix; and the key that lists them.

    Example:
        >>> patterns("urifilter", "news")
        ['urifilter:filters', 'urifilter:{news:*']
    """
    listed = f"{check_prefix(prefix)}:filters"
    return [listed, f"{FilterKeys(prefix, name).beginning}*" if name else f"{prefix}:{{*"]


def line(part: str, prefix: str, name: str | None = None, *, database: int = 0, layout: str = "") -> str:
    """Return the command ACL SETUSER that makes a user with the name of its part, for Redis 6.2 and newer, and Valkey.

    See ``commands`` and ``patterns``.
    """
    keys = [f"~{each}" for each in patterns(prefix, name)]
    rights = [f"+{each.lower().replace(' ', '|')}" for each in commands(part, database=database, layout=layout)]
    return " ".join(["ACL SETUSER", part, "reset", "on", ">PASSWORD", "resetchannels", *keys, *rights])
