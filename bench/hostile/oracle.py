"""The oracle: it compares all answers with the promises, and knows exactly what a fault excuses.

An answer is a fact about an item at one moment of its call. ``known`` facts say that the filter had the item,
``missed`` ones that it had not. A ``missed`` after a ``known`` is a wrong answer, unless the item had expired by the
server's clock, or FLUSHALL took it and no checkpoint that was finished before had it: that is counted, as documented.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.hostile.filters import EXPIRING, MEASURED, NOBODYS, SETTINGS
from bench.hostile.journal import Asked
from bench.hostile.world import Span, World

#: Each kind of wrong answer. All are promised never to happen.
PROMISES = {
    "told twice": "an item was new, or made final, twice",
    "lost": "an item counts as seen, and nobody was told that it is new",
    "false negative": "an item that was seen is not seen any more, in a filter from which nothing expires",
    "early": "an item is not seen any more before its window is over by the server's clock",
    "never handed on": "an item that somebody had in flight is offered to nobody",
    "never answered": "a call got no answer for good, without a reason",
}

AGAIN, DEAD, CLOCK, ANEW = "offered again after a restore", "told to the dead", "given up: clock", "given up: made anew"
LATE = "offered late: clock"

#: What documents say may happen, and which is counted.
DOCUMENTED = {
    AGAIN: "the item was inserted after the last finished checkpoint began, and FLUSHALL took it",
    DEAD: "the process that inserted it was killed before it could say what it was told",
    CLOCK: "the answer is lost for good, because the server's clock was set by more than a minute",
    ANEW: "the filter has no archive, and FLUSHALL took it with its records",
    LATE: "it was given back, or its dead holder called last, while the server's clock was ahead of the time since",
}


class Fact(NamedTuple):
    """What one answer says of one item: it was there, or not, at one moment of a call; None: there is no answer."""

    call: Asked
    answer: Any


@dataclass(slots=True)
class Item:
    """All that is known of one item of one filter."""

    filter: str
    uid: str
    number: int
    calls: list[Fact] = field(default_factory=list)

    def facts(self, how: str) -> list[Fact]:
        """Return the facts of one kind of call that was answered."""
        return [each for each in self.calls if each.call.how == how and each.answer is not None]

    def in_doubt(self, how: str) -> list[Asked]:
        """Return the calls that may have run without an answer."""
        return [call for call, answer in self.calls if call.how == how and answer is None]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong answer, and why it is one."""

    kind: str
    item: Item
    why: str


@dataclass(slots=True)
class Findings:
    """What the oracle found.

    Attributes:
        counts: by filter, how many items were asked about, and how often an answer was "new" and "seen".
        wrong: the wrong answers.
        documented: how often what documents excuse happened.
        mistaken: how often the filter that measures it answered "seen" for items that nobody had inserted; of how many.
    """

    counts: dict[str, collections.Counter[str]] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)
    documented: collections.Counter[str] = field(default_factory=collections.Counter)
    mistaken: tuple[int, int] = (0, 0)

    @property
    def broken(self) -> list[str]:
        """The promises that were broken, in words."""
        found = [kind for kind in PROMISES if any(each.kind == kind for each in self.wrong)]
        errors, asked = self.mistaken
        most = MEASURED * asked + 5 * math.sqrt(MEASURED * asked) + 1
        return [*found, *(["error rate"] if errors > most else [])]


