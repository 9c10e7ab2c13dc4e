"""The routes: the node of each slot, as far as this process knows, and the search for the nodes.

A plain server is one node that has all slots. A command that was sent to a wrong node has certainly not run. So routes
may be wrong for a moment: the refusal corrects them.

A Redis Cluster names the owner of each slot, Sentinels name the master, a master its replicas. The searches are
generators that send nothing themselves: each yields ``Inquiry``, and gets the outcome. So blocking and awaited
connectors share them.
"""

from __future__ import annotations

import enum
import itertools
import math
import os
import random
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, ResponseError

from urifilter_redis.protocol.keys import SLOTS
from urifilter_redis.protocol.outcomes import (
    Decision,
    Unanswered,
    Unsent,
    decide,
    is_away,
    is_readonly,
    nonsense,
    text_in,
    to_mapping,
)
from urifilter_redis.protocol.routing import ASKING, READONLY, READWRITE, Addressed, slot_of_command

if TYPE_CHECKING:
    from urifilter_redis.protocol.calls import Arguments

#: The name of the server whose address was given.
GIVEN = ""

#: Seconds for which Sentinels, or a master with its replicas, are believed: no refusal tells of a new replica, or tells
#: an idle process of another master.
BELIEVED = 10.0

#: Seconds after which Sentinels that did not answer are asked again, as each attempt may last ``Timeouts.connect``.
AGAIN = 1.0

#: Seconds for which a replica that did not answer is not asked again, as each attempt may last ``Timeouts.reply``.
SHUNNED = 10.0


def named(host: str, port: int | str, teller: str) -> str:
    """Return a node's name; a node that leaves out its host has that of the node which tells of it."""
    return f"{host if host not in {'', '?'} else teller.rpartition(':')[0]}:{port}"


@dataclass(frozen=True, slots=True)
class Service:
    """A master that Sentinels watch, by the Sentinels' name for it and their addresses, ``host:port``."""

    name: str
    sentinels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeMap:
    """The nodes as one answer has them; it never changes.

    Attributes:
        owners: the name of each slot's master; None: it has none.
        replicas: the names of each master's replicas.
        cluster: whether they are a Redis Cluster, whose replicas read only for those who say READONLY.
    """

    owners: list[str | None]
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cluster: bool = False

    @classmethod
    def of_one(cls, master: str, replicas: Sequence[str] = ()) -> NodeMap:
        """Return the map of a master that has all slots."""
        return cls([master] * SLOTS, {master: tuple(replicas)})

    @property
    def masters(self) -> list[str]:
        """The names of the masters, in the order of their first slots."""
        return list(dict.fromkeys(owner for owner in self.owners if owner is not None))


