"""What goes wrong with addresses, servers and keys: which error, in what time, with nothing lost.

Behind some addresses no filter can be: an error of the tree, at once; others belong to a server that is only away.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import cli
from support.answering import answering
from support.shard_keys import shard_key
from support.states import dumped

from urifilter_redis import AnswerLost, ServerFull, ServerUnavailable, SliceLost, Timeouts, UriFilter, UriFilterError

#: Seconds that a call may take: the total, a last reply, and a slow machine.
IN_TIME = 15


@pytest.fixture
def news(server, make_filter):
    made = make_filter(capacity=10_000, shards=3)
    made.insert_many(range(100))
    return made


def error_of(method, *arguments, **more) -> UriFilterError:
    start = time.monotonic()
    with pytest.raises(UriFilterError) as caught:
        method(*arguments, **more)
    assert time.monotonic() - start < IN_TIME
    return caught.value


def cli_says(server, code=2, command=("check", "--filter", "news")) -> str:
    _, err = cli.run(*command, "--redis", server.url, given=b"".join(b"line %d\n" % i for i in range(100)), code=code)
    return err


def test_deleted_slice(news, server):
    """LOST, also when somebody has put another key in its place; the message names the key."""
    key = shard_key("news", 1, 3, "today")
    server.ask("delete", key)
    assert f"{key} has 0 bytes" in str(error_of(news.insert_ages, range(100, 200)))
    assert "has 0 bytes" in cli_says(server, command=("dedupe", "--filter", "news"))
    server.ask("lpush", key, "x")
    assert isinstance(error_of(news.insert_ages, range(100, 200)), SliceLost)


def test_deleted_meta(news, server):
    """A slice without meta is LOST for open, create and every call, not an empty filter."""
    server.ask("delete", "urifilter:{news:0}:meta")
    server.ask("delete", shard_key("news", 1, 3, "meta"))
    assert isinstance(error_of(news.insert_ages, range(100, 200)), SliceLost)
    assert isinstance(error_of(UriFilter.open, "news", redis=server.url), SliceLost)
    create = {"redis": server.url, "capacity": 10_000, "error_rate": 1e-8, "shards": 3}
    assert isinstance(error_of(UriFilter.create, "news", **create), SliceLost)
    assert "meta is missing" in cli_says(server)


@pytest.mark.parametrize("has", ["forgotten", "claimed"])
def test_a_full_server_inserts_nothing(server, has):
    """At maxmemory no item is inserted, also where a call would first remove a forgotten or a claimed item."""
    with UriFilter.create("news", redis=server.url, capacity=1000) as news:
        news.insert("a")
        mine = news.claims(lease=60)
        if has == "forgotten":
            news.forget(["a"])
        else:
            mine.claim("c")
        news.insert("d")  # the next call of its slot needs no new record
        server.ask("config_set", "maxmemory", "1")
        try:
            assert type(error_of(news.insert, "x")) is ServerFull
            assert type(error_of(news.insert_many, ["x", "y"])) is ServerFull
            assert news.ages(["x", "y"]) == [0, 0]
        finally:
            server.ask("config_set", "maxmemory", "0")
            mine.close()


def test_a_full_server_lets_items_be_removed(server, make_filter):
    """At maxmemory ``remove`` works; ``forget`` takes memory: it is refused whole, and says what to do."""
    counted, news = make_filter("counted", layout="counting"), make_filter()
    counted.insert_many(range(700))
    news.insert_many(["a", "b"])
    server.ask("config_set", "maxmemory", "1")
    try:
        assert counted.remove(range(700)) == [True] * 700
        assert counted.remove(range(700)) == [False] * 700
        assert counted.inserted() == 0
        error, other = error_of(news.forget, ["a", "c"]), error_of(news.insert_ages, ["a", "c"])
        assert {type(error), type(other)} == {ServerFull}
        assert "or drop a filter, then ask again" in str(error)
        assert "memory is full, and it wrote nothing more: raise maxmemory" in str(other)
        assert "memory is full" in cli_says(server, command=("dedupe", "--filter", "news"))
        assert news.ages(["a", "b"]) == [1, 1]
    finally:
        server.ask("config_set", "maxmemory", "0")
    assert news.forget(["a", "c"], retry=error) == [True, False]


@pytest.mark.slow
def test_read_only_replica(make_server):
    """A replica refuses inserts with advice, and answers contains."""
    primary = make_server("redis70")
    with UriFilter.create("news", redis=primary.url, capacity=10_000) as news:
        news.insert("a")
    replica = make_server("redis70", replicaof=f"127.0.0.1 {primary.port}")
    with replica.client() as admin:
        while admin.info("replication")["master_link_status"] != "up":
            time.sleep(0.01)
    with UriFilter.open("news", redis=replica.url) as news:
        assert "read-only replica: give the address of the primary" in str(error_of(news.insert, "b"))
        assert news.ages(["a", "b"]) == [1, 0]
    assert "read-only replica" in cli_says(replica, command=("dedupe", "--filter", "news"))


def test_wrong_password(make_server):
    """No password, or a wrong one: at once, without retries, and never shown."""
    server = make_server("redis70", requirepass="secret")
    for password in ("", ":wrong@"):
        error = error_of(UriFilter.open, "news", redis=f"redis://{password}127.0.0.1:{server.port}/0")
        assert isinstance(error, ServerUnavailable)
        assert ("password" in str(error), "wrong" in str(error)) == (True, False)


def test_user_without_permission(make_server):
    """NOPERM names the remedy."""
    server = make_server("redis70")
    UriFilter.create("news", redis=server.url, capacity=10_000).close()
    server.ask("acl_setuser", "crawler", enabled=True, passwords="+pw", commands=["+@read", "+time"], keys=["*"])
    url = f"redis://crawler:pw@127.0.0.1:{server.port}/0"
    error = error_of(UriFilter.open, "news", redis=url)
    assert isinstance(error, ServerUnavailable)
    assert "mend its ACL" in str(error)
    server.ask("acl_setuser", "crawler", enabled=True, commands=["+evalsha"])  # but not to load the script
    server.ask("script_flush")
    assert "mend its ACL" in str(error_of(UriFilter.open, "news", redis=url))


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_server_that_stops_answering(clients, make_server):
    """SIGSTOP: AnswerLost within its time; once it goes on, the answer is still to be had."""
    server = make_server("redis70")
    quick = Timeouts(connect=0.3, reply=0.3, total=1)
    with clients.create("news", redis=server.url, capacity=10_000, error_rate=1e-8, timeouts=quick) as news:
        news.insert("a")
        server.suspend()
        try:
            error = error_of(news.insert_ages, ["a", "b"])
            assert isinstance(error, AnswerLost)
            assert not isinstance(error_of(news.contains, "a"), AnswerLost)
            err = cli_says(server)
        finally:
            server.resume()
        assert "gave up after 3 s" in err
        assert news.insert_ages(["a", "b"], retry=error) == [1, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_server_away_and_back(clients, make_server):
    """Killed: ServerUnavailable within its time; back: the same object goes on."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    with clients.create("news", redis=server.url, capacity=10_000, timeouts=Timeouts(total=0.5)) as news:
        news.insert("a")
        server.kill()
        assert isinstance(error_of(news.insert, "b"), ServerUnavailable)
        assert isinstance(error_of(UriFilter.open, "news", redis=server.url), ServerUnavailable)
        server.start()
        assert news.insert("a") is False
        assert news.insert("c") is True


