"""Layout redisbloom: modules, filters and calls at the edges of what it was made for."""

from __future__ import annotations

import random
import threading
from collections import Counter
from functools import partial

import pytest
from redis.exceptions import ResponseError
from support.proxy import Proxy, at_random
from support.room import leave_room
from support.together import together

from urifilter_redis import SliceLost, UriFilter, UriFilterError

TODAY = "urifilter:{news:0}:today"


def made(server, **settings):
    return UriFilter.create("news", redis=server.url, layout="redisbloom", **{"capacity": 1000} | settings)


def test_module_that_declares_its_arguments(newer_bloom):
    """All works as with one that does not."""
    with made(newer_bloom, retention="growing", error_rate=1e-6) as news, news.claims() as mine:
        assert news.insert_many(range(1500)) == [True] * 1500
        assert news.forget([1]) == [True]
        assert news.insert_many([1, 2]) == [True, False]
        assert mine.claim_many([2000]) == [True]
        assert mine.commit([2000]) == [True]


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "error_rate", "asked"), [(128, 1e-4, 1_000_000), (1000, 1e-6, 3_000_000)])
def test_error_rate_of_a_small_filter(bloom, capacity, error_rate, asked):
    """It is what was asked for, and ``info`` tells it: the module's double hashing has 8n/m² more than its formula."""
    with bloom.client() as client, made(bloom, capacity=capacity, error_rate=error_rate) as news:
        dice, seen, total = random.Random(1), 0, 0
        while total < asked:
            for _ in range(20):  # of so few items another filter may be luckier
                key = f"copy:{total}"
                reserved = client.execute_command("BF.INFO", TODAY, "CAPACITY")[0]
                client.execute_command("BF.RESERVE", key, news.info().live_slices[0].error_share, reserved)
                client.execute_command("BF.MADD", key, *(dice.randbytes(16) for _ in range(capacity)))
                for _ in range(asked // 20 // 5000):
                    seen += sum(client.execute_command("BF.MEXISTS", key, *(dice.randbytes(16) for _ in range(5000))))
                    total += 5000
        assert seen / total < 1.5 * error_rate


@pytest.mark.parametrize("times", [2, 5, 10])
def test_foreign_filter_of_a_round_capacity(bloom, times):
    """The module's own growth doubles, so it comes to 1, 3, 7 … times the capacity, and to no other multiple."""
    with made(bloom) as news:
        news.insert_many(range(10))
        bloom.ask("unlink", TODAY)
        bloom.ask("execute_command", "BF.RESERVE", TODAY, 0.01, 1000 * times)
        with pytest.raises(SliceLost):
            news.insert("a")


def test_growing_filter_with_room(bloom):
    """Its next slice is made when an item has no place, and not because seen ones come behind new ones."""
    with made(bloom, retention="growing", error_rate=1e-6) as news:
        news.insert_many(range(980))
        assert sum(news.insert_many([*range(5000, 5008), *range(32)])) == 8
        assert len(news.info().live_slices) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_failures_behind_a_bad_network(bloom, seed):
    """The module fails in the middle of calls whose replies are lost: what is told to be new is what is kept, once."""
    told: Counter[int] = Counter()
    lock = threading.Lock()

    def crawl(number, url):
        dice = random.Random(f"{seed} {number}")
        with UriFilter.open("news", redis=url) as mine, mine.claims() as claims:
            for _ in range(60):
                batch = [dice.randrange(1500) for _ in range(dice.choice([1, 2, 33, 60, 250, 400]))]
                claimed = dice.random() < 0.3
                try:
                    if claimed:
                        taken = claims.claim_many(batch)
                        batch = [item for item, mine_now in zip(batch, taken, strict=True) if mine_now]
                    answers = claims.commit(batch) if claimed else mine.insert_many(batch)
                except UriFilterError as error:
                    answers = error.answers
                    claims.release([each.item for each in claims.held])
                with lock:
                    told.update(item for item, answer in zip(batch, answers, strict=True) if answer)

    with made(bloom, error_rate=1e-9) as news, bloom.client() as admin:
        leave_room(admin, news, 1000)
        with Proxy(bloom.port, at_random(seed, 0.1), late_after=25) as proxy:
            together(partial(crawl, number, proxy.url) for number in range(3))
            proxy.release()
        kept = [item for item, there in enumerate(news.contains_many(range(1500))) if there]
        assert sorted(told) == kept
        assert set(told.values()) == {1}
        assert len(kept) == 1000
        assert news.info().inserted == 1000
        with pytest.raises(ResponseError, match="non scaling filter is full"):
            admin.execute_command("BF.ADD", TODAY, "one more")
