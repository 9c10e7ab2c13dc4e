"""The search for the nodes of a cluster: whom it asks, and what it makes of each answer."""

from __future__ import annotations

import pytest
from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from urifilter_redis.engine.topology import GIVEN, Routes, search
from urifilter_redis.protocol.outcomes import Decision, Unsent, decide

A, B, C = "a:1", "b:2", "c:3"
SLOTS = [[0, 8000, [b"a", 1, b"id"], [b"c", 3, b"id"]], [8001, 16382, [b"b", 2, b"id", [b"hostname", b"x"]]]]
DISABLED = ResponseError("This instance has cluster support disabled")
AWAY = Unsent(ConnectionError("refused"))


def run(routes, answer):
    """Run a search; return its result, and whom it asked."""
    searching, asked = search(routes), []
    try:
        inquiry = next(searching)
        while True:
            asked.append(inquiry.node)
            inquiry = searching.send(answer(inquiry.node) if callable(answer) else answer)
    except StopIteration as stop:
        return stop.value, asked


def test_a_node_of_a_cluster():
    """One node tells of all; a slot may have no master."""
    routes = Routes()
    assert run(routes, SLOTS) == (None, [GIVEN])
    assert routes.map.masters == ["a:1", "b:2"]
    assert routes.map.replicas == {"a:1": ("c:3",), "b:2": ()}
    assert [routes.map.owners[slot] for slot in (0, 8000, 8001, 16382, 16383)] == [A, A, B, B, None]
    assert (routes.alone, routes.must_search, routes.follows) == (False, False, True)


@pytest.mark.parametrize(
    "refusal", [DISABLED, NoPermissionError("no"), ResponseError("unknown command 'CLUSTER'"), b"?"]
)
def test_a_plain_server(refusal):
    """A refusal that stays means that there is one server."""
    routes = Routes()
    assert run(routes, refusal) == (None, [GIVEN])
    assert (routes.alone, routes.must_search, routes.masters) == (True, False, [GIVEN])


@pytest.mark.parametrize("outcome", [AWAY, BusyLoadingError("LOADING …"), ResponseError("BUSY a script runs")])
def test_a_server_that_may_come_back(outcome):
    """It is not known what it is: the commands get this outcome, and the next pipeline asks again."""
    routes = Routes()
    failed, _ = run(routes, outcome)
    assert decide(failed) is Decision.WAIT
    assert (routes.alone, routes.must_search) == (False, True)


def test_a_node_that_knows_no_slots():
    """A node that was reset, or is in no cluster yet, is no plain server; another node may know more."""
    routes = Routes()
    failed, _ = run(routes, [])
    assert decide(failed) is Decision.WAIT
    assert (routes.alone, routes.must_search) == (False, True)
    routes = Routes(seeds=[A, B, C])
    assert run(routes, lambda node: SLOTS if node == C else [])[0] is None
    assert routes.map.masters == [A, B]


def test_nodes_that_are_away():
    """Each is asked until one tells; then masters before all others. If nobody answers, what was known stays."""
    routes = Routes(seeds=["seed:1", "seed:2"])
    result, asked = run(routes, lambda node: SLOTS if node == "seed:2" else AWAY)
    assert result is None
    assert set(asked) <= {"seed:1", "seed:2"}
    known = routes.map
    result, asked = run(routes, AWAY)
    assert (result, set(asked[:2]), set(asked)) == (None, {A, B}, {A, B, C, "seed:1", "seed:2"})
    assert routes.map is known
    assert routes.must_search


@pytest.mark.parametrize("nonsense", [[1, 2], [[0, 1]], [[0, 1, [b"a", b"x"]]], [[0, 1, None]]])
def test_nonsense(nonsense):
    """An answer that is no map is none."""
    routes = Routes(seeds=[A])
    failed, _ = run(routes, nonsense)
    assert decide(failed) is Decision.WAIT
    assert routes.map is None
