"""Programs that are measured. Scripts import it as ``processes``, the package as ``bench.processes``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import struct_rusage


def run(command: Sequence[str], given: Path, taken: Path, environment: Mapping[str, str]) -> struct_rusage:
    """Run a program with a file as its input and another as its output; return its processor time and memory.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with given.open("rb") as stdin, taken.open("wb") as stdout:
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used
