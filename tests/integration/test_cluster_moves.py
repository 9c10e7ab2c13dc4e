"""A cluster that changes under an open filter: slots that move, nodes that go and come back, clocks that differ."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import cli
from support.clock import Clock
from support.cluster_run import Run
from support.servers import PATIENCE, suspend, wait_until
from support.shard_keys import shard_key
from support.tags import slot_of

from urifilter_redis import AnswerLost, ServerUnavailable, Timeouts

pytestmark = pytest.mark.xdist_group("cluster")

SHARDS = 6
PRECISE = {"capacity": 20_000, "error_rate": 1e-8, "shards": SHARDS}
ITEMS = [f"https://example.com/{number}" for number in range(300)]
DEAD_LETTERS = [f"gone {number}" for number in range(50)]
HASTY = Timeouts(total=0.3, migrating=0.3)


@pytest.fixture
def cluster(any_cluster):
    """Debian's Redis; in the slow tests Valkey, too."""
    return any_cluster


@pytest.fixture
def news(cluster, clients):
    return clients.create("news", redis=cluster.url, **PRECISE)


@pytest.fixture
def slots():
    """The slot of each shard."""
    metas = (shard_key("news", shard, SHARDS, "meta") for shard in range(SHARDS))
    return [slot_of(key[key.index("{") + 1 : key.index("}")]) for key in metas]


def next_of(cluster, node):
    """The master after another."""
    return cluster.nodes[(cluster.nodes.index(node) + 1) % 3]


def evalsha_of(node) -> int:
    return node.ask("INFO", "COMMANDSTATS").get("cmdstat_evalsha", {"calls": 0})["calls"]


def answers_of(news, items, error=None):
    """Ask until there are answers: on a busy machine a hasty filter may have none at first."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return news.insert_many(items, retry=error)
        except (AnswerLost, ServerUnavailable) as again:
            if time.monotonic() > end:
                raise
            error = again


def lost_for(news, items, why):
    """Ask until some answers are there, and the others lost for a reason: on a busy machine it may be another first."""
    end, error = time.monotonic() + PATIENCE, None
    while True:
        with pytest.raises(AnswerLost) as caught:
            news.insert_many(items, retry=error)
        error = caught.value
        if why in str(error) and error.answers.count(None) < len(items):
            return error
        if time.monotonic() > end:
            raise error


@pytest.mark.slow
def test_a_master_hears_late_that_its_slot_has_moved(cluster, slots):
    """It goes on to claim the slot, and in the end all nodes agree that another has it."""
    home = cluster.owner(slots[0])
    late = next_of(cluster, home)
    cluster.move(slots[0], late)
    others = [each for each in cluster.nodes if each is not late]
    suspend(late.process.pid)
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(cluster.end_move, slots[0], home)  # waits for it
        try:
            for each in others:
                wait_until(lambda node=each: node.has_asked(late), "no heartbeat is sent to it")
        finally:
            late.resume()
        ended.result()
    wait_until(lambda: {cluster.owner(slots[0], node) for node in cluster.nodes} == {home}, "they do not agree")


def test_all_slots_come_home(cluster, slots):
    """Those that have moved, those in the middle of a move, and those that nobody has: all nodes agree on them."""
    cluster.move(slots[0], next_of(cluster, cluster.owner(slots[0])))
    cluster.begin_move(slots[1], next_of(cluster, cluster.owner(slots[1])))
    for node in cluster.nodes:
        node.ask("CLUSTER", "DELSLOTS", slots[2])
    cluster.tidy()
    first = cluster.nodes[0].view()
    assert [node.view() for node in cluster.nodes] == [first] * 3
    assert [first[node.port][-1] for node in cluster.masters] == [["0-5461"], ["5462-10922"], ["10923-16383"]]


@pytest.mark.sampled
def test_slots_that_have_moved(news, cluster, slots):
    """MOVED: each shard's slot is somewhere else at the next call, and the scripts are not loaded there."""
    assert news.insert_many(ITEMS[:100]) == [True] * 100
    for slot in slots:
        target = next_of(cluster, cluster.owner(slot))
        cluster.move(slot, target)
        target.ask("SCRIPT", "FLUSH")
    assert news.insert_many(ITEMS[:200]) == [False] * 100 + [True] * 100
    assert news.contains_many(ITEMS) == [True] * 200 + [False] * 100
    assert news.info().inserted == 200
    with news.claims() as mine:
        assert mine.claim_many(ITEMS[150:250]) == [False] * 50 + [True] * 50
        for slot in slots:
            cluster.move(slot, next_of(cluster, cluster.owner(slot)))
        assert mine.commit(ITEMS[200:250]) == [True] * 50


