"""Holdings: what one holder has in flight, its beats, and the pauses between its reclaims."""

from __future__ import annotations

import math
import threading

import pytest
from support.forked import in_child

from urifilter_redis.engine import holdings
from urifilter_redis.engine.holdings import Claim, Holdings, Outstanding

A, B, C = (bytes([number]) * 16 for number in range(3))
LIFE = holdings.CALL_LIFE / 1000


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(holdings, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def mine(clock):
    return Holdings(60.0)


def call(mine, shard: int, *, answered: bool = True, in_doubt: bool = False) -> None:
    one = object()
    mine.begin(shard, one)
    mine.end(shard, one, answered=answered, in_doubt=in_doubt)


def test_books(mine):
    """An item is in flight from its taking to its dropping; dropped twice is dropped once."""
    mine.take(0, A, Claim("a", "a"))
    mine.take(3, B, Claim("b", "b"))
    assert mine.claims == [Claim("a", "a"), Claim("b", "b")]
    assert mine.digests == [A, B]
    assert (mine.has(0, A), mine.has(3, A)) == (True, False)
    mine.drop(0, A)
    mine.drop(0, A)
    assert mine.claims == [Claim("b", "b")]
    assert mine.has_any
    mine.drop(3, B)
    assert not mine.has_any


def test_orphans(mine, clock):
    """What was left can be given back at once; what a call in doubt may have taken, after its deadline."""
    mine.take(0, A, Claim("a", "a"))
    mine.leave(0, A)
    mine.doubt(1, [B], in_doubt=True)
    assert mine.claims == []
    assert mine.has_any
    assert mine.orphaned() == [A]
    assert mine.orphaned(math.inf) == [A, B]
    clock.now += LIFE
    assert mine.orphaned() == [A, B]
    mine.drop(0, A)
    mine.take(1, B, Claim("b", "b"))  # a retry got its answer
    assert mine.orphaned(math.inf) == []


def test_what_was_in_flight_is_no_orphan(mine):
    """A call in doubt that was also about an item in flight has not taken that one."""
    mine.take(0, A, Claim("a", "a"))
    mine.doubt(0, [A, B], in_doubt=True)
    assert mine.orphaned(math.inf) == [B]
    assert mine.claims == [Claim("a", "a")]


def test_shards_to_beat(mine, clock):
    """Those with something in flight and no answered call within a third of the lease; and the suspects, always."""
    for shard in (0, 1, 2):
        call(mine, shard)
    mine.take(0, A, Claim("a", "a"))
    mine.take(1, B, Claim("b", "b"))
    assert mine.shards_to_beat() == []
    clock.now += 19.9
    call(mine, 1)
    call(mine, 0, answered=False)  # a refused call is no beat
    assert mine.shards_to_beat() == [0]
    mine.has_beaten(0, clock.now)
    assert mine.shards_to_beat() == []
    mine.suspects.add(7)
    assert mine.shards_to_beat() == [7]
    clock.now += 20
    assert mine.shards_to_beat() == [0, 1, 7]


def test_a_beat_counts_from_its_sending(mine, clock):
    """A call whose answer took long was a beat when it was sent, perhaps."""
    mine.take(0, A, Claim("a", "a"))
    one = object()
    mine.begin(0, one)
    clock.now += 15
    mine.end(0, one, answered=True, in_doubt=False)
    clock.now += 5
    assert mine.shards_to_beat() == [0]
    mine.has_beaten(0, clock.now)
    mine.has_beaten(0, clock.now - 20)  # the answer of an older call came later
    assert mine.shards_to_beat() == []


def test_marks(mine, clock):
    """A mark holds if no call was under way since; calls to other shards do not matter."""
    mark = mine.mark(0)
    assert mine.undisturbed(0, mark)
    call(mine, 1)
    assert mine.undisturbed(0, mark)
    call(mine, 0)
    assert not mine.undisturbed(0, mark)
    one = object()
    mine.begin(0, one)
    assert mine.mark(0) is None
    assert not mine.undisturbed(0, mine.mark(0))
    mine.end(0, one, answered=True, in_doubt=False)
    assert mine.undisturbed(0, mine.mark(0))


def test_a_call_in_doubt_is_under_way_until_its_deadline(mine, clock):
    """Until then no mark is given."""
    call(mine, 0, answered=False, in_doubt=True)
    clock.now += LIFE - 0.1
    assert mine.mark(0) is None
    clock.now += 0.1
    assert mine.mark(0) is not None


def test_an_interrupted_call(mine, clock):
    """It is in doubt, and its shard a suspect; calls of other threads go on."""
    mine.begin(0, "mine")
    thread = threading.Thread(target=mine.begin, args=(1, "other"))
    thread.start()
    thread.join()
    mine.abandon()
    assert mine.suspects == {0}
    assert mine.has_any
    clock.now += LIFE
    assert mine.mark(0) is not None
    assert mine.mark(1) is None


def test_an_interrupted_reclaim(mine, clock):
    """What it has found is given back, and its call is under way until its deadline."""
    mine.begin(0, "a call")
    mine.leave_all([(1, A, Claim("a", "a"))])
    assert mine.orphaned() == [A]
    assert (mine.suspects, mine.mark(0)) == ({0}, None)
    clock.now += LIFE
    assert mine.mark(0) is not None


def test_figures_of_others(mine, clock):
    """They are as old as their oldest look, and are those of all shards."""
    assert mine.figures_are_old
    assert mine.outstanding() == Outstanding(0, None)
    mine.note_figures(0, 3, clock.now + 10, clock.now)
    mine.note_figures(1, 0, None, clock.now)
    assert not mine.figures_are_old
    assert mine.with_old_figures(range(3)) == [2]
    assert mine.outstanding() == Outstanding(3, 10.0)
    clock.now += 5
    assert mine.outstanding() == Outstanding(3, 5.0)
    mine.note_figures(0, 3, clock.now - 1, clock.now)
    assert mine.outstanding() == Outstanding(3, 0.0)
    mine.note_reclaimed(0, 2)
    assert mine.outstanding() == Outstanding(1, 0.0)
    mine.partial = True
    assert mine.figures_are_old
    mine.partial = False
    clock.now += 16
    assert mine.figures_are_old
    assert mine.with_old_figures(range(2)) == [1]


def test_more_was_reclaimed_than_others_had(mine, clock):
    """They had more since the look: what others have in other shards counts all the same."""
    mine.note_figures(0, 1, clock.now + 10, clock.now)
    mine.note_figures(1, 2, clock.now + 10, clock.now)
    mine.note_reclaimed(0, 3)
    assert mine.outstanding() == Outstanding(2, 10.0)


def test_the_time_of_the_next_lapse_is_that_of_others_items(mine, clock):
    """A holder that has nothing in flight does not count."""
    mine.note_figures(0, 0, clock.now + 1, clock.now)
    mine.note_figures(1, 2, clock.now + 30, clock.now)
    assert mine.outstanding() == Outstanding(2, 30.0)


def test_pauses(mine, clock):
    """They double, from a third of the lease to ten minutes, and end once something was found."""
    waits = []
    for _ in range(7):
        assert mine.may_reclaim
        mine.note_round(0, clock.now)
        assert not mine.may_reclaim
        before = clock.now
        while not mine.may_reclaim:
            clock.now += 1
        waits.append(clock.now - before)
    assert waits == [20, 40, 80, 160, 320, 600, 600]
    mine.note_round(5, clock.now)
    assert mine.may_reclaim
    mine.note_round(0, clock.now)
    clock.now += 20
    assert mine.may_reclaim


def test_pauses_while_others_have_something(mine, clock):
    """They stay below a third of the lease, however many there were, and differ; then they begin anew."""
    for _ in range(5):
        mine.note_round(0, clock.now)
    mine.note_figures(0, 1, clock.now + 600, clock.now)
    ends = []
    for _ in range(20):
        mine.note_round(0, clock.now)
        ends.append(mine._next_round - clock.now)
    assert 10 <= min(ends) < max(ends) <= 20
    assert mine.outstanding() == Outstanding(1, 600)
    mine.note_figures(0, 0, None, clock.now)
    mine.note_round(0, clock.now)
    clock.now += 20
    assert mine.may_reclaim


def test_rounds_that_run_at_once_are_one(mine, clock):
    """Those that began before another ended do not double the pause."""
    for _ in range(200):
        mine.note_round(0, clock.now - 1)
    clock.now += 19
    assert not mine.may_reclaim
    clock.now += 1
    assert mine.may_reclaim


@pytest.mark.parametrize("news", ["figures", "told", "info"])
def test_what_is_heard_of_others_shortens_a_pause(mine, clock, news):
    """Also if the pauses were long before; a sixth of the lease passes in any case."""
    for _ in range(5):
        mine.note_round(0, clock.now)
    if news == "figures":
        mine.note_figures(0, 1, clock.now + 600, clock.now)
    elif news == "told":
        mine.note_others()
    else:
        mine.take(0, A, Claim("a", "a"))
        mine.note_total(1)  # its own
        clock.now += 20
        assert not mine.may_reclaim
        clock.now -= 20
        mine.note_total(2)
    clock.now += 9.9
    assert not mine.may_reclaim
    clock.now += 10.1
    assert mine.may_reclaim


@pytest.mark.parametrize("released", [False, True])
def test_what_is_heard_during_a_round(mine, clock, released):
    """The round may have looked at that shard before."""
    begun = mine.begin_round()
    clock.now += 1
    if released:
        mine.note_released(0, 2)
    else:
        mine.note_others()
    clock.now += 1
    for _ in range(3):
        mine.note_round(0, begun)
    clock.now += 1 + 2 * holdings.AFTER_DUE if released else 20
    assert mine.may_reclaim


@pytest.mark.parametrize("hears", [Holdings.note_others, lambda mine: mine.note_released(1, 0)])
def test_nothing_is_said_by_figures_from_before(mine, clock, hears):
    """Figures that were asked for before the last answer of -1, or a release, do not say that others have nothing."""
    mine.note_figures(0, 0, None, clock.now)
    assert mine.outstanding() == Outstanding(0, None)
    assert mine.must_read()
    asked = clock.now
    clock.now += 1
    hears(mine)
    mine.note_figures(0, 0, None, asked)
    assert mine.outstanding().others == 1
    assert mine.must_read()
    clock.now += 1
    mine.note_figures(0, 0, None, clock.now)
    assert mine.outstanding() == Outstanding(0, None)


def test_silent(mine, clock):
    """Where something may be in flight and no call was made; of a holder that was given everywhere."""
    given = Holdings(60.0, "0123456789abcdef")
    assert (mine.silent(range(3)), given.silent(range(3))) == ([], [0, 1, 2])
    for each in (mine, given):
        each.take(1, A, Claim("a", "a"))
        each.leave(2, B)
        call(each, 1)
        assert each.silent(range(3)) == ([2] if each is mine else [0, 2])
    clock.now += 20
    assert mine.silent(range(3)) == [1, 2]


def test_a_pause_ends_when_something_is_due(mine, clock, monkeypatch):
    """Not before a sixth of the lease; ``outstanding`` says when."""
    monkeypatch.setattr(holdings.random, "uniform", lambda _, longest: longest)  # else one pause in 200 is shorter
    mine.note_figures(0, 1, clock.now + 9.95, clock.now)
    mine.note_round(0, clock.now)
    assert mine.outstanding() == Outstanding(1, pytest.approx(9.95 + holdings.AFTER_DUE))
    mine.note_figures(0, 1, clock.now + 5, clock.now)
    mine.note_round(0, clock.now)
    assert mine.outstanding() == Outstanding(1, pytest.approx(10))


def test_what_is_due_later_does_not_count(mine, clock):
    """A crawl need not wait for what was released for a week."""
    mine.note_figures(0, 3, clock.now + 7000, clock.now)
    assert mine.outstanding() == mine.outstanding(within=7000) == Outstanding(3, 7000)
    assert not mine.outstanding(within=6999)
    mine.note_figures(1, 1, clock.now + 50, clock.now)
    assert mine.outstanding(within=60) == Outstanding(4, 50)


def test_a_hand_without_pauses(clock):
    """Of a process that makes one call: it may look at once, and the next lapse is due when it is."""
    mine = Holdings(300.0, pauses=False)
    mine.note_figures(0, 1, clock.now + 5, clock.now)
    mine.note_round(0, clock.now)
    assert mine.may_reclaim
    assert mine.outstanding() == Outstanding(1, 5)


def test_the_longest_lease_pauses_for_ten_minutes(clock):
    """A third of an hour would be longer."""
    mine = Holdings(3600.0)
    mine.note_figures(0, 1, clock.now + 5, clock.now)
    mine.note_round(0, clock.now)
    assert 300 <= mine.outstanding().due <= 600
    mine.note_figures(0, 0, None, clock.now)
    mine.note_round(0, clock.now)
    clock.now += 599
    assert not mine.may_reclaim


def test_ones_own_release_ends_a_pause(mine, clock):
    """What this object has released it may get itself, as soon as it is due; other shards' figures stay."""
    mine.note_figures(0, 0, None, clock.now)
    mine.note_figures(1, 2, clock.now + 50, clock.now)
    mine.note_round(0, clock.now)
    mine.note_released(0, 3.0)
    assert mine.figures_are_old
    assert mine.with_old_figures(range(2)) == [0]
    clock.now += 3
    assert not mine.may_reclaim
    clock.now += holdings.AFTER_DUE + 0.001
    assert mine.may_reclaim
    mine.note_round(0, clock.now)  # and the pauses begin anew
    clock.now += 20
    assert mine.may_reclaim


def test_known(mine):
    """Where something is in doubt only what the books have is known to be this object's."""
    mine.take(0, A, Claim("a", "a"))
    assert mine.known(0, 3) == 3  # perhaps a call is under way
    mine.suspects.add(0)
    assert mine.known(0, 3) == 1
    mine.suspects.clear()
    mine.leave(0, B)
    assert mine.known(0, 3) == 1


def test_a_forked_child(mine):
    """It is another holder, holds nothing, and knows of no call and no figures."""
    mine.take(0, A, Claim("a", "a"))
    mine.begin(1, "a call")
    mine.note_figures(0, 5, None, 0.0)
    mine.suspects.add(2)

    def child():
        mine.check_process()
        return mine.holding.holder, mine.has_any, mine.mark(1), mine.outstanding(), mine.claims

    holder, *rest = in_child(child)
    assert holder != mine.holding.holder
    assert rest == [False, 0, Outstanding(0, None), []]
    mine.check_process()
    assert mine.claims == [Claim("a", "a")]


def test_a_given_holder_is_the_parents_alone(clock):
    """A forked child draws one of its own."""
    given = Holdings(5.0, "0123456789abcdef")
    assert given.holding.holder == "0123456789abcdef"
    assert given.holding.lease == 5000

    def child() -> str:
        given.check_process()
        return given.holding.holder

    assert in_child(child) != "0123456789abcdef"
