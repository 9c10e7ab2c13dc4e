"""The plan of a restore: a shard's new state, decided from Redis's and the archive's, and its records.

Bits are merged and never lost, because clients may have written to a Redis that came back older than its archive.
No item expires earlier than it would have. The records are those of calls, the forgotten digests, and the leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from urifilter_redis.bloom.retention import TIMED, slices_at
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.queries import ask, chunked, scanned, server_time
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.flows.reading import read_leases
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.meta import Closed, ShardState, View
from urifilter_redis.storage.blobs import read_records
from urifilter_redis.storage.documents import Checkpoint, Manifest
from urifilter_redis.storage.records import Lease, forgotten_at, record_time

#: Most records or digests of one call.
ENTRIES_A_CALL = 500

#: Most items in flight of one call, and about the most bytes of their entries and texts.
LEASES_A_CALL, LEASE_BYTES_A_CALL = 250, 256 << 10


@dataclass(frozen=True, slots=True)
class Archived:
    """The sound contents of the archive for one shard.

    Attributes:
        checkpoint: the newest sound checkpoint; None: there is none.
        number: the highest number of a checkpoint, even of a damaged one.
        slices: rolling: the manifests of the closed slices, by epoch.
        contained: rolling: whether the closed slice of the checkpoint's epoch has all bits of the checkpoint's today.
        problems: the damaged parts.
    """

    checkpoint: Checkpoint | None = None
    number: int = 0
    slices: dict[int, Manifest] = field(default_factory=dict)
    contained: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one shard.

    Attributes:
        state: the shard's new state.
        moves: the bitmaps that stay, each as (old name, new name), in an order in which no rename overwrites one.
        doomed: the names of the bitmaps to remove, because the new state does not have them.
        sources: for each bitmap of the new state, oldest first, the archive's that are merged into it.
        forgotten: the forgotten digests to keep: ``ours`` (Redis's), ``theirs`` (the archive's) or ``both``.
        leases: the items that stay in flight, likewise. If ``ours`` are gone, it is ``both``: Redis may have lost them.
    """

    state: ShardState
    moves: list[tuple[str, str]]
    doomed: list[str]
    sources: dict[str, list[Manifest]]
    forgotten: str
    leases: str


def plan(  # noqa: PLR0913 - each is needed
    config: Config, ours: ShardState | None, present: set[str], archived: Archived, *, now: int, arranged: bool = False
) -> Plan:
    """Make the plan for one shard at ``now``, server time in ms.

    ``ours`` is the shard's state in Redis, or None if its ``meta`` is missing. ``present`` are the names of the live
    bitmaps that Redis has in full length: each is kept, whatever is lost beside it. If an earlier restorer ``arranged``
    the shard, and so may have begun to fill its bitmaps, none of them counts as whole.
    """
    found, last = _archived_state(config, archived), archived.checkpoint
    state = _joined(config, _state(config, ours, present, found or _empty(config, now)), ours, found)
    state = _counted(state, ours, archived)
    behind = ours is not None and last is not None and ours.checkpoint < last.number
    moves = _moves(config, ours, present, state) if ours else []
    kept = {new for _, new in moves}
    sources = {
        name: _sources(config, state, slice_.name, segment, archived, lost=arranged or behind or name not in kept)
        for slice_ in state.view.slices
        for segment, name in enumerate(slice_.names)
    }
    if ours is None:
        return Plan(state, [], [], sources, "theirs", "theirs")
    stays = {old for old, _ in moves}
    doomed = [name for name in ours.view.names if name not in stays]
    forgotten = "both" if behind else "ours"
    return Plan(state, moves, doomed, sources, forgotten, "both" if arranged else forgotten)


