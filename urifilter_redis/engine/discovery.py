"""The search for the nodes: a Redis Cluster says who has each slot, Sentinels who is the master, a master its replicas.

The searches are generators that send nothing themselves: each yields ``Inquiry``, and gets the outcome. So blocking and
awaited connectors share them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import ClusterDownError, RedisError, ResponseError

from urifilter_redis.engine.routes import GIVEN, NodeMap, Routes, named
from urifilter_redis.protocol.keys import SLOTS
from urifilter_redis.protocol.outcomes import (
    Unanswered,
    Unsent,
    Verdict,
    is_away,
    judge,
    nonsense,
    text_in,
    to_mapping,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.engine.routes import Service
    from urifilter_redis.protocol.calls import Arguments

__all__ = ["Inquiry", "Search", "search"]

#: The most nodes that one search asks: those that are away take time.
NODES_A_SEARCH = 8

#: The state of a replica that Sentinels name, if it may be asked.
_DOWN = ("s_down", "o_down", "disconnected")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A command of a search.

    Attributes:
        node: the name of the node that it goes to.
        command: the command.
        sentinel: whether the node is a Sentinel.
    """

    node: str
    command: Arguments
    sentinel: bool = False


#: A search gets the outcome of each inquiry, and returns None, or the outcome of all that waits for its result.
Search: TypeAlias = Generator[Inquiry, Any, Unsent | RedisError | None]


def search(routes: Routes, patience: float = math.inf) -> Search:
    """Search the nodes, and note them in the routes.

    A search that finds nobody leaves the routes as they are, and they are used if nothing speaks against them.

    Args:
        routes: the routes.
        patience: the seconds after which no other node is asked; the next search asks them in another order.
    """
    routes.ask()
    end, service = time.monotonic() + patience, routes.service
    try:
        return (yield from (_nodes(routes, end) if service is None else _master(routes, service, end)))
    except BaseException:
        routes.stale = True
        raise


def _failed(routes: Routes, why: Unsent | RedisError) -> Unsent | RedisError | None:
    routes.stale = True
    return why if routes.map is None else None


def _until(end: float, nodes: Sequence[str]) -> Iterator[str]:
    """Yield nodes until a time by ``monotonic``, and the first in any case."""
    for number, each in enumerate(nodes):
        if number and time.monotonic() >= end:
            return
        yield each


def _nodes(routes: Routes, end: float) -> Search:
    """Search the nodes of a Redis Cluster, if the server is one of these."""
    outcome: Any = None
    for node in _until(end, _candidates(routes)):
        outcome = yield Inquiry(node, ("CLUSTER", "SLOTS"))
        if isinstance(outcome, list):  # from a node of a cluster, which another node may know better
            found = _map_of(outcome, node)
            if found is not None:
                routes.know(found)
                return None
            outcome = Unsent(ClusterDownError("CLUSTERDOWN this node knows no master of any slot"))
            continue
        refused = isinstance(outcome, ResponseError) and not _is_passing(outcome)
        if not routes.follows and (refused or not isinstance(outcome, RedisError | Unsent | Unanswered)):
            return (yield from _alone(routes))
    if isinstance(outcome, Unsent | RedisError):
        return _failed(routes, outcome)
    return _failed(routes, Unsent(outcome.error if isinstance(outcome, Unanswered) else nonsense(outcome)))


def _candidates(routes: Routes) -> list[str]:
    """Return the nodes to ask, in random order: masters that are known, then what was given, then replicas."""
    known = NodeMap([]) if routes.map is None else routes.map
    replicas = [each for some in known.replicas.values() for each in some]
    groups = (known.masters, routes.seeds or (GIVEN,), replicas)
    in_order = [each for some in groups for each in random.sample(some, len(some))]
    return list(dict.fromkeys(in_order))[:NODES_A_SEARCH]


def _is_passing(refusal: ResponseError) -> bool:
    """Whether a server refuses because it is busy, and may yet say that it is in a cluster."""
    return judge(refusal) is Verdict.WAIT


