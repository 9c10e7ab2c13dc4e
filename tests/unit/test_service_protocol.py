"""What the service's protocol takes from uvicorn."""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from urifilter_redis.service.protocol import _Joining


class Recorder(asyncio.Transport):
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 1)})
        self.told: list[object] = []

    def writelines(self, parts) -> None:
        self.told.append(b"".join(parts))

    def is_closing(self) -> bool:
        return "close" in self.told

    def close(self) -> None:
        self.told.append("close")


def test_uvicorn_is_one_that_was_tested():
    """It overrides uvicorn's internals, so uvicorn has an upper bound, and the tests run with a release below it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (wanted,) = [
        each
        for each in tomllib.loads(text)["project"]["optional-dependencies"]["server"]
        if re.match(r"uvicorn\b", each)
    ]
    below = tuple(map(int, wanted.partition("<")[2].split(".")))
    installed = tuple(map(int, version("uvicorn").split(".")[:2]))
    assert below
    assert installed < below


#: What the protocol and the parent of the workers override or read, by the class that has it: name and parameters.
PARTS = {
    HttpToolsProtocol: {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "eof_received": [],
        "on_message_begin": [],
        "on_url": ["url"],
        "on_header": ["name", "value"],
        "on_headers_complete": [],
        "on_message_complete": [],
        "on_response_complete": [],
        "send_400_response": ["msg"],
    },
    uvicorn.Server: {"startup": ["sockets"], "run": ["sockets"]},
    Multiprocess: {"handle_signals": [], "keep_subprocess_alive": [], "run": [], "__init__": ["config", "sockets"]},
    Process: {"is_alive": ["timeout"]},
}


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [(owner, name, parameters) for owner, parts in PARTS.items() for name, parameters in parts.items()],
)
def test_private_methods_of_uvicorn(owner, name, parameters):
    """Each method that is overridden or called is there, with the parameters that it is given."""
    _self, *found = inspect.signature(getattr(owner, name)).parameters
    assert found == parameters


def test_private_attributes_of_uvicorn(monkeypatch):
    """Each attribute that is read or set is there, on a connection, its request, the server's state and the parent."""

    async def make() -> HttpToolsProtocol:
        config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
        return HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())

    made = asyncio.run(make())
    for name in ("cycle", "headers", "loop", "parser", "server_state", "transport"):
        assert hasattr(made, name), name
    assert (made.server_state.connections, made.server_state.tasks, made.cycle) == (set(), set(), None)
    given = dict.fromkeys(inspect.signature(RequestResponseCycle).parameters)
    cycle = RequestResponseCycle(**given | {"keep_alive": True})
    assert (cycle.more_body, cycle.response_complete, cycle.keep_alive) == (True, False, True)
    assert made.parser.should_upgrade() is False
    monkeypatch.setattr("signal.signal", lambda *_: None)  # a parent takes all signals
    parent = Multiprocess(uvicorn.Config(lambda: None, workers=2, log_config=None), [])
    assert (parent.processes, hasattr(parent, "config")) == ([], True)
    assert {"pid", "exitcode", "is_alive"} <= set(dir(Process))
    assert STARTUP_FAILURE > 0


def test_a_head_and_its_body_are_sent_together():
    """All that one turn of the loop writes is one system call, and nothing waits for longer, or for a close."""

    async def run() -> list[object]:
        recorder = Recorder()
        joining = _Joining(recorder, asyncio.get_running_loop())
        joining.write(b"head ")
        joining.write(b"body")
        assert recorder.told == []
        await asyncio.sleep(0)
        joining.write(b"more")
        await asyncio.sleep(0)
        joining.write(b"last")
        joining.close()
        await asyncio.sleep(0)
        assert joining.is_closing()
        joining.write(b"for nobody")
        await asyncio.sleep(0)
        assert joining.get_extra_info("peername") == ("192.0.2.7", 1)
        return recorder.told

    assert asyncio.run(run()) == [b"head body", b"more", b"last", "close"]
