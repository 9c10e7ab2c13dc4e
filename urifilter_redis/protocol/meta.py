"""What ``meta`` says of a shard that changes: its slices, its epoch, and how far a rotation has come."""

from __future__ import annotations

from dataclasses import dataclass

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.errors import SliceLost

__all__ = ["Closed", "ShardState", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """What a client knows of a shard that changes: the live slices, from oldest to newest."""

    slices: tuple[Slice, ...]

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> View:
        """Read the live slices from a shard's ``meta``; ``name`` is for errors.

        Raises:
            SliceLost: they are missing or unreadable.
        """
        try:
            entries = [entry.split(":") for entry in meta["slices"].split()]
            return cls(tuple(Slice(slice_, int(units), int(size)) for slice_, units, size in entries))
        except (KeyError, ValueError) as error:
            raise SliceLost(f"{name}: meta is damaged: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Closed:
    """A slice of the window that is not written to any more.

    Attributes:
        epoch: in which it was today.
        opened: server time, ms.
        closed: server time, ms.
        inserted: items.
    """

    epoch: int
    opened: int
    closed: int
    inserted: int


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard's ``meta``, but for the configuration.

    Attributes:
        uid: of the filter.
        epoch: how many times the shard has been rotated.
        phase: ``idle``, ``rotating`` (rolling: the next history is not finished), ``creating``, ``dropping`` …
        token: of the last rotation.
        pieces: rolling, rotating: how many pieces of the next history are done; None: the closed slice is not yet in
            the archive.
        late: rolling, rotating: a piece of the next history was made of the whole old one.
        opened: server time at which today was made, ms; ahead: others that were written over because they lay in the
            future.
        inserted: items that were written to today.
        limit: growing: items that today is for.
        closed: the closed slices of the window, oldest first.
        oldest: the lowest epoch that a live slice holds items of.
        changed: goes up with all that changes slices or what is forgotten, but for insertions; server time, ms.
        timeline: token of the last restore.
        checkpoint: number of the last checkpoint that was begun; checkpointed: when the last that was finished was
            begun, server time, ms; 0 for none.
        view: the live slices.
    """

    uid: str
    epoch: int
    phase: str
    token: str
    pieces: int | None
    late: bool
    opened: int
    ahead: tuple[int, ...]
    inserted: int
    limit: int | None
    closed: tuple[Closed, ...]
    oldest: int
    changed: int
    timeline: str
    checkpoint: int
    checkpointed: int
    view: View

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> ShardState:
        """Read a shard's ``meta``; ``name`` is for errors.

        Raises:
            SliceLost: fields are missing or unreadable.
        """
        try:
            closed = (Closed(*map(int, entry.split(":"))) for entry in meta.get("closed", "").split())
            return cls(
                uid=meta["uid"],
                epoch=int(meta["epoch"]),
                phase=meta["phase"],
                token=meta.get("token", ""),
                pieces=int(meta["pieces"]) if "pieces" in meta else None,
                late=meta.get("late") == "1",
                opened=int(meta.get("opened") or meta["created"]),
                ahead=tuple(map(int, meta.get("ahead", "").split())),
                inserted=int(meta["inserted"]),
                limit=int(meta["limit"]) if "limit" in meta else None,
                closed=tuple(closed),
                oldest=int(meta.get("oldest", 0)),
                changed=int(meta.get("changed", 0)),
                timeline=meta.get("timeline", ""),
                checkpoint=int(meta.get("checkpoint", 0)),
                checkpointed=int(meta.get("checkpointed", 0)),
                view=View.from_meta(meta, name),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SliceLost(f"{name}: meta is damaged: {error!r}") from error

    def opened_by(self, now: int) -> int:
        """Return when today was made, as the server's clock, ``now`` (ms), has it: the latest time that is no future.

        A clock that was behind for a while, and is right again, finds the true time; one that was ahead never does.
        """
        return max((each for each in (self.opened, *self.ahead) if each <= now), default=now)

    @property
    def inserted_in_all(self) -> int:
        """Items over all slices of the window."""
        return self.inserted + sum(each.inserted for each in self.closed)

    def epoch_of(self, name: str) -> int:
        """Return the epoch in which a live slice was today; of rolling's history, which is of many, the shard's."""
        _, _, number = name.partition("history_")
        return self.epoch - int(number or 0)

    def closed_of(self, name: str) -> Closed | None:
        """Return when a live slice was opened and closed, and its items; None for today."""
        if name == "today":
            return None
        if name != "history":
            return self.closed[-int(name.removeprefix("history_"))]
        rotating = any(each.name == "history_1" for each in self.view.slices)  # rolling: all that is older
        merged = self.closed[: len(self.closed) - rotating]
        return Closed(self.epoch, merged[0].opened, merged[-1].closed, sum(each.inserted for each in merged))
