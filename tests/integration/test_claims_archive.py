"""What is in flight is archived and comes back: a page may be fetched twice after a restore, and none is swallowed."""

from __future__ import annotations

import json

import pytest
from support import cli
from support.archives import sound
from support.in_flight import Holder, in_flight, let_lapse
from support.pipelines import pipelines
from support.servers import Saved

from urifilter_redis import ArchiveCorrupt, TooLarge, UriFilter
from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.flows.checkpoint import checkpoint
from urifilter_redis.flows.restore import ensure

SETTINGS = {"capacity": 2000, "error_rate": 1e-8, "shards": 3, "seed": 1}
RETENTIONS = {
    "forever": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing"},
    "ring": {"retention": "ring", "slices": 3, "period": "1d"},
    "ring all": {"retention": "ring", "slices": 3, "period": "1d", "write": "all"},
    "rolling": {"retention": "rolling", "slices": 3, "period": "1d"},
}

#: More than an entry holds: it stands in a field of its own.
LARGE = "x" * 3000


def names(items) -> set[str]:
    return {str(item) for item in items}


@pytest.mark.parametrize(
    ("archive", "name"), [*(("folder", each) for each in RETENTIONS), ("mongodb", "forever")], indirect=["archive"]
)
def test_into_an_empty_redis(any_server, archive, name):
    """All entries are in flight again, with their counts and texts; what was committed is seen, and the rest is new."""
    where = {"redis": any_server.url, "archive": archive}
    with UriFilter.create("news", **where, **SETTINGS | RETENTIONS[name]) as news, any_server.client() as admin:
        one, other = Holder(news), Holder(news, payload=LARGE)
        assert one.claim(range(100)) == [0] * 100
        assert other.claim(range(50, 200)) == [-1] * 50 + [0] * 100
        assert one.commit(range(40)) == [0] * 40
        assert one.release(range(40, 50), delay=600, failed=True) == [1] * 10
        news.checkpoint()
        before = in_flight(news, admin)
        assert set(before) == names(range(40, 200))
        assert all(before[str(item)][1:] == (1, 0) for item in range(40, 50))
        admin.flushall()
        with UriFilter.open("news", **where) as again:
            assert again.restored.shards == 3
            assert in_flight(again, admin) == before
            assert again.info().claims is not None
            assert again.insert_ages(range(40, 200)) == [-1] * 160
            assert again.contains_many(range(210)) == [True] * 200 + [False] * 10
            assert other.commit(range(100, 200)) == [0] * 100
            assert again.insert_ages(range(40)) == [1] * 40
    sound(archive)


def test_dead_letters_come_back(admin, archived_filter, folder):
    """Dead letters are back after a restore; a rejection is a change for the next checkpoint."""
    news = archived_filter(**SETTINGS)
    with news.claims() as mine:
        mine.claim_many(range(20), payload=lambda item: LARGE if item else "short")
        mine.reject(range(10), "404")
        news.checkpoint()
        mine.reject(range(10, 20), "500")
    before = {each.item: each for each in news.dead_letters()}
    assert news.checkpoint().shards > 0
    admin.flushall()
    again = archived_filter()
    assert {each.item: each for each in again.dead_letters()} == before
    assert len(before) == 20
    assert again.contains_many(range(20)) == [True] * 20
    assert sum(int(admin.hget(again._session.keys.shard(n).meta, "rejected") or 0) for n in range(3)) == 20
    assert again.retry_dead_letters() == 20
    with again.claims() as other:
        assert {each.item: each.payload for each in other.reclaim()} == dict(enumerate(["short"] + [LARGE] * 19))
    sound(folder)


def test_after_the_restore_everybody_has_a_lease(admin, archived_filter):
    """A holder that lives on beats; what a dead one had is reclaimed after the longest lease, with all of its text."""
    news = archived_filter(**SETTINGS)
    Holder(news, 5, LARGE).claim(range(20))
    Holder(news, 5).claim(range(20, 40))
    news.checkpoint()
    admin.flushall()
    again = archived_filter()
    now = int(admin.time()[0])
    for shard in range(3):
        till = dict(admin.zrange(again._session.keys.shard(shard).holders, 0, -1, withscores=True))
        assert [now < each / 1000 <= now + 6 for each in till.values()] == [True, True], (now, till)
    let_lapse(again, admin)
    found = Holder(again).reclaim()
    assert {entry.kept.decode() for entry in found} == {f"{item}|{LARGE if item < 20 else ''}" for item in range(40)}
    assert {entry.lapses for entry in found} == {1}


