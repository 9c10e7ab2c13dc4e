"""Behind Sentinels: everything works, and goes on with another master under the same call ids."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.sentinel import Sentinel
from support import cli, crawler
from support.forked import in_child
from support.sentinels import Told, Watched, catch_up, follow
from support.servers import PATIENCE, group_of, silent_port, suspend, wait_until
from support.service import Service, ask

from urifilter_redis import AnswerLost, AsyncUriFilter, ServerUnavailable, Timeouts, UriFilter, drop_filter
from urifilter_redis.engine import topology
from urifilter_redis.transport import endpoints, sentinels

FILTER = {"capacity": 10_000, "error_rate": 1e-8}

#: A failover takes a second or two; on a busy machine longer.
LONG = Timeouts(connect=5, reply=2, total=60)
SHORT = Timeouts(total=0.3)
PATIENT = Timeouts(connect=PATIENCE, reply=PATIENCE, total=PATIENCE)

#: The calls of one process at once.
CALLERS = 8


@pytest.mark.sampled
def test_both_clients(watched, clients):
    """Create, open, insert, ask, claim, rotate, forget, drop."""
    shape = {"capacity": 1000, "retention": "ring", "slices": 3, "period": "1d", "shards": 3}
    with clients.create("news", redis=watched.url, timeouts=LONG, **shape) as news:
        assert news.insert_many(["a", "b", "a"]) == [True, True, False]
        assert news.contains_many(["a", "c"]) == [True, False]
        with news.claims() as mine:
            assert mine.claim("c") is True
            assert mine.commit(["c"]) == [True]
        news.rotate()
        assert news.ages(["a", "x"]) == [2, 0]
        assert news.forget(["a"]) == [True]
        assert news.info().name == "news"
    with clients.open("news", redis=watched.url, timeouts=LONG) as news:
        assert news.insert("b") is False
    drop_filter("news", redis=watched.url)
    assert watched.present.ask("keys") == []


@pytest.mark.slow
def test_programs(watched):
    """The command line and the doctor take such an address; no error of theirs has a password."""
    cli.run("--redis", watched.url, "create", "news", "--capacity", "1000")
    assert cli.run("--redis", watched.url, "dedupe", "--filter", "news", given=b"a\na\n")[0] == b"a\n"
    out = cli.run("--redis", watched.url, "info", "news")[0].decode()
    assert "news" in out


@pytest.mark.slow
def test_the_service_and_the_doctor(watched):
    """They take such an address; a failover between two requests is not noticed."""
    UriFilter.create("news", redis=watched.url, **FILTER).close()
    out, _ = cli.run("--redis", watched.url, "doctor", code=1)  # these servers save nothing
    assert b"appendonly" in out
    body = {"filter_typeid": "news", "URI_list": ["a", "b"]}
    path = "/cr-clawr/uri_filter/api/uri_filter"
    with Service(watched.url) as service:
        assert ask(service, "POST", path, body).json()["unique"] == 2
        watched.failover()
        answer = wait_until(lambda: _answered(ask(service, "POST", path, body)), "the service does not find it")
        assert answer["unique"] == 0


def _answered(answer):
    return answer.json() if answer.status == 200 else None


@pytest.mark.slow
def test_a_failover(watched, clients):
    """The next call goes to the new master, over a new connection."""
    with clients.create("news", redis=watched.url, timeouts=LONG, wait_replicas=1, **FILTER) as news:
        assert news.insert("a") is True
        after = watched.failover()
        for each in watched.others(after):
            follow(each, after)
        assert news.insert("a") is False
        assert news.insert("b") is True
        with UriFilter.open("news", redis=after.url) as there:
            assert there.contains("b") is True


@pytest.mark.slow
def test_no_writes_to_the_old_master(watched, clients):
    """While a replica is promoted nothing goes to the old master, which takes writes for seconds."""
    with clients.create("news", redis=watched.url, timeouts=LONG, **FILTER) as news:
        done, told = threading.Event(), []
        breaker = threading.Thread(target=_break, args=(watched, "failover", told, done))
        breaker.start()
        while not done.is_set():
            told += [number for number in [len(told)] if news.insert(number)]
            time.sleep(0.002)
        breaker.join()
        with UriFilter.open("news", redis=watched.present.url) as there:
            lost = len(told) - sum(there.contains_many(told))
        assert lost < 30, f"{lost} of {len(told)}"  # of the hundreds in a second


@pytest.fixture
def told(any_server):
    """A Sentinel that names a server which has a filter, and tells what a test wants."""
    UriFilter.create("news", redis=any_server.url, **FILTER).close()
    with Told(any_server) as sentinel:
        yield sentinel


SELECTED = "slave 127.0.0.1:2 127.0.0.1 2 @ crawl 127.0.0.1 1"


def is_held(news) -> bool:
    """Whether a client has heard that a failover begins."""
    return news._connector._sentinels().poll(news._connector.routes)


def inserted_on(server) -> int:
    with UriFilter.open("news", redis=server.url) as news:
        return news.inserted()


def promote(told, server, *message: str) -> None:
    """Make a replica the master, and have the Sentinel name it."""
    server.ask("replicaof", "NO", "ONE")
    told.master = server
    if message:
        told.tell(*message)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "message",
    [("+promoted-slave", SELECTED), ("+switch-master", "crawl 127.0.0.1 1 127.0.0.1 2")],
    ids=lambda it: it[0],
)
def test_calls_are_held(replicated, clients, message):
    """From the selection of a replica until it is the master; then they go there."""
    master, replica = replicated()
    UriFilter.create("news", redis=master.url, **FILTER).close()
    with Told(master) as told, clients.open("news", redis=told.url, timeouts=LONG) as news:
        catch_up(master, replica)
        told.tell("+selected-slave", SELECTED)
        wait_until(lambda: is_held(news), "it does not hear it")
        promoting = threading.Timer(0.2, promote, (told, replica, *message))
        promoting.start()
        assert news.insert("a") is True
        promoting.join()
    assert (inserted_on(master), inserted_on(replica)) == (0, 1)


def insert_by_threads(url: str, opened: queue.Queue, go: threading.Event) -> None:
    with UriFilter.open("news", redis=url, timeouts=PATIENT) as news, ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(lambda number: news.insert(f"warm {number}"), range(CALLERS)))
        opened.put(news)
        go.wait(PATIENCE)
        list(threads.map(news.insert, range(CALLERS)))


def insert_by_tasks(url: str, opened: queue.Queue, go: threading.Event) -> None:
    async def insert():
        async with await AsyncUriFilter.open("news", redis=url, timeouts=PATIENT) as news:
            await asyncio.gather(*(news.insert_many([f"warm {number}"]) for number in range(CALLERS)))
            opened.put(news)
            await asyncio.to_thread(go.wait, PATIENCE)
            await asyncio.gather(*(news.insert_many([number]) for number in range(CALLERS)))

    asyncio.run(insert())


@contextlib.contextmanager
def selecting(replicated, monkeypatch, insert):
    """Let a replica be selected; yield the Sentinel, the replica, a client, and what lets its callers insert.

    At the end all of them must have inserted on the replica.
    """
    monkeypatch.setattr(sentinels, "HOLD", PATIENCE)
    for module in (endpoints, sentinels):  # a client that is not subscribed in time hears nothing for ten seconds
        monkeypatch.setattr(module, "PATIENCE", PATIENCE)
    master, replica = replicated()
    UriFilter.create("news", redis=master.url, **FILTER).close()
    with Told(master) as told, ThreadPoolExecutor(1) as thread:
        opened, go = queue.Queue(), threading.Event()
        inserting = thread.submit(insert, told.url, opened, go)
        news = opened.get(timeout=PATIENCE)
        catch_up(master, replica)
        told.tell("+selected-slave", SELECTED)
        yield told, replica, news, go
        inserting.result()
    assert (inserted_on(master), inserted_on(replica)) == (CALLERS, 2 * CALLERS)


@pytest.mark.parametrize("insert", [insert_by_threads, insert_by_tasks])
def test_all_callers_wait_for_the_new_master(replicated, monkeypatch, insert):
    """Of several calls at once one asks the Sentinels, and none of the others goes to the old master meanwhile."""
    with selecting(replicated, monkeypatch, insert) as (told, replica, news, go):
        wait_until(lambda: is_held(news), "it does not hear it")
        go.set()
        time.sleep(0.1)  # they wait: those that do not yet will not be the ones that ask
        told.asked.clear()
        told.answers.clear()
        promote(told, replica, "+promoted-slave", SELECTED)
        assert told.asked.wait(PATIENCE)
        time.sleep(0.1)  # the others would go to the old master now
        told.answers.set()


def test_threads_that_hear_at_once(replicated, monkeypatch):
    """While one thread reads that a failover begins the others wait, and go by that, too."""
    with selecting(replicated, monkeypatch, insert_by_threads) as (told, replica, _, go):
        time.sleep(2 * sentinels.POLL)
        go.set()
        time.sleep(0.1)
        promote(told, replica, "+promoted-slave", SELECTED)


@pytest.mark.sampled
def test_sentinels_that_are_not_heard(replicated, clients, monkeypatch):
    """Who may not subscribe asks them each second."""
    monkeypatch.setattr(topology, "BELIEVED", 3600)
    master, replica = replicated()
    UriFilter.create("news", redis=master.url, **FILTER).close()
    with Told(master) as told:
        told.refuses = True
        with clients.open("news", redis=told.url, timeouts=LONG) as news:
            catch_up(master, replica)
            promote(told, replica)
            wait_until(lambda: [news.insert("a")] and inserted_on(replica) == 1, "it does not ask")


@pytest.mark.parametrize("aborted", [True, False])
def test_calls_go_on_with_the_old_master(told, clients, monkeypatch, aborted):
    """If the failover is aborted, or takes too long."""
    monkeypatch.setattr(sentinels, "HOLD", 60 if aborted else 0.2)
    with clients.open("news", redis=told.url, timeouts=LONG) as news:
        told.tell("+selected-slave", SELECTED)
        wait_until(lambda: is_held(news), "it does not hear it")
        if aborted:
            told.tell("-failover-abort-slave-timeout", "master crawl 127.0.0.1 1")
        assert news.insert("a") is True
    assert inserted_on(told.master) == 1


def test_a_failover_of_another_service(told, clients):
    """It holds nothing up, and its end ends nothing."""
    with clients.open("news", redis=told.url, timeouts=SHORT) as news:
        told.tell("+selected-slave", SELECTED.replace("crawl", "other"))
        assert news.insert("a") is True
        told.tell("+selected-slave", SELECTED)
        told.tell("+switch-master", "other 127.0.0.1 1 127.0.0.1 2")
        wait_until(lambda: is_held(news), "it does not hear it")
        with pytest.raises(ServerUnavailable, match="a failover is under way"):
            news.insert("b")


def test_a_call_that_may_not_wait_for_the_end(told, clients):
    """It is given up after its time, and nothing of it was sent."""
    with clients.open("news", redis=told.url, timeouts=SHORT) as news:
        told.tell("+selected-slave", SELECTED)
        wait_until(lambda: is_held(news), "it does not hear it")
        with pytest.raises(ServerUnavailable, match="a failover is under way: .*gave up after 0.3 s"):
            news.insert("a")
    assert inserted_on(told.master) == 0


def test_one_subscription_a_process(told, clients):
    """However many filters there are; a child of a fork has its own."""
    with clients.open("news", redis=told.url) as news, clients.open("news", redis=told.url) as other:
        assert news._connector._sentinels() is other._connector._sentinels()
        assert told.subscriptions == 1
        assert in_child(lambda: UriFilter.open("news", redis=told.url).insert("a"))
        assert told.subscriptions == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["failover", "kill"])
def test_a_failover_under_load(watched, clients, way):
    """Calls go on under their call ids: nothing is lost, and with ``wait_replicas`` nothing is told twice."""
    with clients.create("news", redis=watched.url, timeouts=LONG, wait_replicas=1, **FILTER) as news:
        done, told = threading.Event(), []
        breaker = threading.Thread(target=_break, args=(watched, way, told, done))
        breaker.start()
        number = 0
        while not done.is_set() or number < 100:
            told.append(news.insert_many([number, number + 1]))
            number += 1
        breaker.join()
        assert told == [[True, True]] + [[False, True]] * (number - 1)
        assert news.contains_many(range(number + 1)) == [True] * (number + 1)


def _break(watched: Watched, way: str, told: list, done: threading.Event) -> None:
    """Let another server become the master, and the old one its replica."""
    try:
        wait_until(lambda: len(told) > 20, "nothing is inserted")
        before = watched.present
        if way == "kill":
            before.kill()
            watched.wait_for_another(before)
            before.start()
        else:
            watched.failover()
        follow(before, watched.present)
    finally:
        done.set()


@pytest.mark.slow
def test_a_sentinel_that_is_behind(watched, clients):
    """It names the old master, which says that it is a replica by now: the call waits until the Sentinel has heard."""
    late = watched.sentinels[2]
    with clients.create("news", redis=watched.url_of(late), timeouts=LONG, **FILTER) as news:
        news.insert("a")
        before = watched.present
        late.suspend()
        watched.begin_failover()
        wait_until(lambda: watched.present is not before, "nobody takes over")
        after = watched.present
        wait_until(lambda: _is_master(after), "it does not become the master")
        follow(before, after)
        before.ask("execute_command", "CLIENT", "KILL", "TYPE", "normal")
        late.resume()
        assert news.insert("a") is False
        assert news.insert("b") is True
        with UriFilter.open("news", redis=after.url) as there:
            assert there.contains("b") is True


def _is_master(server) -> bool:
    return server.ask("execute_command", "ROLE")[0] == b"master"


@pytest.mark.slow
def test_a_master_that_comes_back_as_one(watched, clients):
    """A client that was idle meanwhile does not write to it: the connection that broke makes it ask the Sentinels."""
    with clients.create("news", redis=watched.url, timeouts=LONG, **FILTER) as news:
        assert news.insert("a") is True
        before = watched.present
        catch_up(before, *watched.others(before))
        before.kill()
        after = watched.wait_for_another(before)
        before.start()
        assert _is_master(before)  # and has nothing; Sentinels mend that some seconds later
        assert news.insert("a") is False
        assert news.insert("b") is True
        with UriFilter.open("news", redis=after.url) as there:
            assert there.contains_many(["a", "b"]) == [True, True]


@pytest.mark.sampled
def test_a_sentinel_is_away(watched, clients):
    """Another is asked. If all are, a client that knows the master goes on."""
    nobody = f"127.0.0.1:{silent_port()}"
    url = watched.url.replace("redis+sentinel://", f"redis+sentinel://{nobody},")
    with clients.create("news", redis=url, timeouts=LONG, **FILTER) as news:
        assert news.insert("a") is True


@pytest.mark.slow
def test_all_sentinels_go_away(watched, clients):
    """A client that knows the master goes on."""
    with clients.create("news", redis=watched.url, timeouts=Timeouts(total=30), **FILTER) as news:
        news.insert("a")
        for each in watched.sentinels:
            each.kill()
        watched.present_by_role().ask("execute_command", "CLIENT", "KILL", "TYPE", "normal")
        assert news.insert("a") is False
        assert news.insert("b") is True


def test_no_sentinel_answers(clients):
    """It is told in words, each with its reason."""
    ports = silent_port(), silent_port()
    url = f"redis+sentinel://:secret@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/crawl/0?sentinel_password=hidden"
    with pytest.raises(ServerUnavailable, match="no Sentinel names a master of 'crawl'") as caught:
        clients.open("news", redis=url, timeouts=SHORT)
    text = str(caught.value)
    assert all(f"127.0.0.1:{port} Error" in text for port in ports), text
    assert "gave up after 0.3 s" in text
    assert "secret" not in text
    assert "hidden" not in text


def test_a_wrong_service(watched, clients):
    """It is told at once, and not tried again."""
    url = watched.url_of(service="nosuch")
    with pytest.raises(ServerUnavailable, match="a master of 'nosuch' .*knows no such service") as caught:
        clients.open("news", redis=url)
    assert "gave up" not in str(caught.value)


@pytest.mark.slow
def test_passwords(clients):
    """Sentinels and the servers have their own; a wrong one is told in words that have none of them."""
    with Watched(sentinels=1, password="of-the-master", sentinel_password="of-the-sentinels") as secret:
        with clients.create("news", redis=secret.url, timeouts=LONG, **FILTER) as news:
            assert news.insert("a") is True
            assert ":***@" in repr(news)
            assert "of-the" not in repr(news)
        for wrong in (
            secret.url.replace("of-the-sentinels", "wrong-password"),
            secret.url.replace("of-the-master", "wrong-password"),
            secret.url.partition("?")[0],
            secret.url.replace(":of-the-master@", ""),
        ):
            with pytest.raises(ServerUnavailable) as caught:
                clients.open("news", redis=wrong, timeouts=SHORT)
            assert "word" in str(caught.value) or "uthentication" in str(caught.value)
            assert "of-the" not in str(caught.value)
            assert "wrong-password" not in str(caught.value)


@pytest.mark.slow
def test_what_the_dead_master_had_not_passed_on(watched):
    """Without ``wait_replicas`` exactly those answers are given again; with it none was given."""
    watched.clean()
    before = watched.present
    (replica,) = watched.others(before)
    options = {"redis": watched.url, "timeouts": LONG}
    with UriFilter.create("news", **options, **FILTER) as news, UriFilter.open("news", **options) as other:
        assert news.insert_many(range(10)) == [True] * 10
        catch_up(before, *watched.others(before))
        _cut_off(before, watched)
        assert news.insert_many(range(10, 20)) == [True] * 10
        waits = {"redis": watched.url, "timeouts": Timeouts(reply=1, total=1), "wait_replicas": 1}
        with UriFilter.open("news", **waits) as careful, pytest.raises(AnswerLost, match="0 of 1 replicas") as lost:
            careful.insert_many(range(20, 30))
        before.kill()
        replica.resume()
        watched.wait_for_another(before)
        assert other.insert_many(range(20)) == [False] * 10 + [True] * 10  # these were told twice
        before.start()
        follow(before, replica)
        with UriFilter.open("news", **waits | {"timeouts": LONG}) as careful:
            assert careful.insert_many(range(20, 30)) == [True] * 10  # and these once
        assert lost.value.answers == [None] * 10


@pytest.mark.slow
@pytest.mark.parametrize("waits", [0, 1])
def test_exactly(watched, tmp_path, waits):
    """4 processes insert while the master is killed: none is lost.

    Only answers that it had not passed on to its replica are given twice; with ``wait_replicas`` none is.
    """
    count, out = 3000 if waits else 8000, tmp_path / "new"
    UriFilter.create("news", redis=watched.url, capacity=100_000, error_rate=1e-8, shards=3).close()
    url = watched.url_of(wait_replicas=waits) if waits else watched.url
    arguments = [sys.executable, crawler.__file__, url, "news", str(count)]
    running = [
        subprocess.Popen([*arguments, str(seed), "20", "1", "1", str(out)], start_new_session=True) for seed in range(4)
    ]
    wait_until(lambda: out.exists() and len(out.read_text().split()) > 300, "they do not begin")
    before = watched.present
    for each in running:
        os.killpg(each.pid, signal.SIGSTOP)  # at once: to list the processes takes a while, in which they would go on
    suspend(*(pid for each in running for pid in group_of(each.pid)))
    replicated = set(out.read_text().split())
    catch_up(before, *watched.others(before))
    _cut_off(before, watched)
    for each in running:
        os.killpg(each.pid, signal.SIGCONT)
    if not waits:
        under_way = len(out.read_text().split()) + 4 * 20  # answers of before the cut are on their way yet
        wait_until(lambda: len(out.read_text().split()) > under_way + 100, "they do not go on")
    before.kill()
    assert [each.poll() for each in running] == [None] * 4, "they were too fast"
    for each in (watched.master, *watched.replicas):
        each.resume()
    after = watched.wait_for_another(before)
    before.start()
    follow(before, after)
    assert [each.wait(300) for each in running] == [0] * 4
    told = collections.Counter(out.read_text().split())
    assert len(told) == count, "lost"
    twice = {uri for uri, number in told.items() if number > 1}
    assert set(told.values()) <= {1, 2}
    assert twice.isdisjoint(replicated)
    assert bool(twice) is not bool(waits), f"{len(twice)} were told twice"


def _cut_off(master, watched: Watched) -> None:
    """Let a master have no replica from now on: those that there are can neither go on nor come back."""
    for each in watched.others(master):
        each.suspend()
    master.ask("execute_command", "CLIENT", "KILL", "TYPE", "replica")


def test_a_client_object_of_the_master(watched):
    """redis-py's own Sentinel gives clients, too: such a one is taken as it is."""
    hosts = [("127.0.0.1", each.port) for each in watched.sentinels]
    client = Sentinel(hosts).master_for("crawl")
    with UriFilter.create("news", redis=client, **FILTER) as news:
        assert news.insert("a") is True
    client.close()


def test_asyncio_in_several_loops(watched):
    """Each event loop has connections of its own to Sentinels and master."""

    async def run(item: str) -> bool:
        async with await AsyncUriFilter.open("news", redis=watched.url, timeouts=LONG) as news:
            return (await asyncio.gather(*(news.insert(item) for _ in range(10)))).count(True) == 1

    UriFilter.create("news", redis=watched.url, **FILTER).close()
    assert asyncio.run(run("a"))
    assert asyncio.run(run("b"))
