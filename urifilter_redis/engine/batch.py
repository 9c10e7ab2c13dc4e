"""A batch: the items of one call of the library, their answers, and the calls of scripts that are still open."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from urifilter_redis.bloom.digest import shard_of, split
from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.engine.cutting import OpenCall, Uncut, cut_all, cut_chosen, cut_lighter
from urifilter_redis.errors import Past, UriFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.near_cache import NearCache
    from urifilter_redis.engine.terms import Terms
    from urifilter_redis.protocol.call_ids import CallKey
    from urifilter_redis.protocol.config import Config

__all__ = ["Batch", "Digester", "call_to_resume", "check_question"]

B = TypeVar("B")

#: The answer of the near cache: it stands for any age, as it knows none.
SEEN = 1


class Digester:
    """Makes the digests of items for one filter: it normalises, encodes and hashes them.

    Args:
        normalize: the filter's normalisation, one of ``NORMALIZATIONS``.
        hash_all: the filter's hash, as ``hasher`` returns it.
    """

    def __init__(self, normalize: str, hash_all: Callable[[Iterable[bytes]], list[bytes]]) -> None:
        self._normalize = normalizer(normalize)
        self._hash_all = hash_all

    def __call__(self, items: Sequence[object]) -> list[bytes]:
        """Return the digests of items, 16 bytes each.

        Raises:
            BadItem: some items cannot be filtered; the error has the indices of all of them.
        """
        if self._normalize is not None:
            items = [self._normalize(item) for item in items]
        return self._hash_all(encode_items(items))


class Batch:
    """The items of one call of the library, their answers so far, and the calls of scripts that are still open.

    Attributes:
        command: ``insert``, ``contains``, ``forget``, ``remove``, ``claim``, ``commit`` or ``release``.
        items: the items as the caller gave them, or objects of the caller's.
        key: makes an item of each object; None: the objects are the items.
        term: makes an answer in the terms of the caller's method of a script's answer.
        answers: one answer an item, as the scripts give it, in the items' order; None for each that has not arrived.
        open: the calls of scripts without answers, as far as they are cut; see ``cut``.
        client: the client that the call ids in ``open`` belong to.
        max_age: ring: how many of the newest slices are tested; 0: all.
        writes: whether its calls write. The answers of such calls must not be lost.
        packed: the digests of all items, 16 bytes an item.
        near: the near cache that has answered some items, and takes in the answers to the others; None: there is none.
        terms: the terms of a batch about claims; None: it is about none.
        joint: the ``Joint`` in which this batch, of one item, was sent with others; None: it is sent by itself.
    """

    __slots__ = (
        "_found",
        "_uncut",
        "answers",
        "client",
        "command",
        "items",
        "joint",
        "key",
        "max_age",
        "near",
        "open",
        "packed",
        "term",
        "terms",
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
        max_age: int = 0,
        key: Key = None,
        near: NearCache | None = None,
        terms: Terms | None = None,
        part: int | None = None,
    ) -> None:
        """Cut digests into calls, but for those that the near cache knows.

        Args:
            command: ``insert``, ``contains``, ``forget`` or ``remove``.
            items: the items as the caller gave them, or objects of the caller's.
            digests: the digest of each item.
            shards: the filter's number of shards.
            cut: returns the most items of one call, given the shard.
            client: the client that makes the call ids.
            max_age: ring: how many of the newest slices are tested; 0: all.
            key: makes an item of each object; None: the objects are the items.
            near: the near cache that may answer; None: all items are asked about.
            terms: the terms of a batch about claims. What they keep of items limits the calls, too.
            part: if there are more items, cut them only when calls are asked for, so many at once; None: cut all now.
                Not for a batch with a near cache or terms.
        """
        self.command, self.terms = command, terms
        self.items, self.key = items, key
        self.term: Callable[[int], int] = int
        self.client = client
        self.max_age = max_age
        self.writes = command != "contains"
        self.answers: list[int | None] = [None] * len(items)
        self.joint: object | None = None
        self.open: list[OpenCall] = []
        self._uncut: Uncut | None = None
        self.near, self._found = near, None if near is None else near.find(digests)
        if self._found and all(self._found):
            self.answers = [SEEN] * len(items)
        elif self._found and True in self._found:
            self.answers = [SEEN if found else None for found in self._found]
            self.open = cut_chosen(digests, [not found for found in self._found], shards, cut, keep=True)
        elif len(digests) == 1:
            self.open = [OpenCall(shard_of(digests[0], shards), range(1), digests[0], digests=digests)]
        elif part is not None and len(digests) > part:
            self._uncut = Uncut(digests, shards, cut, part)
        else:
            self.open = cut_all(digests, shards, cut, keep=near is not None)
        if terms is not None:
            self.open = _light(self.open, terms)
        self.packed = b"".join(digests)

    def cut(self, count: int) -> list[OpenCall]:
        """Return the open calls, after cutting more until they are at least ``count``, or all items are in calls."""
        while self._uncut is not None and len(self.open) < count:
            more, uncut = self._uncut.cut()
            # both at once: Python does not look for Ctrl-C in between, so each item is always in one of them
            self.open, self._uncut = self.open + more, uncut
        return self.open

    def takes_windows(self, most: int) -> bool:
        """Whether the calls are more than ``most``, and of a batch with neither a near cache nor terms."""
        return self.near is None and self.terms is None and (self._uncut is not None or len(self.open) > most)

    def name_calls(self, key: CallKey, now: Callable[[int], int]) -> None:
        """Give all calls the ids that ``key`` makes; ``now`` returns the time of a shard's server, ms."""
        parts: defaultdict[int, int] = defaultdict(int)
        for call in self.open:
            call.call_id = key.call_id(self.command, self.packed, parts[call.shard], now(call.shard))
            parts[call.shard] += 1

    @property
    def method(self) -> str:
        """The command, which names the plainest of its methods."""
        return self.command

    @property
    def digests(self) -> list[bytes]:
        """The digest of each item."""
        return split(self.packed)

    def is_of(self, command: str, digests: Sequence[bytes], max_age: int) -> bool:
        """Whether this batch has the same command, items and ``max_age``."""
        return (command, max_age) == (self.command, self.max_age) and b"".join(digests) == self.packed

    def distrust(self, shards: int, cut: Callable[[int], int]) -> None:
        """Open calls for the items that the near cache has answered, because it knows no ages."""
        if self._found and True in self._found:
            opened = cut_chosen(self.digests, self._found, shards, cut, keep=False)
            self.open += opened if self.terms is None else _light(opened, self.terms)
            self.answers = [None if found else answer for found, answer in zip(self._found, self.answers, strict=True)]
        self._found = None

    def close(self, call: OpenCall, answers: Sequence[int]) -> None:
        """Note the answers of a call, which is then no longer open.

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
        self.open.remove(call)


def check_question(config: Config, command: str, max_age: int | None) -> None:
    """Check that a filter allows a command and a ``max_age`` (None: none was given).

    Raises:
        ValueError: the command or ``max_age`` is not for this filter.
    """
    if command == "remove" and config.layout != "counting":
        raise ValueError(f"remove is for layout counting, and this filter is {config.layout}: use forget")
    if max_age is not None:
        if config.slices is None or config.retention != "ring":
            raise ValueError(f"max_age is for retention ring and not {config.retention}")
        if isinstance(max_age, bool) or not isinstance(max_age, int) or not 1 <= max_age <= config.slices:
            raise ValueError(f"max_age is 1 to {config.slices}, the number of slices, and not {max_age!r}")


def call_to_resume(retry: object, kind: type[B], command: str) -> B:
    """Return the call that ``retry=`` is about.

    Raises:
        ValueError: it is about none of this kind, or went through pickle.
    """
    batch, why = getattr(retry, "batch", None), f"not {retry!r}"
    if isinstance(batch, kind):
        return batch
    if isinstance(batch, Past):
        why = "in the same process: this error went through pickle (its answers are what had arrived)"
    raise ValueError(f"retry= takes what {command} raised for these same items, {why}")


def _light(calls: list[OpenCall], terms: Terms) -> list[OpenCall]:
    """Cut calls further, as what is kept of their items demands."""
    return cut_lighter(calls, list(map(len, terms.kept))) if terms.kept else calls
