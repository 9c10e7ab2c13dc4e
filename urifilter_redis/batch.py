"""The items of one call of the library, and how far it has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.calls import ITEMS_A_CALL
from urifilter_redis.digest import shards_of
from urifilter_redis.items import encode_items
from urifilter_redis.normalize import normalizer

if TYPE_CHECKING:
    from urifilter_redis.callid import CallId

__all__ = ["Batch", "Digester", "OpenCall"]


class Digester:
    """Makes digests of items, as one filter wants them: normalised, encoded, hashed."""

    def __init__(self, normalize: str, hash_all: Callable[[Iterable[bytes]], list[bytes]]) -> None:
        self._normalize = normalizer(normalize)
        self._hash_all = hash_all

    def __call__(self, items: Sequence[object]) -> list[bytes]:
        """Return 16 bytes an item.

        Raises:
            BadItem: with all bad indices.
        """
        if self._normalize is not None:
            items = [self._normalize(item) for item in items]
        return self._hash_all(encode_items(items))


@dataclass(slots=True, eq=False)
class OpenCall:
    """Some items of one shard whose answers are still wanted.

    Attributes:
        shard: that all belong to.
        positions: of the items in the batch.
        packed: the digests, 16 bytes an item.
        call_id: the id under which it was sent; a retry keeps it, so that nothing still under way can run beside it.
        in_doubt: it may have run.
    """

    shard: int
    positions: Sequence[int]
    packed: bytes
    call_id: CallId | None = None
    in_doubt: bool = False


class Batch:
    """The items of one call, their answers so far, and the calls that are still open.

    Attributes:
        command: ``insert``, ``contains`` or ``forget``.
        items: as the caller gave them.
        answers: one an item; None where there is none yet.
        open: what has no answer yet.
        client: whose call ids are in ``open``.
    """

    __slots__ = ("_packed", "answers", "client", "command", "items", "open")

    def __init__(
        self,
        command: str,
        items: Sequence[object],
        digester: Callable[[Sequence[object]], list[bytes]],
        shards: int,
        client: str,
    ) -> None:
        digests = digester(items)
        self.command = command
        self.items = items
        self.client = client
        self.answers: list[int | None] = [None] * len(items)
        self.open = _one_shard(digests) if shards == 1 else _many_shards(digests, shards)
        self._packed = b"".join(digests)

    def is_of(self, command: str, items: Sequence[object], digester: Callable[..., list[bytes]]) -> bool:
        """Whether this batch is of that command and those items."""
        return command == self.command and b"".join(digester(items)) == self._packed

    def close(self, call: OpenCall, answers: Sequence[int]) -> None:
        """Take over the answers of a call."""
        if isinstance(call.positions, range):
            self.answers[call.positions.start : call.positions.stop] = answers
        else:
            for position, answer in zip(call.positions, answers, strict=True):
                self.answers[position] = answer
        self.open.remove(call)


def _one_shard(digests: list[bytes]) -> list[OpenCall]:
    starts = range(0, len(digests), ITEMS_A_CALL)
    return [
        OpenCall(
            0, range(start, min(start + ITEMS_A_CALL, len(digests))), b"".join(digests[start : start + ITEMS_A_CALL])
        )
        for start in starts
    ]


def _many_shards(digests: list[bytes], shards: int) -> list[OpenCall]:
    positions: defaultdict[int, list[int]] = defaultdict(list)
    for position, shard in enumerate(shards_of(digests, shards)):
        positions[shard].append(position)
    calls = []
    for shard, all_of_it in sorted(positions.items()):
        for start in range(0, len(all_of_it), ITEMS_A_CALL):
            some = all_of_it[start : start + ITEMS_A_CALL]
            calls.append(OpenCall(shard, some, b"".join([digests[position] for position in some])))
    return calls
