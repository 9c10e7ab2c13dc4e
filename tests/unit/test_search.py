"""The search for the master and its replicas, or the nodes of a cluster, by hand; and the parts of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as ConnectionBroken
from support.by_hand import said, settle
from support.forked import in_child

from urifilter_redis.engine import topology as routes_module
from urifilter_redis.engine.topology import GIVEN, Duty, NodeMap, Routes, Service, search
from urifilter_redis.protocol.outcomes import Decision, Unanswered, Unsent, decide
from urifilter_redis.protocol.routing import for_replica

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY = Unsent(ConnectionBroken("refused"))
MASTER, REPLICA = [b"master", 7, []], [b"slave", b"m", 1, b"connected", 7]
THREE = ("s:1", "s:2", "s:3")


def drive(routes, answer):
    """Answer each inquiry; return what was asked, and the outcome of the search."""
    asked = []
    searching = search(routes)
    try:
        inquiry = next(searching)
        while True:
            asked.append((inquiry.node, inquiry.command[0], inquiry.sentinel))
            inquiry = searching.send(answer(inquiry.node, *inquiry.command))
    except StopIteration as stop:
        return asked, stop.value


def watched(**more) -> Routes:
    return Routes((), Service("crawl", THREE), **more)


def named_by(names, roles):
    """What Sentinels and servers answer: ``names`` by Sentinel, ``roles`` by server."""

    def answer(node, command, *arguments):
        if command == "ROLE":
            return roles[node]
        if arguments[0] == "REPLICAS":
            flags = ["slave", "s_down,slave", "slave,disconnected"]
            return [[b"ip", b"r%d" % n, b"port", b"6", b"flags", each.encode()] for n, each in enumerate(flags)]
        found = names[node]
        return found.encode().split(b":") if isinstance(found, str) else found

    return answer


def test_a_master_says_so_itself():
    """A Sentinel that names a replica is behind: another one is asked, and is asked first from then on."""
    names = {"s:1": "old:6", "s:2": "new:6", "s:3": "old:6"}
    for _ in range(10):  # the Sentinels are asked in random order
        routes = watched()
        asked, failed = drive(routes, named_by(names, {"old:6": REPLICA, "new:6": MASTER}))
        assert (failed, routes.masters, routes.stale, routes.must_search) == (None, ["new:6"], False, False)
        assert sum(command == "ROLE" for _, command, _ in asked) <= 2  # a server is asked once
        again, _ = drive(routes, named_by(names, {"new:6": MASTER}))
        assert again == [("s:2", "SENTINEL", True), ("new:6", "ROLE", False)]


def test_nobody_is_the_master():
    """Each Sentinel's reason is told. A known master that has become a replica is not asked any more."""
    names = {"s:1": "old:6", "s:2": AWAY, "s:3": said("NOAUTH Authentication required.")}
    routes = watched()
    routes.know(NodeMap.of_one("old:6"))
    _, failed = drive(routes, named_by(names, {"old:6": REPLICA}))
    assert "s:1 names old:6: it is a replica" in str(failed.error)
    assert "s:2 refused" in str(failed.error)
    assert "uthentication required" in str(failed.error)
    assert (failed.hopeless, routes.must_search) == (False, True)


@pytest.mark.parametrize("silent", [AWAY, Unanswered(ConnectionBroken("cut"))])
def test_all_sentinels_are_away(silent):
    """A client that knows the master goes on with it; one that does not has nobody to ask."""
    names = dict.fromkeys(THREE, silent)
    routes = watched()
    assert isinstance(drive(routes, named_by(names, {}))[1], Unsent)
    routes.know(NodeMap.of_one("m:6"))
    assert drive(routes, named_by(names, {}))[1] is None
    assert (routes.masters, routes.stale) == (["m:6"], True)


def test_a_master_that_is_away():
    """Until the Sentinels name another, nobody is asked: what they name is told."""
    routes = watched()
    routes.know(NodeMap.of_one("m:6"))
    _, failed = drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": AWAY}))
    assert "names m:6: refused" in str(failed.error)


