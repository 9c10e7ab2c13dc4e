"""Programs in Go and Java, compiled; a machine that cannot do that skips the test, and says what it lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[1] / "peers"

#: Seconds for which a compiler, or a download of what it needs, may run: the first one compiles Go's own libraries,
#: which takes a busy machine minutes.
COMPILING = 900


def _run(command: Sequence[object], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILING
    )


def compiled(command: Sequence[object], folder: Path) -> None:
    """Run a compiler in a folder."""
    done = _run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr


def needs(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt-get install {package}")


def _fetched(command: Sequence[object], folder: Path, what: str) -> None:
    done = _run(command, folder)
    if done.returncode:
        pytest.skip(f"{what} cannot be had: {(done.stdout + done.stderr)[-300:]}")


def go_client(folder: Path) -> list[str]:
    """Compile the client in Go into a folder; return its command."""
    needs("go", "golang")
    _fetched(["go", "mod", "download"], PEERS / "go", "the client's modules in Go")
    compiled(["go", "build", "-o", folder / "client", "."], PEERS / "go")
    return [str(folder / "client")]


def java_client(folder: Path) -> list[str]:
    """Compile the client in Java into a folder; return its command."""
    needs("javac", "openjdk-17-jdk-headless")
    needs("mvn", "maven")
    listed = folder / "classpath"
    wanted = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
    _fetched(wanted, PEERS / "java", "the client's packages in Java")
    path = os.pathsep.join([str(folder), listed.read_text()])
    sources = sorted((PEERS / "java").rglob("*.java"))
    compiled(["javac", "-Xlint:all", "-Werror", "-d", folder, "-cp", path, *sources], PEERS / "java")
    return ["java", "-cp", path, "peers.Main"]


CLIENTS = {"go": go_client, "java": java_client}
