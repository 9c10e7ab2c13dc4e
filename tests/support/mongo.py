"""A server that speaks MongoDB's wire protocol: a real one, the emulator mongoeco, or in this process mongomock.

``TEST_URIFILTER_MONGODB`` is the URL of a real mongod. Else mongoeco is run by ``TEST_URIFILTER_MONGOECO``, a Python
3.13 that has it, or by any that is found; it is an emulator. Else there is mongomock, without a process to kill.
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
PYTHON = "TEST_URIFILTER_MONGOECO"

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
    """Return which there is."""
    if os.environ.get(REAL):
        return "real"
    return "mongoeco" if python_with_mongoeco() else "mongomock"


def shown() -> str:
    return {"real": "a real server", "mongoeco": "mongoeco, an emulator", "mongomock": "mongomock, in process"}[kind()]


class MongoServer(Killable):
    """One mongoeco process of a test's own, which it may kill; with ``kept`` data survives that."""

    def __init__(self, *, kept: bool = False) -> None:
        python = python_with_mongoeco()
        if python is None:
            pytest.skip("mongoeco is missing: pip install mongoeco pymongo into a Python 3.13, " + PYTHON)
        self.folder = Path(tempfile.mkdtemp(prefix="uf-"))
        self._command = [python, "-c", _SERVE]
        self._data = [str(self.folder / "data.sqlite")] if kept else []
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/urifilter"

    def start(self) -> None:
        for _ in range(20):
            port = self.port or free_port()
            log = (self.folder / "log").open("ab")
            command = [*self._command, str(port), *self._data]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            log.close()
            if self._answers(port):
                self.port = port
                return
        raise RuntimeError((self.folder / "log").read_text())

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
