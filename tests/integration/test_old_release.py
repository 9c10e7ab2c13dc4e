"""The release of format 1 beside this one: both work on filters of format 1, and those of format 2 refuse the old."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import cli, release_crawler
from support.in_hand import Holder, in_hand
from support.proxy import Fault, Proxy, at_random
from support.releases import NEWER, NEWER_ARCHIVE, TOO_OLD, WHEEL, create_old, old_cli, run_old, start_old
from support.servers import wait_until
from support.states import dumped

from urifilter_redis import SliceLost, UriFilter, UriFilterError, drop_filter
from urifilter_redis.protocol import calls

RING = {"capacity": 100_000, "error_rate": 1e-8, "shards": 3, "retention": "ring", "slices": 30, "period": "2000w"}
SETTINGS = {"capacity": 1000, "error_rate": 1e-8, "shards": 5}

#: A process that does what it is told on stdin, a line each; ``news`` is the filter that it opened at its start.
PROGRAM = """
import sys
from urifilter_redis import UriFilter, drop_filter
from urifilter_redis.archive.homes.opening import named_home
from urifilter_redis.worker import Worker
url, archive = sys.argv[1], sys.argv[2] or None
where = {"redis": url, "archive": archive}
news = UriFilter.open("news", **where) if "open" in sys.argv else None
for line in sys.stdin:
    try:
        said = repr(eval(line))
    except Exception as error:
        said, last = f"{type(error).__name__}: {error}", error
    print(said, flush=True)