class Oracle:
    """Judges all calls of a run.

    Args:
        calls: all calls, of all journals.
        world: what happened meanwhile.
    """

    def __init__(self, calls: Iterable[Asked], world: World) -> None:
        self._calls, self._world = list(calls), world
        self._findings = Findings(counts={name: collections.Counter() for name in SETTINGS})

    def judge(self) -> Findings:
        """Return what is wrong, and what is not."""
        mistaken = asked = 0
        self._judge_unanswered()
        for item in _items(self._calls):
            counts = self._findings.counts.setdefault(item.filter, collections.Counter())
            _count(item, counts)
            if item.filter == "claims":
                self._judge_claimed(item)
            else:
                self._judge_inserted(item)
            if item.filter == "rate" and item.number >= NOBODYS:
                answers = [each.answer for each in item.facts("contains")]
                asked += len(answers)
                mistaken += sum(map(bool, answers))
        self._findings.mistaken = mistaken, asked
        return self._findings

    def _judge_unanswered(self) -> None:
        for call in self._calls:
            if call.ended == math.inf or None not in call.answers:
                continue
            if call.uid:
                self._findings.documented[ANEW] += 1
            elif self._world.jumped(call.began, call.ended):
                self._findings.documented[CLOCK] += 1
            else:
                item = Item(call.filter, call.uid, call.items[call.answers.index(None)], [Fact(call, None)])
                self._wrong("never answered", item, f"call {call.call} was given up")

    def _judge_inserted(self, item: Item) -> None:
        inserts, looks, put = map(item.facts, ("insert", "contains", "union"))
        new = [each for each in inserts if each.answer == 0]
        seen = [each for each in (*inserts, *looks) if each.answer != 0]
        missed = [*new, *(each for each in looks if each.answer == 0)]
        doubtful = item.in_doubt("insert")
        self._judge_causes(item, seen, [*(each.call for each in (*new, *put)), *doubtful, *item.in_doubt("union")])
        if seen and doubtful and not new and not put:
            self._findings.documented[DEAD] += 1
        known = new if item.filter in EXPIRING else [*new, *put, *seen]
        for each in missed:
            self._judge_pairs(item, known, each)

    def _judge_claimed(self, item: Item) -> None:
        claims, commits, handed = map(item.facts, ("claim", "commit", "reclaim"))
        taken = [*(each for each in claims if each.answer == 0), *handed]
        final = [each for each in claims if each.answer > 0]
        self._judge_causes(item, final, [each.call for each in commits] + item.in_doubt("commit"))
        if (final or commits) and not any(each.answer for each in commits):  # it was made final, and nobody told so
            if item.in_doubt("commit"):
                self._findings.documented[DEAD] += 1
            elif commits:
                self._wrong("lost", item, "commit made it final for nobody")
        for each in (*taken, *(each for each in commits if each.answer)):
            self._judge_pairs(item, [*commits, *final], each)
        for each in claims:
            if each.call.more.get("audit") and each.answer == 0:
                self._judge_pairs(item, self._left(item, taken, each), each, "never handed on")
            elif each.call.more.get("audit") and each.answer < 0 and self._is_late(item, each):
                self._findings.documented[LATE] += 1
            elif each.call.more.get("audit") and each.answer < 0:
                self._wrong("never handed on", item, f"{each.call.call}: in flight after all was reclaimed")

    def _is_late(self, item: Item, claimed: Fact) -> bool:
        """Whether an item is still kept from others because the server's clock was ahead when that was last written.

        The last call that gave it back wrote that; or, for one that was taken, the last call of the holder's process.
        """
        moves = [call for call, answer in item.calls if _moves(call, answer) and not call.more.get("audit")]
        if not moves:
            return False
        last = moves[-1]
        if last.how != "release":
            living = [each for each in self._calls if each.filter == item.filter and not each.more.get("audit")]
            mine = (each for each in living if _process(each) == _process(last))
            last = max(mine, key=lambda each: each.began)
        written = Span(last.began, min(last.ended, claimed.call.began))
        return self._world.withheld(written, claimed.call)

    def _left(self, item: Item, taken: list[Fact], claimed: Fact) -> list[Fact]:
        """Return the facts that say that the item was still in flight when it was claimed at the end.

        One that was committed after a checkpoint had read the bitmaps, and before it read what is in flight, is in
        neither.
        """
        commits = [call for call, _ in item.calls if call.how == "commit"]
        gone = [each.ended for each in commits if self._world.may_be_lost(item.filter, each, claimed.call)]
        return [each for each in taken if each is not claimed and max(gone, default=-math.inf) <= each.call.began]

    def _judge_causes(self, item: Item, known: list[Fact], causes: list[Asked]) -> None:
        """Check that somebody may have made the filter know the item, before it did."""
        first = min((each.began for each in causes), default=math.inf)
        before = (each for each in known if each.call.ended < first)
        early = min(before, key=lambda each: each.call.ended, default=None)
        if early is None or item.filter == "rate":
            return
        # FLUSHALL took the insertion of a call that had no answer yet, with its record; somebody was new afterwards
        inserts = [call for call, _ in item.calls if call.how == "insert"]
        repeated = [call for call in inserts if self._world.flushed_during(call)]
        # or it was repeated over HTTP after the server's clock had made its record an old one
        served = [call for call in inserts if "served" in call.more]
        if causes and any(call.began <= early.call.ended for call in repeated):
            self._findings.documented[AGAIN] += 1
        elif any(self._world.jumped(call.began, call.ended) for call in served if call.began <= early.call.ended):
            self._findings.documented[CLOCK] += 1
        else:
            self._wrong("lost", item, f"{early.call.call}: seen, and nobody had been told that it is new")

    def _judge_pairs(self, item: Item, known: list[Fact], missed: Fact, kind: str | None = None) -> None:
        """Judge one fact that the item is not there, against all that say that it is."""
        documented = False
        for each in known:
            one, other = each.call, missed.call
            both_new = each.answer == missed.answer and one.how == other.how != "contains"
            # of two that overlap, each may have been the first; such a pair is judged once, in one order
            apart, first = one.ended < other.began, (one.began, one.call) < (other.began, other.call)
            if each is missed or not (apart or (both_new and first)):
                continue
            orders = [(one, other)] if apart else [(one, other), (other, one)]
            if item.filter in EXPIRING and any(self._world.may_have_expired(*order) for order in orders):
                continue
            if any(self._world.may_be_lost(item.filter, *order) for order in orders):
                documented = True
                continue
            self._wrong(kind or _kind(item, each, missed), item, f"{one.call}, and then {other.call}")
            return
        self._findings.documented[AGAIN] += documented

    def _wrong(self, kind: str, item: Item, why: str) -> None:
        self._findings.wrong.append(Wrong(kind, item, why))


