"""Layout counting: items can be removed; what its counters cannot do."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
from support import cli
from support.proxy import Fault, Proxy, first
from support.shard import KEYS, Shard, geometry, md5
from support.together import together

from urifilter_redis import UriFilter, UriFilterError
from urifilter_redis.bloom.digest import classic_offsets

SETTINGS = {"capacity": 20_000, "error_rate": 1e-6, "layout": "counting"}


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.DUPLICATE, Fault.DELAY])
def test_a_retried_removal_removes_once(any_server, fault):
    """The reply is lost, or the command comes twice: another item with the same counters keeps them."""
    with UriFilter.create("queue", redis=any_server.url, **SETTINGS) as queue:
        queue.insert_many(range(10))
        with Proxy(any_server.port) as proxy, UriFilter.open("queue", redis=proxy.url) as other:
            proxy.plan = first(fault)
            assert other.remove([3, 4]) == [True, True]
            assert queue.insert(3) is True  # between the removal and a late copy of it
            proxy.release()
        assert queue.ages([3, 4, 5]) == [1, 0, 1]


def test_counters_stick(server):
    """A counter that has come to 15 stays: never a false negative; what shares it cannot be removed any more."""
    with server.client() as client:
        shard = Shard(client, geometry("counting", 1, 7))
        digests = [md5(b"%d" % i) for i in range(2000)]
        cell = next(iter(classic_offsets(digests[0], 7, 1)))
        client.execute_command("BITFIELD", KEYS.slice("today"), "SET", "u4", f"#{cell}", 14)
        assert shard.ask("remove", digests[0]) == [1]
        assert shard.ask("insert", digests[0]) == [1]
        client.execute_command("BITFIELD", KEYS.slice("today"), "SET", "u4", f"#{cell}", 15)
        for _ in range(20):
            assert shard.ask("remove", digests[0]) == [1]
        assert client.execute_command("BITFIELD", KEYS.slice("today"), "GET", "u4", f"#{cell}") == [15]
        assert shard.ask("contains", digests[0]) == [1]


def test_threads_insert_and_remove(server):
    """Each of 8 threads inserts and removes its own items among those of the others: afterwards nothing is left."""
    queue = UriFilter.create("queue", redis=server.url, shards=3, **SETTINGS)
    new, removed = [], []

    def work(thread: int) -> None:
        own = [f"{thread}-{i}" for i in range(300)]
        for start in range(0, 300, 50):
            some = own[start : start + 50]
            new.extend(queue.unique(some))
            removed.extend(queue.remove(some))

    together(partial(work, number) for number in range(8))
    assert len(new) == len(set(new)) == 2400
    assert removed == [True] * 2400
    assert queue.info().fill == 0.0


def test_what_counting_does_not_do(any_server):
    """No retention but forever, and no union."""
    with UriFilter.create("queue", redis=any_server.url, **SETTINGS) as queue:
        UriFilter.create("other", redis=any_server.url, **queue.settings).close()
        with pytest.raises(UriFilterError, match="counting cannot be merged"):
            queue.union("other")


def test_command_line(any_server):
    """``remove`` takes lines out again and says how many were there."""
    where = ("--redis", any_server.url)
    cli.run("create", "queue", "--capacity", "1k", "--layout", "counting", *where)
    cli.run("add", "--filter", "queue", *where, given=b"a\nb\n")
    _, err = cli.run("remove", "--filter", "queue", *where, given=b"a\nx\n")
    assert err == "2 lines: 1 removed, 1 were not there\n"
    out, _ = cli.run("check", "--filter", "queue", *where, given=b"a\nb\n")
    assert out == b"new\ta\nseen\tb\n"
    cli.run("create", "news", "--capacity", "1k", *where)
    _, err = cli.run("remove", "--filter", "news", *where, given=b"a\n", code=2)
    assert "remove is for layout counting" in err


@pytest.mark.slow
def test_fill_and_error_rate(any_server):
    """Counters over 0, and about the asked rate at capacity."""
    settings = SETTINGS | {"capacity": 5000, "error_rate": 1e-2}
    with UriFilter.create("queue", redis=any_server.url, **settings) as queue:
        queue.insert_many(range(5000))
        info = queue.info()
        assert info.error_rate_now == pytest.approx(1e-2, rel=0.15)
        found = sum(queue.ages(range(10**6, 10**6 + 100_000))) / 100_000
        assert found == pytest.approx(1e-2, rel=0.2)
        assert info.segment_bytes == pytest.approx(4 * 5000 * 9.585 / 8, rel=0.01)


@pytest.mark.slow
def test_removing_in_many_processes(any_server, tmp_path):
    """Two processes remove the same 500 items: each item is told to one of them."""
    with UriFilter.create("queue", redis=any_server.url, **SETTINGS) as queue:
        queue.insert_many(range(500))
    code = (
        "import sys; from urifilter_redis import UriFilter; q = UriFilter.open('queue', redis=sys.argv[1]);"
        "print(sum(sum(q.remove([i])) for i in range(500)))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, any_server.url], stdout=subprocess.PIPE) for _ in range(2)]
    assert sum(int(each.communicate(timeout=60)[0]) for each in running) == 500
