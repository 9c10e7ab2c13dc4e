"""Batches: the items of a caller, the method that asks about them, the calls of scripts, and the answers.

A script answers an age for each item: 0 if the item is new or was not seen; ``claim`` and ``commit`` likewise.
``forget``, ``remove`` and ``release`` answer 1 if the item was there. These numbers stay as they are until the last
line of a method, because False is 0, and would be new.
"""

from __future__ import annotations

import array
import operator
import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from urifilter_redis.bloom.digest import shard_of, shards_of, split
from urifilter_redis.checks import check_function, is_whole
from urifilter_redis.errors import Answering, Past, UriFilterError
from urifilter_redis.protocol.call_ids import CallId, CallKey
from urifilter_redis.protocol.claims import BYTES_A_CALL
from urifilter_redis.protocol.config import Config, Sorting

if TYPE_CHECKING:
    from urifilter_redis.engine.holdings import ClaimOptions
    from urifilter_redis.engine.near_cache import NearCache

B = TypeVar("B")
E = TypeVar("E", bound=UriFilterError)
R = TypeVar("R")

#: A function from an object of the caller's to its item; None: the objects are the items.
Key: TypeAlias = "Callable[[Any], object] | None"

#: Collections of numbers that are most likely one item.
_LONE = (str, bytes, bytearray, memoryview, array.array)

#: The items that are cut at once while earlier calls are under way: as many as go out at once.
PART = 4000

#: A part has so many items a shard at least, so that what is left of a shard is seldom carried to the next part.
PART_OF_A_SHARD = 250

#: The answer of the near cache: it stands for any age, as it knows none.
SEEN = 1

#: The answer of layout redisbloom about an item before which the server's module failed: nothing of it is written.
UNANSWERED = -2


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


