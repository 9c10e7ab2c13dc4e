"""Crawlers that are killed and stopped lose no page with claims, and many with plain insert."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest
from support import page_crawler
from support.page_crawler import MOST_FAILURES, is_poison
from support.proxy import Fault, Proxy, at_random
from support.servers import wait_until

from urifilter_redis import UriFilter

LEASE = 5
CRAWLERS = 8
FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY, Fault.DUPLICATE)


@dataclass
class Told:
    """What one crawler wrote of itself.

    Attributes:
        taken: when the call began that claimed each page.
        fetched: how often it fetched each page.
        committing: the pages whose commit was sent.
        committed: when the answers about each page were there.
        final: the pages of which commit said True.
        end: whether it came to its end.
    """

    taken: dict[int, float] = field(default_factory=dict)
    fetched: collections.Counter[int] = field(default_factory=collections.Counter)
    committing: set[int] = field(default_factory=set)
    committed: dict[int, float] = field(default_factory=dict)
    final: list[int] = field(default_factory=list)
    end: bool = False

    def had_in_flight(self, since: float, until: float) -> set[int]:
        """The pages that it had in flight at some moment of this time."""
        return {
            page for page, at in self.taken.items() if at <= until and self.committed.get(page, float("inf")) >= since
        }


class Crowd:
    """Crawlers, of which some are killed (and replaced) and stopped; a context manager."""

    def __init__(self, url: str, out, count: int, way: str, work: float) -> None:
        words = [url, "news", count, LEASE, out, way, work]
        self._forking = subprocess.Popen(
            [sys.executable, page_crawler.__file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._out = out
        self._started = self._fetched = 0
        self._ended: set[int] = set()
        self._reading, self._begun = None, ""  # the part of a line that was read last
        self._lock = threading.Lock()
        self.running: dict[int, int] = {}  # number -> process id
        self.killed: dict[int, float] = {}  # number -> when
        self.stopped: list[tuple[int, float, float]] = []  # number, since, until

    def __enter__(self):
        for _ in range(CRAWLERS):
            self.start()
        return self

    def __exit__(self, *_):
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._forking.stdin.close()
        self._forking.wait(30)
        self._forking.stdout.close()
        if self._reading is not None:
            self._reading.close()

    def start(self) -> None:
        with self._lock:
            self._started += 1
            self._forking.stdin.write(f"{self._started}\n")
            self._forking.stdin.flush()
            self.running[self._started] = int(self._forking.stdout.readline())

    def look(self) -> int:
        """Return how many pages were fetched so far, and note who has ended."""
        if self._reading is None and self._out.exists():
            self._reading = self._out.open()
        *lines, self._begun = (self._begun + (self._reading.read() if self._reading else "")).split("\n")
        for line in lines:
            number, _, word, *_ = line.split()
            self._fetched += word == "fetched"
            if word == "end":
                self._ended.add(int(number))
        return self._fetched

    def working(self) -> list[int]:
        """The numbers of those that run and have not ended."""
        self.look()
        return [number for number in list(self.running) if number not in self._ended]

    def kill(self, dice: random.Random) -> None:
        """Kill one that works, and start another."""
        number = dice.choice(self.working())
        self.killed[number] = time.monotonic()
        os.kill(self.running.pop(number), signal.SIGKILL)
        self.start()

    def stop_some(self, dice: random.Random, times: int) -> None:
        """Stop one after the other, each for longer than its lease."""
        for _ in range(times):
            number = dice.choice(list(self.running))
            pid, since = self.running.pop(number), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            time.sleep(LEASE * 1.4)
            os.kill(pid, signal.SIGCONT)
            self.stopped.append((number, since, time.monotonic()))
            self.running[number] = pid

    def told(self) -> dict[int, Told]:
        told: dict[int, Told] = collections.defaultdict(Told)
        for line in self._out.read_text().splitlines() if self._out.exists() else ():
            number, at, word, *rest = line.split()
            one, pages = told[int(number)], list(map(int, rest))
            if word == "taken":
                one.taken |= dict.fromkeys(pages, float(at))
                for page in pages:
                    one.committed.pop(page, None)
            elif word == "committed":
                one.committed |= dict.fromkeys(pages, float(at))
            elif word == "end":
                one.end = True
            else:
                getattr(one, word).update(pages) if word != "final" else one.final.extend(pages)
        return told

    def wait(self) -> None:
        """Wait until all that run have come to their end."""
        wait_until(lambda: not self.working(), "they do not end", 120)


def crash(url: str, out, count: int, way: str, *, kills: int, stops: int, work: float) -> Crowd:
    """Let crawlers crawl, kill and stop them meanwhile, and return them at their end."""
    dice = random.Random(count)
    with Crowd(url, out, count, way, work) as crowd:
        wait_until(crowd.look, "they do not begin")
        stopping = threading.Thread(target=crowd.stop_some, args=(random.Random(stops), stops))
        stopping.start()
        for moment in sorted(dice.sample(range(round(0.7 * count)), kills)):
            wait_until(lambda fetched=moment: crowd.look() >= fetched, "they do not go on")
            crowd.kill(dice)
        stopping.join()
        crowd.wait()
    return crowd


def check_claims(server, crowd: Crowd, count: int) -> str:
    """Check that every page is final, once, and that all work that was done twice is explained; return the figures.

    Every poison page was rejected, once, with its failures.
    """
    told, pages = crowd.told(), set(range(count))
    poison = {page for page in pages if is_poison(page)}
    with UriFilter.open("news", redis=server.url) as news:
        notes = {each.item: each for each in news.dead_letters(limit=count)}
        assert set(notes) == poison
        assert {(each.failures, each.reason) for each in notes.values()} == {(MOST_FAILURES, "poison")}
        assert news.info().claims.rejected == len(poison)
        assert all(news.contains_many(pages))
        assert news.inserted() == count  # each commit that made a page final was counted, once
        assert sum(news.commit(pages)) == 0
        assert news.claims().outstanding().others == 0
    final = collections.Counter(page for one in told.values() for page in one.final)
    assert set(final.values()) == {1}
    untold = pages - set(final)  # the one who was told True was killed before it could write that
    in_doubt = {page for number in crowd.killed for page in told[number].committing - set(told[number].committed)}
    assert untold <= in_doubt

    fetched: collections.Counter[int] = sum((one.fetched for one in told.values()), collections.Counter())
    assert set(fetched) == pages
    lost: collections.Counter[int] = collections.Counter()
    for number, at in crowd.killed.items():
        lost.update(told[number].had_in_flight(at, at))
    for number, since, until in crowd.stopped:
        lost.update(told[number].had_in_flight(since, until))
    assert all(fetched[page] > MOST_FAILURES for page in poison)
    again = {page: times - 1 - MOST_FAILURES * (page in poison) for page, times in fetched.items()}
    # of a poison page that somebody takes twice only the second time is known: it may be the one after a stop
    certain = again if not crowd.stopped else again.keys() - poison
    assert {page: (again[page], lost[page]) for page in certain if again[page] > lost[page]} == {}
    twice = sum(again.values())
    return (
        f"{count} pages, {len(crowd.killed)} kills, {len(crowd.stopped)} stops: none lost; fetched again {twice}, of"
        f" {sum(lost.values())} in flight at a kill or stop;"
        f" True once each, {len(untold)} of them said to one that died;"
        f" {len(poison)} rejected once each, after {MOST_FAILURES} failures"
    )


def check_inserts(crowd: Crowd, count: int) -> str:
    """Check that pages are lost; return the figures."""
    fetched: collections.Counter[int] = sum((one.fetched for one in crowd.told().values()), collections.Counter())
    lost = count - len(fetched)
    assert max(fetched.values()) == 1
    assert lost > 0
    return f"{count} pages, {len(crowd.killed)} kills: {lost} lost, whose crawler was killed before it came to them"


def create(server, count: int, **settings) -> None:
    UriFilter.create("news", redis=server.url, capacity=2 * count, error_rate=1e-9, shards=4, **settings).close()


def crash_over_a_lossy_way(server, folder, count: int, way: str, *, seed: int = 1, layout="blocked", **how) -> Crowd:
    """Make the filter, and let crawlers come to it over a proxy."""
    create(server, count, layout=layout)
    with Proxy(server.port, at_random(seed, 0.05, FAULTS), late_after=20) as proxy:
        crowd = crash(proxy.url, folder / way, count, way, **how)
        proxy.release()
    return crowd


@pytest.mark.nightly
def test_a_hundred_kills(any_server, tmp_path, capsys):
    """20,000 pages, 100 kills and 6 stops, over a lossy way: with claims none is lost, with insert some are."""
    crowd = crash_over_a_lossy_way(any_server, tmp_path, 20_000, "claim", kills=100, stops=5, work=0.018)
    figures = [f"claim: {check_claims(any_server, crowd, 20_000)}"]
    any_server.ask("flushall")
    crowd = crash_over_a_lossy_way(any_server, tmp_path, 20_000, "insert", seed=2, kills=100, stops=0, work=0.005)
    figures.append(f"insert: {check_inserts(crowd, 20_000)}")
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{line}" for line in figures))


@pytest.mark.slow
def test_a_few_kills(any_server, tmp_path):
    """The same in small."""
    settings = {"stops": 0, "kills": 3, "work": 0.01}
    check_claims(any_server, crash_over_a_lossy_way(any_server, tmp_path, 400, "claim", **settings), 400)
    any_server.ask("flushall")
    create(any_server, 400)
    check_inserts(crash(any_server.url, tmp_path / "insert", 400, "insert", **settings), 400)


@pytest.mark.slow
def test_a_few_kills_in_a_module(bloom, tmp_path):
    """The claims of it with layout redisbloom."""
    how = {"layout": "redisbloom", "stops": 0, "kills": 3, "work": 0.01}
    check_claims(bloom, crash_over_a_lossy_way(bloom, tmp_path, 400, "claim", **how), 400)
