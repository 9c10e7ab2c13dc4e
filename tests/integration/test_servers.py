"""Servers on which the scripts do not run: opening a filter says so in words, and nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import threading

import fakeredis
import pytest
import redis
from support import servers
from support.cli import run
from support.service import Service
from support.service import ask as ask_service
from support.states import dumped
from support.users import User

from urifilter_redis import AsyncUriFilter, UriFilter, list_filters
from urifilter_redis.errors import ServerUnavailable, Unsupported
from urifilter_redis.flows.probe import Probed, remedy
from urifilter_redis.protocol import acl

SUPPORTED = "use Redis 6.2 or newer, or Valkey"
RENAMED = "take rename-command for them out of its configuration, or use a server that has all commands"

#: The commands that Redis 6.0 does not have; other servers without one of these are as old.
OF_62 = ("HRANDFIELD", "ZRANDMEMBER")

PACKING = ("cmsgpack.pack", "cmsgpack.unpack", "cmsgpack.unpack_limit", "struct.pack", "struct.unpack")


@pytest.mark.slow
def test_a_server_that_was_started_has_loaded_its_file(make_server):
    """Else a test fails on a slow machine: while it loads, it answers INFO, and refuses all else."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    with server.client() as client, client.pipeline(transaction=False) as commands:
        for number in range(12_000):
            commands.set(number, "x")
        commands.execute()
    server.kill()
    server.config |= {"key-load-delay": "50"}
    server.start()
    assert server.ask("dbsize") == 12_000


@pytest.fixture
def lacking(make_server, tmp_path):
    """Make Debian's Redis without some commands: ``lacking(*commands)``."""

    def make(*commands: str, **config) -> servers.Server:
        return make_server("redis70", include=without(tmp_path, *commands), **config)

    return make


def without(folder, *commands: str) -> str:
    """Write a configuration that takes commands away; return its path."""
    path = folder / "without.conf"
    path.write_text("".join(f'rename-command {command} ""\n' for command in commands))
    return str(path)


@pytest.fixture
def foreign():
    """Start another program's server, which resembles Redis: its Lua has no cmsgpack, no struct and no sha1hex."""
    pytest.importorskip("lupa", reason="lupa is missing: pip install 'fakeredis[lua]'")
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="dragonfly")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def refusals(url: str, archive: str) -> list[str]:
    """Return the errors of opening and making filters there, with each client."""

    async def awaited(method, **settings) -> None:
        await method("news", redis=url, **settings)

    found = []
    for ask in (
        lambda: UriFilter.open("news", redis=url),
        lambda: UriFilter.create("news", redis=url, capacity=1000, shards=2),
        lambda: UriFilter.create("news", redis=url, capacity=1000, archive=archive),
        lambda: asyncio.run(awaited(AsyncUriFilter.open)),
        lambda: asyncio.run(awaited(AsyncUriFilter.create, capacity=1000)),
    ):
        with pytest.raises(Unsupported) as refused:
            ask()
        found.append(str(refused.value))
    return found


def test_a_server_that_lacks_commands_is_refused(lacking, folder, tmp_path):
    """All commands that are missing are named, and nothing is left there."""
    server = lacking(*OF_62)
    for text in refusals(server.url, folder):
        assert f"'news' on redis://127.0.0.1:{server.port}" in text
        assert re.search(r"the scripts do not run on Redis 7\.\d+\.\d+: it does not know ([A-Z, ]+): ", text)[1] == (
            "HRANDFIELD, ZRANDMEMBER"
        )
        assert text.endswith(RENAMED)
    assert server.ask("keys") == []
    assert not (tmp_path / "archive").exists()
    _, said = run("create", "news", "--capacity", "1000", "--redis", server.url, code=2)
    assert RENAMED in said


@pytest.mark.parametrize("command", ["EVALSHA", "SCRIPT"])
def test_a_server_without_scripts_is_refused(lacking, folder, tmp_path, command):
    """Whatever is missing of running scripts is named as any other command."""
    server = lacking(command)
    for text in refusals(server.url, folder):
        assert f"it does not know {command}: {RENAMED}" in text
    assert server.ask("keys") == []
    assert not (tmp_path / "archive").exists()


