"""Filters and archives of each format that was ever released are read, used and upgraded.

The fixtures were made by ``tests/fixtures/make.py`` with the release of their format.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ResponseError
from support import cli
from support.archives import sound
from support.releases import FIXTURES
from support.servers import KINDS
from support.states import dumped

from urifilter_redis import ArchiveCorrupt, UriFilter, UriFilterError, list_filters
from urifilter_redis.archive.format import documents
from urifilter_redis.bloom.retention import TIMED
from urifilter_redis.bloom.sizing import LAYOUTS
from urifilter_redis.protocol import calls, claims, scripts
from urifilter_redis.protocol.config import FORMAT, WITH_CLAIMS
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping

FORMATS = range(1, WITH_CLAIMS + 1)

#: The first format that no release reads yet.
NEWER = WITH_CLAIMS + 1

#: Each format as it is, and each older one after its upgrade.
STATES = [(number, upgraded) for number in FORMATS for upgraded in {False, number < FORMAT}]
IDS = [f"format {number}{', upgraded' * upgraded}" for number, upgraded in STATES]


class Loaded:
    """A server and an archive with the fixtures of a format, and what is expected of them."""

    def __init__(self, number, kind, make_server, folder) -> None:
        fixture = FIXTURES / f"format{number}"
        shutil.copytree(fixture / "archive", folder / "archive")
        shutil.copy(fixture / "dump.rdb", folder / "dump.rdb")
        self.number = number
        self.server = make_server(kind, dir=str(folder))
        self.archive = (folder / "archive").as_uri()
        known = json.loads((fixture / "expected.json").read_text())
        self.filters, self.calls = known["filters"], known["calls"]

    def open(self, name) -> UriFilter:
        archive = self.archive if self.filters[name]["archived"] else ""
        return UriFilter.open(name, redis=self.server.url, archive=archive)


@pytest.fixture
def load(make_server, tmp_path):
    """Load the fixtures of a format: ``load(number, kind)``."""
    return lambda number, kind="redis70": Loaded(number, kind, make_server, tmp_path)


@pytest.fixture(params=FORMATS, ids=lambda number: f"format {number}")
def loaded(load, request):
    """The fixtures of each format, on Debian's Redis."""
    return load(request.param)


def test_there_are_fixtures_of_each_format():
    """Whoever raises the format adds its fixtures, small enough for a repository: filters of every kind."""
    found = sorted(path.name for path in FIXTURES.glob("format*"))
    assert found == [f"format{number}" for number in FORMATS]
    for folder in found:
        files = [path for path in (FIXTURES / folder).rglob("*") if path.is_file() and path.suffix != ".whl"]
        assert sum(path.stat().st_size for path in files) < 300_000
        assert len(json.loads((FIXTURES / folder / "expected.json").read_text())["filters"]) >= 13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "upgraded"), STATES, ids=IDS)
def test_a_life(load, kind, number, upgraded):
    """Every item answers as listed; then the filter is written to, turned, checkpointed and restored."""
    there = load(number, kind)
    retentions, layouts = set(), set()
    for name, expected in there.filters.items():
        with there.open(name) as news:
            if upgraded:
                check_answers(news, expected["ages"])
                assert news.upgrade().shards == expected["shards"]
            assert (news.info().format, news.config.shards) == (FORMAT if upgraded else number, expected["shards"])
            check_answers(news, expected["ages"])
            write_to(news, expected["ages"])
            if news.config.retention in TIMED:
                news.rotate()
                assert news.info().phase == "idle"
                assert 0 not in news.ages(expected["ages"])
            retentions.add(news.config.retention)
            layouts.add(news.config.layout)
            if expected["archived"]:
                check_restore(there, news, expected["ages"])
    assert retentions == {"forever", "growing", "ring", "rolling"}
    assert layouts == set(LAYOUTS)
    sound(there.archive)


def check_answers(news, ages) -> None:
    assert dict(zip(ages, news.ages(ages), strict=True)) == ages


def write_to(news, ages) -> None:
    """Insert all items, and forget and insert some: each answer is right. Afterwards all items were seen."""
    assert [age == 0 for age in news.insert_ages(ages)] == [age == 0 for age in ages.values()]
    some = [*ages][::7]
    assert all(news.forget(some))
    assert news.ages(some) == [0] * len(some)
    assert news.insert_ages(some) == [0] * len(some)
    if news.config.layout == "counting":
        assert all(news.remove(some[:2]))
        assert news.insert_ages(some) == [0, 0] + [1] * (len(some) - 2)
    assert 0 not in news.ages(ages)


def check_restore(there, news, ages) -> None:
    """Write a checkpoint, empty the server of the filter, and open it: all is there again, in the same format."""
    assert news.restored.shards == news.config.shards
    format_ = news.info().format
    assert news.checkpoint().shards == news.config.shards
    with there.server.client() as admin:
        admin.delete(*admin.scan_iter(f"urifilter:{{{news.name}:*"))
    with there.open(news.name) as again:
        assert again.restored.shards == news.config.shards
        assert again.info().format == format_
        assert 0 not in again.insert_ages(ages)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "upgraded"), STATES, ids=IDS)
