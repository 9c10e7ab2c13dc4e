"""A server's clock that was ahead once: all goes on, nothing expires early, and doctor says so."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys

import pytest
from support import cli
from support.clock import Clock
from support.servers import Saved
from support.shard_keys import shard_key

from urifilter_redis import UriFilter
from urifilter_redis.base_blocking import run
from urifilter_redis.engine.driver import perform_step
from urifilter_redis.engine.steps import Pause
from urifilter_redis.flows.doctor import examine_clock
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.flows.rotation import rotate_due
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.worker import Worker

DAY = 86_400
YEAR = 365 * DAY
RING = {"capacity": 2000, "retention": "ring", "slices": 3, "period": "1d", "shards": 2}
ROLLING = RING | {"retention": "rolling"}


MONTH = {"capacity": 2000, "slices": 11, "period": "3d", "shards": 2}
CRAWL = """
import asyncio, json, sys
from urifilter_redis import AsyncUriFilter, UriFilter

url, way, settings, first = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
pages = [str(page) for page in range(first, first + 100)]

async def one_by_one():
    async with await AsyncUriFilter.create("news", redis=url, **settings) as news:
        return sum(await asyncio.gather(*map(news.insert, pages)))

def claiming():
    with UriFilter.create("news", redis=url, **settings) as news, news.claims() as mine:
        taken = [page for page, new in zip(pages, mine.claim_many(pages)) if new]
        return sum(mine.commit(taken))

def inserting():
    with UriFilter.create("news", redis=url, **settings) as news:
        return sum(news.insert_many(pages))