def test_a_foreign_server_is_refused(foreign, folder, tmp_path):
    """All that its Lua does not have is named, and nothing is left there."""
    host, port = foreign.server_address
    for text in refusals(f"redis://{host}:{port}/0", folder):
        assert "the scripts do not run on this server: it does not know BITFIELD_RO and its Lua does not have" in text
        missing = re.search(r"its Lua does not have ([^:]+): ", text)[1].split(", ")
        assert missing == [*PACKING[:3], "redis.sha1hex", *PACKING[3:]]
        assert text.endswith(SUPPORTED)
    assert fakeredis.FakeRedis(server=foreign.fake_server).keys() == []
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    ("info", "advice"),
    [
        ({"redis_version": "6.0.16"}, SUPPORTED),
        ({"redis_version": "7.0.15"}, RENAMED),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, RENAMED),
        ({"redis_version": "7.2.4", "dragonfly_version": "1.2"}, SUPPORTED),
        ({}, SUPPORTED),
    ],
)
def test_advice_for_a_server_that_lacks_commands(info, advice):
    """A server that should have them has had them taken away; any other, or one that does not tell, is a wrong one."""
    assert remedy(Probed(unknown=("UNLINK",)), info) == advice
    assert remedy(Probed(unknown=("UNLINK",), missing=("struct.pack",)), info) == SUPPORTED


@pytest.mark.parametrize("kind", ["redis70", "valkey"])
def test_a_replica_without_data(make_server, kind):
    """One that waits for the data of its primary has no filters; that is not told as "there is no such filter"."""
    server = make_server(kind, replicaof=f"127.0.0.1 {servers.silent_port()}")
    told = r"a replica that does not have the data of its primary yet \(connect"
    with pytest.raises(ServerUnavailable, match=told):
        UriFilter.open("news", redis=server.url)
    with pytest.raises(ServerUnavailable, match=told):
        list_filters(redis=server.url)


def test_a_wrong_password_and_a_wrong_database(make_server):
    """Each is told in words, with what to mend in the address."""
    server = make_server("redis70", requirepass="right")
    for login, told in (("", "wants a password"), (":wrong@", "does not accept this user name and password")):
        with pytest.raises(ServerUnavailable, match=told):
            list_filters(redis=f"redis://{login}127.0.0.1:{server.port}/0")
    with pytest.raises(ServerUnavailable, match="has no database of this number"):
        list_filters(redis=f"redis://:right@127.0.0.1:{server.port}/99")
    node = make_server("redis70", **{"cluster-enabled": "yes"})
    with pytest.raises(ServerUnavailable, match="wants no password"):
        list_filters(redis=f"redis://:right@127.0.0.1:{node.port}/0")
    with pytest.raises(ServerUnavailable, match="a Redis Cluster has 0 only"):
        list_filters(redis=f"redis://127.0.0.1:{node.port}/1")
    with pytest.raises(ValueError, match="the database is a number"):
        list_filters(redis=f"redis://127.0.0.1:{node.port}/abc")


