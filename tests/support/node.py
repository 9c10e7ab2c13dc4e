"""The example client in JavaScript, installed in a folder of its own, and run as a process that does as it is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"

#: Seconds that npm or a program may take; only reached when something is wrong.
PATIENCE = 120

#: Reads lines of JSON and writes one for each. Bytes are {"$bytes": hex}.
_DRIVER = """
import { createInterface } from 'node:readline';
import { UriFilter } from './filter.mjs';

const [redis, name] = process.argv.slice(2);
const item = (value) => (value?.$bytes === undefined ? value : Buffer.from(value.$bytes, 'hex'));
const now = performance.now.bind(performance);
let filter, lost;
for await (const line of createInterface({ input: process.stdin })) {
  const { what, items, maxAge, behind } = JSON.parse(line);
  let said;
  try {
    performance.now = () => now() - behind;
    filter ??= await UriFilter.open(name, { redis, scripts: 'scripts' });
    said = { answers: await (what === 'retry' ? filter.retry(lost) : filter[what](items.map(item), maxAge)) };
  } catch (error) {
    lost = error;
    said = { error: error.message, kind: error.constructor.name, answers: error.answers };
  }
  console.log(JSON.stringify(said));
}
filter?.close();
"""


def installed(folder: Path) -> Path:
    """Copy the example, and install its packages; skip the test if this machine cannot."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install Node.js 20.19 or newer, with npm")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, version.strip("v\n").split(".")[:2])) < (20, 19):
        pytest.skip(f"Node.js is {version.strip()}: install 20.19 or newer")
    copy = folder / "node"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("node_modules", "scripts"))
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"npm ci failed (is the registry of npm reachable?): {done.stderr[-300:]}")
    (copy / "driver.mjs").write_text(_DRIVER)
    return copy


def run(folder: Path, *arguments: object) -> str:
    """Run Node in the folder; return its stdout."""
    command = ["node", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Node:
    """A process with the filter open; a context manager."""

    def __init__(self, folder: Path, url: str, name: str = "news") -> None:
        self._process = subprocess.Popen(
            ["node", "driver.mjs", url, name],
            cwd=folder,
            env=os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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
