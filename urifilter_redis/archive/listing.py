"""List the documents of a filter in an archive, and say which ones are missing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from urifilter_redis.archive.format import documents
from urifilter_redis.archive.format.manifest import Checkpoint, Manifest
from urifilter_redis.archive.snapshots import Place, gone, previous_gone
from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.engine.home import read_to_replace
from urifilter_redis.errors import ArchiveCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from urifilter_redis.archive.format.manifest import Content
    from urifilter_redis.engine.home import Home, Key
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = ["Listed", "list_documents", "missing", "read_listed"]


@dataclass(frozen=True, slots=True)
class Listed:
    """The document of a closed slice or of a checkpoint.

    Attributes:
        key: the document's key.
        text: the document's text, as ``Home.swap`` takes it.
        found: the manifest or checkpoint that the text holds; None if the text is damaged.
        problem: a text that says what is wrong; empty if no problem is known.
    """

    key: Key
    text: bytes
    found: Checkpoint | Manifest | None
    problem: str = ""

    @property
    def what(self) -> str:
        """The document's kind, filter, shard and epoch, for messages."""
        return _what(self.key)

    def contents(self) -> list[Content]:
        """Return all contents that the document names."""
        if self.found is None:
            return []
        return self.found.contents if isinstance(self.found, Checkpoint) else [self.found.content]


def list_documents(home: Home, name: str, config: Config | None) -> Flow[list[Listed]]:
    """Read the documents of all slices and checkpoints of a filter.

    With a ``config``, check that each document belongs to this filter; None: check only that it is whole.
    """
    listed = []
    for key in (yield from home.keys(name)):
        found = None if key.kind == "filter" else (yield from read_listed(home, key, config))
        listed += [] if found is None else [found]
    return listed


def read_listed(home: Home, key: Key, config: Config | None) -> Flow[Listed | None]:
    """Read one document; return None if it has been removed."""
    text, problem = yield from read_to_replace(home, key)
    if text is None:
        return None
    return Listed(key, text, None, f"{_what(key)}: {problem}") if problem else _load(key, text, config)


def _what(key: Key) -> str:
    return f"{key.kind} of {key.filter!r}, shard {key.shard}, epoch {key.epoch}"


def _load(key: Key, text: bytes, config: Config | None) -> Listed:
    what = _what(key)
    try:
        found: Checkpoint | Manifest
        if key.kind == "checkpoint":
            found = documents.load(Checkpoint, text, what)
        else:
            found = documents.load(Manifest, text, what)
    except ArchiveCorrupt as error:
        return Listed(key, text, None, str(error))
    if config is None:
        return Listed(key, text, found)
    if key.uid != config.uid:
        return Listed(key, text, found, f"{what}: no filter of this uid is registered")
    try:
        if isinstance(found, Checkpoint):
            found.check(config, key.shard)
        else:
            closed = Slice("history_1", config.units, config.bytes)
            found.check(config, key.shard, closed, kind="slice", epoch=key.epoch)
    except ArchiveCorrupt as error:
        return Listed(key, text, found, str(error))
    return Listed(key, text, found)


def missing(config: Config, name: str, listed: Iterable[Listed], *, complete: bool) -> list[str]:
    """Return one text for each document that a filter should have and has not.

    Args:
        config: the filter's configuration.
        name: the filter's name.
        listed: the documents that the archive has.
        complete: whether every shard has had a checkpoint.
    """
    shards: defaultdict[int, list[Listed]] = defaultdict(list)
    for each in listed:
        if each.key.uid == config.uid:
            shards[each.key.shard].append(each)
    problems = []
    for shard in range(config.shards):
        places = [_place(each) for each in shards[shard] if each.key.kind == "checkpoint"]
        what = f"of {name!r}, shard {shard}"
        if complete and not places:
            problems.append(f"checkpoints {what}: they are gone")
        if number := gone(places) or previous_gone(places):
            problems.append(f"checkpoint {number} {what}: its document is gone")
        there = {each.key.epoch: each.found for each in shards[shard] if each.key.kind == "slice"}
        problems += [
            f"slice {epoch} {what}: it is missing: what it held expires late"
            for epoch in _needed(config, places, there)
            if epoch not in there
        ]
    return problems


def _place(each: Listed) -> Place:
    found = each.found if isinstance(each.found, Checkpoint) and not each.problem else None
    return Place(each.key, each.text, found, each.problem)


def _needed(config: Config, places: Sequence[Place], there: Mapping[int, object]) -> Iterator[int]:
    """Yield the epochs of the closed slices from which the shard's next history is built."""
    if config.retention != "rolling":
        return
    states = [place.checkpoint.shard_state() for place in places if place.checkpoint]
    last = max(states, key=lambda state: (state.epoch, state.phase == "idle", state.pieces or -1), default=None)
    epoch = max(there, default=-1) + 1
    if last and last.epoch >= epoch:
        epoch = last.epoch
        if last.phase == "rotating" and last.pieces is None:  # the newest closed slice is being archived
            epoch = last.epoch_of("history_1")
    missed = set(range(last.oldest, last.epoch)) - {each.epoch for each in last.closed} if last else set()
    for before, after in pairwise(sorted(there)):
        ours, following = there[before], there[after]
        if isinstance(ours, Manifest) and isinstance(following, Manifest) and following.opened <= ours.closed:
            missed.update(range(before + 1, after))  # the one was closed as the other was made
    oldest = (last.epoch if last and last.epoch >= epoch else epoch) - (config.slices or 1) + 1
    yield from (each for each in range(max(0, oldest), epoch) if each not in missed)
