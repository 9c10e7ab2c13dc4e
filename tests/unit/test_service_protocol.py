"""What the service's protocol takes from uvicorn."""

from __future__ import annotations

import asyncio
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

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
