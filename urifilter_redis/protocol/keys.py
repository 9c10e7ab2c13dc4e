"""The names of the keys (the schema is drawn in ``lua/insert.lua``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEFAULT_PREFIX", "FilterKeys", "ShardKeys", "check_name", "check_prefix", "is_name"]

#: What every key begins with unless the caller says otherwise.
DEFAULT_PREFIX = "urifilter"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def is_name(name: str) -> bool:
    """Whether a filter may be called so."""
    return bool(_NAME.fullmatch(name))


def check_name(name: str) -> str:
    """Return ``name`` if a filter may be called so.

    Raises:
        ValueError: it is not 1 to 64 of ``A-Z a-z 0-9 . _ -``.
    """
    if not is_name(name):
        raise ValueError(f"a filter's name is 1 to 64 of A-Z a-z 0-9 . _ - and not {name!r}")
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys may begin with it.

    Raises:
        ValueError: it is not 1 to 64 of ``A-Z a-z 0-9 . _ : -`` (braces would change the cluster slot).
    """
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"a key prefix is 1 to 64 of A-Z a-z 0-9 . _ : - and not {prefix!r}")
    return prefix


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard; they share one hash tag, so one slot of a Redis Cluster."""

    base: str

    @property
    def meta(self) -> str:
        """Hash: uid, configuration, epoch, phase, slices."""
        return self.base + "meta"

    @property
    def replies(self) -> str:
        """Hash: client and slot -> the last answer of a writing call."""
        return self.base + "replies"

    @property
    def forgotten(self) -> str:
        """Sorted set: digests that count as new once more, scored by epoch and, behind the point, time."""
        return self.base + "forgotten"

    @property
    def next(self) -> str:
        """The bitmap that will be today; never read before it is."""
        return self.slice("today_next")

    @property
    def merging(self) -> tuple[str, str]:
        """Two strings that exist while the script ``merge`` runs."""
        return self.base + "merging_1", self.base + "merging_2"

    def archived(self, epoch: int) -> str:
        """Hash: a closed slice, compressed, when the archive is Redis itself."""
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
        """Set: the names of all filters under this prefix."""
        return f"{self.prefix}:filters"

    def shard(self, number: int) -> ShardKeys:
        """Return the keys of shard ``number`` (from 0)."""
        return ShardKeys(f"{self.prefix}:{{{self.name}:{number}}}:")
