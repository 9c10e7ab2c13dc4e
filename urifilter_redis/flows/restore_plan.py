"""What a shard is to be when it is brought back: decided from what Redis has of it and what the archive has.

Bits are merged, never replaced by less: a Redis that came back older than its archive may have been worked on since.
What expires does so no earlier than it would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import slices_at
from urifilter_redis.protocol.meta import Closed, ShardState, View

if TYPE_CHECKING:
    from urifilter_redis.archive.format.manifest import Checkpoint, Manifest
    from urifilter_redis.protocol.config import Config

__all__ = ["Archived", "Plan", "plan"]


@dataclass(frozen=True, slots=True)
class Archived:
    """What is good in the archive of a shard.

    Attributes:
        checkpoint: the newest, if any; number: the highest, also of one whose contents are damaged.
        slices: rolling: the closed ones, by epoch.
        contained: rolling: the closed slice of the checkpoint's epoch has all that was in today at the checkpoint.
        problems: what is not good.
    """

    checkpoint: Checkpoint | None = None
    number: int = 0
    slices: dict[int, Manifest] = field(default_factory=dict)
    contained: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        state: that the shard is to have.
        moves: slices that stay, each with the name that it gets, in an order in which none is overwritten.
        doomed: names of slices that the shard has no place for.
        sources: for each slice, oldest first, the bitmaps of the archive that are merged into it.
        forgotten: what was forgotten is ``ours`` (what Redis has), ``theirs`` (what the archive has) or ``both``.
    """

    state: ShardState
    moves: list[tuple[str, str]]
    doomed: list[str]
    sources: dict[str, list[Manifest]]
    forgotten: str


def plan(  # noqa: PLR0913 - all that is known
    config: Config, ours: ShardState | None, present: set[str], archived: Archived, *, now: int, arranged: bool = False
) -> Plan:
    """Decide what a shard is to be.

    Args:
        config: of the filter.
        ours: what Redis has of the shard; None if its ``meta`` is missing.
        present: names of the live slices that Redis has in their full length.
        archived: what the archive has.
        now: server time, ms.
        arranged: a restorer that died has begun to fill the slices, so that none is known to be whole.
    """
    state = _state(config, ours, present, archived, now)
    moves = _moves(config, ours, present, state) if ours else []
    kept, names = {new for _, new in moves}, [each.name for each in state.view.slices]
    sources = {name: _sources(config, state, name, archived, lost=arranged or name not in kept) for name in names}
    if ours is None:
        return Plan(_counted(state, ours, archived), [], [], sources, "theirs")
    last = archived.checkpoint
    doomed = [each.name for each in ours.view.slices if each.name not in {old for old, _ in moves}]
    forgotten = "both" if last and ours.checkpoint < last.number else "ours"
    return Plan(_counted(state, ours, archived), moves, doomed, sources, forgotten)


def _state(config: Config, ours: ShardState | None, present: set[str], archived: Archived, now: int) -> ShardState:
    """Return the state of the higher epoch; Redis's own if they are of one."""
    found = _archived_state(config, archived) or _empty(config, now)
    if ours is None or found.epoch > ours.epoch:
        return found
    if found.epoch == ours.epoch and (found.phase, ours.phase) == ("idle", "rotating"):
        return found
    # What was built in a bitmap that is lost must be built again.
    return ours if "history_1" in present or config.retention != "rolling" else replace(ours, pieces=None)


def _archived_state(config: Config, archived: Archived) -> ShardState | None:
    """Return the state of the checkpoint, or that after the last rotation if that was archived later."""
    state = archived.checkpoint.shard_state() if archived.checkpoint else None
    last = max(archived.slices, default=-1)
    if last < 0 or (state and state.epoch > last):
        return state
    epoch, window = last + 1, config.slices or 1
    oldest = max(0, epoch - window + 1)
    there = {
        each.epoch: Closed(each.epoch, each.opened, each.closed, each.inserted) for each in archived.slices.values()
    }
    known = {each.epoch: each for each in state.closed} | there if state else there
    lost = there[last].opened  # unknown slices hold no items, so any time will do
    view = View(tuple(slices_at(config, config.today, epoch)))
    closed = tuple(known.get(each, Closed(each, lost, lost, 0)) for each in range(oldest, epoch))
    return replace(
        state or _empty(config, 0), epoch=epoch, phase="idle", token="", pieces=None, late=False, inserted=0,
        opened=there[last].closed, closed=closed, oldest=oldest, view=view,
    )  # fmt: skip


def _empty(config: Config, now: int) -> ShardState:
    meta = dict(zip(*[iter(config.to_meta(0, "idle"))] * 2, strict=True)) | {"uid": config.uid, "opened": str(now)}
    return ShardState.from_meta(meta | {"created": str(now)}, "new")


def _moves(config: Config, ours: ShardState, present: set[str], state: ShardState) -> list[tuple[str, str]]:
    """Return the slices that stay, oldest first, so that no name is taken before it is free."""
    names = {state.epoch_of(each.name): each.name for each in state.view.slices}
    moves = []
    for each in ours.view.slices:
        if each.name not in present:
            continue
        if config.retention == "rolling":
            same = each.name == "today" or (ours.epoch, ours.view) == (state.epoch, state.view)
            new = each.name if same else None
        elif each.name == "today" and config.retention != "growing":
            new = "today"  # it may have been written to a moment ago
        else:
            new = names.get(ours.epoch_of(each.name))
        moves += [(each.name, new)] if new else []
    return moves


def _sources(config: Config, state: ShardState, name: str, archived: Archived, *, lost: bool) -> list[Manifest]:
    last = archived.checkpoint
    if config.retention != "rolling":
        epoch = state.epoch_of(name)
        return [each for each in last.bitmaps if each.epoch == epoch] if last else []
    same = last is not None and last.shard_state().view == state.view and last.shard_state().epoch == state.epoch
    own = [each for each in last.bitmaps if each.name == name] if last else []
    if name == "today":
        # If its epoch is over, and the slice that was closed then has not all of it: late, never early.
        return own if last and (last.shard_state().epoch == state.epoch or not archived.contained) else []
    if not lost:
        return own if same else []
    if name == "history_1":
        closed = archived.slices.get(state.epoch - 1)
        return [*(own if same else []), *([closed] if closed else [])]
    wanted = range(state.oldest, state.epoch - (state.phase == "rotating"))
    there = [archived.slices[epoch] for epoch in wanted if epoch in archived.slices]
    if same:
        return [*own, *there]
    # Late, never early: what the archive has of an older epoch counts as all that is missing of it.
    older = [each for each in last.bitmaps if each.name != "today"] if last else []
    return [*there, *(older if len(there) < len(wanted) else [])]


def _counted(state: ShardState, ours: ShardState | None, archived: Archived) -> ShardState:
    """Return the state with the numbers of both; it has changed, so the next checkpoint takes nothing over."""
    last = archived.checkpoint
    then = last.shard_state() if last else state
    both = [state, then, ours] if ours else [state, then]
    inserted = [each.inserted for each in both if each.epoch == state.epoch]
    return replace(
        state,
        inserted=max(inserted),
        changed=max(each.changed for each in both) + 1,
        checkpoint=max(archived.number, *(each.checkpoint for each in both)),
        checkpointed=max(last.begun if last else 0, ours.checkpointed if ours else 0),
    )