class Batch:
    """The items of one call of the library, their answers so far, and the calls of scripts that are still open.

    Args:
        digests: the digest of each item. They are cut into calls, but for those that the near cache knows.
        shards: the filter's number of shards.
        cut: returns the most items of one call, given the shard.
        sorting: see ``Config``; None: the items keep their order.
        part: if there are more items, cut them only when calls are asked for, so many at once; None: cut all now.
            Not for a batch with a near cache or claim options.

    Attributes:
        command: ``insert``, ``contains``, ``forget``, ``remove``, ``claim``, ``commit`` or ``release``.
        items: the items as the caller gave them, or objects of the caller's.
        key: makes an item of each object; None: the objects are the items.
        term: makes the method's answer of a script's answer.
        answers: one answer an item, as the scripts give it, in the items' order; None for each that has not arrived.
        open: the calls of scripts without answers, as far as they are cut; see ``cut``.
        client: the client that the call ids in ``open`` belong to.
        max_age: ring: how many of the newest slices are tested; 0: all.
        writes: whether its calls write. The answers of such calls must not be lost.
        packed: the digests of all items, 16 bytes an item.
        near: the near cache that has answered some items, and takes in the answers to the others; None: there is none.
        claim_options: of a batch about claims, and None of any other. What they keep of items limits the calls, too.
        combined: the ``CombinedCall`` in which this batch, of one item, was sent with others; None: it is alone.
        first: of a keyed batch, the call that is answered before the others are sent; else None.
    """

    __slots__ = (
        "_found",
        "_uncut",
        "answers",
        "claim_options",
        "client",
        "combined",
        "command",
        "first",
        "items",
        "key",
        "max_age",
        "near",
        "open",
        "packed",
        "term",
        "writes",
    )

    def __init__(  # noqa: PLR0913 - all of it is what a batch is
        self,
        command: str,
        items: Sequence[object],
        digests: list[bytes],
        *,
        shards: int,
        cut: Callable[[int], int],
        client: str,
        sorting: Sorting | None = None,
        max_age: int = 0,
        key: Key = None,
        near: NearCache | None = None,
        claim_options: ClaimOptions | None = None,
        part: int | None = None,
    ) -> None:
        self.command, self.claim_options = command, claim_options
        self.items, self.key, self.client, self.max_age = items, key, client, max_age
        self.term: Callable[[int], int] = int
        self.writes = command != "contains"
        self.answers: list[int | None] = [None] * len(items)
        self.combined: object | None = None
        self.first: OpenCall | None = None
        self.open: list[OpenCall] = []
        self._uncut: Uncut | None = None
        self.near, self._found = near, None if near is None else near.find(digests)
        if self._found and all(self._found):
            self.answers = [SEEN] * len(items)
        elif len(digests) == 1:
            self.open = [OpenCall(shard_of(digests[0], shards), range(1), digests[0], digests=digests)]
        else:
            uncut = Uncut(digests, shards, cut, part or max(1, len(digests)), near is not None, sorting)
            if self._found and True in self._found:
                self.answers = [SEEN if found else None for found in self._found]
                self.open = _cut_chosen(uncut, [not found for found in self._found])
            elif len(digests) > uncut.part:
                self._uncut = uncut
            else:
                self.open = uncut.cut()[0]
        if claim_options is not None:
            self.open = self._kept(self.open)
        self.packed = b"".join(digests)

    def cut(self, count: int) -> list[OpenCall]:
        """Return the open calls, after cutting more until they are at least ``count``, or all items are in calls."""
        while self._uncut is not None and len(self.open) < count:
            more, uncut = self._uncut.cut()
            # both at once: Python does not look for Ctrl-C in between, so each item is always in one of them
            self.open, self._uncut = self.open + more, uncut
        return self.open

    def takes_windows(self, most: int) -> bool:
        """Whether there are more than ``most`` calls, and neither a near cache nor claim options."""
        return self.near is None and self.claim_options is None and (self._uncut is not None or len(self.open) > most)

    def name_calls(self, key: CallKey, shards: int, now: Callable[[int], int]) -> None:
        """Give all calls the ids that ``key`` makes; ``now`` returns the time of a shard's server, ms.

        A request of several calls has a first one, which is answered before the others are sent: it is refused if the
        key has served another request, whose first one left a record with its digest. Of a filter with ``shards`` it is
        a call to shard 0, maybe without an item, where all requests under this text have one. (Under a text with a slot
        it is the first of its calls, because only a program that counts makes such texts, one for each request.)
        """
        if shards > 1 and self.open[0].shard > 0 and not (key.of_items or key.is_slot):
            self.open.insert(0, OpenCall(0, range(0), b"", digests=[]))
        request = "" if len(self.open) == 1 else blake2b(self.packed, digest_size=8).hexdigest()
        parts: defaultdict[int, int] = defaultdict(int)
        for call in self.open:
            call_id = key.call_id(self.command, self.packed, parts[call.shard], now(call.shard))
            call.call_id = call_id._replace(request=request)
            parts[call.shard] += 1
        self.first = self.open[0] if request else None

    @property
    def method(self) -> str:
        """The plainest method that asks this: the name of the command, ``reject`` or ``retry_dead_letters``."""
        return self.command if self.claim_options is None else self.claim_options.method

    @property
    def digests(self) -> list[bytes]:
        """The digest of each item."""
        return split(self.packed)

    def is_of(self, command: str, digests: Sequence[bytes], max_age: int) -> bool:
        """Whether this batch has the same command, items and ``max_age``."""
        return (command, max_age) == (self.command, self.max_age) and b"".join(digests) == self.packed

    def distrust(self, shards: int, cut: Callable[[int], int], sorting: Sorting | None) -> None:
        """Open calls for the items that the near cache has answered, because it knows no ages."""
        if self._found and True in self._found:
            uncut = Uncut(self.digests, shards, cut, max(1, len(self._found)), sorting=sorting)
            self.open += self._kept(_cut_chosen(uncut, self._found))
            self.answers = [None if found else answer for found, answer in zip(self._found, self.answers, strict=True)]
        self._found = None

    def close(self, call: OpenCall, answers: Sequence[int | None], rest: OpenCall | None = None) -> None:
        """Note the answers of a call, which is then no longer open; ``rest`` is open in its place.

        Raises:
            UriFilterError: the answers are not as many as the call's items; none is noted.
        """
        if len(answers) != len(call.positions):
            raise UriFilterError(f"{len(call.positions)} items were asked about, and {len(answers)} answers came")
        if isinstance(call.positions, range):
            self.answers[call.positions.start : call.positions.stop] = answers
        else:
            for position, answer in zip(call.positions, answers, strict=True):
                self.answers[position] = answer
        if rest is None:
            self.open.remove(call)
        else:  # in one step, so that an interruption leaves each item in one call
            self.open = [*(each for each in self.open if each is not call), rest]

    def _kept(self, calls: list[OpenCall]) -> list[OpenCall]:
        """Make what is kept of the items of calls, and cut these further, so that it has at most ``BYTES_A_CALL``."""
        if self.claim_options is None:
            return calls
        weights = self.claim_options.keep(position for call in calls for position in call.positions)
        if not weights:
            return calls
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


