"""What each fault does, and how it ends."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import shutil
import time
from collections.abc import Callable, Iterator

import redis
from support.proxy import Fault as Broken
from support.proxy import at_random
from support.servers import Server

from bench.hostile.schedule import CLIENT_CLOCKS, SERVER_CLOCKS, Fault
from bench.hostile.stage import Running, Stage

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
        """Return the method that does a kind of fault: that of its name, or that of its first word."""
        return getattr(self, kind.replace(" ", "_"), None) or getattr(self, kind.partition(" ")[0])

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

    def _process(self, fault: Fault) -> Server | Running:
        """Return the server, one of the masters, or another process."""
        if fault.subject == "server":
            return self._stage.servers[fault.chosen % len(self._stage.servers)]
        return self._stage.running[fault.subject]

    def kill(self, fault: Fault) -> Iterator[None]:
        """SIGKILL; start the server again with what is in its append-only file, or a successor of another process."""
        process = self._process(fault)
        process.kill()
        yield
        process.start()

    def stop(self, fault: Fault) -> Iterator[None]:
        """SIGSTOP."""
        process = self._process(fault)
        process.suspend()
        yield
        process.resume()

    def set(self, fault: Fault) -> Iterator[None]:
        """Set a clock ahead or back, and right again."""
        of_server = fault.subject == "server's clock"
        name, clocks = ("server", SERVER_CLOCKS) if of_server else (fault.subject, CLIENT_CLOCKS)
        self._set_clock(name, clocks[fault.chosen % len(clocks)])
        yield
        self._set_clock(name, 0)

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
