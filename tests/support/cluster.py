"""A Redis Cluster on loopback: masters, each with as many replicas as wanted, and the moving of slots between them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import redis

from support.servers import PATIENCE, Server, free_port, is_free, wait_until

#: The ports of nodes; those of their buses are 10,000 above, and below those of other servers.
_PORTS = range(11_000, 16_000)
_BUS = 10_000

SLOTS = 16384


def _slots(held: list[str]) -> Iterator[int]:
    """The slots of a view's entry, but for those in brackets."""
    for each in held:
        if each[0] != "[":
            first, _, last = each.partition("-")
            yield from range(int(first), int(last or first) + 1)


class Node(Server):
    """One node; ``name`` is its address as the client has it, ``id`` its name in the cluster."""

    suspended = False

    def suspend(self) -> None:
        self.suspended = True
        super().suspend()

    def resume(self) -> None:
        super().resume()
        self.suspended = False

    @property
    def runs(self) -> bool:
        return self.process.poll() is None and not self.suspended

    def choose_port(self) -> int:
        while True:
            port = free_port(_PORTS)
            if is_free(port + _BUS):
                return port

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return self.ask("CLUSTER", "MYID").decode()

    def ask(self, *command: object):
        with self.client() as client:
            return client.execute_command(*command, NEVER_DECODE=True)

    def role(self) -> str:
        return self.ask("ROLE")[0].decode()

    def view(self) -> dict[int, tuple[str, str, list[str]]]:
        """What it knows of each node, by its port: state and epoch, and its slots (in brackets those on the move)."""
        return {port: (f"{flags} {link}", epoch, held) for port, flags, _, epoch, link, *held in self._known()}

    def has_asked(self, other: Node) -> bool:
        """Whether a heartbeat has gone to another node, which has not answered it."""
        return any(port == other.port and sent != "0" for port, _, sent, *_ in self._known())

    def _known(self) -> Iterator[list]:
        for line in self.ask("CLUSTER", "NODES").decode().splitlines():
            _, address, flags, _, sent, _, *rest = line.split()
            yield [int(re.search(r":(\d+)", address)[1]), flags.removeprefix("myself,"), sent, *rest]