@dataclass(frozen=True, slots=True)
class Method(Generic[R]):
    """A method of a client that asks about items.

    Attributes:
        command: as of ``Batch``.
        nearby: whether a near cache may answer: it knows that an item was seen, and not its age.
        term: makes the method's answer of a script's answer.
        result: makes the method's result of a batch that has all answers.
    """

    command: str
    nearby: bool
    term: Callable[[int], int]
    result: Callable[[Answering], R]


def selected(batch: Answering) -> list[Any]:
    """Return the items that were answered "new"."""
    return [item for item, answer in zip(batch.items, batch.answers, strict=True) if answer == 0]


def _is_new(batch: Answering) -> bool:
    return batch.answers[0] == 0


def _is_seen(batch: Answering) -> bool:
    return batch.answers[0] != 0


def _all(command: str, term: Callable[[int], int], *, nearby: bool = False) -> Method[list[Any]]:
    """Make a method whose result is a list of all its answers."""
    return Method(command, nearby, term, lambda batch: list(map(term, batch.answers)))  # type: ignore[arg-type]


INSERT: Method[bool] = Method("insert", True, operator.not_, _is_new)  # noqa: FBT003 - nearby
INSERT_MANY: Method[list[bool]] = _all("insert", operator.not_, nearby=True)
INSERT_AGES: Method[list[int]] = _all("insert", int)
UNIQUE: Method[list[Any]] = Method("insert", True, operator.not_, selected)  # noqa: FBT003 - nearby
CONTAINS: Method[bool] = Method("contains", True, bool, _is_seen)  # noqa: FBT003 - nearby
CONTAINS_MANY: Method[list[bool]] = _all("contains", bool, nearby=True)
AGES: Method[list[int]] = _all("contains", int)
FORGET: Method[list[bool]] = _all("forget", bool)
REMOVE: Method[list[bool]] = _all("remove", bool)
CLAIM: Method[bool] = Method("claim", True, operator.not_, _is_new)  # noqa: FBT003 - nearby
CLAIM_MANY: Method[list[bool]] = _all("claim", operator.not_, nearby=True)
CLAIM_AGES: Method[list[int]] = _all("claim", int)
CLAIM_UNIQUE: Method[list[Any]] = Method("claim", True, operator.not_, selected)  # noqa: FBT003 - nearby
COMMIT: Method[list[bool]] = _all("commit", operator.not_)
RELEASE: Method[list[bool]] = _all("release", bool)


def with_batch(error: E, batch: Answering) -> E:
    """Return an error with the batch that it is about, and the ``term`` of its method."""
    error.batch, error.term = batch, batch.term
    return error


def call_to_resume(retry: object, kind: type[B], command: str) -> B:
    """Return the call that ``retry=`` is about; raise ValueError if it has none of this kind."""
    batch, why = getattr(retry, "batch", None), f"not {retry!r}"
    if isinstance(batch, kind):
        return batch
    if isinstance(batch, Past):
        why = "in the same process: this error went through pickle (its answers are what had arrived)"
    raise ValueError(f"retry= takes what {command} raised for these same items, {why}")


def check_question(config: Config, command: str, max_age: int | None) -> None:
    """Raise ValueError unless a filter allows a command and a ``max_age`` (None: none was given)."""
    if command == "remove" and config.layout != "counting":
        raise ValueError(f"remove is for layout counting, and this filter is {config.layout}: use forget")
    if max_age is not None:
        if config.slices is None or config.retention != "ring":
            raise ValueError(f"max_age is for retention ring and not {config.retention}")
        if not is_whole(max_age, 1, config.slices):
            raise ValueError(f"max_age is 1 to {config.slices}, the number of slices, and not {max_age!r}")


def opened_up(items: Any) -> Iterable[Any]:
    """Return a collection of Python's own objects, also from one of Arrow, NumPy or pandas.

    Raises:
        TypeError: one item was given instead of a list, or a table, or what is no collection.
    """
    if not isinstance(items, _LONE):
        convert = getattr(items, "to_pylist", None) or getattr(items, "tolist", None)
        if convert is None and hasattr(items, "columns"):
            raise TypeError("a list of items is wanted, not a table: give one column, such as table['url']")
        items = items if convert is None else convert()
    if isinstance(items, _LONE):
        start = items[:40] if isinstance(items, str) else bytes(items[:40])
        raise TypeError(f"a list of items is wanted, not one item: [{start!r}]")
    if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise TypeError(f"a list of items is wanted, and not {reprlib.repr(items)}")
    return items  # type: ignore[no-any-return]


