"""A master, its replicas and Sentinels on loopback, as processes that a test may kill."""

from __future__ import annotations

import contextlib
import socket
import threading

import hiredis
import redis

from support.servers import PATIENCE, Server, wait_until

SERVICE = "crawl"

#: ms after which Sentinels take a server that does not answer for dead. With 500 they also do so with one that has just
#: taken over, and let another take over.
DOWN_AFTER = 2000


def follow(replica: Server, master: Server) -> None:
    """Make a server a replica, and wait until it has all the master has."""
    with master.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    with replica.client() as client:
        client.replicaof("127.0.0.1", master.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica does not follow")
        wait_until(lambda: attached(master, replica), "the master does not know its replica")
    catch_up(master, replica)


def catch_up(master: Server, *replicas: Server) -> None:
    """Wait until replicas have all that their master has now, and hear of what it does from now on.

    After a copy of everything a master sends nothing before the replica's next acknowledgement, up to a second later.
    So something is published first: only when that has arrived does the stream run.
    """
    master.ask("publish", "catch-up", "")
    offset = master.ask("info", "replication")["master_repl_offset"]
    for each in replicas:
        with each.client() as client:
            wait_until(
                lambda there=client: there.info("replication")["slave_repl_offset"] >= offset,
                "the replica does not catch up",
            )


def attached(master: Server, *replicas: Server) -> bool:
    """Whether a master has these replicas, and no others."""
    with master.client() as client:
        return sorted(int(port) for _, port, _ in client.execute_command("ROLE")[2]) == sorted(
            each.port for each in replicas
        )


def replica_of(master: Server, kind: str | None = None, **config: str) -> Server:
    """Start a replica of a server."""
    secret = master.config.get("requirepass")
    with_secret = {"masterauth": secret, "requirepass": secret} if secret else {}
    made = Server(kind or master.kind, **with_secret | config)
    try:
        follow(made, master)
    except BaseException:
        made.stop()
        raise
    return made


class Sentinel(Server):
    """One Sentinel that watches a master; its own configuration file is in its folder."""

    def __init__(self, master: Server, quorum: int, password: str = "") -> None:
        self._watched = master, quorum
        super().__init__("redis70", **({"requirepass": password} if password else {}))

    def start(self, *, answers: bool = True) -> None:
        master, quorum = self._watched
        secret, own = master.config.get("requirepass"), self.config.get("requirepass")
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}",
            f"sentinel failover-timeout {SERVICE} 3000",
            *([f"sentinel auth-pass {SERVICE} {secret}"] if secret else []),
            *([f"sentinel sentinel-pass {own}", f"requirepass {own}"] if own else []),
        ]
        file = self.folder / "sentinel.conf"
        if not file.exists():  # it writes into it what it learns
            file.write_text("\n".join(lines) + "\n")
        super().start(answers=answers)

    def command(self, port: int) -> list[str]:
        file = self.folder / "sentinel.conf"
        return [self.program, str(file), "--port", str(port), "--bind", "127.0.0.1", "--sentinel"]


class Told:
    """Answers as a Sentinel does; a test says who is the master, and what it tells its subscribers. A context manager.

    Attributes:
        master: the server that it names.
        refuses: whether it refuses subscriptions.
        answers: whether it answers, or lets who asks for the master wait.
        asked: whether it was asked for the master.
    """

    def __init__(self, master: Server) -> None:
        self.master, self.refuses = master, False
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()
        self._subscribed: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def subscriptions(self) -> int:
        return len(self._subscribed)

    def tell(self, channel: str, text: str) -> None:
        for client in self._subscribed:
            with contextlib.suppress(OSError):  # it has left
                client.sendall(hiredis.pack_command(("message", channel, text)))

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Redis has it
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        asked = hiredis.Reader()
        with client, contextlib.suppress(OSError):
            while received := client.recv(65_536):
                asked.feed(received)
                while (command := asked.gets()) is not False:
                    client.sendall(self._answer(client, *command))

    def _answer(self, client: socket.socket, name: bytes, *rest: bytes) -> bytes:
        if name == b"SENTINEL":
            self.asked.set()
            self.answers.wait(PATIENCE)
            return hiredis.pack_command(("127.0.0.1", str(self.master.port)))
        if name != b"SUBSCRIBE":
            return b"+OK\r\n"
        if self.refuses:
            return b"-NOPERM this user has no permissions to run the 'subscribe' command\r\n"
        self._subscribed.append(client)
        return b"".join(hiredis.pack_command(("subscribe", each, "1")) for each in rest)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._listener.close()


