"""Layout redisbloom: nothing of the module is taken on trust, and its failures leave nothing half done."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError
from support.shard import KEYS, Shard, geometry, md5
from support.states import dumped

from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.engine.batch import UNANSWERED
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.claims import Holding, new_holder

ROOM = 200
TODAY = KEYS.slice("today")
HOLDING = Holding(new_holder(), 60_000)
RING = {"retention": "ring", "slices": 3, "period": "1d", "write": "newest", "expire_after": "first-seen"}


def some(count: int, first: int = 0) -> list[bytes]:
    return [md5(b"%d" % number) for number in range(first, first + count)]


@pytest.fixture
def client(bloom):
    with bloom.client() as client:
        yield client
        client.config_set("maxmemory", 0)
        client.execute_command("ACL", "DELUSER", "limited")


@pytest.fixture(params=["forever", "ring, with claims"])
def shard(request, client):
    """A shard that has seen ten items, and perhaps has one in flight."""
    shard = Shard(client, geometry(REDISBLOOM, 14, ROOM, **(RING if "ring" in request.param else {})))
    shard.ask("insert", some(10))
    if "claims" in request.param:
        shard.claim(HOLDING, some(1, first=9000))
    return shard


def each_call(shard: Shard, items: list[bytes]) -> dict[str, calls.Call]:
    """Return a call of each script about items."""
    made = {name: shard.made(name, items) for name in ("insert", "contains", "forget")}
    kept = [b""] * len(items)
    return made | {"commit": shard.made("commit", items), "claim": shard.made("claim", items, "-", HOLDING, kept=kept)}


def no_more_room(client, name: str = "today") -> None:
    """Put a filter in the place of a segment that takes no more than it was reserved for, and has room for five."""
    key = KEYS.slice(name)
    client.unlink(key)
    client.execute_command("BF.RESERVE", key, 1e-6, ROOM, "NONSCALING")
    client.execute_command("BF.MADD", key, *range(ROOM - 5))


@pytest.mark.parametrize(
    "instead",
    [(), ("SET", TODAY, "x"), ("BF.ADD", TODAY, "x"), ("BF.RESERVE", TODAY, 1e-4, ROOM + 1), ("HSET", TODAY, "a", "b")],
    ids=["nothing", "a string", "the module's default", "another capacity", "a hash"],
)
def test_slice_that_is_not_ours(client, shard, instead):
    """LOST, where the module would answer that nothing was seen, or make a filter; nothing changes."""
    client.unlink(TODAY)
    if instead:
        client.execute_command(*instead)
    before = dumped(client)
    for name, call in each_call(shard, some(3)).items():
        with pytest.raises(ResponseError, match="^LOST .*today is missing, or is no Bloom filter for 200 items"):
            shard.call(call)
        assert before == dumped(client), name


def test_turn_looks_at_the_slices(client, shard):
    """The next slice must have been reserved as asked, and a turn does not pass over a slice that is lost."""
    new = shard.view.slices[0]
    turn = {"rate": 1e-5, "names": ["history_1", "today"]}
    client.execute_command("BF.ADD", KEYS.slice("today_next"), "x")  # another program's
    with pytest.raises(ResponseError, match="^BADPHASE the next bitmap is not allocated"):
        shard.call(calls.turn("turn", KEYS, shard.state(), "00", new, **turn))
    assert shard.call(calls.turn("allocate", KEYS, shard.state(), "00", new, **turn)) == 1
    assert client.execute_command("BF.INFO", KEYS.slice("today_next"), "CAPACITY") == [ROOM]
    client.unlink(TODAY)
    with pytest.raises(ResponseError, match="^LOST "):
        shard.call(calls.turn("turn", KEYS, shard.state(), "00", new, **turn))


@pytest.mark.parametrize("command", ["insert", "commit"])
def test_failure_in_the_middle(client, shard, command):
    """What was written before it is answered, and in the record; the rest is not answered, and was not written."""
    no_more_room(client)
    items, call_id = some(8, first=100), shard.call_id()
    before = int(shard.meta()["inserted"])
    made = shard.made(command, [*items, items[0], items[7]], call_id)
    answers = [*[0] * 5, *[UNANSWERED] * 3, UNANSWERED if command == "commit" else 1, UNANSWERED]
    told = shard.call(made)
    assert told[:8] == answers[:8]
    assert told[8] in {1, UNANSWERED}  # seen by now, or not asked about any more
    assert told[9] == UNANSWERED
    assert shard.ask("contains", items) == [*[1] * 5, *[0] * 3]
    assert int(shard.meta()["inserted"]) == before + 5
    assert shard.call(made) == told  # the reply was lost
    assert int(shard.meta()["inserted"]) == before + 5


SEGMENTS = 3


@pytest.fixture(params=["forever", "ring, with claims"])
def row(request, client):
    """A shard with three segments a slice, of which one has room for five items; and items of all, in their order."""
    shard = Shard(
        client, geometry(REDISBLOOM, 14, ROOM, segments=SEGMENTS, **(RING if "ring" in request.param else {}))
    )
    if "claims" in request.param:
        shard.claim(HOLDING, some(1, first=9000))
    no_more_room(client, "today.1")
    of: dict[int, list[bytes]] = {number: [] for number in range(SEGMENTS)}
    for item in some(200, first=100):
        of[shards_of(item, SEGMENTS)[0]].append(item)
    return shard, of


@pytest.mark.parametrize("sorts", [False, True], ids=["in any order", "sorted"])
def test_failure_in_a_segment(client, row, sorts):
    """Items of earlier segments are answered, and some of its own; nothing else was written."""
    shard, of = row
    if sorts:  # as clients send them, and more than are all looked for first
        count, items = 12, [item for each in of.values() for item in each[:12]]
        again, of_again = items[-1:], [UNANSWERED]
    else:
        count, items = 8, [item for three in zip(*(each[:8] for each in of.values()), strict=True) for item in three]
        again, of_again = items[:3], [1, UNANSWERED, UNANSWERED]
    call_id = shard.call_id()
    told = shard.call(made := shard.made("insert", [*items, *again], call_id))
    expected = dict.fromkeys([*of[0][:count], *of[1][:5]], 0)
    assert told == [*(expected.get(item, UNANSWERED) for item in items), *of_again]
    assert shard.ask("contains", items) == [int(item in expected) for item in items]
    assert shard.meta()["inserted"] == str(count + 5)
    assert shard.call(made) == told  # the reply was lost
    client.unlink(KEYS.slice("today.1"))
    client.execute_command("BF.RESERVE", KEYS.slice("today.1"), 1e-6, ROOM)
    client.execute_command("BF.MADD", KEYS.slice("today.1"), *of[1][:5])
    left = [item for item in items if item not in expected]
    assert shard.ask("insert", left) == [0] * len(left)
    assert shard.meta()["inserted"] == str(3 * count)


def test_failure_in_a_segment_of_a_commit(client, row):
    """Items are written one by one: those before the first that finds no room are answered."""
    shard, of = row
    items = [item for three in zip(*(each[:8] for each in of.values()), strict=True) for item in three]
    first = items.index(of[1][5])
    told = shard.commit(HOLDING, items)
    assert told == [*[0] * first, *[UNANSWERED] * (len(items) - first)]
    assert shard.ask("contains", items) == [*[1] * first, *[0] * (len(items) - first)]


def test_failure_in_a_first_segment(client, row):
    """Nothing was written in any segment: MODULE."""
    shard, of = row
    assert shard.ask("insert", of[1][:5]) == [0] * 5
    before = shard.meta()
    made = shard.made("insert", [*of[2][:5], of[1][5], of[1][6]], shard.call_id(slot=1))
    with pytest.raises(ResponseError, match="^MODULE the Bloom filter of the server refuses: ERR non scaling filter"):
        shard.call(made)
    assert {**shard.meta(), "written": ""} == {**before, "written": ""}
    assert set(shard.ask("contains", of[2][:5])) == {0}


def test_failure_at_the_first_item_of_a_later_segment(row):
    """What earlier segments answered arrives all the same."""
    shard, of = row
    assert shard.ask("insert", of[1][:5]) == [0] * 5
    items = [*of[0][:5], *of[1][5:7], *of[2][:5]]
    assert shard.ask("insert", items) == [*[0] * 5, *[UNANSWERED] * 7]
    assert shard.ask("contains", items) == [*[1] * 5, *[0] * 7]


def test_segment_that_is_not_ours(client, row):
    """LOST names it, also where no item of the call belongs to it, if the call names all or the shard turns."""
    shard, of = row
    names = ["history_1", *(f"history_1.{number}" for number in (1, 2)), "today", "today.1", "today.2"]
    new = shard.view.slices[-1]
    for number in range(SEGMENTS):
        assert shard.call(calls.turn("allocate", KEYS, shard.state(), "00", new, rate=1e-5, number=number)) == 1
    client.unlink(KEYS.slice("today.2"))
    assert shard.ask("contains", [of[0][0], of[1][0]]) == [0, 0]
    for call in each_call(shard, [of[0][0], of[2][0]]).values():
        with pytest.raises(ResponseError, match=r"^LOST .*today\.2 is missing, or is no Bloom filter for 200 items"):
            shard.call(call)
    with pytest.raises(ResponseError, match=r"^LOST .*today\.2 is missing, or is no Bloom filter for 200 items"):
        shard.call(calls.turn("turn", KEYS, shard.state(), "00", new, rate=1e-5, names=names))


def test_segment_that_the_module_refuses_to_make(client):
    """Nothing is noted of it: another try makes it."""
    good = geometry(REDISBLOOM, 14, ROOM, segments=SEGMENTS)
    bad = geometry(REDISBLOOM, 14, ROOM, segments=SEGMENTS, error_rate=2.0)
    call = Shard(client, good).call
    client.flushall()
    call(calls.create("make", good, KEYS, good.to_meta(0, "creating")))
    for number in ("1", "2"):
        before = dumped(client)
        with pytest.raises(ResponseError, match="^MODULE the Bloom filter of the server refuses: ERR"):
            call(calls.create("allocate", bad, KEYS, [number]))
        assert dumped(client) == before
        call(calls.create("allocate", good, KEYS, [number]))
        call(calls.create("allocate", good, KEYS, [number]))  # the reply was lost
    assert not client.hexists(KEYS.meta, "made")


@pytest.mark.parametrize("command", ["insert", "commit"])
def test_failure_at_the_beginning(client, shard, command):
    """MODULE, and nothing changes: under the same id it can be done once there is room."""
    no_more_room(client)
    shard.ask("insert", some(5, first=100))
    items, call_id = some(3, first=200), shard.call_id(slot=1)
    made, before = shard.made(command, [some(1, first=100)[0], *items], call_id), shard.meta()
    with pytest.raises(ResponseError, match="^MODULE the Bloom filter of the server refuses: ERR non scaling filter"):
        shard.call(made)
    now = shard.meta()
    assert {**now, "written": ""} == {**before, "written": ""}
    assert not client.hexists(KEYS.replies, call_id.rsplit("/", 2)[0])
    assert set(shard.ask("contains", items)) == {0}


def test_forgotten_items_that_are_not_answered(client, shard):
    """They stay forgotten, and so does an item that comes twice."""
    shard.ask("insert", items := some(6, first=100))
    shard.ask("forget", items)
    no_more_room(client)
    told = shard.ask("insert", [*items, items[5], items[0]])
    assert told == [*[0] * 5, UNANSWERED, UNANSWERED, 1]
    assert client.zrange(KEYS.forgotten, 0, -1) == items[5:]
    client.unlink(TODAY)
    client.execute_command("BF.RESERVE", TODAY, 1e-6, ROOM)
    assert shard.ask("insert", [items[5]]) == [0]


def test_an_insert_deletes_dead_letters(client, shard):
    """Of what it answers new: it was rejected, and has expired since. What is not answered stays a dead letter."""
    shard.claim(HOLDING, items := some(8, first=100))
    shard.reject(HOLDING, items, b"404")
    assert shard.ask("insert", items) == [1] * 8
    no_more_room(client)
    assert shard.ask("insert", items) == [*[0] * 5, *[UNANSWERED] * 3]
    assert set(client.zrange(KEYS.of_dead_letters[1], 0, -1)) == set(items[5:])


@pytest.mark.parametrize("right", ["bf.madd", "bf.mexists", "bf.info"])
def test_missing_right(client, shard, right):
    """A user without it is refused before the first write."""
    shard.ask("forget", some(2))
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "+@all", f"-{right}")
    before = dumped(client)
    client.execute_command("AUTH", "limited", "any")
    try:
        refused = {}
        for name, call in each_call(shard, some(3) + some(3, first=50)).items():
            try:
                shard.call(call)
            except (ResponseError, NoPermissionError) as error:
                refused[name] = str(error).lower()
                assert dumped(client) == before
            else:
                assert right == "bf.madd", name
                assert name in {"contains", "forget", "claim"}
                before = dumped(client)
        assert refused.keys() >= {"insert", "commit"}
        assert all(right in text or "permission" in text or "can't run" in text for text in refused.values()), refused
    finally:
        client.execute_command("AUTH", "default", "")


def test_full_memory(client, shard):
    """The module does not look at maxmemory; the scripts do, before anything is written."""
    shard.ask("forget", some(2))
    before = dumped(client)
    client.config_set("maxmemory", 1)
    made = each_call(shard, some(3, first=50) + some(2))
    assert shard.call(made["contains"]) == [0] * 5
    for name in ("insert", "claim"):  # a commit is possible: it gives memory back
        with pytest.raises(OutOfMemoryError):
            shard.call(made[name])
        assert dumped(client) == before, name


def test_create_that_the_module_refuses(client):
    """Nothing is left of it."""
    shard = Shard(client, geometry(REDISBLOOM, 14, ROOM))
    client.flushall()
    impossible = geometry(REDISBLOOM, 14, ROOM, error_rate=2.0)
    with pytest.raises(ResponseError, match="^MODULE the Bloom filter of the server refuses: ERR"):
        shard.call(calls.create("make", impossible, KEYS, impossible.to_meta(0, "idle")))
    assert client.keys() == []
