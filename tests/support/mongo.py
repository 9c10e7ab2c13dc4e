"""A server that speaks MongoDB's wire protocol: a real one, FerretDB, an emulator, or in this process mongomock.

``TEST_URIFILTER_MONGODB`` is the URL of a server that tests may use. ``TEST_URIFILTER_FERRETDB`` is the program of
``tests/peers/ferretdb``, which tests start and kill. Else there is the emulator, mongoeco, which is run by
``TEST_URIFILTER_MONGOECO``, a Python 3.13 that has it, or by any that is found. Else there is mongomock, without a
process to kill.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pymongo
import pytest

from support.servers import PATIENCE, Killable, free_port

REAL = "TEST_URIFILTER_MONGODB"
FERRETDB = "TEST_URIFILTER_FERRETDB"
PYTHON = "TEST_URIFILTER_MONGOECO"

#: Runs the emulator.
_SERVE = """
import asyncio, sys
from mongoeco.engines.memory import MemoryEngine
from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.wire import AsyncMongoEcoProxyServer


async def main():
    engine = SQLiteEngine(sys.argv[2]) if len(sys.argv) > 2 else MemoryEngine()
    async with AsyncMongoEcoProxyServer(engine=engine, host="127.0.0.1", port=int(sys.argv[1])):
        await asyncio.Event().wait()


asyncio.run(main())
"""


@functools.cache
def python_with_mongoeco() -> str | None:
    """Return a Python that can run mongoeco; a shim of that name may be there and not work."""
    named = os.environ.get(PYTHON)
    for candidate in [named] if named else [sys.executable, shutil.which("python3.13")]:
        if candidate:
            done = subprocess.run([candidate, "-c", "import bson, mongoeco.wire"], capture_output=True)
            if done.returncode == 0:
                return candidate
    if named:
        pytest.fail(f"{PYTHON} is {named}, which cannot import mongoeco and bson")
    return None


def kind() -> str:
    """Return which there is: ``real``, ``ferretdb``, ``emulator`` or ``mongomock``."""
    for variable, found in ((REAL, "real"), (FERRETDB, "ferretdb")):
        if os.environ.get(variable):
            return found
    return "emulator" if python_with_mongoeco() else "mongomock"


def shown() -> str:
    return {
        "real": f"the server of {REAL}",
        "ferretdb": "FerretDB",
        "emulator": "an emulator, mongoeco",
        "mongomock": "mongomock, in process",
    }[kind()]


class MongoServer(Killable):
    """One process of a test's own, FerretDB or the emulator, which it may kill; with ``kept`` data survives that."""

    def __init__(self, *, kept: bool = False) -> None:
        self._ferretdb, self._kept = os.environ.get(FERRETDB), kept
        self._python = None if self._ferretdb else python_with_mongoeco()
        if not (self._ferretdb or self._python):
            pytest.skip(f"set {FERRETDB}, or pip install mongoeco pymongo into a Python 3.13")
        self.folder = Path(tempfile.mkdtemp(prefix="uf-"))
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/urifilter"

    def start(self) -> None:
        for _ in range(20):
            port = self.port or free_port()
            log = (self.folder / "log").open("ab")
            self.process = subprocess.Popen(self._command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            log.close()
            if self._answers(port):
                self.port = port
                return
        raise RuntimeError((self.folder / "log").read_text())

    def _command(self, port: int) -> list[str]:
        if self._ferretdb:
            data = self.folder / "data"
            data.mkdir(exist_ok=True)
            return [self._ferretdb, f"127.0.0.1:{port}", str(data)]
        kept = [str(self.folder / "data.sqlite")] if self._kept else []
        return [str(self._python), "-c", _SERVE, str(port), *kept]

    def _answers(self, port: int) -> bool:
        end = time.monotonic() + PATIENCE
        with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=200) as client:
            while self.process.poll() is None and time.monotonic() < end:
                try:
                    client.admin.command("ping")
                except pymongo.errors.PyMongoError:
                    continue
                return True
        return False


class Shared:
    """The server that tests share; each gets a database of its own."""

    def __init__(self) -> None:
        self._server: MongoServer | None = None

    def url(self, monkeypatch) -> str:
        database = f"test_{secrets.token_hex(4)}"
        if kind() == "real":
            return f"{os.environ[REAL].rstrip('/')}/{database}"
        if kind() == "mongomock":
            _mock(monkeypatch)
            return f"mongodb://mock/{database}"
        if self._server is None:
            self._server = MongoServer()
        return self._server.url.removesuffix("urifilter") + database

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _mock(monkeypatch) -> None:
    import mongomock
    import mongomock.gridfs

    mongomock.gridfs.enable_gridfs_integration()
    monkeypatch.setattr(mongomock.collection.Cursor, "to_list", lambda self: list(self), raising=False)  # noqa: PLW0108 - a method
    store = mongomock.store.ServerStore()
    monkeypatch.setattr(pymongo, "MongoClient", lambda *_, **__: mongomock.MongoClient(_store=store))
