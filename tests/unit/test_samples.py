"""Samples for plots: what is counted over turns, what is kept, and when a filter will be full."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import config_of, state_of
from support.described import DAY, NOW, info_of, slice_of

from urifilter_redis.flows import samples
from urifilter_redis.flows.capacity import full_in
from urifilter_redis.flows.claims_info import ClaimsInfo
from urifilter_redis.flows.problems import CODES, problems_of
from urifilter_redis.flows.samples import HOUR, MINUTE, Sample

RING = config_of(retention="ring", slices=4, period="1d", shards=3)
WINDOW = {"slices": 4, "period": "1d", "capacity": 1000}


def sample(at: float, total: int = 0, **more) -> Sample:
    made = {"uid": "a", "at": at, "epoch": 0, "counted": 0, "total": total, "items": 0, "fill": 0.1, "error_rate": 0.0}
    return Sample(**(made | more))


class Ring:
    """The counts of a ring's shards, by epoch, as scripts keep them in ``meta``."""

    def __init__(self) -> None:
        self.shards = [[0] for _ in range(3)]

    def turn(self, shard: int) -> None:
        self.shards[shard].append(0)

    def states(self):
        made = []
        for counts in self.shards:
            epoch = len(counts) - 1
            first = max(0, epoch - 3)
            closed = " ".join(f"{each}:0:0:{counts[each]}" for each in range(first, epoch))
            made.append(state_of(RING, epoch=epoch, inserted=counts[-1], closed=closed, oldest=first))
        return made


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_all_that_is_written_is_counted(seed):
    """Turns of single shards between samples neither hide items nor count them twice."""
    dice, ring, last, total, info = random.Random(seed), Ring(), None, 0, info_of()
    for at in range(20):
        last = samples.take(info, ring.states(), at, last)
        assert last.total == total
        behind = min(len(each) for each in ring.shards)
        for shard in range(3):
            written = dice.randrange(50)
            ring.shards[shard][-1] += written
            total += written
            if dice.random() < 0.3 and len(ring.shards[shard]) <= behind:
                ring.turn(shard)


def test_a_series_begins_anew():
    """What was written is unknown once slices have expired unseen: that is a new series, and no speed."""
    ring = Ring()
    ring.shards[0][-1] = 70
    first = samples.take(info_of(), ring.states(), NOW, None)
    ring.shards[0][-1] += 30
    second = samples.take(info_of(), ring.states(), NOW + 60, first)
    assert (second.items, second.total) == (100, 30)
    assert samples.speed([first], second, HOUR) == 0.5
    for shard in range(3):
        for _ in range(5):
            ring.turn(shard)
    third = samples.take(info_of(), ring.states(), NOW + 120, second)
    assert (third.items, third.total) == (0, 0)
    assert samples.speed([first, second], third, HOUR) is None


def test_speed():
    """It is the mean over the time that is asked for, of one series."""
    known = [sample(NOW + MINUTE * minute, 60 * minute) for minute in range(10)]
    last = sample(NOW + 600, 1200)
    assert samples.speed(known, last, 120) == (1200 - 480) / 120
    assert samples.speed(known, last, HOUR) == 2
    assert samples.speed([], last, HOUR) is None
    assert samples.speed([last], last, HOUR) is None
    assert samples.speed(known, last, 1) is None


@pytest.mark.slow
def test_the_key_is_bounded():
    """A sample a minute for two days: there is one for each minute of an hour, and for each ten of a day."""
    kept: list[Sample] = []
    for minute in range(2 * 1440):
        kept.append(sample(NOW + minute * MINUTE + minute % 50))
        gone = samples.outdated(kept, kept[-1].at)
        kept = [each for each in kept if each.minute not in gone]
        assert len(kept) <= 210
    ages = sorted((kept[-1].at - each.at) / MINUTE for each in kept)
    assert ages[:59] == pytest.approx(range(59), abs=1)
    assert max(later - sooner for sooner, later in itertools.pairwise(ages)) <= 11
    assert ages[-1] > 1440 - 11
    assert samples.outdated([sample(NOW + 2 * HOUR)], NOW) == [sample(NOW + 2 * HOUR).minute]  # a clock was ahead


