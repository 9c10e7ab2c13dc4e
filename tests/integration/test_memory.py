"""A server's memory: the look before a filter is made, and what a full server still does."""

from __future__ import annotations

import functools
import json
import os
import pty

import pytest
import redis
from support import cli
from support.interleaved import Actor
from support.shard_keys import shard_key

from urifilter_redis import ServerUnavailable, TooLarge, UriFilter, drop_filter
from urifilter_redis.bloom.sizing import SEGMENT_LIMIT, allocated
from urifilter_redis.flows import lifecycle
from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.config import Settings
from urifilter_redis.service.filters import try_all
from urifilter_redis.service.settings import load

#: 1.45 MB.
MIDDLING = {"capacity": 500_000}
MB = 1_000_000


@pytest.fixture
def admin(server):
    """A client of the server; its limit is taken away again."""
    with server.client() as client:
        yield client
        client.config_set("maxmemory", 0)


def leave(admin, size) -> None:
    """Let the server have so many bytes left, once it has run the script with which every filter is opened.

    A server keeps some memory for each command that it has run.
    """
    admin.eval(scripts.load("probe").source, 1, "any:merging_1", "list")
    admin.config_set("maxmemory", round(admin.info("memory")["used_memory"] + size))


def fill(admin) -> None:
    """Let the server have nothing left."""
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] // 2)


def test_what_does_not_fit_is_refused(server, admin):
    """100 million items where 60 MB are free: refused with figures before anything is written, large or not."""
    leave(admin, 60 * MB)
    for large in (False, True):
        with pytest.raises(TooLarge, match=r"it takes 3\d\d MB, and the server has [56]\d(\.\d)? MB free") as caught:
            UriFilter.create("news", redis=server.url, capacity=100_000_000, large=large)
        assert not caught.value.fits
        assert "raise maxmemory" in str(caught.value)
    assert admin.keys() == []


@pytest.mark.slow
def test_what_the_machine_has_not_is_refused(any_server):
    """Without maxmemory it is the machine's memory that counts."""
    with any_server.client() as admin:
        total = admin.info("memory")["total_system_memory"]
        with pytest.raises(TooLarge, match="used of the machine's") as caught:
            UriFilter.create("news", redis=any_server.url, capacity=int(total / 2), error_rate=1e-4, large=True)
        assert not caught.value.fits
        assert admin.keys() == []


def test_much_of_it_wants_to_be_said(server, admin, clients):
    """Less than a quarter more is free: refused without ``large=True``; what is there already needs nothing."""
    leave(admin, 1.8 * MB)
    with pytest.raises(
        TooLarge, match=r"less than 1\.97 MB, 1\.25 times what it takes when it is full: .*large=True"
    ) as caught:
        clients.create("news", redis=server.url, **MIDDLING)
    assert caught.value.fits
    assert admin.keys() == []
    clients.create("news", redis=server.url, large=True, **MIDDLING)
    leave(admin, MB)
    clients.create("news", redis=server.url, **MIDDLING)


def test_all_that_lives_at_once_counts(server, admin):
    """A rolling filter has three bitmaps while it rotates, and its closed slices; a ring one more than its window."""
    leave(admin, 4 * MB)
    for retention, slices in (("rolling", 4), ("ring", 8)):
        where = {"retention": retention, "slices": slices, "period": "1d", "error_rate": 1e-2}
        with pytest.raises(TooLarge, match=r"at first and (3\.54|5\.99) MB when full"):
            UriFilter.create("news", redis=server.url, capacity=700_000, **where)
        UriFilter.create("news", redis=server.url, capacity=300_000, **where).drop()


@pytest.mark.slow
@pytest.mark.parametrize("retention", ["forever", "ring", "rolling"])
def test_what_is_planned_is_enough(make_server, retention):
    """With the advised ``maxmemory`` a filter is made, filled and rotated until all is in use, and beyond."""
    server, slices = make_server("redis70"), 8
    timed = ["--retention", retention, "--slices", slices, "--period", "1d"] if retention != "forever" else []
    settings = ["--capacity", "400k", *timed]
    plans = json.loads(cli.run("plan", *settings, "--json")[0])
    plan = next(each for each in plans if (each["layout"], each["error_rate"]) == ("blocked", 1e-4))
    with server.client() as admin:
        admin.config_set("latency-tracking", "no")  # some 40 kB for each command that is sent the first time
        begun = admin.info("memory")["used_memory"]
        admin.config_set("maxmemory", round(1.25 * plan["memory_when_full"] + 16e6))
        cli.run("create", "news", *settings, "--redis", server.url)
        taken = admin.info("memory")["used_memory"] - begun
        assert taken == pytest.approx(plan["memory_at_first"], abs=MB)
        with UriFilter.open("news", redis=server.url) as news:
            for period in range(slices + 2 if timed else 1):
                items = 400_000 // (slices if timed else 1)
                news.insert_many(range(period * items, (period + 1) * items))
                if timed:
                    news.rotate()
        most = admin.info("memory")["used_memory_peak"] - begun
        assert 0.7 * plan["memory_when_full"] < most < plan["memory_when_full"] + 3 * MB


