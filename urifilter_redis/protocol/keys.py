"""The names of the keys (the schema is drawn in ``lua/insert.lua``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEFAULT_PREFIX", "FilterKeys", "ShardKeys", "check_name", "check_prefix", "is_name"]

#: The beginning of every key, unless the caller gives another prefix.
DEFAULT_PREFIX = "urifilter"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def is_name(name: str) -> bool:
    """Whether a filter may have this name."""
    return bool(_NAME.fullmatch(name))


def check_name(name: str) -> str:
    """Return ``name`` if a filter may have this name.

    Raises:
        ValueError: the name is not 1 to 64 of ``A-Z a-z 0-9 . _ -``.
    """
    if not is_name(name):
        raise ValueError(f"a filter's name is 1 to 64 of A-Z a-z 0-9 . _ - and not {name!r}")
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys may begin with it.

    Raises:
        ValueError: the prefix is not 1 to 64 of ``A-Z a-z 0-9 . _ : -`` (braces would change the cluster slot).
    """
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"a key prefix is 1 to 64 of A-Z a-z 0-9 . _ : - and not {prefix!r}")
    return prefix


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard; all have one hash tag, and so belong to one slot of a Redis Cluster.

    Example:
        >>> FilterKeys("urifilter", "news").shard(0).meta
        'urifilter:{news:0}:meta'
    """

    base: str

    @property
    def meta(self) -> str:
        """The key of a hash: uid, configuration, epoch, phase, slices."""
        return self.base + "meta"

    @property
    def replies(self) -> str:
        """The key of a hash: client and slot -> the record of the slot's last writing call."""
        return self.base + "replies"

    @property
    def forgotten(self) -> str:
        """The key of a sorted set: digests that count as new once more, scored by epoch and, behind the point, time."""
        return self.base + "forgotten"

    @property
    def next(self) -> str:
        """The key of the bitmap that will be the next today; nothing reads it before that."""
        return self.slice("today_next")

    @property
    def merging(self) -> tuple[str, str]:
        """The keys of two strings that exist only while the script ``merge`` or ``refill`` runs."""
        return self.base + "merging_1", self.base + "merging_2"

    def archived(self, epoch: int) -> str:
        """Return the key of a hash: a closed slice, compressed, if the archive is Redis itself."""
        return f"{self.base}slice:{epoch}"

    def slice(self, name: str) -> str:
        """Return the key of the bitmap called ``name`` (``today``, ``history_1`` …)."""
        return self.base + name


@dataclass(frozen=True, slots=True)
class FilterKeys:
    """The keys of one filter: ``prefix:{name:shard}:…``."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        check_name(self.name)

    @property
    def filters(self) -> str:
        """The key of a set: the names of all filters under this prefix."""
        return f"{self.prefix}:filters"

    def shard(self, number: int) -> ShardKeys:
        """Return the keys of shard ``number`` (from 0)."""
        return ShardKeys(f"{self.prefix}:{{{self.name}:{number}}}:")
