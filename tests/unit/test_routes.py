"""The routes: which node gets which command of a pipeline, and what a refusal teaches."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError
from support import tags
from support.by_hand import settle

from urifilter_redis.engine.topology import GIVEN, NodeMap, Routes, named
from urifilter_redis.protocol.keys import SLOTS, slot_of
from urifilter_redis.protocol.outcomes import Unanswered, Unsent
from urifilter_redis.protocol.routing import (
    ASKING,
    READONLY,
    READWRITE,
    for_key,
    for_node,
    for_replica,
    slot_of_command,
)

A, B = "10.0.0.1:7000", "10.0.0.2:7000"


@pytest.fixture
def routes():
    """Two masters, of which the first has a replica; the last slot has no master."""
    made = Routes(seeds=[A])
    owners = [A] * 8000 + [B] * (SLOTS - 8001) + [None]
    settle(made, NodeMap(owners, {A: ("10.0.0.3:7000",), B: ()}, cluster=True))
    return made


def key_in(first: int, last: int) -> str:
    """A key whose slot lies between."""
    return next(f"key{number}" for number in range(100_000) if first <= slot_of(f"key{number}") <= last)


LOW, HIGH, NOWHERE = key_in(0, 7999), key_in(8000, SLOTS - 2), key_in(SLOTS - 1, SLOTS - 1)


@given(st.text(string.ascii_letters + "{}:-", max_size=30))
def test_slots_of_keys(key):
    """Only the text of the first braces counts, if there is some."""
    rest = key.partition("{")[2]
    text, closed, _ = rest.partition("}")
    assert slot_of(key) == slot_of(key.encode()) == tags.slot_of(text if closed and text else key)


def test_commands_go_to_the_nodes_of_their_keys(routes):
    """Each node gets its part, in the pipeline's order, and the outcomes come back to their places."""
    commands = [
        ("HGETALL", LOW),
        ("EVALSHA", "sha", "2", HIGH, "x", LOW),
        ("MEMORY", "USAGE", HIGH),
        for_key(("TIME",), HIGH),
        for_node(("INFO",), B),
        ("EXISTS", LOW),
        ("PING",),
    ]
    outcomes = [None] * len(commands)
    parts = routes.split(commands, outcomes)
    assert {part.node: part.positions for part in parts} == {A: [(0,), (5,), (6,)], B: [(1,), (2,), (3,), (4,)]}
    for part in parts:
        part.place([f"{part.node} {number}" for number in range(len(part.commands))], outcomes)
    assert outcomes == [f"{A} 0", f"{B} 0", f"{B} 1", f"{B} 2", f"{B} 3", f"{A} 1", f"{A} 2"]
    assert not routes.stale


def test_a_slot_without_a_master(routes):
    """Its commands are refused here; the others go out, and the nodes are asked again."""
    outcomes = [None, None]
    (part,) = routes.split([("GET", NOWHERE), ("GET", LOW)], outcomes)
    assert (part.node, part.positions, outcomes[1]) == (A, [(1,)], None)
    assert isinstance(outcomes[0].error, ClusterDownError)
    assert routes.must_search


def test_commands_with_others_around_them(routes):
    """ASKING goes before a command, READONLY and READWRITE around one for a replica; their outcomes are dropped."""
    routes.reads_replicas = True
    parts = routes.split([for_node(("GET", LOW), B, asking=True), for_replica(("GET", LOW))], [None] * 2)
    assert [(part.node, part.commands, part.positions) for part in parts] == [
        (B, [ASKING, ("GET", LOW)], [(), (0,)]),
        ("10.0.0.3:7000", [READONLY, ("GET", LOW), READWRITE], [(), (1,), ()]),
    ]


def test_a_plain_server():
    """It gets all commands, as they are."""
    routes = Routes(alone=True)
    commands = [("GET", LOW), for_replica(("GET", HIGH)), for_node(("TIME",), GIVEN)]
    (part,) = routes.split(commands, [None] * 3)
    assert (part.node, part.commands) == (GIVEN, commands)
    assert (routes.masters, routes.follows, routes.must_search) == ([GIVEN], False, False)


def test_moved(routes):
    """The slot has another master from now on; one that does not say its host has the host of who tells."""
    moved = [MovedError(f"{slot_of(LOW)} 10.0.0.9:7009"), MovedError(f"{slot_of(HIGH)} :7008")]
    routes.learn(A, [*moved, b"fine"])
    assert [routes.node_of(("GET", LOW)), routes.node_of(("GET", HIGH))] == ["10.0.0.9:7009", "10.0.0.1:7008"]
    assert [each.node for each in moved] == ["10.0.0.9:7009", "10.0.0.1:7008"]
    assert routes.must_search


def test_ask(routes):
    """Nothing has changed; the outcome names the node to ask."""
    asked, refused = AskError(f"{slot_of(LOW)} 10.0.0.9:7009"), ReadOnlyError("READONLY You can't write")
    routes.learn(A, [asked])
    assert (asked.node, routes.node_of(("GET", LOW)), routes.must_search) == ("10.0.0.9:7009", A, False)
    routes.learn(A, [refused])
    assert (refused.node, routes.must_search) == (A, True)


@pytest.mark.parametrize("outcome", [Unsent(OSError()), Unanswered(OSError()), ClusterDownError("CLUSTERDOWN …")])
def test_a_node_that_is_away(routes, outcome):
    """The nodes are asked again before the next pipeline."""
    routes.learn(B, [outcome])
    assert routes.must_search


def test_names():
    """A node without a host has the host of who tells; IPv6 keeps its colons."""
    assert named("", 7001, A) == named("?", "7001", A) == "10.0.0.1:7001"
    assert named("::1", 7001, A) == "::1:7001"
    assert named("", 7001, "::1:7000") == "::1:7001"
    assert named("", 7001, GIVEN) == ":7001"


def test_commands_without_keys():
    """Any node will do."""
    keyless = [("PING",), ("EVAL", "return 1", "0"), ("SCAN", "0"), ("CONFIG", "GET", "x")]
    assert {slot_of_command(each) for each in keyless} == {0}
