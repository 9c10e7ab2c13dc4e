"""Counters of a server and of this process, read before and after a piece of work."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import redis

from bench.servers import Missing

#: It takes all sections, those of commands and of bytes, in every version of the server.
QUESTION = b"*2\r\n$4\r\nINFO\r\n$3\r\nall\r\n"
RESET = b"*2\r\n$6\r\nCONFIG\r\n$9\r\nRESETSTAT\r\n"

#: What stands before the name of a command in INFO commandstats, and in INFO latencystats.
SPENT, LATENCY = "cmdstat_", "latency_percentiles_usec_"

#: Commands of the measuring itself.
OWN = ("info", "config")

#: The command that runs scripts. The server counts what they call apart as well, so their time would count twice.
SCRIPTS = "evalsha"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted.

    Attributes:
        usec: microseconds of all commands but those of the measuring; once scripts have run, of these alone.
        longest: microseconds of the longest of them since the last reset, to two digits (INFO latencystats).
        received: bytes that it has read.
        sent: bytes that it has written.
        reply: bytes of the very reply that has these counters, which it has not counted as sent yet.
    """

    usec: int
    longest: float
    received: int
    sent: int
    reply: int

    def since(self, before: Counters) -> tuple[int, int, int]:
        """Return microseconds, bytes received and bytes sent, without those of asking for counters."""
        received = self.received - before.received - len(QUESTION)
        return self.usec - before.usec, received, self.sent - before.sent - before.reply


class ServerCounters:
    """Asks a server for its counters, over a connection of its own.

    Raises:
        bench.servers.Missing: the server is too old to tell them.
    """

    def __init__(self, client: redis.Redis) -> None:
        try:
            client.config_set("latency-tracking-info-percentiles", "100")
        except redis.ResponseError:
            raise Missing(
                "the redis-server on the PATH is older than Redis 7.0: apt-get install redis-server"
            ) from None
        options = client.connection_pool.connection_kwargs | {"protocol": 2}
        self._connection = client.connection_pool.connection_class(**options)
        self._connection.connect()
        self.read()  # what is sent once a connection is behind

    def reset(self) -> None:
        """Begin to count anew."""
        self._connection.send_packed_command([RESET])
        self._connection.read_response()

    def read(self) -> Counters:
        """Return the counters of now."""
        self._connection.send_packed_command([QUESTION])
        text = bytes(self._connection.read_response(disable_decoding=True))
        fields = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        scripts = fields.get(SPENT + SCRIPTS)
        counted = _commands(fields, SPENT) if scripts is None else [scripts]
        usec = sum(int(value.split("usec=", 1)[1].split(",", 1)[0]) for value in counted)
        longest = max((float(value.split("p100=", 1)[1]) for value in _commands(fields, LATENCY)), default=0.0)
        received, sent = int(fields["total_net_input_bytes"]), int(fields["total_net_output_bytes"])
        return Counters(usec, longest, received, sent, len(text) + len(f"${len(text)}\r\n\r\n"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._connection.disconnect()


def _commands(fields: Mapping[str, str], before: str) -> list[str]:
    """Return what a section of INFO says of each command, but for those of the measuring."""
    return [
        value for name, value in fields.items() if name.startswith(before) and not name[len(before) :].startswith(OWN)
    ]


def spent(client: redis.Redis, *commands: str) -> int:
    """Return the microseconds that a server has taken for scripts so far, and for some commands."""
    stats = client.info("commandstats")
    return sum(int(stats.get(SPENT + each, {"usec": 0})["usec"]) for each in (SCRIPTS, *commands))


def cpu_of(client: redis.Redis, thread: str = "_main_thread") -> float:
    """Return the seconds of processor time that a server's main thread has taken; "": that all of them have."""
    used = client.info("cpu")
    return float(used[f"used_cpu_user{thread}"]) + float(used[f"used_cpu_sys{thread}"])


def cpu_of_process(process: int) -> float:
    """Return the seconds of processor time that a process has taken (Linux only)."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def run(command: Sequence[str], given: Path, taken: Path, environment: Mapping[str, str]) -> resource.struct_rusage:
    """Run a program with a file as its input and another as its output; return its processor time and memory.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with given.open("rb") as stdin, taken.open("wb") as stdout:
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used


def cpu() -> float:
    """Return the processor time of this process and of the programs that it has waited for, seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass(frozen=True, slots=True)
class Used:
    """What a piece of work took.

    Attributes:
        wall: seconds from its beginning to its end.
        client: seconds of processor time of this process, programs that it ran included.
        server: seconds of the server's commands.
        received: bytes that the server read.
        sent: bytes that the server wrote.
        longest: seconds of the server's longest command.
    """

    wall: float
    client: float
    server: float
    received: int
    sent: int
    longest: float = 0.0


class Watch:
    """Begins when it is made, with the server's counters at their beginning; ``stop`` returns what has been used."""

    def __init__(self, counters: ServerCounters) -> None:
        counters.reset()
        self._counters, self._before = counters, counters.read()
        self._cpu, self._start = cpu(), time.perf_counter()

    def stop(self) -> Used:
        """Return what has been used."""
        wall, client = time.perf_counter() - self._start, cpu() - self._cpu
        now = self._counters.read()
        usec, received, sent = now.since(self._before)
        return Used(wall, client, usec / 1e6, received, sent, now.longest / 1e6)