@pytest.mark.parametrize("role", [said("NOPERM no permissions to run the 'role' command"), said("ERR unknown command")])
def test_a_master_that_may_not_be_asked(role):
    """It is believed to be one: a replica would refuse what writes."""
    routes = watched()
    assert drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": role}))[1] is None
    assert routes.masters == ["m:6"]


def test_a_service_that_all_do_not_know():
    """It is hopeless; if one Sentinel is away, it might know it."""
    assert drive(watched(), named_by(dict.fromkeys(THREE), {}))[1].hopeless is True
    assert drive(watched(), named_by(dict.fromkeys(THREE) | {"s:2": AWAY}, {}))[1].hopeless is False


def test_a_server_that_is_no_sentinel():
    """Whatever it answers is told."""
    names = {"s:1": said("ERR unknown command 'SENTINEL'"), "s:2": [], "s:3": b"?"}
    text = str(drive(watched(), named_by(names, {}))[1].error)
    assert "s:1 unknown command" in text
    assert "s:2 []" in text
    assert "s:3 b'?'" in text


def test_replicas_that_sentinels_find_well():
    routes = watched(reads_replicas=True)
    drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": MASTER}))
    assert routes.map.replicas == {"m:6": ("r0:6",)}


def test_a_map_that_says_nothing_new():
    """It leaves the known one in its place, as answers under way are believed by that."""
    routes = watched()
    drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": MASTER}))
    known = routes.map
    drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": MASTER}))
    assert routes.map is known


def begun(routes):
    """A search that has asked its first Sentinel; ``drive`` its rest with ``go_on``."""
    searching = search(routes)
    return searching, next(searching)


def go_on(searching, inquiry, answer):
    with pytest.raises(StopIteration) as stop:
        while True:
            inquiry = searching.send(answer(inquiry.node, *inquiry.command))
    return stop.value.value


def known(names="m:6", **more) -> tuple[Routes, Callable]:
    """Routes that know a master, and what answers to a search."""
    routes, answer = watched(**more), named_by(dict.fromkeys(THREE, names), {names: MASTER})
    drive(routes, answer)
    return routes, answer


def test_all_wait_for_one_search():
    """While it is in doubt who is the master nothing goes to the one that was known; one caller searches."""
    routes, answer = known()
    assert routes.duty is Duty.GO
    routes.learn("m:6", [AWAY])
    assert routes.duty is Duty.SEARCH
    searching, inquiry = begun(routes)
    assert routes.duty is Duty.WAIT
    assert go_on(searching, inquiry, answer) is None
    assert routes.duty is Duty.GO


def test_the_first_search():
    """Nobody knows a master yet."""
    routes = watched()
    assert routes.duty is Duty.SEARCH
    searching, _ = begun(routes)
    assert routes.duty is Duty.WAIT
    searching.close()  # interrupted
    assert routes.duty is Duty.SEARCH


def test_nobody_waits_for_a_search_of_a_cluster():
    """A wrong node refuses; a node that does not answer must not hold up the calls to others."""
    routes = Routes(["a:1"])
    settle(routes, NodeMap.of_one("a:1"))
    routes.learn("a:1", [AWAY])
    assert routes.duty is Duty.SEARCH
    searching, _ = begun(routes)
    assert routes.duty is Duty.GO
    searching.close()


def test_a_doubt_during_a_search():
    """It is not dispelled by what was asked before, and the Sentinel that told of it is asked first."""
    for _ in range(10):  # the Sentinels are asked in random order
        routes, answer = known("old:6")
        routes.doubt()
        searching, inquiry = begun(routes)
        routes.hear("s:2", object(), None)
        go_on(searching, inquiry, answer)
        assert (routes.duty, routes.teller) == (Duty.SEARCH, "s:2")
        drive(routes, named_by({"s:2": "new:6"}, {"new:6": MASTER}))
        assert (routes.duty, routes.masters) == (Duty.GO, ["new:6"])


def test_an_older_search_is_not_believed():
    """It may have asked before the failover, and its answer came late."""
    routes, answer = known("old:6")
    older, inquiry = begun(routes)
    routes.doubt()
    newer = search(routes)
    assert go_on(newer, next(newer), named_by(dict.fromkeys(THREE, "new:6"), {"new:6": MASTER})) is None
    go_on(older, inquiry, answer)
    assert (routes.masters, routes.duty) == (["new:6"], Duty.GO)


