"""The state of a shard, as its ``meta`` has it: its slices, its epoch, and the progress of a rotation."""

from __future__ import annotations

from dataclasses import dataclass, field

from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.errors import SliceLost


def damaged(name: str, why: str) -> SliceLost:
    """Return the error for a ``meta`` whose fields are missing or unreadable; ``name`` is the filter's."""
    return SliceLost(f"{name}: meta is damaged: restore or drop the filter ({why})")


def opened_by(now: int, *recorded: int) -> int:
    """Return the latest recorded time of opening that is not after ``now``; ``now`` if all are. Times are in ms."""
    return max((each for each in recorded if each <= now), default=now)


@dataclass(frozen=True, slots=True)
class View:
    """The live slices of a shard, from oldest to newest, as a client knows them.

    Example:
        >>> [each.name for each in news.view(0).slices]
        ['today']

    Attributes:
        slices: the live slices.
        claims: the longest lease that was used in the shard, ms; 0: there was no claim. Views of the same slices are
            equal whatever it is.
    """

    slices: tuple[Slice, ...]
    claims: int = field(default=0, compare=False)

    @property
    def names(self) -> list[str]:
        """The ends of the keys of all segments, oldest slice first."""
        return [name for each in self.slices for name in each.names]

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> View:
        """Read the live slices from a shard's ``meta``; ``name`` is the filter's, for errors.

        Raises:
            SliceLost: the field ``slices`` is missing or unreadable.
        """
        try:
            entries = [entry.split(":") for entry in meta["slices"].split()]
            slices = tuple(Slice(each, int(units), int(size), int(row)) for each, units, size, row in entries)
            return cls(slices, int(meta.get("claims", 0)))
        except (KeyError, ValueError) as error:
            raise damaged(name, repr(error)) from error


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed slice of the window.

    Attributes:
        epoch: the epoch in which the slice was today.
        opened: the server time at which the slice became today, ms.
        closed: the server time at which the shard turned, ms.
        inserted: the number of items that were written to the slice.
        new: the number of items that are counted in this slice: with last-seen those that no newer one has. (Rolling:
            those of all closed slices are counted in the newest that is merged into the history.)
    """

    epoch: int
    opened: int
    closed: int
    inserted: int
    new: int

    @classmethod
    def of(cls, epoch: int, opened: int, closed: int, inserted: int, new: int | None = None) -> Closed:
        """Make one; without ``new`` all items that were written are counted."""
        return cls(epoch, opened, closed, inserted, inserted if new is None else new)

    def entry(self, *, with_new: bool) -> str:
        """Return its entry in the field ``closed`` of ``meta``; with last-seen that has ``new``, too."""
        return f"{self.epoch}:{self.opened}:{self.closed}:{self.inserted}" + (f":{self.new}" if with_new else "")


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard: its ``meta`` without the configuration. Times are server times in ms.

    Attributes:
        uid: the filter's uid.
        epoch: how many times the shard has turned.
        phase: ``idle``, ``rotating`` (rolling: the next history is not finished), ``creating``, ``restoring`` or
            ``dropping``.
        token: the token of the last rotation.
        pieces: rolling, rotating: how many pieces of the next history are built; None: the closed slice is not in the
            archive yet.
        late: rolling, rotating: whether a piece of the next history was built with the whole old history in it.
        opened: the time at which today was made.
        written: the time of the last change of today, so that no earlier slice than today has anything later; 0: none.
        ahead: earlier values of ``opened`` that lay in the future and were overwritten for that.
        inserted: the number of items that were written to today.
        new: the number of items that are counted in today: with last-seen an item counts once in the window.
        limit: growing: the number of items that today is for; None: the filter does not grow.
        closed: the closed slices of the window, oldest first.
        oldest: the lowest epoch whose items are in a live slice.
        changed: the time of the last change to slices or forgotten items other than an insertion; each such change
            makes it higher.
        timeline: the token of the last restore.
        checkpoint: the number of the last checkpoint that was begun; 0: there was none.
        checkpointed: the time at which the last finished checkpoint was begun; 0: there was none.
        claimed: how many entries claims, reclaims and releases have changed; 0: there was no claim.
        view: the live slices, and the longest lease.
        halted: rolling, rotating: whether the archive failed in this turn.
        rejected: how many items were rejected in all.
        lost: the times of a restore that nobody has acknowledged, and of its checkpoint, ms; empty: there is none.
    """

    uid: str
    epoch: int
    phase: str
    token: str
    pieces: int | None
    late: bool
    opened: int
    ahead: tuple[int, ...]
    written: int
    inserted: int
    new: int
    limit: int | None
    closed: tuple[Closed, ...]
    oldest: int
    changed: int
    timeline: str
    checkpoint: int
    checkpointed: int
    claimed: int
    view: View
    halted: bool = False
    rejected: int = 0
    lost: str = ""

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> ShardState:
        """Read the state from a shard's ``meta``; ``name`` is the filter's, for errors.

        Raises:
            SliceLost: fields are missing or unreadable.
        """
        try:
            closed = (Closed.of(*map(int, entry.split(":"))) for entry in meta.get("closed", "").split())
            return cls(
                uid=meta["uid"],
                epoch=int(meta["epoch"]),
                phase=meta["phase"],
                token=meta.get("token", ""),
                pieces=int(meta["pieces"]) if "pieces" in meta else None,
                late=meta.get("late") == "1",
                opened=int(meta.get("opened") or meta["created"]),
                ahead=tuple(map(int, meta.get("ahead", "").split())),
                written=int(meta.get("written", 0)),
                inserted=int(meta["inserted"]),
                new=int(meta.get("new", meta["inserted"])),
                limit=int(meta["limit"]) if "limit" in meta else None,
                closed=tuple(closed),
                oldest=int(meta.get("oldest", 0)),
                changed=int(meta.get("changed", 0)),
                timeline=meta.get("timeline", ""),
                checkpoint=int(meta.get("checkpoint", 0)),
                checkpointed=int(meta.get("checkpointed", 0)),
                claimed=int(meta.get("claimed", 0)),
                view=View.from_meta(meta, name),
                halted="halted" in meta,
                rejected=int(meta.get("rejected", 0)),
                lost=meta.get("lost", ""),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise damaged(name, repr(error)) from error

    def opened_by(self, now: int) -> int:
        """Return the time at which today was made, ms: the latest recorded time that is not after ``now``.

        ``now`` is the server's time, ms. If its clock was behind for a while and is right again, the true time is
        found. If its clock was ahead when today was made, no true time was recorded; then ``now`` counts.
        """
        return opened_by(now, self.opened, *self.ahead)

    def closes(self, now: int, period: int) -> int:
        """Return when today closes, ms: ``period`` ms after it was made, or when it was last written to."""
        return max(self.opened_by(now) + period, min(self.written, now))

    @property
    def inserted_in_all(self) -> int:
        """The number of items that were written to all slices of the window."""
        return self.inserted + sum(each.inserted for each in self.closed)

    @property
    def items(self) -> int:
        """The number of items of the window; with last-seen each counts once."""
        return self.new + sum(each.new for each in self.closed)

    def epoch_of(self, name: str) -> int:
        """Return the epoch in which a live slice was today; for rolling's history, of many epochs, the shard's own."""
        number = int(name.partition("history_")[2] or 0)
        if 0 < number <= len(self.closed):  # epochs that were passed over have no slice
            return self.closed[-number].epoch
        return self.epoch - number

    def times_of(self, name: str) -> Closed:
        """Return the times and the item counts of a live slice; today is closed at 0."""
        if name == "today":
            return Closed(self.epoch, self.opened, 0, self.inserted, self.new)
        if name != "history":
            return self.closed[-int(name.removeprefix("history_"))]
        # Rolling: history merges all closed slices, but for history_1 while that is still apart.
        rotating = any(each.name == "history_1" for each in self.view.slices)
        merged = self.closed[: len(self.closed) - rotating]
        counts = sum(each.inserted for each in merged), sum(each.new for each in merged)
        return Closed(self.epoch, merged[0].opened, merged[-1].closed, *counts)