@pytest.mark.slow
def test_a_slot_in_the_middle_of_its_move(clients, cluster, slots):
    """ASK, and TRYAGAIN for as long as some keys of a script are not where the others are."""
    news = clients.create("news", redis=cluster.url, **PRECISE)
    hasty = clients.open("news", redis=cluster.cluster_url, timeouts=HASTY)
    assert news.insert_many(ITEMS[:100]) == [True] * 100
    target = next_of(cluster, cluster.owner(slots[0]))
    source = cluster.begin_move(slots[0], target)
    cluster.move_keys(source, target, [shard_key("news", 0, SHARDS, "meta")])
    target.ask("SCRIPT", "FLUSH")
    opened = clients.open("news", redis=cluster.url)  # reads meta by ASK
    with pytest.raises(ServerUnavailable, match="on their way to another node") as caught:
        hasty.insert_many(ITEMS[:200])
    told = caught.value.answers
    assert {told.count(each) for each in (True, False, None)} == {told.count(each) for each in told} != {0}
    assert None in told
    ended = threading.Timer(0.3, cluster.move, (slots[0], target))
    ended.start()
    try:
        assert opened.insert_many(ITEMS[:200], retry=None) == [
            answer is None and number >= 100 for number, answer in enumerate(told)
        ]
    finally:
        ended.join()
    assert answers_of(hasty, ITEMS[:200], caught.value)[:100] == [False] * 100
    assert news.contains_many(ITEMS) == [True] * 200 + [False] * 100


def test_all_keys_have_moved_and_the_slot_has_not(clients, cluster, slots):
    """ASK for a single key; a script goes to the target with ASKING, and its answer is right after the move."""
    news = clients.create("news", redis=cluster.url, **PRECISE)
    with news.claims() as mine:  # then all keys of a claim are there, and nothing says TRYAGAIN
        assert mine.claim_many(DEAD_LETTERS) == mine.reject(DEAD_LETTERS) == [True] * len(DEAD_LETTERS)
        assert mine.claim_many(ITEMS[:100]) == [True] * 100
        assert news.forget(ITEMS[200:]) == [False] * 100
        assert news.insert_many(ITEMS[200:]) == [True] * 100
        assert news.forget(ITEMS[200:]) == [True] * 100
        target = next_of(cluster, cluster.owner(slots[0]))
        source = cluster.begin_move(slots[0], target)
        cluster.move_keys(source, target, source.ask("CLUSTER", "GETKEYSINSLOT", slots[0], 100))
        target.ask("SCRIPT", "FLUSH")
        try:
            assert mine.claim_many(ITEMS[:150]) == [False] * 100 + [True] * 50
            assert mine.commit(ITEMS[:100]) == [True] * 100
            assert news.insert_many(ITEMS[:200]) == [False] * 150 + [True] * 50
            assert mine.commit(ITEMS[:100]) == [False] * 100
        finally:
            cluster.end_move(slots[0], target)
        assert mine.commit(ITEMS[:150]) == [False] * 100 + [True] * 50
    assert news.contains_many(ITEMS) == [True] * 200 + [False] * 100


@pytest.mark.slow
def test_a_slot_without_a_master(clients, cluster, slots):
    """CLUSTERDOWN: an error in words, and the other shards answer; once there is a master, all is well."""
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    news = clients.create("news", redis=cluster.url, timeouts=HASTY, **PRECISE)
    owner = cluster.owner(slots[0])
    try:
        for node in cluster.nodes:
            node.ask("CLUSTER", "DELSLOTS", slots[0])
        with pytest.raises(ServerUnavailable, match="no master for these keys") as caught:
            news.insert_many(ITEMS)
        told = caught.value.answers
        assert {*told} == {True, None}
    finally:
        for node in cluster.nodes:
            node.ask("CLUSTER", "ADDSLOTS" if node is owner else "INFO", *([slots[0]] if node is owner else []))
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        cluster.wait_until_whole()
    assert answers_of(news, ITEMS, caught.value) == [True] * 300
    assert answers_of(news, ITEMS) == [False] * 300


def test_scripts_are_gone_on_one_node(news, cluster):
    """SCRIPT FLUSH on one master: the scripts are loaded there again."""
    assert news.insert_many(ITEMS[:100]) == [True] * 100
    cluster.nodes[1].ask("SCRIPT", "FLUSH")
    assert news.insert_many(ITEMS[:200]) == [False] * 100 + [True] * 100