@dataclass(slots=True)
class Part:
    """The commands of a pipeline that go to one node.

    Attributes:
        node: the node's name.
        commands: the commands as they are sent; some have ASKING or READONLY before them.
        positions: the positions of each in the pipeline: none if it was added here, several of a WAIT.
        waits: the positions of all WAITs.
    """

    node: str
    commands: list[Arguments] = field(default_factory=list)
    positions: list[Sequence[int]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def add(self, command: Arguments, *positions: int) -> None:
        """Add a command."""
        self.commands.append(command)
        self.positions.append(positions)

    def end(self, commands: Sequence[Arguments]) -> None:
        """Add one WAIT for all those of a pipeline, each of which would hold up what comes behind it."""
        if self.waits:
            self.add(commands[self.waits[-1]], *self.waits)

    def place(self, outcomes: Sequence[Any], into: list[Any]) -> None:
        """Put each outcome into the positions that its command has in the pipeline."""
        for outcome, positions in zip(outcomes, self.positions, strict=True):
            for position in positions:
                into[position] = outcome


class Duty(enum.Enum):
    """What a call does before its commands are sent: nothing, wait for the search of another call, or search."""

    GO = enum.auto()
    WAIT = enum.auto()
    SEARCH = enum.auto()


@dataclass(slots=True, eq=False)
class _Searching:
    """A search for the nodes.

    Attributes:
        number: later searches have higher numbers.
        doubt: the doubt about the map as it began.
        process: the process that searches; a forked child does not.
        ended: whether it has ended.
    """

    number: int
    doubt: object
    process: int = field(default_factory=os.getpid)
    ended: bool = False


class Routes:
    """The routes of one client. Threads and event loops share them without a lock: each change is one step.

    A node is named by its address, ``host:port``; ``GIVEN`` is the server whose address was given.

    Args:
        seeds: addresses of nodes of a Redis Cluster, ``host:port``; none: the given server may be such a node.
        service: the master that Sentinels watch; None: there are no Sentinels.
        alone: whether it is known that there is the given server only.
        reads_replicas: whether commands that a replica may answer go to replicas.
        waits: whether callers wait until replicas have their answers.

    Attributes:
        map: the nodes as they are known; None: nothing is known, or there is the given server only.
        teller: the Sentinel that last named the master; empty: none has.
    """

    def __init__(
        self,
        seeds: Sequence[str] = (),
        service: Service | None = None,
        *,
        alone: bool = False,
        reads_replicas: bool = False,
        waits: bool = False,
    ) -> None:
        self.seeds, self.service, self.reads_replicas, self.waits = tuple(seeds), service, reads_replicas, waits
        self.map: NodeMap | None = None
        self.alone = alone
        self.teller = ""
        # Each doubt is an object of its own, so that a search ends only the doubt that it has begun with.
        self._doubt = object()
        self._settled = self._doubt if alone else None
        self._tried: object = None
        self._searching: _Searching | None = None
        self._numbers, self._latest = itertools.count(1), 0
        self._asked, self._believed = -math.inf, BELIEVED
        self._told: object = None
        self._shunned: dict[str, float] = {}
        self._draw = random.random()  # noqa: S311 - spreads clients over the replicas

    @property
    def stale(self) -> bool:
        """Whether the map is wrong, as a refusal or a failure suggests."""
        return self._doubt is not self._settled

    def doubt(self) -> None:
        """Note that the map may be wrong."""
        self._doubt = object()

    @property
    def duty(self) -> Duty:
        """What a call does before its commands are sent.

        One call at a time searches. Behind Sentinels the others wait: the old master may take what the new one will
        never have. On a cluster they go on, as a wrong node refuses them. The same if no Sentinel could dispel the
        doubt, or the map is only to be looked at again.
        """
        searching = self._searching  # before the doubt, which ends before the search does
        watched = self.service is not None
        under_way = searching is not None and not searching.ended and searching.process == os.getpid()
        if self.map is None and not self.alone:
            return Duty.WAIT if under_way and watched else Duty.SEARCH
        if self.stale and not (watched and self._doubt is self._tried):
            return Duty.SEARCH if not under_way else Duty.WAIT if watched else Duty.GO
        if under_way:
            return Duty.GO
        now = time.monotonic()
        if self.stale:
            return Duty.SEARCH if now > self._asked + AGAIN else Duty.GO
        believed = not (watched or self.reads_replicas) or now <= self._asked + self._believed
        return Duty.GO if believed else Duty.SEARCH

    @property
    def must_search(self) -> bool:
        """Whether the nodes must be asked before the next pipeline, by this call or another."""
        return self.duty is not Duty.GO

    def begin(self) -> _Searching:
        """Note that the nodes are asked now, so that no other call asks them, too."""
        self._asked = time.monotonic()
        self._searching = made = _Searching(next(self._numbers), self._doubt)
        return made

    def find(self, found: NodeMap | None, searching: _Searching, teller: str = "") -> None:
        """Note what a search has found; None: there is the given server only.

        A search that began earlier than another one which has found something is not believed. A doubt that came during
        the search remains, and so does the Sentinel that must be asked for it.
        """
        if searching.number < self._latest:
            return
        self._latest = searching.number
        if found is None:
            self.alone = True
        else:
            self.know(found)
        if teller and self._doubt is searching.doubt:
            self.teller = teller
        self._settled = searching.doubt

    def put_off(self, searching: _Searching) -> None:
        """Note that no Sentinel could dispel a doubt: calls go on, and one of them asks again after a while."""
        self._asked = time.monotonic()
        if self._doubt is searching.doubt:
            if not self.stale:
                self.doubt()
            self._tried = self._doubt

    def hear(self, teller: str, told: object, believed: float | None) -> None:
        """Note what Sentinels report: ``told`` is another object after each failover.

        After another one than before the Sentinels must be asked, ``teller`` first. They are believed for so many
        seconds; None: ``BELIEVED``.
        """
        self._believed = BELIEVED if believed is None else believed
        if told is not self._told:
            self.teller = teller
            self.doubt()
            self._told = told  # at last: another thread that finds it finds the doubt, too

    def know(self, found: NodeMap) -> None:
        """Note the nodes. Nodes as they are known leave the map the same object (see ``retry``)."""
        if found != self.map:
            self.map = found

    @property
    def follows(self) -> bool:
        """Whether another server that takes over from a master is found."""
        return self.service is not None or bool(self.seeds) or (self.map is not None and self.map.cluster)

    @property
    def masters(self) -> list[str]:
        """The names of all masters; of a plain server ``GIVEN``."""
        return [GIVEN] if self.map is None else self.map.masters

    def node_of(self, command: Sequence[Any]) -> str | None:
        """Return the name of the node to which a command goes; None: no master has its slot."""
        known, address = self.map, command if isinstance(command, Addressed) else None
        if address is not None and address.node:
            return address.node
        if known is None:
            return GIVEN
        owner = known.owners[slot_of_command(command)]
        if owner is not None and address is not None and address.replica and self.reads_replicas:
            return self._reader(known.replicas.get(owner, ())) or owner
        return owner

    def _reader(self, replicas: Sequence[str]) -> str | None:
        """Return this client's replica among some; None: all of them were away a moment ago."""
        if self._shunned:
            now = time.monotonic()
            replicas = [each for each in replicas if self._shunned.get(each, 0.0) < now]
        return replicas[int(self._draw * len(replicas))] if replicas else None

    def split(self, commands: Sequence[Arguments], outcomes: list[Any]) -> list[Part]:
        """Return the parts of a pipeline, one for each node; what no node takes gets its outcome at once."""
        parts: dict[str, Part] = {}
        for position, command in enumerate(commands):
            node = self.node_of(command)
            if node is None:
                self.doubt()
                outcomes[position] = Unsent(ClusterDownError("CLUSTERDOWN no master has the slot of this key"))
                continue
            part = parts.get(node) or parts.setdefault(node, Part(node))
            if command[0] == "WAIT":
                part.waits.append(position)
                continue
            address = command if isinstance(command, Addressed) else None
            reads = address is not None and address.replica and self.map is not None and self.map.cluster
            if address is not None and (address.asking or reads):
                part.add(READONLY if reads else ASKING)
            part.add(command, position)
            if reads:
                part.add(READWRITE)
        for part in parts.values():
            part.end(commands)
        return list(parts.values())

    def learn(self, node: str, outcomes: Sequence[Any]) -> None:
        """Learn from the outcomes of what was sent to a node; each refusal gets its name as ``node``.

        The ``node`` of an ASK is that of the node to ask.
        """
        for outcome in outcomes:
            if is_away(outcome) and self.reads_replicas and node not in self.masters:
                self._shunned[node] = time.monotonic() + SHUNNED
            if isinstance(outcome, Unsent | Unanswered | ClusterDownError) or is_readonly(outcome):
                self.doubt()
            elif isinstance(outcome, MovedError):
                self._move(outcome.slot_id, named(outcome.host, outcome.port, node))
            if isinstance(outcome, RedisError):
                goes_to = isinstance(outcome, AskError)
                outcome.node = named(outcome.host, outcome.port, node) if goes_to else node  # type: ignore[attr-defined]

    def _move(self, slot: int, node: str) -> None:
        self.doubt()
        known = self.map
        if known is not None:
            owners = [*known.owners[:slot], node, *known.owners[slot + 1 :]]
            self.map = replace(known, owners=owners)  # as a whole: others may be in the middle of a pipeline


#: The most nodes that one search asks: those that are away take time.
NODES_A_SEARCH = 8

#: The flags of a replica that Sentinels name, if it cannot be asked.
_DOWN = ("s_down", "o_down", "disconnected")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A command of a search; ``sentinel``: whether its node is a Sentinel."""

    node: str
    command: Arguments
    sentinel: bool = False


#: A search gets the outcome of each inquiry, and returns None, or the outcome of all that waits for its result.
Search: TypeAlias = Generator[Inquiry, Any, Unsent | RedisError | None]


def search(routes: Routes, patience: float = math.inf) -> Search:
    """Search the nodes, and note them in the routes.

    A search that finds no node leaves the routes as they are; they are used if nothing speaks against them. After
    ``patience`` seconds no other node is asked; the next search asks them in another order.
    """
    end, service, own = time.monotonic() + patience, routes.service, None
    try:
        own = routes.begin()
        return (yield from (_nodes(routes, end, own) if service is None else _master(routes, service, end, own)))
    except BaseException:
        routes.doubt()
        raise
    finally:
        if own is not None:
            own.ended = True


def _failed(routes: Routes, why: Unsent | RedisError) -> Unsent | RedisError | None:
    if not routes.stale:
        routes.doubt()
    return why if routes.map is None else None


def _until(end: float, nodes: Sequence[str]) -> Iterator[str]:
    """Yield the first node in any case, and the others until a time by ``monotonic``."""
    for number, each in enumerate(nodes):
        if number and time.monotonic() >= end:
            return
        yield each


def _nodes(routes: Routes, end: float, own: _Searching) -> Search:
    """Search the nodes of a Redis Cluster, if the server is one of these."""
    outcome: Any = None
    for node in _until(end, _candidates(routes)):
        outcome = yield Inquiry(node, ("CLUSTER", "SLOTS"))
        if isinstance(outcome, list):  # from a node of a cluster, which another node may know better
            found = _map_of(outcome, node)
            if found is not None:
                routes.find(found, own)
                return None
            outcome = Unsent(ClusterDownError("CLUSTERDOWN this node knows no master of any slot"))
            continue
        # a server that is busy may yet say that it is in a cluster
        refused = isinstance(outcome, ResponseError) and decide(outcome) is not Decision.WAIT
        if not routes.follows and (refused or not isinstance(outcome, RedisError | Unsent | Unanswered)):
            return (yield from _alone(routes, own))
    if isinstance(outcome, Unsent | RedisError):
        return _failed(routes, outcome)
    return _failed(routes, Unsent(outcome.error if isinstance(outcome, Unanswered) else nonsense(outcome)))


def _candidates(routes: Routes) -> list[str]:
    """Return the nodes to ask: known masters, given addresses, then replicas, each in random order."""
    known = NodeMap([]) if routes.map is None else routes.map
    replicas = [each for some in known.replicas.values() for each in some]
    groups = (known.masters, routes.seeds or (GIVEN,), replicas)
    in_order = [each for some in groups for each in random.sample(some, len(some))]
    return list(dict.fromkeys(in_order))[:NODES_A_SEARCH]


def _alone(routes: Routes, own: _Searching) -> Search:
    """Note that the given server is in no cluster; find its replicas, if they are wanted."""
    if not routes.reads_replicas:
        routes.find(None, own)
        return None
    outcome = yield Inquiry(GIVEN, ("ROLE",))
    if not isinstance(outcome, list):
        known = isinstance(outcome, Unsent | RedisError)
        return _failed(routes, outcome if known else Unsent(ConnectionError(f"ROLE: {_why(outcome)}")))
    listed = outcome[2] if _is_master(outcome) else ()
    replicas = [named(text_in(host), text_in(port), GIVEN) for host, port, _ in listed]
    routes.find(NodeMap.of_one(GIVEN, replicas), own)
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


def _master(routes: Routes, service: Service, end: float, own: _Searching) -> Search:
    """Ask the Sentinels for the master, until one names a server whose ROLE is master: a Sentinel may be behind."""
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
            routes.find(NodeMap.of_one(master, replicas), own, sentinel)
            return None
        refuted.add(master)
        failed.append(f"{sentinel} names {master}: {why}")
    text = f"no Sentinel names a master of {service.name!r} that is one: {'; '.join(failed)}"
    error = Unsent(ConnectionError(text), hopeless=strangers == len(service.sentinels))
    if routes.map is None or refuted.intersection(routes.masters):
        return error
    routes.put_off(own)
    return None


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
