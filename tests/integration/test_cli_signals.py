"""Signals and terminals that are closed: what ``dedupe`` printed and what a second run prints are all lines."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import tty

import pytest
from support import cli
from support.servers import wait_until

from urifilter_redis import UriFilter

pytestmark = pytest.mark.slow

LINES = cli.urls(15_000)

#: All that end a process by default and can be held back; of those for free use three, one of which has no name.
ENDING = [
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGABRT, signal.SIGALRM, signal.SIGVTALRM,
    signal.SIGPROF, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPOLL, signal.SIGPWR,
    signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMAX,
]  # fmt: skip


def name_of(number) -> str:
    return number if isinstance(number, str) else getattr(number, "name", f"signal {int(number)}")


def first_quick(first, *others):
    """The cases, all but the first as slow ones."""
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]


@pytest.fixture(autouse=True)
def _precise(there):
    """A filter, on the server to which all commands speak."""
    UriFilter.create("precise", capacity=100_000, error_rate=1e-8).close()


@pytest.fixture
def urls(tmp_path):
    """A file of many lines."""
    path = tmp_path / "urls"
    path.write_bytes(cli.joined(LINES))
    return path


@pytest.fixture
def started(started):
    """Start a command about lines; at the end it is killed if it still runs."""
    return lambda *more, command="dedupe", **options: started(command, "--filter", "precise", *more, **options)


def second_run(lines) -> list[bytes]:
    """Return what dedupe would print of all lines if it ran again."""
    with UriFilter.open("precise") as precise:
        return precise.unique(lines)


def whole(printed: bytes) -> list[bytes]:
    """Return the lines that were read to their end."""
    return printed.split(b"\n")[:-1]


def missing(printed: bytes, lines=LINES) -> int:
    """Return how many lines neither this run nor a second one has printed."""
    return len(set(lines) - {*whole(printed), *second_run(lines)})


class Terminal:
    """A terminal of which we are the emulator; it is raw, so that lines are as they were printed."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.openpty()
        tty.setraw(self.theirs)

    def start(self, start, *arguments, ignored=(), **options):
        """Start a process whose terminal this is: what closing it ends, as it ends a shell."""

        def take() -> None:
            fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        streams = dict.fromkeys(("stdout", "stderr"), self.theirs)
        process = start(*arguments, start_new_session=True, preexec_fn=take, **(streams | options))
        os.close(self.theirs)
        return process

    def read(self, size: int) -> bytes:
        """Read as much as ``size`` bytes, or more."""
        found = b""
        while len(found) < size:
            found += os.read(self.ours, 4096)
        return found

    def wait(self) -> None:
        """Wait until there is something to read, and do not read it."""
        assert select.select([self.ours], [], [], 60)[0]

    def close(self) -> None:
        """Close the window."""
        os.close(self.ours)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *(("dedupe", each) for each in ENDING),
        pytest.param("reclaim", signal.SIGTERM, marks=pytest.mark.quick),
        ("reclaim", signal.SIGINT),
        ("claim", signal.SIGINT),
        ("claim", signal.SIGHUP),
    ],
    ids=name_of,
)
def test_signal_while_the_reader_is_slow(there, urls, started, command, number):
    """Each signal that ends a process: what the reader may not have read is printed by the next run, or given back."""
    arguments = [urls]
    if command == "reclaim":
        with UriFilter.open("precise") as precise, precise.claims() as mine:
            mine.claim_many(LINES)
        arguments = ["--limit", len(LINES)]
    process = started(*arguments, command=command)
    printed = process.stdout.read(10_000)
    process.send_signal(number)
    process.stdout.close()
    assert process.wait(60) == 128 + number
    assert process.stderr.read().decode().splitlines()[-1] == f"urifilter: stopped by {name_of(number)}"
    assert missing(printed) == 0


@pytest.mark.parametrize(
    ("read", "ignored"),
    [
        pytest.param(1, (signal.SIGHUP,), id="early, nohup"),
        pytest.param(200_000, (), id="late"),
        pytest.param(1, (), id="early", marks=pytest.mark.slow),
        pytest.param(200_000, (signal.SIGHUP,), id="late, nohup", marks=pytest.mark.slow),
    ],
)
def test_terminal_is_closed(urls, started, read, ignored):
    """Closing it sends SIGHUP and lets writing fail; with nohup only the latter. No line is missing."""
    terminal = Terminal()
    process = terminal.start(started, urls, ignored=ignored)
    printed = terminal.read(read)
    terminal.close()
    assert process.wait(60) == (2 if ignored else 128 + signal.SIGHUP)
    assert missing(printed) == 0


