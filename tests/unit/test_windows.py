"""Windows of calls: what is sent, what is noted of the outcomes, and Ctrl-C at each place between both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ConnectionError as ConnectionBroken
from support.by_hand import Hand as Driver
from support.by_hand import config_of, meta_of, said, session_of
from support.interrupts import Interrupt

from urifilter_redis.engine import retry
from urifilter_redis.engine.holdings import Holdings
from urifilter_redis.engine.topology import NodeMap, Routes
from urifilter_redis.errors import AnswerLost, ServerFull
from urifilter_redis.flows import items as flows
from urifilter_redis.flows.claims import options_of_claim
from urifilter_redis.flows.items import _ask_window
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.service.errors import refusal_of

if TYPE_CHECKING:
    from urifilter_redis.engine.batch import Batch

# One that comes while a generator is closed reaches nobody, and the call ends as if there had been none.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def replies_to(commands) -> list[list[int]]:
    """Answer "new" to each item of inserts."""
    return [[0] * (max(len(part) for part in command if isinstance(part, bytes)) // 16) for command in commands]


def interrupted(count: int, at: int) -> tuple[Batch, set[str], int]:
    """Insert items, and interrupt that at a place after the first replies.

    Return the batch, the arguments of all commands that were sent (they have run), and the number of places.
    """
    session = session_of(config_of(shards=64))
    batch = flows.batch_of(session, "insert", range(count))
    flow, sent = flows.resolve(session, batch), set()
    step = next(flow)
    with Interrupt(at) as watched:
        try:
            while True:
                sent |= {part for command in step.commands for part in command if isinstance(part, str)}
                step = flow.send(replies_to(step.commands))
        except (KeyboardInterrupt, StopIteration):
            pass
    return batch, sent, watched.places


@pytest.mark.parametrize("count", [1, 40])
def test_an_answer_that_is_not_noted_stays_in_doubt(count, sample):
    """So a repeat that comes after the record of the call was dropped never says that its items were seen before."""
    batch, _, places = interrupted(count, 0)
    assert batch.answers == [0] * count
    left = 0
    for at in sample(range(1, places + 1), 40):
        batch, sent, _ = interrupted(count, at)
        unnoted = [call for call in batch.open if call.call_id is not None and call.call_id.text() in sent]
        assert all(call.in_doubt for call in unnoted), at
        left += len(unnoted)
    assert left


def test_an_interrupted_window_leaves_the_answers_of_the_one_before():
    """They have arrived: nothing need be asked again for them."""
    session = session_of(config_of(shards=64))
    batch = flows.batch_of(session, "insert", range(40))
    flow = flows.resolve(session, batch)
    step = next(flow)
    replies = replies_to(step.commands)
    flow.send(replies)
    with pytest.raises(KeyboardInterrupt):
        flow.throw(KeyboardInterrupt)
    assert batch.answers.count(0) == sum(map(len, replies))


@pytest.mark.parametrize(("wanted", "marked"), [(0, False), (1, True), (2, True)])
def test_a_call_that_waits_for_replicas_says_so(wanted, marked):
    """Then a repeat writes, too, so that its WAIT is for something."""
    session = session_of()
    session.wait_replicas = wanted
    command, *_ = next(flows.resolve(session, flows.batch_of(session, "insert", ["a"]))).commands
    assert any(isinstance(part, str) and part.endswith("+") for part in command) is marked


def test_call_ids_by_the_clock_of_the_node():
    """Whose clock made one is known, so that the "late" of another node proves nothing."""
    session = session_of(config_of(shards=2))
    session.routes = Routes(["a:1"])
    session.routes.map = NodeMap.of_one("a:1")
    batch = flows.batch_of(session, "insert", range(20))
    next(flows.resolve(session, batch))
    assert [call.call_id.node for call in batch.open] == ["a:1"] * 2


def test_a_shard_that_cannot_grow(monkeypatch):
    """Its call fails, as lost if a reply was lost before; that of another shard that has room stays open."""
    driver, config = Driver(monkeypatch, retry), config_of(shards=2, retention="growing")
    session = session_of(config)
    batch = flows.batch_of(session, "insert", range(20))
    one, other = batch.open
    lost, full = Unanswered(ConnectionBroken("cut")), said("FULL today has no room")
    meta = meta_of(config, limit=1000)
    flow = _ask_window(session, batch, batch.open)
    failed = driver.drive(flow, [lost, full], [full], [said("ERR unknown command")], [meta], [meta])
    assert list(failed) == [one]
    assert isinstance(failed[one], AnswerLost)
    assert "a reply was lost, and then" in str(failed[one])
    assert batch.open == [one, other]


def test_a_claim_without_an_answer_may_still_run(monkeypatch):
    """Until its deadline its shard is not quiet: what is found there in flight may be what it takes."""
    session = session_of(total=0)
    hand = Holdings(60.0)
    batch = flows.batch_of(session, "claim", ["a"], claim_options=options_of_claim(hand.holding, ["a"], holdings=hand))
    with pytest.raises(AnswerLost):
        Driver(monkeypatch, retry).drive(flows.resolve(session, batch), [Unanswered(ConnectionBroken("cut"))])
    assert hand.mark(0) is None


def test_a_server_that_is_full_in_the_middle_of_a_call():
    """What was answered before is told, in the text too, and of the rest that it was not written."""
    session = session_of(config_of(shards=2))
    flow = flows.resolve(session, flows.batch_of(session, "insert", range(20)))
    answers, full = replies_to(next(flow).commands)[0], said("OOM command not allowed when used memory > 'maxmemory'.")
    with pytest.raises(ServerFull, match=f"wrote nothing more: .*; {len(answers)} of 20 items have their ans") as told:
        flow.send([answers, full])
    assert told.value.answers is not None
    assert told.value.answers.count(None) == 20 - len(answers)
    assert refusal_of(told.value, "ages").code == "answer_lost"  # for a repeat needs the same key
    assert "memory is full" in str(refusal_of(told.value, "ages"))
    was_there = refusal_of(told.value, "was_there").content["was_there"]
    assert [each is None for each in was_there] == [each is None for each in told.value.answers]  # and not false
