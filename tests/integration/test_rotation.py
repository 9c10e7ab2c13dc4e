"""Rotation: when it is due, who does it, what expires, and what happens to rotators that die."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import random

import pytest
from support.disk import mounted
from support.interleaved import Actor
from support.killer import Killer
from support.pipelines import pipelines
from support.shard_keys import shard_key
from support.together import together
from support.turning import Ticks, epochs, make_late

from urifilter_redis import (
    ArchiveError,
    AsyncUriFilter,
    Rotation,
    RotationConflict,
    ServerUnavailable,
    SliceLost,
    UriFilter,
    UriFilterError,
)
from urifilter_redis.engine import driver
from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.steps import Send
from urifilter_redis.flows import lifecycle, rotation
from urifilter_redis.flows.turn import Left, left_of, read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.storage import documents

PRECISE = {"capacity": 20_000, "error_rate": 1e-8, "period": "1d"}
#: Two pieces an archived bitmap.
ROLLING = {"capacity": 60_000, "error_rate": 1e-8, "period": "1d", "retention": "rolling", "slices": 3}
VARIANTS = {
    "ring": {"retention": "ring", "slices": 3},
    "ring-all": {"retention": "ring", "slices": 3, "write": "all"},
    "rolling": {"retention": "rolling", "slices": 3},
}


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch):
    """Nobody rotates but those whom a test lets rotate."""
    monkeypatch.setenv("URIFILTER_ROTATE", "never")


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


@pytest.fixture(params=[1, 3])
def news(request, variant, server, make_filter):
    return make_filter(shards=request.param, **variant, **PRECISE)


def test_last_seen_counts_an_item_once(variant, server):
    """However often it was seen, and after it has outlived its first slice; once it has expired it counts no longer."""
    settings = PRECISE | variant | {"expire_after": "last-seen", "capacity": 1000}
    with UriFilter.create("news", redis=server.url, **settings) as news:
        for turn in range(5):
            news.insert_many(range(600))  # the capacity is enough, though three slices have as many writes
            news.insert_many(range(600, 620) if turn % 2 else range(620, 640))  # each seen in every second period
            counted = 620 if turn == 0 else 640
            info = news.info()
            assert len(news) == info.inserted == pytest.approx(counted, abs=0 if info.retention == "ring" else 8)
            assert (info.live_slices[0].inserted, info.over_capacity) == (620, False)
            news.rotate()
        news.rotate()
        assert len(news) == pytest.approx(620, abs=0 if info.retention == "ring" else 8)
        news.rotate()
        assert len(news) == 0


def test_due_once_however_late(news, server):
    """Nothing is due before a period is over; after ten of them one rotation is, which passes over those."""
    assert news.due() is None
    assert news.rotate_due() is None
    make_late(server, seconds=907_200)
    assert news.due() == 10
    done = news.rotate_due()
    assert (done.epoch, done.shards) == (10, news.config.shards)
    assert news.rotate_due() is None
    now = server.ask("time")[0]
    assert news.next_rotation() == pytest.approx(now + 43_200, abs=30)
    assert news.info().next_rotation == news.next_rotation()


def test_never_early_though_shards_turned_at_different_times(server):
    """A rotation is due a period after the last shard turned."""
    with UriFilter.create("news", redis=server.url, shards=3, retention="ring", slices=2, **PRECISE) as news:
        make_late(server, seconds=86_401)
        server.ask("hincrby", shard_key("news", 2, 3, "meta"), "opened", 3_600_000)
        assert news.due() is None
        make_late(server, seconds=3_600)
        assert news.rotate_due().epoch == 1


def pipelines_of(news):
    """Run a rotation, and yield after each pipeline."""
    return pipelines(rotation.rotate(news._session), news._connector)


def test_shards_an_epoch_apart(variant, server):
    """While some shards have turned and others not, each answers rightly; whoever comes next finishes at once."""
    with UriFilter.create("news", redis=server.url, shards=3, **variant, **PRECISE) as news:
        news.insert_many(range(300))
        make_late(server, seconds=86_401)
        for _ in pipelines_of(news):
            if set(epochs(server)) == {0, 1}:
                break
        assert set(epochs(server)) == {0, 1}
        with UriFilter.open("news", redis=server.url) as other:
            ages = other.ages(range(300))
            assert set(ages) == ({1} if variant.get("write") == "all" else {1, 2})
            assert other.insert_ages(range(250, 350)) == [*ages[250:], *[0] * 50]
        assert news.due() == 1
        assert news.rotate_due().epoch == 1
        assert news.due() is None
        assert 0 not in news.ages(range(350))


ROTATORS = {
    "rotate": rotation.rotate,
    "expected": functools.partial(rotation.rotate, expected_epoch=0),
    "due": rotation.rotate_due,
}


@pytest.mark.parametrize("rotator", ROTATORS.values(), ids=ROTATORS)
def test_shard_0_is_the_last(variant, any_server, rotator):
    """At every moment of a rotation: once shard 0 has turned all have, and once it has finished all have."""
    with UriFilter.create("news", redis=any_server.url, shards=3, **variant, **PRECISE) as news:
        make_late(any_server, seconds=86_401)
        orders = []
        for _ in pipelines(rotator(news._session), news._connector):
            states = news._run(read_states(news._session))
            done = [(state.epoch, left_of(state) is Left.NONE) for state in states]
            assert done[0][0] <= min(epoch for epoch, _ in done)
            assert done[0][0] == 0 or all(finished for _, finished in done[1:])
            orders.append(done)
        assert orders[-1] == [(1, True)] * 3


def test_where_shard_0_alone_leads(variant, any_server):
    """A failover lost the turns of the others: it turns first, so that all who name one epoch turn each shard once."""
    with UriFilter.create("news", redis=any_server.url, shards=3, **variant, **PRECISE) as news:
        news.rotate()
        with any_server.client() as admin:
            for shard in (1, 2):
                keys = [shard_key("news", shard, 3, name) for name in ("meta", "today")]
                admin.delete(*admin.keys(shard_key("news", shard, 3, "*")))
                made = calls.create(
                    "make", news.config, news._session.keys.shard(shard), news.config.to_meta(shard, "idle")
                )
                news._run(ask(news._session, made))
                assert admin.exists(*keys) == 2
        news.insert_many(range(100))
        dying = pipelines(rotation.rotate(news._session, 1), news._connector)
        while epochs(any_server) == [1, 0, 0]:
            next(dying)
        assert epochs(any_server) == [2, 0, 0]
        dying.close()
        news.rotate(1)
        assert epochs(any_server) == [2, 1, 1]
        assert 0 not in news.ages(range(100))


def test_what_was_archived_is_not_written_again(any_server, monkeypatch):
    """A rotator that died while it archived the closed slice: the next writes the pieces that are missing or wrong."""
    with UriFilter.create("news", redis=any_server.url, **ROLLING) as news, any_server.client() as admin:
        news.insert_many(range(100))
        key = "urifilter:{news:0}:slice:0"
        for _ in pipelines_of(news):
            if admin.hlen(key) == 2:
                break
        count, before = -(-news.config.bytes // documents.PIECE), admin.hgetall(key)
        assert count > 2
        admin.hset(key, "1", b"spoilt")
        with monkeypatch.context() as patched:
            sent = Ticks(patched, 0.0).sent
            news.rotate(expected_epoch=0)
        commands = [each for step in sent if isinstance(step, Send) for each in step.commands]
        assert [str(each[-2]) for each in commands if "write" in each] == ["1", *map(str, range(2, count)), "manifest"]
        assert before == {field: admin.hget(key, field) for field in before}
        assert news.rotate().problems == ()
        assert 0 not in news.ages(range(100))


def test_no_shard_turns_twice_in_one_rotation(variant, server):
    """A shard that a dead rotator left behind stays an epoch behind: nothing of it expires early."""
    settings = PRECISE | variant | {"slices": 2}
    with UriFilter.create("news", redis=server.url, shards=3, **settings) as news:
        for _ in pipelines_of(news):
            if epochs(server)[1] == 1:
                break
        news.insert_many(range(300))
        assert news.rotate().epoch == 2
        assert 0 not in news.ages(range(300))
        assert epochs(server) == [1, 2, 1]
        assert news.due() is None
        make_late(server, seconds=86_401)
        assert news.rotate_due().shards == 2  # those that are behind catch up when their own period is over
        assert news.rotate_due() is None
        assert epochs(server) == [2, 2, 2]


def test_who_resumes_a_rotation_resumes_it_once(variant, server):
    """Two that finish what a third has begun, from the same epoch: each shard turns once, also one that was behind."""
    settings = PRECISE | variant | {"slices": 2}
    with UriFilter.create("news", redis=server.url, shards=3, **settings) as news:
        for _ in pipelines_of(news):
            if epochs(server)[1] == 1:
                break
        assert epochs(server) == [0, 1, 0]
        news.insert_many(range(300))
        news.rotate(expected_epoch=1)
        assert epochs(server) == [1, 2, 1]
        with pytest.raises(RotationConflict):
            news.rotate(expected_epoch=1)
        assert 0 not in news.ages(range(300))


def test_a_lost_reply_of_the_turn(server, monkeypatch):
    """The turn ran and its reply was lost: it is taken for what it is, once."""
    with UriFilter.create("news", redis=server.url, retention="ring", slices=3, **PRECISE) as news:
        perform, cut = driver.perform_step, []

        def cut_turn(step, sender):
            outcomes = perform(step, sender)
            if not cut and isinstance(step, Send) and "turn" in step.commands[0] and outcomes[0] == 1:
                cut.append(step)
                return [Unanswered(ConnectionError("cut"))] * len(step.commands)
            return outcomes

        monkeypatch.setattr(driver, "perform_step", cut_turn)
        make_late(server, seconds=86_401)
        assert news.rotate_due().epoch == 1
        assert cut
        cut.clear()
        assert news.rotate() == Rotation(2, 1)
        assert news.epoch() == 2


def test_by_hand_each_call_rotates(news, server):
    """Five callers at once by hand: five rotations."""
    together(UriFilter.open("news", redis=server.url).rotate for _ in range(5))
    assert news.epoch() == 5
    assert news.info().phase == "idle"


def test_expected_epoch_rotates_once(news, server):
    """Five callers at once that all mean epoch 0: one rotation; who comes after it is told."""
    outcomes = []

    def rotate() -> None:
        with UriFilter.open("news", redis=server.url) as opened:
            try:
                outcomes.append(opened.rotate(expected_epoch=0).epoch)
            except RotationConflict as conflict:
                outcomes.append(conflict)

    together(rotate for _ in range(5))
    assert news.epoch() == 1
    assert 1 in outcomes
    for wrong in (0, 2, 7):
        with pytest.raises(RotationConflict, match=f"in epoch 1 and not in {wrong}"):
            news.rotate(expected_epoch=wrong)


def opened_and_rotated(session, expected=None):
    yield from lifecycle.open_(session)
    return (yield from rotation.rotate(session, expected))


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True], ids=["level", "one behind"])
def test_expected_epoch_in_any_order(any_server, behind):
    """Whatever the order in which several processes go on: no shard turns twice in one rotation."""
    random_ = random.Random(7)
    for number in range(25):
        name = f"news{number}"
        with UriFilter.create(name, redis=any_server.url, **(ROLLING | {"shards": 3})) as made:
            before = [0, 0, 0]
            if behind:  # a rotator died after two shards, and another rotation came
                dying = Actor(any_server, opened_and_rotated, name=name)
                while epochs(any_server, name) != [0, 1, 1]:
                    dying.step()
                dying.die()
                made.rotate()
                before = epochs(any_server, name)
            begin = functools.partial(opened_and_rotated, expected=max(before))
            actors = [Actor(any_server, begin, name=name) for _ in range(4)]
            while alive := [actor for actor in actors if not actor.ended]:
                random_.choice(alive).run(random_.randint(1, 12))
            assert epochs(any_server, name) == [each + 1 for each in before]
            assert made.info().phase == "idle"


KILLED = {
    "rolling": ROLLING,
    "rolling, built in several pipelines": {**ROLLING, "capacity": 500_000},
    "ring": {**ROLLING, "retention": "ring", "slices": 2},
}


@pytest.mark.sampled
@pytest.mark.parametrize("settings", KILLED.values(), ids=KILLED)
def test_killed_at_every_step(settings, any_server, sample):
    """SIGKILL before and after each step of a rotation: another process brings it to its end, nothing is lost."""
    what = "rotate", any_server.url, ""
    items = {}
    with (
        UriFilter.create("news", redis=any_server.url, **settings) as news,
        any_server.client() as admin,
        Killer() as killer,
    ):

        def insert(epoch) -> None:
            items[epoch] = [f"{epoch}-{i}" for i in range(40)]
            assert news.insert_ages(items[epoch]) == [0] * 40

        for epoch in range(3):  # so that the following ones take as many steps as each other
            insert(epoch)
            steps = len(killer.steps(*what))
        for number, when in sample(itertools.product(range(1, steps + 1), ("before", "after")), 7, most=60):
            epoch = news.epoch()
            insert(epoch)
            assert killer.kill(number, when, *what)
            check(news, items)
            if news.info().phase != "idle" or news.epoch() == epoch:
                with UriFilter.open("news", redis=any_server.url) as other:
                    assert other.rotate(expected_epoch=epoch).problems == ()
            assert (news.epoch(), news.info().phase) == (epoch + 1, "idle")
            check(news, items)
            assert {key.decode().rsplit("}:", 1)[1] for key in admin.scan_iter("urifilter:{*")} == keys_of(news)
    assert steps > 4


def check(news, items) -> None:
    """What was inserted in the window is seen; what is older than the window and a rotation is new."""
    window, epoch = news.config.slices, news.epoch()
    for inserted, some in items.items():
        if inserted > epoch - window:
            assert 0 not in news.ages(some), (inserted, epoch)
        elif inserted < epoch - window - 1:
            assert set(news.ages(some)) == {0}, (inserted, epoch)


def keys_of(news) -> set[str]:
    """Return what an idle filter has."""
    epoch, window = news.epoch(), news.config.slices
    keys = {"meta", "replies", "today"}
    if news.config.retention == "rolling":
        return keys | {"history"} | {f"slice:{e}" for e in range(max(0, epoch - window + 1), epoch)}
    return keys | {f"history_{n}" for n in range(1, min(epoch, window - 1) + 1)}


BAD_MANIFESTS = [b'{"format": 1}', b"[" * 100_000, b'{"format": 9}', b"null", b"\xff", b'{"format": "1"}']


@pytest.mark.parametrize("bad", [*BAD_MANIFESTS, 5, None, [1, 2], [{"length": 1, "packed": 2}]], ids=repr)
def test_bad_manifests_do_not_stop_rotations(any_server, bad):
    """Whatever stands in the place of a manifest, or of its pieces: the slice is lost, and the rotation ends."""
    with UriFilter.create("news", redis=any_server.url, **ROLLING) as news:
        news.rotate()
        news.insert("a")
        news.rotate()
        key = "urifilter:{news:0}:slice:1"
        if not isinstance(bad, bytes):  # with the right SHA-256
            values = json.loads(any_server.ask("hget", key, "manifest"))["document"]
            values["content"]["pieces"] = bad
            bad = json.dumps({"sha256": documents._sha256(values), "document": values}).encode()
        any_server.ask("hset", key, "manifest", bad)
        assert news.rotate().problems
        assert "a" in news
        assert news.info().phase == "idle"


@pytest.mark.parametrize("harm", ["missing", "corrupt piece", "corrupt manifest", "another filter's"])
def test_archive_that_lost_a_slice(server, harm):
    """A closed slice is missing or corrupt: the old history stays in, loudly; it expires late, and never early."""
    with UriFilter.create("news", redis=server.url, **ROLLING) as news, server.client() as admin:
        for epoch in range(2):
            news.insert_many([f"{epoch}-{i}" for i in range(50)])
            assert news.rotate().problems == ()
        key = "urifilter:{news:0}:slice:0"
        if harm == "missing":
            admin.delete(key)
        elif harm == "corrupt piece":
            piece = admin.hget(key, "0")
            admin.hset(key, "0", piece[:-1] + bytes([piece[-1] ^ 1]))
        elif harm == "corrupt manifest":
            admin.hset(key, "manifest", admin.hget(key, "manifest")[:-3])
        else:
            admin.hset(key, "manifest", admin.hget(key, "manifest").replace(news.config.uid.encode(), b"f" * 16))
        news.insert_many([f"2-{i}" for i in range(50)])
        # in epoch 3 slices 1 and 2 are in the window; slice 0, which was harmed, takes the place of slice 1
        admin.delete("urifilter:{news:0}:slice:1")
        if harm != "missing":
            admin.rename(key, "urifilter:{news:0}:slice:1")
            manifest_ = admin.hget("urifilter:{news:0}:slice:1", "manifest").replace(b'"epoch": 0', b'"epoch": 1')
            admin.hset("urifilter:{news:0}:slice:1", "manifest", manifest_)
        (problem,) = news.rotate().problems
        assert "slice 1" in problem or "piece" in problem
        for epoch in range(3):  # slice 0 should have expired: it is late
            assert 0 not in news.ages([f"{epoch}-{i}" for i in range(50)])
        assert news.rotate().problems == ()
        assert set(news.ages([f"0-{i}" for i in range(50)] + [f"1-{i}" for i in range(50)])) == {0}
        assert 0 not in news.ages([f"2-{i}" for i in range(50)])


def test_who_finishes_a_late_history_says_so(any_server):
    """The rotator that found a slice missing died before it could say so: whoever finishes says it."""
    with UriFilter.create("news", redis=any_server.url, **ROLLING) as news:
        news.rotate()
        news.rotate()
        any_server.ask("delete", "urifilter:{news:0}:slice:1")
        for _ in pipelines_of(news):
            (state,) = news._run(read_states(news._session))
            if state.late and left_of(state) is Left.FINISH:
                break
        (problem,) = news.rotate(expected_epoch=2).problems
        assert "slices were missing while its history was built" in problem


@pytest.mark.parametrize("kind", ["redis70", "redis62", "valkey"])
def test_out_of_memory(make_server, kind):
    """A server without memory for the next bitmap: refused before anything has turned, and done once there is some."""
    server = make_server(kind)
    settings = {"capacity": 4_000_000, "retention": "ring", "slices": 3, "period": "1d", "error_rate": 1e-3}
    with UriFilter.create("news", redis=server.url, **settings) as news, server.client() as admin:
        news.insert("a")
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 500_000)
        with pytest.raises(ServerUnavailable, match="OOM"):
            news.rotate()
        assert (news.epoch(), news.info().phase) == (0, "idle")
        assert admin.exists("urifilter:{news:0}:today_next") == 0
        admin.config_set("maxmemory", 0)
        assert news.rotate().epoch == 1
        assert news.ages(["a"]) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_an_archive_that_cannot_be_written(any_server, tmp_path, shards):
    """The error says that a shard has turned and what is left; the next rotate goes on there, and turns none twice."""
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", "size=1m") as disk:
        where = {"redis": any_server.url, "archive": disk.as_uri()}
        with UriFilter.create("news", **where, **ROLLING, shards=shards) as news:
            news.insert_many(range(300))
            filling = disk / "filling"
            with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 12)):
                    pass
            for _ in range(2):
                with pytest.raises(
                    ArchiveError, match="has turned to epoch 1, and its closed slice waits for the archive"
                ):
                    news.rotate()
            assert news.epoch() == news.rotate(dry_run=True).epoch == 1
            filling.unlink()
            assert news.rotate() == Rotation(1, shards)
            assert {(state.epoch, state.phase) for state in news._run(read_states(news._session))} == {(1, "idle")}
            assert set(news.ages(range(300))) == {2}
            assert news.rotate() == Rotation(2, shards)


def test_no_memory_for_a_closed_slice(any_server):
    """The same where Redis is the archive; who goes on may name no epoch, or the one that the rotation began from."""
    with UriFilter.create("news", redis=any_server.url, **ROLLING) as news, any_server.client() as admin:
        for epoch, expected in enumerate((None, 1), 1):
            running = pipelines_of(news)
            while news.info().phase == "idle":
                next(running)
            admin.config_set("maxmemory", 1)
            with pytest.raises(ServerUnavailable, match=f"has turned to epoch {epoch}, and its closed slice waits"):
                list(running)
            admin.config_set("maxmemory", 0)
            assert news.rotate(expected).epoch == epoch
            assert news.info().phase == "idle"


def test_late_history_keeps_what_was_forgotten(any_server):
    """What was forgotten stays forgotten as long as the old history stays in."""
    with UriFilter.create("news", redis=any_server.url, **ROLLING) as news:
        news.insert("a")
        assert news.forget(["a"]) == [True]
        news.rotate()
        news.rotate()
        any_server.ask("delete", "urifilter:{news:0}:slice:1")
        assert news.rotate().problems
        assert news.contains("a") is False
        assert news.info().forgotten == 1
        assert news.rotate().problems == ()
        assert news.contains("a") is False
        assert news.info().forgotten == 0


def test_a_shard_that_cannot_turn(any_server):
    """In a phase of which this version knows nothing: an error, not an endless loop."""
    with UriFilter.create("news", redis=any_server.url, retention="ring", slices=3, **PRECISE) as news:
        any_server.ask("hset", "urifilter:{news:0}:meta", "phase", "sleeping")
        with pytest.raises(RotationConflict, match="shard 0 cannot turn from epoch 0 in phase sleeping"):
            news.rotate()


def test_lost_slices_stop_a_rotation(news, server):
    """A live bitmap that is gone: SliceLost, and nothing has turned."""
    news.insert_many(range(10))
    with server.client() as admin:
        admin.delete("urifilter:{news:0}:today")
        with pytest.raises(SliceLost, match="today"):
            news.rotate()
        assert admin.hget("urifilter:{news:0}:meta", "epoch") == b"0"


def test_max_age(server):
    """Ring: what was seen only longer ago counts as new, and is then written anew."""
    for write in ("newest", "all"):
        settings = PRECISE | {"retention": "ring", "slices": 4, "write": write}
        with UriFilter.create(write, redis=server.url, **settings) as news:
            news.insert("a")
            news.rotate()
            news.rotate()
            assert news.ages(["a"], max_age=2) == [0]
            assert news.contains("a", max_age=3) is True
            assert "a" in news
            assert news.insert("a", max_age=3) is False
            assert news.unique(["a", "a"], max_age=2) == ["a"]
            assert news(["a", "b"], max_age=1) == ["b"]
            assert news.ages(["a"]) == [1]
            assert list(news.iter_unique(["a", "c"], max_age=4)) == ["c"]
            for wrong in (0, 5, -1, True, 1.0, "2"):
                with pytest.raises(ValueError, match="max_age is 1 to 4"):
                    news.contains("a", max_age=wrong)
    with (
        UriFilter.create("f", redis=server.url, capacity=10) as news,
        pytest.raises(ValueError, match="max_age is for retention ring"),
    ):
        news.insert("a", max_age=1)


@pytest.mark.sampled
def test_drop_while_rotating(variant, server):
    """Dropped in the middle of a rotation: no key is left, and the rotator is told."""
    for count in range(3, 30, 3):
        with UriFilter.create("news", redis=server.url, shards=2, **variant, **PRECISE) as news:
            news.insert_many(range(100))
            news.rotate()
            rotating = pipelines_of(news)
            ended = len(list(itertools.islice(rotating, count))) < count
            UriFilter.open("news", redis=server.url).drop()
            with server.client() as admin:
                assert admin.keys() == []
                if not ended:
                    with pytest.raises(UriFilterError):
                        list(rotating)
                assert admin.keys() == []


def test_settings_of_time(any_server):
    """What a retention needs, and what it does not take."""
    ring = {"retention": "ring", "capacity": 1000}
    for wrong, message in [
        (ring, "retention ring needs slices"),
        *((ring | {"slices": 3, "period": each}, "a period is") for each in ("soon", "-1d", "1d1h", 1.5, "9999999w")),
        ({"capacity": 10, "period": "1d"}, "period is not for retention forever"),
        ({"capacity": 10, "retention": "growing", "expire_after": "last-seen"}, "not for retention growing"),
        (ring | {"slices": 3, "period": "1d", "write": "all", "period_capacity": 5}, "period_capacity is for"),
    ]:
        with pytest.raises(ValueError, match=message):
            UriFilter.create("news", redis=any_server.url, **wrong)
    with UriFilter.create("news", redis=any_server.url, slices=7, period=" 24h ", **ring) as news:
        assert (news.config.period, news.config.write, news.config.expire_after) == ("1d", "newest", "first-seen")
        UriFilter.create("news", redis=any_server.url, slices=7, period=86_400, write="newest", **ring).close()


def test_pieces_are_as_the_design_says():
    """256 KiB: BITOP of as many takes a server 1.2 ms."""
    assert documents.PIECE == 256 * 1024


def test_asyncio(any_server):
    """The same, awaited: rotation by hand and due, and progress."""

    async def work():
        told = []
        async with await AsyncUriFilter.create("news", redis=any_server.url, shards=2, **ROLLING) as news:
            news.on_progress = lambda done, total: told.append((done, total))
            await news.insert_many(range(100))
            assert await news.rotate() == Rotation(1, 2)
            assert told == [(1, 2), (2, 2)]
            assert await news.ages(range(100)) == [2] * 100
            assert (await news.epoch(), await news.due(), await news.rotate_due()) == (1, None, None)
            assert await news.next_rotation() == (await news.info()).next_rotation

    asyncio.run(work())
