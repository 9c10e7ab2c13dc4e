"""A Redis without persistence is killed under load and comes back empty; the archive brings the filter back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from support import feeder
from support.archives import leftovers, sound
from support.servers import wait_until
from support.together import together

from urifilter_redis import ArchiveMissing, FilterNotFound, ServerUnavailable, Timeouts, UriFilter, UriFilterError
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Worker

SETTINGS = {
    "forever": {"capacity": 2_000_000, "shards": 2},
    "rolling": {"capacity": 2_000_000, "retention": "rolling", "slices": 5, "period": "1d"},
    "growing": {"capacity": 20_000, "retention": "growing"},
}


class Load:
    """Inserting processes; what they were told is in files."""

    def __init__(self, server, archive, folder) -> None:
        self.outs = [folder / f"told-{seed}" for seed in range(3)]
        # one of them does not name the archive
        self.running = [
            subprocess.Popen([sys.executable, feeder.__file__, server.url, each, "news", str(seed), str(out)])
            for seed, (each, out) in enumerate(zip((archive, archive, "-"), self.outs, strict=True))
        ]

    def told(self) -> list[tuple[float, list[int]]]:
        lines = [line.split() for out in self.outs if out.exists() for line in out.read_text().splitlines()]
        return [(float(line[0]), [int(number) for number in line[1:]]) for line in lines]

    def count(self) -> int:
        return sum(len(numbers) for _, numbers in self.told())

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def load(make_server, archive, tmp_path, request):
    server = make_server("redis70")
    settings = SETTINGS[request.param]
    UriFilter.create("news", redis=server.url, archive=archive, **settings).close()
    started = Load(server, archive, tmp_path)
    yield server, archive, settings, started
    started.stop()


@pytest.mark.parametrize(
    ("load", "archive"), [*((name, "folder") for name in SETTINGS), ("rolling", "mongodb")], indirect=True
)
@pytest.mark.nightly
def test_killed_under_load(load):
    """What was told before the last finished checkpoint began is seen; nobody gets an empty filter of the same name."""
    server, archive, settings, feeders = load
    if archive.startswith("mongodb://mock"):
        pytest.skip("mongomock is of this process alone: TEST_URIFILTER_FERRETDB or TEST_URIFILTER_MONGOECO")
    worker = Worker(server.url, "urifilter", archive, open_backend(archive), every=0.1)
    begun = []
    wait_until(lambda: feeders.count() > 5_000, "the feeders do not insert")
    for turn in range(4):
        before = time.time()
        (done,) = worker.once(force=True)
        assert done.error is None
        assert done.checkpoint is not None
        begun.append(before)
        if turn == 1 and "period" in settings:
            with UriFilter.open("news", redis=server.url, archive=archive) as news:
                news.rotate()
        wait_until(lambda n=turn: feeders.count() > 5_000 * (n + 2), "the feeders do not insert")
    dying = threading.Thread(target=worker.once, kwargs={"force": True})  # in the middle of a checkpoint, perhaps
    dying.start()
    time.sleep(0.03)
    server.kill()
    dying.join()
    server.start()
    back = time.time()
    safe = [f"https://example.com/{n}" for at, numbers in feeders.told() if at < begun[-1] for n in numbers]
    assert len(safe) > 15_000
    assert crowd(server, archive, settings, safe[::100]) == []
    feeders.stop()
    with UriFilter.open("news", redis=server.url, archive=archive, timeouts=Timeouts(restoring=30)) as news:
        after = [f"https://example.com/{n}" for at, numbers in feeders.told() if at > back for n in numbers]
        assert news.ages(safe).count(0) == 0
        assert news.ages(after).count(0) == 0
        nobody = [f"https://example.com/never/{n}" for n in range(50_000)]
        assert sum(age > 0 for age in news.ages(nobody)) < 50
        news.checkpoint()
    leftovers(archive)
    sound(archive)
    drive(worker.backend.close())


def crowd(server, archive, settings, safe) -> list[str]:
    """Let 12 threads create and open at once, some without the archive; return who was told that ``safe`` is new."""
    empty: list[str] = []
    start = threading.Barrier(12)

    def come(number: int) -> None:
        where = {"redis": server.url, "timeouts": Timeouts(restoring=30 if number % 3 else 0)}
        where |= {"archive": archive} if number % 2 else {"archive": ""}
        start.wait()
        for _ in range(20):
            try:
                if number % 4 < 2:
                    news = UriFilter.create("news", **where, **settings)
                else:
                    news = UriFilter.open("news", **where)
            except (ArchiveMissing, FilterNotFound, ServerUnavailable):
                time.sleep(0.02)
                continue
            except UriFilterError as error:
                assert "restor" in str(error), error  # noqa: PT017 - any other is a bug
                time.sleep(0.02)
                continue
            with news:
                try:
                    if 0 in news.ages(safe):
                        empty.append(str(where))
                except UriFilterError as error:  # or there was a shard that the restorer had not taken yet
                    assert isinstance(error, FilterNotFound) or "restor" in str(error), error  # noqa: PT017 - likewise
            return

    together(partial(come, number) for number in range(12))
    return empty


@pytest.mark.parametrize("retention", ["ring", "rolling"])
def test_a_rotator_without_the_archive_refuses(any_server, folder, retention):
    """It could rotate a Redis that is older than its archive."""
    settings = {"capacity": 1000, "retention": retention, "slices": 3, "period": "1d"}
    UriFilter.create("news", redis=any_server.url, archive=folder, **settings).close()
    with UriFilter.open("news", redis=any_server.url) as news:
        for rotate in (news.rotate, news.rotate_due, news.due):
            with pytest.raises(ArchiveMissing, match="needs its archive file:///"):
                rotate()
        assert news.insert("a")
        with pytest.raises(ArchiveMissing):
            news.checkpoint()
