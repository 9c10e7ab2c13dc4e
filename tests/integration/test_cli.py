"""The commands about filters, scripts and servers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
from support import cli
from support.answering import answering
from support.servers import silent_port
from support.shard_keys import shard_key
from urifilter_redis.cli import main

from urifilter_redis import FilterInfo, UriFilter


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in cli.commands()])
def test_every_command_has_help_and_an_example(path, command):
    """The help says what it does, and its example is a call of this very command."""
    out, _ = cli.run(*path, "--help")
    text = out.decode()
    assert command.help
    assert f"urifilter {path[0]}" in text.split("Example:")[1]
    assert "--redis" in text
    assert "--json" in text


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in cli.commands()])
def test_every_example_can_be_parsed(path, command):
    """The options of the examples exist."""
    examples = re.findall(r"^ +(urifilter .*)$", command.help.split("Example:")[1], re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.split(">")[0])[1:]
        context = main.make_context("urifilter", list(words), resilient_parsing=True)
        for name in path:
            parent = context.command
            context = parent.commands[name].make_context(name, words[words.index(name) + 1 :], parent=context)
            assert context.command.name == name


def test_version():
    """--version prints the package's version."""
    from urifilter_redis import __version__

    assert cli.run("--version")[0].decode() == f"urifilter, version {__version__}\n"


def test_create_info_list_drop(there):
    """The life of a filter, in text and JSON."""
    out, err = cli.run("create", "news", "--capacity", "100k", "--error-rate", "1e-3", "--layout", "classic")
    assert (out, err) == (b"news: 100,000 items at 0.001, classic, 197 kB when full\n", "")
    assert cli.run("create", "news", "--capacity", "1e5", "--error-rate", "1e-3", "--layout", "classic")[0] == out
    info = json.loads(cli.run("info", "news", "--json")[0])
    assert list(info)[:2] == ["name", "uid"]
    assert set(info) == {"seed", *(field.name for field in dataclasses.fields(FilterInfo))}
    with UriFilter.open("news") as news:
        assert info == news.info().to_dict() | {"seed": news.config.seed}
    assert info["capacity"] == 100_000
    text = cli.run("info", "news")[0].decode()
    assert re.search(r"^error rate +0.001$", text, re.MULTILINE)
    others = [cli.run(*each.split(), "--json")[0].decode() for each in ("list", "create other --capacity 1k")]
    assert not any("seed" in each for each in (text, *others))
    cli.run("drop", "other", "--yes")
    assert [each["name"] for each in json.loads(cli.run("--json", "list")[0])] == ["news"]
    assert cli.run("list")[0].decode().splitlines()[1].split()[:2] == ["news", "forever"]
    assert "say --yes" in cli.run("drop", "news", code=2)[1]
    assert cli.run("drop", "news", "--yes") == (b"", "dropped news\n")
    assert json.loads(cli.run("list", "--json")[0]) == []
    assert "there is no filter 'news'" in cli.run("drop", "news", "--yes", code=2)[1]


def test_create_with_other_settings(there):
    """Each setting that differs is named, with both values."""
    cli.run("create", "news", "--capacity", "100k")
    _, err = cli.run("create", "news", "--capacity", "200k", "--hash", "md5", code=2)
    assert "capacity is 100000 and not 200000" in err
    assert "hash is 'mmh3' and not 'md5'" in err


@pytest.mark.parametrize(
    "wrong",
    [
        ["create", "no/slashes", "--capacity", "1k"],
        ["create", "x", "--capacity", "0"],
        ["create", "x", "--capacity", "many"],
        ["create", "x", "--capacity", "1.5"],
        ["create", "x", "--capacity", "1k", "--error-rate", "0"],
        ["create", "x", "--capacity", "1k", "--error-rate", "nan"],
        ["create", "x", "--capacity", "1k", "--shards", "100"],
        ["create", "x", "--capacity", "1k", "--seed", "minus"],
        ["create", "x", "--capacity", "1k", "--prefix", "{x}"],
        ["list", "--redis", "nonsense"],
        ["list", "--redis", "redis://localhost:notaport/0"],
        ["plan", "--capacity", "1e30"],
        ["info", "nope"],
        ["lua", "show", "nope"],
        ["digest", "--hash", "mmh3", "x"],
        ["nope"],
    ],
    ids=" ".join,
)
def test_wrong_use(there, wrong):
    """A message on stderr, nothing on stdout, exit 2, no traceback."""
    out, err = cli.run(*wrong, code=2)
    assert out == b""
    assert err.strip()


