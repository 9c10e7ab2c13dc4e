"""Windows of calls: Ctrl-C at each place between a reply and the noting of its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.by_hand import config_of, said, session_of
from support.interrupts import Interrupt

from urifilter_redis.errors import ServerFull
from urifilter_redis.flows import items as flows
from urifilter_redis.service.failures import refusal_of

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
    for at in sample(range(1, places + 1), 100):
        batch, sent, _ = interrupted(count, at)
        unnoted = [call for call in batch.open if call.call_id is not None and call.call_id.text() in sent]
        assert all(call.in_doubt for call in unnoted), at
        left += len(unnoted)
    assert left


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
