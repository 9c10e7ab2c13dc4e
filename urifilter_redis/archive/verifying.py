"""Verify the documents of an archive: which are missing, and whether their blobs are whole and plausible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from urifilter_redis.engine.backend import Backend, Key, read_to_replace
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing
from urifilter_redis.protocol.config import Config
from urifilter_redis.storage import documents
from urifilter_redis.storage.blobs import verify
from urifilter_redis.storage.checkpoints import Place, gone, previous_gone, readings
from urifilter_redis.storage.documents import Checkpoint, Content, Manifest

#: How often a document that was replaced while it was verified is read again.
TRIES = 5

#: More items a millisecond than any server inserts.
FASTEST = 1000

#: More items a bit than a union ever estimates from a bitmap's fill.
DENSEST = 32

_TOO_MANY = "it counts more items than can have been inserted"


@dataclass(frozen=True, slots=True)
class Listed:
    """The document of a closed slice or of a checkpoint.

    Attributes:
        key: the document's key.
        text: the document's text, as ``Backend.swap`` takes it.
        found: the manifest or checkpoint that the text holds; None if the text is damaged.
        problem: a text that says what is wrong; empty if no problem is known.
    """

    key: Key
    text: bytes
    found: Checkpoint | Manifest | None
    problem: str = ""

    def contents(self) -> list[Content]:
        """Return all contents that the document names."""
        if self.found is None:
            return []
        return self.found.contents if isinstance(self.found, Checkpoint) else [self.found.content]


def list_documents(backend: Backend, name: str, config: Config | None) -> Flow[list[Listed]]:
    """Read the documents of all slices and checkpoints of a filter.

    With a ``config``, check that each document belongs to this filter; None: check only that it is whole.
    """
    listed = []
    for key in (yield from backend.keys(name)):
        found = None if key.kind == "filter" else (yield from _read_listed(backend, key, config))
        listed += [] if found is None else [found]
    return listed


def _read_listed(backend: Backend, key: Key, config: Config | None) -> Flow[Listed | None]:
    """Read one document; return None if it has been removed."""
    text, problem = yield from read_to_replace(backend, key)
    if text is None:
        return None
    if problem:
        return Listed(key, text, None, f"{_what(key)}: {problem}")
    found: Checkpoint | Manifest | None = None
    try:
        if key.kind == "checkpoint":
            found = documents.load(Checkpoint, text, _what(key))
        else:
            found = documents.load(Manifest, text, _what(key))
        if config is not None and key.uid != config.uid:
            problem = f"{_what(key)}: no filter of this uid is registered"
        elif config is not None:
            if isinstance(found, Checkpoint):
                found.check(config, key.shard)
            else:
                closed = replace(config.today, name="history_1")
                found.check(config, key.shard, closed, kind="slice", epoch=key.epoch)
    except ArchiveCorrupt as error:
        problem = str(error)
    return Listed(key, text, found, problem)


def _what(key: Key) -> str:
    return f"{key.kind} of {key.filter!r}, shard {key.shard}, epoch {key.epoch}"


def missing(config: Config, name: str, listed: Iterable[Listed], *, complete: bool) -> list[str]:
    """Return one text for each document that a filter should have and has not.

    ``listed`` are the documents that the archive has, ``complete`` says whether every shard has had a checkpoint.
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


def verified(backend: Backend, each: Listed, config: Config | None) -> Flow[Listed | None]:
    """Read and check all contents that a document names.

    Return the document with its problems; None if it has been removed meanwhile. ``config`` is None if the filter is
    not registered.
    """
    for _ in range(TRIES):
        if each.problem:
            return each
        problems = yield from _problems(backend, each)
        if not problems:
            return each
        again = yield from _read_listed(backend, each.key, config)
        if again is None:
            return None
        if again.text == each.text:
            return replace(each, problem=f"{_what(each.key)}: {'; '.join(problems)}")
        each = again
    return each


def _problems(backend: Backend, each: Listed) -> Flow[list[str]]:
    problems = []
    for reading in _readings(backend, each):
        try:
            yield from reading
        except (ArchiveCorrupt, ArchiveMissing) as error:
            problems.append(str(error))
    problems = list(dict.fromkeys(problems))  # a blob that is missing is missed twice
    if isinstance(each.found, Checkpoint):
        return problems + _impossible(each.found)
    if each.found and each.found.inserted > _most(each.found.size, each.found.opened, each.found.closed):
        problems.append(_TOO_MANY)
    return problems


def _readings(backend: Backend, each: Listed) -> Iterator[Flow[None]]:
    if isinstance(each.found, Checkpoint):
        epoch = each.found.shard_state().epoch

        def check(forgotten: list[tuple[bytes, float]]) -> Flow[None]:
            yield from ()
            if any(score >= epoch + 1 for _, score in forgotten):
                raise ArchiveCorrupt(f"a digest was forgotten in an epoch after {epoch}, the checkpoint's last one")

        yield from readings(backend, each.key.filter, each.found, use_forgotten=check)
    elif each.found:
        yield verify(backend, each.key.filter, each.found.content)
    for content in each.contents():
        if content.pieces:
            yield _ends(backend, each.key.filter, content)


def _ends(backend: Backend, name: str, content: Content) -> Flow[None]:
    """Check that a blob ends where its document says."""
    if len((yield from backend.download(name, content.blob, content.packed - 1, 2))) > 1:
        raise ArchiveCorrupt(f"blob {content.blob}: it has more bytes than were written")


def _impossible(found: Checkpoint) -> list[str]:
    """Return one text for each impossible count or time of a checkpoint."""
    state, wrong = found.shard_state(), []
    for bitmap in found.bitmaps:
        times = state.times_of(bitmap.name)
        if (bitmap.opened, bitmap.closed, bitmap.inserted) != (times.opened, times.closed, times.inserted):
            wrong.append(f"{bitmap.name} has other times or counts than its shard")
    problems = list(dict.fromkeys(wrong))  # once a slice
    largest = max(each.whole.size for each in state.view.slices)
    counts = [(each.opened, each.closed, each.inserted) for each in state.closed]
    counts.append((state.opened, found.begun, state.inserted))
    if any(inserted > _most(largest, opened, until) for opened, until, inserted in counts):
        problems.append(_TOO_MANY)
    return problems


def _most(size: int, opened: int, until: int) -> int:
    """Return an upper bound of the items that a slice of ``size`` bytes may count between two times, in ms."""
    # the bits bound the items that are in the bitmap; an item that is forgotten and inserted again counts each time
    return DENSEST * 8 * size + FASTEST * max(0, until - opened)
