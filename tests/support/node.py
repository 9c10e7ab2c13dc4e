"""The example client in JavaScript, installed in a folder of its own, and run as a process that does as it is told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.told import Told

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


class Node(Told):
    """A process with the filter open; a context manager."""

    def __init__(self, folder: Path, url: str, name: str = "news") -> None:
        super().__init__(["node", "driver.mjs", url, name], folder)
