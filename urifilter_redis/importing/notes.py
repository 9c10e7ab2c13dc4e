"""Notes about unfinished imports, as small files in the user's data folder.

A note says: every item of a source before a place is in the filter. It counts while the filter has certainly lost none
of them, and the source shows no change. In doubt an import begins anew, which costs time and no item.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from urifilter_redis.bloom.retention import TIMED
from urifilter_redis.flows.importing import Condition
from urifilter_redis.protocol.config import Config
from urifilter_redis.transport.embedded import default_data_dir

#: The number of the notes' format. A note of another format does not count.
_FORMAT = 1

#: The exceptions of an unusable folder; without a home directory it is a RuntimeError.
_UNUSABLE = (OSError, UnicodeError)


@dataclass(slots=True)
class Counts:
    """The items of an import so far.

    Attributes:
        items: the number of inserted items.
        new: the number of items that were answered "new".
        bad: the number of items and files that were left out.
    """

    items: int = 0
    new: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """A note about an unfinished import.

    Attributes:
        condition: the condition of the filter when the import began.
        state: the state of the source when the import began, as JSON.
        place: the place in the source before which all items are in the filter, as JSON.
        counts: the items so far.
        format: the number of the note's format.
    """

    condition: Condition
    state: dict[str, Any]
    place: Any
    counts: Counts = field(default_factory=Counts)
    format: int = _FORMAT


def doubt(note: Note, now: Condition, config: Config) -> str:
    """Return the reason why items before the note's place may be missing in the filter; an empty text if none is."""
    if reason := loss(note, now, config):
        return reason
    if config.retention in TIMED and now.newest_epoch - note.condition.epoch >= (config.slices or 0):
        return "the first items may have expired"
    return ""


def loss(note: Note, now: Condition, config: Config) -> str:
    """Return the reason why the filter may have lost items that have not expired; an empty text if it has not."""
    then = note.condition
    if now.uid != then.uid:
        return "the filter was dropped and created anew"
    if now.run != then.run:
        return "the filter's server was restarted, or is another one"
    if now.restores != then.restores:
        return "the filter was restored from its archive"
    only_grows = config.layout != "counting" and (config.retention not in TIMED or now.newest_epoch == then.epoch)
    if only_grows and now.inserted < then.inserted + note.counts.new:
        return "the filter has fewer items than before"
    return ""


class NoteFile:
    """The file of the note about one import; ``names`` tell the import (filter, source, way of reading) from others."""

    def __init__(self, names: Sequence[str]) -> None:
        self._id = hashlib.sha256(json.dumps([*names]).encode()).hexdigest()[:32]

    def read(self) -> Note | None:
        """Return the note; None if there is none that can be read."""
        try:
            found = json.loads(self._path().read_text())
            note = Note(**found | {"condition": Condition(**found["condition"]), "counts": Counts(**found["counts"])})
        except (*_UNUSABLE, ValueError, TypeError, LookupError):
            return None
        return note if note.format == _FORMAT else None

    def write(self, note: Note) -> None:
        """Write the note in place of an older one; a note that cannot be written is no reason to stop."""
        with contextlib.suppress(*_UNUSABLE):
            path = self._path()
            part = path.with_suffix(f".{os.getpid()}")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(note)))
            part.replace(path)

    def remove(self) -> None:
        """Remove the note of an import that is finished."""
        with contextlib.suppress(*_UNUSABLE):
            self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return default_data_dir() / "imports" / f"{self._id}.json"
