"""The oracle of the hostile run finds each kind of wrong answer that is planted, and excuses exactly what it may."""

from __future__ import annotations

import itertools
import math

import pytest

from bench.hostile.filters import NOBODYS, PERIOD
from bench.hostile.journal import Asked, Journal, calls_of, lines_of
from bench.hostile.oracle import AGAIN, ANEW, CLOCK, DEAD, LATE, Oracle
from bench.hostile.schedule import CLIENTS, KINDS, schedule
from bench.hostile.world import Span, World

NEW, SEEN = 0, 1
FLUSHED = World(flushes=[Span(50, 51)], checkpoints={"pages": [Span(30, 40), Span(45, 60)], "claims": [Span(30, 40)]})
_names = (f"call {number}" for number in itertools.count())


def asked(began, how, answer, name="pages", *, lasts=1.0, uid="", **more):
    """A call about one item: 1."""
    ended = math.inf if answer is None else began + lasts
    items = [answer[0] if how == "reclaim" else 1]
    return Asked(next(_names), how, name, uid, items, began, ended, [] if answer is None else [answer], more)


def judged(*calls, world=None):
    """The kinds of wrong answers, and of documented ones."""
    findings = Oracle(calls, world or World()).judge()
    return [each.kind for each in findings.wrong], {kind: n for kind, n in findings.documented.items() if n}


def insert(began, answer, name="pages", **more):
    return asked(began, "insert", answer, name, **more)


def look(began, answer, name="pages", **more):
    return asked(began, "contains", answer, name, **more)


def test_nothing_wrong():
    """One is told new, all others seen, at the same time or later; nobody, before anybody inserts."""
    calls = [look(0, NEW), insert(2, SEEN), insert(2, NEW), look(2, NEW), insert(5, SEEN), look(6, SEEN)]
    assert judged(*calls) == ([], {})


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([insert(1, NEW), insert(1.5, NEW)], "told twice"),
        ([insert(1, NEW), insert(10, NEW)], "told twice"),
        ([insert(1, SEEN), insert(1.5, SEEN)], None),  # each may be the one who does not know
        ([insert(1, SEEN), insert(10, SEEN)], None),
    ],
)
def test_told_twice(calls, kind):
    """Two are told new, one after the other or at once."""
    found, _ = judged(*calls)
    assert found == ([kind] if kind else ["lost"])


def test_lost():
    """All are told seen, nobody new; a call that began only later is no reason."""
    assert judged(insert(1, SEEN)) == (["lost"], {})
    assert judged(insert(1, SEEN), insert(1.5, NEW)) == ([], {})
    assert judged(look(1, SEEN), insert(5, NEW))[0] == ["lost", "false negative"]
    assert judged(insert(1, None), insert(3, SEEN)) == ([], {DEAD: 1})
    assert judged(insert(1, SEEN), insert(3, None))[0] == ["lost"]
    assert judged(insert(1, SEEN, "rate"))[0] == []  # whose error rate is counted apart


def test_forgotten_over_http():
    """A request that is repeated after the server's clock was set by an hour may find no record of its first run."""
    jumped = {"world": World(clock=[(2, 3600)])}
    assert judged(insert(1, SEEN, lasts=3, served=True), **jumped) == ([], {CLOCK: 1})
    assert judged(insert(1, SEEN, lasts=3, served=True), look(6, SEEN), **jumped) == ([], {CLOCK: 1})
    assert judged(insert(1, SEEN, lasts=3), **jumped)[0] == ["lost"]
    assert judged(insert(1, SEEN, lasts=3, served=True), world=World(clock=[(2, 30)]))[0] == ["lost"]
    assert judged(look(1, SEEN), insert(6, SEEN, lasts=3, served=True), world=World(clock=[(8, 3600)]))[0] == ["lost"]


def test_false_negative():
    """What was seen, or told new, is not seen any more."""
    assert judged(insert(1, NEW), look(5, NEW)) == (["false negative"], {})
    assert judged(insert(1, NEW), look(1.5, NEW)) == ([], {})
    assert judged(insert(1, None), look(3, SEEN), insert(9, NEW)) == (["false negative"], {})
    assert judged(asked(1, "union", 1, "other-1"), look(5, NEW, "other-1"))[0] == ["false negative"]