def test_nothing_changed_but_hands(admin, archived_filter):
    """A claim, a release and a reclaim are changes for the next checkpoint; a beat is none."""
    news = archived_filter(**SETTINGS | {"shards": 1})
    one = Holder(news)
    news.checkpoint()
    for change in (lambda: one.claim(range(5)), lambda: one.release([1]), lambda: Holder(news).reclaim(),
                   lambda: one.commit([2]), lambda: news.forget([3])):  # fmt: skip
        let_lapse(news, admin)
        assert change()
        assert news.checkpoint().shards == 1
        one.beat()
        assert news.checkpoint().shards == 0
        expected = in_flight(news, admin)
        admin.flushall()
        again = archived_filter()
        assert in_flight(again, admin) == expected
        again.checkpoint()


@pytest.mark.parametrize("lost", ["today", "leases", "in_flight", "holders", "leases in_flight holders"])
def test_a_part_is_lost(archived_filter, admin, lost):
    """Redis lost a slice, and perhaps keys of claims: nothing in flight is lost; what was committed since is seen."""
    news = archived_filter(**SETTINGS | RETENTIONS["ring"] | {"shards": 1})
    one = Holder(news)
    one.claim(range(100))
    one.commit(range(30))
    news.checkpoint()
    one.commit(range(30, 50))
    one.claim(range(100, 120))
    one.release([60], failed=True)
    news.rotate()
    keys = news._session.keys.shard(0)
    admin.delete(keys.slice("history_1"), *(keys.slice(each) for each in lost.split() if each != "today"))
    again = archived_filter()
    there = in_flight(again, admin)
    twice = {"leases", "leases in_flight holders"} & {lost}
    expected = range(30, 100) if twice else range(50, 120)
    assert set(there) == names(expected)
    if not twice:
        assert there["60"][1:] == (1, 0)
    assert again.contains_many(range(30)) == [True] * 30
    assert again.contains_many([500]) == [False]


def test_redis_comes_back_older(admin, archived_filter, any_server):
    """What is in flight in either is in flight; an item that was committed since may come twice."""
    news = archived_filter(**SETTINGS)
    one = Holder(news)
    one.claim(range(100))
    news.checkpoint()
    older = Saved(any_server)
    one.commit(range(40))
    one.claim(range(100, 150))
    one.release([50], failed=True)
    news.checkpoint()
    older.bring_back()
    with UriFilter.open("news", redis=any_server.url, archive="") as without:  # somebody works with the older state
        assert Holder(without).claim(range(200, 220)) == [0] * 20
        assert one.release([60], failed=True) == [1]
    again = archived_filter()
    there = in_flight(again, admin)
    assert set(there) == names([*range(150), *range(200, 220)])
    assert there["60"][1] == 1
    assert one.commit(range(40)) == [0] * 40
    assert again.insert_ages(range(40)) == [1] * 40


def test_taken_over_half_way(admin, archived_filter):
    """A restorer dies while it writes leases: the next one writes the rest."""
    news = archived_filter(**SETTINGS | {"shards": 1})
    Holder(news, payload=LARGE).claim(range(250))
    Holder(news).claim(range(250, 400))
    news.checkpoint()
    expected = in_flight(news, admin)
    keys = news._session.keys.shard(0)
    admin.flushall()
    for _ in pipelines(ensure(news._session), news._connector):
        if 0 < admin.zcard(keys.in_flight) < 400:
            break
    assert 0 < admin.zcard(keys.in_flight) < 400
    admin.hset(keys.meta, "restored", 0)
    again = archived_filter()
    assert in_flight(again, admin) == expected


def test_a_shard_without_claims(admin, archived_filter):
    """One shard has claims, the others have none, and each is so again."""
    news = archived_filter(**SETTINGS)
    assert Holder(news).claim([1]) == [0]
    news.insert_many(range(100, 200))
    news.checkpoint()

    def with_claims() -> list[bool]:
        return sorted(admin.hexists(news._session.keys.shard(n).meta, "claims") for n in range(3))

    assert with_claims() == [False, False, True]
    admin.flushall()
    again = archived_filter()
    assert with_claims() == [False, False, True]
    assert again.insert_ages([1, 2, 100]) == [-1, 0, 1]
    assert set(in_flight(again, admin)) == {"1"}