@pytest.mark.slow
def test_server_that_is_loading(make_server):
    """LOADING is waited for within the total time, then told."""
    server = make_server("redis70", appendonly="yes", appendfsync="always", **{"key-load-delay": "0"})
    with UriFilter.create("news", redis=server.url, capacity=100_000, timeouts=Timeouts(total=1)) as news:
        news.insert_many(range(20_000))
        server.kill()
        server.config |= {"key-load-delay": "200"}
        server.start(answers=False)
        error = error_of(news.insert, "x")
        assert "LOADING" in str(error)


@pytest.mark.parametrize("damage", [None, "x"])
def test_damaged_meta_of_an_open_filter(any_server, damage):
    """The field that scripts read is gone, or cannot be read: LOST, and nothing is written."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news, any_server.client() as admin:
        admin.hdel("urifilter:{news:0}:meta", "fixed")
        if damage:
            admin.hset("urifilter:{news:0}:meta", "fixed", damage)
        before = dumped(admin)
        for call in (news.insert, news.contains, news.forget):
            with pytest.raises(SliceLost, match="damaged"):
                call(["a"] if call == news.forget else "a")
        assert dumped(admin) == before


@pytest.mark.parametrize("retention", [{}, {"retention": "ring", "slices": 2, "period": "1d"}])
def test_meta_is_a_hash_table(any_server, admin, retention):
    """A list would be searched from its start for each field that a call reads. Meta that is one works all the same."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000, **retention) as news:
        meta = "urifilter:{news:0}:meta"
        assert admin.object("encoding", meta) == b"hashtable"
        assert news.insert("a")
        admin.hset(meta, "fixed", admin.hget(meta, "fixed").rstrip())
    with UriFilter.open("news", redis=any_server.url) as news, news.claims() as mine:
        assert [news.insert(each) for each in "ab"] == [False, True]
        assert mine.claim("c")
        scripts = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert not mine.outstanding()
        assert admin.info("commandstats")["cmdstat_evalsha"]["calls"] == scripts


