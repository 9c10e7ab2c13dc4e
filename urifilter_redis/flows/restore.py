"""The flows that restore a filter from its archive: into an empty Redis, an older one, or one that lost slices.

A shard is in phase ``restoring`` from before the archive is read until the shard is whole. Meanwhile no client gets
an answer about its items, and so none is told "new". All bitmaps are verified before anything is written. Each step
shows that the restorer lives. If a restorer is silent, another takes over and repeats every step, which does no harm.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.queries import ask, ask_each, chunked, read_first, server_time
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.session import Restored, Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import (
    ArchiveCorrupt,
    ArchiveMissing,
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    RotationConflict,
    ServerUnavailable,
    SliceLost,
)
from urifilter_redis.flows.capacity import check_free
from urifilter_redis.flows.loss import Loss, loss_in, loss_note, loss_text
from urifilter_redis.flows.reading import bits_of, items_in
from urifilter_redis.flows.restore_plan import Archived, Plan, Records, plan, worked_on
from urifilter_redis.flows.rotation import finish_rotation
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage import documents
from urifilter_redis.storage.blobs import PIECES_AT_ONCE, as_numbers, read_pieces, verify
from urifilter_redis.storage.checkpoints import last_good, newest, places
from urifilter_redis.storage.documents import Content, Manifest, piece_spans
from urifilter_redis.storage.registry import check_registered, find_registration, require_archive

log = logging.getLogger("urifilter_redis")

#: Seconds between two signs of life; to the scripts, 15 s of silence mean death.
BEAT = 4.0

#: Stands for the timeline of a shard without ``meta``.
MISSING = "missing"

#: Most attempts at a restore; an attempt ends if another process takes over.
TRIES = 5

#: Most tokens of a filter's failed attempts that are kept.
REMEMBERED = 16

#: The tokens of this process's failed attempts, by server and filter. An attempt cannot release its shards while the
#: server is away. The next attempt names these tokens, so it need not wait until their silence counts as death.
_given_up: dict[tuple[str, str, str], deque[str]] = {}


def ensure(session: Session) -> Flow[Restored | None]:
    """Restore the shards that are missing, have lost slices, or are older than the archive.

    Return the result; None if no shard needs it and none did since the filter was opened.

    Raises:
        Restoring: another process is restoring the filter.
        ArchiveCorrupt: the archive has no sound checkpoint of a shard; Redis is unchanged.
        SliceLost: Redis has lost a bitmap of which the archive has no copy yet; Redis is unchanged.
        ConfigMismatch: Redis has another filter of this name.
    """
    for _ in range(TRIES):
        needed = yield from _needed(session)
        if not needed:
            return session.restored
        with contextlib.suppress(RotationConflict):  # another process has taken over: look again
            session.restored = yield from restore(session, needed)
            return session.restored
    raise Restoring(f"{session.where}: another process took over the restore {TRIES} times: try again later")


def restore(session: Session, seen: Mapping[int, str]) -> Flow[Restored]:
    """Restore shards; ``seen`` has the ``timeline`` of each shard's ``meta`` as it was last read, or ``MISSING``.

    Raises:
        RotationConflict: another process was faster.
    """
    where = (session.server, session.keys.filters, session.keys.name)
    restorer = _Restorer(session, seen, _given_up.get(where, ()))
    try:
        yield from restorer.begin()
        yield from restorer.read_archive()
        yield from check_free(session, restorer.size())
        # Only now, so that a restore that is refused leaves no name in the list. A name without a filter does no harm.
        yield from ask(session, ("SADD", session.keys.filters, session.keys.name))
        done = yield from restorer.write()
    except BaseException as error:
        _given_up.setdefault(where, deque(maxlen=REMEMBERED)).append(restorer.token)
        if not isinstance(error, GeneratorExit):  # a flow that is closed may not yield steps any more
            yield from restorer.give_up()
        raise
    _given_up.pop(where, None)
    if restorer.loss is not None and not session.by_hand:
        log.error("%s: %s", session.where, loss_text(restorer.loss, session.config.shards, session.keys.name))
    return done


def restoring(session: Session) -> Flow[tuple[int, int] | None]:
    """Return how many shards of a filter are being restored, and how many it has; None: Redis has no shard 0.

    The filter need not be open, because no client can open it before the end of its restore.
    """
    keys = session.keys.of_meta((yield from read_first(session)))
    if keys is None:
        return None
    phases = yield from ask_each(session, [("HGET", each.meta, "phase") for each in keys.all])
    return sum(phase in {"restoring", b"restoring"} for phase in phases), keys.shards


def _needed(session: Session) -> Flow[dict[int, str]]:
    """Return the shards that need a restore, as ``restore`` takes them."""
    backend, config = require_archive(session), session.config
    needed = {}
    for some in chunked(range(config.shards)):
        metas = yield from ask(session, *(session.read_meta(shard) for shard in some))
        for shard, reply in zip(some, metas, strict=True):
            meta = to_mapping(reply)
            _check_meta(session, shard, meta)
            if not meta or meta.get("phase") == "restoring":
                needed[shard] = meta.get("timeline", "") if meta else MISSING
                continue
            state = ShardState.from_meta(meta, session.where)
            last = newest((yield from places(backend, session.keys.name, config, shard)))
            whole = len((yield from _whole_bitmaps(session, shard, state.view.slices))) == len(state.view.names)
            behind = last is not None and state.checkpoint < last.number
            if whole and behind and state.phase == "rotating":
                yield from finish_rotation(session, shard)  # only Redis has the slice that it closed
            if not whole or behind:
                needed[shard] = state.timeline
    return needed


def _check_meta(session: Session, shard: int, meta: dict[str, str]) -> None:
    if meta and meta.get("uid") != session.config.uid:
        text = f"shard {shard} is of another filter of this name, which is not the archive's: drop that filter first"
        raise ConfigMismatch(f"{session.where}: {text}")
    if meta.get("phase") == "dropping":
        raise FilterNotFound(f"{session.where}: it is being dropped")


def _whole_bitmaps(session: Session, shard: int, slices: Sequence[Slice]) -> Flow[set[str]]:
    """Return the names of the bitmaps that Redis has in full length."""
    keys, found = session.keys.shard(shard), set()
    for slice_ in slices:
        lengths = yield from ask_each(session, [("STRLEN", keys.slice(name)) for name in slice_.names])
        found |= {name for name, length in zip(slice_.names, lengths, strict=True) if length == slice_.size}
    return found


@dataclass(slots=True)
class _Found:
    """What was found of a shard that is to be restored.

    Attributes:
        ours: the shard's state in Redis; None: Redis has none.
        present: the names of the bitmaps that Redis has in full length.
        kept: counting: those of them whose counters stay as they are, because they are newer than the archive's; None:
            not known yet.
        arranged: whether an earlier restorer has begun to write.
        worked: whether Redis was written to after the checkpoint began, so that neither of the two has everything;
            None: not known yet.
        archived: the shard's sound contents in the archive.
    """

    ours: ShardState | None = None
    present: set[str] = field(default_factory=set)
    kept: set[str] | None = None
    arranged: bool = False
    worked: bool | None = None
    archived: Archived = field(default_factory=Archived)

    def needs_restore(self) -> bool:
        """Whether the shard is missing, not whole, or older than the archive."""
        if self.ours is None or self.arranged:
            return True
        return len(self.present) < len(self.ours.view.names) or self.ours.checkpoint < self.archived.number


class _Restorer:
    """One attempt to restore shards; see ``restore`` for ``seen``, ``given_up`` are tokens of failed attempts."""

    def __init__(self, session: Session, seen: Mapping[int, str], given_up: Iterable[str]) -> None:
        self._session, self._backend, self._config = session, require_archive(session), session.config
        self.token = secrets.token_hex(8)
        self._seen, self._given_up = seen, " ".join(given_up) or "-"
        self.loss: Loss | None = None  # what was noted as lost
        self._shards: dict[int, _Found] = {}  # the shards that are taken, and neither finished nor given back
        self._writing: int | None = None  # the shard that is being written; None: nothing was written yet
        self._beaten = time.monotonic()
        self._steps = itertools.count(1)  # those that write a shard: by its number a late one, or a gap, is known

    def begin(self) -> Flow[None]:
        """Take the shards in order. The process that takes the first shard is the restorer of all."""
        for shard in sorted(self._seen):
            fields = self._config.to_meta(shard, "restoring")
            call = self._call("begin", shard, timeline=self._seen[shard], given_up=self._given_up, fields=fields)
            self._shards[shard] = _Found()  # before the call, because a call that fails may have taken the shard
            (reply,) = yield from ask(self._session, call)
            self._shards[shard] = yield from self._in_redis(shard, to_mapping(reply))
            yield from self._beat()

    def read_archive(self) -> Flow[None]:
        """Read and verify the archive's contents; give back shards that need no restore any more.

        Raises:
            ArchiveCorrupt: the checkpoints of a shard are gone.
            SliceLost: a bitmap is lost, and the archive has no copy of it.
        """
        name = self._session.keys.name
        registration = yield from find_registration(self._backend, name)
        keys = yield from self._backend.keys(name)
        slices = [key for key in keys if (key.kind, key.uid) == ("slice", self._config.uid)]
        for shard, found in list(self._shards.items()):
            found.archived = yield from self._in_archive(shard, found, [key for key in slices if key.shard == shard])
            if not found.needs_restore():
                yield from ask(self._session, self._call("cancel", shard))
                del self._shards[shard]
            elif registration.complete and not found.archived.number:
                text = "its checkpoints are gone from the archive; if an import has not ended, end or repeat that"
                raise ArchiveCorrupt(f"{self._session.where}: shard {shard}: {text}")
            else:
                self._check_copies(shard, found, made=registration.made)
        yield from check_registered(self._session)  # an unmounted archive must not pass for an empty one

    def _check_copies(self, shard: int, found: _Found, *, made: bool) -> None:
        """Check that a shard which was whole once has a copy of each bitmap that Redis has lost: none is made empty.

        All shards of a filter that was ``made`` were whole. Shard 0 is made last: if it is there, the others were made.
        A shard that was arranged was checked before that. Of a filter that is gone, closed slices are a copy, too.
        """
        first = self._shards.get(0)
        gone = first is not None and first.ours is None
        if found.arranged or found.archived.checkpoint or (gone and (found.archived.slices or not made)):
            return
        lost = "meta"
        if found.ours is not None:
            planned = plan(self._config, found.ours, found.present, found.archived, now=0)
            names = (name for name in found.ours.view.names if name not in found.present)
            lost = ", ".join(name for name in names if not planned.sources.get(name))
        if lost:
            text = f"shard {shard} has LOST {lost}, and the archive has no checkpoint of it yet"
            advice = "nothing brings its items back: drop the filter and its archive, and create it anew"
            raise SliceLost(f"{self._session.where}: {text}: {advice}")

    def size(self) -> int:
        """Return the bytes of the bitmaps that ``write`` allocates, and of the leases that it may write."""
        total = 0
        for found in self._shards.values():
            planned = plan(self._config, found.ours, found.present, found.archived, now=0, arranged=found.arranged)
            kept = {new for _, new in planned.moves}
            slices = planned.state.view.slices
            total += sum(each.size for each in slices for name in each.names if name not in kept)
            last = found.archived.checkpoint
            total += last.records["leases"].size + last.records["dead_letters"].size if last else 0
        return total

    def give_up(self) -> Flow[None]:
        """Give the shards back for the next restorer; if the server is away, they stay taken.

        A shard that Redis had is again as it was, unless it was being written. A shard that was missing is removed
        again before the first write. After the first write it stays in phase restoring, so that no process makes a
        new filter of it.
        """
        for some in chunked(list(self._shards)):
            requests = [Request.of(self._give_back(shard)) for shard in some]
            yield from exchange(self._session, requests)
            if any(isinstance(request.error, ServerUnavailable) for request in requests):
                return

    def write(self) -> Flow[Restored]:
        """Restore the shards, the first one last, because no client can open the filter without it."""
        done: list[Archived] = []
        noted: list[ShardState] = []
        known = any(found.archived.checkpoint or found.archived.slices for found in self._shards.values())
        for shard in sorted(self._shards, reverse=True):
            found = self._shards[shard]
            self._writing, self._steps = shard, itertools.count(1)
            noted.append((yield from self._restore(shard, found, loss=known)))
            del self._shards[shard]
            done.append(found.archived)
            self._session.report(len(done), len(done) + len(self._shards))
        self.loss = loss_in(noted)
        lasts = [each.checkpoint for each in done if each.checkpoint]
        number = max((last.number for last in lasts), default=0)
        begun = min((last.begun for last in lasts), default=None)
        problems = tuple(problem for each in done for problem in each.problems)
        return Restored(len(done), number, None if begun is None else begun / 1000, problems)

    def _give_back(self, shard: int) -> calls.Call:
        touched = shard == self._writing or (self._writing is not None and self._shards[shard].ours is None)
        return self._call("release" if touched else "cancel", shard)

    def _in_redis(self, shard: int, meta: dict[str, str]) -> Flow[_Found]:
        arranged = "arranged" in meta
        if not meta or (meta.get("before") == "missing" and not arranged):
            return _Found()
        if meta["phase"] == "restoring":
            meta["phase"] = meta["before"]
        ours = ShardState.from_meta(meta, self._session.where)
        worked = meta.get("worked") == "1" if arranged else None
        kept = set(meta.get("kept", "").split()) if arranged else None
        return _Found(ours, (yield from _whole_bitmaps(self._session, shard, ours.view.slices)), kept, arranged, worked)

    def _in_archive(self, shard: int, found: _Found, keys: Sequence[Key]) -> Flow[Archived]:
        """Return the sound contents of the archive; closed slices, which may be many, only if they are needed."""
        name, ours = self._session.keys.name, found.ours
        both = yield from places(self._backend, name, self._config, shard)
        checkpoint, problems = yield from last_good(self._backend, name, both, self._beat)
        yield from self._beat()
        number = max((place.checkpoint.number for place in both if place.checkpoint), default=0)
        epoch = checkpoint.shard_state().epoch if checkpoint else -1
        lost = ours is not None and (len(found.present) < len(ours.view.names) or ours.checkpoint < number)
        slices: dict[int, Manifest] = {}
        if lost or any(key.epoch >= epoch for key in keys):
            for key in keys:
                yield from self._read_slice(key, slices, problems)
                yield from self._beat()
        contained = False
        if checkpoint and epoch in slices:
            today = [checkpoint.bitmaps[at].content for at in checkpoint.rows[-1]]
            contained = yield from self._contains(slices[epoch].content, today)
        return Archived(checkpoint, number, slices, contained, tuple(problems))

    def _read_slice(self, key: Key, slices: dict[int, Manifest], problems: list[str]) -> Flow[None]:
        """Read and verify a closed slice; add its manifest to ``slices``, or a problem to ``problems``."""
        what = f"slice {key.epoch} of {key.filter!r}, shard {key.shard}"
        try:
            manifest = documents.load(Manifest, (yield from self._backend.read(key)) or b"", what)
            manifest.check(self._config, key.shard, self._config.today, kind="slice", epoch=key.epoch)
            yield from verify(self._backend, key.filter, manifest.content, self._beat)
            slices[key.epoch] = manifest
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(f"{what}: {error}")

    def _contains(self, closed: Content, row: Sequence[Content]) -> Flow[bool]:
        """Whether a closed slice has all bits of the row of a today."""
        start = 0
        for today in row:
            for first in range(0, len(today.pieces), PIECES_AT_ONCE):
                wanted = yield from self._archived_bits(today, first, first + PIECES_AT_ONCE)
                there = yield from self._archived_bits(closed, start + first, start + first + len(wanted))
                if any(one & ~other for one, other in zip(wanted, there, strict=True)):
                    return False
                yield from self._beat()
            start += len(today.pieces)
        return True

    def _archived_bits(self, content: Content, first: int, last: int) -> Flow[list[int]]:
        """Read pieces of an archived bitmap as integers, so that ``|`` merges two pieces."""
        return as_numbers((yield from read_pieces(self._backend, self._session.keys.name, content, first, last)))

    def _restore(self, shard: int, found: _Found, *, loss: bool) -> Flow[ShardState]:
        """Restore one shard; return its state. ``loss``: note it as a restore of something that was there before."""
        session, keys, checkpoint = self._session, self._session.keys.shard(shard), found.archived.checkpoint
        now = yield from server_time(session, shard)
        if found.worked is None:
            found.worked = yield from worked_on(session, shard, found.ours, checkpoint)
        planned = plan(self._config, found.ours, found.present, found.archived, now=now, arranged=found.arranged)
        begun = checkpoint.begun if checkpoint else 0
        names, moves, doomed = planned.state.view.names, planned.moves, planned.doomed
        if found.ours is None:  # bitmaps without meta may be of any filter
            doomed = names
        elif self._config.layout == "counting":
            kept = _keep_counters(found, planned)
            moves = [pair for pair in moves if pair[0] in kept]
            doomed = [name for name in names if name not in kept]
            if kept and found.ours.checkpoint < found.archived.number:  # those lack what came after their checkpoint
                begun = min(begun, found.ours.checkpointed)
        state = replace(planned.state, lost=loss_note(found.ours, now, begun) if loss else "")
        for name in doomed:
            yield from self._refill("remove", shard, slices=[keys.slice(name)])
        created = checkpoint.state.get("created") if checkpoint else None
        fields = _fields(self._config, state, created, worked=found.worked, kept=found.kept or set())
        renamed = list(itertools.chain.from_iterable(moves))
        yield from ask(session, self._call("arrange", shard, number=next(self._steps), fields=fields, names=renamed))
        listed, claims = " ".join(map(str, state.view.slices)), state.view.claims
        session.learn_view(shard, {"uid": self._config.uid, "slices": listed, "claims": str(claims)})
        merged, newer = False, ""
        for slice_ in state.view.slices[::-1]:
            for segment in range(slice_.segments):
                above = replace(slice_, name=newer).names[segment] if newer else ""
                merged |= yield from self._fill(shard, slice_, segment, planned, above)
            newer = slice_.name if self._config.write == "all" else ""
        records = Records(session, self._backend, partial(self._refill, shard=shard), self._beat)
        yield from records.restore(shard, checkpoint, planned.forgotten, worked=found.worked)
        yield from records.restore_leases(shard, checkpoint, planned.leases, claims)
        if merged:  # today has items of both, and neither count has them all
            items = yield from items_in(session, keys, state.view.slices[-1])
            more = max(0, (items or 0) - state.inserted)
            state = replace(state, inserted=state.inserted + more, new=state.new + more)
        counts = ("inserted", "new") if self._config.expire_after == "last-seen" else ("inserted",)
        values = {field: getattr(state, field) for field in ("phase", *counts, "checkpoint", "checkpointed")}
        fields = [str(each) for pair in values.items() for each in pair]
        yield from ask(session, self._call("finish", shard, number=next(self._steps), fields=fields, names=names))
        return state

    def _fill(self, shard: int, slice_: Slice, segment: int, planned: Plan, newer: str) -> Flow[bool]:
        """Allocate a bitmap of a slice and merge the archive's into it; return whether it has more than one source.

        With write=all the bits of that of the next ``newer`` slice are merged into it too, because items are written
        to all live slices.
        """
        keys, name = self._session.keys.shard(shard), slice_.names[segment]
        key = keys.slice(name)
        there = yield from self._refill("allocate", shard, offset=slice_.size, slices=[key])
        sources = planned.sources[name]
        if not sources and not newer:
            return bool(there)
        spans = list(piece_spans(slice_.size))
        for start in range(0, len(spans), PIECES_AT_ONCE):
            some = spans[start : start + PIECES_AT_ONCE]
            merged = [0] * len(some)
            if newer:
                merged = yield from bits_of(self._session, keys.slice(newer), some)
            for manifest in sources:
                first = start + (segment * len(spans) if manifest.kind == "slice" else 0)
                pieces = yield from self._archived_bits(manifest.content, first, first + len(some))
                merged = [one | other for one, other in zip(merged, pieces, strict=True)]
            for bits, (at, length) in zip(merged, some, strict=True):
                if bits:
                    data = bits.to_bytes(length, "little")
                    yield from self._refill("piece", shard, offset=at, slices=[key], data=[data])
            yield from self._beat()
        return bool(there) or any(each.epoch != planned.state.epoch_of(slice_.name) for each in sources)

    def _call(self, step: str, shard: int, **more: Any) -> calls.Call:
        return calls.restore(step, self._config.uid, self._session.keys.shard(shard), self.token, **more)

    def _refill(self, step: str, shard: int, **more: Any) -> Flow[int]:
        keys = self._session.keys.shard(shard)
        call = calls.refill(step, self._config.uid, keys, self.token, number=next(self._steps), **more)
        (reply,) = yield from ask(self._session, call)
        return int(reply)

    def _beat(self) -> Flow[None]:
        """Show that this restorer lives, in all shards that it has taken and not finished."""
        if time.monotonic() - self._beaten < BEAT:
            return
        self._beaten = time.monotonic()
        yield from ask_each(self._session, [self._call("beat", shard) for shard in self._shards])


def _keep_counters(found: _Found, planned: Plan) -> set[str]:
    """Return the bitmaps of counters that stay as they are: counters cannot be merged with those of a checkpoint."""
    if found.kept is None:
        found.kept = found.present if found.worked else set()
    found.kept &= found.present  # one may have been lost since an earlier restorer chose them
    for name in found.kept:
        planned.sources[name].clear()
    if found.kept:
        problem = "Redis was written to since the checkpoint, and counters cannot be merged: Redis's are kept"
        found.archived = replace(found.archived, problems=(*found.archived.problems, problem))
    return found.kept


def _fields(config: Config, state: ShardState, created: str | None, *, worked: bool, kept: set[str]) -> list[str]:
    """Return a shard's state as fields of ``meta``, field and value in turn."""
    last_seen = config.expire_after == "last-seen"
    claims = state.view.claims or None
    values: dict[str, object] = {
        "before": state.phase,
        "epoch": state.epoch,
        "opened": state.opened,
        "inserted": state.inserted,
        "closed": " ".join(each.entry(with_new=last_seen) for each in state.closed),
        "oldest": state.oldest,
        "slices": " ".join(map(str, state.view.slices)),
        "changed": state.changed,
        "token": state.token,
        "pieces": state.pieces,
        "limit": state.limit,
        "late": 1 if state.late else None,
        "new": state.new if last_seen else None,
        "written": state.written or None,
        "claims": claims,
        "claimed": state.claimed if claims else None,
        "rejected": state.rejected or None,
        "created": created or None,
        "worked": int(worked),
        "kept": " ".join(sorted(kept)) or None,
        "lost": state.lost or None,
    }
    return [text for name, value in values.items() if value is not None for text in (name, str(value))]
