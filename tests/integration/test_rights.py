"""A user whose ACL forbids a command: nothing is half done, and opening the filter says which commands are missing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re

import pytest
from support.cli import run
from support.states import dumped
from support.users import User

from urifilter_redis import AsyncUriFilter, UriFilter, drop_filter
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.errors import AnswerLost, FilterNotFound, ServerUnavailable, UriFilterError
from urifilter_redis.protocol import scripts

pytestmark = pytest.mark.slow

TIMED = {"slices": 3, "period": "1d"}
FILTERS = {
    "blocked": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing", "capacity": 200},
    "ring": {"retention": "ring"} | TIMED,
    "all": {"retention": "ring", "write": "all"} | TIMED,
    "rolling": {"retention": "rolling"} | TIMED,
}
REFUSED = "this user may not run .*HSET.*, which insert calls, and nothing was changed: mend its ACL"
TRIED = sorted(set(re.findall(r"{ '([A-Z_]+)'", scripts.load("probe").source)))

#: Filters of layout redisbloom, which call the commands of the server's module as well.
OF_MODULE = {
    "redisbloom": {"layout": "redisbloom"},
    "redisbloom, growing": {"layout": "redisbloom"} | FILTERS["growing"],
    "redisbloom, ring": {"layout": "redisbloom"} | FILTERS["ring"],
}
MODULE_TRIED = sorted(each for each in scripts.load("probe", "redisbloom").commands if each.startswith("BF."))


@pytest.fixture
def users(server):
    with User(server) as made:
        yield made


@pytest.fixture(params=["bloom", "newer_bloom"])
def users_of_module(request):
    with User(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("how", ["retry", "plainly"])
def test_no_item_is_lost_for_a_missing_right(users, name, how):
    """Whichever command is forbidden: what was refused is new when it is asked about again, once."""
    insert_without(users, TRIED, FILTERS[name], how)


@pytest.mark.parametrize("name", OF_MODULE)
@pytest.mark.parametrize("how", ["retry", "plainly"])
def test_no_item_is_lost_for_a_missing_right_about_the_module(users_of_module, name, how):
    """Likewise the commands of the server's module."""
    insert_without(users_of_module, MODULE_TRIED + TRIED, OF_MODULE[name], how)


def insert_without(users, commands, settings, how):
    settings = {"capacity": 10_000, "error_rate": 1e-9} | settings
    with UriFilter.create("news", redis=users.url, **settings) as news:
        numbers = itertools.count()
        for command in commands:
            items = [str(next(numbers)) for _ in range(30)]
            news.insert_many(items[:10])
            news.forget(items[:10])
            refusal = None
            with users.without(command):
                try:
                    assert news.insert_ages(items) == [0] * 30
                except ServerUnavailable as error:
                    refusal = error
            if refusal is not None:
                assert "mend its ACL" in str(refusal)
                retry = refusal if how == "retry" else None
                assert news.insert_ages(items, retry=retry) == [0] * 30, command
            assert 0 not in news.insert_ages(items)


def test_one_item_in_many_slices_is_not_lost_for_a_missing_right(users):
    """A ring that writes all slices, of which one needs a command that those before it did not: it is not half done."""
    settings = {"capacity": 1000, "layout": "classic"} | FILTERS["all"]
    with UriFilter.create("news", redis=users.url, **settings) as news:
        news.rotate()
        assert news.insert("first")  # from now on the slot has a record
        users.admin.setrange("urifilter:{news:0}:today", 0, b"\xff" * news.config.bytes)  # after half a union, say
        with users.without("BITFIELD_RO"), pytest.raises(ServerUnavailable, match="mend its ACL"):
            news.insert("second")
        assert news.insert("second")


@pytest.mark.parametrize("name", ["blocked", "counting", "ring"])
def test_forget_and_remove_are_whole_or_not_at_all(users, name):
    """Whichever command is forbidden: what was refused is still seen, and the repeat takes it out."""
    settings = {"capacity": 10_000, "error_rate": 1e-9} | FILTERS[name]
    with UriFilter.create(name, redis=users.url, **settings) as news:
        methods = [news.forget, news.remove] if name == "counting" else [news.forget]
        for number, (command, method) in enumerate(itertools.product(TRIED, methods)):
            items = [f"{number}/{i}" for i in range(20)]
            news.insert_many(items)
            with users.without(command):
                try:
                    answers = method(items)
                except ServerUnavailable:
                    answers = None
            if answers is None:
                answers = method(items)
            assert answers == [True] * 20, command
            assert news.insert_ages(items) == [0] * 20


