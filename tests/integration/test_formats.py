"""Filters and archives of another format than this release's are refused in words, and nothing changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis.exceptions import ResponseError
from support import cli
from support.archives import lie
from support.states import dumped

from urifilter_redis import ArchiveCorrupt, UriFilter, UriFilterError, drop_filter
from urifilter_redis.archive.export import ExportedFilter, export
from urifilter_redis.engine.driver import drive
from urifilter_redis.protocol import calls, claims, scripts
from urifilter_redis.protocol.config import FORMAT
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.backends import open_backend

SETTINGS = {"capacity": 1000, "error_rate": 1e-8, "shards": 2}
ROLLING = SETTINGS | {"retention": "rolling", "slices": 3, "period": "1d"}

#: A number that no release has written, and that of a later one.
OTHERS = [FORMAT - 1, FORMAT + 1]


def words(number: int) -> str:
    return f"of format {number}, and this release reads format {FORMAT}: use the release that wrote it"


def every_call(config, keys, state):
    """Calls of each script that works on a shard, with each of its steps; they would do something."""
    new, digests = config.today, bytes(16)
    names = [each.name for each in state.view.slices]
    commands = [each for each in ("insert", "contains", "forget", "remove") if config.layout in scripts.COMMANDS[each]]
    yield from (calls.items(each, config, keys, state.view, "-", digests) for each in commands)
    yield from claim_calls(config, keys, state)
    yield calls.create("finish", config, keys)
    yield from (calls.turn(step, keys, state, "ab", new, names=names) for step in ("allocate", "turn"))
    yield from (calls.build(step, keys, state, number=0) for step in ("archived", "piece", "finish"))
    yield from (calls.store(step, keys, state, 0, "0", b"data") for step in ("write", "delete"))
    yield calls.expire(config.uid, keys)
    yield calls.reopen(config.uid, keys)
    if config.layout in scripts.COMMANDS["merge"]:
        yield from (
            calls.merge(step, config, keys, state, number, 0, digests)
            for step, number in (("forget", 0), ("piece", 1), ("count", 1))
        )
    meta = {"uid": config.uid, "timeline": state.timeline}
    yield from (calls.drop(step, meta, keys, [keys.meta]) for step in ("begin", "abandon", "delete"))
    yield from (calls.checkpoint(step, config.uid, keys, 0) for step in ("begin", "finish"))
    for step in ("begin", "beat", "arrange", "finish", "cancel", "release"):
        yield calls.restore(step, config.uid, keys, "ab", timeline=state.timeline)
    for step in ("allocate", "piece", "remove", "replies", "forget", "unforget", "leases", "dead_letters"):
        yield calls.refill(step, config.uid, keys, "ab", number=1, slices=[keys.slice("today")], data=[1, b"data"])
    yield from (calls.tend(step, config.uid, keys, "ab", 1000) for step in ("take", "release"))


def claim_calls(config, keys, state):
    """Calls of each script about claims."""
    holding, digests = claims.Holding("0123456789abcdef", 5000), bytes(16)
    yield claims.claim(config, keys, state.view, "-", digests, [b"a"], holding)
    yield claims.commit(config, keys, state.view, "-", digests, holding)
    yield claims.release(config.uid, keys, "-", digests, holding, delay_holder="00" * 8)
    yield claims.reclaim(config.uid, keys, "-", holding, 1)
    yield claims.beat(config.uid, keys, holding)


@pytest.mark.sampled
@pytest.mark.parametrize("number", OTHERS)
@pytest.mark.parametrize("layout", ["blocked", "classic", "counting"])
@pytest.mark.parametrize("with_claims", [False, True])
def test_scripts(any_server, number, layout, with_claims):
    """Each refuses it in each shard, in a filter that a process has open."""
    with (
        UriFilter.create("news", redis=any_server.url, layout=layout, **SETTINGS) as news,
        any_server.client() as admin,
    ):
        news.insert_many(range(100))
        if with_claims:
            news.claims().claim_many(range(100, 200))
        shards = [news._session.keys.shard(shard) for shard in range(2)]
        states = [ShardState.from_meta(to_mapping(admin.hgetall(keys.meta)), "news") for keys in shards]
        assert [state.view.claims > 0 for state in states] == [with_claims] * 2
        for keys in shards:
            admin.hset(keys.meta, "format", number)
        before, called = dumped(admin), set()
        for keys, state in zip(shards, states, strict=True):
            for call in every_call(news.config, keys, state):
                admin.script_load(call.script.source)
                with pytest.raises(ResponseError, match=f"^FORMAT the shard is {words(number)}"):
                    admin.execute_command(*call.command())
                called.add(call.script.name.partition(":")[0])
        wanted = {each for each, made in scripts.COMMANDS.items() if not made or layout in made}
        assert wanted - called == {"probe"}
        for use in (news.insert, news.contains, lambda _: news.info(), lambda _: news.claims().claim_many(["b"])):
            with pytest.raises(UriFilterError, match=words(number)):
                use("a")
        assert before == dumped(admin)


@pytest.mark.parametrize("number", OTHERS)
def test_a_filter(any_server, admin, number):
    """The library and the command line do not open, make or drop it."""
    UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
    admin.hset("urifilter:{news:0}:meta", "format", number)
    before = dumped(admin)
    for use in (
        lambda: UriFilter.open("news", redis=any_server.url),
        lambda: UriFilter.create("news", redis=any_server.url, **SETTINGS),
        lambda: drop_filter("news", redis=any_server.url),
    ):
        with pytest.raises(UriFilterError, match=words(number)):
            use()
    for command in ("info", "rotate", "checkpoint", "restore"):
        assert words(number) in cli.run(command, "news", "--redis", any_server.url, code=2)[1]
    assert words(number) in cli.run("add", "--filter", "news", "--redis", any_server.url, given=b"a\n", code=2)[1]
    found = json.loads(cli.run("doctor", "--json", "--redis", any_server.url, code=1)[0])
    (told,) = (each for each in found if each["subject"] == "filter news")
    assert (told["level"], words(number) in told["text"]) == ("danger", True)
    assert before == dumped(admin)


@pytest.mark.parametrize("number", OTHERS)
def test_a_shard_of_another_format_than_shard_0(any_server, number):
    """Whoever asks all shards is told; the others answer."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news:
        any_server.ask("hset", news._session.keys.shard(1).meta, "format", number)
        with UriFilter.open("news", redis=any_server.url) as again, pytest.raises(UriFilterError, match=words(number)):
            again.info()
        assert words(number) in cli.run("info", "news", "--redis", any_server.url, code=2)[1]