@pytest.mark.parametrize(
    ("info", "speed", "expected"),
    [
        (info_of(slice_of(400), settings={"capacity": 1000}), 0.1, 6000),
        (info_of(slice_of(400), settings={"capacity": 1000}), 0.0, None),
        (info_of(slice_of(400), settings={"capacity": 1000}), None, None),
        (info_of(slice_of(1100), settings={"capacity": 1000}), None, 0),
        (info_of(slice_of(900), settings={"retention": "growing", "capacity": 1000}), 5.0, None),
        # a slice of a ring is full before the window is
        (info_of(slice_of(100, 500), slice_of(100, 500), settings={"retention": "ring", **WINDOW}), 0.01, 40_000),
        # 700 items a day fit a slice of rolling, and three days of them do not
        (info_of(slice_of(0), slice_of(0), settings={"retention": "rolling", **WINDOW}), 700 / DAY, DAY * 1000 / 700),
        # 240 a day are 960 in four days, and never more, unless one day has brought 700
        (info_of(slice_of(0), slice_of(700), epoch=3, settings={"retention": "rolling", **WINDOW}), 240 / DAY, None),
        (info_of(slice_of(0), slice_of(700), settings={"retention": "rolling", **WINDOW}), 240 / DAY, 1.25 * DAY),
        # 600 of three days are there, and they expire in time
        (info_of(slice_of(100), slice_of(600), epoch=3, settings={"retention": "rolling", **WINDOW}), 200 / DAY, None),
        (
            info_of(slice_of(100), slice_of(850), epoch=3, settings={"retention": "rolling", **WINDOW}),
            200 / DAY,
            DAY / 4,
        ),
    ],
)
def test_full_in(info, speed, expected):
    """Items expire meanwhile, and a slice may be full before the window is."""
    assert full_in(info, speed, NOW) == (None if expected is None else pytest.approx(expected))


def codes(info, now=NOW, **more) -> list[str]:
    return [each.code for each in problems_of(info, now, **more)]


def test_problems():
    """Each has its code, and says what to do; the worst comes first."""
    timed = {"retention": "ring", **WINDOW}
    lapsed = ClaimsInfo(in_flight=0, lapsed=3, delayed=0, holders=0, oldest_lapse=200.0, lease=60.0)
    old = info_of(archive="file:///a", checkpointed=NOW)
    assert codes(info_of(slice_of(799))) == []
    assert codes(info_of(slice_of(800))) == ["near_capacity"]
    assert codes(info_of(slice_of(1001))) == ["over_capacity"]
    assert codes(info_of(slice_of(10), error_rate_now=2e-4)) == ["error_rate"]
    assert codes(info_of(slice_of(999), settings={"retention": "growing"})) == []
    assert codes(info_of(phase="restoring")) == ["restoring"]
    assert codes(info_of(archive="file:///a")) == ["no_checkpoint"]
    assert codes(old, NOW + 2 * DAY, written=True) == ["checkpoint_old"]
    assert codes(old, NOW + 2 * DAY) == []
    assert codes(info_of(slice_of(450, 500), settings=timed)) == ["near_capacity"]
    assert codes(info_of(settings=timed), NOW + 2.1 * DAY) == ["rotation_late"]
    assert codes(info_of(settings=timed, phase="rotating")) == ["rotating"]
    assert codes(info_of(slice_of(), slice_of(), settings=timed, rotated_in=0.6 * DAY)) == ["rotation_slow"]
    assert codes(info_of(claims=lapsed)) == ["lapsed"]
    both = info_of(slice_of(1001), archive="file:///a", phase="restoring")
    assert codes(both) == ["over_capacity", "restoring", "no_checkpoint"]
    found = [*problems_of(both, NOW), *problems_of(old, NOW + 2 * DAY, written=True)]
    assert {each.level for each in found if each.code == "over_capacity"} == {"danger"}
    assert all(each.text and each.level == CODES[each.code] for each in found)