@pytest.mark.parametrize(
    "timed", [[], ["--retention", "ring", "--slices", 8, "--period", "1d"]], ids=["forever", "ring"]
)
def test_the_advised_memory_wants_no_word(server, admin, timed):
    """With the documented ``maxmemory``, a quarter more than is planned and 16 MB, ``create`` does not ask."""
    settings = ["--capacity", "20M", *timed]
    plans = json.loads(cli.run("plan", *settings, "--json")[0])
    plan = next(each for each in plans if (each["layout"], each["error_rate"]) == ("blocked", 1e-4))
    admin.config_set("maxmemory", round(1.25 * plan["memory_when_full"] + 16e6))
    cli.run("create", "news", *settings, "--redis", server.url)


def test_made_by_another_meanwhile(server, admin):
    """What another has made when this process is about to refuse is opened."""
    leave(admin, 2 * MB)
    creator = Actor(server, functools.partial(lifecycle.create, settings=Settings(**MIDDLING)))
    while creator.next() != "INFO":
        creator.step()
    UriFilter.create("news", redis=server.url, **MIDDLING, large=True).close()
    creator.run()
    assert creator.error is None


def test_a_user_who_may_not_ask(server, admin):
    """Without INFO the filter is made without the look."""
    leave(admin, 2 * MB)
    admin.acl_setuser(
        "crawler", enabled=True, passwords=["+word"], categories=["+@all"], keys=["*"], commands=["-info"]
    )
    try:
        url = server.url.replace("redis://", "redis://crawler:word@")
        UriFilter.create("news", redis=url, **MIDDLING).close()
    finally:
        admin.acl_deluser("crawler")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("at", ["SADD", "EVALSHA"])
def test_memory_that_is_taken_meanwhile(server, admin, at, shards):
    """The server is full when the filter is half made: nothing of it is left, and the message says so."""
    settings = Settings(capacity=1000, shards=shards)
    creator = Actor(server, functools.partial(lifecycle.create, settings=settings))
    while creator.next() != "SADD":
        creator.step()
    if at == "EVALSHA":
        for _ in range(4):  # the name is listed; no script, its loading, and again
            creator.step()
    fill(admin)
    creator.run()
    admin.config_set("maxmemory", 0)
    if (at, shards) == ("EVALSHA", 1):
        assert creator.error is None
        return
    assert isinstance(creator.error, ServerUnavailable)
    assert ("the shards that were made are removed again" in str(creator.error)) == (at == "EVALSHA")
    assert admin.keys() == []


def test_others_complete_what_ran_out_of_memory(server, admin):
    """Who ran out of memory opens what another has completed meanwhile, and does not remove it."""
    settings = {"capacity": 1000, "shards": 3}
    creator = Actor(server, functools.partial(lifecycle.create, settings=Settings(**settings)))
    while admin.exists("urifilter:{news:0}:meta") == 0:
        creator.step()
    fill(admin)
    while creator.next() != "HGETALL":  # it looks whether it may remove what was made
        creator.step()
    admin.config_set("maxmemory", 0)
    with UriFilter.create("news", redis=server.url, **settings) as other:
        creator.run()
        assert creator.result == other.config
        assert other.insert_ages(range(100)).count(0) == 100


def test_with_an_archive_it_is_completed(server, admin, folder):
    """With an archive, which knows the filter already, the next create completes it; drop frees all."""
    settings, url = {"capacity": 1000, "shards": 3}, f"unix://{server.socket}"
    for end in ("create", "drop"):
        creator = Actor(server, functools.partial(lifecycle.create, settings=Settings(**settings)), archive=folder)
        while not creator.ended and admin.exists(shard_key("news", 1, 3, "meta")) == 0:
            creator.step()
        fill(admin)
        creator.run()
        assert isinstance(creator.error, ServerUnavailable)
        assert "the next create completes it, and drop removes it" in str(creator.error)
        if end == "create":
            admin.config_set("maxmemory", 0)
            UriFilter.create("news", redis=url, archive=folder, **settings).close()
        drop_filter("news", redis=url, archive=folder)
        assert admin.keys() == []
        admin.config_set("maxmemory", 0)


