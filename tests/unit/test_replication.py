"""Answers that too few replicas have, on a model of a server: none is believed, and none is lost."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as ConnectionBroken
from support.by_hand import Hand, said, session_of
from support.model_server import ModelServer

from urifilter_redis.engine import driver, retry
from urifilter_redis.engine.retry import exchange
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Pause, Timeouts
from urifilter_redis.engine.topology import NodeMap
from urifilter_redis.errors import AnswerLost
from urifilter_redis.flows import items, lifecycle
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.outcomes import Unanswered


@pytest.fixture
def server():
    made = ModelServer()
    made.replicas = 1
    return made


@pytest.fixture
def session(server):
    made = Session(FilterKeys("urifilter", "news"), "server", Timeouts(total=0))
    made.wait_replicas = 1
    run(server, lifecycle.create(made, Settings(capacity=1000)))
    return made


def run(server, flow):
    def perform(step, _):
        return None if isinstance(step, Pause) else step.do() if hasattr(step, "do") else server.send(step.commands)

    return driver.drive(flow, perform=perform)


def insert(server, session, uris, batch=None):
    """Ask, or ask again; return the batch, and whether it was answered."""
    batch = batch or items.batch_of(session, "insert", uris)
    try:
        run(server, items.resolve(session, batch))
    except AnswerLost:
        return batch, False
    return batch, True


def test_nothing_is_believed_before_a_replica_has_it(server, session):
    """However often it is asked again: the repeat writes, so WAIT tells of it. Afterwards the answers are the first."""
    assert insert(server, session, ["a"])[1] is True
    server.replicating = False
    batch, answered = insert(server, session, ["a", "b"])
    for _ in range(3):
        assert (answered, batch.answers) == (False, [None, None])
        _, answered = insert(server, session, [], batch)
    server.replicating = True
    assert insert(server, session, [], batch) == (batch, True)
    assert batch.answers == [1, 0]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (0, "0 of 2 replicas have the answer"),
        (1, "1 of 2 replicas have the answer"),
        (said("NOPERM this user has no permissions to run the 'wait' command"), "how many .*no permissions"),
        (Unanswered(ConnectionBroken("cut")), "it is not known how many replicas have the answer: cut"),
        (said("UNBLOCKED force unblock from blocking operation"), "how many .*force unblock"),
    ],
)
def test_why_it_is_not_believed(monkeypatch, found, text):
    """Whatever WAIT answers but enough."""
    session, hand = session_of(total=0), Hand(monkeypatch, retry)
    session.wait_replicas = 2
    request = written(session)
    hand.drive(exchange(session, [request]), [[0], found], took=1.0)
    assert isinstance(request.error, AnswerLost)
    assert request.in_doubt is True
    with pytest.raises(AnswerLost, match=text):
        raise request.error


def test_a_map_that_changes_meanwhile(monkeypatch):
    """It is not certain whose WAIT was answered: the call is sent again under the same id, and answered then."""
    session, hand = session_of(), Hand(monkeypatch, retry)
    session.wait_replicas = 1
    session.routes.know(NodeMap.of_one("a:1"))
    request, sent = written(session), []

    def change(commands):
        sent.append(commands)
        session.routes.know(NodeMap.of_one("b:1"))
        return [[0], 1]

    def stay(commands):
        sent.append(commands)
        return [[0], 1]

    hand.drive(exchange(session, [request]), change, stay)
    assert (request.answered, request.reply, request.reply_lost) == (True, [0], True)
    assert sent[0][0] == sent[1][0]
    assert [each[0] for each in sent[1]] == ["EVALSHA", "WAIT"]


@pytest.mark.parametrize(("reply", "patience"), [(1.5, 1200), (0.0001, 1)])
def test_the_wait_ends_before_the_connection_does(monkeypatch, reply, patience):
    """A WAIT of 0 ms would be one for ever."""
    session, hand = session_of(reply=reply), Hand(monkeypatch, retry)
    session.wait_replicas = 1
    hand.drive(exchange(session, [written(session)]), lambda commands: check(commands, patience))
    assert 0 < retry.SHARE < 1


def check(commands, patience):
    assert commands[-1] == ("WAIT", "1", str(patience))
    return [[0], 1]


def test_a_question_does_not_wait(monkeypatch):
    """What has no call id is not written, and believed at once."""
    session, hand = session_of(), Hand(monkeypatch, retry)
    session.wait_replicas = 1
    request = retry.Request.of(("HGETALL", session.keys.shard(0).meta))
    hand.drive(exchange(session, [request]), [{"a": "b"}])
    assert request.reply == {"a": "b"}


def written(session) -> retry.Request:
    """An insert of one item."""
    from urifilter_redis.engine.batch import OpenCall
    from urifilter_redis.protocol import calls

    call = OpenCall(0, range(1), bytes(16), session.ids.draw())

    def build(request):
        text = request.call_id.text(waits=True)
        return calls.items("insert", session.config, session.keys.shard(0), session.view(0), text, call.packed)

    return retry.Request(build, 0, call)
