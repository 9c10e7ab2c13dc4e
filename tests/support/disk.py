"""A small disk of a test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import pytest


@contextlib.contextmanager
def mounted(folder, options: str):
    """Mount a disk in memory at a folder; skip where that cannot be done."""
    if shutil.which("mount") is None:
        pytest.skip("mount is missing: apt-get install mount")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted, as root can: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path) -> None:
    """Write a file until its disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space"):
            while True:
                os.write(descriptor, b"x" * 4096)
    finally:
        os.close(descriptor)
