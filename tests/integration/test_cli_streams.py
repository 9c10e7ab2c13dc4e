"""What scripts read, and lines that people read: ``--json`` on stdout, errors as objects on stderr.

Streams may be closed when a command begins: ``2>&-``, ``>&-`` and ``<&-``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support import cli

from urifilter_redis import UriFilter


@pytest.fixture(autouse=True)
def news(there, make_filter):
    """A filter that has seen ``a``; all commands speak to its server, named by the environment."""
    made = make_filter(capacity=1000, hash="md5", shards=7)
    made.insert(b"a")
    return made


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
    out, err = cli.run(*command, given=given, code=code, closed=[2])
    assert err == ""
    assert bool(out) == ((command, given, code) in PRINTING)


@pytest.mark.parametrize(("command", "given", "code"), PRINTING)
def test_stdout_is_closed_and_there_is_something_to_print(command, given, code):
    """That is an error, and said."""
    _, err = cli.run(*command, given=given, code=2, closed=[1])
    said = err.splitlines()[-1]
    text = json.loads(said)["error"] if "--json" in command else said.removeprefix("urifilter: ")
    assert text == "stdout is closed: there is nowhere to print to"


@pytest.mark.parametrize(("command", "given", "code"), SILENT)
def test_stdout_is_closed_and_there_is_nothing_to_print(command, given, code):
    """It is not missed, nor is stderr."""
    cli.run(*command, given=given, code=code, closed=[1, 2])


@pytest.mark.slow
@pytest.mark.parametrize(("command", "given", "code"), PRINTING[:1] + PRINTING[8:9])
def test_all_are_closed(command, given, code):
    """An error, which nobody is told; of a process, too, that opens files before it can look at its streams."""
    assert cli.run(*command, given=given, code=2, closed=[0, 1, 2]) == (b"", "")
    closed = {"preexec_fn": lambda: os.closerange(0, 3)}
    assert cli.run_process(*command, given=given, code=2, **closed) == (b"", "")


def test_lines_that_could_not_be_printed_are_new_again(news):
    """What dedupe has inserted, and could not print because stdout is closed, is printed by the next run."""
    cli.run("dedupe", "--filter", "news", given=b"a\nx\ny\n", code=2, closed=[1])
    assert cli.run("dedupe", "--filter", "news", given=b"a\nx\ny\n")[0] == b"x\ny\n"


def test_claimed_lines_that_could_not_be_printed_are_given_back():
    """What claim has in flight, and could not print because stdout is closed, is printed by the next run."""
    cli.run("claim", "--filter", "news", given=b"a\nx\ny\n", code=2, closed=[1])
    assert cli.run("claim", "--filter", "news", given=b"a\nx\ny\n")[0] == b"x\ny\n"


@pytest.mark.parametrize("command", ["add", "check", "claim", "commit", "dedupe", "forget", "release"])
def test_stdin_is_closed(command):
    """There is nothing to read, and that is said."""
    _, err = cli.run(command, "--filter", "news", code=2, closed=[0])
    assert re.search("^urifilter: stdin: ", err, re.MULTILINE)


def test_stdin_is_closed_and_there_is_a_question():
    """Nobody can answer: the filter stays."""
    assert "say --yes" in cli.run("drop", "news", code=2, closed=[0])[1]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_to_a_full_disk(option):
    """An error as any other."""
    with Path("/dev/full").open("wb") as full:
        _, err = cli.run(option, stdout=full, code=2)
    assert err == "urifilter: [Errno 28] No space left on device\n"


def objects(text) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_digest():
    """An object a line; with a filter its shard, too."""
    known = {"item": "https://www.baidu.com/", "digest": "e81c1f5749545c5f7d247b3a100ffe62"}
    out, _ = cli.run("digest", "--json", given=b"https://www.baidu.com/\nx\n")
    assert [each["item"] for each in objects(out)] == [known["item"], "x"]
    assert objects(out)[0] == known
    assert objects(cli.run("digest", "--json", "--filter", "news", known["item"])[0]) == [known | {"shard": 2}]


def test_drop():
    """It says what it did on stdout, and nothing on stderr."""
    out, err = cli.run("drop", "news", "--yes", "--json")
    assert (json.loads(out), err) == ({"filter": "news", "dropped": True}, "")


@pytest.mark.parametrize(
    ("command", "kind", "code"),
    [
        (["info", "nope"], "FilterNotFound", 2),
        (["drop", "nope", "--yes"], "FilterNotFound", 2),
        (["drop", "news"], "UsageError", 2),
        (["create", "news", "--capacity", "7"], "ConfigMismatch", 2),
        (["create", "new", "--capacity", "1k", "--shards", "100"], "ValueError", 2),
        (["list", "--redis", "unix:///nosuch"], "ServerUnavailable", 2),
        (["rotate", "nope"], "FilterNotFound", 2),
        (["check", "--filter", "news", "/nosuch"], "Unreadable", 2),
        (["archive", "list"], "UsageError", 2),
        (["nosuch"], "UsageError", 2),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_errors(command, kind, code):
    """An object on stderr, whose ``kind`` is the class that Python raises; the exit code is what it is without."""
    _, err = cli.run("--json", *command, code=code)
    told = objects(err)[0]
    assert set(told) == {"error", "kind"}
    assert told["kind"] == kind
    _, words = cli.run(*command, code=code)
    assert told["error"] in words


def test_one_line_is_a_line():
    """Numbers agree with their words."""
    assert cli.run("add", "--filter", "news", given=b"b\n")[1] == "1 line: 1 added to filter news, 0 were there\n"
    assert cli.run("dedupe", "--filter", "news", given=b"c\n")[1] == "1 line: 1 new, 0 seen before (filter news)\n"
    assert cli.run("forget", "--filter", "news", given=b"c\n")[1] == "1 line: 1 forgotten, 0 were not there\n"


def test_list_fits_a_terminal(any_server):
    """80 columns, of names of usual length."""
    rolling = {"retention": "rolling", "slices": 30, "period": "1d"}
    UriFilter.create("pages-2026", capacity=5_000_000, **rolling).close()
    with UriFilter.create("full", capacity=10, seed=1) as full:
        full.insert_many(range(30))
    any_server.ask("hset", "urifilter:{pages-2026:0}:meta", "inserted", 100_000_000)
    text = cli.run("list")[0].decode()
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert "300%!" in text