def _state(config: Config, ours: ShardState | None, present: set[str], theirs: ShardState) -> ShardState:
    """Return the state with the higher epoch, of Redis or the archive; Redis's if the epochs are equal."""
    if ours is None or theirs.epoch > ours.epoch:
        return theirs
    # If history_1 is lost, the pieces that were built in it must be built again.
    closed = replace(config.today, name="history_1")
    return ours if present.issuperset(closed.names) or config.retention != "rolling" else replace(ours, pieces=None)


def _joined(config: Config, state: ShardState, ours: ShardState | None, theirs: ShardState | None) -> ShardState:
    """Return the state with the closed slices of its window that only the other of Redis and the archive has.

    A Redis that came back older may have passed over epochs that the archive has, and the other way round.
    """
    if ours is None or theirs is None or config.retention not in TIMED:
        return state
    rotating = state.phase == "rotating"  # history_1 is the newest closed slice, so none comes behind it
    end = state.closed[-1].epoch if rotating and state.closed else state.epoch
    others = {each.epoch: each for each in (*ours.closed, *theirs.closed) if state.oldest <= each.epoch < end}
    both = others | {each.epoch: each for each in state.closed}
    if len(both) == len(state.closed):
        return state
    closed = tuple(both[epoch] for epoch in sorted(both))
    slices = slices_at(config, config.today, len(closed), rotating=rotating)
    return replace(state, closed=closed, view=replace(state.view, slices=tuple(slices)))


def _archived_state(config: Config, archived: Archived) -> ShardState | None:
    """Return the checkpoint's state, or the state after the last rotation if its closed slice was archived later."""
    state = archived.checkpoint.shard_state() if archived.checkpoint else None
    last = max(archived.slices, default=-1)
    if last < 0 or (state and state.epoch > last):
        return state
    epoch = last + 1
    oldest = max(0, epoch - (config.slices or 1) + 1)
    opened, closed = archived.slices[last].opened, archived.slices[last].closed
    # Unknown slices hold no items that are known, so any time will do.
    known = {each: Closed.of(each, opened, opened, 0) for each in range(state.epoch if state else 0, epoch)}
    known |= {n: Closed.of(n, each.opened, each.closed, each.inserted) for n, each in archived.slices.items()}
    known |= {each.epoch: each for each in state.closed} if state else {}
    window = tuple(known[each] for each in range(oldest, epoch) if each in known)  # other epochs were passed over
    view = View(tuple(slices_at(config, config.today, epoch)))
    return replace(
        state or _empty(config, 0), epoch=epoch, phase="idle", token="", pieces=None, late=False, inserted=0, new=0,
        written=0, opened=closed, closed=window, oldest=oldest, view=view,
    )  # fmt: skip


def _empty(config: Config, now: int) -> ShardState:
    meta = dict(zip(*[iter(config.to_meta(0, "idle"))] * 2, strict=True)) | {"uid": config.uid, "opened": str(now)}
    return ShardState.from_meta(meta | {"created": str(now)}, "new")


def _moves(config: Config, ours: ShardState, present: set[str], state: ShardState) -> list[tuple[str, str]]:
    """Return the bitmaps that stay, as (old name, new name); oldest first, so that each new name is free by then."""
    names = {state.epoch_of(each.name): each.name for each in state.view.slices}
    moves: list[tuple[str, str]] = []
    for slice_ in ours.view.slices:
        old = slice_.name
        if config.retention == "rolling":
            new = old if old == "today" or (ours.epoch, ours.view) == (state.epoch, state.view) else None
        elif old == "today" and config.retention != "growing":
            new = old  # it may have been written to a moment ago
        else:
            new = names.get(ours.epoch_of(old))
        if new:
            both = zip(slice_.names, replace(slice_, name=new).names, strict=True)
            moves += [pair for pair in both if pair[0] in present]
    return moves


