"""``rotate``, and what ``create``, ``list``, ``info``, ``plan`` and ``doctor`` say of slices."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from support import cli
from support.shard_keys import shard_key

from urifilter_redis import UriFilter

RING = ("--capacity", "10k", "--retention", "ring", "--slices", "3", "--period", "1d", "--seed", "1")


def age(server, name, days) -> None:
    server.ask("hincrby", f"urifilter:{{{name}:0}}:meta", "opened", -days * 86_400_000)


def test_rotate_due(there):
    """0: rotated; 3: nothing was due; without names all filters are looked at, those that do not rotate left alone."""
    cli.run("create", "ring", *RING)
    cli.run("create", "rolling", *RING[:3], "rolling", *RING[4:])
    cli.run("create", "forever", "--capacity", "1k")
    cli.run("create", "growing", "--capacity", "1k", "--retention", "growing")
    assert cli.run("rotate", "--due", code=3) == (b"", "")
    _, err = cli.run("rotate", "--due", "ring", code=3)
    assert err.startswith("ring: not due before 20")
    age(there, "ring", 9)
    assert cli.run("rotate", "--due", "--dry-run")[0] == b"ring: would rotate to epoch 9\n"
    assert cli.run("rotate", "--due")[0] == b"ring: rotated to epoch 9\n"
    assert cli.run("rotate", "--due", code=3)[0] == b""
    age(there, "rolling", 1)
    rows = json.loads(cli.run("rotate", "--due", "--json")[0])
    assert rows == [{"filter": "rolling", "epoch": 1, "shards": 1, "problems": []}]
    assert json.loads(cli.run("rotate", "--due", "--json", code=3)[0]) == []
    age(there, "ring", 1)
    assert cli.run("rotate", "--due", "-q") == (b"", "")


def test_rotate_by_hand(there):
    """Each call rotates; --epoch rotates once; --dry-run does nothing, and refuses what a real one would."""
    cli.run("create", "ring", *RING)
    cli.run("create", "two", *RING)
    assert cli.run("rotate", "ring", "two")[0] == b"ring: rotated to epoch 1\ntwo: rotated to epoch 1\n"
    assert cli.run("rotate", "ring", "--epoch", "1")[0] == b"ring: rotated to epoch 2\n"
    for dry in ((), ("--dry-run",)):
        _, err = cli.run("rotate", "ring", "--epoch", "1", *dry, code=2)
        assert "in epoch 2 and not in 1" in err
    assert cli.run("rotate", "ring", "--dry-run")[0] == b"ring: would rotate to epoch 3\n"
    assert UriFilter.open("ring", redis=there.url).epoch() == 2
    cli.run("create", "forever", "--capacity", "1k")
    for options in ((), ("--due",), ("--dry-run",)):
        _, err = cli.run("rotate", "forever", *options, code=2)
        assert "does not rotate: nothing in it expires" in err
    assert "no such filter" in cli.run("rotate", "nope", code=2)[1]
    assert "--due" in cli.run("rotate", code=2)[1]
    assert "leave out --epoch" in cli.run("rotate", "--due", "--epoch", "1", code=2)[1]


def test_one_broken_filter_does_not_stop_the_others(there):
    """The error is said, the others rotate, and the exit code is 2."""
    cli.run("create", "a-broken", *RING)
    cli.run("create", "ring", *RING)
    for name in ("a-broken", "ring"):
        age(there, name, 2)
    there.ask("delete", "urifilter:{a-broken:0}:today")
    out, err = cli.run("rotate", "--due", code=2)
    assert out == b"ring: rotated to epoch 2\n"
    assert "a-broken" in err


def test_problems_of_the_archive_are_said(there):
    """A closed slice that is missing: on stderr, with what it means; the rotation is done."""
    cli.run("create", "news", *RING[:3], "rolling", *RING[4:])
    cli.run("rotate", "news")
    cli.run("rotate", "news")
    there.ask("delete", "urifilter:{news:0}:slice:1")
    out, err = cli.run("rotate", "news")
    assert out == b"news: rotated to epoch 3\n"
    assert "slice 1 of the archive: it is missing; what it held expires late, not early" in err


def test_info_and_list_show_slices(there):
    """Age span, fill, count against capacity, error share and the next rotation; over-full slices stand out."""
    cli.run("create", "ring", *RING, "--period-capacity", "100")
    cli.run("add", "--filter", "ring", given=b"".join(b"%d\n" % i for i in range(50)))
    cli.run("rotate", "ring")
    _, err = cli.run("add", "--filter", "ring", given=b"".join(b"%d\n" % i for i in range(25, 250)))
    assert err.startswith("225 lines: 200 added")
    text = cli.run("info", "ring")[0].decode()
    rows = [line.split() for line in text.split("\n\n")[1].splitlines()]
    assert rows[0] == ["slice", "opened", "closed", "inserted", "capacity", "fill", "error", "share", "error", "now"]
    assert [row[0] for row in rows[1:]] == ["today", "history_1"]
    assert rows[1][-3:] == ["<", "over", "capacity"]
    assert "over" not in rows[2]
    assert "next rotation" in text
    info = json.loads(cli.run("info", "ring", "--json")[0])
    today, history = info["live_slices"]
    assert (today["inserted"], today["capacity"], today["over_capacity"], today["closed"]) == (200, 100, True, None)
    assert (history["inserted"], history["over_capacity"]) == (50, False)
    assert history["opened"] <= history["closed"] == today["opened"] <= time.time()
    assert today["error_share"] == pytest.approx(1e-4 / 3)
    assert (info["slices"], info["period"], info["epoch"], info["over_capacity"]) == (3, "1d", 1, True)
    assert info["next_rotation"] == pytest.approx(today["opened"] + 86_400)
    head, row = cli.run("list")[0].decode().splitlines()
    assert head.split()[-2:] == ["next", "rotation"]
    assert row.split()[:2] == ["ring", "ring"]
    assert "200%!" in row
    finding = next(f for f in json.loads(cli.run("doctor", "--json", code=1)[0]) if f["subject"] == "filter ring")
    assert finding["level"] == "danger"
    assert "over its capacity (today 200)" in finding["text"]


def test_doctor_on_rotations(there):
    """A rotation that is overdue, and one that was left."""
    cli.run("create", "ring", *RING)
    age(there, "ring", 5)
    findings = json.loads(cli.run("doctor", "--json", code=1)[0])
    assert "overdue by more than a period" in next(f["text"] for f in findings if f["subject"] == "filter ring")
    there.ask("hset", "urifilter:{ring:0}:meta", "phase", "rotating")
    findings = json.loads(cli.run("doctor", "--json", code=1)[0])
    assert "a rotation is under way, or was left" in next(f["text"] for f in findings if f["subject"] == "filter ring")


@pytest.mark.parametrize("kind", ["ring", "rolling"])
def test_doctor_on_slow_rotations(there, kind):
    """It says when the last rotation took over half a period, or one has been under way for so long."""

    def told() -> str:
        findings = json.loads(cli.run("doctor", "--json", code=1)[0])
        return next(found["text"] for found in findings if found["subject"] == "filter news")

    slices = ("--retention", kind, "--slices", "3", "--period", "1d", "--shards", "2")
    cli.run("create", "news", "--capacity", "10k", *slices)
    cli.run("rotate", "news")
    assert "rotation" not in told()
    with there.client() as admin:
        meta = shard_key("news", 1, 2, "meta")
        (opened, closed) = admin.hget(meta, "closed").decode().split(":")[1:3]

        def turned(earlier):
            admin.hset(meta, "closed", f"0:{opened}:{int(closed) - earlier}:0")

        turned(43_000_000)
        assert "rotation" not in told()
        turned(47_400_000)
        assert "the last rotation took over half a period (55%): take fewer shards" in told()
        admin.hset("urifilter:{news:0}:meta", "phase", "rotating")
        assert "was left unfinished, for over half a period (55%)" in told()


def test_max_age(there):
    """Lines seen only longer ago count as new: check, dedupe, add."""
    cli.run("create", "ring", *RING)
    cli.run("add", "--filter", "ring", given=b"a\n")
    cli.run("rotate", "ring")
    assert cli.run("check", "--filter", "ring", given=b"a\n")[0] == b"seen\ta\n"
    assert cli.run("check", "--filter", "ring", "--max-age", "1", given=b"a\n", code=1)[0] == b"new\ta\n"
    assert cli.run("dedupe", "--filter", "ring", given=b"a\nb\n")[0] == b"b\n"
    assert cli.run("dedupe", "--filter", "ring", "--max-age", "1", given=b"a\nb\n")[0] == b"a\n"
    assert "max_age is 1 to 3" in cli.run("add", "--filter", "ring", "--max-age", "9", given=b"a\n", code=2)[1]
    assert "for retention ring" in cli.run("add", "--max-age", "1", given=b"a\n", code=2)[1]


def test_create_says_what_it_made(there):
    """Retention, window and the memory that `plan` shows."""
    assert cli.run("create", "ring", *RING)[0] == (
        b"ring: 10,000 items at 0.0001, blocked, ring over 3 periods of 1d, 98.7 kB when full\n"
    )
    assert (
        "slices is not for retention forever" in cli.run("create", "x", "--capacity", "1k", "--slices", "3", code=2)[1]
    )
    assert "a period is 45s" in cli.run("create", "x", *RING, "--period", "soon", code=2)[1]


def test_plan_with_time(there):
    """Memory of all live slices, five error rates each, and no counting, which is for ever only."""
    plans = json.loads(cli.run("plan", "--json", *RING[:-2])[0])
    assert Counter(plan["layout"] for plan in plans) == {"blocked": 5, "classic": 5, "redisbloom": 5}
    plan = next(each for each in plans if each["layout"] == "blocked" and each["error_rate"] == 1e-4)
    assert plan["live_slices"] == 3
    assert plan["error_rate_at_capacity"] == pytest.approx(1e-4, rel=0.02)
    assert plan["memory_when_full"] == 4 * plan["memory_at_first"]  # a slice more while it rotates
    assert b"grows" in cli.run("plan", "--capacity", "10k", "--retention", "growing")[0]
    assert "needs slices" in cli.run("plan", "--capacity", "10k", "--retention", "ring", code=2)[1]


def test_the_default_filter_grows(there):
    """``dedupe`` makes a growing filter; one that is there is used as it is."""
    cli.run("dedupe", given=b"a\n")
    with UriFilter.open("default", redis=there.url) as made:
        assert (made.config.retention, made.config.capacity) == ("growing", 10_000_000)
    cli.run("drop", "default", "--yes")
    cli.run("create", "default", "--capacity", "1k")
    assert cli.run("dedupe", given=b"a\n")[0] == b"a\n"
    with UriFilter.open("default", redis=there.url) as found:
        assert found.config.retention == "forever"


def test_a_filter_of_the_version_before_opens_as_it_is(there):
    """``meta`` without what has come since: forever."""
    cli.run("create", "old", "--capacity", "1k")
    there.ask("hdel", "urifilter:{old:0}:meta", "oldest", "opened")
    assert cli.run("dedupe", "--filter", "old", given=b"a\na\n")[0] == b"a\n"
    info = json.loads(cli.run("info", "old", "--json")[0])
    assert (info["retention"], info["slices"], info["epoch"], info["inserted"]) == ("forever", None, 0, 1)
    cli.run("create", "old", "--capacity", "1k")