def _alone(routes: Routes) -> Search:
    """Note that the given server is in no cluster; find its replicas, if they are wanted."""
    if not routes.reads_replicas:
        routes.alone = True
        return None
    outcome = yield Inquiry(GIVEN, ("ROLE",))
    if not isinstance(outcome, list):
        known = isinstance(outcome, Unsent | RedisError)
        return _failed(routes, outcome if known else Unsent(ConnectionError(f"ROLE: {_why(outcome)}")))
    listed = outcome[2] if _is_master(outcome) else ()
    replicas = [named(text_in(host), text_in(port), GIVEN) for host, port, _ in listed]
    routes.know(NodeMap.of_one(GIVEN, replicas))
    return None


def _is_master(role: list[Any]) -> bool:
    return text_in(role[0]) == "master"


def _map_of(reply: list[Any], teller: str) -> NodeMap | None:
    """Return the map of a reply of CLUSTER SLOTS; None: the reply is none, or no slot has a master."""
    owners: list[str | None] = [None] * SLOTS
    replicas: dict[str, tuple[str, ...]] = {}
    try:
        for first, last, *nodes in reply:
            master, *others = (named(text_in(host or ""), int(port), teller) for host, port, *_ in nodes)
            owners[first : last + 1] = [master] * (last + 1 - first)
            replicas[master] = tuple(others)
    except (TypeError, ValueError):
        return None
    return NodeMap(owners, replicas, cluster=True) if replicas else None


def _master(routes: Routes, service: Service, end: float) -> Search:
    """Ask the Sentinels who is the master, until one names a server that says so itself: a Sentinel may be behind."""
    failed: list[str] = []
    refuted: set[str] = set()
    strangers = 0
    in_order = sorted(random.sample(service.sentinels, len(service.sentinels)), key=routes.teller.__ne__)
    for sentinel in _until(end, in_order):
        outcome = yield Inquiry(sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service.name), sentinel=True)
        if not isinstance(outcome, list) or len(outcome) != 2:  # noqa: PLR2004 - host and port
            strangers += outcome is None
            failed.append(f"{sentinel} {_why(outcome)}")
            continue
        host, port = map(text_in, outcome)
        master = named(host, port, sentinel)
        why = "" if master not in refuted else "see above"
        if not why:
            role = yield Inquiry(master, ("ROLE",))
            why = _why_no_master(role)
        if not why:
            replicas = (yield from _replicas(sentinel, service)) if routes.reads_replicas else ()
            routes.teller = sentinel
            routes.know(NodeMap.of_one(master, replicas))
            return None
        refuted.add(master)
        failed.append(f"{sentinel} names {master}: {why}")
    text = f"no Sentinel names a master of {service.name!r} that is one: {'; '.join(failed)}"
    error = Unsent(ConnectionError(text), hopeless=strangers == len(service.sentinels))
    return _failed(routes, error) or (error if refuted.intersection(routes.masters) else None)


def _why_no_master(role: Any) -> str:
    """Return the reason why a server that Sentinels name is not asked; "" if it is a master, or may not be asked."""
    if isinstance(role, list):
        return "" if _is_master(role) else "it is a replica"
    return _why(role) if is_away(role) else ""


def _replicas(sentinel: str, service: Service) -> Generator[Inquiry, Any, list[str]]:
    """Ask a Sentinel for the replicas that it finds well."""
    listed = yield Inquiry(sentinel, ("SENTINEL", "REPLICAS", service.name), sentinel=True)
    known = [to_mapping(each) for each in listed] if isinstance(listed, list) else []
    well = (each for each in known if not any(word in each.get("flags", "") for word in _DOWN))
    return [named(each["ip"], each["port"], sentinel) for each in well]


def _why(outcome: Any) -> str:
    if outcome is None:
        return "knows no such service"
    error = outcome.error if isinstance(outcome, Unsent | Unanswered) else outcome
    return f"{error}" or type(error).__name__
