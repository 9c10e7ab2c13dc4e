"""A run: crawlers insert while slots move between the masters and a master is killed, so that its replica takes over.

Each round kills a master whose replica has been cut off for a moment, so that the master acknowledges what the replica
does not get. What was lost is known exactly: the dead master's append-only file has all that it acknowledged, and the
replica is asked what it has before it is promoted, when nobody can write to it.
"""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support import cluster_crawler, servers
from support.cluster import Cluster, Node
from support.cluster_crawler import ask, shards_of, uri_of
from support.servers import Server
from support.shard_keys import shard_key
from support.tags import slot_of
from urifilter_redis import Timeouts, UriFilter

SHARDS = 6
CRAWLERS = 8

#: Eight interpreters start beside six servers: on a busy machine that alone takes half a minute.
wait_until = functools.partial(servers.wait_until, patience=120)

CONFIG = {
    "cluster-node-timeout": "5000",
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "appendfsync": "no",
    "auto-aof-rewrite-percentage": "0",
}


@dataclass
class Counts:
    """How the run ended; the numbers of each kind are shown on failure."""

    asked: int
    moved: int
    unreplicated: int
    wrong: dict[int, tuple[int, int]] = field(repr=False)  # number: times told new, times that it had to be


class Run:
    """Three masters with a replica each, crawlers, and a thread that moves slots; a context manager."""

    def __init__(self, folder: Path, wait_replicas: int, seed: int) -> None:
        self._folder, self._draw = folder, random.Random(seed)
        self._cluster = Cluster(replicas=1, **CONFIG)
        self._url = f"{self._cluster.cluster_url}?wait_replicas={wait_replicas}"
        self._news = UriFilter.create(
            "news", redis=self._url, capacity=400_000, error_rate=1e-8, shards=SHARDS, timeouts=Timeouts(total=1)
        )
        self._lost: Counter[int] = Counter()
        self._moved, self._moving, self._shunned = 0, threading.Lock(), set()
        self._ended = threading.Event()
        self._mover = threading.Thread(target=self._move)
        together = str(int(wait_replicas > 0))
        self._crawlers = [
            subprocess.Popen(
                [sys.executable, cluster_crawler.__file__, self._url, "news", str(number), together, str(folder)]
            )
            for number in range(CRAWLERS)
        ]
        wait_until(
            lambda: all((folder / str(number)).exists() for number in range(CRAWLERS)), "a crawler does not begin"
        )
        self._mover.start()

    def round(self, seconds: float) -> None:
        """Let the crawlers work for a while, then kill a master, and bring it back as a replica."""
        time.sleep(seconds)
        master, replica, held = self._choose()
        replica.suspend()
        master.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        time.sleep(0.5)
        master.kill()
        replica.resume()
        wait_until(lambda: replica.ask("INFO", "replication")["master_link_status"] == "down", "it has its master yet")
        time.sleep(1)  # until what the master has acknowledged is logged
        (told, _), dumped = self._logged(), self._dumped(replica, held)
        assert replica.role() == "slave", "it was promoted too early to know its data"
        replicated = self._contained(held, dumped)
        acknowledged = self._contained(held, self._of_file(master))
        self._lost.update(each for each in told if each in acknowledged - replicated)
        wait_until(lambda: replica.role() == "master", "the replica does not take over")
        time.sleep(seconds / 2)
        master.start()
        wait_until(lambda: master.ask("INFO", "persistence")["loading"] == 0, "it does not load its file")
        self._end(master)

    def stall(self, seconds: float) -> None:
        """Let the crawlers work for a while, then stop a master until its replica has its place, and let it go on.

        For a moment it takes itself for the master yet. What it answers then, and what it had not passed on, is lost.
        """
        time.sleep(seconds)
        master, replica, _ = self._choose()
        master.suspend()
        wait_until(lambda: replica.role() == "master", "the replica does not take over")
        time.sleep(seconds / 2)
        master.resume()
        self._end(master)

    def _choose(self) -> tuple[Node, Node, list[int]]:
        """Return a master from which and to which nothing moves now, its replica, and its shards."""
        cluster, shards = self._cluster, {number: self._slot(number) for number in range(SHARDS)}
        with self._moving:  # keys on their way to a master that dies are lost, whoever waits for replicas
            master = cluster.owner(self._draw.choice([*shards.values()]))
            self._shunned.add(master)
        replica = cluster.replica_of(master)
        held = [number for number, slot in shards.items() if cluster.owner(slot) is master]
        wait_until(lambda: self._has(replica, held), "the replica does not get the moved slots")
        return master, replica, held

    def _end(self, master: Node) -> None:
        wait_until(lambda: master.role() == "slave", "it does not become a replica")
        self._cluster.wait_until_whole()
        self._shunned.clear()

    def finish(self) -> Counts:
        """Stop the crawlers, ask for everything once more, and count."""
        (self._folder / "stop").touch()
        for each in self._crawlers:
            assert each.wait(cluster_crawler.PATIENCE * 2) == 0
        self._ended.set()
        self._mover.join()
        told, asked = self._logged()
        numbers = sorted(asked)
        for start in range(0, len(numbers), 500):
            told.update(ask(self._news, numbers[start : start + 500]))
        wrong = {each: (told[each], 1 + self._lost[each]) for each in numbers if told[each] != 1 + self._lost[each]}
        return Counts(len(asked), self._moved, sum(self._lost.values()), wrong)

    def _slot(self, shard: int) -> int:
        key = shard_key("news", shard, SHARDS, "meta")
        return slot_of(key[key.index("{") + 1 : key.index("}")])

    def _move(self) -> None:
        """Move the slots of shards, and others, between masters that are there to stay."""
        draw = random.Random(self._draw.random())
        while not self._ended.wait(0.2):
            with self._moving:
                masters = [each for each in self._cluster.nodes if self._stays(each)]
                slot = self._slot(draw.randrange(SHARDS))
                source = self._cluster.owner(slot, masters[0])  # one that was stopped may not know it yet
                others = [each for each in masters if each is not source]
                if source in masters and others:
                    self._cluster.move(slot, draw.choice(others))
                    self._moved += 1

    def _stays(self, node: Node) -> bool:
        if node in self._shunned or not node.runs:
            return False
        role = node.ask("ROLE")
        return role[0] == b"master" and bool(role[2])

    def _has(self, node: Node, shards: list[int]) -> bool:
        keys = node.ask("KEYS", "*:meta")
        return all(shard_key("news", each, SHARDS, "meta").encode() in keys for each in shards)

    def _logged(self) -> tuple[Counter[int], set[int]]:
        """Return how often each number was told new, and the numbers that were asked about."""
        told: Counter[int] = Counter()
        asked: set[int] = set()
        for seed in range(CRAWLERS):
            for line in (self._folder / str(seed)).read_text().splitlines(keepends=True):
                kind, *numbers = line.split()
                if line.endswith("\n"):
                    (told if kind == "!" else asked).update(map(int, numbers))
        return told, asked

    def _dumped(self, node: Node, shards: list[int]) -> dict[bytes, bytes]:
        """Return the keys of some shards."""
        with node.client() as client:
            client.readonly()
            keys = [key for each in shards for key in client.keys(shard_key("news", each, SHARDS, "*"))]
            return {key: value for key in keys if (value := client.dump(key)) is not None}

    def _of_file(self, master: Node) -> dict[bytes, bytes]:
        """Return the keys in the append-only file of a master that was killed."""
        copied = self._folder / f"aof-{time.monotonic()}"
        shutil.copytree(master.folder / "appendonlydir", copied / "appendonlydir")
        with Server(self._cluster.kind, appendonly="yes", dir=str(copied)) as loaded, loaded.client() as client:
            wait_until(lambda: client.info("persistence")["loading"] == 0, "it does not load the file")
            return {key: client.dump(key) for key in client.keys("urifilter:{news*")}

    def _contained(self, held: list[int], dumped: dict[bytes, bytes]) -> set[int]:
        """Return the numbers of shards that are in bitmaps; the keys of other shards may be missing there."""
        numbers = shards_of(self._news.config, self._logged()[1])
        with Server(self._cluster.kind) as scratch:
            with scratch.client() as client:
                for key, value in (self._others(held) | dumped).items():
                    client.restore(key, 0, value, replace=True)
            with UriFilter.open("news", redis=scratch.url) as news:
                wanted = [number for shard in held for number in numbers[shard]]
                seen = news.contains_many([uri_of(each) for each in wanted])
        return {number for number, there in zip(wanted, seen, strict=True) if there}

    def _others(self, held: list[int]) -> dict[bytes, bytes]:
        """Return the keys of the other shards, so that a filter can be opened."""
        found: dict[bytes, bytes] = {}
        with self._moving:
            for shard in set(range(SHARDS)) - {*held}:
                found |= self._dumped(self._cluster.owner(self._slot(shard)), [shard])
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._mover.join()
        for each in self._crawlers:
            each.kill()
            each.wait()
        self._news.close()
        self._cluster.stop()