@pytest.mark.parametrize("name", ["ring", "rolling", "growing"])
def test_no_slice_is_lost_for_a_missing_right(users, name):
    """Whichever command is forbidden in the middle of a turn: nothing of the filter is lost, and it turns later."""
    turn_without(users, TRIED, FILTERS[name])


@pytest.mark.parametrize("name", ["redisbloom, growing", "redisbloom, ring"])
def test_no_slice_is_lost_for_a_missing_right_about_the_module(users_of_module, name):
    """Likewise the commands of the server's module."""
    turn_without(users_of_module, MODULE_TRIED + TRIED, OF_MODULE[name])


def turn_without(users, commands, settings):
    settings = {"capacity": 10_000, "error_rate": 1e-9} | settings
    growing = settings["retention"] == "growing"
    with UriFilter.create("news", redis=users.url, **settings) as news:
        for number, command in enumerate(commands):
            items = [f"{number}/{i}" for i in range(20)]
            assert news.insert_ages(items) == [0] * 20
            with users.without(command), contextlib.suppress(UriFilterError):
                if growing:
                    news.insert_many(range(1000 * number, 1000 * number + 300))
                else:
                    news.rotate()
            assert news.ages(items) != [0] * 20, command
            if not growing:
                epoch = news.epoch()
                news.rotate_due()
                assert news.info().phase == "idle"
                assert news.epoch() == epoch
            assert 0 not in news.ages(items), command


@pytest.mark.parametrize("command", TRIED)
def test_making_and_dropping_for_a_missing_right(users, command):
    """A filter that could not be made can be; one that could not be dropped is whole, or dropping it again ends it."""
    settings = {"redis": users.url, "capacity": 1000, "shards": 3}
    with users.without(command), contextlib.suppress(ServerUnavailable):
        UriFilter.create("news", **settings).close()
    with UriFilter.create("news", **settings) as news:
        news.insert("a")
        with users.without(command):
            try:
                news.drop()
            except ServerUnavailable:
                dropped = False
            else:
                dropped = True
        if not dropped:
            with contextlib.suppress(FilterNotFound):
                assert news.contains("a")
            drop_filter("news", redis=users.url)
    with UriFilter.create("news", **settings) as news:
        assert news.insert("a")


@pytest.mark.parametrize("name", ["forever", "ring", "rolling"])
def test_nothing_is_lost_for_a_missing_right_in_a_restore(any_server, folder, name):
    """Whichever command is forbidden while a filter is restored: the next restore brings all of it back."""
    with User(any_server) as users:
        settings = {"redis": users.url, "archive": folder, "capacity": 1000, "error_rate": 1e-9}
        settings |= {} if name == "forever" else {"retention": name} | TIMED
        with UriFilter.create("news", **settings) as news:
            for day in range(2 if name == "forever" else 4):
                news.insert_many([f"{day}/{i}" for i in range(20)])
                if name != "forever" and day < 2:
                    news.rotate()
            news.checkpoint()
        last = [f"3/{i}" for i in range(20)] if name != "forever" else [f"1/{i}" for i in range(20)]
        for command in TRIED:
            for harm in ("flushall", "today"):
                users.admin.flushall() if harm == "flushall" else users.admin.delete("urifilter:{news:0}:today")
                with users.without(command), contextlib.suppress(UriFilterError):
                    UriFilter.open("news", redis=users.url, archive=folder).close()
                with UriFilter.open("news", redis=users.url, archive=folder) as news:
                    assert 0 not in news.ages(last), (command, harm)


def test_a_script_that_ends_in_its_middle_is_an_answer_lost(server):
    """Nobody knows how much a script has done that fails: AnswerLost, and the slot waits for ``retry=``."""
    with UriFilter.create("news", redis=server.url, capacity=1000) as news:
        server.ask("hset", "urifilter:{news:0}:replies", "somebody/0", b"\xc1 is no record")
        with pytest.raises(AnswerLost, match="half done") as lost:
            news.insert("a")
        server.ask("delete", "urifilter:{news:0}:replies")
        assert news.insert("a", retry=lost.value) is True
        assert news.insert("a") is False


