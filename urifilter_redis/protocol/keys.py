"""The names of the keys (the schema is drawn in ``lua/insert.lua``)."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count

#: The beginning of every key, unless the caller gives another prefix.
DEFAULT_PREFIX = "urifilter"

#: The slots of a Redis Cluster.
SLOTS = 16384

#: From so many shards on, salts are looked up in tables. A search takes as many tries as there are shards, 0.3 us each.
MANY = 500

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def is_name(name: str) -> bool:
    """Whether a filter may have this name."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name))


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
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
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
    def read_meta(self) -> tuple[str, str]:
        """The command that reads ``meta``."""
        return "HGETALL", self.meta

    @property
    def replies(self) -> str:
        """The key of a hash: client and slot -> the record of the slot's last writing call."""
        return self.base + "replies"

    @property
    def forgotten(self) -> str:
        """The key of a sorted set: digests that count as new once more, scored by epoch and, behind the point, time."""
        return self.base + "forgotten"

    @property
    def leases(self) -> str:
        """The key of a hash: digest -> what is kept of an item in flight."""
        return self.base + "leases"

    @property
    def in_flight(self) -> str:
        """The key of a sorted set, all scores 0: holder and digest of each item in flight."""
        return self.base + "in_flight"

    @property
    def holders(self) -> str:
        """The key of a sorted set: holder -> until when it lives, server ms."""
        return self.base + "holders"

    @property
    def of_claims(self) -> tuple[str, str, str]:
        """The keys ``leases``, ``in_flight`` and ``holders``."""
        return self.leases, self.in_flight, self.holders

    @property
    def of_dead_letters(self) -> tuple[str, str]:
        """The keys of a hash, digest -> dead letter, and of a sorted set by time."""
        return self.base + "dead_letters", self.base + "dead_letters_at"

    @property
    def rates(self) -> str:
        """The key of a hash: minute -> a sample for the plots of the service (``flows.samples``); of shard 0 only."""
        return self.base + "rates"

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
    """The keys of one filter: ``prefix:{name:shard}:…`` or ``prefix:{name:shard-salt}:…``.

    A tag has the first salt that brings its shard into the shard's group of slots, so that the shards lie evenly over
    the masters of a Redis Cluster; a shard that is there without a salt has none. The keys of shard 0 follow from the
    name. Those of the others depend on the number of shards, which shard 0's ``meta`` or the archive tells: until then
    only shard 0 has keys here.

    Attributes:
        prefix: the beginning of all keys.
        name: the filter's name.
        shards: the number of shards.

    Example:
        >>> FilterKeys("urifilter", "news", 18).shard(1).meta
        'urifilter:{news:1-53}:meta'

    Raises:
        ValueError: the prefix or the name is impossible.
    """

    prefix: str
    name: str
    shards: int = 1
    _made: dict[int, ShardKeys] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        check_name(self.name)

    @property
    def filters(self) -> str:
        """The key of a set: the names of all filters under this prefix."""
        return f"{self.prefix}:filters"

    @property
    def beginning(self) -> str:
        """The beginning of all keys of all shards, whatever their number; it may begin a pattern of SCAN."""
        return f"{self.prefix}:{{{self.name}:"

    def of(self, shards: int) -> FilterKeys:
        """Return the keys of the filter of this name with so many shards."""
        return self if shards == self.shards else replace(self, shards=shards, _made={})

    def of_meta(self, meta: Mapping[str, str]) -> FilterKeys | None:
        """Return the keys of the filter whose ``meta`` this is; None if it does not tell the shards."""
        try:
            return self.of(int(meta["shards"]))
        except (KeyError, ValueError):
            return None

    def shard(self, number: int) -> ShardKeys:
        """Return the keys of shard ``number`` (from 0).

        Raises:
            IndexError: the filter has no such shard, or the number of its shards was not told.
        """
        if number not in self._made:
            if not 0 <= number < self.shards:
                raise IndexError(f"shard {number} of {self.name!r}, which has {self.shards}")
            self._made[number] = ShardKeys(f"{self.prefix}:{{{_spread(self.name, number, self.shards)}}}:")
        return self._made[number]

    @property
    def all(self) -> list[ShardKeys]:
        """The keys of each shard, in order."""
        return [self.shard(number) for number in range(self.shards)]

    def shard_of(self, key: str) -> ShardKeys | None:
        """Return the keys of the shard to which ``key`` belongs, whatever its salt; None if it is not this filter's."""
        found = re.match(re.escape(self.beginning) + r"\d+(-\d+)?}:", key, re.ASCII)
        return ShardKeys(found[0]) if found else None


def _spread(name: str, number: int, shards: int) -> str:
    """Return the first of ``name:number``, ``name:number-1``, ``name:number-2`` … whose slot is in the shard's group.

    There are as many groups as shards, each with an equal share of the slots. Shard 0 stands in the group of its own
    slot, and each shard in the group after that of the shard before.
    """
    group = (_crc(f"{name}:0") % SLOTS * shards // SLOTS + number) % shards
    slots = range(-(-SLOTS * group // shards), -(-SLOTS * (group + 1) // shards))
    tag = f"{name}:{number}"
    crc = _crc(tag)
    return tag if crc % SLOTS in slots else f"{tag}-{(_search if shards < MANY else _look_up)(crc, slots)}"


def _search(crc: int, slots: range) -> int:
    """Return the lowest salt that brings a tag with this CRC into one of the slots."""
    return next(salt for salt in count(1) if binascii.crc_hqx(b"-%d" % salt, crc) % SLOTS in slots)


def _look_up(crc: int, slots: range) -> int:
    """Return the same for a few slots, faster.

    A CRC is linear: that of two texts, one after the other, is that of zeros after the first XOR that of the second.
    """
    for digits in count(1):
        salts, zeros = _salts(digits), binascii.crc_hqx(bytes(1 + digits), crc)
        wanted = (zeros ^ (high | slot) for slot in slots for high in range(0, 1 << 16, SLOTS))
        if found := min(filter(None, map(salts.get, wanted)), default=0):
            return found
    raise AssertionError("there is always a salt")


@cache
def _salts(digits: int) -> dict[int, int]:
    """Return the lowest salt of so many digits for each CRC that one gives."""
    salts = range(10**digits - 1, 10 ** (digits - 1) - 1, -1)
    return {binascii.crc_hqx(b"-%d" % salt, 0): salt for salt in salts}


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key in a Redis Cluster, from 0.

    Source: the Redis Cluster specification: CRC16 (XMODEM) of the first non-empty text in braces, else of the key.

    Example:
        >>> slot_of("urifilter:{news:0}:meta")
        11069
    """
    text = key if isinstance(key, bytes) else key.encode()
    begin = text.find(b"{")
    end = text.find(b"}", begin + 1) if begin >= 0 else -1
    return binascii.crc_hqx(text[begin + 1 : end] if end > begin + 1 else text, 0) % SLOTS


def _crc(text: str) -> int:
    return binascii.crc_hqx(text.encode(), 0)
