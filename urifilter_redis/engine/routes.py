"""The routes: the node of each slot, as far as this process knows.

A plain server is one node that has all slots. A command that was sent to a wrong node has certainly not run. So routes
may be wrong for a moment: the refusal corrects them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError

from urifilter_redis.protocol.keys import SLOTS
from urifilter_redis.protocol.outcomes import Unanswered, Unsent, is_readonly
from urifilter_redis.protocol.routing import ASKING, READONLY, READWRITE, Addressed, slot_of_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.protocol.calls import Arguments

__all__ = ["GIVEN", "NodeMap", "Part", "Routes", "Service", "named"]

#: The name of the server whose address was given.
GIVEN = ""


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
        positions: for each of them its place in the pipeline; None: it was added here.
    """

    node: str
    commands: list[Arguments] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)

    def add(self, position: int | None, command: Arguments) -> None:
        """Add a command."""
        self.commands.append(command)
        self.positions.append(position)

    def place(self, outcomes: Sequence[Any], into: list[Any]) -> None:
        """Put the outcomes into the places that their commands have in the pipeline."""
        for outcome, position in zip(outcomes, self.positions, strict=True):
            if position is not None:
                into[position] = outcome


class Routes:
    """The routes of one client. Threads and event loops share them without a lock: each change is one step.

    A node is named by its address, ``host:port``; ``GIVEN`` is the server whose address was given.

    Args:
        seeds: addresses of nodes of a Redis Cluster, ``host:port``; none: the given server may be such a node.
        service: the master that Sentinels watch; None: there are no Sentinels.
        alone: whether it is known that there is the given server only.
        reads_replicas: whether commands that a replica may answer go to replicas.

    Attributes:
        map: the nodes as they are known; None: nothing is known, or there is the given server only.
        alone: whether there is the given server only.
        stale: whether the map is wrong, as a refusal or a failure suggests.
    """

    def __init__(
        self,
        seeds: Sequence[str] = (),
        service: Service | None = None,
        *,
        alone: bool = False,
        reads_replicas: bool = False,
    ) -> None:
        self.seeds, self.service, self.reads_replicas = tuple(seeds), service, reads_replicas
        self.map: NodeMap | None = None
        self.alone = alone
        self.stale = not alone
        self._draw = random.random()  # noqa: S311 - spreads clients over the replicas

    @property
    def must_search(self) -> bool:
        """Whether the nodes must be asked before the next pipeline."""
        return self.stale or (self.map is None and not self.alone)

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
            replicas = known.replicas.get(owner) or (owner,)
            return replicas[int(self._draw * len(replicas))]
        return owner

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
            address = command if isinstance(command, Addressed) else None
            reads = address is not None and address.replica and self.map is not None and self.map.cluster
            if address is not None and (address.asking or reads):
                part.add(None, READONLY if reads else ASKING)
            part.add(position, command)
            if reads:
                part.add(None, READWRITE)
        return list(parts.values())

    def learn(self, node: str, outcomes: Sequence[Any]) -> None:
        """Learn from the outcomes of what was sent to a node; each refusal gets its name as ``node``.

        The ``node`` of an ASK is that of the node to ask.
        """
        for outcome in outcomes:
            if isinstance(outcome, Unsent | Unanswered | ClusterDownError) or is_readonly(outcome):
                self.stale = True
            elif isinstance(outcome, MovedError):
                self._move(outcome.slot_id, named(outcome.host, outcome.port, node))
            if isinstance(outcome, RedisError):
                goes_to = isinstance(outcome, AskError)
                outcome.node = named(outcome.host, outcome.port, node) if goes_to else node  # type: ignore[attr-defined]

    def _move(self, slot: int, node: str) -> None:
        self.stale, known = True, self.map
        if known is not None:
            owners = [*known.owners[:slot], node, *known.owners[slot + 1 :]]
            self.map = replace(known, owners=owners)  # as a whole: others may be in the middle of a pipeline
