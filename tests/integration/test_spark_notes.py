"""The example for Spark without Spark: repeats of a batch, at once, in time and too late."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from urifilter_redis import UriFilter

_SPEC = importlib.util.spec_from_file_location(
    "spark_unique", Path(__file__).parents[2] / "examples" / "spark_unique.py"
)
spark_unique = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(spark_unique)

URLS = [f"https://example.com/{number}" for number in range(1000)]

MINUTE, DAY = 60, 24 * 3600

REPLIES = "urifilter:{news:0}:replies"


class Killed(Exception):
    """An attempt ends."""


class Attempts:
    """The attempts of a batch of a run, each with a filter object and a connection of its own, as a process has."""

    def __init__(self, news, run="monday"):
        self.news, self.run = news, run

    def __call__(self, urls=URLS, number=0, *, partition=0, killed=False):
        """Answer a batch; a killed attempt has inserted it, and noted nothing."""
        notes = spark_unique.Notes(self.news, self.run, partition)

        def ask():
            new = inserted(urls, f"{notes.key} {number}")
            if killed:
                raise Killed
            return new

        try:
            return notes.answers(number, urls, ask)
        finally:
            notes.close()

    def kill(self, *args, **more):
        with pytest.raises(Killed):
            self(*args, killed=True, **more)


def inserted(urls, call_key):
    """The answers that another process gets under a call key."""
    with UriFilter.open("news") as news:
        return news.insert_many(urls, call_key=call_key)


def filter_of(server, monkeypatch):
    monkeypatch.setenv("URIFILTER_REDIS_URL", server.url)
    return UriFilter.create("news", capacity=10_000, error_rate=1e-9)


@pytest.fixture
def attempt(any_server, monkeypatch):
    with filter_of(any_server, monkeypatch) as news:
        yield Attempts(news)


@pytest.fixture
def later(clocked, monkeypatch):
    """Attempts, and what sets the server's clock forward and has it remove what is too old."""
    server, clock = clocked
    ahead = 0

    def forward(seconds):
        nonlocal ahead
        ahead += seconds
        clock.ahead(ahead)
        with UriFilter.open("news") as others, server.client() as admin:
            before = admin.hkeys(REPLIES)
            for number in range(100):  # each call that adds a record looks at two others; few, so none is passed over
                others.insert_many(["https://example.org/"], call_key=f"{ahead} {number}")
                admin.hdel(REPLIES, *set(admin.hkeys(REPLIES)) - set(before))

    with filter_of(server, monkeypatch) as news:
        yield Attempts(news), forward


def test_a_repeat_gets_the_same_answers(attempt):
    """Whether the first attempt noted its answers or was killed before; another batch gets what is left."""
    assert attempt(URLS[:100]) == attempt(URLS[:100]) == [True] * 100
    attempt.kill(URLS[50:150], 1)
    assert attempt(URLS[50:150], 1) == [False] * 50 + [True] * 50
    assert attempt(URLS[:150], 2) == attempt(URLS[:150], 0, partition=1) == [False] * 150
    assert attempt([], 3) == []
    assert attempt(["é", "\ud800", "é"], 4) == [True, True, False]


def test_attempts_at_the_same_time(attempt):
    """Four partitions with the same URLs, three attempts of each at once: each URL is new in one partition."""

    def answers(number):
        return number % 4, attempt(URLS if number % 2 else URLS[::-1], partition=number % 4)

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(answers, range(12)))
    by_partition = dict(found)
    assert all(new == by_partition[partition] for partition, new in found)
    new = [by_partition[number] if number % 2 else by_partition[number][::-1] for number in range(4)]
    assert [sum(each) for each in zip(*new, strict=True)] == [1] * len(URLS)


def test_other_urls_in_a_repeat(attempt):
    """They are refused, and not inserted: the URLs that were new before would be lost otherwise."""
    attempt(URLS[:10])
    with pytest.raises(spark_unique.CannotRepeatError, match=":monday:0: batch 0 has other URLs"):
        attempt(URLS[1:11])
    assert URLS[10] not in attempt.news


@pytest.mark.slow
def test_a_call_key_too_late(later):
    """It is another call by then, and all that the first one inserted is seen."""
    _, forward = later
    assert inserted(URLS, "a") == [True] * 1000
    forward(7 * MINUTE)
    assert inserted(URLS, "a") == [True] * 1000
    forward(4 * MINUTE)
    assert False in inserted(URLS, "a")


@pytest.mark.slow
def test_noted_answers_stay(later):
    """The answers that an attempt noted are given again for days."""
    attempt, forward = later
    attempt(URLS[:500])
    first = attempt(URLS, 1)
    forward(6 * DAY)
    assert attempt(URLS, 1) == first == [False] * 500 + [True] * 500


@pytest.mark.slow
def test_a_repeat_within_eight_minutes(later):
    """The server still has the answers of the attempt that was killed."""
    attempt, forward = later
    attempt.kill()
    forward(7 * MINUTE)
    assert attempt() == [True] * 1000


@pytest.mark.slow
def test_a_repeat_after_eight_minutes(later):
    """Nobody knows any more whether the killed attempt inserted them, and nothing is answered "seen"."""
    attempt, forward = later
    attempt.kill()
    forward(11 * MINUTE)
    late = attempt()
    assert None in late
    assert False not in late
    assert attempt() == late
    assert attempt(URLS, 1) == [False] * 1000


@pytest.mark.slow
def test_an_attempt_that_hangs(later):
    """A repeat is too late to know, and notes that; the attempt that hung gives the same answers then."""
    attempt, forward = later
    notes = spark_unique.Notes(attempt.news, attempt.run)
    found = []

    def hangs():
        new = inserted(URLS, f"{notes.key} 0")
        forward(11 * MINUTE)
        found.append(attempt())
        return new

    assert notes.answers(0, URLS, hangs) == found[0]
    assert False not in found[0]
    notes.close()


@pytest.mark.slow
def test_a_run_that_is_too_old(later):
    """A week after its first start nothing of it begins; a run of another name does."""
    attempt, forward = later
    attempt(URLS[:1])
    forward(8 * DAY)
    with pytest.raises(spark_unique.CannotRepeatError, match="run monday was first started over 7 days ago"):
        attempt(URLS, 1)
    assert Attempts(attempt.news, "tuesday")(URLS) == [False] + [True] * 999


def test_notes_are_small(attempt, any_server):
    """A bit a URL, and less than 150 bytes a batch; they expire."""
    attempt([f"https://example.net/{number}" for number in range(10_000)])
    with any_server.client() as admin:
        (key,) = admin.keys("urifilter-spark:*:monday:0")
        assert sum(map(len, admin.hvals(key))) < 10_000 / 8 + 100
        assert admin.memory_usage(key) < 10_000 / 8 + 1000
        assert 13 * DAY < admin.ttl(key) <= 14 * DAY
