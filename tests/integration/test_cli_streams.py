"""Standard streams that are closed when a command begins: ``2>&-``, ``>&-`` and ``<&-``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support import cli
from support.cli import run

from urifilter_redis import UriFilter


@pytest.fixture(autouse=True)
def news(any_server, monkeypatch):
    """A filter that has seen ``a``; all commands speak to its server, named by the environment."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    with UriFilter.create("news", capacity=1000, error_rate=1e-8) as made:
        made.insert(b"a")
        yield made


#: Commands that print to stdout, their input, and what they exit with where they can.
PRINTING = [
    (["check", "--filter", "news"], b"a\n", 0),
    (["check", "--filter", "news"], b"x\n", 1),
    (["dedupe", "--filter", "news"], b"x\n", 0),
    (["add", "--filter", "news", "--json"], b"x\n", 0),
    (["claim", "--filter", "news"], b"x\n", 0),
    (["commit", "--filter", "news", "--json"], b"x\n", 0),
    (["beat", "--filter", "news", "1234567890abcdef"], b"", 1),
    (["create", "more", "--capacity", "1k"], b"", 0),
    (["list"], b"", 0),
    (["info", "news"], b"", 0),
    (["plan", "--capacity", "1k"], b"", 0),
    (["digest", "x"], b"", 0),
    (["lua", "show", "insert"], b"", 0),
    (["doctor"], b"", 1),
    (["--help"], b"", 0),
    (["--version"], b"", 0),
    (["list", "--help"], b"", 0),
]
#: Commands that have nothing to print to stdout.
SILENT = [
    (["check", "--new", "--filter", "news"], b"a\n", 1),
    (["dedupe", "--filter", "news"], b"a\n", 0),
    (["add", "--filter", "news"], b"x\n", 0),
    (["forget", "--filter", "news"], b"a\n", 0),
    (["claim", "--filter", "news"], b"a\n", 0),
    (["commit", "--filter", "news"], b"x\n", 0),
    (["release", "--filter", "news"], b"a\n", 0),
    (["reclaim", "--filter", "news"], b"", 1),
    (["drop", "news", "--yes"], b"", 0),
    (["info", "nope"], b"", 2),
    (["rotate"], b"", 2),
]


@pytest.mark.parametrize(("command", "given", "code"), PRINTING + SILENT)
def test_stderr_is_closed(command, given, code):
    """Every command does what it does, and exits with what it means by that; what it would say is lost."""
    out, err = run(*command, given=given, code=code, closed=[2])
    assert err == ""
    assert bool(out) == ((command, given, code) in PRINTING)


@pytest.mark.parametrize(("command", "given", "code"), PRINTING)
def test_stdout_is_closed_and_there_is_something_to_print(command, given, code):
    """That is an error, and said."""
    _, err = run(*command, given=given, code=2, closed=[1])
    said = err.splitlines()[-1]
    text = json.loads(said)["error"] if "--json" in command else said.removeprefix("urifilter: ")
    assert text == "stdout is closed: there is nowhere to print to"


@pytest.mark.parametrize(("command", "given", "code"), SILENT)
def test_stdout_is_closed_and_there_is_nothing_to_print(command, given, code):
    """It is not missed, nor is stderr."""
    run(*command, given=given, code=code, closed=[1, 2])


@pytest.mark.slow
@pytest.mark.parametrize(("command", "given", "code"), PRINTING[:1] + PRINTING[8:9])
def test_all_are_closed(command, given, code):
    """An error, which nobody is told; of a process, too, that opens files before it can look at its streams."""
    assert run(*command, given=given, code=2, closed=[0, 1, 2]) == (b"", "")
    closed = {"preexec_fn": lambda: os.closerange(0, 3)}
    assert cli.run_process(*command, given=given, code=2, **closed) == (b"", "")


def test_lines_that_could_not_be_printed_are_new_again(news):
    """What dedupe has inserted, and could not print because stdout is closed, is printed by the next run."""
    run("dedupe", "--filter", "news", given=b"a\nx\ny\n", code=2, closed=[1])
    assert run("dedupe", "--filter", "news", given=b"a\nx\ny\n")[0] == b"x\ny\n"


def test_claimed_lines_that_could_not_be_printed_are_given_back():
    """What claim has in flight, and could not print because stdout is closed, is printed by the next run."""
    run("claim", "--filter", "news", given=b"a\nx\ny\n", code=2, closed=[1])
    assert run("claim", "--filter", "news", given=b"a\nx\ny\n")[0] == b"x\ny\n"


@pytest.mark.parametrize("command", ["add", "check", "claim", "commit", "dedupe", "forget", "release"])
def test_stdin_is_closed(command):
    """There is nothing to read, and that is said."""
    _, err = run(command, "--filter", "news", code=2, closed=[0])
    assert re.search("^urifilter: stdin: ", err, re.MULTILINE)


def test_stdin_is_closed_and_there_is_a_question():
    """Nobody can answer: the filter stays."""
    assert "say --yes" in run("drop", "news", code=2, closed=[0])[1]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_to_a_full_disk(option):
    """An error as any other."""
    with Path("/dev/full").open("wb") as full:
        _, err = run(option, stdout=full, code=2)
    assert err == "urifilter: [Errno 28] No space left on device\n"