class Cluster:
    """A cluster, whose masters share the slots evenly; a context manager. ``config`` goes to all command lines.

    ``kinds`` are those of the nodes, if they differ.
    """

    def __init__(
        self, kind: str = "redis70", *, masters: int = 3, replicas: int = 0, environments=None, kinds=None, **config
    ) -> None:
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "5000", "repl-diskless-sync-delay": "0"} | config
        self.nodes: list[Node] = []
        self.kind, self._count = kind, masters
        try:
            for number in range(masters * (1 + replicas)):
                environment = environments[number] if environments else None
                self.nodes.append(Node(kinds[number] if kinds else kind, environment=environment, **settings))
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def masters(self) -> list[Node]:
        """The nodes that were the masters at first."""
        return self.nodes[: self._count]

    def replicas_of(self, node: Node) -> list[Node]:
        """The nodes that were its replicas at first."""
        return self.nodes[self._count + self.nodes.index(node) :: self._count]

    @property
    def url(self) -> str:
        """The address of one of its nodes."""
        return self.nodes[0].url

    @property
    def cluster_url(self) -> str:
        return f"redis+cluster://{','.join(each.name for each in self.nodes)}"

    def first_slot(self, number: int) -> int:
        return -(-SLOTS * number // self._count)

    def _join(self) -> None:
        first = self.nodes[0]
        for number, node in enumerate(self.masters):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", self.first_slot(number), self.first_slot(number + 1) - 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", first.port)
        wait_until(lambda: all(self._knows(node) for node in self.nodes), "the nodes do not meet")
        for master in self.masters:
            for replica in self.replicas_of(master):
                replica.ask("CLUSTER", "REPLICATE", master.id)
        self.wait_until_whole()

    def _knows(self, node: Node) -> bool:
        """Whether a node has shaken hands with all others."""
        listed = node.ask("CLUSTER", "NODES").decode().splitlines()
        return len(listed) == len(self.nodes) and not any("handshake" in line or "noaddr" in line for line in listed)

    def wait_until_whole(self) -> None:
        """Wait until all nodes agree that every slot has a master, and the replicas have their data and are listed."""
        wait_until(self._is_whole, "the cluster is not whole")

    def _is_whole(self) -> bool:
        views = set()
        for node in self.nodes:
            if b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                return False
            listed = node.ask("CLUSTER", "SLOTS")
            views.add(str(sorted((each[0], each[1], each[2][1]) for each in listed)))
            if any(len(each) - 3 != len(self.nodes) // self._count - 1 for each in listed):
                return False
            role = node.ask("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        linked = sum(len(node.ask("ROLE")[2]) for node in self.nodes if node.role() == "master")
        return len(views) == 1 and linked == len(self.nodes) - self._count

    def owner(self, slot: int, asked: Node | None = None) -> Node:
        """Return the master of a slot, as a node has it; None: one that runs."""
        asked = asked or next(each for each in self.nodes if each.runs)
        for first, last, (_, port, *_), *_ in asked.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(each for each in self.nodes if each.port == port)
        raise LookupError(slot)

    def replica_of(self, master: Node) -> Node:
        """Return the replica that a master has now."""
        _, _, ((_, port, _), *_) = master.ask("ROLE")
        return next(each for each in self.nodes if each.port == int(port))

    def begin_move(self, slot: int, target: Node) -> Node:
        """Begin the move of a slot; return its master until ``end_move``."""
        source = self.owner(slot, target)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    @staticmethod
    def move_keys(source: Node, target: Node, keys) -> None:
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 1000 * PATIENCE, "KEYS", *keys)

    def end_move(self, slot: int, target: Node) -> None:
        """Give a slot to the target; the nodes that are away hear of it later.

        The target takes a new epoch: with an old one a late heartbeat of the last master would win, for good.
        """
        name = target.id
        target.ask("CLUSTER", "SETSLOT", slot, "NODE", name)
        target.ask("CLUSTER", "BUMPEPOCH")
        for node in self.nodes:
            if node is not target and not node.suspended:
                with contextlib.suppress(redis.ConnectionError, redis.ResponseError):  # a replica refuses
                    node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move(self, slot: int, target: Node) -> None:
        """Move a slot with all its keys."""
        source = self.begin_move(slot, target)
        if source is target:
            return
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.move_keys(source, target, keys)
        self.end_move(slot, target)

    def tidy(self) -> None:
        """Remove all keys and scripts, forget all statistics, bring every slot back; of masters without replicas."""
        for node in self.nodes:
            with node.client() as client:
                client.flushall()
                client.script_flush()
                client.config_resetstat()
        if not self._is_as_at_first():
            for slot in self._away():
                self._bring_home(slot)
            wait_until(self._is_as_at_first, "the nodes do not agree on the slots")
            self.wait_until_whole()

    def _is_as_at_first(self) -> bool:
        """Whether the first masters have their slots, none is on the move, and all nodes know that and each epoch."""
        views = [node.view() for node in self.nodes]
        if any(each != views[0] for each in views):
            return False
        return {port: (state, held) for port, (state, _, held) in views[0].items()} == {
            each.port: ("master connected", [f"{self.first_slot(number)}-{self.first_slot(number + 1) - 1}"])
            for number, each in enumerate(self.masters)
        }

    def _away(self) -> set[int]:
        """Return the slots on the move, and those that some node does not give to their first master."""
        home = set(range(SLOTS))
        for node in self.nodes:
            for port, (*_, held) in node.view().items():
                others = {slot for slot in home if self._home(slot).port != port}
                moving = {int(each[1:].partition("-")[0]) for each in held if each[0] == "["}
                home &= others.union(_slots(held)) - moving
        return set(range(SLOTS)) - home

    def _home(self, slot: int) -> Node:
        return self.masters[slot * self._count // SLOTS]

    def _bring_home(self, slot: int) -> None:
        home, other = self._home(slot), next(each for each in self.nodes if each is not self._home(slot))
        for node in self.nodes:
            node.ask("CLUSTER", "SETSLOT", slot, "STABLE")
        with contextlib.suppress(redis.ResponseError):  # it has the slot; else it will tell the others at once
            home.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", other.id)
        self.end_move(slot, home)

    def sizes(self) -> list[int]:
        """Return the number of keys of each of the first masters."""
        return [node.ask("DBSIZE") for node in self.masters]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.stop()
