"""Layout redisbloom, as users meet it: what it does beside the other layouts, and what it refuses."""

from __future__ import annotations

import functools
import json
import os

import pytest
from support import servers
from support.cli import invoke, run, run_process
from support.room import leave_room, make_room
from support.service import Service, ask

from urifilter_redis import ServerUnavailable, SliceLost, Unsupported, UriFilter, UriFilterError
from urifilter_redis.bloom.sizing import LEAST_RESERVED
from urifilter_redis.flows.problems import problems_of
from urifilter_redis.protocol.config import Settings
from urifilter_redis.sdk import FilterAPIClient, FilterAPIError

RING = {"retention": "ring", "slices": 3, "period": "1d"}
RETENTIONS = {"forever": {}, "growing": {"retention": "growing"}, "ring": RING | {"capacity": 1500}}


def made(bloom, name="news", **settings):
    return UriFilter.create(name, redis=bloom.url, layout="redisbloom", **{"capacity": 1000} | settings)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_whole_life(clients, bloom, retention):
    """Insert, ask, forget, claim, rotate or grow, describe, open and drop."""
    settings = {"capacity": 500, "error_rate": 1e-6, "shards": 2, "layout": "redisbloom"} | RETENTIONS[retention]
    with clients.create("news", redis=bloom.url, **settings) as news:
        assert news.insert_many(range(400)) == [True] * 400
        assert news.insert_many([1, 1000, 1000]) == [False, True, False]
        assert news.forget([7, 7]) == [True, False]
        assert news.contains_many([6, 7]) == [True, False]
        assert news.insert(7)
        if retention == "ring":
            assert news.rotate().epoch == 1
            assert news.insert_ages([3, 2000]) == [2, 0]
            assert news.ages([3, 2000], max_age=1) == [0, 1]
        if retention == "growing":
            assert sum(news.insert_many(range(3000, 5000))) == 2000
            assert news.contains_many(range(400)) == [True] * 400
        found = news.info()
        assert found.layout == "redisbloom"
        assert 0 < found.error_rate_now < found.error_rate_at_capacity <= 1e-6
        assert found.memory > sum(each.size for each in found.live_slices)
        assert found.inserted == {"forever": 402, "growing": 2402, "ring": 403}[retention]
        assert not found.over_capacity
    with clients.open("news", redis=bloom.url) as news:
        assert not news.insert(3)
        news.drop()
    assert bloom.ask("keys", "*news*") == []


def test_past_its_capacity(bloom):
    """The module takes more memory, and the rate stays within what was asked; ``info`` says so."""
    with made(bloom, error_rate=1e-3) as news:
        new = sum(news.insert_many(range(2500)))
        assert 2490 < new <= 2500
        assert all(news.contains_many(range(2500)))
        found = news.info()
        assert found.over_capacity
        (problem,) = problems_of(found, 0)
        assert problem.text.startswith("over its capacity (today 2,")
        assert "the server's filters have grown beside it" in problem.text
        assert found.error_rate_now == pytest.approx(1e-3)