def _sources(  # noqa: PLR0913 - each is needed
    config: Config, state: ShardState, name: str, segment: int, archived: Archived, *, lost: bool
) -> list[Manifest]:
    """Return the archive's bitmaps that are merged into a bitmap of the new state."""
    last = archived.checkpoint
    bitmaps = last.bitmaps if last else []
    if config.retention != "rolling":
        live = [state.epoch_of(each.name) for each in state.view.slices]

        def target(epoch: int) -> int:  # the same epoch; if Redis has passed over it, the next one: late, never early
            return min(each for each in live if each >= epoch)

        there = [each for each in bitmaps if each.segment == segment and each.epoch >= state.oldest]
        return [each for each in there if target(each.epoch) == state.epoch_of(name)]
    then = last.shard_state() if last else None
    same = then is not None and (then.epoch, then.view) == (state.epoch, state.view)
    own = [each for each in bitmaps if (each.name, each.segment) == (name, segment)]
    if name == "today":
        # If the checkpoint's epoch is over, and its closed slice lacks some of today's bits, they go into the new
        # today: late, never early.
        return own if then and (then.epoch == state.epoch or not archived.contained) else []
    if not lost and (same or then is None or then.epoch != state.epoch):
        return own if same else []
    wanted = [each.epoch for each in state.closed]
    if state.phase == "rotating":  # the newest of them is apart
        wanted = wanted[-1:] if name == "history_1" else wanted[:-1]
    there = [archived.slices[epoch] for epoch in wanted if epoch in archived.slices]
    if same:
        return [*own, *there]
    # If closed slices are missing, the checkpoint's older bitmaps replace them: late, never early.
    older = [each for each in bitmaps if each.name != "today" and each.segment == segment]
    return [*there, *(older if len(there) < len(wanted) else [])]


def _counted(state: ShardState, ours: ShardState | None, archived: Archived) -> ShardState:
    """Return the state with the higher numbers of Redis and the archive.

    ``changed`` is higher than both, so the next checkpoint writes every slice anew.
    """
    last = archived.checkpoint
    then = last.shard_state() if last else state
    both = [state, then, ours] if ours else [state, then]
    same = [each for each in both if each.epoch == state.epoch]
    return replace(
        state,
        inserted=max(each.inserted for each in same),
        new=max(each.new for each in same),
        written=max(each.written for each in both),
        claimed=max(each.claimed for each in both),
        rejected=max(each.rejected for each in both),
        view=replace(state.view, claims=max(each.view.claims for each in both)),
        changed=max(each.changed for each in both) + 1,
        checkpoint=max(archived.number, *(each.checkpoint for each in both)),
        checkpointed=max(last.begun if last else 0, ours.checkpointed if ours else 0),
    )


def worked_on(session: Session, shard: int, ours: ShardState | None, last: Checkpoint | None) -> Flow[bool]:
    """Whether Redis was written to after the checkpoint began; if a clock that was ahead leaves doubt, assume so.

    A change that the checkpoint's own state has is older than the checkpoint, even if a clock that was ahead gave the
    change a later time.
    """
    if ours is None or last is None:
        return False
    then = last.shard_state()
    changed = ours.changed > max(last.begun, then.changed)
    # What was inserted without a call id has left no record. The counts of a Redis that came back older tell nothing.
    if ours.checkpoint >= last.number:
        changed = changed or (ours.epoch, ours.inserted) != (then.epoch, then.inserted)
    if changed or last.begun > (yield from server_time(session, shard)):
        return True
    records = yield from scanned(session, "HSCAN", session.keys.shard(shard).replies)
    return any(record_time(record) > last.begun for _, record in records)


