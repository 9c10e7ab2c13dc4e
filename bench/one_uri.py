"""Measure requests of one URI: ``python bench/one_uri.py [--seconds N] [--rounds N] [--server redis valkey]``.

A process asks over 64 connections, each of which sends its next request when it has an answer. It asks the service, and
in turn a Starlette endpoint that only reads the same JSON and answers some: both in one process on uvicorn. It prints
requests a second of each one's best round and their ratio, and the processor's time that each takes for a request.
Machines are noisy, and all processes share this one: read ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from servers import server
from service import serving

from urifilter_redis import UriFilter
from urifilter_redis.http_api import DEFAULT_PATH

CONNECTIONS = 64
PORT = 8931

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


def ticks(pid: int) -> int:
    """Return the processor's time of a process so far, in the system's ticks."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def measure(process: subprocess.Popen[bytes], port: int, seconds: float) -> tuple[float, float]:
    """Return requests a second, and microseconds of the processor's time that a request takes."""
    before = ticks(process.pid)
    with multiprocessing.Pool(1) as pool:
        answers = pool.apply(run, (port, seconds))
    return answers / seconds, (ticks(process.pid) - before) / os.sysconf("SC_CLK_TCK") * 1e6 / answers


def trivial(folder: Path) -> subprocess.Popen[bytes]:
    """Start the trivial endpoint."""
    (folder / "trivial.py").write_text(TRIVIAL.replace("PATH", DEFAULT_PATH))
    options = ["--port", str(PORT), "--no-access-log", "--app-dir", str(folder)]
    log = folder / "trivial.log"
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "uvicorn", "trivial:app", *options], stderr=file)
    while "running on" not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.05)
    return process


def compare(kind: str, folder: Path, rounds: int, seconds: float) -> None:
    """Measure the service on a server, and the trivial endpoint, in turn."""
    with server(kind) as admin:
        url = f"unix://{admin.connection_pool.connection_kwargs['path']}"
        UriFilter.create("news", redis=url, capacity=100_000_000).close()
        service, address = serving(url, 1, folder / "log")
        asked = {"Starlette": (trivial(folder), PORT), "service": (service, urlsplit(address).port or 0)}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, (process, port) in asked.items():
                found[name].append(measure(process, port, seconds))
        best = max(rate for rate, _ in found["Starlette"])
        for name, each in found.items():
            rate, least = max(rate for rate, _ in each), min(used for _, used in each)
            print(f"{kind:7} {name:10} {rate:10,.0f} {rate / best:6.2f} {least:13,.0f}")
        for process, _ in asked.values():
            process.terminate()
            process.wait()


def main() -> None:
    """Measure with each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--server", nargs="+", default=["redis"])
    options = parser.parse_args()
    print(f"{'server':7} {'way':10} {'requests/s':>10} {'ratio':>6} {'processor us':>13}")
    for kind in options.server:
        with tempfile.TemporaryDirectory() as folder:
            compare(kind, Path(folder), options.rounds, options.seconds)


if __name__ == "__main__":
    main()
