"""What a hostile review found: processes that wake up late, servers that come back older, and who comes between."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as ConnectionBroken
from support.archives import files, leftovers, let_restorers_die, sound
from support.killer import name_of
from support.servers import Saved

from urifilter_redis import (
    ArchiveCorrupt,
    ArchiveError,
    ArchiveMissing,
    FilterNotFound,
    Restoring,
    ServerUnavailable,
    SliceLost,
    Timeouts,
    UriFilter,
    drop_filter,
)
from urifilter_redis.base_blocking import connect
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.encoding import encode_item
from urifilter_redis.engine.driver import drive, perform_step
from urifilter_redis.engine.steps import Send, Work
from urifilter_redis.flows.checkpoint import checkpoint
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.flows.rotation import rotate
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.outcomes import Unanswered

pytestmark = pytest.mark.slow

RING = {"capacity": 2000, "retention": "ring", "slices": 4, "period": "1d"}
ROLLING = {"capacity": 2000, "retention": "rolling", "slices": 4, "period": "1d"}
META = "urifilter:{news:0}:meta"


class Suspended:
    """A flow that is stopped before a step of some name, and goes on later."""

    def __init__(self, flow, connector, name) -> None:
        self.flow, self._connector, self.step = flow, connector, next(flow)
        while name_of(self.step) != name:
            self.step = flow.send(self.perform())

    def perform(self):
        if isinstance(self.step, Work):
            return self.step.do()
        return self._connector.send(self.step.commands) if isinstance(self.step, Send) else None

    def go_on(self, outcome=None):
        try:
            while True:
                self.step = self.flow.send(self.perform() if outcome is None else outcome)
                outcome = None
        except StopIteration as stop:
            return stop.value

    def fail(self, error):
        return self.flow.throw(error)


def restorer(server, folder):
    connector, session = connect(ClientOptions("news", folder, server.url))
    return open_(session), connector


def restored_by_a_late_one(server, folder, archived_filter, step="archive download", **settings):
    """Have a filter with 500 items lost, and a restorer that is stopped before a step; return that."""
    news = archived_filter(**{"capacity": 1000} | settings)
    news.insert_many(range(500))
    news.checkpoint()
    server.ask("flushall")
    return Suspended(*restorer(server, folder), step)


@pytest.mark.parametrize("fails", ["checkpoint finish", "archive delete"])
@pytest.mark.usefixtures("usual_timeouts")
def test_a_published_checkpoint_keeps_its_blobs(any_server, folder, archived_filter, fails):
    """Whatever fails after the document was replaced: nothing that it names is removed."""
    news = archived_filter(**RING)
    news.insert_many(range(300))
    news.checkpoint()
    news.rotate()
    news.insert_many(range(300, 350))
    news.checkpoint()
    news.insert_many(range(350, 400))
    running = Suspended(checkpoint(news._session), news._connector, fails)
    with pytest.raises((ServerUnavailable, ArchiveError)):
        running.fail(OSError("away")) if fails.startswith("archive") else give_up(running)
    sound(folder)
    news.checkpoint()
    any_server.ask("flushall")
    assert 0 not in archived_filter().ages(range(400))


def give_up(running) -> None:
    """Let the server be away until the flow has no more patience."""
    while True:
        sent = running.step.commands if isinstance(running.step, Send) else None
        running.step = running.flow.send(sent and [Unanswered(ConnectionBroken("away"))] * len(sent))


def test_damaged_closed_slice_is_written_anew(any_server, folder, archived_filter):
    """A slice that checkpoints take over from the one before is looked at each time."""
    news = archived_filter(**RING)
    news.insert_many(range(300))
    news.rotate()
    news.checkpoint()
    blobs = files(folder, "*.blob")
    news.insert("a")
    news.checkpoint()
    (kept,) = [path for path in files(folder, "*.blob") if path in blobs and path.stat().st_size > 300]
    kept.write_bytes(bytes(len(kept.read_bytes())))
    news.insert("b")
    news.checkpoint()
    any_server.ask("flushall")
    assert 0 not in archived_filter().ages([*range(300), "a", "b"])


def test_a_restorer_that_wakes_up(any_server, folder, archived_filter):
    """It finds that another has taken over, and changes nothing; what was inserted meanwhile stays."""
    late = restored_by_a_late_one(any_server, folder, archived_filter, retention="growing")
    let_restorers_die(any_server)
    other = archived_filter()
    assert other.restored.shards == 1
    assert other.insert_ages(range(1000, 7000)).count(0) > 5_900
    epoch = other.epoch()
    assert epoch == 2
    late.go_on()
    assert archived_filter().epoch() == epoch
    assert 0 not in archived_filter().ages([*range(500), *range(1000, 7000)])


@pytest.mark.quick
def test_a_late_opener_leaves_a_whole_filter_alone(any_server, folder, archived_filter):
    """Who saw an empty server, and comes when another has restored it, does not stop it once more."""
    late = restored_by_a_late_one(any_server, folder, archived_filter, "restore begin")
    other = archived_filter()
    assert other.insert("x")
    late.go_on()
    assert "x" in other


def test_the_server_dies_while_its_archive_is_looked_at(any_server, folder, archived_filter):
    """What was begun is gone with it; the next one does it."""
    late = restored_by_a_late_one(any_server, folder, archived_filter)
    any_server.ask("flushall")
    with pytest.raises(FilterNotFound):
        late.go_on()
    assert any_server.ask("exists", META) == 0
    assert 0 not in archived_filter().ages(range(500))


def test_a_checkpoint_of_a_server_that_came_back(any_server, folder, archived_filter):
    """Bits that were read before it died are not published without the replies that went with them."""
    news = archived_filter(capacity=5000)
    news.insert_many(range(100))
    news.checkpoint()
    news.insert_many(range(1000, 1500))
    late = Suspended(checkpoint(news._session), news._connector, "HSCAN replies")
    any_server.ask("flushall")
    other = archived_filter()
    assert other.restored.checkpoint == 1
    late.go_on()
    assert archived_filter().insert_ages(range(1000, 1500)).count(0) > 490


def let_come_back_older(server, news) -> None:
    """Let a server be what it was two rotations ago; the archive has these."""
    news.checkpoint()
    saved = Saved(server)
    news.rotate()
    news.rotate()
    news.checkpoint()
    saved.bring_back()


def test_what_an_older_rolling_server_was_told(any_server, folder, archived_filter):
    """It inserts and rotates, and is then brought to what its archive has: nothing that it knew is lost."""
    news = archived_filter(**ROLLING)
    news.insert_many(range(100))
    let_come_back_older(any_server, news)
    assert news.insert_ages(range(100, 200)).count(0) == 100
    news.rotate()  # this client has not seen that the archive is ahead
    again = archived_filter()
    assert again.epoch() == 2
    assert 0 not in again.ages(range(200))
    again.rotate()
    assert 0 not in again.ages(range(100, 200))


def test_a_slice_that_was_archived_by_another_line_of_time(any_server, folder, archived_filter):
    """Today at the checkpoint had more than the slice that was closed under its epoch: that is not lost."""
    news = archived_filter(**ROLLING)
    news.insert_many(range(100))
    news.checkpoint()
    saved = Saved(any_server)
    news.rotate()
    saved.bring_back()
    news.insert_many(range(100, 200))
    news.checkpoint()
    any_server.ask("flushall")
    again = archived_filter()
    assert 0 not in again.ages(range(200))
    again.rotate()
    assert 0 not in again.ages(range(200))


def test_write_all_after_an_older_server(any_server, folder, archived_filter):
    """What it was told is in every slice that will be looked at."""
    news = archived_filter(**(RING | {"write": "all"}))
    news.rotate()
    saved = Saved(any_server)
    news.rotate()
    news.rotate()
    news.insert("a")
    news.checkpoint()
    saved.bring_back()
    assert news.insert("x")
    again = archived_filter()
    for _ in range(3):
        assert {"x", "a"} == {uri for uri in ("x", "a") if uri in again}
        again.rotate()


def test_what_was_forgotten_on_both_sides(any_server, folder, archived_filter):
    """Told after the checkpoint is seen; forgotten after it stays new; the archive decides of what was before."""
    news = archived_filter(capacity=1000)
    news.insert_many(["told", "back", "kept", "gone"])
    news.forget(["told", "back"])
    news.checkpoint()
    saved = Saved(any_server)
    assert news.insert("back")
    news.checkpoint()
    saved.bring_back()
    assert news.insert("told")
    assert news.forget(["gone"]) == [True]
    again = archived_filter()
    assert again.restored is not None
    assert [uri for uri in ("told", "back", "kept", "gone") if uri in again] == ["told", "back", "kept"]


@pytest.mark.parametrize(("milliseconds", "seen"), [(-3, True), (0, True), (3, False)])
def test_forgotten_close_to_a_checkpoint(any_server, admin, folder, archived_filter, milliseconds, seen):
    """An older Redis has it as forgotten just before the checkpoint began, or as it did: the archive knows better."""
    news = archived_filter(capacity=1000)
    news.insert("back")
    news.forget(["back"])
    saved = Saved(any_server)
    assert news.insert("back")
    news.checkpoint()
    begun = int(admin.hget("urifilter:{news:0}:meta", "checkpointed"))  # ms, of this shard
    saved.bring_back()
    assert news.insert("later")
    ((digest, _),) = admin.zrange("urifilter:{news:0}:forgotten", 0, -1, withscores=True)
    admin.zadd("urifilter:{news:0}:forgotten", {digest: (begun + milliseconds) / 1000 / 2**33})
    again = archived_filter()
    assert again.restored is not None
    assert [uri in again for uri in ("back", "later")] == [seen, True]


@pytest.mark.parametrize("what", ["reinserted", "forgotten"])
def test_changed_between_what_is_read(any_server, archived_filter, what):
    """While a checkpoint reads the replies: an item that was forgotten is inserted anew, or one is forgotten.

    After a restore neither is seen, one without its reply; they are crawled again.
    """
    news = archived_filter(capacity=1000)
    news.insert("x")
    if what == "reinserted":
        news.forget(["x"])
    running = Suspended(checkpoint(news._session), news._connector, "HSCAN replies")
    with UriFilter.open("news", redis=any_server.url) as other:
        if what == "reinserted":
            running.step = running.flow.send(running.perform())
            assert other.insert("x")
        else:
            assert other.forget(["x"]) == [True]
    running.go_on()
    any_server.ask("flushall")
    assert "x" not in archived_filter()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", ["reject", "retry_dead_letters"])
def test_rejected_or_offered_once_more_between_what_is_read(any_server, folder, archived_filter, what, moment):
    """Such an item has a note, or is offered, after a restore: it is not seen without either."""
    news = archived_filter(capacity=1000, shards=1)
    mine = news.claims(beats=False)
    mine.claim_many(["x", "y"])
    if what == "retry_dead_letters":
        mine.reject(["x"])
    running = Suspended(checkpoint(news._session), news._connector, "HSCAN leases")
    if moment == "after":
        running.step = running.flow.send(running.perform())
    with UriFilter.open("news", redis=any_server.url) as other:
        mine.reject(["x"]) if what == "reject" else other.retry_dead_letters(["x"])
    running.go_on()
    any_server.ask("flushall")
    again = archived_filter()
    assert "x" in {each.item for each in [*again.dead_letters(), *again.in_flight()]} or again.release(["x"]) == [True]


def test_inserted_after_the_bitmaps_were_read(any_server, admin, archived_filter):
    """The record comes back without the item: the repeat has the same answer, and the item is seen from then on."""
    news = archived_filter(capacity=1000)
    session = news._session
    digest = hasher(session.config.hash, session.config.seed)([encode_item("x")])[0]
    running = Suspended(checkpoint(session), news._connector, "HSCAN replies")
    for after in ("the bitmaps", "a restore"):
        seconds, _ = admin.time()
        call_id = f"0123456789abcdef/0/1/{1000 * seconds + 60_000}"
        call = calls.items("insert", session.config, session.keys.shard(0), session.view(0), call_id, digest)
        admin.script_load(call.script.source)
        assert admin.execute_command(*call.command()) == [0], after
        if after == "the bitmaps":
            running.go_on()
            any_server.ask("flushall")
            again = archived_filter()
            assert "x" not in again
    assert "x" in again


def test_leftovers_of_another_filter(any_server, folder):
    """Slices without meta stop a new filter; of one that the archive knows they are replaced."""
    any_server.ask("set", "urifilter:{news:0}:today", b"\xff" * 3120)
    with pytest.raises(SliceLost, match="earlier filter"):
        UriFilter.create("news", redis=any_server.url, archive=folder, capacity=1000)
    any_server.ask("flushall")
    with UriFilter.create("news", redis=any_server.url, archive=folder, capacity=1000) as news:
        size = news.config.bytes
        news.checkpoint()
    any_server.ask("flushall")
    any_server.ask("set", "urifilter:{news:0}:today", b"\xff" * size)
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        assert news.insert_ages(range(100)) == [0] * 100


def test_an_archive_that_is_not_there(any_server, folder, tmp_path, archived_filter):
    """An empty folder in its place, and a registration that is gone, make no new filter."""
    archived_filter(capacity=1000).checkpoint()
    any_server.ask("flushall")
    with pytest.raises(ArchiveMissing, match="is that mounted"):
        UriFilter.create("news", redis=any_server.url, archive=(tmp_path / "other").as_uri(), capacity=1000)
    with pytest.raises(ArchiveMissing, match="had the archive"):
        UriFilter.create("news", redis=any_server.url.replace("127.0.0.1", "localhost"), capacity=1000)
    with pytest.raises(ArchiveMissing, match="had the archive"):
        UriFilter.open("news", redis=any_server.url)
    (registration,) = (tmp_path / "archive").glob("*/filter.json")
    registration.unlink()
    Path(os.environ["URIFILTER_DATA_DIR"], "archives").rename(tmp_path / "notes")
    with pytest.raises(ArchiveCorrupt, match="registration is missing"):
        UriFilter.create("news", redis=any_server.url, archive=folder, capacity=1000)
    assert drop_filter("news", redis=any_server.url, archive=folder)
    assert leftovers(folder) == 0


def test_drop_during_a_checkpoint(any_server, folder, archived_filter):
    """Nothing of the dropped filter is left."""
    news = archived_filter(capacity=1000)
    news.insert("a")
    running = Suspended(checkpoint(news._session), news._connector, "archive swap")
    drop_filter("news", redis=any_server.url, archive=folder)
    with pytest.raises(ArchiveMissing):
        running.go_on()
    assert drive(news._session.backend.keys()) == []
    assert leftovers(folder) == 0


def test_counting_is_not_merged(any_server, folder, archived_filter):
    """An older server that was not worked on gets what the archive has; one that was keeps its own, and says so."""
    news = archived_filter(capacity=1000, layout="counting")
    news.insert_many(range(100))
    saved = Saved(any_server)
    news.insert_many(range(100, 200))
    news.checkpoint()
    saved.bring_back()
    assert 0 not in archived_filter().ages(range(200))
    saved.bring_back()
    assert news.insert("new")
    again = archived_filter()
    assert "new" in again
    assert "counters cannot be merged" in again.restored.problems[0]


def test_counters_of_which_some_were_removed(any_server, folder, archived_filter):
    """An older server has counted more, and was not worked on: it gets what the archive has."""
    news = archived_filter(capacity=1000, layout="counting")
    news.insert_many(range(150))
    news.checkpoint()
    saved = Saved(any_server)
    news.remove(range(60))
    news.insert_many(range(1000, 1050))
    news.checkpoint()
    saved.bring_back()
    again = archived_filter()
    assert all(again.contains_many([*range(60, 150), *range(1000, 1050)]))
    assert not any(again.contains_many(range(60)))


def test_a_rotation_that_is_not_finished(any_server, folder, archived_filter):
    """Redis loses a bitmap, and the archive a slice that the history has: the history stays."""
    news = archived_filter(**ROLLING)
    news.checkpoint()
    for day in range(2):
        news.insert(day)
        news.rotate()
    news.insert(2)
    Suspended(rotate(news._session), news._connector, "build piece")
    (lost,) = files(folder, "slice-*-1.json")
    lost.unlink()
    any_server.ask("unlink", news._session.keys.shard(0).slice("today"))
    again = archived_filter()
    assert 0 not in again.ages(range(3))
    again.rotate()
    assert 0 not in again.ages(range(3))


def test_union_from_a_filter_that_is_being_restored(any_server, folder, archived_filter):
    """It is refused: half of it may be back."""
    restored_by_a_late_one(any_server, folder, archived_filter, seed=1)
    with UriFilter.create("all", redis=any_server.url, capacity=1000, seed=1) as other, pytest.raises(Restoring):
        other.union("news")


def test_waiting_for_a_restore(any_server, folder, archived_filter):
    """Callers get Restoring, or wait if they want to; opening and creating do, too."""
    late = restored_by_a_late_one(any_server, folder, archived_filter)
    for without in ("", folder):
        with pytest.raises(Restoring), UriFilter.open("news", redis=any_server.url, archive=without) as other:
            other.insert("a")
    with UriFilter.open("news", redis=any_server.url, timeouts=Timeouts(total=0.1, restoring=60)) as patient:
        timer = threading.Timer(1, late.go_on)
        timer.start()
        assert patient.insert_ages(range(501)) == [1] * 500 + [0]
        timer.join()


def test_inserted_while_all_slices_are_read(any_server, folder, archived_filter):
    """Of ring with write=all: what is new after a restore is not seen later, when the oldest slice is gone."""
    news = archived_filter(**(RING | {"write": "all", "slices": 3}))
    for _ in range(2):
        news.rotate()
    running = Suspended(checkpoint(news._session), news._connector, "GETRANGE history_1")
    assert news.insert("x")
    running.go_on()
    any_server.ask("flushall")
    again = archived_filter()
    before = "x" in again
    again.rotate()
    assert before or "x" not in again


def test_a_restorer_that_died_while_it_filled(any_server, folder, archived_filter):
    """Who takes over trusts no slice that may be half full, also what only closed slices of the archive have."""
    news = archived_filter(**ROLLING)
    news.checkpoint()
    news.insert_many(range(100))
    news.rotate()
    any_server.ask("flushall")
    Suspended(*restorer(any_server, folder), "restore finish")
    size = any_server.ask("strlen", "urifilter:{news:0}:history")
    any_server.ask("set", "urifilter:{news:0}:history", bytes(size))
    let_restorers_die(any_server)
    assert 0 not in archived_filter().ages(range(100))


def test_the_oldest_slice_of_write_all_is_lost(any_server, folder, archived_filter):
    """It gets what newer slices have: an item is not new now and seen later, when it is the oldest one's turn."""
    news = archived_filter(**(RING | {"write": "all", "slices": 3}))
    news.rotate()
    news.checkpoint()
    assert news.insert("x")
    any_server.ask("delete", "urifilter:{news:0}:history_1")
    again = archived_filter()
    assert "x" in again
    again.rotate()
    assert "x" in again


