"""Names that cannot be a filter's: whoever takes one refuses it before anything is touched."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from support import cli
from support.states import dumped

from urifilter_redis import AsyncUriFilter, UriFilter, drop_filter
from urifilter_redis.archive import export, maintenance
from urifilter_redis.engine.driver import drive
from urifilter_redis.service.settings import load
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Worker

IMPOSSIBLE = ["../x", "/x", "a/b", "", "ü", "news\n", "x" * 65]
SAID = "a filter's name is 1 to 64 of A-Z a-z 0-9 . _ - and not "

#: Commands that take a filter's name; ``BAD`` is where it stands.
COMMANDS = """
create BAD --capacity 1k | create other --like BAD | info BAD | drop BAD --yes | drop BAD --yes --keep-archive
rotate BAD | rotate news BAD | union BAD news | union news other BAD | checkpoint BAD
restore BAD | acknowledge BAD
archive show BAD | archive verify BAD | archive export BAD out | archive prune BAD --older-than 0s
worker --once --filter BAD | worker --once --filter news --filter BAD
add --filter BAD | check --filter BAD | check --filter BAD --archive-file out | dedupe --filter BAD
forget --filter BAD | remove --filter BAD | digest --filter BAD item | lua show insert BAD item
claim --filter BAD | commit --filter BAD | release --filter BAD | reclaim --filter BAD
claims BAD | dead-letters BAD | dead-letters BAD --retry
beat --filter BAD 0123456789abcdef | lua show claim BAD item
doctor --acl reader --filter BAD | plan --capacity 1k --nodes 3 --name BAD
import BAD /dev/null | token new BAD | token new one --filter BAD
"""
LINES = [line.split() for line in re.split(r"[|\n]", COMMANDS.strip())]


@pytest.fixture
def there(any_server, folder, monkeypatch):
    """A server and an archive in a folder, named by the environment, both with ``news``; a neighbour of the archive."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    monkeypatch.setenv("URIFILTER_ARCHIVE", folder)
    with UriFilter.create("news", capacity=1000) as news:
        news.insert("a")
        news.checkpoint()
    root = Path(folder.removeprefix("file://"))
    neighbour = root.parent / "x.filter"  # what ../x would be: blobs that no document there names
    shutil.copytree(root / "news.filter", neighbour, ignore=shutil.ignore_patterns("*.json"))
    return any_server


def snapshot(server, tmp_path):
    """Return all that a command could touch."""
    with server.client() as admin:
        keys = dumped(admin)
    return keys, {path: path.read_bytes() if path.is_file() else b"" for path in sorted(tmp_path.rglob("*"))}


def test_every_command_that_takes_a_name_is_tested_here():
    """Each parameter that is a filter's name is read as one, and stands in one of the lines."""
    tested = {" ".join(word for word in line if re.fullmatch("[a-z]+(-[a-z]+)*", word)) for line in LINES}
    for path, command in cli.commands():
        for each in command.params:
            if each.name in {"name", "names", "target", "sources", "like"} and path[0] != "token":
                assert getattr(each.type, "name", None) == "filter_name", (path, each.name)
                assert any(line.startswith(" ".join(path)) for line in tested), path


@pytest.mark.sampled
@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_commands(there, tmp_path, monkeypatch, line):
    """Exit 2 and a message that says how a name looks; nothing on stdout, and nothing was touched."""
    monkeypatch.chdir(tmp_path)
    before = snapshot(there, tmp_path)
    for name in IMPOSSIBLE if line[:2] != ["token", "new"] else IMPOSSIBLE[:-1]:
        out, err = cli.run(*(name if word == "BAD" else word for word in line), given=b"a\n", code=2)
        assert out == b"", name
        said = SAID + repr(name) if line != LINES[-1] else "filters are names, or patterns"
        assert said in " ".join(err.split())
    assert snapshot(there, tmp_path) == before


def calls(redis, archive, name):
    """Yield each public call that takes a filter's name, and those of archives."""
    yield lambda: UriFilter.create(name, capacity=1000, redis=redis, archive=archive)
    yield lambda: UriFilter.open(name, redis=redis, archive=archive)
    yield lambda: drop_filter(name, redis=redis, archive=archive)
    yield lambda: asyncio.run(AsyncUriFilter.create(name, capacity=1000, redis=redis, archive=archive))
    yield lambda: asyncio.run(AsyncUriFilter.open(name, redis=redis, archive=archive))
    yield lambda: UriFilter.open("news", redis=redis, archive=archive).union(name)
    yield lambda: UriFilter.open("news", redis=redis, archive=archive).union("other", name)
    yield lambda: Worker(redis, "urifilter", archive, open_backend(archive), 60.0, ("news", name))
    yield lambda: load({"filters": {name: {"capacity": 1000}}})
    for use in (
        lambda backend: maintenance.show(backend, name),
        lambda backend: maintenance.verify_all(backend, name, lambda *_: None),
        lambda backend: maintenance.prune(backend, 0.0, name),
        lambda backend: export.export(backend, name, Path("out"), lambda *_: None),
    ):
        yield lambda use=use: drive(use(open_backend(archive)))


@pytest.mark.parametrize("name", ["../x", "a/b", "news\n"])
def test_public_calls(there, folder, tmp_path, monkeypatch, name):
    """ValueError, and nothing was touched."""
    monkeypatch.chdir(tmp_path)
    before = snapshot(there, tmp_path)
    for call in calls(there.url, folder, name):
        with pytest.raises(ValueError, match="a filter's name is 1 to 64"):
            call()
        assert snapshot(there, tmp_path) == before


def test_dots_are_names(there, tmp_path):
    """Filters called ``.`` and ``..`` are archived, restored, verified, pruned and dropped inside the archive."""
    outside = {path for path in tmp_path.rglob("*") if "archive" not in path.parts}
    for name in (".", ".."):
        with UriFilter.create(name, capacity=1000) as made:
            made.insert("a")
            made.checkpoint()
    there.ask("flushall")
    for name in (".", ".."):
        for command in (["restore"], ["archive", "show"], ["archive", "verify"], ["archive", "prune"]):
            cli.run(*command, name)
        with UriFilter.open(name) as found:
            assert "a" in found
        cli.run("drop", name, "--yes")
    cli.run("archive", "verify")
    assert outside <= set(tmp_path.rglob("*"))
    with UriFilter.open("news") as news:
        assert "a" in news


def test_what_is_not_ours(there, tmp_path):
    """What others have put beside the filters, in Redis and the archive's folder, is left alone and stops nothing."""
    there.ask("sadd", "urifilter:filters", "../x", b"\xff")
    foreign = tmp_path / "archive" / "lost and found.filter"
    shutil.copytree(tmp_path / "archive" / "news.filter", foreign)
    before = snapshot(there, foreign)[1]
    expected = {"list": 0, "rotate --due": 3, "worker --once": 0, "archive list": 0, "archive verify": 0}
    for command, code in (expected | {"archive prune --older-than 0s": 0}).items():
        out, err = cli.run(*command.split(), code=code)
        assert "lost and found" not in out.decode() + err
    assert b"filter news" in cli.run("doctor", code=1)[0]
    assert snapshot(there, foreign)[1] == before
