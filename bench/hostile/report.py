"""The table at the end of a run, and its history."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator

from bench.hostile.filters import MEASURED
from bench.hostile.journal import Line
from bench.hostile.memory import Memory
from bench.hostile.oracle import DOCUMENTED, PROMISES, Findings, Wrong
from bench.hostile.schedule import Fault

#: Wrong answers of which the history is told.
SHOWN = 20


def table(findings: Findings, faults: Iterable[Fault], memory: Memory) -> Iterator[str]:
    """Return the lines of the table."""
    yield "filter             items    answers        new       seen"
    others: collections.Counter[str] = collections.Counter()
    for name, counts in findings.counts.items():
        if name.startswith("other-"):
            others += counts
        else:
            yield _counted(name, counts)
    yield _counted("others", others)
    yield ""
    done = collections.Counter(fault.kind for fault in faults)
    yield f"faults: {sum(done.values())}"
    yield from (f"  {kind:40} {count:6}" for kind, count in sorted(done.items()))
    yield "wrong answers"
    wrong = collections.Counter(each.kind for each in findings.wrong)
    yield from (f"  {kind:40} {wrong[kind]:6}" for kind in PROMISES)
    errors, asked = findings.mistaken
    yield f"  error rate: {errors} of {asked:,}, asked for {MEASURED:g}"
    yield "documented"
    yield from (f"  {kind:40} {findings.documented[kind]:6}" for kind in DOCUMENTED)
    yield "memory, MB: the most in the first half of the longest life, and in its last quarter"
    for role, first, last, seconds in memory.rows():
        yield f"  {role:12} {first / 1e6:8.1f} {last / 1e6:8.1f}   {seconds:5.0f} s"


def _counted(name: str, counts: collections.Counter[str]) -> str:
    cells = " ".join(f"{counts[each]:10,}" for each in ("items", "answers", "new", "seen"))
    return f"{name:12} {cells}"


def history(findings: Findings, faults: Iterable[Fault], lines: list[Line], start: float) -> Iterator[str]:
    """Return the lines of the history: the schedule, and for each wrong answer all that is known of its item."""
    yield "schedule"
    yield from (f"  {fault}" for fault in faults)
    for wrong in findings.wrong[:SHOWN]:
        yield from _of(wrong, lines, start)
    if len(findings.wrong) > SHOWN:
        yield f"and {len(findings.wrong) - SHOWN} more wrong answers"


def _of(wrong: Wrong, lines: list[Line], start: float) -> Iterator[str]:
    item = wrong.item
    yield f"\n{wrong.kind}: item {item.number} of {item.filter} {item.uid}: {wrong.why}"
    events = []
    for call, answer in item.calls:
        until = "nobody knows" if call.ended == math.inf else f"{call.ended - start:.3f}"
        events.append((call.began, f"{call.how} {call.call}, until {until}: {answer!r}"))
    since, until = events[0][0] - 5, max(at for at, _ in events) + 5
    near = [line for line in lines if since <= line["at"] <= until]
    events += [(line["at"], text) for line in near if (text := _event(line, item.filter, start))]
    yield from (f"  {at - start:9.3f}  {text}" for at, text in sorted(events))


def _event(line: Line, name: str, start: float) -> str:
    """Return the text of what happened to all items."""
    if line["what"] == "fault":
        return f"-- {line['kind']}, {line['subject']}: {'ended' if line['done'] else 'began'}"
    if line["what"] == "checkpoint" and line["filter"] == name:
        return f"-- checkpoint, begun after {line['began'] - start:.3f}, is finished"
    if line["what"] == "clock":
        return f"-- the server's clock is set {line['ahead']} s ahead"
    if line["what"] == "flush":
        return f"-- FLUSHALL {'done' if line['done'] else 'is sent'}"
    return ""
