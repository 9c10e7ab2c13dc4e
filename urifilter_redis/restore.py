"""The flows that bring a filter back from its archive: into an empty Redis, an older one, or one that lost slices.

A shard is in phase ``restoring`` from before the archive is looked at until everything is back, so that nobody is
told "new" meanwhile. Everything is verified before anything is written. Whoever is restoring shows that it lives by
each step; a restorer that is silent is taken over, and the next one does all of it again, which changes nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from urifilter_redis import calls
from urifilter_redis.archive import documents
from urifilter_redis.archive.contents import PIECES_AT_ONCE, read_content, read_pieces, verify
from urifilter_redis.archive.manifest import Manifest, piece_spans
from urifilter_redis.archive.records import read_forgotten, read_replies
from urifilter_redis.archive.register import home_of
from urifilter_redis.archive.snapshots import last_good, newest, places
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing, ConfigMismatch, FilterNotFound
from urifilter_redis.exchange import ask, server_time
from urifilter_redis.replies import to_mapping
from urifilter_redis.restoring import Archived, Plan, plan
from urifilter_redis.state import ShardState, Slice

if TYPE_CHECKING:
    from urifilter_redis.archive.home import Key
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["Restored", "ensure", "restore"]

#: Shards whose ``meta`` is read in one pipeline.
SHARDS_A_PIPELINE = 64

#: Seconds between two signs of life; the script takes 15 of silence for death.
BEAT = 4.0

_Pair: TypeAlias = tuple[str | bytes | int, str | bytes | int]

#: Records or digests that one call brings back.
ENTRIES_A_CALL = 500


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back.

    Attributes:
        shards: how many were restored.
        checkpoint: the highest number of their checkpoints; 0 if the archive had none.
        begun: when the oldest of these began, seconds since 1970; what was inserted later and is not in Redis is
            offered once more. None if the archive had none.
        problems: what in the archive was damaged, so that something older was used.
    """

    shards: int
    checkpoint: int
    begun: float | None
    problems: tuple[str, ...] = ()


def ensure(session: Session) -> Flow[Restored | None]:
    """Restore what is missing, lost, or older than the archive; None if nothing is.

    Raises:
        Restoring: another process is at it.
        ArchiveCorrupt: the archive has nothing good; Redis is as it was.
        ConfigMismatch: there is another filter of this name.
    """
    needed = yield from _needed(session)
    if not needed:
        return None
    session.restored = yield from restore(session, needed)
    return session.restored


def restore(session: Session, shards: Sequence[int]) -> Flow[Restored]:
    """Restore shards; what needs nothing any more, because somebody else was faster, is left alone."""
    restorer = _Restorer(session, shards)
    try:
        yield from restorer.begin()
        yield from restorer.look()
    except GeneratorExit:  # nothing can be done any more
        raise
    except BaseException:
        yield from restorer.cancel()
        raise
    return (yield from restorer.write())


def _needed(session: Session) -> Flow[list[int]]:
    home, config = home_of(session), session.config
    needed = []
    for start in range(0, config.shards, SHARDS_A_PIPELINE):
        some = range(start, min(start + SHARDS_A_PIPELINE, config.shards))
        metas = yield from ask(session, *(session.read_meta(shard) for shard in some))
        for shard, reply in zip(some, metas, strict=True):
            meta = to_mapping(reply)
            _check_uid(session, shard, meta)
            if not meta or meta.get("phase") == "restoring":
                needed.append(shard)
                continue
            state = ShardState.from_meta(meta, session.where)
            last = newest((yield from places(home, session.keys.name, config, shard)))
            present = yield from _present(session, shard, state.view.slices)
            if len(present) < len(state.view.slices) or (last and state.checkpoint < last.number):
                needed.append(shard)
    return needed


def _check_uid(session: Session, shard: int, meta: dict[str, str]) -> None:
    if meta and meta.get("uid") != session.config.uid:
        text = f"shard {shard} is of another filter of this name, which the archive does not know: drop it first"
        raise ConfigMismatch(f"{session.where}: {text}")
    if meta.get("phase") == "dropping":
        raise FilterNotFound(f"{session.where}: it is being dropped")


def _present(session: Session, shard: int, slices: Sequence[Slice]) -> Flow[set[str]]:
    """Return the names of those of the slices that Redis has in their full length."""
    keys = session.keys.shard(shard)
    lengths = yield from ask(session, *(("STRLEN", keys.slice(each.name)) for each in slices))
    return {each.name for each, length in zip(slices, lengths, strict=True) if length == each.size}


@dataclass(slots=True)
class _Shard:
    """A shard that is being restored.

    Attributes:
        ours: what Redis has of it, if anything.
        present: names of the slices that Redis has.
        arranged: an earlier restorer has begun to write.
        archived: what the archive has of it.
    """

    ours: ShardState | None = None
    present: set[str] = field(default_factory=set)
    arranged: bool = False
    archived: Archived = field(default_factory=Archived)


