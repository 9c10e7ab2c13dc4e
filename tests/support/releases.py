"""The release of format 1, from its wheel, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WHEEL = FIXTURES / "format1" / "urifilter_redis-0.1.0-py3-none-any.whl"

#: Seconds that a command may take; only reached when something is wrong.
PATIENCE = 120

#: The words that tell the user of an older release what to do.
TOO_OLD = "of format 2, for which this urifilter-redis is too old: upgrade it"
NEWER = "made by a newer version of urifilter-redis: upgrade this one"
NEWER_ARCHIVE = "of the newer format 2: upgrade urifilter-redis"


def start_old(*arguments: object, **options) -> subprocess.Popen[str]:
    """Start Python with the old release: ``start_old("program.py", …)``."""
    environment = os.environ | {"PYTHONPATH": str(WHEEL), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, **options)


def run_old(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Run Python with the old release to its end; check its exit code, and return stdout and stderr."""
    process = start_old(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, (arguments, out, err)
    return out, err


def old_cli(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Run ``urifilter`` of the old release."""
    out, err = run_old("-m", "urifilter_redis.cli", *arguments, code=code)
    assert "Traceback" not in err
    return out, err


def create_old(name: str, url: str, archive: str = "", **settings) -> None:
    """Make a filter of format 1, and insert 0 to 99."""
    where = {"redis": url, "archive": archive}
    run_old("-c", _CREATE.format(name=name, settings=where | settings))


_CREATE = """
from urifilter_redis import UriFilter
with UriFilter.create({name!r}, **{settings!r}) as made:
    assert made.insert_many(range(100)) == [0] * 100
    if made.config.archive not in (None, "redis"):
        made.checkpoint()
"""