"""

#: Ways to begin to use a filter.
BEGIN = [
    "UriFilter.open('news', **where)",
    "UriFilter.create('news', capacity=1000, **where)",
    "Worker(url, 'urifilter', archive, named_home(archive), 0.0).once()",
]


class Old:
    """A process of the old release; a context manager."""

    def __init__(self, url, archive="", *more) -> None:
        self._process = start_old("-c", PROGRAM, url, archive, *more, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.communicate()

    def do(self, what: str) -> str:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip()


class Crowd:
    """Crawlers of both releases, each with all numbers, and what they were told."""

    def __init__(self, url, folder, first, count) -> None:
        self._folder = folder
        program, more = release_crawler.__file__, (url, "news", first, count)
        self.old = [
            start_old(program, *more, seed, self._out("old", first, seed), stdout=subprocess.PIPE) for seed in range(2)
        ]
        self.new = [
            subprocess.Popen([sys.executable, program, *map(str, more), str(seed), self._out("new", first, seed)])
            for seed in range(2, 4)
        ]

    def _out(self, release, first, seed) -> Path:
        return self._folder / f"{release}-{first}-{seed}"

    def told(self, release="*") -> collections.Counter[int]:
        lines = (line.split() for line in self._lines(release))
        return collections.Counter(int(line[1]) for line in lines if line[0] == "new")

    def open_calls(self) -> list[dict]:
        """The calls of refused crawlers that have no answer and may have run."""
        return [json.loads(line.removeprefix("open ")) for line in self._lines("old") if line.startswith("open ")]

    def _lines(self, release) -> list[str]:
        return [line for path in self._folder.glob(f"{release}-*") for line in path.read_text().splitlines()]

    def wait(self) -> list[str]:
        """Wait until all have ended; return what the old ones printed."""
        said = [each.communicate(timeout=240)[0] for each in self.old]
        assert [each.wait(240) for each in self.new] == [0, 0]
        return said

    def kill(self) -> None:
        for each in self.old + self.new:
            each.kill()
            each.wait()


@pytest.fixture
def crowd(tmp_path):
    made = []

    def make(url, first, count) -> Crowd:
        made.append(Crowd(url, tmp_path, first, count))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def test_the_old_release_is_that_of_the_wheel():
    """Its processes import the wheel, with the scripts in it, and nothing of this tree."""
    program = "import urifilter_redis as u; from urifilter_redis.protocol import scripts, config as c"
    out, _ = run_old("-c", f"{program}; print(u.__file__, c.FORMAT, len(scripts.variants((8,))))")
    path, format_, count = out.split()
    assert path.startswith(str(WHEEL))
    assert (format_, int(count) > 20) == ("1", True)


@pytest.mark.slow
def test_side_by_side(redis70, crowd):
    """Through a bad network, and while both rotate the ring: each item is new exactly once."""
    create_old("news", redis70.url, **RING)
    with (
        Proxy(redis70.port, at_random(1, 0.1), late_after=25) as proxy,
        UriFilter.open("news", redis=proxy.url) as news,
    ):
        running = crowd(proxy.url, 1000, 3000)
        for turn in range(4):
            wait_until(lambda n=turn: len(running.told()) > 600 * n, "the crawlers do not insert")
            news.rotate() if turn % 2 else old_cli("rotate", "news", "--redis", proxy.url)
        running.wait()
        proxy.release()
        assert set(Fault) - {Fault.HANG} == set(proxy.counts)
        assert news.epoch() == 4
    assert len(running.told("old")) > 100
    assert len(running.told("new")) > 100
    assert running.told() == dict.fromkeys(range(1000, 4000), 1)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [0, 0.1], ids=["good network", "bad network"])
def test_an_upgrade_under_load(redis70, crowd, faults):
    """New crawlers go on; old ones are refused in words. What was new is new once, and nothing is lost.

    A call of an old crawler that was in doubt has no answer there. Its record has: this release gets it under the id
    of the call.
    """
    create_old("news", redis70.url, **RING)
    with Proxy(redis70.port, at_random(2, faults), late_after=25) as proxy:
        running = crowd(proxy.url, 1000, 4000)
        wait_until(lambda: min(len(running.told(each)) for each in ("old", "new")) > 300, "the crawlers do not insert")
        with UriFilter.open("news", redis=proxy.url) as news:
            assert news.upgrade().before == 1
        said = running.wait()
        proxy.release()
    assert all(TOO_OLD in each for each in said)
    assert [each.returncode for each in running.old] == [3, 3]
    told = running.told()
    assert set(told.values()) == {1}
    found = running.open_calls()
    with UriFilter.open("news", redis=redis70.url) as news:
        for call in found:
            ages = repeat(news, redis70, call["shard"], call["id"], bytes.fromhex(call["digests"]))
            told.update(number for number, age in zip(call["numbers"], ages, strict=True) if age == 0)
    assert told == dict.fromkeys(range(1000, 5000), 1)
    assert faults or not found


def repeat(news, server, shard, call_id, digests) -> list[int]:
    """Send a call of another process once more, under its call id; return its answers."""
    keys = news._session.keys.shard(shard)
    made = calls.items("insert", news.config, keys, news.view(shard), call_id, digests)
    with server.client() as admin:
        admin.script_load(made.script.source)
        return admin.execute_command(*made.command())


@pytest.mark.slow
def test_a_reply_that_was_lost_before_an_upgrade(redis70):
    """The old process is told that its call may have inserted; its record answers a repeat by this release."""
    create_old("news", redis70.url, **SETTINGS | {"shards": 1})
    faults = iter([Fault.CUT_AFTER])
    with UriFilter.open("news", redis=redis70.url) as news, Proxy(redis70.port) as proxy:

        def plan(_):
            """Let the first call run without a reply, and upgrade the filter before it is sent again."""
            fault = next(faults, Fault.PASS)
            if fault is Fault.PASS:
                news.upgrade()
            return fault

        with Old(proxy.url, "", "open") as old:
            assert old.do("news.insert('the script is loaded now')") == "True"
            proxy.plan = plan
            said = old.do("news.insert_many(['a', 0, 'b'])")
            assert said.startswith("AnswerLost: a reply was lost")
            assert TOO_OLD in said
            call_id, digests = literal_eval(old.do("[(str(c.call_id), c.packed) for c in last.batch.open][0]"))
        assert repeat(news, redis70, 0, call_id, digests) == [0, 1, 0]
        assert news.insert_ages(["a", "b"]) == [1, 1]


def test_after_an_upgrade(redis70, folder):
    """An old process that has the filter open is refused, and one that opens it, rotates or restores it, too."""
    create_old("news", redis70.url, folder, **SETTINGS | {"retention": "rolling", "slices": 3, "period": "2000w"})
    with (
        Old(redis70.url, folder, "open") as old,
        UriFilter.open("news", redis=redis70.url, archive=folder) as news,
        redis70.client() as admin,
    ):
        assert old.do("news.insert('a')") == "True"
        news.upgrade()
        before = dumped(admin)
        for what in ("insert('b')", "contains('a')", "forget(['a'])"):
            assert TOO_OLD in old.do(f"news.{what}")
        for what in ("news.checkpoint()", "news.rotate()"):
            assert NEWER_ARCHIVE in old.do(what)
        for what in BEGIN:
            assert NEWER in old.do(what)
        assert NEWER in old_cli("list", "--redis", redis70.url, code=2)[1]
        assert before == dumped(admin)
        assert news.insert_ages(["a", "b"]) == [1, 0]
        news.checkpoint()
        admin.flushall()
        for what in BEGIN:
            assert NEWER_ARCHIVE in old.do(what)
        assert admin.keys("*meta") == []


def test_claims(redis70, folder):
    """A filter of format 1 has none. With claims old processes refuse it, and its archive, and drop nothing in hand."""
    create_old("news", redis70.url, folder, **SETTINGS)
    where = {"redis": redis70.url, "archive": folder}
    with Old(redis70.url, folder, "open") as old, UriFilter.open("news", **where) as news, redis70.client() as admin:
        assert old.do("news.insert('a')") == "True"
        one = Holder(news)
        with pytest.raises(UriFilterError, match="of format 1, which has no claims: upgrade it first"):
            one.claim(["b"])
        news.upgrade()
        assert one.claim(range(90, 120)) == [1] * 10 + [0] * 20
        news.checkpoint()
        before = in_hand(news, admin), dumped(admin)
        for what in ("insert(100)", "contains(100)", "forget([100])"):
            assert TOO_OLD in old.do(f"news.{what}")
        for what in ("news.checkpoint()", *BEGIN):
            assert "upgrade" in old.do(what)
        assert before == (in_hand(news, admin), dumped(admin))
        admin.flushall()
        for what in BEGIN:
            assert "of the newer format 3: upgrade urifilter-redis" in old.do(what)
        assert admin.keys("*meta") == []
        with UriFilter.open("news", **where) as again:
            assert in_hand(again, admin) == before[0]


@pytest.mark.slow
def test_a_ring_that_an_old_process_has_open(redis70):
    """Its scripts of rotations know no format: such a turn is the same in both, and no answer changes."""
    create_old("news", redis70.url, **RING)
    with Old(redis70.url, "", "open") as old, UriFilter.open("news", redis=redis70.url) as news:
        assert old.do("news.insert('a')") == "True"
        news.upgrade()
        assert "epoch=1" in old.do("news.rotate()")
        assert TOO_OLD in old.do("news.insert('a')")
        assert news.ages(range(100)) == [2] * 100
        assert news.insert_ages(range(90, 110)) == [2] * 10 + [0] * 10
        assert news.rotate().epoch == 2
        assert news.info().format == 2


def test_a_new_filter(redis70):
    """Old processes refuse it in words: they neither open, make, list nor rotate it, and change nothing.

    So they never see settings that they do not know, such as ``loose``.
    """
    with UriFilter.create("news", redis=redis70.url, normalize="loose", **SETTINGS) as news, redis70.client() as admin:
        news.insert_many(range(100))
        before = dumped(admin)
        with Old(redis70.url) as old:
            for what in BEGIN:
                assert NEWER in old.do(what)
        assert NEWER in old_cli("list", "--redis", redis70.url, code=2)[1]
        assert before == dumped(admin)
        assert 0 not in news.ages(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [False, True], ids=["Redis has it", "Redis is empty"])
def test_the_archive_of_a_new_filter(redis70, folder, tmp_path, flushed):
    """Old processes refuse it in words: they neither restore, drop, make nor import the filter, and change nothing."""
    with UriFilter.create("news", redis=redis70.url, archive=folder, **SETTINGS) as news:
        news.insert_many(range(100))
        news.checkpoint()
    cli.run("archive", "export", "news", tmp_path / "exported", "--archive", folder)
    with redis70.client() as admin, Old(redis70.url, folder) as old:
        if flushed:
            admin.flushall()
        before, documents = dumped(admin), files(folder)
        for what in (*BEGIN, "drop_filter('news', **where)"):
            said = old.do(what)
            assert TOO_OLD in said or (NEWER in said and not flushed), said
        for what in (("verify",), ("import", tmp_path / "exported")):
            assert TOO_OLD in "".join(old_cli("archive", *what, "--archive", folder, code=1 + (what[0] == "import")))
        assert (before, documents) == (dumped(admin), files(folder))
    with UriFilter.open("news", redis=redis70.url, archive=folder) as news:
        assert 0 not in news.ages(range(100))


def files(archive) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(urlsplit(archive).path).rglob("*") if path.is_file()}


def test_an_old_drop_of_a_new_filter(redis70):
    """The old release drops what it knows, shard 0 among it. So the filter is gone for all, and this drops the rest."""
    with UriFilter.create("news", redis=redis70.url, **SETTINGS) as news, redis70.client() as admin:
        news.insert_many(range(100))
        old_cli("drop", "news", "--yes", "--redis", redis70.url)
        assert admin.keys() != []
        with pytest.raises(SliceLost, match="drop"):
            UriFilter.create("news", redis=redis70.url, **SETTINGS)
        assert drop_filter("news", redis=redis70.url) is True
        assert admin.keys() == []