def test_a_filter_stays_whole_on_a_server_that_lacks_something(make_server, tmp_path):
    """A filter that came to such a server by its append-only file is refused, unchanged, and serves elsewhere again."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    with UriFilter.create("news", redis=server.url, capacity=1000) as news:
        news.insert_many(["a", "b"])
    server.kill()
    server.config["include"] = without(tmp_path, *OF_62)
    server.start()
    with server.client() as admin:
        before = dumped(admin)
        with pytest.raises(Unsupported, match="HRANDFIELD, ZRANDMEMBER"):
            UriFilter.open("news", redis=server.url)
        with pytest.raises(Unsupported, match="HRANDFIELD, ZRANDMEMBER"):
            UriFilter.create("news", redis=server.url, capacity=1000)
        assert dumped(admin) == before
    server.kill()
    del server.config["include"]
    server.start()
    with UriFilter.open("news", redis=server.url) as news:
        assert news.insert_many(["a", "b", "c"]) == [False, False, True]


def test_doctor_says_what_is_missing(lacking):
    """As opening does; the rest is examined all the same."""
    server = lacking(*OF_62)
    found, _ = run("doctor", "--json", "--redis", server.url, code=1)
    findings = {each["subject"]: each for each in json.loads(found)}
    assert findings["Lua"]["level"] == "danger"
    assert findings["Lua"]["text"] == (
        f"the scripts do not run here: it does not know HRANDFIELD, ZRANDMEMBER: {RENAMED}"
    )
    assert {"version", "rights", "eviction", "memory"} <= set(findings)


def test_doctor_of_a_user_without_scripts(any_server):
    """Doctor does not claim to know what this user may not find out."""
    with User(any_server) as user, user.without("evalsha"):
        found, _ = run("doctor", "--json", "--redis", user.url, code=1)
    findings = {each["subject"]: each for each in json.loads(found)}
    assert [findings[subject]["level"] for subject in ("Lua", "rights")] == ["note", "note"]
    assert "may not run EVALSHA" in findings["Lua"]["text"]


@pytest.mark.parametrize("kind", [*servers.KINDS, *(pytest.param(k, marks=pytest.mark.slow) for k in servers.FURTHER)])
def test_a_life_on_each_server(make_server, kind):
    """Nothing is missing there, and the look costs opening one call of a script."""
    settings = {"capacity": 1000, "retention": "rolling", "slices": 3, "period": "1d"}
    server = make_server(kind)
    with UriFilter.create("news", redis=server.url, **settings) as news, server.client() as admin:
        assert news.insert_many(["a", "b"]) == [True, True]
        news.rotate()
        with news.claims() as mine:
            assert mine.claim_many(["a", "c"]) == [False, True]
            assert mine.commit(["c"]) == [True]
        assert news.forget(["b"]) == [True]
        admin.config_resetstat()
        with UriFilter.open("news", redis=server.url) as again:
            called = {name: fields["calls"] for name, fields in admin.info("commandstats").items()}
            assert called["cmdstat_evalsha"] == 1
            assert again.ages(["a", "b", "c"]) == [2, 0, 1]


class Silent(servers.Server):
    """A server that is not asked by INFO whether it has started."""

    def _answers(self, port: int) -> bool:
        with contextlib.suppress(redis.ConnectionError), self.client_at(port) as client:
            return client.ping()
        return False


@pytest.fixture(params=["renamed", "forbidden"])
def url_without(request, tmp_path):
    """The address of a server that keeps INFO and MEMORY from this user, in either way."""
    commands = ("INFO", "MEMORY")
    renamed = {"include": without(tmp_path, *commands)} if request.param == "renamed" else {}
    with Silent("redis70", appendonly="yes", **renamed) as server:
        rights = ["+@all", *(f"-{each}" for each in commands if not renamed)]
        server.ask("acl_setuser", "crawler", enabled=True, passwords="+pw", commands=rights, keys=["*"])
        yield f"redis://crawler:pw@127.0.0.1:{server.port}/0"


@pytest.mark.slow
def test_a_command_that_only_tells_of_the_server(url_without):
    """Without INFO and MEMORY all work goes on; what cannot be known is not made up."""
    url = url_without
    with UriFilter.create("news", redis=url, capacity=1000) as news:
        assert news.unique(["a", "b"]) == ["a", "b"]
        assert news.info().inserted == 2
        assert news.info().memory >= news.config.bytes
    run("import", "news", "-", "--redis", url, given=b"a\nc\n")
    _, said = run("import", "news", "--set", "some-set", "--redis", url, code=2)
    assert "may not run INFO, or the server does not know it" in said
    told = {each["subject"]: each for each in json.loads(run("doctor", "--json", "--redis", url)[0])}
    hidden = {name for name, each in told.items() if "may not run INFO, or the server does not know it" in each["text"]}
    assert {"version", "memory", "disk", "replication"} <= hidden
    assert {told[name]["level"] for name in hidden} == {"note"}
    assert told["filter news"]["level"] == "ok"
    with Service(url) as service:
        state = ask_service(service, "GET", "/v1/overview").json()["redis"]
        assert state["masters"] == []
        assert "cannot tell" in json.dumps(state["findings"])
        assert ask_service(service, "GET", "/v1/filters/news").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "news"])
@pytest.mark.parametrize("part", ["reader", "crawler", "operator"])
def test_doctor_says_nothing_false(make_server, part, name):
    """Under the documented users, of all filters or of one: it tells what it may know, and no danger that is none."""
    server = make_server("redis70", appendonly="yes")
    UriFilter.create("news", redis=server.url, capacity=1000).close()
    UriFilter.create("another", redis=server.url, capacity=1000).close()
    server.ask("execute_command", *shlex.split(acl.line(part, "urifilter", name).replace("PASSWORD", "pw")))
    out, _ = run("doctor", "--json", "--redis", f"redis://{part}:pw@127.0.0.1:{server.port}/0")
    told = {each["subject"]: each for each in json.loads(out)}
    assert {each["level"] for each in told.values()} <= {"ok", "note"}
    assert told["Lua"]["level"] == "ok", told["Lua"]
    rights = "this user may run every command of the scripts"
    assert (told["rights"]["text"] == rights) == (part == "operator")
    assert told["filter news"]["level"] == "ok"
    assert ("filter another" in told) == (name is None)
    if part != "operator":
        assert "cannot tell" in told["version"]["text"]
