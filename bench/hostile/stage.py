"""The stage: the server, the proxies before it and before the service, and all processes, with their memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from support.clock import Clock
from support.cluster import Cluster, Node
from support.proxy import HttpProxy, Proxy
from support.servers import BLOOM, Server, free_port, wait_until

from bench import ROOT
from bench.hostile.journal import Journal
from bench.hostile.schedule import CLIENTS

#: Mean seconds between two calls of each kind of actor.
PAUSES = {
    "making": 0.0,
    "blocking": 0.08,
    "awaited": 0.08,
    "serviced": 0.12,
    "claiming": 0.1,
    "meddling": 1.0,
    "worker": 0.7,
}

#: The processes of a run.
PLAYING = ("service", "worker", *CLIENTS)

#: What lets each process have filters of several segments, if the environment says so.
STARTED = ROOT / "tests/support/started"

#: Three masters in the place of one server.
CLUSTER = "cluster"

#: Bytes of the file system that the server writes to.
DISK = 384 << 20

#: How long processes may take to end, once all faults are over, s: a call may be given up first.
PATIENCE = 300


@dataclass(slots=True)
class Running:
    """One kind of process, and its successors after kills.

    Attributes:
        start: starts one.
        process: the newest.
        journals: the files of all of them.
        failed: exit codes that it should not have.
    """

    start: Callable[[], None]
    process: subprocess.Popen[bytes] | None = None
    journals: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def suspend(self) -> None:
        """SIGSTOP."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        """Send a signal to it and its children."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            if self.process.poll() is not None:
                self.failed.append(self.process.returncode)  # before anybody killed it
            self._send(signal.SIGKILL)
            self.process.wait()


class Disk:
    """The file system of the server: small and of its own where that may be mounted, else a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = shutil.which("mount")
        command = [mount or "", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        self.small = mount is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """Let next to nothing be free; the server's file grows meanwhile, so a bit more is tried each time."""
        for more in range(0, 1 << 20, 1 << 14):
            found = os.statvfs(self.folder)
            if self._resize((found.f_blocks - found.f_bfree) * found.f_frsize + more):
                return
        raise OSError(f"{self.folder} cannot be made small")

    def free(self) -> None:
        """Let there be space again."""
        self._resize(DISK)

    def _resize(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        """Unmount it."""
        if self.small:
            subprocess.run(["umount", str(self.folder)], check=True)


class Stage:
    """All that runs; a context manager that ends it.

    Attributes:
        servers: the server, or the masters of a cluster.
        proxies: before each of them, and before the service.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._seed = kind, seed
        self._closing = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="uf-hostile-"))
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.archive = self.folder / "archive"
        self.archive.mkdir()
        self.disk = Disk(self.folder / "disk")
        self._closing.callback(self.disk.close)
        compiles = shutil.which("gcc") or shutil.which("cc")
        self.clocks: dict[str, Clock] = {}
        for name in ("server", *CLIENTS) if compiles else ():
            (folder := self.folder / f"clock-{name}").mkdir()
            self.clocks[name] = Clock(folder)
        self.service_port = free_port()
        self.servers = self._start_servers()
        standing = [Proxy(each.port, late_after=20) for each in self.servers]
        self._http = HttpProxy(self.service_port, late_after=10)
        self.proxies = [self._closing.enter_context(each) for each in (*standing, self._http)]
        self._redis = standing[0].url
        if kind == CLUSTER:
            self._announce(standing)
        self.running = {role: Running(partial(self.begin, role)) for role in ("making", *PLAYING)}
        for one in self.running.values():
            self._closing.callback(one.kill)
        self.failed: list[str] = []
        self.path = self.folder / "journal-stage"
        self.journal = Journal(self.path, "stage")
        self.stop_file = self.folder / "stop"
        self.start = time.monotonic()
        self.begin("making")  # all filters, before anything is broken
        if self.running["making"].process.wait(PATIENCE):
            raise RuntimeError(f"the filters cannot be made: {self.log('making')}")
        self.start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _start_servers(self) -> Sequence[Server]:
        options = {"appendonly": "yes", "appendfsync": "always"}
        if self._kind == CLUSTER:
            return self._closing.enter_context(Cluster(environments=[self._clock("server")] * 3, **options)).nodes
        folder = str(self.disk.folder)
        return [
            self._closing.enter_context(Server(self._kind, environment=self._clock("server"), dir=folder, **options))
        ]

    def _announce(self, proxies: Sequence[Proxy]) -> None:
        """Let clients of the cluster come to each master through its proxy, also once it was started again."""
        option, ports = "cluster-announce-port", {each.port for each in proxies}
        for node, proxy in zip(self.servers, proxies, strict=True):
            node.config[option] = str(proxy.port)
            node.ask("CONFIG", "SET", option, proxy.port)

        def known(node: Node) -> bool:
            return {port for _, _, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS")} == ports

        wait_until(lambda: all(map(known, self.servers)), "the masters do not know of the proxies")
        self._redis = f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in ports)}"

    def begin(self, role: str) -> None:
        """Start a process, or its successor."""
        one = self.running[role]
        if role == "service":
            command = ["urifilter_redis.cli", "serve", "--host", "127.0.0.1", "--port", str(self.service_port)]
            command += ["--redis", self._redis, "--archive", self.archive.as_uri(), "--wait", "2s"]
        else:
            settings = self.part(f"{role}-{len(one.journals)}", [*one.journals], PAUSES[role])
            Path(settings["journal"]).touch()
            one.journals.append(settings["journal"])
            command = ["bench.hostile.actors", role, json.dumps(settings)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("URIFILTER_")}
        path = os.pathsep.join(filter(None, (str(STARTED), str(ROOT), kept.get("PYTHONPATH"))))
        data = {"URIFILTER_DATA_DIR": str(self.folder / "data")}
        with (self.folder / f"log-{role}").open("ab") as log:
            one.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", **data} | self._clock(role),
                start_new_session=True,
            )

    def log(self, role: str) -> str:
        """Return what a process wrote to stdout and stderr: tracebacks, if anything."""
        path = self.folder / f"log-{role}"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self) -> list[str]:
        """Let all end by themselves; return those that did not, or failed."""
        self.stop_file.touch()
        wrong, end = [], time.monotonic() + PATIENCE
        for role, one in self.running.items():
            if role == "service" or one.process is None:
                continue
            try:
                code = one.process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"{role} does not end")
                continue
            wrong += [f"{role} ended with {each}" for each in (*one.failed, code) if each]
        return wrong

    def pid(self, role: str) -> int:
        """Return the process id of a role, 0 if it does not run; ``server`` is one, the first of a cluster."""
        process = self.servers[0].process if role == "server" else self.running[role].process
        return process.pid if process is not None and process.poll() is None else 0

    def journals(self) -> list[Path]:
        """Return all journals."""
        return [self.path, *(Path(path) for one in self.running.values() for path in one.journals)]

    def part(self, name: str, before: Sequence[str] = (), pause: float = 0.1) -> dict[str, Any]:
        """Return the settings of an actor, whose place in its role others had ``before``."""
        return {
            "name": name,
            "seed": self._seed,
            "redis": self._redis,
            "service": self._http.url,
            "archive": self.archive.as_uri(),
            "layout": "redisbloom" if self._kind == BLOOM else "blocked",
            "journal": str(self.folder / f"journal-{name}"),
            "before": before,
            "start": self.start,
            "stop": str(self.stop_file),
            "pause": pause,
        }

    def _clock(self, role: str) -> dict[str, str]:
        return self.clocks[role].environment if role in self.clocks else {}
