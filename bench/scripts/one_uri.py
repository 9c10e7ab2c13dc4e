"""Measure requests of one URI.

A process asks over 64 connections, each of which sends its next request when it has an answer. It asks the service, and
in turn a Starlette endpoint that only reads the same JSON and answers some: both in one process on uvicorn. It prints
requests a second of each one's best round and their ratio, and the processor's time that each takes for a request.
Machines are noisy, and all processes share this one: read ratios.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import secrets
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from bench import servers
from bench.runner import Row, Servers, turns
from bench.usage import cpu_of_process
from urifilter_redis import UriFilter
from urifilter_redis.http_api import DEFAULT_PATH

CONNECTIONS = 64

#: An endpoint as cheap as one of Starlette's can be that reads JSON and answers JSON.
TRIVIAL = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def endpoint(request):
    return JSONResponse({"total": len((await request.json())["URI_list"])})

app = Starlette(routes=[Route("PATH", endpoint, methods=["POST"])])
"""


class Asker(asyncio.Protocol):
    """One connection: it counts the answers to its requests until the end."""

    def __init__(self, end: float) -> None:
        self._end, self.answers, self._data = end, 0, b""
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer; send the next request after its last one."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.ended.set_exception(RuntimeError(self._data.decode()))
        self._data = b""
        self.answers += 1
        if time.perf_counter() < self._end and not self.ended.done():
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell the number of answers."""
        if not self.ended.done():
            self.ended.set_result(self.answers)

    def _ask(self) -> None:
        uri = f"https://example.com/{secrets.token_hex(12)}"
        body = json.dumps({"filter_typeid": "news", "URI_list": [uri]})
        self._transport.write(
            f"POST {DEFAULT_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )


async def ask(port: int, seconds: float) -> int:
    """Ask over all connections for some seconds; return the number of answers."""
    end, loop = time.perf_counter() + seconds, asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Asker(end), "127.0.0.1", port) for _ in range(CONNECTIONS)]
    return sum(await asyncio.gather(*(asker.ended for _, asker in opened)))


def run(port: int, seconds: float) -> int:
    """Run ``ask``, in a process of its own."""
    return uvloop.run(ask(port, seconds))


def measure(process: int, port: int, seconds: float) -> tuple[float, float]:
    """Return requests a second, and microseconds of the processor's time that a request takes."""
    before = cpu_of_process(process)
    with multiprocessing.Pool(1) as pool:
        answers = pool.apply(run, (port, seconds))
    return answers / seconds, (cpu_of_process(process) - before) * 1e6 / answers


def main(rounds: int = 5, seconds: float = 3, server: Servers = ("redis",)) -> Iterator[Row]:
    """Measure the service on each server, and the trivial endpoint, in turn."""
    for kind in server:
        with servers.server(kind) as admin, tempfile.TemporaryDirectory() as folder:
            UriFilter.create("news", redis=servers.address(admin), capacity=100_000_000).close()
            Path(folder, "trivial.py").write_text(TRIVIAL.replace("PATH", DEFAULT_PATH))
            port = servers.free_port()
            options = ["--port", str(port), "--no-access-log", "--app-dir", folder]
            with (
                servers.python(["uvicorn", "trivial:app", *options], "running on") as (trivial, _),
                servers.service(servers.address(admin)) as (service, address),
            ):
                ways = {
                    "Starlette": partial(measure, trivial, port, seconds),
                    "service": partial(measure, service, urlsplit(address).port or 0, seconds),
                }
                found = turns(ways, rounds)
            best = max(rate for rate, _ in found["Starlette"])
            for way, each in found.items():
                rate, least = max(rate for rate, _ in each), min(used for _, used in each)
                yield {"server": kind, "way": way, "requests/s": rate, "ratio": rate / best, "processor us": least}