class Records:
    """Restores the records of calls, forgotten digests and leases of one shard.

    The flow ``refill`` runs a step of the script of that name for this shard. The flow ``beat`` runs after each part.
    """

    def __init__(
        self, session: Session, backend: Backend, refill: Callable[..., Flow[int]], beat: Callable[[], Flow[None]]
    ) -> None:
        self._session, self._backend, self._refill, self._beat = session, backend, refill, beat

    def restore(self, shard: int, last: Checkpoint | None, forgotten: str, *, worked: bool) -> Flow[None]:
        """Restore the records of calls and the forgotten digests from a checkpoint, if there is one.

        ``forgotten`` is the plan's, ``worked`` the result of ``worked_on``.
        """
        name, key = self._session.keys.name, self._session.keys.shard(shard).forgotten
        if last is not None:
            yield from read_records(self._backend, name, last, "replies", partial(self._entries, "replies"))
        if forgotten == "both" and last is not None and worked:
            theirs: set[bytes] = set()

            def note(entries: Sequence[tuple[bytes, float]]) -> Flow[None]:
                theirs.update(digest for digest, _ in entries)
                yield from self._beat()

            yield from read_records(self._backend, name, last, "forgotten", note)
            yield from self._unforget(shard, theirs, last.begun)
        elif forgotten != "ours":
            yield from self._refill("remove", slices=[key])
            if last is not None:
                yield from read_records(self._backend, name, last, "forgotten", self._forget)

    def restore_leases(self, shard: int, last: Checkpoint | None, leases: str, claims: int) -> Flow[None]:
        """Restore the items in flight, and let each holder live for the longest lease from now.

        An item that Redis has in flight stays as it is. An item that was committed after the checkpoint may be in
        flight again: it is offered twice, and none is lost.

        ``leases`` is the plan's. ``claims`` is the longest lease, ms; 0: no client has claimed.
        """
        session, keys = self._session, self._session.keys.shard(shard)
        if leases == "theirs":  # leftovers may be of any filter
            yield from self._refill("remove", slices=(*keys.of_claims, *keys.of_dead_letters))
        if not claims:
            return
        (there,) = yield from ask(session, ("EXISTS", keys.leases))
        yield from self._refill("remove", slices=(keys.in_flight, keys.holders))

        def keep(some: list[Lease]) -> Flow[None]:
            return self._leases(claims, [(digest, b"", b"") for digest, _, _ in some])

        yield from read_leases(session, keys.leases, keep)
        if last is not None and not (there and leases == "ours"):
            name = session.keys.name
            yield from read_records(self._backend, name, last, "leases", partial(self._leases, claims))
            yield from read_records(self._backend, name, last, "dead_letters", self._dead_letters)

    def _leases(self, claims: int, leases: Sequence[Lease]) -> Flow[None]:
        for some in _calls_of(leases):
            yield from self._refill("leases", offset=claims, data=list(chain.from_iterable(some)))
        yield from self._beat()

    def _dead_letters(self, letters: Sequence[Lease]) -> Flow[None]:
        for some in _calls_of(letters):
            yield from self._refill(
                "dead_letters", data=[text for digest, *letter in some for text in (digest, b"".join(letter))]
            )
        yield from self._beat()

    def _entries(self, step: str, entries: Sequence[tuple[str | bytes, bytes]]) -> Flow[None]:
        for some in chunked(entries, ENTRIES_A_CALL):
            yield from self._refill(step, data=list(chain.from_iterable(some)))
        yield from self._beat()

    def _forget(self, entries: Sequence[tuple[bytes, float]]) -> Flow[None]:
        yield from self._entries("forget", [(repr(score), digest) for digest, score in entries])

    def _unforget(self, shard: int, theirs: set[bytes], begun: int) -> Flow[None]:
        """Remove forgotten digests that only Redis has, unless they were forgotten since the checkpoint began.

        If the time of a digest leaves doubt, the digest is removed, so that its item counts as seen.
        """
        ours = yield from scanned(self._session, "ZSCAN", self._session.keys.shard(shard).forgotten)
        now = yield from server_time(self._session, shard)
        known = {digest for digest, score in ours if begun < forgotten_at(float(score)) <= now}
        doomed = sorted({digest for digest, _ in ours} - theirs - known)
        for some in chunked(doomed, ENTRIES_A_CALL):
            yield from self._refill("unforget", data=some)


def _calls_of(leases: Iterable[Lease]) -> Iterator[list[Lease]]:
    """Yield the items in flight of each call."""
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