def test_prefix_separates_filters(there):
    """Filters under other prefixes are other filters; option and environment."""
    cli.run("create", "news", "--capacity", "1k", "--prefix", "test")
    assert json.loads(cli.run("list", "--json")[0]) == []
    env = os.environ | {"URIFILTER_PREFIX": "test"}
    assert [each["name"] for each in json.loads(cli.run("list", "--json", env=env)[0])] == ["news"]


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_server_away(there):
    """A server that is not there: within its time, said once, no traceback; the environment's is not asked instead."""
    UriFilter.create("news", capacity=1000).close()
    out, err = cli.run("list", "--redis", "redis://127.0.0.1:1/0", code=2)
    assert out == b""
    assert err.startswith("urifilter: redis://127.0.0.1:1/0: ")
    assert "gave up after 3 s" in err


@pytest.mark.sampled
@pytest.mark.parametrize(
    "command",
    [("list",), ("check", "--filter", "news"), ("drop", "news", "--yes"), ("worker", "--once"), ("doctor",)],
    ids=" ".join,
)
def test_the_time_that_is_said(command):
    """Each command gives up after it."""
    address = f"redis://127.0.0.1:{silent_port()}/0"
    _, err = cli.run("--redis", address, "--timeout", "1s", *command, given=b"a\n", code=2)
    assert "gave up after 1 s" in err


def test_verbose_shows_where(there):
    """-v adds the traceback."""
    code, _, err = cli.invoke("info", "nope", "-v")
    assert b"Traceback" in err
    assert code == 2


def test_passwords_are_never_shown(make_server):
    """A wrong password, a right one, in errors, and with -v: never on any stream."""
    server = make_server("redis70", requirepass="right-secret")
    for user in ("", "user"):
        code, out, err = cli.invoke("list", "-v", "--redis", f"redis://{user}:wrong-secret@127.0.0.1:{server.port}/0")
        assert (code, b"password" in err) == (2, True)
        assert b"wrong-secret" not in out + err
    UriFilter.create("news", capacity=1000, redis=server.url).close()
    for command in (["info", "news"], ["lua", "show", "insert", "news", "x"], ["info", "nope"], ["doctor"]):
        _, out, err = cli.invoke(*command, "--redis", server.url)
        assert b"secret" not in out + err


def test_plan(there):
    """Every layout, several error rates; --json has the numbers."""
    text = cli.run("plan", "--capacity", "100M", "--error-rate", "1e-4")[0].decode()
    blocked, classic, counting, module = (line.split() for line in text.splitlines() if line.endswith("<"))
    assert blocked == ["blocked", "0.0001", "12", "23.3", "302", "MB", "302", "MB", "18", "1,216", "<"]
    assert classic[:4] == ["classic", "0.0001", "13", "19.2"]
    assert counting[:4] == ["counting", "0.0001", "13", "76.9"]
    assert module[:4] == ["redisbloom", "0.0001", "15", "20.6"]
    plans = json.loads(cli.run("plan", "--capacity", "100M", "--json")[0])
    assert len(plans) == 20
    assert {"k", "bits_per_item", "memory_at_first", "memory_when_full", "shards", "wrongly_skipped"} <= set(plans[0])


@pytest.mark.slow
def test_plan_of_what_is_partly_impossible(there):
    """Rows that can be had are printed, and the others say why; --json has the same rows."""
    rows = cli.run("plan", "--capacity", "5G")[0].decode().splitlines()[1:]
    plans = json.loads(cli.run("plan", "--capacity", "5G", "--json")[0])
    impossible = [each for each in plans if "impossible" in each]
    assert [(each["layout"], each["error_rate"]) for each in impossible] == [("counting", 1e-6)]
    assert rows[14].split(maxsplit=2)[:2] == ["counting", "1e-06"]
    assert "4096 bitmaps are too few for that many items at 1e-06" in rows[14]
    assert len(rows) == len(plans) == 20
    assert rows[2].split()[:3] == ["blocked", "0.0001", "12"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--capacity", "1e30"], "bitmaps are too few"),
        (["--capacity", "1k", "--error-rate", "7"], "error_rate is from"),
        (["--capacity", "1k", "--retention", "ring"], "needs slices"),
    ],
)
def test_plan_of_what_is_impossible(there, wrong, text):
    """Nothing can be had: that is an error, said once."""
    out, err = cli.run("plan", *wrong, code=2)
    assert out == b""
    assert text in err
    assert len(err.splitlines()) == 1


