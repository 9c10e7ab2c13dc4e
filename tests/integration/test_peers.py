"""Clients in Go (go-redis) and Java (Jedis), written from the protocol's page, and this library work on one filter."""

from __future__ import annotations

import contextlib
import subprocess
from urllib.parse import urlsplit

import pytest
from support import cli
from support.compiled import CLIENTS, COMPILING
from support.proxy import Fault, Proxy, first
from support.told import Told

from urifilter_redis import UriFilter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(COMPILING)]

SETTINGS = {"capacity": 20_000, "error_rate": 1e-8}
RING = {"retention": "ring", "slices": 4, "period": "2000w"}

ITEMS = ["", "a", "ü€😀", b"", b"\xff\x00", b"bytes", *(f"https://example.com/{n}" for n in range(400))]
MORE = [f"https://example.org/{n}" for n in range(1200)]


@pytest.fixture(scope="module", params=CLIENTS)
def client(request, tmp_path_factory):
    """The command of a client, with its folder of exported scripts."""
    folder = tmp_path_factory.mktemp(request.param)
    command = CLIENTS[request.param](folder)
    cli.run("lua", "export", folder / "scripts")
    return command, folder / "scripts"


@pytest.fixture
def start(client):
    """Start the client on a filter: ``start(url)``, ``start(url, url, url)`` for a cluster."""
    command, scripts = client
    with contextlib.ExitStack() as started:

        def start(*urls: str, name: str = "news") -> Told:
            addresses = [urlsplit(url).netloc for url in urls]
            return started.enter_context(Told([*command, "serve", str(scripts), *addresses, name]))

        yield start


def test_known_answers(client):
    """Digests, bytes, shards and tags are those of the exported file."""
    command, scripts = client
    done = subprocess.run([*command, "check", scripts], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.removeprefix("the known answers: ").split()[0]) > 400


@pytest.mark.parametrize("hash_", ["mmh3", "md5", "blake2b"])
def test_one_digest(start, any_server, hash_):
    """Texts and bytes are the same items to both, under each hash, in two shards."""
    with UriFilter.create("news", redis=any_server.url, hash=hash_, shards=2, **SETTINGS) as news:
        peer = start(any_server.url)
        new = peer("insert", ITEMS).count(0)
        assert all(news.contains_many(ITEMS))
        assert news.unique(MORE) == MORE
        assert all(peer("contains", MORE))
        assert news.info().inserted == new + len(MORE)
        assert news.unique(ITEMS) == []
        assert peer("contains", ["another"]) == [0]
        assert peer("forget", ["a", "never"]) == [1, 0]
        assert news.ages(["a", "ü€😀"]) == [0, 1]


@pytest.mark.parametrize("layout", ["blocked", "classic", "counting"])
def test_layouts(start, any_server, layout):
    """Each layout has scripts of its own; items of counting can be removed."""
    with UriFilter.create("news", redis=any_server.url, layout=layout, **SETTINGS) as news:
        peer = start(any_server.url)
        assert peer("insert", ["a", "b", "a"]) == [0, 0, 1]
        assert news.insert_ages(["b", "c"]) == [1, 0]
        if layout == "counting":
            assert peer("remove", ["a", "x"]) == [1, 0]
            assert "a" not in news
        else:
            assert peer.fails("remove", ["a"])["error"].startswith("BADARG")


def test_segments_and_stale(start, any_server):
    """Both find an item in the same segment of a shard, also after turns that the other has not heard of."""
    settings = SETTINGS | RING | {"capacity": 36_000_000, "shards": 2}
    with UriFilter.create("news", redis=any_server.url, **settings) as news:
        assert news.config.today.segments > 2
        peer = start(any_server.url)
        for turn in range(3):
            some = [f"{turn}: {n}" for n in range(700)]
            assert peer("insert", some[:500]) == [0] * 500
            assert news.unique(some) == some[500:]
            every = [f"{each}: {n}" for each in range(turn + 1) for n in range(700)]
            assert peer("contains", every) == news.ages(every)
            news.rotate()
        assert peer("contains", ["2: 1", "1: 1"], max_age=2) == [2, 0]


