"""``reads="replicas"``: replicas answer ``contains``, and the master does what they cannot."""

from __future__ import annotations

import pytest
from support import cli
from support.sentinels import catch_up, replica_of
from support.servers import Server, silent_port, wait_until
from support.users import User

from urifilter_redis import ServerUnavailable, Timeouts, UriFilter

pytestmark = pytest.mark.slow

FILTER = {"capacity": 1000, "error_rate": 1e-8}
READS = {"reads": "replicas", "timeouts": Timeouts(reply=0.5, total=10)}


@pytest.fixture(scope="module")
def _shared_pair():
    with Server("redis70") as master, replica_of(master) as replica:
        yield master, replica


@pytest.fixture
def pair(_shared_pair):
    """A master, a replica, and a filter."""
    return _filled(*_shared_pair)


@pytest.fixture
def own_pair(replicated):
    """Likewise; a test may kill it."""
    return _filled(*replicated())


def _filled(master, replica):
    master.ask("flushall")
    with UriFilter.create("news", redis=master.url, **FILTER) as news:
        news.insert_many(["a", "b"])
    catch_up(master, replica)
    return master, replica


def _asked(server) -> int:
    """The scripts that a server was asked to run, and had."""
    found = server.ask("info", "commandstats").get("cmdstat_evalsha", {"calls": 0, "failed_calls": 0})
    return found["calls"] - found.get("failed_calls", 0)


def test_replicas_do_the_work(pair, clients):
    """``contains`` and ages go to the replica, which is given the script; what writes goes to the master."""
    master, replica = pair
    with clients.open("news", redis=master.url, **READS) as news:
        masters, replicas = _asked(master), _asked(replica)
        assert news.contains_many(["a", "c"]) == [True, False]
        assert news.contains("b") is True
        assert news.ages(["a", "c"]) == [1, 0]
        assert (_asked(master) - masters, _asked(replica) - replicas) == (0, 3)
        assert news.insert("c") is True
        assert (_asked(master) - masters, _asked(replica) - replicas) == (1, 3)
        catch_up(master, replica)
        assert news.contains("c") is True
        with news.claims() as mine:
            assert mine.claim("d") is True
            catch_up(master, replica)
            assert news.contains_many(["a", "d"]) == [True, True]  # by the script that knows claims
            replicas = _asked(replica)
            assert news.contains("d") is True
            assert _asked(replica) == replicas + 1


@pytest.mark.parametrize("kind", ["valkey", "redis62"])
def test_other_servers(replicated, clients, kind):
    """Their replicas run the script, too."""
    master, replica = _filled(*replicated(kind))
    with clients.open("news", redis=master.url, **READS) as news:
        assert news.contains_many(["a", "c"]) == [True, False]
        assert _asked(replica) > 0


def test_by_url(pair):
    """The address has the option, of the command line, too."""
    master, replica = pair
    before = _asked(replica)
    url = f"{master.url}?reads=replicas"
    assert cli.run("--redis", url, "check", "--filter", "news", given=b"a\nx\n")[0] == b"seen\ta\nnew\tx\n"
    assert _asked(replica) > before


def test_a_replica_is_paused(pair, clients):
    """The master answers; the replica is left alone for a while, so that only one call waits for it."""
    master, replica = pair
    with clients.open("news", redis=master.url, **READS) as news:
        assert news.contains("a") is True
        replica.suspend()
        try:
            before = _asked(master)
            assert [news.contains(each) for each in ("a", "b", "c")] == [True, True, False]
            assert _asked(master) - before == 3
        finally:
            replica.resume()


def test_a_replica_is_killed(own_pair, clients):
    """The master answers, and is asked which replicas it has now."""
    master, replica = own_pair
    with clients.open("news", redis=master.url, **READS) as news:
        assert news.contains("a") is True
        replica.kill()
        before = _asked(master)
        assert [news.contains(each) for each in ("a", "b", "c")] == [True, True, False]
        assert _asked(master) - before == 3


def test_a_replica_that_is_behind(own_pair, clients):
    """What is not there yet: the master is asked, whatever the replica refuses (NOFILTER, STALE, LOST)."""
    master, replica = own_pair
    with clients.open("news", redis=master.url, **READS) as news:
        assert news.contains("a") is True
        with replica.client() as client:
            client.replicaof("no", "one")
            client.flushall()  # NOFILTER
            assert news.contains("a") is True
            (meta,) = master.ask("keys", "*:meta")
            client.restore(meta, 0, master.ask("dump", meta))  # LOST
            assert news.contains_many(["a", "x"]) == [True, False]
            client.hset(meta, "uid", "another")  # MISMATCH
            assert news.contains("a") is True


def test_a_replica_of_an_older_epoch(replicated, clients):
    """STALE: it has not heard of a rotation that this client knows of."""
    master, replica = replicated()
    shape = {"capacity": 1000, "retention": "ring", "slices": 3, "period": "1d"}
    with clients.create("news", redis=master.url, **shape, **READS) as news:
        news.insert("a")
        catch_up(master, replica)
        assert news.contains("a") is True
        replica.ask("replicaof", "no", "one")
        news.rotate()
        assert news.insert("b") is True
        assert news.contains_many(["a", "b"]) == [True, True]


def test_a_new_replica(any_server, clients, monkeypatch):
    """A client that was opened without any finds it after a while, though nothing failed."""
    monkeypatch.setattr("urifilter_redis.engine.topology.BELIEVED", 0.2)
    with clients.create("news", redis=any_server.url, **FILTER, **READS) as news:
        news.insert("a")
        assert news.contains("a") is True
        with replica_of(any_server) as replica:
            wait_until(lambda: news.contains("a") and _asked(replica), "it is not asked")


def test_behind_sentinels(watched, clients):
    """Those that the Sentinels find well are asked; after a failover that is the old master."""
    url = watched.url_of(reads="replicas")
    with clients.create("news", redis=url, timeouts=Timeouts(total=60), **FILTER) as news:
        news.insert("a")
        master = watched.present
        replica = next(each for each in (watched.master, *watched.replicas) if each is not master)
        catch_up(master, replica)
        before = _asked(replica)
        assert news.contains("a") is True
        assert _asked(replica) == before + 1
        replica.kill()
        assert news.contains("a") is True
        assert news.insert("b") is True


def test_a_user_who_may_not_ask_for_the_replicas(any_server):
    """It is told in words and at once: without the option that right is not needed."""
    UriFilter.create("news", redis=any_server.url, **FILTER).close()
    with User(any_server) as user, user.without("role"):
        with UriFilter.open("news", redis=user.url) as news:
            assert news.contains("a") is False
        with pytest.raises(ServerUnavailable, match="NOPERM") as caught:
            UriFilter.open("news", redis=user.url, reads="replicas")
    assert "gave up" not in str(caught.value)


def test_the_server_is_away():
    url = f"redis://127.0.0.1:{silent_port()}/0"
    with pytest.raises(ServerUnavailable, match="gave up after 0.2 s"):
        UriFilter.open("news", redis=url, reads="replicas", timeouts=Timeouts(total=0.2))
