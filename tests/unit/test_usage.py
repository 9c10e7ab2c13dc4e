"""The use of tokens and the refusals of addresses: noted by each worker, told by all."""

from __future__ import annotations

import fcntl

from urifilter_redis.service.metrics import SHOWN, UsageGauges
from urifilter_redis.service.tokens import Token, digest
from urifilter_redis.service.usage import MOST_ADDRESSES, MOST_NAMES, Refused, Usage, Used


def test_one_worker():
    """Nothing is written where there is no folder, and nothing is forgotten by sharing."""
    usage = Usage()
    usage.use("one")
    usage.refuse("192.0.2.1")
    usage.share()
    usage.refuse("192.0.2.1")
    told = usage.told()
    assert told.tokens.keys() == {"one"}
    assert told.refused["192.0.2.1"].times == 2
    assert told.refused["192.0.2.1"].last >= told.tokens["one"] > 0


def test_several_workers(tmp_path):
    """Each tells what all have shared, and what it has noted itself; counts are summed, and the latest time counts."""
    first, second = Usage(tmp_path), Usage(tmp_path)
    for each in (first, second, second):
        each.refuse("192.0.2.1")
        each.use("one")
    first.use("two")
    assert first.told().refused["192.0.2.1"].times == 1
    first.share()
    second.share()
    second.share()  # there is no more
    again = Usage(tmp_path)  # a worker that was started later
    for each in (first, second, again):
        told = each.told()
        assert told.tokens.keys() == {"one", "two"}
        assert told.refused["192.0.2.1"].times == 3
        assert told == again.told()


def test_another_worker_is_sharing(tmp_path):
    """Nobody waits for it: the notes stay for the next time. A worker that is suspended then harms nobody."""
    usage = Usage(tmp_path)
    usage.refuse("a")
    usage.share()
    with (tmp_path / "usage.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        usage.refuse("a")
        usage.share()
        assert Usage(tmp_path).told().refused["a"].times == 1
        assert usage.told().refused["a"].times == 2
    usage.share()
    assert Usage(tmp_path).told().refused["a"].times == 2


def test_a_folder_that_is_gone(tmp_path):
    """The worker goes on with its own notes."""
    usage = Usage(tmp_path / "gone")
    usage.refuse("a")
    usage.share()
    usage.refuse("a")
    assert usage.told().refused["a"].times == 2


def test_it_is_bounded(tmp_path):
    """Of more addresses those that were refused last stay, in memory and with the others."""
    usage = Usage(tmp_path)
    for number in range(3 * MOST_ADDRESSES):
        usage.refuse(f"{number}")
        if number % 100 == 0:
            usage.refuse("again and again")
            usage.share()
    told = usage.told().refused
    assert len(told) == MOST_ADDRESSES
    assert {"again and again", f"{3 * MOST_ADDRESSES - 1}"} <= told.keys()
    assert "0" not in told
    many = Used({f"{number}": float(number) for number in range(MOST_NAMES)})
    assert list(many.with_more(Used({"new": 1e9})).tokens)[-2:] == [f"{MOST_NAMES - 1}", "new"]
    assert len(many.with_more(Used({"new": 1e9})).tokens) == MOST_NAMES


def test_answer():
    """Tokens in their order, with the last use, or none; addresses with the latest first; nothing of a digest."""
    usage = Usage()
    usage.refuse("a")
    usage.refuse("b")
    usage.refuse("a")
    usage.use("two")
    usage.use("gone")  # by new settings
    told = usage.answer([Token("one", digest("x")), Token("two", digest("y"), ("news",), "write")])
    assert [(each["name"], each["filters"], each["access"]) for each in told["tokens"]] == [
        ("one", ("*",), "read"),
        ("two", ("news",), "write"),
    ]
    assert told["tokens"][0]["last_used"] is None
    assert told["now"] >= told["tokens"][1]["last_used"] > 0
    assert [(each["address"], each["count"]) for each in told["refusals"]] == [("a", 2), ("b", 1)]
    assert "sha256" not in repr(told)


def test_gauges():
    """Tokens that there are and that were used; the addresses with the most refusals."""
    refused = {f"{number}": Refused(number, 1.0) for number in range(1, SHOWN + 11)}
    tokens, addresses = UsageGauges(Used({"one": 5.0, "gone": 6.0}, refused), ["one", "unused"]).collect()
    assert [(each.labels, each.value) for each in tokens.samples] == [({"token": "one"}, 5.0)]
    assert [each.value for each in addresses.samples] == list(range(SHOWN + 10, 10, -1))