@pytest.mark.parametrize("command", ["setrange", "hset", "evalsha", "getrange"])
def test_a_missing_right_leaves_nothing_in_doubt(users, command):
    """All is tried before the first write, so that what is refused for a right has certainly done nothing."""
    with UriFilter.create("news", redis=users.url, capacity=1000) as news:
        with users.without(command), pytest.raises(ServerUnavailable, match="nothing was changed") as refused:
            news.insert("a")
        assert not isinstance(refused.value, AnswerLost)
        assert news.insert("a") is True


def test_probe_tries_every_command_of_the_scripts():
    """A command that a script begins to use must be tried, too."""
    every = [each for each in scripts.variants(BLOCKED_K) if "redisbloom" not in each.name]
    called = {name for script in every for name in re.findall(r"[({] ?'([A-Z]+(?:_RO)?)'", script.source)}
    words = {"BADARG", "LOST"}  # of error replies
    assert called - words == set(TRIED)
    assert {name for name in TRIED if any(script.calls(name) for script in every)} == set(TRIED)


def test_probe_tries_every_command_of_a_module():
    """Those that the scripts of layout redisbloom call beside the others."""
    every = [each for each in scripts.variants(BLOCKED_K) if "redisbloom" in each.name]
    called = set[str]().union(*(each.commands for each in every if not each.name.startswith("probe")))
    assert {each for each in called if each.startswith("BF.")} == called - set(TRIED) == set(MODULE_TRIED)


def test_probe_changes_nothing(server):
    """Every command is tried where it has no effect, also at maxmemory."""
    with UriFilter.create("news", redis=server.url, capacity=1000) as news, server.client() as admin:
        news.insert("a")
        before = dumped(admin)
        UriFilter.open("news", redis=server.url).close()
        admin.config_set("maxmemory", "1")
        try:
            with UriFilter.open("news", redis=server.url) as opened:
                assert opened.forbidden == ()
        finally:
            admin.config_set("maxmemory", "0")
        assert before == dumped(admin)


@pytest.mark.parametrize("command", TRIED)
def test_open_says_which_command_is_missing(users, command, caplog):
    """Without those of ``contains`` nothing can be asked; any other is for the debug log, as nobody may miss it."""
    UriFilter.create("news", redis=users.url, capacity=1000).close()
    users.forbid(command)
    needed = scripts.load("contains", "blocked", 12).calls(command)
    if needed or command in {"TIME", "HGETALL"}:  # which opening needs, too
        with pytest.raises(ServerUnavailable, match=command if needed else "mend its ACL"):
            UriFilter.open("news", redis=users.url)
        return
    with caplog.at_level(logging.DEBUG, "urifilter_redis"), UriFilter.open("news", redis=users.url) as news:
        assert news.forbidden == (command,)
        assert news.contains("a") is False
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert f"may not run {command}, so " in record.getMessage()


def test_a_reader_is_served_and_refused_with_words(users, caplog):
    """Who may only look opens the filter in silence, and asks it; a refusal names commands and script; async, too."""
    UriFilter.create("news", redis=users.url, capacity=1000).close()
    users.forbid("@write")

    async def look() -> tuple[str, ...]:
        async with await AsyncUriFilter.open("news", redis=users.url) as news:
            assert not await news.contains("a")
            with pytest.raises(ServerUnavailable, match=REFUSED):
                await news.insert("a")
            return news.forbidden

    with caplog.at_level(logging.INFO, "urifilter_redis"):
        forbidden = asyncio.run(look())
        with UriFilter.open("news", redis=users.url) as news, pytest.raises(ServerUnavailable, match=REFUSED):
            news.insert("a")
    assert {"SETRANGE", "HSET", "UNLINK"} <= set(forbidden)
    assert caplog.records == []


def test_doctor_names_the_missing_rights(users):
    """``urifilter doctor`` says which commands this user may not run."""
    users.forbid("rename")
    found, _ = run("doctor", "--json", "--redis", users.url, code=1)  # the tests' server keeps nothing on disk
    (rights,) = [each for each in json.loads(found) if each["subject"] == "rights"]
    assert "RENAME" in rights["text"]
    assert rights["level"] == "note"