def listed(items: Iterable[Any]) -> Sequence[Any]:
    """Return items as a list of our own, because the caller's may change meanwhile; raise as ``opened_up``."""
    return list(opened_up(items))


def items_of(objects: Sequence[Any], key: Key) -> Sequence[object]:
    """Return the item of each object."""
    if key is None:
        return objects
    check_function("key", key)
    return [key(each) for each in objects]


@dataclass(frozen=True, slots=True)
class Uncut:
    """Items that are not in calls yet. It never changes: ``cut`` returns what is left.

    The calls of a shard, and their order, do not depend on the size of a part, unless the items are sorted.

    Attributes:
        digests: the digests of all items, those in calls included.
        shards: the filter's number of shards.
        size: returns the most items of one call, given the shard.
        part: the items of a part, unless ``PART_OF_A_SHARD`` gives more.
        keep: whether the calls keep their lists of digests.
        sorting: as of ``Batch``.
        start: the position of the first item of the next part.
        left: by shard, the positions of earlier items, too few for a full call.
    """

    digests: list[bytes]
    shards: int
    size: Callable[[int], int]
    part: int
    keep: bool = False
    sorting: Sorting | None = None
    start: int = 0
    left: dict[int, Sequence[int]] = field(default_factory=dict)

    def cut(self) -> tuple[list[OpenCall], Uncut | None]:
        """Return the calls that the next part makes full (the last part: all calls), and the rest, None for nothing."""
        end = min(self.start + max(self.part, PART_OF_A_SHARD * self.shards), len(self.digests))
        last = end == len(self.digests)
        positions = self._positions(end)
        calls: list[OpenCall] = []
        left: dict[int, Sequence[int]] = {}
        sorting = self.sorting
        for shard, some in sorted(positions.items()):
            size = self.size(shard)
            all_of_it = self._sorted(some, sorting.ranges) if sorting and len(some) > sorting.beyond * size else some
            count = len(all_of_it) if last else len(all_of_it) // size * size
            calls += [self._call(shard, all_of_it[start : start + size]) for start in range(0, count, size)]
            left[shard] = all_of_it[count:]
        return calls, None if last else replace(self, start=end, left=left)

    def _positions(self, end: int) -> Mapping[int, Sequence[int]]:
        """Return, by shard, the positions before ``end`` that are in no call yet."""
        if self.shards == 1:
            left = self.left.get(0, ())
            if self.sorting and left:
                return {0: [*left, *range(self.start, end)]}
            return {0: range(left[0] if left else self.start, end)}
        found: defaultdict[int, list[int]] = defaultdict(list, {shard: [*some] for shard, some in self.left.items()})
        for position, shard in enumerate(shards_of(self.digests[self.start : end], self.shards), self.start):
            found[shard].append(position)
        return found

    def _sorted(self, positions: Sequence[int], ranges: int) -> list[int]:
        """Sort positions by the ranges of x that their digests are in."""
        found: list[list[int]] = [[] for _ in range(ranges)]
        of_each = shards_of([self.digests[each] for each in positions], ranges)
        for position, number in zip(positions, of_each, strict=True):
            found[number].append(position)
        return list(chain.from_iterable(found))

    def _call(self, shard: int, positions: Sequence[int]) -> OpenCall:
        if isinstance(positions, range):
            some = self.digests[positions.start : positions.stop]
        else:
            some = list(map(self.digests.__getitem__, positions))
        return OpenCall(shard, positions, b"".join(some), digests=some if self.keep else None)


def _cut_chosen(uncut: Uncut, chosen: list[bool]) -> list[OpenCall]:
    """Cut only the chosen digests into calls."""
    made = replace(uncut, digests=list(compress(uncut.digests, chosen))).cut()[0]
    positions = list(compress(range(len(chosen)), chosen))
    for call in made:
        call.positions = [positions[each] for each in call.positions]
    return made


def _part(call: OpenCall, start: int, end: int) -> OpenCall:
    digests = None if call.digests is None else call.digests[start:end]
    return OpenCall(call.shard, call.positions[start:end], call.packed[16 * start : 16 * end], digests=digests)