def test_a_full_growing_filter(start, any_server):
    """FULL is an error of the client, and changes nothing."""
    settings = {"capacity": 100, "error_rate": 1e-8, "retention": "growing"}
    with UriFilter.create("news", redis=any_server.url, **settings) as news:
        peer = start(any_server.url)
        assert peer("insert", map(str, range(80))) == [0] * 80
        said = peer.fails("insert", map(str, range(1000, 1040)))
        assert (said["kind"], said["error"].split()[0]) == ("FilterError", "FULL")
        assert news.info().inserted == 80


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY, Fault.DUPLICATE, Fault.HANG])
def test_one_fault(start, any_server, fault):
    """A command that is lost, late or doubled, or whose reply is lost, is answered right at the first asking."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news, Proxy(any_server.port) as proxy:
        peer = start(proxy.url)
        assert peer("insert", ["a"]) == [0]  # loads the script
        proxy.plan = first(fault)
        assert peer("insert", ["b", "a", "b"]) == [0, 1, 1]
        assert proxy.counts[fault] == 1
        assert peer("insert", ["b", "c"]) == [1, 0]
        proxy.release()
        assert news.info().inserted == 3


@pytest.mark.parametrize(
    ("behind", "cut", "certain"),
    [(200_000, False, True), (200_000, True, True), (500_000, False, True), (500_000, True, False)],
)
def test_a_call_after_its_deadline(start, any_server, behind, cut, certain):
    """LATECALL: the call gets a new id if it certainly did nothing; otherwise its answer is lost."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS), Proxy(any_server.port) as proxy:
        peer = start(proxy.url)
        assert peer("insert", ["a"]) == [0]
        proxy.plan = first(*[Fault.CUT_BEFORE] * cut)
        peer.begin("insert", ["b"], behind=behind)
        said = peer.end()
        assert said.get("kind") == (None if certain else "AnswerLost")
        assert peer("insert", ["c"]) == [0]


def test_the_filter_is_gone(start, any_server):
    """The scripts may be gone, and come back; NOFILTER after a drop, MISMATCH once another filter has the name."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news:
        peer = start(any_server.url)
        assert peer("insert", ["a"]) == [0]
        any_server.ask("script_flush")
        assert peer("insert", ["a"]) == [1]
        news.drop()
        assert peer.fails("insert", ["a"])["error"].split()[0] == "NOFILTER"
    with UriFilter.create("news", redis=any_server.url, **SETTINGS):
        assert peer.fails("insert", ["a"])["error"].split()[0] == "MISMATCH"


@pytest.mark.parametrize("change", [{"format": 2}, {"normalize": "other"}, {"hash": "other"}])
def test_what_it_does_not_know(start, any_server, change):
    """It refuses the filter when it opens it."""
    UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
    any_server.ask("hset", "urifilter:{news:0}:meta", mapping=change)
    assert start(any_server.url).fails("contains", ["a"])["kind"] == "FilterError"


def test_a_shard_with_claims(start, any_server):
    """The client has no scripts that look at leases: it is refused, and not answered wrongly."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news:
        peer = start(any_server.url)
        assert peer("insert", ["a"]) == [0]
        assert news.claims().claim("b")
        assert peer.fails("insert", ["b"])["error"].startswith("STALE")


def test_a_cluster(start, cluster):
    """Five shards on three masters: the keys are where the library looks, also after nodes have lost the scripts."""
    with UriFilter.create("news", redis=cluster.nodes[1].url, shards=5, **SETTINGS | RING) as news:
        peer = start(*(node.url for node in cluster.nodes))
        assert peer("insert", MORE[:600]) == [0] * 600
        assert news.unique(MORE) == MORE[600:]
        for node in cluster.nodes:
            node.ask("SCRIPT", "FLUSH")
        news.rotate()
        assert peer("insert", ["new", *MORE]) == [0, *[2] * len(MORE)]
        assert news.ages(["new", "other"]) == [1, 0]
        held = [sum(key.endswith(b":meta") for key in node.ask("KEYS", "urifilter:{*")) for node in cluster.nodes]
        assert sum(held) == 5
        assert min(held) > 0