def test_silent_sentinels_are_not_asked_by_every_call(monkeypatch):
    """One call a second asks them, which may take it some seconds; the others go on with the known master."""
    now = [1000.0]
    monkeypatch.setattr(routes_module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    routes, _ = known()
    silent = named_by(dict.fromkeys(THREE, AWAY), {})
    for _ in range(3):
        now[0] += routes_module.BELIEVED + 1
        assert routes.duty is Duty.SEARCH
        assert drive(routes, silent)[1] is None
        assert (routes.duty, routes.stale) == (Duty.GO, True)
        now[0] += routes_module.AGAIN + 0.1
        assert routes.duty is Duty.SEARCH
        searching, inquiry = begun(routes)
        assert routes.duty is Duty.GO  # nobody waits for it a second time
        go_on(searching, inquiry, silent)
        routes.learn("m:6", [AWAY])  # another doubt is
        assert routes.duty is Duty.SEARCH
        drive(routes, silent)


def test_a_search_in_a_parent():
    """A child that was forked meanwhile does not wait for it."""
    routes, _ = known()
    routes.doubt()
    searching, _ = begun(routes)
    assert routes.duty is Duty.WAIT
    assert in_child(lambda: routes.duty.name) == "SEARCH"
    searching.close()


def test_sentinels_are_asked_again_after_a_while(monkeypatch):
    """A process that was idle, or was forked long ago, would not hear of another master."""
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    now = [1000.0]
    monkeypatch.setattr(routes_module, "time", clock)
    routes = watched()
    drive(routes, named_by(dict.fromkeys(THREE, "m:6"), {"m:6": MASTER}))
    assert routes.must_search is False
    now[0] += routes_module.BELIEVED + 1
    assert routes.must_search is True


def test_a_replica_that_is_away(monkeypatch):
    """It is left alone for a while, and the master answers in its place; one that is behind is not left alone."""
    now = [1000.0]
    monkeypatch.setattr(routes_module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    routes = Routes(reads_replicas=True)
    routes.know(NodeMap.of_one(GIVEN, ["r:1", "r:2"]))
    read = for_replica(("GET", "a"))
    first = routes.node_of(read)
    routes.learn(first, [said("NOFILTER there is no such filter")])
    assert routes.node_of(read) == first
    for away in (AWAY, said("LOADING Redis is loading the dataset in memory")):
        routes.learn(first, [away])
        (other,) = {"r:1", "r:2"} - {first}
        assert routes.node_of(read) == other
        routes.learn(other, [said("MASTERDOWN Link with MASTER is down")])
        assert routes.node_of(read) == GIVEN
        routes.learn(GIVEN, [AWAY])  # the master is asked all the same
        assert routes.node_of(read) == GIVEN
        now[0] += routes_module.SHUNNED + 1
        assert routes.node_of(read) == first


def test_one_wait_a_part():
    """All WAITs of a pipeline become one behind all else, whose outcome is that of each."""
    routes, wait = Routes(), ("WAIT", "1", "100")
    outcomes = [None] * 5
    (part,) = routes.split([("SET", "a", 1), wait, ("SET", "b", 1), wait, ("GET", "b")], outcomes)
    assert part.commands == [("SET", "a", 1), ("SET", "b", 1), ("GET", "b"), wait]
    part.place(["a", "b", "c", 1], outcomes)
    assert outcomes == ["a", 1, "b", 1, "c"]


# the nodes of a cluster: whom the search asks, and what it makes of each answer

A, B, C = "a:1", "b:2", "c:3"
SLOTS = [[0, 8000, [b"a", 1, b"id"], [b"c", 3, b"id"]], [8001, 16382, [b"b", 2, b"id", [b"hostname", b"x"]]]]
DISABLED = ResponseError("This instance has cluster support disabled")


def run(routes, answer):
    """Run a search; return its result, and whom it asked."""
    asked, result = drive(routes, lambda node, *_: answer(node) if callable(answer) else answer)
    return result, [node for node, *_ in asked]


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
