"""The layouts, the retentions and the steps of a rotation in plain Python, without a server.

It is what the scripts are compared with, byte for byte and step for step, and it is written for the reader: this is
what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import blocked_offsets, classic_offsets
from urifilter_redis.bloom.sizing import REDISBLOOM, bytes_of
from urifilter_redis.storage.documents import piece_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: A counter that has come so far stays.
_STUCK = 15


class ModelSlice:
    """One bitmap, or of layout redisbloom a set.

    Attributes:
        data: what GETRANGE of the whole slice returns.
    """

    def __new__(cls, layout: str, *_: int):
        return super().__new__(ModelSet if layout == REDISBLOOM else cls)

    def __init__(self, layout: str, k: int, units: int) -> None:
        self.data = bytearray(bytes_of(layout, k, units))
        self._counting = layout == "counting"
        self._offsets = blocked_offsets if layout == "blocked" else classic_offsets
        self._k, self._units = k, units

    def has(self, digest: bytes) -> bool:
        """Whether all k bits, or counters, of the item are set."""
        return all(self._value(at) for at in self._cells(digest))

    def insert(self, digest: bytes) -> bool:
        """Set the item's bits, or count it; return whether it was not there."""
        new = not self.has(digest)
        if new:
            self.add(digest)
        return new

    def add(self, digest: bytes) -> None:
        """Set the item's bits, or count it, also if it seems to be there."""
        for at in self._cells(digest):
            self._change(at, 1)

    def remove(self, digest: bytes) -> bool:
        """counting: take the item out; return whether it was there."""
        there = self.has(digest)
        if there:
            for at in self._cells(digest):
                self._change(at, -1)
        return there

    def _cells(self, digest: bytes) -> Iterable[int]:
        """Return the item's offsets, each distinct one once."""
        return dict.fromkeys(self._offsets(digest, self._units, self._k))

    def _value(self, at: int) -> int:
        if self._counting:
            return self.data[at // 2] >> (0 if at % 2 else 4) & 15
        return self.data[at >> 3] & 128 >> (at & 7)

    def _change(self, at: int, change: int) -> None:
        if not self._counting:
            self.data[at >> 3] |= 128 >> (at & 7)
        elif self._value(at) != _STUCK:
            self.data[at // 2] += change * (1 if at % 2 else 16)


class ModelSet(ModelSlice):
    """A slice of layout redisbloom, of so few items that none is seen by chance.

    Attributes:
        items: the digests.
    """

    def __init__(self, *_) -> None:
        self.items: set[bytes] = set()

    def has(self, digest: bytes) -> bool:
        return digest in self.items

    def add(self, digest: bytes) -> None:
        self.items.add(digest)


class Refused(Exception):
    """A step that a script refuses; its text is the error word."""


@dataclass
class ModelShard:
    """One shard of a filter.

    Attributes:
        layout, k, units: geometry of every slice.
        retention, window, write, expire_after: as in ``Settings``; ``window`` is ``slices`` there.
        limit: growing: items of today.
        slices: the live ones, from oldest to newest.
        archive: rolling: the closed slices, by epoch.
        pieces, late: rolling: how far the next history is built, and whether of the whole old one.
        oldest: the lowest epoch that a live slice holds items of.
        new, closed: with last-seen, how many items count for today, and for each closed epoch.
        now, opened, written: the time, when today was opened, and when it was last written to, ms; the test sets now.
    """

    layout: str
    k: int
    units: int
    retention: str = "forever"
    window: int = 1
    write: str = "newest"
    expire_after: str = "first-seen"
    limit: int | None = None
    slices: list[ModelSlice] = field(default_factory=list)
    forgotten: dict[bytes, int] = field(default_factory=dict)
    archive: dict[int, bytes] = field(default_factory=dict)
    epoch: int = 0
    phase: str = "idle"
    token: str = ""
    pieces: int | None = None
    late: bool = False
    allocated: bool = False
    inserted: int = 0
    oldest: int = 0
    new: int = 0
    closed: dict[int, int] = field(default_factory=dict)
    now: int = 0
    opened: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        self.slices = [self._new()]

    @classmethod
    def of(cls, meta: dict[str, str]):
        """Return the model of a new shard with this ``meta``."""
        return cls(
            meta["fixed"].split()[1],
            int(meta["k"]),
            int(meta["units"]),
            meta["retention"],
            int(meta.get("window", 1)),
            meta.get("write", "newest"),
            meta.get("expire_after", "first-seen"),
            int(meta["limit"]) if "limit" in meta else None,
        )

    def insert(self, digests: Sequence[bytes], max_age: int = 0) -> list[int]:
        """Return the age of each item, 0 being new; afterwards all are seen."""
        room = None if self.limit is None else self.limit - self.inserted
        if room is not None and self.contains(list(set(digests))).count(0) > room:
            raise Refused("FULL")
        return [self._insert(digest, max_age) for digest in digests]

    def contains(self, digests: Sequence[bytes], max_age: int = 0) -> list[int]:
        """Return the age of each item, 0 being not seen."""
        return [0 if digest in self.forgotten else self._age(digest, max_age) for digest in digests]

    def forget(self, digests: Sequence[bytes]) -> list[int]:
        """Make items new again; return 1 for each that was seen."""
        were_there = []
        for digest in digests:
            were_there.append(int(self.contains([digest])[0] > 0))
            if were_there[-1]:
                self.forgotten[digest] = self.epoch
        return were_there

    def remove(self, digests: Sequence[bytes]) -> list[int]:
        """counting: take items out; return 1 for each that was seen."""
        removed = [int(d not in self.forgotten and self.slices[-1].remove(d)) for d in digests]
        self.inserted -= sum(removed)
        return removed

    def allocate(self, epoch: int) -> None:
        """Make the next today."""
        self._fence(epoch, "idle")
        self.allocated = True

    def turn(
        self, epoch: int, token: str, limit: int | None = None, by: int = 1, period: int = 0, opened: int = 0
    ) -> None:
        """Close today; the next one takes its place, ``by`` epochs later; those between have no slice."""
        self._fence(epoch, "idle")
        opens = max(self.opened + period, min(self.written, self.now)) + (by - 1) * period
        if period and self.now < opens:
            raise Refused("BADPHASE")
        self.opened, self.written = min(max(opened, opens), self.now) if opened else self.now, 0
        if not self.allocated:
            raise Refused("BADPHASE")
        self.closed[epoch], self.new = self.new, 0
        if self.retention == "ring":
            self.oldest = max(self.oldest, epoch + by - self.window + 1)
            self.closed = {each: count for each, count in self.closed.items() if each >= self.oldest}
            self.slices = self.slices[len(self.slices) - len(self.closed) :]
        if self.retention == "rolling" and by >= self.window:
            self.slices = []
        self.slices.append(self._new())
        self.epoch, self.token, self.inserted, self.allocated = epoch + by, token, 0, False
        self.phase = "rotating" if self.retention == "rolling" else "idle"
        self.pieces, self.late, self.limit = None, False, limit or self.limit
        self._expire()

    def store(self, epoch: int, token: str) -> None:
        """Rolling: put the closed slice into the archive."""
        self._fence(epoch, "rotating", token)
        if self.pieces is not None:
            raise Refused("BADPHASE")
        self.archive[max(self.closed)] = bytes(self.slices[-2].data)

    def archived(self, epoch: int, token: str, pieces: int) -> None:
        """Rolling: the closed slice is in the archive; so many pieces of the next history need not be built."""
        self._fence(epoch, "rotating", token)
        if self.pieces is not None:
            raise Refused("BADPHASE")
        self.pieces = pieces

    def build(self, epoch: int, token: str, number: int, data: bytes, *, late: bool) -> None:
        """Rolling: write a piece of the next history."""
        self._fence(epoch, "rotating", token)
        if self.pieces != number:
            raise Refused("BADPHASE")
        offset, length = list(self.spans())[number]
        self.slices[-2].data[offset : offset + length] = data
        self.pieces, self.late = number + 1, self.late or late

    def delete(self, epoch: int, token: str, expired: int) -> None:
        """Rolling: remove an expired slice from the archive."""
        self._fence(epoch, "rotating", token)
        self.archive.pop(expired, None)

    def finish(self, epoch: int, token: str, oldest: int, items: int = 0) -> None:
        """Rolling: what was built is the history, of so many items."""
        self._fence(epoch, "rotating", token)
        if self.pieces != len(list(self.spans())):
            raise Refused("BADPHASE")
        self.slices = self.slices[-2:]
        self.oldest = self.oldest if self.late else oldest
        self.phase, self.pieces, self.late = "idle", None, False
        self.closed = dict.fromkeys(self.closed, 0) | {max(self.closed): items}
        self._expire()

    def spans(self) -> Iterator[tuple[int, int]]:
        """Return offset and length of each piece of a slice."""
        return piece_spans(bytes_of(self.layout, self.k, self.units))

    def _new(self) -> ModelSlice:
        return ModelSlice(self.layout, self.k, self.units)

    def _fence(self, epoch: int, phase: str, token: str | None = None) -> None:
        if (self.epoch, self.phase) != (epoch, phase) or token not in {None, self.token}:
            raise Refused("BADPHASE")

    def _expire(self) -> None:
        self.forgotten = {digest: epoch for digest, epoch in self.forgotten.items() if epoch >= self.oldest}
        self.closed = {epoch: count for epoch, count in self.closed.items() if epoch >= self.oldest}

    def _age(self, digest: bytes, max_age: int = 0) -> int:
        looked_at = self.slices[::-1][: max_age or None]
        if self.write == "all":
            return int(looked_at[-1].has(digest))
        age = next((age for age, each in enumerate(looked_at, 1) if each.has(digest)), 0)
        return min(age, 2) if self.retention == "rolling" else age

    def _insert(self, digest: bytes, max_age: int) -> int:
        again = self.forgotten.pop(digest, None) is not None
        age = 0 if again else self._age(digest, max_age)
        wrote = [False]
        if age == 0 or self.expire_after == "last-seen":
            wrote = [each.insert(digest) for each in self._written()]
            self.written = max(self.written, self.now)
        if age == 0 or wrote[-1]:
            self.inserted += 1
            self._count(age, sum(wrote) if self.write == "all" else age - 1)
        return age

    def _count(self, age: int, slices: int) -> None:
        """Count an item for today, and not for the slice that had it before, which was closed so many slices ago."""
        self.new += age == 0 or self.retention == "ring"
        if age and self.retention == "ring":
            closed = sorted(self.closed)[-slices]
            self.closed[closed] = max(0, self.closed[closed] - 1)

    def _written(self) -> list[ModelSlice]:
        return self.slices if self.write == "all" else self.slices[-1:]
