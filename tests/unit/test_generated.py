"""The blocking twins are what the script makes of the awaited sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "tools" / "unasync.py", "--check"], capture_output=True, text=True, check=False
    )


def test_twins_are_generated():
    """Nobody edited a twin, or a source without making its twin again."""
    done = check(ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_edited_twin_is_named(tmp_path):
    """The check says which twin differs, and how to make it again; making them mends it."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for folder in ("", "claiming", "sdk"):
        (tmp_path / "urifilter_redis" / folder).mkdir()
        for path in (ROOT / "urifilter_redis" / folder).glob("*.py"):
            shutil.copy(path, tmp_path / "urifilter_redis" / folder)
    with (tmp_path / "urifilter_redis" / "client.py").open("a") as twin:
        twin.write("# edited\n")
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "not what their sources make: urifilter_redis/client.py; run python tools/unasync.py\n",
    )
    subprocess.run([sys.executable, tmp_path / "tools" / "unasync.py"], check=True)
    assert check(tmp_path).returncode == 0
