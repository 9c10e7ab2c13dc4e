"""A newcomer follows the README and the tutorial in a fresh clone, on a machine without any Redis."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import pages
from support.pages import ROOT, Block, Session, blocks_of

_SERVERS = re.compile(r"(redis|valkey|urifilter|python|pip)")


class Newcomer(Session):
    """A session in which everything is as it stands there: installations, too, and Python of the new environment."""

    def __init__(self, page: Path, clone: Path, path: str, folder: Path, monkeypatch) -> None:
        monkeypatch.setattr(pages, "INSTALLS", [])
        super().__init__(page, "redis://127.0.0.1:1/0", folder, monkeypatch)
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
        for name in ("PYTHONPATH", "PYTHONSAFEPATH", "URIFILTER_REDIS_URL", "URIFILTER_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(clone)

    def _python(self, block: Block) -> None:
        command = ["venv/bin/python", "-c", with_assertions(block.code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=pages.PATIENCE)
        assert done.returncode == 0, done.stderr
        said = re.findall(r"^ *print\(.*  # (.*)$", block.code, re.MULTILINE)
        assert all(map(pages.is_said, done.stdout.splitlines(), said)), done.stdout

    def _text(self, expected: str) -> None:
        assert self._last[1].endswith(expected), self._last[1]  # pip may have warned before


def with_assertions(code: str) -> str:
    """Return a snippet in which each commented value is asserted."""
    lines = []
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement)
        said = re.search(r"  # (True|False|\[.*?\])", code.splitlines()[statement.end_lineno - 1])
        lines.append(
            f"assert ({source}) == {said[1]}"
            if isinstance(statement, ast.Expr) and said and "print(" not in source
            else source
        )
    return "\n".join(lines)


@pytest.fixture
def clone(tmp_path):
    """The tree's files as git has them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this tree is no checkout of git")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "clone" / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path / "clone"


@pytest.fixture
def path(tmp_path):
    """A folder with the programs of this machine, but for servers and for what the tests have installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):
        if Path(folder).is_dir() and Path(folder) != Path(sys.executable).parent:
            for each in os.scandir(folder):
                (programs / each.name).unlink(missing_ok=True)
                if not _SERVERS.match(each.name):
                    (programs / each.name).symlink_to(each.path)
    (programs / "python3").symlink_to(sys._base_executable)
    return str(programs)


@pytest.mark.slow
def test_readme_and_tutorial(clone, path, tmp_path, monkeypatch):
    """Each command and each snippet of both pages does what stands there."""
    for page in (ROOT / "README.md", ROOT / "docs" / "tutorial.md"):
        folder = tmp_path / page.stem
        folder.mkdir()
        with Newcomer(page, clone, path, folder, monkeypatch) as reader:
            for block in blocks_of(page):
                if block.is_run:
                    reader.run(block)


@pytest.mark.nightly
def test_install(clone, path, tmp_path, monkeypatch):
    """So does that about installing: from the checkout, and from wheels in a folder, elsewhere and without an index."""
    page = ROOT / "docs" / "install.md"
    with Newcomer(page, clone, path, tmp_path, monkeypatch) as reader:
        for block in blocks_of(page):
            if block.is_run:
                reader.run(block)
