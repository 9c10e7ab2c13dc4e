"""Programs that a test starts, each in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


@contextlib.contextmanager
def programs(cwd):
    """Give what starts a program in a folder; at the end programs are killed that still run, with their processes."""
    started = []

    def start(command, environment, stderr=subprocess.PIPE):
        pipes = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "cwd": cwd}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