def test_digest(there):
    """The known digest; a filter's own digests; lines of stdin."""
    known = b"e81c1f5749545c5f7d247b3a100ffe62\thttps://www.baidu.com/\n"
    assert cli.run("digest", "https://www.baidu.com/")[0] == known
    assert cli.run("digest", given=b"https://www.baidu.com/\n")[0] == known
    cli.run("create", "news", "--capacity", "1k", "--hash", "md5", "--normalize", "whatwg", "--shards", "7")
    out, _ = cli.run("digest", "--filter", "news", "https://WWW.baidu.com:443")
    assert out == b"e81c1f5749545c5f7d247b3a100ffe62\t2\thttps://WWW.baidu.com:443\n"


def test_fingerprint():
    """Scrapy's fingerprint of arguments and of lines; what is no address is refused."""
    request = pytest.importorskip("scrapy.utils.request")
    scrapy = pytest.importorskip("scrapy")
    url, other = "https://example.com/?b=1&a=2#part", "https://example.com/?a=2&b=1"
    known = request.fingerprint(scrapy.Request(url)).hex()
    assert cli.run("fingerprint", url, other)[0].decode() == f"{known}\n" * 2
    assert cli.run("fingerprint", given=f"{url}\n".encode())[0].decode() == f"{known}\n"
    assert json.loads(cli.run("fingerprint", "--json", url)[0]) == {"url": url, "fingerprint": known}
    cli.run("fingerprint", "example", code=2)
    mixed = f"\ufeff{url}\r\n\nexample\n{other}\n".encode()
    out, err = cli.run("fingerprint", given=mixed, code=2)
    assert out.decode() == f"{known}\n" * 2
    assert err.splitlines() == [
        "urifilter: '' is no URL, and left out: Missing scheme in request url: ",
        "urifilter: 'example' is no URL, and left out: Missing scheme in request url: example",
    ]


def test_lua_list_and_load(there):
    """Names and SHA1s; after load the server has each."""
    lines = cli.run("lua", "load")[0].decode().splitlines()
    listed = cli.run("lua", "list")[0].decode().splitlines()[1:]
    assert [line.split() for line in lines] == [line.split()[:2] for line in listed]
    assert all(there.ask("script_exists", *[line.split()[1] for line in lines]))


def test_lua_show(there):
    """The source that runs, for a layout or a filter."""
    with there.client() as client:
        for arguments in (["insert"], ["insert", "--layout", "classic"], ["drop"], ["contains", "--k", "16"]):
            sha1 = client.script_load(cli.run("lua", "show", *arguments)[0])
            assert sha1 in cli.run("lua", "list")[0].decode()
    cli.run("create", "news", "--capacity", "1k", "--layout", "classic")
    assert cli.run("lua", "show", "insert", "news")[0] == cli.run("lua", "show", "insert", "--layout", "classic")[0]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is missing: apt-get install redis-tools")
