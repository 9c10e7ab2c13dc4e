"""Turns: what is left of one, how slices are called after one, and which shards are to turn when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import NOW, Hand, config_of, meta_of, session_of, state_of

from urifilter_redis.bloom.retention import seconds_of, slices_at
from urifilter_redis.engine import retry
from urifilter_redis.errors import ArchiveMissing, FilterNotFound, RotationConflict, UriFilterError
from urifilter_redis.flows.rotation import due, epoch, next_rotation, rotate, rotate_due
from urifilter_redis.flows.turn import Due, Left, left_of, names_after, next_due, piece_count, shards_due
from urifilter_redis.storage import documents

TIMED = {"slices": 4, "period": "1d", "shards": 3}
RING, ROLLING = config_of(retention="ring", **TIMED), config_of(retention="rolling", **TIMED)
DAY = seconds_of("1d") * 1000


@pytest.mark.parametrize("phase", ["idle", "creating", "dropping", "restoring", "checkpointing"])
@pytest.mark.parametrize("pieces", [{}, {"pieces": 0}, {"pieces": 1}])
def test_nothing_is_left(phase, pieces):
    """In no phase but rotating, whatever else meta says."""
    assert left_of(state_of(ROLLING, phase=phase, **pieces)) is Left.NONE


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ({}, Left.ARCHIVE),
        ({"pieces": 0}, Left.BUILD),
        ({"pieces": 2}, Left.BUILD),
        ({"pieces": 3}, Left.FINISH),
        ({"pieces": 4}, Left.FINISH),
    ],
)
def test_what_is_left(pieces, left):
    """The closed slice is archived, then the next history is built piece by piece, then it becomes the history."""
    size = 2 * documents.PIECE + 1
    state = state_of(ROLLING, phase="rotating", slices=f"history_1:1:{size}:1 today:1:{size}:1", **pieces)
    assert piece_count(state) == 3
    assert left_of(state) is left


@pytest.mark.parametrize("size", [1, documents.PIECE - 1, documents.PIECE, documents.PIECE + 1, 5 * documents.PIECE])
def test_pieces(size):
    """As many as are needed, and not one more."""
    assert piece_count(state_of(ROLLING, slices=f"today:1:{size}:1")) == -(-size // documents.PIECE)


@pytest.mark.parametrize("retention", ["ring", "rolling", "growing"])
@pytest.mark.parametrize("turns", range(8))
def test_names_after_a_turn(retention, turns):
    """They are the slices that a shard has in its next epoch, oldest first."""
    config = {"ring": RING, "rolling": ROLLING}.get(retention) or config_of(retention="growing")
    now = slices_at(config, config.today, turns)
    state = state_of(config, epoch=turns, slices=" ".join(map(str, now)))
    after = slices_at(config, config.today, turns + 1, rotating=True)
    assert names_after(state, retention, config.slices) == [each.name for each in after]


def states_of(*shards):
    """States of (epoch, opened, more) each."""
    return [state_of(RING, epoch=number, opened=opened, **more) for number, opened, more in shards]


def test_due_after_a_period():
    """A period after the last shard has turned, however early the first did."""
    states = states_of((3, NOW, {}), (3, NOW + 5000, {}), (3, NOW + 2000, {}))
    assert next_due("1d", states, NOW + DAY) == (NOW + 5000 + DAY) / 1000
    assert next_due("10m", states, NOW + DAY) == (NOW + 5000) / 1000 + 600


def test_a_shard_that_is_behind():
    """It is due a period after it has turned itself, the first of them before the others."""
    states = states_of((3, NOW + 9000, {}), (2, NOW + 5000, {}), (1, NOW + 2000, {}))
    assert next_due("1d", states, NOW + DAY) == (NOW + 2000 + DAY) / 1000


def test_turned_in_the_future():
    """It counts as turned now, or when it had before the clock was ahead: late, never early."""
    states = states_of((3, NOW - 5000, {}), (3, NOW + 10**9, {}))
    assert next_due("1d", states, NOW) == (NOW + DAY) / 1000
    states = states_of((3, NOW - 5000, {}), (3, NOW + 10**9, {"ahead": NOW - 3000}))
    assert next_due("1d", states, NOW) == (NOW - 3000 + DAY) / 1000


def test_which_shards_turn():
    """All of an epoch, once the last of them has had its period; shard 0 after the others."""
    states = states_of((3, NOW, {}), (3, NOW + 5000, {}), (3, NOW, {}))
    assert shards_due("1d", states, NOW + DAY) == {}
    assert shards_due("1d", states, NOW + 4999 + DAY) == {}
    assert list(shards_due("1d", states, NOW + 5000 + DAY).items()) == [(1, 3), (2, 3), (0, 3)]


@pytest.mark.parametrize(("days", "by"), [(1, 1), (1.9, 1), (2, 2), (30.5, 30)])
def test_periods_that_were_missed(days, by):
    """They are passed over at once; today closed a period after the last shard was opened, and the next follows on."""
    states, now = states_of((3, NOW - 5000, {"written": NOW + 100}), (3, NOW, {})), NOW + round(days * DAY)
    due = Due.of("1d", states, now, now)
    assert list(due.planned.items()) == [(1, 2 + by), (0, 2 + by)]
    assert [due.by(state, 2 + by) for state in states] == [by, by]
    assert due.opened == NOW + by * DAY


def test_today_closes_when_it_was_last_written_to():
    """In any shard, if that was after its period; a time in the future counts as now."""
    now = NOW + 5 * DAY + 1000
    for written, by, opened in (
        (3 * DAY, 3, 5 * DAY),
        (3 * DAY + 1001, 2, 4 * DAY + 1001),
        (9 * DAY, 1, 5 * DAY + 1000),
    ):
        due = Due.of("1d", states_of((3, NOW, {"written": NOW + written}), (3, NOW, {})), now, now)
        assert (due.planned[0] - 2, due.opened) == (by, NOW + opened)


@pytest.mark.parametrize(
    ("apart", "by", "opened"), [(0.5, 4, 4), (-0.5, 4, 4), (0.51, 1, 0), (-0.51, 1, 0), (400, 1, 0)]
)
def test_clocks_that_disagree(apart, by, opened):
    """One period at a time, and the next today was opened when it was made: one of the clocks may be years ahead."""
    states, now = states_of((3, NOW, {})), NOW + 4 * DAY
    due = Due.of("1d", states, now, now + apart * DAY)
    assert (due.planned, due.opened) == ({0: 2 + by}, NOW + opened * DAY if opened else 0)
    assert due.by(states[0], 99) == by


def test_a_rotation_that_was_left_after_it_passed_over_some():
    """The others go where those have gone that turned, as far as their own times allow."""
    states = states_of((7, NOW + 4 * DAY, {}), (3, NOW, {}), (3, NOW, {"written": NOW + 4 * DAY}))
    now = NOW + 4 * DAY + 1000
    due = Due.of("1d", states, now, now)
    assert due.planned == {1: 6, 2: 6}
    assert due.opened == NOW + 4 * DAY
    assert [due.by(states[shard], 6) for shard in (1, 2)] == [4, 1]


def test_those_that_are_behind_turn_alone():
    """Each a period after its own turn; those that lead wait for the next rotation."""
    states = states_of((3, NOW, {}), (2, NOW + 5000, {}), (1, NOW, {}))
    assert shards_due("1d", states, NOW + 4999) == {}
    assert shards_due("1d", states, NOW + DAY) == {2: 2}
    assert shards_due("1d", states, NOW + 9 * DAY) == {1: 2, 2: 2}


def test_what_was_left_is_finished():
    """A rotation that was begun is finished at any time; those that did not turn in it follow when they are due."""
    states = states_of((3, NOW, {"phase": "rotating"}), (2, NOW, {}), (2, NOW + 1, {"phase": "rotating", "pieces": 0}))
    assert shards_due("1d", states, NOW) == {0: 2, 2: 1}
    assert shards_due("1d", states, NOW + DAY) == {0: 2, 2: 1, 1: 2}


MORE = [{}, {"phase": "rotating"}, {"written": NOW + 2 * DAY}, {"written": NOW + 9 * DAY}]
SHARD = st.tuples(st.integers(0, 3), st.integers(NOW, NOW + 3 * DAY), st.sampled_from(MORE))


@given(st.lists(SHARD, min_size=1, max_size=5), st.integers(NOW, NOW + 5 * DAY))
def test_never_early(shards, now):
    """No shard goes forward by more periods than it has had since today closed; others finish their last turn."""
    states = states_of(*shards)
    due = Due.of("1d", states, now, now)
    for shard, last in due.planned.items():
        state = states[shard]
        if left_of(state) is Left.NONE:
            by = due.by(state, last)
            assert 1 <= by <= last + 1 - state.epoch
            assert now >= state.closes(now, DAY) + (by - 1) * DAY >= state.opened_by(now) + by * DAY
            assert now >= due.opened
        else:
            assert last == state.epoch - 1


@given(st.lists(SHARD, min_size=1, max_size=5))
def test_never_for_ever(shards):
    """Once every shard has had its period, and so long as nothing is left half done, all reach the same epoch."""
    now = NOW + 30 * DAY
    for _ in range(10):
        states = states_of(*shards)
        wanted = shards_due("1d", states, now)
        assert wanted
        if len(wanted) == len(shards) and len({each.epoch for each in states}) == 1:
            return
        turned = {shard: (last + 1, now, {}) for shard, last in wanted.items()}
        shards = [turned.get(shard, each) for shard, each in enumerate(shards)]
        now += 2 * DAY
    raise AssertionError("they do not come together")


@pytest.fixture
def hand(monkeypatch):
    return Hand(monkeypatch, retry)


def metas(config, *shards):
    """Replies of HGETALL for shards of (epoch, token, phase)."""
    known = [{"epoch": number, "token": token, "phase": phase} for number, token, phase in shards]
    return [meta_of(config, opened=NOW, **each) for each in known]


def time_of(ms):
    return [[str(ms // 1000).encode(), str(ms % 1000 * 1000).encode()]]


IDLE = [(3, "a", "idle")] * 3


def test_due(hand):
    """The epoch that a rotation would reach, or none; and when that is."""
    session = session_of(RING)
    assert hand.drive(due(session), metas(RING, *IDLE), time_of(NOW + DAY - 1)) is None
    assert hand.drive(due(session), metas(RING, *IDLE), time_of(NOW + DAY)) == 4
    assert hand.drive(next_rotation(session), metas(RING, *IDLE), time_of(NOW)) == (NOW + DAY) / 1000
    assert hand.drive(epoch(session), metas(RING, (3, "", "idle"), (5, "", "idle"), (4, "", "idle"))) == 5


def test_nothing_is_due(hand):
    """Nothing is written."""
    session = session_of(RING)
    assert hand.drive(rotate_due(session), metas(RING, *IDLE), time_of(NOW)) is None
    assert {command[0] for commands in hand.sent for command in commands} == {"HGETALL", "TIME"}


@pytest.mark.parametrize(
    ("shards", "expected", "reached"),
    [
        (IDLE, None, 4),
        ([(3, "a", "idle"), (5, "b", "idle"), (4, "a", "idle")], None, 6),
        (IDLE, 3, 4),
        ([(4, "b", "idle"), (3, "a", "idle"), (3, "a", "idle")], 3, 4),  # begun by somebody who died
        ([(4, "b", "idle"), (4, "b", "rotating"), (4, "b", "idle")], 3, 4),
        ([(4, "b", "idle"), (2, "a", "idle"), (4, "b", "idle")], 3, 4),
        (IDLE, 2, None),  # somebody else has
        ([(4, "b", "idle"), (4, "b", "idle"), (4, "b", "idle")], 3, None),
        ([(4, "b", "idle"), (3, "b", "idle"), (3, "b", "idle")], 3, None),  # each has had its turn
        (IDLE, 4, None),  # nobody yet
        ([(5, "b", "idle"), (3, "a", "idle"), (3, "a", "idle")], 3, None),
    ],
)
def test_what_a_rotation_would_reach(hand, shards, expected, reached):
    """Of the epoch that is expected, if shards are still to turn in it; a dry run sends nothing but questions."""
    flow = rotate(session_of(RING), expected, dry_run=True)
    if reached is None:
        with pytest.raises(RotationConflict, match=f"and not in {expected}"):
            hand.drive(flow, metas(RING, *shards))
    else:
        assert hand.drive(flow, metas(RING, *shards)).epoch == reached
    assert all(command[0] == "HGETALL" for commands in hand.sent for command in commands)


@pytest.mark.parametrize("retention", ["forever", "growing"])
def test_what_does_not_rotate(hand, retention):
    """The message says why; nothing is sent."""
    session = session_of(config_of(retention=retention))
    for flow in (rotate(session), due(session), rotate_due(session), next_rotation(session)):
        with pytest.raises(UriFilterError, match="grows when" if retention == "growing" else "nothing in it expires"):
            hand.drive(flow)
    assert hand.sent == []


def test_without_its_archive(hand):
    """A filter that has one does not rotate without it; nothing is sent."""
    session = session_of(config_of("file:///archive", retention="ring", **TIMED))
    with pytest.raises(ArchiveMissing, match="file:///archive"):
        hand.drive(rotate(session))
    assert hand.sent == []


@pytest.mark.parametrize("change", [{"uid": "f" * 16}, {"phase": "dropping"}, None])
def test_it_is_gone(hand, change):
    """A shard of another filter, one that is being dropped, or none: the filter is not found."""
    replies = metas(RING, *IDLE)
    replies[1] = {} if change is None else replies[1] | change
    with pytest.raises(FilterNotFound, match="news:1"):
        hand.drive(due(session_of(RING)), replies)
