"""How to install an extra: in words that work before there is a release."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from urifilter_redis.extras import how_to_get

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["daemon", "embedded", "scrapy", "sdk", "server"])
def test_the_pages_say_the_same(extra):
    """The page about installing has the very command for each extra, and no page has one that wants an index."""
    command, _, _ = how_to_get(extra).partition(" in the checkout")
    assert extra in EXTRAS
    assert command in (ROOT / "docs" / "install.md").read_text()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.search(r"pip install (?!--no-index)[^`\n]*urifilter-redis", page.read_text()), page


def test_daemon_without_its_package(tmp_path):
    """--daemon says how to get python-daemon."""
    code = """
import sys
sys.modules["daemon"] = None
from urifilter_redis.cli.daemon import background
with background(daemon=True, pidfile=__import__("pathlib").Path("pid"), log_file=__import__("pathlib").Path("log")):
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert f"--daemon needs python-daemon: {how_to_get('daemon')}" in done.stderr