class _Restorer:
    """One attempt, of one process."""

    def __init__(self, session: Session, shards: Sequence[int]) -> None:
        self._session, self._home, self._config = session, home_of(session), session.config
        self._token = secrets.token_hex(8)
        self._wanted = sorted(shards)
        self._shards: dict[int, _Shard] = {}
        self._beaten = time.monotonic()

    def begin(self) -> Flow[None]:
        """Take the shards, the first one first: whoever has that is the restorer."""
        for shard in self._wanted:
            fields = self._config.to_meta(shard, "restoring")
            (reply,) = yield from ask(self._session, self._call("begin", shard, fields))
            self._shards[shard] = yield from self._found(shard, to_mapping(reply))
            yield from self._beat()

    def look(self) -> Flow[None]:
        """Read all that is needed and check it; leave alone what needs nothing any more."""
        keys = yield from self._home.keys(self._session.keys.name)
        slices = [key for key in keys if (key.kind, key.uid) == ("slice", self._config.uid)]
        for shard in list(self._shards):
            found = self._shards[shard]
            found.archived = yield from self._archived(found, shard, [key for key in slices if key.shard == shard])
            if not _needs(found):
                yield from ask(self._session, self._call("cancel", shard))
                del self._shards[shard]

    def cancel(self) -> Flow[None]:
        """Leave the shards as they were, unless somebody has begun to write."""
        for shard in self._shards:
            yield from ask(self._session, self._call("cancel", shard))

    def write(self) -> Flow[Restored]:
        """Bring them back, the first one last: without it nobody can open the filter."""
        done = []
        for shard in sorted(self._shards, reverse=True):
            yield from self._restore(shard, self._shards[shard])
            done.append(self._shards[shard].archived)
            self._session.report(len(done), len(self._shards))
        lasts = [each.checkpoint for each in done if each.checkpoint]
        number = max((last.number for last in lasts), default=0)
        begun = min((last.begun for last in lasts), default=None)
        problems = tuple(problem for each in done for problem in each.problems)
        return Restored(len(done), number, None if begun is None else begun / 1000, problems)

    def _found(self, shard: int, meta: dict[str, str]) -> Flow[_Shard]:
        arranged = "arranged" in meta
        if not meta or (meta.get("before") == "missing" and not arranged):
            return _Shard()
        if meta["phase"] == "restoring":
            meta["phase"] = meta["before"]
        ours = ShardState.from_meta(meta, self._session.where)
        return _Shard(ours, (yield from _present(self._session, shard, ours.view.slices)), arranged)

    def _archived(self, ours: _Shard, shard: int, keys: Sequence[Key]) -> Flow[Archived]:
        """Return what is good in the archive; closed slices only if they are needed: there may be many."""
        name = self._session.keys.name
        found = yield from places(self._home, name, self._config, shard)
        checkpoint, problems = yield from last_good(self._home, name, found)
        yield from self._beat()
        epoch = checkpoint.shard_state().epoch if checkpoint else -1
        lost = ours.ours is not None and len(ours.present) < len(ours.ours.view.slices)
        slices: dict[int, Manifest] = {}
        if lost or any(key.epoch >= epoch for key in keys):
            for key in keys:
                yield from self._slice(key, slices, problems)
                yield from self._beat()
        return Archived(checkpoint, slices, tuple(problems))

    def _slice(self, key: Key, slices: dict[int, Manifest], problems: list[str]) -> Flow[None]:
        what = f"slice {key.epoch} of {key.filter!r}, shard {key.shard}"
        try:
            manifest = documents.load(Manifest, (yield from self._home.read(key)) or b"", what)
            closed = Slice("history_1", self._config.units, self._config.bytes)
            manifest.check(self._config, key.shard, closed, kind="slice", epoch=key.epoch)
            yield from verify(self._home, key.filter, manifest.content)
            slices[key.epoch] = manifest
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(f"{what}: {error}")

    def _restore(self, shard: int, found: _Shard) -> Flow[None]:
        """Bring one shard back."""
        session, keys = self._session, self._session.keys.shard(shard)
        now = yield from server_time(session)
        made = plan(self._config, found.ours, found.present, found.archived, now)
        doomed = made.doomed
        if self._config.layout == "counting" and (found.ours or found.arranged):
            made.moves.clear()  # counters cannot be merged
            doomed = ["today"]
        for name in doomed:
            yield from self._refill("remove", shard, slices=[keys.slice(name)])
        created = found.archived.checkpoint.state.get("created") if found.archived.checkpoint else None
        fields = _fields(made.state) + (["created", created] if created else [])
        yield from ask(session, self._call("arrange", shard, fields, made.moves))
        session.learn_view(shard, {"uid": self._config.uid, "slices": " ".join(map(str, made.state.view.slices))})
        for slice_ in made.state.view.slices[::-1]:  # today first: others may be copied from it
            yield from self._fill(shard, slice_, made)
        yield from self._records(shard, made, found.archived)
        last = ["phase", made.state.phase, "checkpoint", str(made.state.checkpoint)]
        last += ["checkpointed", str(made.state.checkpointed)]
        yield from ask(session, self._call("finish", shard, last))

    def _fill(self, shard: int, slice_: Slice, made: Plan) -> Flow[None]:
        """Allocate a slice and merge into it what the archive has."""
        keys = self._session.keys.shard(shard)
        key = keys.slice(slice_.name)
        there = yield from self._refill("allocate", shard, offset=slice_.size, slices=[key])
        sources = made.sources[slice_.name]
        if (there and self._config.layout == "counting") or not (sources or slice_.name in made.copies):
            return
        spans = list(piece_spans(slice_.size))
        for start in range(0, len(spans), PIECES_AT_ONCE):
            some = spans[start : start + PIECES_AT_ONCE]
            merged = [0] * len(some)
            if slice_.name in made.copies:
                read = (("GETRANGE", keys.slice("today"), at, at + length - 1) for at, length in some)
                merged = [int.from_bytes(piece, "little") for piece in (yield from ask(self._session, *read))]
            for manifest in sources:
                pieces = yield from read_pieces(
                    self._home, self._session.keys.name, manifest.content, start, start + len(some)
                )
                merged = [one | int.from_bytes(piece, "little") for one, piece in zip(merged, pieces, strict=True)]
            for number, (at, length) in zip(merged, some, strict=True):
                if number:
                    data = number.to_bytes(length, "little")
                    yield from self._refill("piece", shard, offset=at, slices=[key], data=[data])
            yield from self._beat()

    def _records(self, shard: int, made: Plan, archived: Archived) -> Flow[None]:
        """Bring back kept replies, and what was forgotten."""
        last, name = archived.checkpoint, self._session.keys.name
        if made.replaces_forgotten:
            yield from self._refill("remove", shard, slices=[self._session.keys.shard(shard).forgotten])
        if last is None:
            return
        replies = list(read_replies((yield from read_content(self._home, name, last.replies))))
        for some in _batches(replies):
            yield from self._refill("replies", shard, data=list(chain.from_iterable(some)))
        if made.replaces_forgotten:
            forgotten = read_forgotten((yield from read_content(self._home, name, last.forgotten)))
            for some in _batches([(epoch, digest) for digest, epoch in forgotten]):
                yield from self._refill("forget", shard, data=list(chain.from_iterable(some)))

    def _call(
        self, step: str, shard: int, fields: Sequence[str] = (), moves: Sequence[tuple[str, str]] = ()
    ) -> calls.Call:
        return calls.restore(step, self._config.uid, self._session.keys.shard(shard), self._token, fields, moves)

    def _refill(
        self,
        step: str,
        shard: int,
        *,
        offset: int = 0,
        slices: Sequence[str] = (),
        data: Sequence[str | bytes | int] = (),
    ) -> Flow[int]:
        keys = self._session.keys.shard(shard)
        call = calls.refill(step, self._config.uid, keys, self._token, offset=offset, slices=slices, data=data)
        (reply,) = yield from ask(self._session, call)
        return int(reply)

    def _beat(self) -> Flow[None]:
        """Show that this process lives, for all shards that it has taken."""
        if time.monotonic() - self._beaten < BEAT:
            return
        self._beaten = time.monotonic()
        taken = list(self._shards)
        for start in range(0, len(taken), SHARDS_A_PIPELINE):
            beats = (self._call("begin", shard) for shard in taken[start : start + SHARDS_A_PIPELINE])
            yield from ask(self._session, *beats)


def _needs(found: _Shard) -> bool:
    if found.ours is None or found.arranged:
        return True
    last = found.archived.checkpoint
    return len(found.present) < len(found.ours.view.slices) or bool(last and found.ours.checkpoint < last.number)


def _fields(state: ShardState) -> list[str]:
    """Return the fields of ``meta`` that a state stands for."""
    closed = (f"{each.epoch}:{each.opened}:{each.closed}:{each.inserted}" for each in state.closed)
    values: dict[str, object] = {
        "before": state.phase,
        "epoch": state.epoch,
        "opened": state.opened,
        "inserted": state.inserted,
        "closed": " ".join(closed),
        "oldest": state.oldest,
        "slices": " ".join(map(str, state.view.slices)),
        "changed": state.changed,
        "token": state.token,
    }
    values |= {} if state.pieces is None else {"pieces": state.pieces}
    values |= {} if state.limit is None else {"limit": state.limit}
    values |= {"late": 1} if state.late else {}
    return [text for name, value in values.items() for text in (name, str(value))]


def _batches(pairs: Sequence[_Pair]) -> list[Sequence[_Pair]]:
    return [pairs[start : start + ENTRIES_A_CALL] for start in range(0, len(pairs), ENTRIES_A_CALL)]
