"""The command line as a user runs it: as a process."""

from __future__ import annotations

import os
import subprocess
import sys


def start(*arguments: object, **options) -> subprocess.Popen[bytes]:
    """Start ``urifilter``; without options its streams are pipes."""
    inherited = options.pop("env", os.environ)
    env = {name: value for name, value in inherited.items() if not name.startswith("URIFILTER_TEST_")}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "urifilter_redis.cli", *map(str, arguments)]
    return subprocess.Popen(command, env=env, **(pipes | options))


def run(*arguments: object, given: bytes = b"", code: int = 0, **options) -> tuple[bytes, str]:
    """Run ``urifilter`` to its end; check its exit code, and return stdout and stderr."""
    process = start(*arguments, **options)
    out, err = process.communicate(given, timeout=120)
    assert code == process.returncode, (arguments, err)
    text = (err or b"").decode()
    assert "Traceback" not in text
    return out or b"", text
