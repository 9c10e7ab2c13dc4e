"""Looks for lapsed items by several calls at once, driven by hand."""

from __future__ import annotations

import pytest

from urifilter_redis.engine.holdings import Claim, Holdings
from urifilter_redis.engine.looks import shared
from urifilter_redis.engine.steps import Pause, Send

STEP = Send([("PING",)])
A = Claim("a", "a")


class Looking:
    """Calls of one holder; ``begun`` has the looks that asked the server."""

    def __init__(self, *, pauses: bool = True) -> None:
        self.mine, self.begun = Holdings(60.0, pauses=pauses), []

    def look(self, number, found):
        begun = self.mine.begin_round()
        self.begun.append(number)
        yield STEP
        self.mine.partial = False
        self.mine.note_round(len(found), begun)
        return found

    def call(self, number, found=(), limit=10, patience=60.0):
        return shared(self.mine, limit, patience, self.look(number, list(found)))


def result_of(flow):
    with pytest.raises(StopIteration) as stop:
        flow.send(None)
    return stop.value.value


@pytest.mark.parametrize("found", [[], [A]])
def test_a_look_is_shared_to_its_end(found):
    """Calls that come meanwhile wait for it, and find nothing more; the server is asked once."""
    calls = Looking()
    first, others = calls.call(0, found), [calls.call(number) for number in range(1, 20)]
    assert next(first) is STEP
    for each in others:
        assert isinstance(next(each), Pause)
        assert isinstance(next(each), Pause)
    assert result_of(first) == found
    assert [result_of(each) for each in others] == [[]] * 19
    assert calls.begun == [0]


def test_there_may_be_more():
    """A look that reached its limit does not say that there is nothing else."""
    calls = Looking()
    first, other = calls.call(0, [A], limit=1), calls.call(1)
    assert (next(first), type(next(other))) == (STEP, Pause)
    assert result_of(first) == [A]
    assert next(other) is STEP
    assert result_of(other) == []
    assert calls.begun == [0, 1]


def test_a_look_that_fails():
    """Those that waited for it look themselves, at once, and not one behind the other."""
    calls = Looking()
    first, *others = (calls.call(number) for number in range(4))
    assert (next(first), *map(type, map(next, others))) == (STEP, Pause, Pause, Pause)
    with pytest.raises(KeyboardInterrupt):
        first.throw(KeyboardInterrupt)
    assert [next(each) for each in others] == [STEP] * 3
    assert [result_of(each) for each in others] == [[]] * 3
    assert calls.begun == [0, 1, 2, 3]


def test_a_look_that_does_not_end():
    """The thread of it may be gone: nobody waits for longer than a call may take."""
    calls = Looking()
    first, other, later = calls.call(0), calls.call(1, patience=0), calls.call(2)
    assert (next(first), next(other)) == (STEP, STEP)
    assert result_of(other) == []
    assert result_of(later) == []
    first.close()


def test_without_pauses():
    """Each call asks."""
    calls = Looking(pauses=False)
    flows = [calls.call(number) for number in range(3)]
    assert [next(each) for each in flows] == [STEP] * 3
    assert [result_of(each) for each in flows] == [[]] * 3
