"""Counters of a server and of this process, read before and after a piece of work."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis

#: It takes all sections, those of commands and of bytes, in every version of the server.
QUESTION = b"*2\r\n$4\r\nINFO\r\n$3\r\nall\r\n"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted.

    Attributes:
        usec: microseconds of all commands but INFO.
        received: bytes that it has read.
        sent: bytes that it has written.
        reply: bytes of the very reply that has these counters, which it has not counted as sent yet.
    """

    usec: int
    received: int
    sent: int
    reply: int

    def since(self, before: Counters) -> tuple[int, int, int]:
        """Return microseconds, bytes received and bytes sent, without those of asking for counters."""
        received = self.received - before.received - len(QUESTION)
        return self.usec - before.usec, received, self.sent - before.sent - before.reply


class ServerCounters:
    """Asks a server for its counters, over a connection of its own."""

    def __init__(self, client: redis.Redis) -> None:
        options = client.connection_pool.connection_kwargs | {"protocol": 2}
        self._connection = client.connection_pool.connection_class(**options)
        self._connection.connect()
        self.read()  # what is sent once a connection is behind

    def read(self) -> Counters:
        """Return the counters of now."""
        self._connection.send_packed_command([QUESTION])
        text = bytes(self._connection.read_response(disable_decoding=True))
        fields = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        usec = sum(
            int(value.split("usec=", 1)[1].split(",", 1)[0])
            for name, value in fields.items()
            if name.startswith("cmdstat_") and name != "cmdstat_info"
        )
        received, sent = int(fields["total_net_input_bytes"]), int(fields["total_net_output_bytes"])
        return Counters(usec, received, sent, len(text) + len(f"${len(text)}\r\n\r\n"))

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


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
    """

    wall: float
    client: float
    server: float
    received: int
    sent: int


class Watch:
    """Begins when it is made; ``stop`` returns what has been used since."""

    def __init__(self, counters: ServerCounters) -> None:
        self._counters, self._before = counters, counters.read()
        self._cpu, self._start = cpu(), time.perf_counter()

    def stop(self) -> Used:
        """Return what has been used."""
        wall, client = time.perf_counter() - self._start, cpu() - self._cpu
        usec, received, sent = self._counters.read().since(self._before)
        return Used(wall, client, usec / 1e6, received, sent)