def test_a_restore():
    """What the last finished checkpoint did not have may be new again, once; all else may not."""
    assert judged(insert(31, NEW), insert(60, NEW), world=FLUSHED) == ([], {AGAIN: 1})
    assert judged(insert(28, NEW), insert(60, NEW), world=FLUSHED) == (["told twice"], {})
    assert judged(insert(31, NEW), insert(48, NEW), world=FLUSHED)[0] == ["told twice"]
    assert judged(insert(52, NEW), insert(60, NEW), world=FLUSHED)[0] == ["told twice"]
    assert judged(insert(31, NEW), insert(60, NEW), insert(70, NEW), world=FLUSHED) == (["told twice"], {AGAIN: 1})
    assert judged(insert(10, NEW), look(35, SEEN), look(60, NEW), world=FLUSHED)[0] == ["false negative"]
    during = [insert(31, NEW, lasts=40), insert(45, NEW, lasts=0.1)]  # the first of them may have run after FLUSHALL
    assert judged(*during, world=FLUSHED) == ([], {AGAIN: 1})
    assert judged(insert(25, NEW, lasts=5), insert(28, NEW, lasts=0.1), world=FLUSHED)[0] == ["told twice"]
    repeated = [insert(47, SEEN, lasts=10), look(49, SEEN, lasts=0.5)]  # it inserted, had no answer, and came again
    assert judged(*repeated, insert(54, NEW), world=FLUSHED) == ([], {AGAIN: 2})
    assert judged(*repeated, world=FLUSHED)[0] == ["lost"]
    assert judged(insert(47, SEEN), look(49, SEEN), insert(54, NEW), world=FLUSHED)[0] == ["lost"]
    assert judged(insert(10, NEW), look(60, NEW), world=World(flushes=[Span(50, 51)])) == ([], {AGAIN: 1})


@pytest.mark.parametrize("name", ["ring", "days"])
def test_early(name):
    """An item is new again, or not seen, before two of three periods are over by the server's clock."""
    for ask in (insert, look):
        assert judged(insert(1, NEW, name), ask(1 + 1.9 * PERIOD - 1, NEW, name)) == (["early"], {})
        assert judged(insert(1, NEW, name), ask(1 + 2 * PERIOD, NEW, name)) == ([], {})
    for clock, expires in (
        ([(5, PERIOD - 1)], 5 + PERIOD),  # the first period is over as the clock is set, the second later
        ([(5, 1000)], 5 + PERIOD),  # a rotation that is late happens once
        ([(0, 1000), (5, 0)], 5 + 2 * PERIOD),  # a slice of the future counts as opened when that is noticed
    ):
        world = World(clock=clock)
        assert judged(insert(1, NEW, name), insert(expires - 2, NEW, name), world=world)[0] == ["early"]
        assert judged(insert(1, NEW, name), insert(expires - 1, NEW, name), world=world)[0] == []


def test_claims():
    """Final twice, claimed after it was final, for nobody, in a dead one's hands, gone."""
    claim, commit, reclaim = (
        lambda began, answer, how=how, **more: asked(began, how, answer, "claims", **more)
        for how in ("claim", "commit", "reclaim")
    )
    fine = [claim(1, 0), claim(3, -1), reclaim(10, [1, 1]), commit(12, 1), commit(14, 0), claim(16, 1)]
    assert judged(*fine) == ([], {})
    assert judged(*fine, commit(20, 1))[0] == ["told twice"]
    assert judged(*fine, commit(12.5, 1))[0] == ["told twice"]
    assert judged(*fine, claim(20, 0))[0] == ["false negative"]
    assert judged(*fine, reclaim(20, [1, 1]))[0] == ["false negative"]
    assert judged(claim(1, 0), commit(3, 0))[0] == ["lost"]
    assert judged(claim(1, 0), commit(3, None), commit(6, 0)) == ([], {DEAD: 1})
    assert judged(claim(1, 0), claim(6, 1))[0] == ["lost"]
    assert judged(claim(1, 0), claim(20, -1, audit=True))[0] == ["never handed on"]
    assert judged(claim(1, 0), claim(20, 0, audit=True))[0] == ["never handed on"]
    assert judged(claim(35, 0), claim(60, 0, audit=True), world=FLUSHED) == ([], {AGAIN: 1})
    assert judged(claim(5, 0), claim(60, 0, audit=True), world=FLUSHED)[0] == ["never handed on"]
    assert judged(claim(5, 0), commit(35, 1), claim(60, 0, audit=True), world=FLUSHED) == ([], {AGAIN: 1})
    assert judged(claim(5, 0), commit(25, 1), claim(60, 0, audit=True), world=FLUSHED)[0] != []
    assert judged(claim(5, 0), commit(35, None), claim(60, 0, audit=True), world=FLUSHED)[0] == []
    assert judged(claim(5, 0), commit(35, 1), reclaim(60, [1, 1]), commit(61, 1), world=FLUSHED)[0] == []


@pytest.mark.parametrize(
    ("clock", "flushes", "late"),
    [
        ([(10, 3600), (20, 0)], [], True),
        ([(10, 3600), (20, 0)], [Span(30, 31)], False),  # a restore writes the time anew
        ([(10, 3600)], [], False),  # it is still as far ahead, so the time has come
        ([(20, 3600), (25, 0)], [], False),  # it was right until then
        ([(5, 3600), (8, 0)], [], False),
        ([(10, 50), (20, 0)], [], False),  # that time is over
        ([(100, -3600)], [], True),  # right then, and set back since
        ([], [], False),
    ],
)
def test_offered_late(clock, flushes, late):
    """What was given back, or a dead holder's last call, by a clock that was ahead is kept from others until then."""
    world = World(clock=clock, flushes=flushes)
    expected = ([], {LATE: 1}) if late else (["never handed on"], {})
    claim, last = asked(12, "claim", 0, "claims"), asked(300, "claim", -1, "claims", audit=True)
    assert judged(claim, last, world=world) == expected
    given_back = [asked(1, "claim", 0, "claims"), asked(12, "release", 1, "claims"), last]
    assert judged(*given_back, world=world) == expected