def _process(call: Asked) -> str:
    """Return the name of the process that made a call."""
    return call.call.rpartition("-")[0]


def _moves(call: Asked, answer: object) -> bool:
    """Whether a call has, or may have, taken an item or given it back."""
    if call.how == "claim":
        return answer in {0, None}
    return call.how == "reclaim" or (call.how == "release" and answer != 0)


def _kind(item: Item, known: Fact, missed: Fact) -> str:
    if item.filter in EXPIRING:
        return "early"
    if missed.call.how == "commit" or (known.call.how == missed.call.how == "insert" and known.answer == 0):
        return "told twice"
    return "false negative"


def _items(calls: list[Asked]) -> Iterable[Item]:
    found: dict[tuple[str, str, int], Item] = {}
    for call in calls:
        answers = call.answers or [None] * len(call.items)
        for number, answer in zip(call.items, answers, strict=True):
            key = call.filter, call.uid, number
            item = found.get(key) or found.setdefault(key, Item(*key))
            item.calls.append(Fact(call, answer))
    for item in found.values():
        item.calls.sort(key=lambda each: each.call.began)
    return found.values()


def _count(item: Item, counts: collections.Counter[str]) -> None:
    counts["items"] += 1
    asking = ("claim", "commit") if item.filter == "claims" else ("insert",)
    for call, answer in item.calls:
        if call.how in asking and answer is not None:
            counts["answers"] += 1
            new = bool(answer) if call.how == "commit" else answer == 0
            counts["new"] += new
            counts["seen"] += not new