class Watched:
    """A master with replicas and Sentinels; a context manager."""

    def __init__(self, replicas: int = 1, sentinels: int = 3, password: str = "", sentinel_password: str = "") -> None:
        self.password, self.sentinel_password = password, sentinel_password
        with contextlib.ExitStack() as started:
            config = {"requirepass": password, "masterauth": password} if password else {}
            self.master = started.enter_context(Server("redis70", **config))
            self.replicas = [started.enter_context(replica_of(self.master)) for _ in range(replicas)]
            quorum = sentinels // 2 + 1
            self.sentinels = [
                started.enter_context(Sentinel(self.master, quorum, sentinel_password)) for _ in range(sentinels)
            ]
            wait_until(self._known, "the Sentinels do not know each other")
            self._stop = started.pop_all()

    def url_of(self, *sentinels: Server, service: str = SERVICE, **options: object) -> str:
        """The address with these Sentinels, or all."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels or self.sentinels)
        login = f":{self.password}@" if self.password else ""
        options |= {"sentinel_password": self.sentinel_password} if self.sentinel_password else {}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis+sentinel://{login}{hosts}/{service}/0{f'?{query}' if query else ''}"

    @property
    def url(self) -> str:
        return self.url_of()

    @property
    def present(self) -> Server:
        """The master as the first Sentinel that runs names it."""
        teller = next(each for each in self.sentinels if each.process.poll() is None)
        with teller.client() as client:
            port = int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
        return next(each for each in (self.master, *self.replicas) if each.port == port)

    def present_by_role(self) -> Server:
        """The server that says itself that it is the master."""
        for each in (self.master, *self.replicas):
            with each.client() as client:
                if client.execute_command("ROLE")[0] == b"master":
                    return each
        raise LookupError("there is no master")

    def failover(self) -> Server:
        """Let a replica take over while the master lives; return the new master once it is one."""
        before = self.present
        self.begin_failover()
        return self.wait_for_another(before)

    def begin_failover(self) -> None:
        """Have the first Sentinel begin a failover, as soon as it can."""
        with self.sentinels[0].client() as client:
            wait_until(lambda: self._accepted(client), "the Sentinels do not fail over")

    def wait_for_another(self, before: Server) -> Server:
        """Wait until another server is the master, says so, and all Sentinels agree."""
        wait_until(lambda: self.present is not before, "nobody takes over")
        after = self.present
        wait_until(lambda: all(self._names(each) == after.port for each in self.sentinels), "a Sentinel disagrees")
        with after.client() as client:
            wait_until(lambda: client.execute_command("ROLE")[0] == b"master", "it does not become the master")
        return after

    def others(self, server: Server) -> list[Server]:
        return [each for each in (self.master, *self.replicas) if each is not server]

    def whole(self) -> bool:
        """Whether all servers run, and all but one are replicas of that, as the Sentinels know."""
        with contextlib.suppress(redis.RedisError):
            return attached(self.present, *self.others(self.present))
        return False

    def clean(self) -> None:
        """Start what was killed, and remove all keys."""
        for each in (*self.sentinels, self.master, *self.replicas):
            if each.process.poll() is not None:
                each.start()
            each.resume()
        for each in self.others(self.present):
            follow(each, self.present)  # Sentinels would see to that after eight seconds
        wait_until(self.whole, "the replicas do not come back", patience=60)
        wait_until(lambda: self._known(all_well=True), "the Sentinels do not find all well", patience=60)
        self.present.ask("flushall")
        catch_up(self.present, *self.others(self.present))
        for each in (self.master, *self.replicas):
            with each.client() as client:
                client.script_flush()
                client.config_resetstat()

    def stop(self) -> None:
        self._stop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def _accepted(self, client: redis.Redis) -> bool:
        try:
            return bool(client.execute_command("SENTINEL", "FAILOVER", SERVICE))
        except redis.ResponseError as refusal:
            if not str(refusal).startswith(("INPROG", "NOGOODSLAVE")):
                raise
            return False  # one runs already, or no replica is good enough yet

    def _names(self, sentinel: Server) -> int | None:
        if sentinel.process.poll() is not None:
            return self.present.port
        with sentinel.client() as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _known(self, *, all_well: bool = False) -> bool:
        for each in self.sentinels:
            with each.client() as client:
                state = client.sentinel_master(SERVICE)
                replicas = [found["flags"] for found in client.sentinel_slaves(SERVICE)]
            expected = (len(self.replicas), len(self.sentinels) - 1, self.present.port)
            if (int(state["num-slaves"]), int(state["num-other-sentinels"]), int(state["port"])) != expected:
                return False
            if all_well and (state["flags"], *replicas) != ("master", *(["slave"] * len(replicas))):
                return False
        return True