@pytest.mark.parametrize("ends", [False, True], ids=["input goes on", "input ends"])
def test_terminal_is_closed_before_it_has_shown_the_last_lines(started, ends):
    """Lines that went to the terminal, and that it has not read when it is closed, are new again.

    If nothing is left to be written then, that is seen before the end, too, without SIGHUP.
    """
    terminal, lines = Terminal(), LINES[:20]
    process = terminal.start(started, ignored=[signal.SIGHUP] if ends else ())
    cli.feed(process, cli.joined(lines))
    terminal.wait()
    terminal.close()
    if ends:
        process.stdin.close()
    assert process.wait(60) == (2 if ends else 128 + signal.SIGHUP)
    assert second_run(lines) == lines


def test_terminal_of_the_messages_is_closed(urls, started, tmp_path):
    """With nohup, and the lines going into a file, it goes on to its end without its progress: all are printed once."""
    terminal, out = Terminal(), tmp_path / "out"
    with out.open("wb") as file:
        process = terminal.start(started, ignored=[signal.SIGHUP], stdout=file)
        data = urls.read_bytes()
        cli.feed(process, data[: len(data) // 2])
        wait_until(lambda: out.stat().st_size > len(data) // 3, "no output")
        terminal.close()
        process.stdin.write(data[len(data) // 2 :])
        process.stdin.close()
        assert process.wait(60) == 0
    assert whole(out.read_bytes()) == LINES


def test_socket_is_closed(urls, started):
    """A reader at a socket that goes before it has read everything."""
    ours, theirs = socket.socketpair()
    with ours:
        process = started(urls, stdout=theirs)
        theirs.close()
        printed = ours.recv(10_000)
    assert process.wait(60) == 141
    assert missing(printed) == 0


def test_what_is_ignored_stays_ignored(started):
    """SIGHUP under nohup, SIGINT and SIGQUIT of a script's background job: the command goes on to its end."""
    numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1]
    process = started(preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers])
    for line in (b"a\n", b"b\n"):
        cli.feed(process, line)
        assert process.stdout.readline() == line
        for number in numbers:
            process.send_signal(number)
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


def hold(server, started):
    """Return a process that has sent a window, and waits for the server's answer."""
    process = started()
    cli.feed(process, LINES[0] + b"\n")
    assert process.stdout.readline() == LINES[0] + b"\n"  # by now the filter is open
    with server.client() as admin:
        admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        cli.feed(process, cli.joined(LINES[:1000]))
        wait_until(lambda: admin.info("clients")["blocked_clients"], "nothing was sent")
    return process


def send(process, number, after) -> float:
    """Send a signal, and once more when the first was handled and some time has passed; return how much."""
    began = time.monotonic()
    process.send_signal(number)
    time.sleep(after)
    process.send_signal(number)
    return time.monotonic() - began


@pytest.mark.parametrize("number", first_quick(signal.SIGINT, signal.SIGHUP, signal.SIGTERM), ids=name_of)
def test_signal_that_comes_twice(there, started, number):
    """From the terminal and the shell, or from ``timeout``: it is held back as one is."""
    process = hold(there, started)
    while send(process, number, 0.1) > 0.3:  # this process stood still: by then it is another keystroke
        process = hold(there, started)
    there.ask("execute_command", "CLIENT", "UNPAUSE")
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert missing(printed, LINES[1:1000]) == 0


@pytest.mark.parametrize("number", first_quick(signal.SIGHUP, signal.SIGINT), ids=name_of)
def test_signal_while_two_windows_are_under_way(there, urls, started, number):
    """The lines of both are printed, or new again."""
    process = started("-", urls)
    cli.feed(process, b"first\n")
    assert process.stdout.readline() == b"first\n"  # by now the filter is open
    with there.client() as admin:
        admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        process.stdin.close()
        wait_until(lambda: admin.info("clients")["blocked_clients"] == 2, "they are not sent together")
        process.send_signal(number)
        admin.execute_command("CLIENT", "UNPAUSE")
    printed = process.stdout.read()
    assert process.wait(60) == 128 + number
    assert missing(printed) == 0


def test_ctrl_c_again(there, started):
    """Who is tired of waiting for a server presses Ctrl-C again: the process ends at once."""
    process = hold(there, started)
    send(process, signal.SIGINT, 1.5)
    assert process.wait(60) == -signal.SIGINT
    there.ask("execute_command", "CLIENT", "UNPAUSE")


@pytest.mark.parametrize("number", first_quick(signal.SIGTERM, signal.SIGHUP), ids=name_of)
def test_temporary_filter_is_dropped(there, number):
    """A signal leaves no filter that nobody knows of."""
    with cli.start("dedupe", "--temporary") as process:
        cli.feed(process, b"a\n")
        assert process.stdout.readline() == b"a\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert there.ask("smembers", "urifilter:filters") == {b"precise"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=name_of)
@pytest.mark.parametrize("module", ["redis", "click"])
@pytest.mark.parametrize("way", ["module", "script"])
def test_signal_while_it_starts(tmp_path, number, module, way):
    """Before it could begin: it ends by the signal, without a traceback."""
    text = f"import os, signal, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n"
    (tmp_path / f"{module}.py").write_text(text)
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    (tmp_path / "urifilter").write_text("from urifilter_redis.cli import main\nmain()\n")
    words = ["-m", "urifilter_redis.cli", "list"] if way == "module" else [tmp_path / "urifilter", "list"]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-number, b"", b"")


@pytest.mark.parametrize(
    ("command", "ages"),
    [
        ("add", [1, -1, 1]),
        ("release", [1, 0, 0]),
        pytest.param("forget", [0, 0, 0], marks=pytest.mark.slow),
        pytest.param("commit", [1, 1, 1], marks=pytest.mark.slow),
    ],
)
def test_other_commands_that_stream(command, ages):
    """SIGHUP while they wait for input: what was read is done, and they say that they were stopped."""
    with UriFilter.open("precise") as precise, cli.start(command, "--filter", "precise") as process:
        precise.insert(b"there")
        precise.claims(beats=False).claim(b"in flight")
        cli.feed(process, b"there\nin flight\nother\n")
        wait_until(lambda: precise.ages([b"there", b"in flight", b"other"]) == ages, "nothing was done")
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=60) == (b"", b"urifilter: stopped by SIGHUP\n")
        assert process.returncode == 128 + signal.SIGHUP


STOPPED_AS_IT_WRITES = """
import os, signal
from urifilter_redis.cli import main

def stopped(descriptor, data):
    size = write(descriptor, data)
    if descriptor == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return size

write, os.write = os.write, stopped
main()
"""


def test_signal_as_a_file_has_taken_lines(urls, tmp_path):
    """What it has taken is not printed again."""
    call = [sys.executable, "-c", STOPPED_AS_IT_WRITES, "dedupe", "--filter", "precise", urls]
    with (tmp_path / "out").open("wb") as out:
        assert subprocess.run(call, stdout=out, timeout=60).returncode == 128 + signal.SIGTERM
    first = (tmp_path / "out").read_bytes()
    assert first.count(b"\n") < len(LINES)
    assert first + cli.run("dedupe", "--filter", "precise", urls)[0] == cli.joined(LINES)


WITHOUT_MEMORY = """
import os
from urifilter_redis.cli import main
from urifilter_redis.cli.lines import CHUNK

def failing(descriptor, size):
    global left
    left -= size == CHUNK
    if left < 0:
        raise MemoryError
    return read(descriptor, min(size, 100_000) if size == CHUNK else size)

left, read, os.read = 4, os.read, failing
main()
"""


@pytest.mark.parametrize("command", ["dedupe", "check"])
def test_fault_while_windows_are_under_way(urls, tmp_path, command):
    """An exception that nobody thought of: exit 2 and no traceback, and the next run prints what this one did not."""
    call = [sys.executable, "-c", WITHOUT_MEMORY, command, "--filter", "precise", urls]
    with (tmp_path / "out").open("wb") as out:
        ended = subprocess.run(call, stdout=out, stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == 2
    assert b"urifilter: unexpected MemoryError" in ended.stderr
    assert b"Traceback" not in ended.stderr
    first = (tmp_path / "out").read_bytes()
    assert first.count(b"\n") < len(LINES)
    if command == "dedupe":
        assert sorted(first + cli.run("dedupe", "--filter", "precise", urls)[0]) == sorted(cli.joined(LINES))


WITHOUT_MEMORY_TO_PRINT = """
from urifilter_redis.cli import main
from urifilter_redis.cli.output import Output

def failing(output, lines, items):
    global left
    left -= 1
    if left == 0:
        raise MemoryError
    add(output, lines, items)

left, add, Output.add = 2, Output.add, failing
main()
"""


def test_fault_as_a_window_is_printed(urls, tmp_path):
    """The lines of that window are given back, too."""
    call = [sys.executable, "-c", WITHOUT_MEMORY_TO_PRINT, "dedupe", "--filter", "precise", urls]
    with (tmp_path / "out").open("wb") as out:
        assert subprocess.run(call, stdout=out, timeout=60).returncode == 2
    first = (tmp_path / "out").read_bytes()
    assert 0 < first.count(b"\n") < len(LINES)
    assert sorted(first + cli.run("dedupe", "--filter", "precise", urls)[0]) == sorted(cli.joined(LINES))
