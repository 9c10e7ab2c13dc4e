"""Processes that do a filter's long work and are killed (-9) at a named step.

A ``Killer`` is a process of its own that forks a child for each run. Each step that the child's flows make has a name:
the script and its step, the command and its key, or what is done to the archive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from urifilter_redis import UriFilter, drop_filter
from urifilter_redis.archive.importing import import_
from urifilter_redis.archive.maintenance import prune
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send, Work
from urifilter_redis.flows import restore
from urifilter_redis.importing.importer import Import, Receiver
from urifilter_redis.importing.sources import SetSource
from urifilter_redis.protocol import scripts
from urifilter_redis.storage.backends import open_backend

SCRIPTS = {script.sha1: script.name.split(":")[0] for script in scripts.variants(BLOCKED_K)}


def name_of(step) -> str:
    """Name a step."""
    if isinstance(step, Work):
        return step.name
    if not isinstance(step, Send):
        return "pause"
    command, *arguments = step.commands[0]
    if command == "EVALSHA":
        script = SCRIPTS[arguments[0]]
        return f"{script} {arguments[2 + int(arguments[1])]}"
    return f"{command} {str(arguments[0]).rsplit(':', 1)[-1] if arguments else ''}".strip()


def act(method: str, url: str, archive: str, *arguments) -> None:
    """Do one of the long works; archive "" names none."""
    if method == "create":
        UriFilter.create("news", redis=url, archive=archive, **arguments[0]).close()
    elif method == "open":
        UriFilter.open("news", redis=url, archive=archive).close()
    elif method == "drop":
        drop_filter("news", redis=url, archive=archive)
    elif method == "prune":
        driver.drive(prune(open_backend(archive), 0))
    elif method == "move in":
        with Receiver.open("news", redis=url) as news, SetSource(arguments[0].encode(), redis=url) as members:
            moving = Import(news, members, print)
            for window in moving.windows():
                moving.insert(window)
            moving.finish()
    elif method == "import":
        driver.drive(import_(open_backend(archive), Path(arguments[0]), lambda *_: None))
    else:
        with UriFilter.open("news", redis=url, archive=archive) as opened:
            getattr(opened, method)(*arguments)


def run(number: int, when: str, *what) -> None:
    """Do it; SIGKILL at step ``number``, before or after it; 0: print the names of the steps."""
    perform, names = driver.perform_step, []

    def counted(step, connector):
        names.append(name_of(step))
        last = len(names) == number
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = perform(step, connector)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    driver.perform_step = counted
    restore.BEAT = 0.0  # signs of life are steps, too
    act(*what)
    if number == 0:
        sys.stdout.write(json.dumps(names) + "\n")
        sys.stdout.flush()


class Killer:
    """The process that forks; a context manager."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, *request) -> list:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        lines = []
        while not (line := self._process.stdout.readline()).startswith("status"):
            assert line, "the killer died"
            lines.append(json.loads(line))
        return [int(line.split()[1]), *lines]

    def steps(self, *what) -> list[str]:
        """Do it, and return the names of its steps."""
        status, names = self._ask(0, "", *what)
        assert status == 0
        return names

    def kill(self, number: int, when: str, *what) -> bool:
        """Do it until SIGKILL at that step; return whether it came so far."""
        (status,) = self._ask(number, when, *what)
        assert status in {0, -signal.SIGKILL}, status
        return status != 0


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(*request)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"status {status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
