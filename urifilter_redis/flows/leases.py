"""The leases of a shard: they are read some at a time, so that no reply is long, however long the entries are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.engine.queries import ENTRIES_A_SCAN, ask, chunked, scan
from urifilter_redis.storage.records import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.storage.records import Lease

__all__ = ["read_leases"]

#: The COUNT of the first HSCAN. Four items with their payloads have at most 512 KiB.
FIRST_COUNT = 4

#: About the most bytes of a reply: the COUNT is doubled after a reply of less than half of it, and halved after a
#: longer one.
REPLY_BYTES = 1 << 20

#: Texts in fields of their own that are read in one pipeline: at most 1 MiB.
TEXTS_A_PIPELINE = 8

#: The bytes of a field with an entry. A text in a field of its own has a longer field.
_DIGEST = 16


def read_leases(session: Session, key: str, use: Callable[[list[Lease]], Flow[None]]) -> Flow[None]:
    """Read ``leases``.

    An item that is in hand during the whole reading is read, perhaps twice. Its entry is read together with its text.

    Args:
        session: the filter's session.
        key: the key of a shard's ``leases``.
        use: a flow to run with each list of items.
    """
    cursor, count = b"0", FIRST_COUNT
    while True:
        cursor, fields = yield from scan(session, "HSCAN", key, cursor, count)
        entries = [(field, entry) for field, entry in fields if len(field) == _DIGEST]
        found = [(digest, entry, b"") for digest, entry in entries if len(entry) > ALONE]
        found += yield from _with_texts(session, key, [digest for digest, entry in entries if len(entry) == ALONE])
        if found:
            yield from use(found)
        if int(cursor) == 0:
            return
        count = _next_count(count, sum(len(field) + len(value) for field, value in fields))


def _with_texts(session: Session, key: str, digests: list[bytes]) -> Flow[list[Lease]]:
    """Read entries together with their texts. What was taken out meanwhile is left out."""
    found: list[Lease] = []
    for some in chunked(digests, TEXTS_A_PIPELINE):
        replies = yield from ask(session, *(("HMGET", key, digest, digest + b"+") for digest in some))
        pairs = zip(some, replies, strict=True)
        found += [(digest, entry, text or b"") for digest, (entry, text) in pairs if entry is not None]
    return found


def _next_count(count: int, size: int) -> int:
    """Return the COUNT after a reply of ``size`` bytes."""
    if size > REPLY_BYTES:
        return max(1, count // 2)
    return min(2 * count, ENTRIES_A_SCAN) if size < REPLY_BYTES // 2 else count