@pytest.mark.slow
def test_clocks_that_differ(make_cluster, clients, slots, tmp_path):
    """Each master's own clock judges its calls and its turns: answers are exact, also after shards have moved."""
    clocks = []
    for seconds in (0, 300, -300):  # a deadline is a minute ahead
        folder = tmp_path / str(seconds)
        folder.mkdir()
        clocks.append(Clock(folder))
        clocks[-1].ahead(seconds)
    cluster = make_cluster(environments=[each.environment for each in clocks])
    news = clients.create("news", redis=cluster.url, timeouts=Timeouts(total=1), **PRECISE)
    held = news.claims()
    for number in range(3):
        some = ITEMS[100 * number : 100 * number + 50]
        assert news.insert_many(some) == [True] * 50
        assert news.insert_many(some) == [False] * 50
        assert held.claim_many([f"held {each}" for each in some]) == [True] * 50
        assert held.commit([f"held {each}" for each in some]) == [True] * 50
        for slot in slots:
            cluster.move(slot, next_of(cluster, cluster.owner(slot)))
    assert news.contains_many(ITEMS[:50] + ITEMS[100:150] + ITEMS[200:250]) == [True] * 150
    news.drop()
    ring = clients.create("news", redis=cluster.url, retention="ring", slices=2, period="4m", **PRECISE)
    assert ring.insert_many(ITEMS) == [True] * 300
    clients.let_pass(0.1)
    assert ring.insert_many(ITEMS) == [False] * 300  # nothing turns because another master's clock is ahead
    assert ring.info().epoch == 0
    out, _ = cli.run("doctor", "--json", "--redis", cluster.url, code=1)
    told = {each["subject"]: (each["level"], each["text"]) for each in json.loads(out)}
    text = f"{cluster.nodes[1].name} is 600 s ahead of {cluster.nodes[2].name}"
    assert told["clocks"][0] == "danger"
    assert told["clocks"][1].startswith(text)


@pytest.mark.slow
def test_a_master_that_comes_back(make_cluster, clients):
    """Killed and started again with its append-only file: an error in words meanwhile, and no answer is lost."""
    # With everysec a server answers before it writes while an earlier fsync is under way.
    durable = {"appendonly": "yes", "appendfsync": "always"}
    cluster = make_cluster(**durable, **{"cluster-require-full-coverage": "no"})
    news = clients.create("news", redis=cluster.url, timeouts=HASTY, **PRECISE)
    assert news.insert_many(ITEMS[:100]) == [True] * 100
    cluster.nodes[1].kill()
    with pytest.raises(ServerUnavailable, match="Error 111 connecting") as caught:
        news.insert_many(ITEMS[:200])
    told = caught.value.answers
    assert [each for each in told[:100] if each is not None] == [False] * (100 - told[:100].count(None))
    assert 0 < told.count(None) < 200
    cluster.nodes[1].start()
    cluster.wait_until_whole()
    assert answers_of(news, ITEMS[:200], caught.value) == [False] * 100 + [True] * 100
    assert answers_of(news, ITEMS) == [False] * 200 + [True] * 100


@pytest.mark.slow
def test_replicas(make_cluster, clients):
    """Replicas answer ``contains``. With one of them stopped its master's answers count as lost, until it is back."""
    cluster = make_cluster("valkey", replicas=1)
    times = Timeouts(total=3, reply=3)
    news = clients.create("news", redis=cluster.url, wait_replicas=1, timeouts=times, **PRECISE)
    assert answers_of(news, ITEMS[:100]) == [True] * 100
    reader = clients.open("news", redis=cluster.url, reads="replicas")
    before = [evalsha_of(node) for node in cluster.nodes]
    assert reader.contains_many(ITEMS[:200]) == [True] * 100 + [False] * 100
    more = [evalsha_of(node) - calls for node, calls in zip(cluster.nodes, before, strict=True)]
    assert more[:3] == [0, 0, 0]
    assert min(more[3:]) > 0
    cluster.replica_of(cluster.nodes[1]).suspend()
    try:
        lost = lost_for(news, ITEMS[:200], "0 of 1 replicas")
        plain = clients.open("news", redis=cluster.url)
        assert plain.contains_many(ITEMS[:200]) == [True] * 200  # they are there, and nobody was told so
    finally:
        for node in cluster.nodes:
            node.resume()
    assert answers_of(news, ITEMS[:200], lost) == [False] * 100 + [True] * 100


@pytest.mark.slow
def test_nobody_has_a_slot(make_server, clients):
    """A node of no cluster yet: an error in words; the same filter object works once the slots have a master."""
    alone = make_server("redis70", **{"cluster-enabled": "yes"})
    with pytest.raises(ServerUnavailable, match="no master for these keys"):
        clients.create("news", redis=alone.url, timeouts=HASTY, **PRECISE)
    assert alone.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    news = clients.create("news", redis=alone.url, **PRECISE)
    assert news.insert_many(ITEMS) == [True] * 300


#: Masters that are killed, one after the other, in each run.
ROUNDS = int(os.environ.get("TEST_URIFILTER_ROUNDS", "1"))
SEED = int(os.environ.get("TEST_URIFILTER_SEED", "1"))


@pytest.mark.nightly
@pytest.mark.parametrize("wait_replicas", [0, 1])
def test_a_master_is_killed(tmp_path, wait_replicas):
    """Each URI is new once, and once more for each failover that has lost its acknowledged write.

    With ``wait_replicas=1`` there are no such losses.
    """
    with Run(tmp_path, wait_replicas, SEED) as run:
        for _ in range(ROUNDS):
            run.round(3)
            if wait_replicas:
                run.stall(1)
        counts = run.finish()
    assert counts.wrong == {}, counts
    assert (counts.unreplicated > 0) == (wait_replicas == 0)
    assert counts.asked > 1000
    assert counts.moved > 5
