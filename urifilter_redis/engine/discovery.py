"""The search for the nodes: a Redis Cluster says who has each slot, Sentinels who is the master, a master its replicas.

The searches are generators that send nothing themselves: each yields ``Inquiry``, and gets the outcome. So blocking and
awaited connectors share them.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import ClusterDownError, RedisError, ResponseError

from urifilter_redis.engine.routes import GIVEN, NodeMap, Routes, named
from urifilter_redis.protocol.keys import SLOTS
from urifilter_redis.protocol.outcomes import Unanswered, Unsent, Verdict, judge, nonsense, text_in, to_mapping

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


def search(routes: Routes) -> Search:
    """Search the nodes, and note them in the routes.

    A search that finds nobody leaves the routes as they are.
    """
    routes.stale = False
    try:
        failed = yield from (_nodes(routes) if routes.service is None else _master(routes, routes.service))
    except BaseException:
        routes.stale = True
        raise
    if failed is None:
        return None
    routes.stale = True
    return failed if routes.map is None else None


def _nodes(routes: Routes) -> Search:
    """Search the nodes of a Redis Cluster, if the server is one of these."""
    outcome: Any = None
    for node in _candidates(routes):
        outcome = yield Inquiry(node, ("CLUSTER", "SLOTS"))
        if isinstance(outcome, list):  # from a node of a cluster, which another node may know better
            found = _map_of(outcome, node)
            if found is not None:
                routes.map = found
                return None
            outcome = Unsent(ClusterDownError("CLUSTERDOWN this node knows no master of any slot"))
            continue
        refused = isinstance(outcome, ResponseError) and not _is_passing(outcome)
        if not routes.follows and (refused or not isinstance(outcome, RedisError | Unsent | Unanswered)):
            return (yield from _alone(routes))
    if isinstance(outcome, Unsent | RedisError):
        return outcome
    return Unsent(outcome.error if isinstance(outcome, Unanswered) else nonsense(outcome))


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
        return outcome if isinstance(outcome, Unsent) else Unsent(ConnectionError(f"ROLE: {outcome!r:.80}"))
    listed = outcome[2] if text_in(outcome[0]) == "master" else ()
    replicas = [named(text_in(host), text_in(port), GIVEN) for host, port, _ in listed]
    routes.map = NodeMap.of_one(GIVEN, replicas)
    return None


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


def _master(routes: Routes, service: Service) -> Search:
    """Ask the Sentinels who is the master."""
    failed: list[str] = []
    for sentinel in random.sample(service.sentinels, len(service.sentinels)):
        outcome = yield Inquiry(sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service.name), sentinel=True)
        if isinstance(outcome, list):
            host, port = map(text_in, outcome)
            replicas: Sequence[str] = ()
            if routes.reads_replicas:
                listed = yield Inquiry(sentinel, ("SENTINEL", "REPLICAS", service.name), sentinel=True)
                replicas = list(_replicas_of(listed if isinstance(listed, list) else []))
            routes.map = NodeMap.of_one(named(host, port, sentinel), replicas)
            return None
        failed.append(f"{sentinel}: {_why(outcome)}")
    return Unsent(ConnectionError(f"no Sentinel names the master of {service.name!r} ({'; '.join(failed)})"))


def _replicas_of(listed: list[Any]) -> Iterator[str]:
    for fields in map(to_mapping, listed):
        if not any(word in fields.get("flags", "") for word in _DOWN):
            yield f"{fields['ip']}:{fields['port']}"


def _why(outcome: Any) -> str:
    if outcome is None:
        return "knows no such service"
    return str(outcome.error if isinstance(outcome, Unsent | Unanswered) else outcome)
