"""How digests are cut into calls of scripts: at once, or part by part while earlier calls are under way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.protocol.claims import BYTES_A_CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from urifilter_redis.protocol.call_ids import CallId

__all__ = ["PART", "OpenCall", "Uncut", "cut_all", "cut_chosen", "cut_lighter"]

#: The items of one part of those that are cut while earlier calls are under way: as many as go out at once.
PART = 4000

#: A part has so many items a shard at least, so that what is left of a shard is seldom carried to the next part.
PART_OF_A_SHARD = 250


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call of a script whose answers have not arrived: some items of one shard.

    Attributes:
        shard: the shard that all the items belong to.
        positions: the positions of the items in the batch.
        packed: the digests, 16 bytes an item.
        call_id: the id under which the call was sent. A retry keeps it, so that an earlier attempt that is still
            under way cannot insert a second time. None: not sent yet, or the call writes nothing.
        in_doubt: whether the call may have run.
        digests: the digests, for the near cache of the batch, which may empty the list; None: the batch has none.
        sent: whether an attempt that failed may have reached the server, so that a late copy of it may still run.
    """

    shard: int
    positions: Sequence[int]
    packed: bytes
    call_id: CallId | None = None
    in_doubt: bool = False
    digests: list[bytes] | None = None
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Uncut:
    """Items that are not in calls yet. It never changes: ``cut`` returns what is left.

    The calls of a shard are the same, and come in the same order, however many items a part has.

    Attributes:
        digests: the digests of all items, those in calls included.
        shards: the filter's number of shards.
        size: returns the most items of one call, given the shard.
        part: the items that ``cut`` looks at, unless a part of so many shards has more.
        keep: whether the calls keep their lists of digests.
        start: the position of the first item that no ``cut`` has looked at.
        left: by shard, the positions of earlier items, too few for a full call.
    """

    digests: list[bytes]
    shards: int
    size: Callable[[int], int]
    part: int
    keep: bool = False
    start: int = 0
    left: dict[int, Sequence[int]] = field(default_factory=dict)

    def cut(self) -> tuple[list[OpenCall], Uncut | None]:
        """Return the calls that the next part makes full (the last part: all calls), and the rest, None for nothing."""
        end = min(self.start + max(self.part, PART_OF_A_SHARD * self.shards), len(self.digests))
        last = end == len(self.digests)
        positions = self._positions(end)
        calls: list[OpenCall] = []
        left: dict[int, Sequence[int]] = {}
        for shard, all_of_it in sorted(positions.items()):
            size = self.size(shard)
            count = len(all_of_it) if last else len(all_of_it) // size * size
            calls += [self._call(shard, all_of_it[start : start + size]) for start in range(0, count, size)]
            left[shard] = all_of_it[count:]
        return calls, None if last else replace(self, start=end, left=left)

    def _positions(self, end: int) -> Mapping[int, Sequence[int]]:
        """Return, by shard, the positions before ``end`` that are in no call yet."""
        if self.shards == 1:
            left = self.left.get(0)
            return {0: range(left[0] if left else self.start, end)}
        found: defaultdict[int, list[int]] = defaultdict(list, {shard: [*some] for shard, some in self.left.items()})
        for position, shard in enumerate(shards_of(self.digests[self.start : end], self.shards), self.start):
            found[shard].append(position)
        return found

    def _call(self, shard: int, positions: Sequence[int]) -> OpenCall:
        if isinstance(positions, range):
            some = self.digests[positions.start : positions.stop]
        else:
            some = [self.digests[position] for position in positions]
        return OpenCall(shard, positions, b"".join(some), digests=some if self.keep else None)


def cut_all(digests: list[bytes], shards: int, size: Callable[[int], int], *, keep: bool) -> list[OpenCall]:
    """Cut digests into calls, which keep their lists of digests if ``keep``."""
    return Uncut(digests, shards, size, max(1, len(digests)), keep).cut()[0]


def cut_chosen(
    digests: list[bytes], chosen: list[bool], shards: int, size: Callable[[int], int], *, keep: bool
) -> list[OpenCall]:
    """Cut those digests into calls that are chosen."""
    made = cut_all(list(compress(digests, chosen)), shards, size, keep=keep)
    positions = list(compress(range(len(digests)), chosen))
    for call in made:
        call.positions = [positions[each] for each in call.positions]
    return made


def cut_lighter(calls: list[OpenCall], weights: Sequence[int]) -> list[OpenCall]:
    """Cut calls further, so that what is kept of the items of each has at most ``BYTES_A_CALL``."""
    lighter = []
    for call in calls:
        start, weight = 0, 0
        for number, position in enumerate(call.positions):
            weight += weights[position]
            if weight > BYTES_A_CALL and number > start:
                lighter.append(_part(call, start, number))
                start, weight = number, weights[position]
        lighter.append(_part(call, start, len(call.positions)))
    return lighter


def _part(call: OpenCall, start: int, end: int) -> OpenCall:
    digests = None if call.digests is None else call.digests[start:end]
    return OpenCall(call.shard, call.positions[start:end], call.packed[16 * start : 16 * end], digests=digests)