def test_a_holder_that_called_last_by_a_right_clock():
    """The holder's process called again when the clock was right, so all that it had was kept until then alone."""
    world, last = World(clock=[(10, 3600), (20, 0)]), asked(300, "claim", -1, "claims", audit=True)
    calls = [
        Asked(f"claiming-0-{item}", "claim", "claims", "", [item], began, began + 1, [0])
        for item, began in ((1, 12), (2, 22))
    ]
    assert judged(*calls[:1], last, world=world) == ([], {LATE: 1})
    assert judged(*calls, last, world=world) == (["never handed on"], {})


def test_never_answered():
    """A call that is given up has a reason: the clock was set far, or the filter was made anew."""
    given_up = lambda **more: Asked("call", "insert", "pages", more.get("uid", ""), [1], 20, 30, [None])  # noqa: E731
    assert judged(given_up())[0] == ["never answered"]
    assert judged(given_up(), world=World(clock=[(25, 50)]))[0] == ["never answered"]
    assert judged(given_up(), world=World(clock=[(25, 3600)])) == ([], {CLOCK: 1})
    assert judged(given_up(), world=World(clock=[(10, 3600), (15, 0)])) == ([], {CLOCK: 1})
    assert judged(given_up(uid="old"))[1] == {ANEW: 1}


@pytest.mark.slow
def test_error_rate():
    """Twice the rate that was asked for is a broken promise, and a little more is not."""
    for mistaken, broken in ((0, []), (25, []), (60, ["error rate"])):
        numbers = list(range(NOBODYS, NOBODYS + 20_000))
        answers = [int(place < mistaken) for place in range(20_000)]
        findings = Oracle([Asked("a", "contains", "rate", "", numbers, 0, 1, answers)], World()).judge()
        assert (findings.mistaken, findings.broken) == ((mistaken, 20_000), broken)


def test_a_lying_server(tmp_path):
    """The journals of three processes, of which one was killed and one is lied to: the line of each is found."""
    path = tmp_path / "journal"
    journal = Journal(path, "a")
    first = journal.ask("insert", "pages", "", [1, 2, 3])
    journal.told(first, [NEW, NEW, NEW])
    journal.say("checkpoint", filter="pages", began=0.0)
    journal.ask("insert", "pages", "", [4, 5])  # and killed
    again = journal.ask("insert", "pages", "", [1, 2, 3, 4, 5, 6])
    journal.told(again, [SEEN, NEW, SEEN, SEEN, NEW, SEEN])
    cancelled = journal.ask("insert", "pages", "", [6])
    journal.say("dropped", call=cancelled)
    journal.say("flush", done=False)
    journal.say("flush", done=True)
    last = journal.ask("contains", "pages", "", [1, 3])
    journal.told(last, [NEW, SEEN])
    journal.close()
    with path.open("a") as file:
        file.write('{"at": 5, "what": "as')
    lines = lines_of(path)
    findings = Oracle(calls_of(lines).values(), World.of(lines)).judge()
    found = {(each.kind, each.item.number) for each in findings.wrong}
    assert found == {("told twice", 2), ("lost", 6)}
    assert findings.documented == {AGAIN: 1, DEAD: 1}
    assert findings.broken == ["told twice", "lost"]
    assert findings.counts["pages"] == {"items": 6, "answers": 9, "new": 5, "seen": 4}


def test_a_key_is_one_call(tmp_path):
    """A request that a successor repeats under its key has one answer."""
    path = tmp_path / "journal"
    journal = Journal(path, "a")
    journal.ask("insert", "pages", "", [1], call="key", keyed=True)
    journal.ask("insert", "pages", "", [1], call="key", keyed=True)
    journal.told("key", [NEW])
    journal.close()
    (call,) = calls_of(lines_of(path)[::-1]).values()  # the journals may be read in any order
    assert (call.answers, call.more) == ([NEW], {"keyed": True})
    assert call.began < call.ended < math.inf


def test_the_schedule():
    """A seed repeats it; all kinds come; a subject has one fault at a time; it ends before the run does."""
    faults = schedule(7, 120, list(KINDS))
    assert faults == schedule(7, 120, list(KINDS)) != schedule(8, 120, list(KINDS))
    assert {fault.kind for fault in faults} == set(KINDS)
    assert max(fault.until for fault in faults) < 120
    for subject in {fault.subject for fault in faults}:
        own = [fault for fault in faults if fault.subject == subject]
        assert all(one.until < other.at for one, other in itertools.pairwise(own))
    assert {fault.subject for fault in schedule(7, 600, list(KINDS))} >= set(CLIENTS)
