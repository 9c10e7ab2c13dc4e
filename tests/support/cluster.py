"""A Redis Cluster on loopback: masters, each with as many replicas as wanted, and the moving of slots between them."""

from __future__ import annotations

import contextlib
import random
import socket

import redis

from support.servers import PATIENCE, Server, wait_until

#: The ports of nodes, and of their buses 10,000 above: below those that the system gives to clients.
_PORTS = range(11_000, 22_000)
_BUS = 10_000

SLOTS = 16384


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class Node(Server):
    """One node; ``name`` is its address as the client has it, ``id`` its name in the cluster."""

    def choose_port(self) -> int:
        while True:
            port = random.choice(_PORTS)
            if _is_free(port) and _is_free(port + _BUS):
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


class Cluster:
    """A cluster, whose masters share the slots evenly; a context manager. ``config`` goes to all command lines."""

    def __init__(
        self, kind: str = "redis70", *, masters: int = 3, replicas: int = 0, environments=None, **config: str
    ) -> None:
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "5000", "repl-diskless-sync-delay": "0"} | config
        self.nodes: list[Node] = []
        self.kind, self._count = kind, masters
        try:
            for number in range(masters * (1 + replicas)):
                environment = environments[number] if environments else None
                self.nodes.append(Node(kind, environment=environment, **settings))
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
        """Wait until all nodes agree that every slot has a master, and the replicas have their data."""
        wait_until(self._is_whole, "the cluster is not whole")

    def _is_whole(self) -> bool:
        views = set()
        for node in self.nodes:
            if b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                return False
            views.add(str(sorted((each[0], each[1], each[2][1]) for each in node.ask("CLUSTER", "SLOTS"))))
            role = node.ask("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        linked = sum(len(node.ask("ROLE")[2]) for node in self.nodes if node.role() == "master")
        return len(views) == 1 and linked == len(self.nodes) - self._count

    def owner(self, slot: int, asked: Node | None = None) -> Node:
        """Return the master of a slot, as a node has it; None: one that runs."""
        asked = asked or next(each for each in self.nodes if each.process.poll() is None)
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
        source = self.owner(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    @staticmethod
    def move_keys(source: Node, target: Node, keys) -> None:
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 1000 * PATIENCE, "KEYS", *keys)

    def end_move(self, slot: int, target: Node) -> None:
        """Give a slot to the target; the nodes that are away hear of it later."""
        name = target.id
        for node in [target, *(each for each in self.nodes if each is not target)]:
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
        """Bring every slot back to its first master, remove all keys and scripts, forget all statistics."""
        for node in self.nodes:
            if node.role() == "master":
                with node.client() as client:
                    client.flushall()
                    client.script_flush()
                    client.config_resetstat()
        for number, master in enumerate(self.masters):
            for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER", "SLOTS"):
                home = range(max(first, self.first_slot(number)), min(last + 1, self.first_slot(number + 1)))
                for slot in home if port != master.port else ():
                    self.end_move(slot, master)

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