print({"one by one": lambda: asyncio.run(one_by_one()), "claims": claiming, "insert": inserting}[way]())
"""


def crawl(server, settings, clock=None, way="insert", first=0, **environment) -> int:
    """Let a process with the server's clock, or the machine's, crawl 100 pages; return how many were new."""
    more = (clock.environment if clock else {}) | environment
    call = [sys.executable, "-c", CRAWL, server.url, way, json.dumps(settings), str(first)]
    return int(subprocess.run(call, env=os.environ | more, check=True, capture_output=True, text=True).stdout)


def now(server) -> float:
    seconds, microseconds = server.ask("time")
    return seconds + microseconds / 1e6


def put(server, shard=None, **fields) -> None:
    """Put fields into ``meta``, of all shards or of one; numbers are times, seconds from now."""
    later = {name: round(1000 * (now(server) + time)) for name, time in fields.items() if not isinstance(time, str)}
    with server.client() as admin:
        for key in admin.scan_iter("*:meta" if shard is None else f"*:{shard}[-}}]*meta"):
            admin.hset(key, mapping=fields | later)


def worker(server, archive) -> Worker:
    return Worker(server.url, "urifilter", archive, open_backend(archive), 300.0)


def test_checkpoints_go_on(any_server, folder, archived_filter):
    """A worker writes back although the last checkpoint was in the future, and then when one is due again."""
    news = archived_filter(capacity=2000, shards=2)
    news.insert_many(range(100))
    news.checkpoint()
    assert news.checkpoint_age() < YEAR
    put(any_server, shard=1, checkpointed=YEAR)
    assert news.checkpoint_age() == math.inf
    assert news.info().checkpointed <= now(any_server)
    news.insert_many(range(100, 200))
    (done,) = worker(any_server, folder).once()
    assert (done.checkpoint, done.shards, done.error) == (2, 2, None)
    assert 0 <= news.checkpoint_age() < DAY
    assert worker(any_server, folder).once()[0].checkpoint is None
    any_server.ask("flushall")
    assert 0 not in archived_filter().ages(range(200))


def test_a_worker_that_died_while_it_was_ahead(any_server, folder, archived_filter):
    """Its lease ends when any does: the first who comes still waits, a minute later another may."""
    archived_filter(capacity=2000)
    put(any_server, worker="0123456789abcdef", leased=YEAR)
    assert worker(any_server, folder).once()[0].busy
    left = int(any_server.ask("hget", "urifilter:{news:0}:meta", "leased")) / 1000 - now(any_server)
    assert 0 < left <= 60


@pytest.mark.parametrize("settings", [RING, ROLLING], ids=["ring", "rolling"])
@pytest.mark.parametrize("shard", [None, 1], ids=["all", "one"])
def test_rotations_are_not_due_in_a_year(any_server, archived_filter, settings, shard):
    """The next is due a period after somebody who rotates has looked; to ask alone changes nothing."""
    news = archived_filter(**settings)
    news.insert_many(range(100))
    put(any_server, shard, opened=YEAR)
    before = now(any_server)
    untouched = Saved(any_server)._dumped
    assert news.due() is None
    assert news.info().live_slices[0].opened <= now(any_server)
    for due in (news.next_rotation(), news.info().next_rotation):
        assert before + DAY <= due + 0.001 <= now(any_server) + DAY + 0.002
    assert untouched == Saved(any_server)._dumped
    opened = any_server.ask("hget", shard_key("news", 1, 2, "meta"), "opened")
    assert int(opened) > 1000 * (now(any_server) + YEAR - DAY)
    assert news.rotate_due() is None
    due = news.next_rotation()
    assert due <= now(any_server) + DAY
    assert due == news.next_rotation()
    put(any_server, opened=-DAY)
    assert news.rotate_due().epoch == 1
    assert 0 not in news.ages(range(100))


def test_a_checkpoint_of_the_future(make_server, folder, tmp_path):
    """Whether an older server was worked on since cannot be told: what it was told is seen."""
    clock = Clock(tmp_path)
    clock.ahead(YEAR)
    server = make_server("redis70", environment=clock.environment)
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, capacity=2000) as news:
        news.insert("back")
        news.forget(["back"])
        news.checkpoint()
        saved = Saved(server)
        news.insert("x")
        news.checkpoint()
        clock.ahead(0)
        saved.bring_back()
        assert news.insert("back")
    with UriFilter.open("news", **where) as news:
        assert news.restored is not None
        assert "back" in news


def test_a_change_of_the_future(any_server, archived_filter):
    """What the checkpoint knew already does not keep an older server from getting what it lacks."""
    news = archived_filter(capacity=2000, layout="counting")
    put(any_server, changed=YEAR)
    saved = Saved(any_server)
    news.insert("x")
    news.checkpoint()
    saved.bring_back()
    again = archived_filter()
    assert again.restored.problems == ()
    assert "x" in again


@pytest.mark.parametrize("field", ["created", "opened", "changed", "checkpointed", "restored", "leased", "closed"])
def test_doctor(any_server, archived_filter, field):
    """It names the field and the shard, with exit code 0; times that are all right are not mentioned."""
    archived_filter(**RING).close()
    subject = ("--redis", any_server.url, "--json")
    texts = [each["text"] for each in json.loads(cli.run("doctor", *subject, code=1)[0])]
    assert not any("future" in text for text in texts)
    assert run(examine_clock, "news", redis=any_server.url) is None
    put(any_server, opened=3, checkpointed=3, leased=60, changed=30)  # as other servers' clocks may differ
    assert run(examine_clock, "news", redis=any_server.url) is None
    if field == "closed":
        end = round(1000 * (now(any_server) + YEAR))
        put(any_server, 1, closed=f"0:1:2:3 1:2:{end}:3")
    else:
        put(any_server, 1, **{field: YEAR})
    found = run(examine_clock, "news", redis=any_server.url)
    assert (found.level, found.subject) == ("note", "filter news")
    assert f"shard 1: {field} by 31,5" in found.text
    assert "shard 0" not in found.text
    if field == "checkpointed":
        texts = [each["text"] for each in json.loads(cli.run("doctor", *subject, code=1)[0])]
        assert found.text.split("(")[0] in " ".join(texts)


def test_doctor_of_claims(any_server):
    """It names claims that are held for longer than any lease, as a clock was ahead; leases and delays are right."""
    with (
        UriFilter.create("news", redis=any_server.url, capacity=1000, shards=2) as news,
        news.claims(lease=3600) as mine,
    ):
        mine.claim_many(range(100))
        with any_server.client() as admin:
            key, holder = shard_key("news", 1, 2, "holders"), bytes.fromhex(mine.holder)
            admin.zadd(key, {holder: 1000 * (now(any_server) + 2 * DAY)})
            early = run(examine_clock, "news", redis=any_server.url)
            admin.zadd(key, {holder: 1000 * now(any_server)})
            mine.release(range(50), delay=7 * DAY)
            assert run(examine_clock, "news", redis=any_server.url) is None
            admin.zadd(key, {holder: 1000 * (now(any_server) + YEAR)})
        found = run(examine_clock, "news", redis=any_server.url)
    assert "(shard 1: claims held for 172,8" in early.text
    assert (found.level, found.subject) == ("note", "filter news")
    assert "(shard 1: claims held for 31,5" in found.text


@pytest.mark.parametrize("settings", [RING, ROLLING], ids=["ring", "rolling"])
def test_a_clock_that_is_behind_for_a_while(make_server, tmp_path, settings):
    """Whoever rotates meanwhile makes nothing expire early once the clock is right again; nor does a second time."""
    clock, day = Clock(tmp_path), DAY
    clock.ahead(0)
    server = make_server("redis70", environment=clock.environment)
    with UriFilter.create("news", redis=server.url, **settings | {"slices": 2}) as news:
        clock.ahead(day - 10)
        news.insert("a")
        clock.ahead(day + 1)
        assert news.rotate_due().epoch == 1
        for behind in (600, 3600, 1200):
            clock.ahead(day + 1 - behind)
            assert news.rotate_due() is None
            clock.ahead(day + 100)
            assert news.rotate_due() is None
            assert news.contains("a")
        assert news.next_rotation() > now(server) + DAY - 200
        clock.ahead(2 * day + 1)
        assert news.rotate_due().epoch == 2
        assert news.insert("a")
        assert news.rotate_due() is None
        assert not server.ask("hexists", "urifilter:{news:0}:meta", "ahead")


@pytest.mark.sampled
@pytest.mark.parametrize("settings", [{"capacity": 2000}, RING, ROLLING], ids=["forever", "ring", "rolling"])
def test_a_clock_that_is_set_back(make_server, folder, tmp_path, settings, caplog):
    """It was a year ahead while the filter was made and written back; then a day passes, and then the server's data."""
    caplog.set_level(logging.INFO, "urifilter_redis")
    clock = Clock(tmp_path)
    clock.ahead(YEAR)
    server = make_server("redis70", environment=clock.environment)
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, **settings) as news:
        ahead = now(server)
        news.insert_many(range(100))
        if "period" in settings:
            news.rotate()
        assert worker(server, folder).once()[0].error is None
        clock.ahead(0)
        assert ahead - now(server) > YEAR - DAY
        news.insert_many(range(100, 200))
        (done,) = worker(server, folder).once()
        assert (done.checkpoint, done.error, done.epoch) == (2, None, None)
        if "period" in settings:
            assert news.next_rotation() <= now(server) + DAY
            clock.ahead(DAY + 1)
            (done,) = worker(server, folder).once()
            assert (done.epoch, done.error) == (2, None)
            assert 0 not in news.ages(range(200))
    server.ask("flushall")
    with UriFilter.open("news", **where) as news:
        assert 0 not in news.ages(range(200))
        assert news.ages(range(1000, 1100)) == [0] * 100


