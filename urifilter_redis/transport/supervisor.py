"""The process that runs the embedded server while processes use it.

It is run by its path, ``supervisor.py PROGRAM SOCKET DATA_FOLDER USERS_LOCK IDENTITY``, with the standard library
only, so that it starts within some 20 ms. It inherits the open lock that makes it the only supervisor.

Each user of the server holds a shared lock. The supervisor gets the exclusive lock only when all users are gone, also
after a kill -9; it ends the server then. If the server ends by itself, the supervisor ends, and the next request of a
user starts another.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

#: Seconds between two attempts to get the users' lock.
POLL = 0.2

#: Attempts between two syncs of the append-only files, which are a second apart.
SYNC = 5

#: The size in bytes above which the server's log is emptied at the next start.
LOG_LIMIT = 1 << 20

#: Seconds that the server of a killed supervisor has to shut down, where the system does not end it.
ORPHAN_PATIENCE = 10


def main(program: str, socket_path: str, data: str, users_lock: str, identity: str) -> None:
    """Run the server until it ends or has no user."""
    _end_orphan(socket_path)
    path = Path(data, "valkey.log")
    mode = "wb" if path.exists() and path.stat().st_size > LOG_LIMIT else "ab"
    with open(users_lock, "rb") as users, path.open(mode) as log:  # noqa: PTH123 - quick to load
        server = subprocess.Popen(  # noqa: S603 - the program that embedded.py found
            [program, *_options(socket_path, data, identity)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        synced: dict[str, int] = {}
        for attempt in itertools.count(1):
            if server.poll() is not None:
                break
            if _take(users.fileno()):
                server.terminate()
                server.wait()
            elif attempt % SYNC == 0:
                synced = sync_changed(Path(data, "appendonlydir"), synced)
            time.sleep(POLL)


def sync_changed(folder: Path, synced: dict[str, int]) -> dict[str, int]:
    """Write the append-only files that changed to the disk; return each file's time of its last change.

    The server does not do so itself: with ``appendfsync everysec`` it answers before it has handed its writes to the
    system, for up to two seconds, while a sync is under way. Then a kill -9 of the server would lose answers.
    """
    changed: dict[str, int] = {}
    for path in folder.glob("*.aof"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # the server removes old ones
            changed[path.name] = os.fstat(file.fileno()).st_mtime_ns
            if changed[path.name] != synced.get(path.name):
                os.fsync(file.fileno())
    return changed


def _options(socket_path: str, data: str, identity: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": socket_path,
        "unixsocketperm": "700",
        "dir": data,
        "appendonly": "yes",
        "appendfsync": "no",  # see sync_changed
        "syslog-ident": identity,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "set-proc-title": "no",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _die_with_parent() -> None:
    """Let Linux end the server when this process is killed; elsewhere the next supervisor ends it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end_orphan(socket_path: str) -> None:
    """Shut down the server of a killed supervisor, so that two servers never write the same files."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as orphan:
        orphan.settimeout(ORPHAN_PATIENCE)
        orphan.connect(socket_path)
        orphan.sendall(b"*1\r\n$8\r\nSHUTDOWN\r\n")
        while orphan.recv(1024):  # the connection closes when the server has ended
            pass
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)  # noqa: PTH108 - quick to load


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork() == 0:  # the child of a process that ends, so that the starter need not wait for it
        main(*sys.argv[1:])
