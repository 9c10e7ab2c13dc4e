"""The records of a restore: the records of calls, and the forgotten digests."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from urifilter_redis.archive.contents import read_records
from urifilter_redis.archive.format.records import forgotten_at, record_time, split_forgotten, split_replies
from urifilter_redis.engine.queries import scanned, server_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from urifilter_redis.archive.format.manifest import Checkpoint
    from urifilter_redis.engine.home import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["Records", "worked_on"]

#: Most records or digests of one call.
ENTRIES_A_CALL = 500

_Pair: TypeAlias = tuple[str | bytes | int, str | bytes | int]


def worked_on(session: Session, shard: int, ours: ShardState | None, last: Checkpoint | None) -> Flow[bool]:
    """Whether Redis was written to after the checkpoint began; if a clock that was ahead leaves doubt, assume so.

    A change that the checkpoint's own state has was made before it, even if a clock that was ahead gave it a later
    time.
    """
    if ours is None or last is None:
        return False
    changed = ours.changed > max(last.begun, last.shard_state().changed)
    if changed or last.begun > (yield from server_time(session)):
        return True
    records = yield from scanned(session, "HSCAN", session.keys.shard(shard).replies)
    return any(record_time(record) > last.begun for _, record in records)


class _Refill(Protocol):
    """A step of the script ``refill`` for one shard."""

    def __call__(self, step: str, *, slices: Sequence[str] = (), data: Sequence[Any] = ()) -> Flow[int]: ...


class Records:
    """Restores the records and forgotten digests of one shard; the flow ``beat`` runs after each part."""

    def __init__(self, session: Session, home: Home, refill: _Refill, beat: Callable[[], Flow[None]]) -> None:
        self._session, self._home, self._refill, self._beat = session, home, refill, beat

    def bring(self, shard: int, last: Checkpoint | None, forgotten: str, *, worked: bool) -> Flow[None]:
        """Restore them from a checkpoint.

        Args:
            shard: the number of the shard.
            last: the checkpoint; None: there is none.
            forgotten: the plan's ``forgotten``.
            worked: the result of ``worked_on``.
        """
        name, key = self._session.keys.name, self._session.keys.shard(shard).forgotten
        if last is not None:
            yield from read_records(self._home, name, last.replies, split_replies, partial(self._entries, "replies"))
        if forgotten == "both" and last is not None and worked:
            theirs: set[bytes] = set()

            def note(entries: Sequence[tuple[bytes, float]]) -> Flow[None]:
                theirs.update(digest for digest, _ in entries)
                yield from self._beat()

            yield from read_records(self._home, name, last.forgotten, split_forgotten, note)
            yield from self._unforget(key, theirs, last.begun)
        elif forgotten != "ours":
            yield from self._refill("remove", slices=[key])
            if last is not None:
                yield from read_records(self._home, name, last.forgotten, split_forgotten, self._forgotten)

    def _entries(self, step: str, entries: Sequence[_Pair]) -> Flow[None]:
        for start in range(0, len(entries), ENTRIES_A_CALL):
            some = entries[start : start + ENTRIES_A_CALL]
            yield from self._refill(step, data=list(chain.from_iterable(some)))
        yield from self._beat()

    def _forgotten(self, entries: Sequence[tuple[bytes, float]]) -> Flow[None]:
        yield from self._entries("forget", [(repr(score), digest) for digest, score in entries])

    def _unforget(self, key: str, theirs: Collection[bytes], begun: int) -> Flow[None]:
        """Remove forgotten digests that only Redis has, unless they were forgotten since the checkpoint began.

        If their time leaves doubt, they are removed, so that their items count as seen.
        """
        ours = yield from scanned(self._session, "ZSCAN", key)
        now = yield from server_time(self._session)
        known = (digest for digest, score in ours if begun < forgotten_at(float(score)) <= now)
        doomed = sorted({digest for digest, _ in ours} - set(theirs) - set(known))
        for start in range(0, len(doomed), ENTRIES_A_CALL):
            yield from self._refill("unforget", data=doomed[start : start + ENTRIES_A_CALL])