@pytest.mark.parametrize("item", ["https://www.baidu.com/", 'it\'s; $(echo) "quoted" ü'])
@pytest.mark.parametrize("more", [[], ["--shards", "5", "--layout", "classic"]])
def test_redis_cli_line(there, item, more):
    """The printed line, run by a shell: 0 the first time and 1 the second; the library agrees."""
    cli.run("create", "news", "--capacity", "1k", "--error-rate", "1e-8", *more)
    line, err = cli.run("lua", "show", "insert", "news", item)
    assert err == ""
    answers = [subprocess.run(line, shell=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert answers == ["0\n", "1\n"]
    assert item in UriFilter.open("news")
    look = cli.run("lua", "show", "contains", "news", item)[0]
    assert subprocess.run(look, shell=True, capture_output=True, text=True).stdout == "1\n"
    gone = cli.run("lua", "show", "forget", "news", item)[0]
    assert subprocess.run(gone, shell=True, capture_output=True, text=True).stdout == "1\n"
    assert item not in UriFilter.open("news")


def test_list_with_a_broken_filter(there):
    """One filter that lost its meta is told; the others are listed; exit 2."""
    cli.run("create", "good", "--capacity", "1k")
    cli.run("create", "lost", "--capacity", "1k")
    there.ask("hset", "urifilter:{lost:0}:meta", "k", "x")
    out, err = cli.run("list", "--json", code=2)
    assert [each["name"] for each in json.loads(out)] == ["good"]
    assert "filter 'lost'" in err


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_something_else_listens():
    """A port where no Redis is: a short message, within its time."""
    with answering(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        _, err = cli.run("list", "--redis", f"redis://127.0.0.1:{port}/0", code=2)
    assert len(err.splitlines()) == 1


def findings(url, code) -> dict[str, tuple[str, str]]:
    out, _ = cli.run("doctor", "--json", "--redis", url, code=code)
    return {each["subject"]: (each["level"], each["text"]) for each in json.loads(out)}


def test_doctor_on_a_good_server(make_server):
    """Everything is as the page on deployment has it: exit 0, and nothing to note."""
    server = make_server("redis70", appendonly="yes")
    UriFilter.create("news", capacity=1000, redis=server.url).close()
    for sync in ("always", "everysec"):
        server.ask("config_set", "appendfsync", sync)
        found = findings(server.url, 0)
        assert {level for level, _ in found.values()} == {"ok"}
    looked_at = {"version", "Lua", "rights", "eviction", "memory", "persistence", "disk", "replication", "filter news"}
    assert looked_at == set(found)


def test_doctor_on_a_bad_server(make_server):
    """Eviction, no persistence, little memory, an over-full and a damaged filter: each is a danger, exit 1."""
    server = make_server("redis70", **{"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"})
    with UriFilter.create("full", capacity=10, redis=server.url) as full:
        full.insert_many(range(100))
    UriFilter.create("lost", capacity=1000, redis=server.url).close()
    with server.client() as client:
        client.delete("urifilter:{lost:0}:today")
        client.setrange("filler", 10_000_000, b"x")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
        found = findings(server.url, 1)
    dangers = {subject for subject, (level, _) in found.items() if level == "danger"}
    assert dangers == {"eviction", "memory", "persistence", "filter full", "filter lost"}
    text, _ = cli.run("doctor", "--redis", server.url, code=1)
    assert b"CONFIG SET maxmemory-policy noeviction" in text
    server.ask("config_set", "maxmemory", 1_000_000)
    _, told = findings(server.url, 1)["memory"]
    assert re.match(r"[\d,]+ bytes used, and maxmemory is 1,000,000: inserts are refused", told)


@pytest.mark.parametrize(("damage", "told"), [("delete", "is missing"), ("append", "bytes and should have")])
def test_deleted_bitmap(there, damage, told):
    """info, list and doctor name a bitmap of any shard and any slice that is missing, or has another length."""
    settings = {"retention": "ring", "slices": 3, "period": "1d"}
    with UriFilter.create("news", capacity=1000, shards=5, **settings) as news:
        news.rotate()
    key = shard_key("news", 3, 5, "history_1")
    there.ask("delete", key) if damage == "delete" else there.ask("append", key, b"x")
    for command, code in ((["info", "news"], 2), (["list"], 2)):
        _, err = cli.run(*command, code=code)
        assert f"{key} " in err
        assert told in err
    level, text = findings(there.url, 1)["filter news"]
    assert (level, key in text, told in text) == ("danger", True, True)


@pytest.mark.slow
def test_doctor_sees_replicas(make_server):
    """A primary with a replica is noted; a replica is no place to insert."""
    primary = make_server("redis70")
    replica = make_server("redis70", replicaof=f"127.0.0.1 {primary.port}")
    with replica.client() as client:
        while client.info("replication")["master_link_status"] != "up":
            pass
    assert findings(primary.url, 1)["replication"][0] == "note"
    assert findings(replica.url, 1)["replication"][0] == "danger"


def test_doctor_sees_that_replicas_are_missing(make_server):
    """A server that refuses all writes until it has replicas is told; a user who may not ask for the setting, too.

    Of what such a user cannot read it says so, and that is no error.
    """
    server = make_server("redis70", appendonly="yes", appendfsync="always", **{"min-replicas-to-write": "2"})
    with server.client() as client:
        client.acl_setuser("crawler", enabled=True, passwords="+pw", commands=["+@all", "-config"], keys=["*"])
        level, text = findings(server.url, 1)["replication"]
        assert (level, "min-replicas-to-write wants 2: all writes are refused" in text) == ("danger", True)
        crawlers = f"redis://crawler:pw@127.0.0.1:{server.port}/0"
        assert findings(crawlers, 1)["replication"][0] == "danger"
        client.config_set("min-replicas-to-write", 0)
        assert findings(crawlers, 0)["persistence"][0] == "note"
    assert findings(server.url, 0)["replication"] == ("ok", "no replicas")


@pytest.mark.slow
def test_embedded_by_default(tmp_path, monkeypatch):
    """Without any address the embedded server is used, with its data in URIFILTER_DATA_DIR."""
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(tmp_path / "data"))
    assert cli.run_process("dedupe", "-q", given=b"a\nb\na\n")[0] == b"a\nb\n"
    assert cli.run_process("dedupe", "-q", given=b"a\nc\n")[0] == b"c\n"
    assert (tmp_path / "data" / "appendonlydir").is_dir()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is missing: apt-get install redis-tools")
@pytest.mark.parametrize("more", [[], ["--shards", "5", "--layout", "classic"]])
def test_redis_cli_lines_of_claims(there, more):
    """From the claim to the commit; the script for shards with claims is shown once there are any."""
    cli.run("create", "news", "--capacity", "1k", "--error-rate", "1e-8", *more)
    item, other = "it's; $(echo) ü", "2" * 16
    plain = cli.run("lua", "show", "insert", "news")[0]

    def by_hand(command, *arguments):
        lines = cli.run("lua", "show", command, "news", *arguments)[0]
        said = subprocess.run(lines, shell=True, capture_output=True).stdout  # a digest is raw bytes
        return said.decode("utf-8", "replace").split("\n")[:-1]

    line, err = cli.run("lua", "show", "claim", "news", item, "--lease", "5m")
    (holder,) = re.findall("the holder is ([0-9a-f]{16})", err)
    assert subprocess.run(line, shell=True, capture_output=True, text=True).stdout == "0\n"
    if not more:  # with one shard it is the shard of the item
        assert cli.run("lua", "show", "insert", "news")[0] != plain
    assert by_hand("insert", item) == by_hand("contains", item) == by_hand("claim", item) == ["-1"]
    assert by_hand("beat", item, "--holder", holder) == ["1"]
    assert by_hand("release", item, "--holder", other) == ["0"]
    assert by_hand("release", item) == ["1"]
    assert by_hand("reclaim", item, "--holder", other)[-3:] == ["0", "0", f"s{item}"]
    assert by_hand("commit", item, "--holder", other) == ["0"]
    assert by_hand("commit", item) == ["1"]
    assert item in UriFilter.open("news")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["beat", "news", "x"], "beat takes the --holder"),
        (["claim", "news", "x", "--holder", "00" * 8], "a holder is 16 hex digits"),
        (["claim", "news", "x", "--lease", "2h"], "a lease is 5 to 3600 seconds"),
        (["claim", "news", "x", "--lease", "soon"], "soon"),
        (["create", "news", "x"], "create is not about items"),
    ],
)
def test_lines_that_cannot_be_made(there, arguments, text):
    """The reason is told, and nothing is printed to paste."""
    cli.run("create", "news", "--capacity", "1k")
    out, err = cli.run("lua", "show", *arguments, code=2)
    assert out == b""
    assert text in err


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl", "noeviction"])
def test_policy_that_deletes_bitmaps(server, folder, caplog, policy):
    """Who makes or restores a filter is warned, and doctor calls it a danger; a filter has no keys that expire."""
    danger = policy.startswith("allkeys")
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
        try:
            with UriFilter.create("news", capacity=1000, redis=server.url, archive=folder) as news:
                news.insert_many(range(10))
                news.checkpoint()
                assert {client.ttl(key) for key in client.keys()} == {-1}
            made, _ = caplog.text.count("so the server deletes bitmaps"), caplog.clear()
            client.flushall()
            UriFilter.open("news", redis=server.url, archive=folder).close()
            assert (made > 0, "so the server deletes bitmaps" in caplog.text) == (danger, danger)
            level, _ = findings(server.url, 1)["eviction"]
            assert level == ("danger" if danger else "ok")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