def test_drop_frees_a_full_server(server, admin):
    """At maxmemory a filter of several shards is dropped all the same, through the library and the command line."""
    for drop in (
        lambda: drop_filter("news", redis=server.url),
        lambda: cli.run("--redis", server.url, "drop", "news", "--yes"),
        lambda: UriFilter.open("news", redis=server.url).drop(),
    ):
        news = UriFilter.create(
            "news", redis=server.url, capacity=1000, shards=20, retention="ring", slices=2, period="1d"
        )
        news.insert_many(range(100))
        news.rotate()
        news.forget(range(10))
        admin.script_flush()
        fill(admin)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            admin.set("one", "more")
        drop()
        assert admin.keys() == []
        admin.config_set("maxmemory", 0)


def test_command_line(server, admin):
    """``create`` wants --yes, and so do ``add`` and ``dedupe`` for a filter of their own; else it says how much."""
    leave(admin, 40 * MB)
    where = ["--redis", server.url]
    for command, given in (
        (["create", "news", "--capacity", "12M"], b""),
        (["dedupe"], b"a\n"),
        (["dedupe", "--temporary"], b"a\n"),
        (["add"], b"a\n"),
    ):
        out, err = cli.run(*where, *command, given=given, code=2)
        assert out == b""
        assert "--yes" in err
        assert "MB free" in err
        assert admin.keys() == []
        cli.run(*where, *command, "--yes", given=given)
        admin.execute_command("FLUSHALL", "SYNC")  # Valkey would free the memory a while later
    assert "raise maxmemory" in cli.run(*where, "create", "news", "--capacity", "100M", "--yes", code=2)[1]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_command_line_asks(any_server, answer):
    """On a terminal ``create`` asks."""
    with any_server.client() as admin:
        leave(admin, 50 * MB)
        terminal, end = pty.openpty()
        try:
            process = cli.start("--redis", any_server.url, "create", "news", "--capacity", "15M", stdin=end)
            os.write(terminal, answer.encode() + b"\n")
            _, err = process.communicate(timeout=60)
        finally:
            os.close(terminal)
            os.close(end)
            admin.config_set("maxmemory", 0)
        assert b"MB free" in err
        assert b"Make it? [y/N]" in err
        assert (process.returncode, admin.exists("urifilter:{news:0}:meta")) == ((0, 1) if answer == "y" else (1, 0))


def test_service(server, admin, tmp_path):
    """A filter of the settings says ``large = true``."""
    leave(admin, 1.8 * MB)
    file = tmp_path / "settings.toml"
    file.write_text(f'redis_url = "{server.url}"\n[filters.news]\ncapacity = 500_000\n')
    with pytest.raises(TooLarge):
        try_all(load({}, file))
    file.write_text(f"{file.read_text()}large = true\n")
    try_all(load({}, file))
    assert admin.exists("urifilter:{news:0}:meta")


@pytest.mark.slow
def test_a_restore_that_does_not_fit(make_server, folder):
    """It is refused before anything is allocated, other filters go on, and once there is room all is brought back."""
    server = make_server("redis70")
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=10_000_000, shards=4, error_rate=1e-3) as news:
        news.insert_many(range(100))
        news.checkpoint()
    with server.client() as admin:
        admin.flushall()
        UriFilter.create("other", redis=server.url, capacity=1000).close()
        used = admin.info("memory")["used_memory"]
        admin.config_set("maxmemory", used + 12_000_000)
        with pytest.raises(TooLarge, match="its restore takes .* raise maxmemory, or free some") as refused:
            UriFilter.open("news", **where)
        assert not refused.value.fits
        assert admin.keys("urifilter:{news:*") == []
        with UriFilter.open("other", redis=server.url) as other:
            assert other.insert("a")
        admin.config_set("maxmemory", 0)
        with UriFilter.open("news", **where) as news:
            assert 0 not in news.ages(range(100))


@pytest.mark.parametrize("length", [1500, 48_000, 100_000, 290_208, 2_901_840, 9_000_000, SEGMENT_LIMIT])
def test_what_a_bitmap_takes(server, admin, length):
    """MEMORY USAGE of a bitmap, within 1 %; with the C library's allocator up to a fifth less."""
    key = "urifilter:{news:0}:today"
    admin.setrange(key, length - 1, b"\0")
    used = admin.memory_usage(key)
    if admin.info("memory")["mem_allocator"].startswith("jemalloc"):
        assert allocated(length) == pytest.approx(used, rel=0.01)
    else:
        assert used <= allocated(length) < used * 1.25