def test_kept_calls(load, kind, number, upgraded):
    """A repeat of a call gets the recorded answers, long after, and changes nothing."""
    there = load(number, kind)
    with there.open("kept") as news, there.server.client() as admin:
        for _ in range(2 if upgraded else 1):
            before = dumped(admin)
            for call in there.calls:
                digests = b"".join(news._session.digester(call["items"]))
                keys = news._session.keys.shard(0)
                made = calls.items(call["command"], news.config, keys, news.view(0), call["call_id"], digests)
                admin.script_load(made.script.source)
                assert admin.execute_command(*made.command()) == call["answers"]
            assert before == dumped(admin)
            news.upgrade()


def test_what_is_due(loaded):
    """A ring whose period is long over turns once, and a rotation that was left is finished; others are not due."""
    options = ("--redis", loaded.server.url)
    rows = json.loads(cli.run("rotate", "--due", "--json", *options)[0])
    assert [row["filter"] for row in rows] == ["due", "rotating"]
    cli.run("rotate", "--due", *options, code=3)
    for name in ("due", "rotating"):
        with loaded.open(name) as news:
            seen = [item for item, age in loaded.filters[name]["ages"].items() if age]
            assert 0 not in news.ages(seen)
            assert news.info().phase == "idle"


def test_all_at_once(loaded):
    """The command upgrades every filter of the server, and doctor has nothing to say about formats any more."""
    options = ("--redis", loaded.server.url)
    before = cli.run("doctor", *options, code=1)[0].count(b"urifilter upgrade")
    assert before == (len(list_filters(redis=loaded.server.url)) if loaded.number < FORMAT else 0)
    cli.run("upgrade", "--all", *options)
    assert b"urifilter upgrade" not in cli.run("doctor", *options, code=1)[0]


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
    for step in ("allocate", "piece", "remove", "replies", "forget", "unforget", "leases"):
        yield calls.refill(step, config.uid, keys, "ab", number=1, slices=[keys.slice("today")], data=[1, b"data"])
    yield from (calls.tend(step, config.uid, keys, "ab", 1000) for step in ("take", "release"))
    yield calls.upgrade(replace(config, format=FORMAT), keys, 0)


def claim_calls(config, keys, state):
    """Calls of each script about claims."""
    holding, digests = claims.Holding("0123456789abcdef", 5000), bytes(16)
    yield claims.claim(config, keys, state.view, "-", digests, [b"a"], holding)
    yield claims.commit(config, keys, state.view, "-", digests, holding)
    yield claims.release(config.uid, keys, "-", digests, holding, nobody="00" * 8)
    yield claims.reclaim(config.uid, keys, "-", holding, 1)
    yield claims.beat(config.uid, keys, holding)


def test_a_newer_format(loaded):
    """Each script refuses it in each shard by the word FORMAT, opening it fails in words, and nothing changes."""
    with loaded.server.client() as admin:
        for name in list_filters(redis=loaded.server.url):
            with loaded.open(name) as news:
                shards = [news._session.keys.shard(number) for number in range(news.config.shards)]
                states = [ShardState.from_meta(to_mapping(admin.hgetall(keys.meta)), name) for keys in shards]
                for keys in shards:
                    admin.hset(keys.meta, "format", NEWER)
                before = dumped(admin)
                called = set()
                for keys, state in zip(shards, states, strict=True):
                    for call in every_call(news.config, keys, state):
                        admin.script_load(call.script.source)
                        with pytest.raises(ResponseError, match=f"^FORMAT the shard is of format {NEWER}: use a newer"):
                            admin.execute_command(*call.command())
                        called.add(call.script.name.partition(":")[0])
                wanted = {each for each, made in scripts.COMMANDS.items() if not made or news.config.layout in made}
                assert wanted - called == {"probe"}
                with pytest.raises(UriFilterError, match="use a newer urifilter-redis"):
                    news.insert("a")
                with pytest.raises(UriFilterError, match="newer version of urifilter-redis: upgrade this one"):
                    loaded.open(name)
                assert before == dumped(admin)


def raise_format(path: Path) -> None:
    """Rewrite a document of an archive as one of a newer format."""
    text = json.loads(path.read_bytes())
    text["document"]["format"] = NEWER
    path.write_text(json.dumps(text | {"sha256": documents._sha256(text["document"])}))


@pytest.mark.parametrize("which", ["filter.json", "checkpoint-*.json", "slice-*.json"])
def test_an_archive_of_a_newer_format(loaded, tmp_path, which):
    """It is refused in words, and Redis and archive stay as they are."""
    name = "stored-rolling"
    paths = [path for path in (tmp_path / "archive" / f"{name}.filter").rglob("*.json") if path.match(which)]
    assert paths
    for path in paths:
        raise_format(path)
    texts = [path.read_bytes() for path in paths]
    words = f"of the newer format {NEWER}: upgrade urifilter-redis"
    found, _ = cli.run("archive", "verify", name, "--archive", loaded.archive, code=1)
    assert words in found.decode()
    if which.startswith("slice"):  # the next rotation wants it: its items expire late
        with loaded.open(name) as news:
            assert any(words in problem for problem in news.rotate().problems)
            assert 0 not in news.ages([item for item, age in loaded.filters[name]["ages"].items() if age])
        return
    with loaded.server.client() as admin:
        before = dumped(admin)
        with pytest.raises(ArchiveCorrupt, match=words):
            loaded.open(name)
        assert before == dumped(admin)
    assert texts == [path.read_bytes() for path in paths]