@pytest.fixture
def ask(clients):
    """Open a filter and ask it something; if it were tried again and again, the message would say so."""
    return lambda url: clients.open("news", redis=url, timeouts=Timeouts(total=0.3)).contains("x")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("redis://nosuch.invalid:6379/0", "nosuch.invalid"),
        ("redis://a..b:6379/0", "label empty"),
        ("unix:///nosuch/socket", "No such file"),
        ("{url}/99", "DB index is out of range"),
        ("{url}/0?encoding=nosuch&decode_responses=1", "unknown encoding: nosuch"),
        ("{url}/0?encoding_errors=nosuch&decode_responses=1", "unknown error handler"),
    ],
)
def test_hopeless_address(any_server, ask, address, text):
    """It is not tried again."""
    url = address.format(url=any_server.url.removesuffix("/0"))
    with pytest.raises(ServerUnavailable, match=text) as caught:
        ask(url)
    assert "gave up" not in str(caught.value)


def test_an_option_that_there_is_not(any_server, ask):
    """Nothing is asked: the address is wrong, and says where."""
    with pytest.raises(ValueError, match="nosuch: there is no such option"):
        ask(f"{any_server.url}?nosuch=1")


def test_server_that_restarts_is_waited_for(make_server):
    """Connections are refused, or its socket is not there for a moment: the call gets its answer all the same."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    settings = {"capacity": 1000, "timeouts": Timeouts(total=60)}
    both = [UriFilter.create("news", redis=url, **settings) for url in (server.url, f"unix://{server.socket}")]
    both[0].insert("x")
    server.ask("shutdown")
    server.process.wait(60)
    assert not server.socket.exists()
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(news.contains, "x") for news in both]
        server.start()
        assert [each.result(60) for each in asked] == [True, True]
    for news in both:
        news.close()


def test_server_that_refuses_connections_is_tried_again(ask):
    """It may be about to start."""
    with pytest.raises(ServerUnavailable, match=re.escape("gave up after 0.3 s")):
        ask("redis://127.0.0.1:1/0")


@pytest.mark.sampled
@pytest.mark.parametrize("answer", [b"+OK\r\n", b":7\r\n", b"*2\r\n+a\r\n+b\r\n", b"$-1\r\n", b"*0\r\n"])
def test_something_else_answers(ask, answer):
    """What speaks Redis's protocol and answers nonsense to everything is an error of the tree."""
    with answering(lambda asked: answer * len(re.findall(rb"^\*", asked, re.MULTILINE))) as port:
        url = f"redis://127.0.0.1:{port}/0"
        with pytest.raises(UriFilterError):
            ask(url)
        with pytest.raises(UriFilterError):
            UriFilter.create("news", capacity=1000, redis=url, timeouts=Timeouts(total=0.3))