def put_format(path: Path, number: int) -> None:
    """Rewrite a document of an archive as one of another format, which has another field, too."""
    lie(path, lambda document: document.update({"format": number, "a field of its own": 1}))


@pytest.fixture
def archived(any_server, folder):
    """A rolling filter with a closed slice in its archive, and a checkpoint of each shard."""
    with UriFilter.create("news", redis=any_server.url, archive=folder, **ROLLING) as news:
        news.insert_many(range(100))
        news.rotate()
        news.insert_many(range(100, 200))
        news.checkpoint()
    return {"redis": any_server.url, "archive": folder}


@pytest.mark.parametrize("number", OTHERS)
@pytest.mark.parametrize(
    ("which", "lost"), [("filter.json", False), ("filter.json", True), ("checkpoint-*.json", True)]
)
def test_an_archive(admin, archived, tmp_path, which, number, lost):
    """Nothing is restored from it or written to it, whether Redis has lost the filter or not."""
    paths = [path for path in tmp_path.rglob("*.json") if path.match(which)]
    assert paths
    for path in paths:
        put_format(path, number)
    texts = [path.read_bytes() for path in paths]
    assert words(number) in cli.run("archive", "verify", "news", "--archive", archived["archive"], code=1)[0].decode()
    if lost:
        admin.flushall()
    before = dumped(admin)
    for use in (UriFilter.open, lambda name, **where: UriFilter.create(name, **where, **ROLLING)):
        with pytest.raises(ArchiveCorrupt, match=words(number)):
            use("news", **archived)
    options = ("--redis", archived["redis"], "--archive", archived["archive"])
    assert words(number) in cli.run("restore", "news", *options, code=2)[1]
    assert before == dumped(admin)
    assert texts == [path.read_bytes() for path in paths]


@pytest.mark.parametrize("number", OTHERS)
def test_a_closed_slice(archived, tmp_path, number):
    """The next rotation goes without it, and says so: its items expire late."""
    paths = [path for path in tmp_path.rglob("*.json") if path.match("slice-*.json")]
    assert paths
    for path in paths:
        put_format(path, number)
    with UriFilter.open("news", **archived) as news:
        assert any(words(number) in problem for problem in news.rotate().problems)
        assert 0 not in news.ages(range(200))


@pytest.mark.parametrize("number", OTHERS)
def test_an_exported_filter(archived, tmp_path, monkeypatch, number):
    """A file of another format is neither asked nor imported."""
    path = tmp_path / "news.urifilter"
    with monkeypatch.context() as patch:
        patch.setattr("urifilter_redis.archive.export.FORMAT", number)
        drive(export(open_backend(archived["archive"]), "news", path, lambda *_: None))
    with pytest.raises(ArchiveCorrupt, match=words(number)):
        ExportedFilter(path)
    other = f"file://{tmp_path / 'other'}"
    assert words(number) in cli.run("archive", "import", str(path), "--archive", other, code=2)[1]
    assert not [*(tmp_path / "other").rglob("*.json")]