@pytest.mark.slow
@pytest.mark.parametrize("way", ["insert", "one by one", "claims"])
@pytest.mark.parametrize(
    "settings",
    [
        {"retention": "ring"},
        {"retention": "rolling"},
        {"retention": "ring", "expire_after": "last-seen"},
        {"retention": "rolling", "expire_after": "last-seen"},
        {"retention": "ring", "write": "all"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_a_crawl_once_a_month(make_server, tmp_path, settings, way):
    """With "again after 30 to 33 days" each run fetches everything again; one a day later fetches nothing."""
    clock = Clock(tmp_path)
    clock.ahead(0)
    server = make_server("redis70", environment=clock.environment)
    settings |= MONTH
    for month in range(4):
        clock.ahead(month * 34 * DAY)
        assert crawl(server, settings, clock, way) == 100
        clock.ahead(month * 34 * DAY + DAY)
        assert crawl(server, settings, clock, way) == 0
    with UriFilter.open("news", redis=server.url) as news:
        assert len(news) == 100
        assert news.ages([str(page) for page in range(100)]).count(0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("retention", ["ring", "rolling"])
def test_runs_that_miss_a_period_or_more(make_server, tmp_path, retention):
    """What was fetched is offered again after 30 days at the earliest, and 33 at the latest, whenever the runs are.

    Each day has two, because a rolling filter answers from its old history until the next is built.
    """
    clock = Clock(tmp_path)
    clock.ahead(0)
    server = make_server("redis70", environment=clock.environment)
    for day in (0, 0.5, 4, 11, 17, 29.9, 33.1, 40, 47.5, 62.9, 66.2, 95, 99.3, 131, 170):
        clock.ahead(round(day * DAY))
        new = [crawl(server, MONTH | {"retention": retention}, clock) for _ in range(2)]
        assert sum(new) == (100 if day in {0, 33.1, 66.2, 99.3, 170} else 0), day


@pytest.mark.slow
def test_a_clock_that_jumps_after_a_month(make_server, tmp_path):
    """If the client's clock has not moved, the server's may be wrong: one period at a time; late.

    Also in the first run after both agree again, since the times that it reads are from before.
    """
    clock = Clock(tmp_path)
    clock.ahead(0)
    server, settings = make_server("redis70", environment=clock.environment), MONTH | {"retention": "ring"}
    assert crawl(server, settings, clock) == 100
    for years in (1, 2):
        clock.ahead(years * YEAR)
        assert crawl(server, settings) == 0
        with UriFilter.open("news", redis=server.url) as news:
            assert news.epoch() == years
    for days, new in ((34, 0), (68, 100)):
        clock.ahead(2 * YEAR + days * DAY)
        assert crawl(server, settings, clock) == new


@pytest.mark.slow
def test_those_who_do_not_rotate_hide_a_pause(make_server, tmp_path):
    """Their inserts are answered, and make the others late; a worker that comes first makes nobody late."""
    clock = Clock(tmp_path)
    clock.ahead(0)
    server, settings = make_server("redis70", environment=clock.environment), MONTH | {"retention": "ring"}
    assert crawl(server, settings, clock, URIFILTER_ROTATE="never") == 100
    clock.ahead(34 * DAY)
    assert crawl(server, settings, clock, first=100, URIFILTER_ROTATE="never") == 100
    assert crawl(server, settings, clock) == 0
    clock.ahead(2 * 34 * DAY)
    more = os.environ | clock.environment
    rotate = [sys.executable, "-m", "urifilter_redis.cli", "rotate", "--due", "--redis", server.url]
    subprocess.run(rotate, env=more, check=True, capture_output=True)
    assert crawl(server, settings, clock, URIFILTER_ROTATE="never") == 100


@pytest.mark.slow
@pytest.mark.parametrize("retention", ["ring", "rolling"])
def test_a_clock_that_was_behind_for_weeks(make_server, tmp_path, retention):
    """Once it is set right, that is no pause: what was inserted a moment ago is seen."""
    clock = Clock(tmp_path)
    clock.ahead(-60 * DAY)
    server = make_server("redis70", environment=clock.environment)
    assert crawl(server, MONTH | {"retention": retention}) == 100
    clock.ahead(0)
    assert crawl(server, MONTH | {"retention": retention}) == 0


def turn_only(session):
    """Turn a filter, and leave what comes after that."""
    yield from open_(session)
    yield from rotate_due(session, build=False)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 1])
def test_a_turn_that_was_left_before_a_pause(make_server, tmp_path, shards):
    """The first insert after the pause finishes it, and then passes over the pause: what is too old is new."""
    clock = Clock(tmp_path)
    clock.ahead(0)
    server, settings = make_server("redis70", environment=clock.environment), MONTH | {"retention": "rolling"}
    settings |= {"shards": shards}
    assert crawl(server, settings, clock) == 100
    put(server, opened=-4 * DAY, written=-4 * DAY)
    run(turn_only, "news", redis=server.url)
    with server.client() as admin:
        phases = {admin.hget(key, "phase") for key in admin.scan_iter("*:meta")}
    assert phases == {b"rotating"}
    clock.ahead(44 * DAY)
    assert crawl(server, settings, clock) == 100


def test_no_shard_waits_until_all_that_has_expired_is_freed(any_server):
    """After a long pause a turn lets all slices go; the next shard needs the memory of one row."""
    news = UriFilter.create("news", redis=any_server.url, **RING | {"slices": 20, "shards": 4})
    for _ in range(19):
        news.rotate()
    put(any_server, opened=-30 * DAY, written=-30 * DAY)
    turning, outcome, waited = rotate_due(news._session, build=False), None, 0.0
    with contextlib.suppress(StopIteration):
        while True:
            step = turning.send(outcome)
            outcome = None if isinstance(step, Pause) else perform_step(step, news._connector)
            waited += step.seconds if isinstance(step, Pause) else 0
    assert len(news.info().live_slices) == 1
    assert 0 < waited < 2  # 0.3 s a shard, and not 2.1


def test_slices_that_were_never_made_are_not_missing(any_server, folder, archived_filter):
    """Verifying an archive finds nothing where periods were passed over, also before the next checkpoint."""
    news = archived_filter(**ROLLING | {"slices": 6})
    for passed, epoch in ((1.5, 1), (3.5, 4), (1.5, 5)):
        news.insert_many(range(epoch))
        put(any_server, opened=-passed * DAY, written=-passed * DAY)
        assert news.rotate_due().epoch == epoch
        assert json.loads(cli.run("archive", "verify", "news", "--json", "--archive", folder)[0])["problems"] == []


@pytest.mark.parametrize("more", [{}, {"expire_after": "last-seen"}], ids=["first-seen", "last-seen"])
@pytest.mark.parametrize("settings", [RING, ROLLING], ids=["ring", "rolling"])
def test_an_archive_of_a_filter_that_passed_over_periods(any_server, archived_filter, settings, more):
    """Its checkpoints are sound, and bring back what is live; so once nothing but today is."""
    news = archived_filter(**settings | more | {"slices": 4})
    for number in range(3):
        news.insert_many(range(100 * number, 100 * number + 100))
        news.rotate()
    news.insert_many(range(300, 400))
    for passed, epoch, live in ((2.5, 5, range(200, 500)), (1.5, 6, range(300, 600)), (9.5, 15, range(600, 700))):
        put(any_server, opened=-passed * DAY, written=-passed * DAY)
        assert news.due() == epoch
        assert news.rotate_due().epoch == epoch
        news.insert_many(range(100 * (len(live) and live[-1] // 100), live[-1] + 1))
        news.checkpoint()
        ages, info = news.ages(range(700)), news.info()
        assert [number for number, age in enumerate(ages) if age] == list(live)
        assert (
            json.loads(cli.run("archive", "verify", "news", "--json", "--archive", info.archive)[0])["problems"] == []
        )
        any_server.ask("flushall")
        news = archived_filter()
        assert news.ages(range(700)) == ages
        again = news.info()
        assert (again.epoch, again.live_slices, again.inserted) == (info.epoch, info.live_slices, info.inserted)
