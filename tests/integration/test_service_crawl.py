"""Crawlers that ask the service: "new" is answered exactly once, whatever is cut, repeated or killed."""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from support import api_crawler
from support.metrics import Metrics
from support.page_crawler import certain
from support.proxy import HttpProxy, at_random
from support.servers import wait_until
from support.service import Service, serving
from support.together import together

from urifilter_redis import Timeouts, UriFilter
from urifilter_redis.sdk import FilterAPIClient

#: Crawlers, lines of which each of them asks about all, and how many of them it asks about at once.
CRAWLERS, COUNT, BATCH = 8, 47_900, 700

#: Answers that come between two workers that are killed: so one of them serves.
ANSWERS = 20


@pytest.fixture
def lines(tmp_path):
    """Lines, most of them different; ``TEST_URIFILTER_URLS`` names a file of real ones."""
    if named := os.environ.get("TEST_URIFILTER_URLS"):
        return Path(named)
    dice = random.Random(1)
    different = [f"https://www.example{i % 97}.com/päge/{i}?q={dice.randrange(9)}".encode() for i in range(COUNT)]
    different += [b"\xef\xbb\xbfhttp://bom.example/", b"\xff\xfe odd bytes", b"", b"tab\there", b"'\"\\\x01"]
    different += [b"http://\xed\xa0\x80.example/%d" % i for i in range(COUNT + 40 - len(different))]
    file = tmp_path / "urls.txt"
    file.write_bytes(b"\n".join([*different, *dice.sample(different, 70)]))
    return file


def crawl(url: str, lines: Path, out: Path) -> collections.Counter[bytes]:
    """Let crawlers insert all lines; return how often each was new."""
    command = [sys.executable, api_crawler.__file__, url, "news", str(lines)]
    running = [subprocess.Popen([*command, str(seed), str(BATCH), str(out)]) for seed in range(CRAWLERS)]
    assert [each.wait(200) for each in running] == [0] * CRAWLERS
    return collections.Counter(out.read_bytes().split(b"\n")[:-1])


@pytest.mark.slow
def test_faults_and_killed_workers(any_server, news, lines, tmp_path):
    """Each line that differs is new once, to 8 processes that insert the same ones, whatever happens meanwhile.

    They ask through a proxy that loses, delays and repeats, while workers are killed again and again.
    """
    stop, killed = threading.Event(), []
    with Service(any_server.url, "--workers", 2) as service:
        with HttpProxy(service.port, at_random(7, 0.05), late_after=20) as proxy:
            killer = threading.Thread(target=kill_workers, args=(service, proxy, stop, killed))
            killer.start()
            try:
                told = crawl(proxy.url, lines, tmp_path / "new")
                while len(killed) < 2 and killer.is_alive():  # again, and nothing is new
                    told = crawl(proxy.url, lines, tmp_path / "new")
            finally:
                stop.set()
                killer.join()
            faults = sum(count for fault, count in proxy.counts.items() if fault.value != "pass")
        assert told == dict.fromkeys(lines.read_bytes().split(b"\n"), 1)
        assert news.inserted() == len(told)
        assert len(killed) >= 2
        assert faults > 10


def kill_workers(service: Service, proxy: HttpProxy, stop: threading.Event, killed: list[int]) -> None:
    """Kill one worker after the other, each once both are there, and the crawlers have gone on since the last."""
    before = 0
    while not stop.wait(1):
        workers = serving(service)
        if len(workers) == 2 and proxy.answered > before + ANSWERS:
            os.kill(workers[len(killed) % 2], signal.SIGKILL)
            killed.append(workers[len(killed) % 2])
            before = proxy.answered


@pytest.mark.slow
def test_claims_and_killed_workers(any_server, news):
    """Pages are claimed and committed once each, while workers are killed, and answers lost on the way."""
    stop, killed, uris = threading.Event(), [], [f"https://example.com/{i}" for i in range(12_000)]
    claimed, committed = collections.Counter[str](), collections.Counter[str]()
    with (
        Service(any_server.url, "--workers", 2) as service,
        HttpProxy(service.port, at_random(7, 0.02), late_after=20) as proxy,
        FilterAPIClient(proxy.url, timeouts=Timeouts(connect=5, reply=5, total=60)) as api,
    ):
        killer = threading.Thread(target=kill_workers, args=(service, proxy, stop, killed))
        killer.start()

        def crawl_all(seed: int) -> None:
            some = random.Random(seed).sample(uris, len(uris))
            starts = range(0, len(some), 100)
            with api.claims("news", lease=60) as mine:
                for number, start in enumerate(itertools.cycle(starts)):
                    if number >= len(starts) and (len(killed) >= 2 or not killer.is_alive()):
                        break  # else again, and nothing is left to claim
                    todo = certain(mine.unique, some[start : start + 100])
                    claimed.update(todo)
                    done = certain(mine.commit, todo)
                    committed.update(uri for uri, was_final in zip(todo, done, strict=True) if was_final)
                assert mine.held == []

        together(partial(crawl_all, seed) for seed in range(CRAWLERS))
        stop.set()
        killer.join()
        with api.claims("news") as mine:
            assert mine.outstanding().others == 0
    assert claimed == committed == dict.fromkeys(uris, 1)
    assert news.inserted() == len(uris)
    assert len(killed) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [8_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("usual_timeouts")
def test_redis_is_killed_under_load(make_server, tmp_path, count):
    """503 while it is away, then answers again without a restart; with an append-only file nothing is lost."""
    redis = make_server("redis70", appendonly="yes", appendfsync="always")
    uris = [f"https://example.com/{i}" for i in range(count)]
    with UriFilter.create("news", redis=redis.url, capacity=100_000, error_rate=1e-8) as news:
        with Service(redis.url, "--workers", 2) as service:
            told: collections.Counter[str] = collections.Counter()
            over = threading.Event()

            def insert_all() -> None:
                with FilterAPIClient(service.url) as api:
                    starts = range(0, len(uris), 200)
                    for number, start in enumerate(itertools.cycle(starts)):
                        if number >= len(starts) and over.is_set():
                            break
                        told.update(api.unique("news", uris[start : start + 200]))

            threads = [threading.Thread(target=insert_all) for _ in range(4)]
            for thread in threads:
                thread.start()
            for wanted in (count // 8, count // 2):
                wait_until(lambda: len(told) >= wanted, "nothing is inserted")  # noqa: B023 - called at once
                redis.kill()
                refused = {"server_unavailable", "answer_lost"}
                wait_until(lambda: refused & Metrics(service).values("error_code"), "no 503")  # noqa: B023 - likewise
                redis.start()
            over.set()
            for thread in threads:
                thread.join()
            assert told == dict.fromkeys(uris, 1)
        assert news.inserted() == len(uris)
