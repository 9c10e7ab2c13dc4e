"""The ACLs that ``urifilter doctor --acl`` prints: each lets its part do all of its work, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
from pathlib import Path

import pytest
import redis
from support.cli import run
from support.service import Service
from support.service import ask as asked
from support.turning import RING, ROLLING, insert_until_done, make_late

from urifilter_redis import Timeouts, UriFilter, drop_filter, list_filters
from urifilter_redis.errors import FilterNotFound, ServerUnavailable, UriFilterError
from urifilter_redis.protocol import acl, scripts
from urifilter_redis.protocol.outcomes import text_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENT = Timeouts(total=20)
TIMED = {"slices": 3, "period": "1d"}
FILTERS = {
    "blocked": {},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing", "capacity": 200},
    "ring": {"retention": "ring", "layout": "classic"} | TIMED,
    "rolling": {"retention": "rolling", "shards": 2} | TIMED,
}


@functools.cache
def line_of(part, *options):
    """Return the line that the command prints."""
    (line,) = run("doctor", "--acl", part, *options)[0].decode().splitlines()
    return line


class Users:
    """Users of a server that were made by the printed lines."""

    def __init__(self, server) -> None:
        self.server, self.admin, self.part = server, server.client(decode_responses=True), ""

    def make(self, part, *options) -> str:
        """Make the user of a part; return its address."""
        words = shlex.split(line_of(part, *options).replace("PASSWORD", "secret-word"))
        assert self.admin.execute_command(*words)
        self.admin.acl_log_reset()
        self.part = part
        return f"redis://{part}:secret-word@127.0.0.1:{self.server.port}/0"

    def refused(self) -> list[str]:
        """Return what was refused since the last ``make``, but for what the probe tries and redis-py says."""
        tried = {each.lower() for each in scripts.load("probe").commands - set(acl.commands(self.part))}
        quiet = tried | {"client", "client|setinfo"}
        return [each["object"] for each in self.admin.acl_log(count=128) if each["object"] not in quiet]


@pytest.fixture
def users(server):
    made = Users(server)
    yield made
    for part in acl.PARTS:
        made.admin.acl_deluser(part)
    made.admin.close()


def crawl(news) -> None:
    """Use a filter as crawlers do."""
    assert news.insert_many(["a", "b", "a"]) == [True, True, False]
    assert news.contains_many(["a", "z"]) == [True, False]
    assert news.forget(["b"]) == [True]
    assert news.insert("b")
    with news.claims(lease=5) as mine:
        assert mine.claim_many(["c", "d", "e"]) == [True] * 3
        assert mine.commit(["c"]) == [True]
        assert mine.release(["d"]) == [True]
        assert [each.item for each in mine.reclaim(10)] == ["d"]
        assert "d" in {each.item for each in news.in_flight()}
        assert mine.claim("fails") is True
        assert mine.reject(["fails"], "404") == [True]
        assert [each.item for each in news.dead_letters()] == ["fails"]
        assert news.retry_dead_letters() == 1
        assert [each.item for each in mine.reclaim()] == ["fails"]
        mine.outstanding()
    assert news.insert_many(map(str, range(300))).count(True) >= 299


@pytest.mark.parametrize("name", FILTERS)
def test_a_crawl(users, name, caplog):
    """A crawler does all of its work, turns what is due, and describes the filter; nothing is refused meanwhile."""
    settings = {"capacity": 1000, "error_rate": 1e-9} | FILTERS[name]
    UriFilter.create(name, redis=users.server.url, **settings).close()
    url = users.make("crawler", "--filter", name)
    with UriFilter.open(name, redis=url) as news:
        crawl(news)
        if name == "counting":
            assert news.remove(["a"]) == [True]
        if "period" in settings:
            news.rotate()
            news.rotate()
            assert news.insert_ages(["a"]) != [0]
        assert news.info().phase == "idle"
        assert list_filters(redis=url) == [name]
    assert users.refused() == []
    assert not caplog.records  # of a warning


@pytest.mark.parametrize("settings", [RING, ROLLING], ids=["ring", "rolling"])
def test_time_passes_for_a_crawler(users, settings):
    """Inserts of a crawler turn a filter whose period is over, until what is old has expired."""
    with UriFilter.create("news", redis=users.server.url, **settings) as news:
        news.insert("old")
    url = users.make("crawler")
    for epoch in range(1, 5):
        make_late(users.server)
        with UriFilter.open("news", redis=url, timeouts=PATIENT) as news:
            insert_until_done(users.server, news, epoch)
    with UriFilter.open("news", redis=url) as news:
        assert news.epoch() == 4
        assert news.insert("old")
    assert users.refused() == []


def test_a_reader(users):
    """A reader asks and describes; whatever writes is refused."""
    for name, settings in FILTERS.items():
        with UriFilter.create(name, redis=users.server.url, **({"capacity": 1000} | settings)) as news:
            crawl(news)
    url = users.make("reader")
    for name in FILTERS:
        with UriFilter.open(name, redis=url) as news:
            assert news.contains_many(["a", "c", "nobody's"]) == [True, True, False]
            assert news.info().inserted > 300
            assert news.info().claims.in_flight == 0
            assert users.refused() == []
            for write in (
                lambda news=news: news.insert("z"),
                lambda news=news: news.forget(["a"]),
                lambda news=news: news.claims().claim("z"),
                lambda news=news: news.drop(),
            ):
                with pytest.raises(ServerUnavailable, match="doctor --acl"):
                    write()
            assert news.contains_many(["a", "z"]) == [True, False]
            users.admin.acl_log_reset()
    assert list_filters(redis=url) == sorted(FILTERS)


def test_making_and_dropping_need_an_operator(users):
    """A crawler makes no filter and drops none, not even half of one."""
    url = users.make("crawler")
    with pytest.raises(ServerUnavailable, match="may not run"):
        UriFilter.create("new", redis=url, capacity=1000)
    assert users.admin.dbsize() == 0
    for name in ("news", "more"):
        with UriFilter.create(name, redis=users.server.url, capacity=1000, seed=7) as news:
            news.insert("a")
    with pytest.raises(ServerUnavailable, match="nothing was changed"):
        drop_filter("news", redis=url)
    with UriFilter.open("news", redis=url) as news:
        with pytest.raises(ServerUnavailable, match="nothing was changed"):
            news.drop()
        assert news.contains("a")
        with pytest.raises(ServerUnavailable, match="may not run"):
            news.union("more")


def test_an_operator(users, folder):
    """An operator makes, saves, loses, restores, unites, imports, examines and drops; nothing is refused."""
    url = users.make("operator")
    where = {"redis": url, "archive": folder}
    with UriFilter.create("news", **where, capacity=1000, retention="ring", **TIMED) as news:
        crawl(news)
        news.rotate()
        news.checkpoint()
    with _like(url) as other:
        other.insert("of the other")
        other.union("more")
        assert other.contains("of more")
    for key in users.admin.keys("urifilter:{news:*"):
        users.admin.delete(key)
    assert users.refused() == []
    crawler = users.make("crawler")
    with pytest.raises(ServerUnavailable, match="doctor --acl"):
        UriFilter.open("news", redis=crawler, archive=folder)
    users.admin.acl_log_reset()
    with UriFilter.open("news", **where) as news:
        assert news.contains_many(["a", "c"]) == [True, True]
    with UriFilter.open("news", redis=crawler, archive=folder) as news:
        assert news.insert("after the restore")
    for command in (
        ("doctor", "--json"),
        ("list",),
        ("info", "news"),
        ("restore", "news", "--archive", folder),
        ("checkpoint", "news", "--archive", folder),
        ("rotate", "--due", "--archive", folder),
        ("worker", "--once", "--archive", folder),
        ("lua", "load"),
    ):
        # the tests' server keeps nothing; nothing is due; two of the filters have no archive
        code = {"doctor": 1, "rotate": 3, "worker": 2}.get(command[0], 0)
        run(*command, "--redis", url, code=code)
    users.admin.sadd("urifilter:{urls", "imported")
    run("import", "news", "--set", "urifilter:{urls", "--redis", url)
    for name in ("news", "other", "more"):
        run("drop", name, "--yes", "--archive", folder, "--redis", url)
    assert users.admin.keys("urifilter:{[mno]*") == []
    assert users.refused() == []


def _like(url):
    with UriFilter.create("more", redis=url, capacity=1000, seed=7) as more:
        more.insert("of more")
    return UriFilter.create("other", redis=url, capacity=1000, seed=7)


@pytest.mark.parametrize("part", acl.PARTS)
def test_nothing_else(users, part):
    """Other filters, other prefixes and other commands are refused, and each refusal is counted."""
    for prefix, name in (
        ("urifilter", "news"),
        ("urifilter", "newspaper"),
        ("urifilter", "other"),
        ("urifilter:b", "news"),
    ):
        UriFilter.create(name, redis=users.server.url, prefix=prefix, capacity=1000).close()
    url = users.make(part, "--filter", "news")
    with UriFilter.open("news", redis=url) as news:
        assert not news.contains("a")
    assert list_filters(redis=url) == ["news"]
    users.admin.acl_log_reset()
    told = []
    for prefix, name in (("urifilter", "newspaper"), ("urifilter", "other"), ("urifilter:b", "news")):
        with pytest.raises(ServerUnavailable) as caught:
            UriFilter.open(name, redis=url, prefix=prefix)
        told.append(str(caught.value))
    assert [re.search(r"may not touch the key (\S+)", each)[1] for each in told] == [
        "urifilter:{newspaper:0}:merging_1", "urifilter:{other:0}:merging_1", "urifilter:b:{news:0}:merging_1",
    ]  # fmt: skip
    assert all(f"{part}:***@" in each and "secret-word" not in each for each in told)
    commands = [
        "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG SET maxmemory 1", "CONFIG REWRITE", "SHUTDOWN NOSAVE",
        "ACL LIST", "SCRIPT FLUSH", "CLIENT LIST", "MONITOR", "REPLICAOF NO ONE", "MIGRATE h 1 k 0 1", "GET other",
        "SET urifilter:{other:0}:meta x", "DEL urifilter:{newspaper:0}:meta", "EVALSHA x 1 urifilter:{other:0}:meta",
        "RESTORE urifilter:{news:0}:x 0 x", "DUMP urifilter:{news:0}:meta", "COPY urifilter:{news:0}:meta x",
    ]  # fmt: skip
    with users.server.client() as client:
        client.execute_command("AUTH", part, "secret-word")
        users.admin.acl_log_reset()
        for command in commands:
            with pytest.raises(Exception, match=r"(?i)permission|NOPERM"):
                client.execute_command(*command.split())
    assert sum(int(each["count"]) for each in users.admin.acl_log(count=128)) == len(commands)


@pytest.mark.parametrize("part", acl.PARTS)
def test_the_line_is_the_smallest(users, part):
    """It has no right that its part never uses, but for those of clusters, replicas and other layouts."""
    line = line_of(part, "--filter", "news", "--prefix", "crawl")
    assert "~crawl:filters ~crawl:{news:*" in line
    assert "@all" not in line
    assert "allkeys" not in line
    allowed = set(re.findall(r"\+(\S+)", line))
    assert allowed == {each.lower().replace(" ", "|") for each in acl.commands(part)}
    if part == "reader":
        assert not allowed & set(users.admin.acl_cat("write"))
    assert not {"flushall", "keys", "config", "config|set", "script", "script|flush", "acl", "client"} & allowed


def test_every_command_of_the_library_is_known(any_server):
    """Each word of the library that is a command of the server is one that an operator may run."""
    with any_server.client() as admin:
        others = {"COMMAND", "KEYS", "MODULE", "SUBSCRIBE"}  # words of our own, and what Sentinels are told
        known = {text_in(name).upper() for name in admin.command_list()} - others
    allowed = {word for each in acl.commands("operator", database=1) for word in each.split()}
    found = {}
    for folder in ("engine", "flows", "transport", "protocol", "archive", "claiming", "moving", "service"):
        for path in sorted((ROOT / "urifilter_redis" / folder).rglob("*.py")):
            words = re.findall(r"""(?<=["'])[A-Z]{3,}(?:_RO)?(?=["'])""", path.read_text())
            found |= {word: path.name for word in words if word in known - allowed}
    assert found == {}


def test_parts_grow():
    """A crawler has all rights of a reader, and an operator those of a crawler."""
    reader, crawler, operator = (set(acl.commands(part)) for part in acl.PARTS)
    assert reader < crawler < operator


def test_options(any_server):
    """The address's database needs SELECT; --json has the parts of the line; --filter is for --acl."""
    assert run("doctor", "--acl", "reader")[0].decode().strip() == acl.line("reader", "urifilter")
    assert "+select" in line_of("reader", "--redis", f"redis://u:pw@127.0.0.1:{any_server.port}/3")
    assert "+select" not in line_of("reader", "--redis", f"unix://{any_server.socket}1")
    found = json.loads(run("doctor", "--acl", "reader", "--json")[0])
    assert found["keys"] == ["urifilter:filters", "urifilter:{*"]
    assert found["line"].startswith("ACL SETUSER reader reset on >PASSWORD")
    assert found["commands"] == acl.commands("reader")
    assert "--filter is for --acl" in run("doctor", "--filter", "news", code=2)[1]


@pytest.mark.parametrize("command", ["evalsha", "script|load", "hgetall", "time"])
def test_open_names_a_missing_command(users, clients, command):
    """The error has the command, the user and the advice."""
    UriFilter.create("news", redis=users.server.url, capacity=1000).close()
    users.admin.script_flush()
    url = users.make("crawler")
    users.admin.execute_command("ACL", "SETUSER", "crawler", f"-{command.partition('|')[0]}")
    with pytest.raises(ServerUnavailable) as caught:
        clients.open("news", redis=url)
    text = str(caught.value)
    assert command.partition("|")[0] in text
    assert "crawler:***@" in text
    assert "doctor --acl" in text


def test_a_client_object_tells_its_user(users):
    """The user of a client that was given is named, and the password is not."""
    url = users.make("reader", "--filter", "news")
    with redis.Redis.from_url(url) as client, pytest.raises(ServerUnavailable, match=r"reader:\*\*\*@") as caught:
        UriFilter.open("other", redis=client)
    assert "secret-word" not in str(caught.value)


def commands_of(group: int) -> list[bytes]:
    """Return the command lines of a group's processes, as ``ps`` shows them."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(each.name)) == group:
                found.append((each / "cmdline").read_bytes())
    assert any(b"serve" in each for each in found)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
def test_the_service_as_a_crawler(users):
    """The service answers for the filters of its user, beside others that it may not touch."""
    for name in ("news", "other"):
        UriFilter.create(name, redis=users.server.url, capacity=1000).close()
    url = users.make("crawler", "--filter", "news")
    path = "/cr-clawr/uri_filter/api/uri_filter"
    with Service(None, "--workers", 2, URIFILTER_REDIS_URL=url) as service:
        for content, code in (("news", 200), ("other", 503)):
            answer = asked(service, "POST", path, {"filter_typeid": content, "URI_list": ["a", "b", "a"]})
            assert answer.status == code
        assert set(asked(service, "GET", "/v1/filters").json()["filters"]) == {"news"}
        shown = b"".join(asked(service, "GET", each).body for each in ("/metrics", "/openapi.json", "/readyz", "/"))
        assert b"secret-word" not in shown
        assert "secret-word" not in service.log()
        assert all(b"secret-word" not in each for each in commands_of(service.process.pid))


def test_lists_leave_out_what_a_user_may_not_touch(users):
    """A user without EXISTS is refused, and does not get an empty list."""
    UriFilter.create("news", redis=users.server.url, capacity=1000).close()
    url = users.make("reader", "--filter", "news")
    users.admin.execute_command("ACL", "SETUSER", "reader", "-exists")
    with pytest.raises(UriFilterError, match="exists"):
        list_filters(redis=url)
    with pytest.raises(FilterNotFound):
        UriFilter.open("nothing", redis=users.server.url)