def test_damaged_leases(admin, archived_filter, folder, tmp_path):
    """Verify names them, and the checkpoint before is restored; if that is damaged too, Redis stays as it is."""
    news = archived_filter(**SETTINGS | {"shards": 1})
    Holder(news).claim(range(10))
    news.checkpoint()
    Holder(news).claim(range(10, 20))
    news.checkpoint()
    texts = {path: json.loads(path.read_bytes()) for path in tmp_path.rglob("checkpoint-*.json")}
    older, newer = sorted(texts, key=lambda path: texts[path]["document"]["number"])
    damage(tmp_path, texts[newer]["document"])
    out, _ = cli.run("archive", "verify", "--archive", folder, code=1)
    assert out.count(b"checkpoint of 'news', shard 0") == 1
    admin.flushall()
    again = archived_filter()
    assert len(again.restored.problems) == 1
    assert set(in_flight(again, admin)) == names(range(10))
    damage(tmp_path, texts[older]["document"])
    admin.flushall()
    with pytest.raises(ArchiveCorrupt, match="no checkpoint of 'news' is good"):
        archived_filter()
    assert admin.keys("*leases") == []


def damage(folder, document) -> None:
    """Change a byte of the leases that a checkpoint names."""
    (path,) = folder.rglob(document["records"]["leases"]["blob"] + "*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_an_export(any_server, admin, archived_filter, folder, tmp_path):
    """A file has what is in flight; imported and restored it is in flight elsewhere. The file has not seen it."""
    path = tmp_path / "news.uf"
    news = archived_filter(**SETTINGS)
    one = Holder(news, payload=LARGE)
    one.claim(range(100))
    one.commit(range(50))
    with news.claims() as mine:
        mine.claim_many(range(100, 110))
        mine.reject(range(100, 110), "404")
    news.checkpoint()
    expected, notes = in_flight(news, admin), news.dead_letters()
    cli.run("archive", "export", "news", str(path), "--archive", folder)
    with ExportedFilter(path) as exported:
        exported.verify()
        assert exported.ages(range(110)) == [1] * 50 + [0] * 50 + [1] * 10
    elsewhere = (tmp_path / "elsewhere").as_uri()
    cli.run("archive", "import", str(path), "--archive", elsewhere)
    sound(elsewhere)
    admin.flushall()
    with UriFilter.open("news", redis=any_server.url, archive=elsewhere) as again:
        assert in_flight(again, admin) == expected
        assert (again.dead_letters(), len(notes)) == (notes, 10)


def sizes_of_scans(news, flow) -> list[int]:
    """Run a flow; return the bytes of each reply of HSCAN."""
    sizes = []

    def perform(step, sender):
        outcome = driver.perform_step(step, sender)
        if isinstance(step, Send) and step.commands[0][0] == "HSCAN":
            sizes.extend(sum(map(len, reply[1])) for reply in outcome)
        return outcome

    driver.drive(flow, news._connector, perform=perform)
    return sizes


def test_many_and_large(admin, archived_filter):
    """However many and large the entries are, no reply is long, and a call has a part of them."""
    news = archived_filter(**SETTINGS | {"capacity": 20_000, "shards": 1})
    Holder(news).claim(range(5000))
    Holder(news, payload="y" * 60_000).claim(range(5000, 5030))
    sizes = sizes_of_scans(news, checkpoint(news._session))
    assert len(sizes) > 10
    assert max(sizes) < 3 << 20
    assert sum(sizes) > 30 * 60_000
    expected = in_flight(news, admin)
    assert len(expected) == 5030
    admin.flushall()
    assert in_flight(archived_filter(), admin) == expected


def test_no_room_for_the_leases(make_server, folder):
    """A restore whose leases do not fit into the server is refused before it writes anything."""
    server = make_server()
    where = {"redis": server.url, "archive": folder}
    with UriFilter.create("news", **where, **SETTINGS | {"shards": 1}) as news, server.client() as admin:
        Holder(news, payload="x" * 60_000).claim(range(100))
        news.checkpoint()
        admin.execute_command("FLUSHALL", "SYNC")  # else what it frees later counts as used
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 3_000_000)
        with pytest.raises(TooLarge, match="its restore takes"):
            UriFilter.open("news", **where)
        assert admin.keys() == []
        admin.config_set("maxmemory", 0)
        with UriFilter.open("news", **where) as again:
            assert len(in_flight(again, admin)) == 100
