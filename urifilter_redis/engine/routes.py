"""The routes: the node of each slot, as far as this process knows.

A plain server is one node that has all slots. A command that was sent to a wrong node has certainly not run. So routes
may be wrong for a moment: the refusal corrects them.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError

from urifilter_redis.protocol.keys import SLOTS
from urifilter_redis.protocol.outcomes import Unanswered, Unsent, is_away, is_readonly
from urifilter_redis.protocol.routing import ASKING, READONLY, READWRITE, Addressed, slot_of_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.protocol.calls import Arguments

__all__ = ["GIVEN", "NodeMap", "Part", "Routes", "Service", "named"]

#: The name of the server whose address was given.
GIVEN = ""

#: Seconds for which Sentinels, or a master with its replicas, are believed: nothing else would tell of a replica that
#: is new, or tell a process that was idle of another master.
BELIEVED = 10.0

#: Seconds for which a replica that did not answer is not asked again, as each attempt may last ``Timeouts.reply``.
SHUNNED = 10.0


def named(host: str, port: int | str, teller: str) -> str:
    """Return a node's name; a node that leaves out its host has that of the node which tells of it."""
    return f"{host if host not in {'', '?'} else teller.rpartition(':')[0]}:{port}"


@dataclass(frozen=True, slots=True)
class Service:
    """A master that Sentinels watch.

    Attributes:
        name: the Sentinels' name for it.
        sentinels: their addresses as ``host:port``.
    """

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
        positions: for each of them its places in the pipeline: none if it was added here, several of a WAIT.
        waits: the places of every WAIT.
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
        """Put the outcomes into the places that their commands have in the pipeline."""
        for outcome, positions in zip(outcomes, self.positions, strict=True):
            for position in positions:
                into[position] = outcome


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
        alone: whether there is the given server only.
        stale: whether the map is wrong, as a refusal or a failure suggests.
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
        self.stale = not alone
        self.teller = ""
        self._asked, self._believed = -math.inf, BELIEVED
        self._told = 0
        self._shunned: dict[str, float] = {}
        self._draw = random.random()  # noqa: S311 - spreads clients over the replicas

    @property
    def must_search(self) -> bool:
        """Whether the nodes must be asked before the next pipeline."""
        if self.stale or (self.map is None and not self.alone):
            return True
        return (self.service is not None or self.reads_replicas) and time.monotonic() > self._asked + self._believed

    def ask(self) -> None:
        """Note that the nodes are asked now, so that no other thread asks them, too."""
        self.stale, self._asked = False, time.monotonic()

    def hear(self, teller: str, told: int, believed: float | None) -> None:
        """Note what Sentinels have told of a failover.

        Args:
            teller: the Sentinel that told last; it is asked first.
            told: how often a failover has ended; another number than before: the Sentinels must be asked.
            believed: the seconds for which Sentinels are believed; None: ``BELIEVED``.
        """
        self._believed = BELIEVED if believed is None else believed
        if told != self._told:
            self._told, self.teller, self.stale = told, teller, True

    def know(self, found: NodeMap) -> None:
        """Note the nodes. One that says nothing new leaves the map that is known in its place (see ``Replication``)."""
        if found != self.map:
            self.map = found

    @property
    def follows(self) -> bool:
        """Whether another server may take the place of a master, and is found then."""
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
                self.stale = True
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
            if is_away(outcome):
                self._shun(node)
            if isinstance(outcome, Unsent | Unanswered | ClusterDownError) or is_readonly(outcome):
                self.stale = True
            elif isinstance(outcome, MovedError):
                self._move(outcome.slot_id, named(outcome.host, outcome.port, node))
            if isinstance(outcome, RedisError):
                goes_to = isinstance(outcome, AskError)
                outcome.node = named(outcome.host, outcome.port, node) if goes_to else node  # type: ignore[attr-defined]

    def _shun(self, node: str) -> None:
        """Note that a node does not answer, if it is a replica."""
        if self.reads_replicas and node not in self.masters:
            self._shunned[node] = time.monotonic() + SHUNNED

    def _move(self, slot: int, node: str) -> None:
        self.stale, known = True, self.map
        if known is not None:
            owners = [*known.owners[:slot], node, *known.owners[slot + 1 :]]
            self.map = replace(known, owners=owners)  # as a whole: others may be in the middle of a pipeline
