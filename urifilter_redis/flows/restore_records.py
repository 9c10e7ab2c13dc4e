"""The records of a restore: the records of calls, the forgotten digests, and the leases."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from urifilter_redis.engine.queries import ask, scanned, server_time
from urifilter_redis.flows.leases import read_leases
from urifilter_redis.storage.contents import read_records
from urifilter_redis.storage.records import forgotten_at, record_time, split_forgotten, split_leases, split_replies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from urifilter_redis.engine.backend import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState
    from urifilter_redis.storage.documents import Checkpoint
    from urifilter_redis.storage.records import Lease

__all__ = ["Records", "worked_on"]

#: Most records or digests of one call.
ENTRIES_A_CALL = 500

#: Most items in hand of one call, and about the most bytes of their entries and texts.
LEASES_A_CALL, LEASE_BYTES_A_CALL = 250, 256 << 10

_Pair: TypeAlias = tuple[str | bytes | int, str | bytes | int]


def worked_on(session: Session, shard: int, ours: ShardState | None, last: Checkpoint | None) -> Flow[bool]:
    """Whether Redis was written to after the checkpoint began; if a clock that was ahead leaves doubt, assume so.

    A change that the checkpoint's own state has was made before it, even if a clock that was ahead gave it a later
    time.
    """
    if ours is None or last is None:
        return False
    changed = ours.changed > max(last.begun, last.shard_state().changed)
    if changed or last.begun > (yield from server_time(session, shard)):
        return True
    records = yield from scanned(session, "HSCAN", session.keys.shard(shard).replies)
    return any(record_time(record) > last.begun for _, record in records)


class _Refill(Protocol):
    """A step of the script ``refill`` for one shard."""

    def __call__(
        self, step: str, *, offset: int = 0, slices: Sequence[str] = (), data: Sequence[Any] = ()
    ) -> Flow[int]: ...


class Records:
    """Restores the records, forgotten digests and leases of one shard; the flow ``beat`` runs after each part."""

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
            yield from self._unforget(shard, theirs, last.begun)
        elif forgotten != "ours":
            yield from self._refill("remove", slices=[key])
            if last is not None:
                yield from read_records(self._home, name, last.forgotten, split_forgotten, self._forgotten)

    def bring_leases(self, shard: int, last: Checkpoint | None, leases: str, claims: int) -> Flow[None]:
        """Restore what is in hand, and let each holder live for the longest lease from now.

        An item that Redis has in hand stays as it is. An item that was committed after the checkpoint may be in hand
        again: it is offered twice, and none is lost.

        Args:
            shard: the number of the shard.
            last: the checkpoint; None: there is none.
            leases: the plan's ``leases``.
            claims: the longest lease, ms; 0: nobody has claimed.
        """
        session, keys = self._session, self._session.keys.shard(shard)
        if leases == "theirs":  # leftovers may be of any filter
            yield from self._refill("remove", slices=keys.of_claims)
        if not claims:
            return
        (there,) = yield from ask(session, ("EXISTS", keys.leases))
        yield from self._refill("remove", slices=(keys.hands, keys.holders))

        def keep(some: list[Lease]) -> Flow[None]:
            return self._in_hand([(digest, b"", b"") for digest, _, _ in some], claims)

        yield from read_leases(session, keys.leases, keep)
        if last is not None and not (there and leases == "ours"):

            def bring(some: list[Lease]) -> Flow[None]:
                return self._in_hand(some, claims)

            yield from read_records(self._home, session.keys.name, last.leases, split_leases, bring)

    def _in_hand(self, leases: Sequence[Lease], claims: int) -> Flow[None]:
        """Call ``refill`` for some items in hand."""
        for some in _calls_of(leases):
            yield from self._refill("leases", offset=claims, data=list(chain.from_iterable(some)))
        yield from self._beat()

    def _entries(self, step: str, entries: Sequence[_Pair]) -> Flow[None]:
        for start in range(0, len(entries), ENTRIES_A_CALL):
            some = entries[start : start + ENTRIES_A_CALL]
            yield from self._refill(step, data=list(chain.from_iterable(some)))
        yield from self._beat()

    def _forgotten(self, entries: Sequence[tuple[bytes, float]]) -> Flow[None]:
        yield from self._entries("forget", [(repr(score), digest) for digest, score in entries])

    def _unforget(self, shard: int, theirs: Collection[bytes], begun: int) -> Flow[None]:
        """Remove forgotten digests that only Redis has, unless they were forgotten since the checkpoint began.

        If their time leaves doubt, they are removed, so that their items count as seen.
        """
        ours = yield from scanned(self._session, "ZSCAN", self._session.keys.shard(shard).forgotten)
        now = yield from server_time(self._session, shard)
        known = (digest for digest, score in ours if begun < forgotten_at(float(score)) <= now)
        doomed = sorted({digest for digest, _ in ours} - set(theirs) - set(known))
        for start in range(0, len(doomed), ENTRIES_A_CALL):
            yield from self._refill("unforget", data=doomed[start : start + ENTRIES_A_CALL])


def _calls_of(leases: Iterable[Lease]) -> Iterator[list[Lease]]:
    """Yield items in hand in parts of one call each."""
    part: list[Lease] = []
    size = 0
    for lease in leases:
        if part and (len(part) == LEASES_A_CALL or size + sum(map(len, lease)) > LEASE_BYTES_A_CALL):
            yield part
            part, size = [], 0
        part.append(lease)
        size += sum(map(len, lease))
    if part:
        yield part
