"""A client in another language that does as it is told: it reads lines of JSON, and writes one for each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path


class Told:
    """A process with the filter open; a context manager."""

    def __init__(self, command: Sequence[str], folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, what: str, items=(), max_age: int = 0, behind: int = 0) -> None:
        """Tell it to do something; ``end`` has the outcome. Its clock is so many ms behind meanwhile."""
        packed = [{"$bytes": each.hex()} if isinstance(each, bytes) else each for each in items]
        self._process.stdin.write(
            json.dumps({"what": what, "items": packed, "maxAge": max_age, "behind": behind}) + "\n"
        )
        self._process.stdin.flush()

    def end(self) -> dict:
        return json.loads(self._process.stdout.readline())

    def fails(self, what: str, items=()) -> dict:
        self.begin(what, items)
        said = self.end()
        assert "error" in said, said
        return said

    def __call__(self, what: str, items=(), max_age: int = 0) -> list[int]:
        """Do something; return the answers."""
        self.begin(what, items, max_age)
        said = self.end()
        assert "error" not in said, said
        return said["answers"]
