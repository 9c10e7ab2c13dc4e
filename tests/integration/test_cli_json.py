"""What scripts read: ``--json`` on stdout, errors as objects on stderr; and lines that people read."""

from __future__ import annotations

import json

import pytest
from support import cli

from urifilter_redis import UriFilter


@pytest.fixture(autouse=True)
def news(there, make_filter):
    """A filter that has seen ``a``; all commands speak to its server, named by the environment."""
    made = make_filter(capacity=1000, hash="md5", shards=7)
    made.insert(b"a")
    return made


def objects(text) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_digest():
    """An object a line; with a filter its shard, too."""
    known = {"item": "https://www.baidu.com/", "digest": "e81c1f5749545c5f7d247b3a100ffe62"}
    out, _ = cli.run("digest", "--json", given=b"https://www.baidu.com/\nx\n")
    assert [each["item"] for each in objects(out)] == [known["item"], "x"]
    assert objects(out)[0] == known
    assert objects(cli.run("digest", "--json", "--filter", "news", known["item"])[0]) == [known | {"shard": 1}]


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


@pytest.mark.slow
def test_worker_says_that_it_has_begun():
    """On stderr, once it looks after the filters."""
    process = cli.start("worker", "--filter", "news")
    assert b"begun: looks after filter news, a checkpoint every 5m" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
