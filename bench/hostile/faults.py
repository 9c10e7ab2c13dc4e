"""What each fault does, and how it ends."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterator

import redis
from support.proxy import Fault as Broken
from support.proxy import at_random
from support.servers import Server

from bench.hostile.schedule import CLIENT_CLOCKS, SERVER_CLOCKS, Fault
from bench.hostile.stage import Stage

#: The share of calls that the proxies break: at all times, and while the network is bad.
USUAL, BAD = 0.02, 0.3

#: What stands in the place of the archive while it is away: nothing, an empty folder as where nothing is mounted, or a
#: file.
IN_ITS_PLACE = ("nothing", "a folder", "a file")


class Faults:
    """Does faults to the stage at their times, and ends them."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._seed = stage, seed
        self._numbers = itertools.count()
        self._network(USUAL)

    def run(self, faults: list[Fault], seconds: float, each: Callable[[], None]) -> None:
        """Do all of them; call ``each`` several times a second; return after so many seconds of the run."""
        due: list[tuple[float, int, Fault, Iterator[None] | None]] = []
        for fault in faults:
            heapq.heappush(due, (fault.at, next(self._numbers), fault, None))
        while (now := time.monotonic() - self._stage.start) < seconds or due:
            each()
            if not due or due[0][0] > now:
                time.sleep(0.05)
                continue
            _, _, fault, going = heapq.heappop(due)
            if going is None:
                self._say(fault, done=False)
                going = self._doing(fault.kind)(fault)
                next(going)
                heapq.heappush(due, (fault.until, next(self._numbers), fault, going))
            else:
                with contextlib.suppress(StopIteration):
                    next(going)
                self._say(fault, done=True)

    def _doing(self, kind: str) -> Callable[[Fault], Iterator[None]]:
        """Return the method that does a kind of fault: one for each, but for those of processes."""
        one, _, whose = kind.partition(" ")
        if one in {"kill", "stop"} and whose in {"a client", "the worker", "the service"}:
            kind = one
        method: Callable[[Fault], Iterator[None]] = getattr(self, kind.replace("'s", "").replace(" ", "_"))
        return method

    def _say(self, fault: Fault, *, done: bool) -> None:
        self._stage.journal.say("fault", kind=fault.kind, subject=fault.subject, done=done, chosen=fault.chosen)

    def _network(self, share: float) -> None:
        for number, proxy in enumerate(self._stage.proxies):
            proxy.plan = at_random(self._seed + number, share)

    def _admin(self, *commands: tuple[object, ...]) -> bool:
        """Send commands to the server itself, or to all masters; return whether all were done."""
        try:
            for server in self._stage.servers:
                with server.client(socket_timeout=10) as client:
                    for command in commands:
                        client.execute_command(*command)
        except redis.RedisError:
            return False
        return True

    def _one_server(self, fault: Fault) -> Server:
        """Return the server, or one of the masters."""
        return self._stage.servers[fault.chosen % len(self._stage.servers)]

    def kill_the_server(self, fault: Fault) -> Iterator[None]:
        """SIGKILL, and start it again with what is in its append-only file."""
        server = self._one_server(fault)
        server.kill()
        yield
        server.start()

    def stop_the_server(self, fault: Fault) -> Iterator[None]:
        """SIGSTOP."""
        server = self._one_server(fault)
        server.suspend()
        yield
        server.resume()

    def set_the_server_clock(self, fault: Fault) -> Iterator[None]:
        """Set it ahead or back, and right again."""
        self._set_clock("server", SERVER_CLOCKS[fault.chosen % len(SERVER_CLOCKS)])
        yield
        self._set_clock("server", 0)

    def _set_clock(self, name: str, ahead: int) -> None:
        if name == "server":
            self._stage.journal.say("clock", ahead=ahead)
        self._stage.clocks[name].ahead(ahead)

    def flush_the_scripts(self, _: Fault) -> Iterator[None]:
        """SCRIPT FLUSH."""
        self._admin(("SCRIPT", "FLUSH"))
        yield

    def flush_all(self, _: Fault) -> Iterator[None]:
        """FLUSHALL; the worker, the service and the clients restore what has an archive."""
        self._stage.journal.say("flush", done=False)
        self._admin(("FLUSHALL",))
        self._stage.journal.say("flush", done=True)
        yield

    def kill_the_connections(self, _: Fault) -> Iterator[None]:
        """CLIENT KILL of all."""
        self._admin(("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        yield

    def out_of_memory(self, _: Fault) -> Iterator[None]:
        """Let maxmemory be reached, and raise it."""
        self._admin(("CONFIG", "SET", "maxmemory", "1mb"))
        yield
        self._admin(("CONFIG", "SET", "maxmemory", "0"))

    def disk_full(self, _: Fault) -> Iterator[None]:
        """Fill the server's disk, on which it ends; free it, and start the server again."""
        self._stage.disk.fill()
        yield
        self._stage.disk.free()
        if not self._admin(("PING",)):
            (server,) = self._stage.servers
            server.kill()
            server.start()

    def kill(self, fault: Fault) -> Iterator[None]:
        """SIGKILL a process, and start a successor."""
        self._stage.running[fault.subject].kill()
        yield
        self._stage.begin(fault.subject)

    def stop(self, fault: Fault) -> Iterator[None]:
        """SIGSTOP a process."""
        self._stage.running[fault.subject].signal(signal.SIGSTOP)
        yield
        self._stage.running[fault.subject].signal(signal.SIGCONT)

    def set_a_client_clock(self, fault: Fault) -> Iterator[None]:
        """Set it ahead or back, and right again."""
        self._set_clock(fault.subject, CLIENT_CLOCKS[fault.chosen % len(CLIENT_CLOCKS)])
        yield
        self._set_clock(fault.subject, 0)

    def bad_network(self, _: Fault) -> Iterator[None]:
        """Let the proxies cut, delay and repeat a large share of all calls."""
        self._network(BAD)
        yield
        self._network(USUAL)

    def archive_away(self, fault: Fault) -> Iterator[None]:
        """Rename the archive's folder, and bring it back."""
        archive, aside = self._stage.archive, self._stage.archive.with_name("aside")
        archive.rename(aside)
        instead = IN_ITS_PLACE[fault.chosen % len(IN_ITS_PLACE)]
        if instead == "a folder":
            archive.mkdir()
        elif instead == "a file":
            archive.touch()
        yield
        if instead == "a file":
            archive.unlink()
        elif made := sorted(archive.rglob("*")) if archive.exists() else []:
            self._stage.failed.append(f"while the archive was away, these were made in its place: {made}")
            shutil.rmtree(archive)
        elif archive.exists():
            archive.rmdir()
        aside.rename(archive)

    def end(self) -> None:
        """Let the proxies pass everything on, and deliver what they hold."""
        for proxy in self._stage.proxies:
            proxy.plan = lambda _: Broken.PASS
            proxy.release()
