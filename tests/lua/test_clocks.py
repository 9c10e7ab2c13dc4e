"""Times in ``meta`` that lie in the server's future, as its clock was ahead: each script takes them for now."""

from __future__ import annotations

import pytest
from support.shard import KEYS, Shard, geometry

from urifilter_redis.protocol import calls

YEAR = 365 * 86_400_000
RING = {"retention": "ring", "slices": 3, "period": "1d", "write": "newest", "expire_after": "first-seen"}


@pytest.fixture
def shard(client):
    return Shard(client, geometry("blocked", 12, 100, **RING))


def put(shard, **fields) -> None:
    shard.client.hset(KEYS.meta, mapping=fields)


def got(shard, field) -> int:
    return int(shard.client.hget(KEYS.meta, field))


def test_checkpointed(shard):
    """The next one that is finished counts; of two that are not in the future the later one does."""
    uid, began = shard.config.uid, shard.now()
    put(shard, checkpointed=began + YEAR)
    shard.call(calls.checkpoint("finish", uid, KEYS, 1, began))
    assert got(shard, "checkpointed") == began
    shard.call(calls.checkpoint("finish", uid, KEYS, 2, began - 1000))
    assert got(shard, "checkpointed") == began
    shard.call(calls.checkpoint("finish", uid, KEYS, 3, began + YEAR))  # the clock was set back while it was written
    assert began <= got(shard, "checkpointed") <= shard.now()


def test_leased(shard):
    """Who holds a lease for a year holds it from now on for as long as any; it can renew it, and give it back."""
    uid, year = shard.config.uid, shard.now() + YEAR
    put(shard, worker="a", leased=year)
    assert shard.call(calls.tend("release", uid, KEYS, "b")) == 0
    assert got(shard, "leased") == year
    before = shard.now()
    assert shard.call(calls.tend("take", uid, KEYS, "b", 60_000)) == 0
    assert before + 60_000 <= got(shard, "leased") <= shard.now() + 60_000
    assert shard.client.hget(KEYS.meta, "worker") == b"a"
    put(shard, leased=year)
    assert shard.call(calls.tend("take", uid, KEYS, "a", 60_000)) == 1
    assert got(shard, "leased") <= shard.now() + 60_000
    assert shard.call(calls.tend("release", uid, KEYS, "a")) == 1
    assert shard.call(calls.tend("take", uid, KEYS, "b", 60_000)) == 1


def test_restored(shard):
    """A restorer that was heard in the future was heard now: it is not taken over yet, and is once it was silent."""
    uid, year = shard.config.uid, shard.now() + YEAR
    shard.call(calls.restore("begin", uid, KEYS, "a", timeline=""))
    put(shard, restored=year)
    before = shard.now()
    with pytest.raises(Exception, match="^RESTORING"):
        shard.call(calls.restore("begin", uid, KEYS, "b", timeline=""))
    assert before <= got(shard, "restored") <= shard.now()
    put(shard, restored=before - 15_000)
    shard.call(calls.restore("begin", uid, KEYS, "b", timeline=""))
    assert shard.client.hget(KEYS.meta, "restorer") == b"b"


def test_opened(shard):
    """It is set to now, once; otherwise it stays."""
    uid, opened = shard.config.uid, got(shard, "opened")
    assert shard.call(calls.reopen(uid, KEYS)) == 0
    assert got(shard, "opened") == opened
    year = shard.now() + YEAR
    put(shard, opened=year)
    before = shard.now()
    assert shard.call(calls.reopen(uid, KEYS)) == 1
    assert before <= got(shard, "opened") <= shard.now()
    assert shard.call(calls.reopen(uid, KEYS)) == 0
    state = shard.state()
    assert state.ahead == (year,)
    assert [state.opened_by(each) for each in (before - 1, shard.now(), year)] == [before - 1, state.opened, year]
    for _ in range(100):  # it does not grow without end
        put(shard, opened=year)
        assert shard.call(calls.reopen(uid, KEYS)) == 1
    assert len(shard.client.hget(KEYS.meta, "ahead")) < 400
    for wrong, word in (("another", "MISMATCH"), (uid, "NOFILTER")):
        if word == "NOFILTER":
            shard.client.flushall()
        with pytest.raises(Exception, match=f"^{word}"):
            shard.call(calls.reopen(wrong, KEYS))


def test_turned(shard):
    """A slice that was opened in the future was so when it is closed, at the latest."""
    put(shard, opened=shard.now() + YEAR)
    turn = (shard.state(), "0123456789abcdef", shard.state().view.slices[-1])
    shard.call(calls.turn("allocate", KEYS, *turn, names=["history_1", "today"]))
    shard.call(calls.turn("turn", KEYS, *turn, names=["history_1", "today"]))
    (closed,) = shard.state().closed
    assert closed.opened == closed.closed == shard.state().opened <= shard.now()
