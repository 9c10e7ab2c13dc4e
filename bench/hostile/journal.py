"""What the processes were told: lines of JSON, appended by one system call each, so that a kill loses no finished one.

A line has the time by the monotonic clock (``at``, seconds), which all processes share and nobody sets, and ``what``:

    ask         a call begins: ``call`` (its name), ``filter``, ``uid``, ``how``, ``items`` (numbers), and more
    told        it ended: ``call`` and ``answers``, None for each that was lost for good
    dropped     it has inserted nothing, as its client says: ``call``
    checkpoint  a checkpoint ended: ``filter``, and ``began``, a time before its beginning
    clock       the server's clock is about to be set, or was: ``ahead`` (seconds), ``done``
    flush       FLUSHALL is about to be sent, or was: ``done``
    made        a filter was made or opened: ``filter``, ``uid``
    fault       a fault began or ended: ``kind``, ``subject``, ``done``
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Journal:
    """Appends lines to a file; ``begins`` is the beginning of the names of its calls."""

    def __init__(self, path: str | Path, begins: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._begins, self._calls = begins, 0

    def say(self, what: str, **more: object) -> float:
        """Append a line; return its time."""
        at = time.monotonic()
        os.write(self._file, json.dumps({"at": at, "what": what} | more, separators=(",", ":")).encode() + b"\n")
        return at

    def ask(self, how: str, name: str, uid: str, items: list[int], **more: object) -> str:
        """Say that a call begins; return its name."""
        self._calls += 1
        call = str(more.pop("call", f"{self._begins}-{self._calls}"))
        self.say("ask", call=call, filter=name, uid=uid, how=how, items=items, **more)
        return call

    def told(self, call: str, answers: list[Any]) -> None:
        """Say how a call ended."""
        self.say("told", call=call, answers=answers)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def lines_of(path: Path) -> list[Line]:
    """Return the whole lines of a file: a kill may have cut the last line of a process."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


@dataclass(slots=True)
class Asked:
    """One call about items.

    Attributes:
        call: its name.
        how: insert, contains, claim, commit, release or reclaim; union: the items came with another filter.
        began: before the call was made.
        ended: after its answers were there; infinity: nobody knows whether it ran.
        items: their numbers.
        answers: an answer an item, None where it was lost.
        filter: the filter's name.
        uid: the filter's uid, if a filter of that name may be made anew.
        more: all else of the line.
    """

    call: str
    how: str
    filter: str
    uid: str
    items: list[int]
    began: float
    ended: float = float("inf")
    answers: list[Any] = field(default_factory=list)
    more: Line = field(default_factory=dict)


def calls_of(lines: list[Line]) -> dict[str, Asked]:
    """Return the calls of journals by their names; a call that a successor repeated is one call."""
    found: dict[str, Asked] = {}
    for line in sorted(lines, key=lambda each: each["at"]):
        if line["what"] == "ask" and line["call"] not in found:
            named = {name: line[name] for name in ("call", "how", "filter", "uid", "items")}
            more = {name: value for name, value in line.items() if name not in {*named, "at", "what"}}
            found[line["call"]] = Asked(**named, began=line["at"], more=more)
        elif line["what"] == "told":
            call = found[line["call"]]
            if call.how == "reclaim":
                call.items = [number for number, _ in line["answers"]]
            call.answers, call.ended = line["answers"], line["at"]
        elif line["what"] == "dropped":
            del found[line["call"]]
    return found