@pytest.mark.parametrize("retention", ["ring", "rolling"])
@pytest.mark.parametrize(
    ("theirs", "ours"), [((1, 1), (4,)), ((1, 1), (1, 1, 1, 1)), ((4,), (1, 1)), ((4,), (1, 1, 1)), ((3, 1), (1, 2, 2))]
)
def test_an_older_server_that_turned_at_other_times(any_server, archived_filter, retention, theirs, ours):
    """No slice of the window is lost, whether Redis or the archive has passed over its epoch."""
    news = archived_filter(**RING | {"retention": retention, "slices": 8})
    items = []

    def turn_each(periods, whose) -> None:
        for count in periods:
            items.append(f"{whose} {len(items)}")
            news.insert(items[-1])
            if count == 1:
                news.rotate()
            else:
                begun = int(1000 * (time.time() - (count + 0.5) * 86_400))
                any_server.ask("hset", META, mapping={"opened": begun, "written": begun})
                assert news.rotate_due() is not None

    turn_each((1, 1, 1, 1), "both")
    news.checkpoint()
    saved = Saved(any_server)
    turn_each(theirs, "archive")
    items.append("archive")
    news.insert("archive")
    news.checkpoint()
    saved.bring_back()
    turn_each(ours, "Redis")
    news = archived_filter()
    assert news.contains_many(items[4:]) == [True] * len(items[4:])
    news.rotate()
    assert news.contains_many(items[4:]) == [True] * len(items[4:])


def test_a_checkpoint_of_an_older_server_finishes_a_turn_first(any_server, archived_filter):
    """Only Redis has the slice that the turn has closed."""
    news = archived_filter(**ROLLING | {"slices": 8})
    for number in range(4):
        news.insert(number)
        news.rotate()
    let_come_back_older(any_server, news)
    assert news.insert("a") is True
    turning = rotate(news._session)
    step = next(turning)
    while any_server.ask("hget", META, "phase") != b"rotating":
        step = turning.send(perform_step(step, news._connector))
    turning.close()
    news.checkpoint()
    assert news.contains("a") is True