REFUSED = {
    "retention rolling": {"retention": "rolling", "slices": 3, "period": "1d"},
    "more than 4 slices": RING | {"slices": 5},
    "write all": RING | {"write": "all"},
    "expire_after last-seen": RING | {"expire_after": "last-seen"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_is_not_for(what):
    """A setting that it cannot have is refused with the layout that can."""
    with pytest.raises(ValueError, match=f"layout redisbloom is not for {what}: take layout blocked"):
        Settings(capacity=1000, layout="redisbloom", **REFUSED[what])


def test_what_it_cannot_do(bloom, folder):
    """Likewise as it is asked for."""
    with pytest.raises(ValueError, match="layout redisbloom has no archive.*take layout blocked"):
        made(bloom, archive=folder)
    with made(bloom) as news, made(bloom, "other"):
        with pytest.raises(UriFilterError, match="redisbloom cannot be merged.*take layout blocked"):
            news.union("other")
        with pytest.raises(ValueError, match="remove is for layout counting"):
            news.remove(["a"])
        with pytest.raises(UriFilterError, match="archive"):
            news.checkpoint()


class OldModule(servers.Server):
    """A server whose BF.INFO takes a key alone, and refuses more words as a module of before 2.4 does."""

    def command(self, port):
        named = {"BF.INFO": "PING", "BF.MADD": "LPUSH", "BF.MEXISTS": "SMISMEMBER", "BF.RESERVE": "LINSERT"}
        more = [word for new, old in named.items() for word in ("--rename-command", old, new)]
        return [*super().command(port), *more]


@pytest.mark.parametrize(("kind", "needs"), [(servers.Server, "BF.INFO, "), (OldModule, "BF.INFO with CAPACITY: ")])
def test_server_without_the_module(kind, needs):
    """An error that says which command is not there, or not as it should be, at create and at open; nothing is made."""
    with kind("redis70") as server:
        with pytest.raises(Unsupported, match=f"layout redisbloom needs {needs}.*take layout blocked"):
            made(server)
        assert server.ask("keys") == []
        with UriFilter.create("news", redis=server.url, capacity=1000) as news:
            fixed = news.config.fixed(0).replace("blocked", "redisbloom")  # as if its module were not loaded any more
            server.ask("hset", news._session.keys.shard(0).meta, mapping={"layout": "redisbloom", "fixed": fixed})
        with pytest.raises(Unsupported, match=f"layout redisbloom needs {needs}"):
            UriFilter.open("news", redis=server.url)


@pytest.mark.slow
def test_what_the_server_will_never_do(any_server, service_for_admins):
    """It is no outage: library, CLI, HTTP, SDK and a service as it begins say so at once, with the reason."""
    settings = {"capacity": 1000, "layout": "redisbloom"}
    reason = "layout redisbloom needs BF.INFO"
    with pytest.raises(Unsupported, match=reason):
        UriFilter.create("news", redis=any_server.url, **settings)
    made = ("news", "--redis", any_server.url, "--capacity", "1000", "--layout", "redisbloom")
    assert reason in run("create", *made, code=2)[1]
    served = ("--redis", any_server.url, "--port", "0")
    environment = dict(os.environ) | {"URIFILTER_FILTERS__NEWS__CAPACITY": "1000"}
    environment["URIFILTER_FILTERS__NEWS__LAYOUT"] = "redisbloom"
    assert reason in run_process("serve", *served, code=2, env=environment)[1]
    running, secret = service_for_admins
    answer = ask(running, "POST", "/v1/filters/news/create", settings, secret)
    assert (answer.status, answer.json()["error_code"]) == (501, "unsupported")
    assert reason in answer.json()["error"]
    assert "retry-after" not in answer.headers
    with FilterAPIClient(running.url, secret) as api, pytest.raises(FilterAPIError, match=reason) as told:
        api.create("news", **settings)
    assert (told.value.status, told.value.error_code) == (501, "unsupported")


def test_valkey(valkey):
    """Its module has not been tried."""
    with pytest.raises(Unsupported, match="layout redisbloom"):
        made(valkey)


def test_slice_that_is_lost(bloom):
    """A slice that is missing, or another program's, is an error, in every call and in ``info``."""
    with made(bloom) as news, bloom.client() as admin:
        news.insert("a")
        today = news._session.keys.shard(0).slice("today")
        for instead in (None, ("BF.ADD", today, "a")):
            admin.unlink(today)
            if instead:
                admin.execute_command(*instead)
            for ask in (news.insert, news.contains):
                with pytest.raises(SliceLost, match="LOST .*today is missing, or is no Bloom filter for 1000 items"):
                    ask("b")
            with pytest.raises(SliceLost, match="today is missing"):
                news.info()


def test_failure_in_the_middle_of_a_call(bloom):
    """The items that were answered keep their answers; the others are asked about again, and the error has both."""
    with made(bloom, error_rate=1e-6) as news, bloom.client() as admin:
        leave_room(admin, news, 1000)
        assert sum(news.insert_many(range(900))) == 900
        with pytest.raises(UriFilterError, match="MODULE .*non scaling filter is full") as failed:
            news.insert_many([*range(890, 1005)])
        answers = failed.value.answers
        assert answers == [*[False] * 10, *[True] * 100, *[None] * 5]
        with pytest.raises(UriFilterError, match="MODULE"):
            news.insert_many([*range(890, 1005)], retry=failed.value)
        assert news.contains_many(range(1005)) == [*[True] * 1000, *[False] * 5]
        make_room(admin, news)  # now there is room
        assert news.insert_many([*range(890, 1005)], retry=failed.value) == [*answers[:110], *[True] * 5]


def test_failure_in_the_middle_of_many_calls(bloom):
    """Of a list that goes out in several pipelines those items are new that found room, and each is told."""
    with made(bloom, capacity=5200, error_rate=1e-6) as news, bloom.client() as admin:
        leave_room(admin, news, 5200)
        with pytest.raises(UriFilterError, match="MODULE") as failed:
            news.insert_many(range(9000))
        assert failed.value.answers.count(True) == 5200
        assert failed.value.answers.count(None) == 3800
        assert news.contains_many(range(9000)) == [each is True for each in failed.value.answers]


def test_failure_in_the_middle_of_a_commit(bloom):
    """What was not made final stays in flight, and is final once there is room."""
    with made(bloom, error_rate=1e-6) as news, bloom.client() as admin, news.claims() as mine:
        pages = list(range(2000, 2008))
        assert mine.claim_many(pages) == [True] * 8
        leave_room(admin, news, 1000)
        assert sum(news.insert_many(range(995))) == 995
        with pytest.raises(UriFilterError, match="MODULE") as failed:
            mine.commit(pages)
        assert failed.value.answers == [*[True] * 5, *[None] * 3]
        assert sorted(each.item for each in mine.held) == pages[5:]
        assert news.insert_many(pages) == [False] * 8
        make_room(admin, news)
        assert mine.commit(pages, retry=failed.value) == [True] * 8
        assert list(mine.held) == []


def test_failure_in_the_middle_of_a_named_call(bloom):
    """Whoever repeats the request under its key gets the answers of both halves, also once they are recorded."""
    with made(bloom, error_rate=1e-6) as news, made(bloom, error_rate=1e-6) as other, bloom.client() as admin:
        leave_room(admin, news, 1000)
        assert sum(news.insert_many(range(900))) == 900
        items = list(range(890, 1005))
        with pytest.raises(UriFilterError, match="MODULE"):
            news.insert_many(items, call_key="a request")
        make_room(admin, news)
        for each in (other, news, other):
            assert each.insert_many(items, call_key="a request") == [*[False] * 10, *[True] * 105]
        assert not any(news.insert_many(range(1000, 1005)))


def test_small_filter_is_known_from_another_programs(bloom):
    """The module makes a filter for 100 items where a key is missing; so none of ours is for so few."""
    with made(bloom, capacity=100, error_rate=0.01) as news:
        assert bloom.ask("execute_command", "BF.INFO", news._session.keys.shard(0).slice("today"), "CAPACITY") == [
            LEAST_RESERVED
        ]


@pytest.mark.slow
def test_exactly_once_over_a_restart(make_server):
    """The module's filters come back from the append-only file, with the records of calls."""
    bloom = make_server(servers.BLOOM, appendonly="yes", appendfsync="always")
    with made(bloom) as news:
        assert news.insert_many(range(500)) == [True] * 500
        bloom.kill()
        bloom.start()
        assert news.insert_many(range(510)) == [*[False] * 500, *[True] * 10]


def test_command_line(bloom):
    """``create`` mentions the layout once where it fits; ``doctor``, ``plan`` and ``lua`` know it."""
    here = functools.partial(run, env={"URIFILTER_REDIS_URL": bloom.url})
    mention = "with --layout redisbloom inserts are faster"
    told = {}
    for name, more in {"plain": [], "ring": RING_OPTIONS, "chosen": ["--layout", "blocked"]}.items():
        told[name] = here("create", name, "--capacity", "1k", *more)[1].count(mention)
    assert told == {"plain": 1, "ring": 1, "chosen": 0}
    here("add", "--filter", "plain", given=b"a\n")
    assert mention not in here("create", "plain", "--capacity", "1k")[1]  # as a cron job does each day
    assert mention not in here("create", "rolling", "--capacity", "1k", *RING_OPTIONS, "--retention", "rolling")[1]
    out, said = here("create", "news", "--capacity", "1k", "--layout", "redisbloom")
    assert out == b"news: 1,000 items at 0.0001, redisbloom, 3.16 kB when full\n"
    assert said == ""
    assert "layout redisbloom has no archive" in here("checkpoint", "news", code=2)[1]
    assert b"was seen\n" not in here("add", "--filter", "news", given=b"a\nb\n")[0]
    findings = json.loads(here("doctor", "--json", code=1)[0])
    texts = {each["subject"]: each["text"] for each in findings}
    assert "with layout redisbloom inserts are faster" in texts["module"]
    assert "is the only copy" in texts["copies of news"]
    assert "copies of plain" not in texts
    assert b"redisbloom" in here("lua", "show", "insert", "news")[0]
    assert here("lua", "show", "turn", "news")[0] == here("lua", "show", "turn", "--layout", "redisbloom")[0]


RING_OPTIONS = ["--retention", "ring", "--slices", "3", "--period", "1d"]


@pytest.mark.parametrize(
    ("options", "there"),
    [([], True), (RING_OPTIONS, True), ([*RING_OPTIONS, "--write", "all"], False)],
    ids=["forever", "ring", "write all"],
)
def test_plan(options, there):
    """The rows of the layout are there where it is possible, with the bits an item that the module takes."""
    rows = json.loads(run("plan", "--capacity", "100M", "--json", *options)[0])
    found = [each for each in rows if each["layout"] == "redisbloom"]
    assert bool(found) == there
    if not options:
        (asked,) = [each for each in found if each["error_rate"] == 1e-4]
        assert (asked["shards"], asked["segments"]) == (1, 4)
        assert asked["bits_per_item"] == pytest.approx(20.6, abs=0.1)


@pytest.mark.slow
def test_rights(bloom):
    """The line that ``doctor --acl --layout redisbloom`` prints is enough, and the plain one is not."""
    made(bloom).close()
    with bloom.client() as admin:
        url = f"redis://crawler:word@127.0.0.1:{bloom.port}/0"
        for more, enough in (([], False), (["--layout", "redisbloom"], True)):
            (line,) = run("doctor", "--acl", "crawler", *more)[0].decode().splitlines()
            admin.execute_command(*line.replace("PASSWORD", "word").split())
            if not enough:
                with pytest.raises(ServerUnavailable, match=r"may not run .*BF.INFO, BF.MADD, .*so .*contains"):
                    UriFilter.open("news", redis=url)
                continue
            with UriFilter.open("news", redis=url) as news, news.claims() as mine:
                assert news.insert_many(["a", "b"]) == [True, True]
                assert news.forget(["a"]) == [True]
                assert mine.claim("a")
                assert mine.commit(["a"]) == [True]
                assert news.info().inserted == 3
        admin.acl_deluser("crawler")


@pytest.mark.slow
def test_over_http(bloom):
    """A filter is asked and described over HTTP, too."""
    made(bloom).close()
    with Service(bloom.url) as service:
        told = ask(service, "POST", "/v1/filters/news/insert", {"items": ["a", "b", "a"]}).json()
        assert told["new"] == [True, True, False]
        assert b'"redisbloom"' in ask(service, "GET", "/v1/filters/news").body


@pytest.mark.slow
@pytest.mark.parametrize("lacks", range(3))
def test_in_a_cluster_of_which_a_master_lacks_the_module(make_cluster, lacks):
    """Nothing is made, and nobody is told that the layout is to be had."""
    cluster = make_cluster(kinds=["redis70" if number == lacks else servers.BLOOM for number in range(3)])
    with pytest.raises(Unsupported, match=r"redisbloom needs BF\..*layout blocked"):
        made(cluster, shards=6)
    assert UriFilter.create("news", redis=cluster.url, capacity=1000).drop() is None
    assert "BF.*" not in run("create", "other", "--redis", cluster.url, "--capacity", "1k")[1]
    assert b"BF.*" not in invoke("doctor", "--redis", cluster.url)[1]


def test_a_server_that_hides_command(make_server, tmp_path):
    """Some hosted ones do: the probe has found the module all the same."""
    more = tmp_path / "more.conf"
    more.write_text('rename-command COMMAND ""\n')
    with made(make_server(servers.BLOOM, include=str(more))) as news:
        assert news.insert_many([1, 1]) == [True, False]


@pytest.mark.slow
def test_in_a_cluster(make_cluster):
    """Each master has the module, and its part of the shards."""
    cluster = make_cluster(servers.BLOOM)
    with made(cluster, shards=6) as news:
        assert news.insert_many(range(500)) == [True] * 500
        assert news.insert_many(range(510)) == [*[False] * 500, *[True] * 10]
        assert news.info().inserted == 510


def test_calls_are_short(bloom):
    """A call has at most 250 items: the first ones of a slice wait for its memory, page by page."""
    with made(bloom, capacity=10_000) as news:
        news.insert("loads the script")
        bloom.ask("config_resetstat")
        assert sum(news.insert_many(range(1000))) == 1000
        assert bloom.ask("info", "commandstats")["cmdstat_evalsha"]["calls"] == 4
