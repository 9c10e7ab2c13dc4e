"""What a shard is to be when it is brought back, of what Redis and the archive have of it.

Bits are stood for by names: ``"4r"`` was inserted in epoch 4 and is in Redis, ``"4a"`` is in the archive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import NOW, config_of, meta_of

from urifilter_redis.bloom.retention import slices_at
from urifilter_redis.flows.restore_plan import Archived, Plan, plan
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage.documents import Checkpoint, Content, Manifest
from urifilter_redis.storage.records import KINDS

TIMED = {"slices": 4, "period": "1d"}
CONFIGS = {
    "forever": config_of(),
    "growing": config_of(retention="growing"),
    "ring": config_of(retention="ring", **TIMED),
    "all": config_of(retention="ring", write="all", **TIMED),
    "rolling": config_of(retention="rolling", **TIMED),
}
NOTHING = Content("", [])


def oldest_of(config, epoch, *, rotating=False) -> int:
    """The lowest epoch whose items are live; of rolling the window until the rotation is finished."""
    window = {"ring": 4, "rolling": 4}.get(config.retention, 1000)
    return max(0, epoch - rotating - window + 1)


def meta_at(config, epoch, *, rotating=False, pieces=None, **more) -> dict[str, str]:
    """Meta of a shard that has turned so often, a minute each."""
    oldest = oldest_of(config, epoch, rotating=rotating)
    closed = (f"{each}:{NOW + each * 60}:{NOW + each * 60 + 60}:{each + 1}" for each in range(oldest, epoch))
    live = slices_at(config, config.today, epoch, rotating=rotating)
    known = {"epoch": epoch, "opened": NOW + epoch * 60, "inserted": 5, "closed": " ".join(closed), "oldest": oldest}
    known |= {"slices": " ".join(map(str, live)), "phase": "rotating" if rotating else "idle"}
    return meta_of(config, **known | ({} if pieces is None else {"pieces": pieces}) | more)


def state_at(config, epoch, **more) -> ShardState:
    return ShardState.from_meta(meta_at(config, epoch, **more), "news")


def manifest_of(config, state, slice_, kind, number=0) -> Manifest:
    return Manifest.of(config, "news", 0, state, slice_, kind=kind, number=number, content=NOTHING)


def checkpoint_at(config, epoch, number=1, **more) -> Checkpoint:
    meta = meta_at(config, epoch, checkpoint=number - 1, **more)
    state = ShardState.from_meta(meta, "news")
    bitmaps = [manifest_of(config, state, each, "checkpoint", number) for each in state.view.slices]
    del meta["uid"]
    return Checkpoint(
        format=1, filter="news", uid=config.uid, shard=0, shards=1, number=number, begun=NOW + epoch * 60 + 30,
        state=meta, bitmaps=bitmaps, records=dict.fromkeys(KINDS, NOTHING),
    )  # fmt: skip


def closed_at(config, epoch) -> Manifest:
    """The slice that was closed when the shard left an epoch."""
    state = state_at(config, epoch + 1, rotating=True)
    return manifest_of(config, state, replace(state.view.slices[-1], name="history_1"), "slice")


def archived_at(config, epoch=None, number=1, slices=(), **more) -> Archived:
    checkpoint = None if epoch is None else checkpoint_at(config, epoch, number, **more)
    return Archived(checkpoint, number if checkpoint else 0, {each: closed_at(config, each) for each in slices})


def names(state) -> list[str]:
    return [each.name for each in state.view.slices]


def planned(config, ours, archived, present=None, *, arranged=False) -> Plan:
    present = (set(names(ours)) if ours else set()) if present is None else present
    return plan(config, ours, present, archived, now=NOW, arranged=arranged)


@pytest.mark.parametrize("kind", CONFIGS)
def test_empty_redis_and_empty_archive(kind):
    """A shard as it was made, opened now."""
    config = CONFIGS[kind]
    made = planned(config, None, Archived())
    assert (made.state.epoch, made.state.opened, made.state.inserted) == (0, NOW, 0)
    assert (names(made.state), made.moves, made.doomed, made.forgotten) == (["today"], [], [], "theirs")
    assert made.sources == {"today": []}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_empty_redis(kind, epoch):
    """All that the newest checkpoint has, under its own names and numbers."""
    config, epoch = CONFIGS[kind], 0 if kind == "forever" else epoch
    archived = archived_at(config, epoch, number=7)
    made, then = planned(config, None, archived), archived.checkpoint.shard_state()
    assert (made.state.epoch, made.state.view, made.state.closed) == (epoch, then.view, then.closed)
    assert (made.state.checkpoint, made.state.inserted, made.state.opened) == (7, then.inserted, then.opened)
    assert made.state.checkpointed == archived.checkpoint.begun
    assert made.state.changed > then.changed
    assert {name: [each.name for each in some] for name, some in made.sources.items()} == {
        name: [name] for name in names(then)
    }
    assert (made.moves, made.doomed, made.forgotten) == ([], [], "theirs")


@pytest.mark.parametrize("kind", ["growing", "ring", "rolling"])
def test_redis_is_as_old(kind):
    """Redis keeps what it has; what was archived of the same slices is merged where there may be less."""
    config = CONFIGS[kind]
    ours, archived = state_at(config, 3, checkpoint=1), archived_at(config, 3, number=1)
    made = planned(config, ours, archived)
    assert made.moves == [(name, name) for name in names(ours)]
    assert (made.doomed, made.forgotten, made.state.epoch) == ([], "ours", 3)
    assert planned(config, replace(ours, checkpoint=0), archived).forgotten == "both"


def test_an_older_ring():
    """Its slices get the names of their epochs; what has left the window goes; today stays today, too."""
    config = CONFIGS["ring"]
    made = planned(config, state_at(config, 3), archived_at(config, 5))
    assert names(made.state) == ["history_3", "history_2", "history_1", "today"]
    # epochs 0 to 3 were there, 2 to 5 are now
    assert made.moves == [("history_1", "history_3"), ("today", "today")]
    assert made.doomed == ["history_3", "history_2"]
    assert {name: [each.epoch for each in some] for name, some in made.sources.items()} == {
        "history_3": [2],
        "history_2": [3],
        "history_1": [4],
        "today": [5],
    }


def test_an_older_growing_filter():
    """Nothing expires: every slice has its place, under an older name."""
    config = CONFIGS["growing"]
    made = planned(config, state_at(config, 1), archived_at(config, 3))
    assert made.moves == [("history_1", "history_3"), ("today", "history_2")]
    assert made.doomed == []
    assert made.state.limit == state_at(config, 3).limit


def test_an_older_rolling_filter():
    """Its history is made anew of the closed slices; today stays."""
    config = CONFIGS["rolling"]
    made = planned(config, state_at(config, 3), archived_at(config, 5, slices=range(5)))
    assert (names(made.state), made.moves, made.doomed) == (["history", "today"], [("today", "today")], ["history"])
    assert (made.sources["history"][0].kind, made.sources["history"][0].epoch) == ("checkpoint", 5)
    assert {each.epoch for each in made.sources["history"] if each.kind == "slice"} == {2, 3, 4}


@pytest.mark.parametrize("kind", ["growing", "ring", "rolling"])
def test_a_newer_redis(kind):
    """Redis has turned since: its state stays, and its slices; the archive's are merged by their epochs."""
    config = CONFIGS[kind]
    ours = state_at(config, 4)
    made = planned(config, ours, archived_at(config, 3))
    assert (made.state.epoch, made.state.view) == (4, ours.view)
    assert made.moves == [(name, name) for name in names(ours)]
    assert made.doomed == []
    if kind != "rolling":
        assert [each.epoch for each in made.sources["history_1"]] == [3]
        assert made.sources["today"] == []


def test_a_slice_is_missing():
    """It is made of the archive alone, the others stay; of rolling of all closed slices that there are."""
    config = CONFIGS["ring"]
    made = planned(config, state_at(config, 5), archived_at(config, 5), {"history_3", "history_1", "today"})
    assert made.moves == [(name, name) for name in ("history_3", "history_1", "today")]
    assert [each.epoch for each in made.sources["history_2"]] == [3]
    config = CONFIGS["rolling"]
    made = planned(config, state_at(config, 5), archived_at(config, 4, slices=range(5)), {"today"})
    assert {each.epoch for each in made.sources["history"] if each.kind == "slice"} == {2, 3, 4}


def test_rolling_slices_that_are_damaged():
    """All that the checkpoint has of older epochs stands for them: late, never early."""
    config = CONFIGS["rolling"]
    made = planned(config, None, archived_at(config, 4, slices=(2, 4)))
    assert made.state.epoch == 5
    assert [(each.kind, each.epoch) for each in made.sources["history"]] == [
        ("slice", 2),
        ("slice", 4),
        ("checkpoint", 4),
    ]


def test_rolling_that_turned_after_the_checkpoint():
    """The state is that after the last turn; what was in today then is in the slice that was closed, or stays."""
    config = CONFIGS["rolling"]
    archived = archived_at(config, 3, slices=range(6))
    made = planned(config, None, archived)
    assert (made.state.epoch, made.state.phase, made.state.oldest, made.state.inserted) == (6, "idle", 3, 0)
    assert [each.epoch for each in made.state.closed] == [3, 4, 5]
    assert made.state.opened == archived.slices[5].closed
    assert [each.name for each in made.sources["today"]] == ["today"]
    assert planned(config, None, replace(archived, contained=True)).sources["today"] == []


def test_slices_without_any_checkpoint():
    """The epoch follows from the last of them; what is not known has no items."""
    config = CONFIGS["rolling"]
    made = planned(config, None, archived_at(config, slices=(2, 4)))
    assert (made.state.epoch, made.state.oldest) == (5, 2)
    assert [(each.epoch, each.inserted) for each in made.state.closed] == [(2, 3), (3, 0), (4, 5)]
    assert [each.epoch for each in made.sources["history"]] == [2, 4]
    assert made.sources["today"] == []


def test_epochs_that_were_passed_over():
    """They have no closed slices in the state after the last turn either, and none is looked for."""
    config = CONFIGS["rolling"]
    gap = " ".join(f"{each}:{NOW + each * 60}:{NOW + each * 60 + 60}:1" for each in (2, 4))
    made = planned(config, None, archived_at(config, 5, slices=(2, 4, 5), closed=gap))
    assert made.state.epoch == 6
    assert [each.epoch for each in made.state.closed] == [4, 5]
    assert [(each.kind, each.epoch) for each in made.sources["history"]] == [("slice", 4), ("slice", 5)]


def test_while_it_rotated():
    """Rolling goes on where it was; if what was being built is lost, it is built again from the start."""
    config = CONFIGS["rolling"]
    ours, archived = (
        state_at(config, 3, rotating=True, pieces=0),
        archived_at(config, 3, slices=(0, 1, 2), rotating=True),
    )
    made = planned(config, ours, archived)
    assert (made.state.phase, made.state.pieces) == ("rotating", 0)
    assert made.moves == [(name, name) for name in ("history", "history_1", "today")]
    made = planned(config, ours, archived, {"history", "today"})
    assert (made.state.phase, made.state.pieces) == ("rotating", None)
    assert [(each.kind, each.epoch) for each in made.sources["history_1"]] == [("checkpoint", 2), ("slice", 2)]
    made = planned(config, ours, archived, {"history_1", "today"})
    assert {each.epoch for each in made.sources["history"] if each.kind == "slice"} == {0, 1}  # the last is apart


@pytest.mark.parametrize("checkpoint", [None, 2, 3])
def test_the_archive_has_finished_the_turn(checkpoint):
    """Redis's history stays: the archive may have lost a slice of it. A checkpoint of this epoch is merged into it."""
    config = CONFIGS["rolling"]
    ours = state_at(config, 3, rotating=True, pieces=1, checkpoint=1)
    archived = archived_at(config, checkpoint, slices=(0, 2))
    made = planned(config, ours, archived, {"history", "history_1"})
    assert (made.state.phase, made.state.pieces, made.doomed) == ("rotating", 1, ["today"])
    assert made.moves == [("history", "history"), ("history_1", "history_1")]
    merged = {name: [(each.kind, each.epoch) for each in some] for name, some in made.sources.items()}
    assert merged["history"] == ([("slice", 0), ("checkpoint", 3)] if checkpoint == 3 else [])
    made = planned(config, ours, replace(archived, slices={}), set())
    merged = {name: [(each.kind, each.epoch) for each in some] for name, some in made.sources.items()}
    assert merged["history_1"] == ([("checkpoint", 3 if checkpoint == 3 else 2)] if checkpoint else [])


def test_the_archive_is_ahead_of_a_history():
    """Redis may have passed over a slice that the archive has: all of the window are merged into its history."""
    config = CONFIGS["rolling"]
    ours = state_at(config, 6, closed=f"5:{NOW + 300}:{NOW + 360}:1")
    archived = archived_at(config, 5, slices=(2, 3, 4))
    made = planned(config, ours, archived)
    assert [each.epoch for each in made.state.closed] == [3, 4, 5]
    assert [(each.kind, each.epoch) for each in made.sources["history"]][:2] == [("slice", 3), ("slice", 4)]
    assert made.moves == [("history", "history"), ("today", "today")]


@pytest.mark.parametrize("kind", ["ring", "rolling"])
def test_arranged_by_one_that_died(kind):
    """No slice is known to be whole, so each is filled anew from all sources."""
    config = CONFIGS[kind]
    ours, archived = state_at(config, 5), archived_at(config, 5, slices=range(5) if kind == "rolling" else ())
    made = planned(config, ours, archived, arranged=True)
    assert all(made.sources.values())
    assert made.moves == [(name, name) for name in names(ours)]
    if kind == "rolling":
        assert len(made.sources["history"]) == 4


def test_leases():
    """Redis's own count if it is not behind and nobody has begun; else the archive's come beside them."""
    config = CONFIGS["ring"]
    ours, archived = state_at(config, 3, checkpoint=1), archived_at(config, 3, 1)
    assert planned(config, None, archived).leases == "theirs"
    assert planned(config, ours, archived).leases == "ours"
    assert planned(config, replace(ours, checkpoint=0), archived).leases == "both"
    assert planned(config, ours, archived, arranged=True).leases == "both"


@pytest.mark.parametrize(("ours", "theirs"), [(0, 7000), (7000, 0), (5000, 7000), (7000, 5000)])
def test_the_longest_lease(ours, theirs):
    """It is the longer one of both, whosever the slices are, and so is the count of changes."""
    config = CONFIGS["ring"]
    for epoch in (2, 3):
        here = state_at(config, epoch, checkpoint=0, **(with_claims(ours)))
        made = planned(config, here, archived_at(config, 3, 1, **with_claims(theirs)))
        assert (made.state.view.claims, made.state.claimed) == (7000, 70)
    assert planned(config, None, archived_at(config, 3, 1, **with_claims(7000))).state.view.claims == 7000


def with_claims(lease) -> dict[str, int]:
    return {"claims": lease, "claimed": lease // 100} if lease else {}


def test_slices_stay_whatever_the_lease():
    """Slices of equal epochs and names are the same, though only one of both has claims."""
    config = CONFIGS["rolling"]
    made = planned(config, state_at(config, 3, checkpoint=0, **with_claims(5000)), archived_at(config, 3, 1))
    assert made.doomed == []


def test_numbers():
    """The higher of both: items of this epoch, changes, checkpoints; what was damaged counts as a number, too."""
    config = CONFIGS["ring"]
    ours = state_at(config, 3, changed=9, checkpoint=2, checkpointed=NOW + 10**6)
    archived = replace(archived_at(config, 3, number=4, changed=20), number=6)
    made = planned(config, replace(ours, inserted=77), archived)
    assert (made.state.inserted, made.state.changed, made.state.checkpoint) == (77, 21, 6)
    assert made.state.checkpointed == NOW + 10**6
    for here, there in ((NOW + 5, NOW + 9), (NOW + 9, NOW + 5)):  # of whichever epoch
        made = planned(config, replace(ours, epoch=2, written=here), archived_at(config, 3, written=there))
        assert made.state.written == NOW + 9
    made = planned(config, replace(ours, epoch=2, inserted=77), archived)
    assert made.state.inserted == 5


@dataclass(frozen=True)
class Case:
    config: object
    ours: ShardState | None
    present: frozenset
    archived: Archived
    arranged: bool


@st.composite
def cases(draw):
    """A shard that Redis has of some epoch, with some slices, and an archive of another: one history, two times.

    Rolling's closed slices, but for those that have expired, are all there, unless Redis is as far as the archive: then
    some may be damaged. They are not looked at if Redis has all of its slices and nothing was archived since.
    """
    kind = draw(st.sampled_from(list(CONFIGS)))
    config = CONFIGS[kind]
    epochs = st.just(0) if kind == "forever" else st.integers(0, 8)
    rotates = st.booleans() if kind == "rolling" else st.sampled_from([False])
    ours, archived = None, Archived()
    if draw(st.booleans()):
        epoch = draw(epochs)
        rotating = epoch > 0 and draw(rotates)
        pieces = draw(st.none() | st.integers(0, 1)) if rotating else None
        number, changed = draw(st.integers(0, 3)), draw(st.integers(0, 50))
        ours = state_at(config, epoch, rotating=rotating, pieces=pieces, checkpoint=number, changed=changed)
    present = draw(st.sets(st.sampled_from(names(ours)))) if ours else set()
    if draw(st.integers(0, 4)):
        epoch = draw(epochs)
        rotating = epoch > 0 and draw(rotates)
        last = draw(st.integers(epoch - rotating, epoch + 3)) if kind == "rolling" else 0
        slices = [*range(max(0, last - 5), last)] if kind == "rolling" else []
        if slices and ours and ours.epoch >= max(epoch, last):
            slices = draw(st.lists(st.sampled_from(slices), unique=True).map(sorted))
        whole = ours and len(present) == len(names(ours)) and ours.epoch >= epoch
        if whole and last <= epoch:  # then they are not looked at
            slices = []
        archived = archived_at(config, epoch, draw(st.integers(1, 5)), slices, rotating=rotating)
        archived = replace(archived, contained=draw(st.booleans()) and epoch in slices)
    return Case(config, ours, frozenset(present), archived, draw(st.booleans()))


def held(config, state, name) -> set[int]:
    """The epochs whose items a live slice holds."""
    if name != "history":
        own = state.epoch_of(name)
        older = range(oldest_of(config, own), own) if config.write == "all" else ()
        return {own, *older}
    rotating = state.phase == "rotating"
    return set(range(oldest_of(config, state.epoch, rotating=rotating), state.epoch - rotating))


def bits(case, state, name, tag) -> set[str]:
    """What a live slice has; what a checkpoint has of rolling's today may lack in the slice that was closed later."""
    if tag == "a" and case.config.retention == "rolling" and name == "today":
        tag = "t"
    return {f"{epoch}{tag}" for epoch in held(case.config, state, name)}


def placed(case, made) -> dict[str, set[str]]:
    """The bits that each slice has in the end."""
    found = {name: set() for name in names(made.state)}
    for old, new in made.moves:
        found[new] |= bits(case, case.ours, old, "r")
    for name, sources in made.sources.items():
        for each in sources:
            then = case.archived.checkpoint.shard_state() if each.kind == "checkpoint" else None
            found[name] |= bits(case, then, each.name, "a") if then else {f"{each.epoch}a"}
    return found


def twins(case, bit) -> set[str]:
    """The bits that are the same: a slice of rolling is archived before anything is built of it."""
    epoch, tag = int(bit[:-1]), bit[-1]
    if case.config.retention != "rolling":
        return {bit}
    closed = {f"{epoch}a", f"{epoch}r"} if case.ours is not None and epoch < case.ours.epoch else {f"{epoch}{tag}"}
    if tag == "t":
        return {bit, *closed, f"{epoch}a"} if case.archived.contained else {bit}
    return closed


@given(cases())
def test_no_name_is_overwritten(case):
    """Renamed in their order, no slice takes a name that another still has, and no two end under one name."""
    made = planned(case.config, case.ours, case.archived, set(case.present), arranged=case.arranged)
    there = set(case.present) - set(made.doomed)
    for old, new in made.moves:
        assert old in there
        assert old == new or new not in there
        there = there - {old} | {new}
    assert there <= set(names(made.state))
    assert len({new for _, new in made.moves}) == len(made.moves)


@given(cases())
def test_the_plan_can_be(case):
    """Its slices are such as the filter has in that epoch; sources are named for each of them."""
    made = planned(case.config, case.ours, case.archived, set(case.present), arranged=case.arranged)
    config, rotating = case.config, made.state.phase == "rotating"
    assert list(made.state.view.slices) == slices_at(config, config.today, made.state.epoch, rotating=rotating)
    assert list(made.sources) == names(made.state)
    assert [each.epoch for each in made.state.closed] == list(range(made.state.oldest, made.state.epoch))
    assert made.state.oldest <= oldest_of(config, made.state.epoch, rotating=rotating)


@given(cases())
def test_numbers_never_go_back(case):
    """Epoch, changes and checkpoints are at least what Redis and the archive have seen."""
    made = planned(case.config, case.ours, case.archived, set(case.present), arranged=case.arranged)
    then = case.archived.checkpoint.shard_state() if case.archived.checkpoint else None
    for each in filter(None, (case.ours, then)):
        assert made.state.epoch >= each.epoch
        assert made.state.changed > each.changed
        assert made.state.checkpoint >= each.checkpoint
        assert made.state.checkpointed >= each.checkpointed
    assert made.state.checkpoint >= case.archived.number
    if case.archived.checkpoint:
        assert made.state.checkpointed >= case.archived.checkpoint.begun


@given(cases())
def test_nothing_is_left_out(case):
    """Each bit that Redis or the archive has of a live epoch is in the shard afterwards, to expire no earlier."""
    made = planned(case.config, case.ours, case.archived, set(case.present), arranged=case.arranged)
    config, state, found = case.config, made.state, placed(case, made)
    oldest = oldest_of(config, state.epoch)
    known = {f"{epoch}a" for epoch in case.archived.slices}
    if case.ours:
        known |= {bit for name in case.present for bit in bits(case, case.ours, name, "r")}
    if case.archived.checkpoint:
        then = case.archived.checkpoint.shard_state()
        known |= {bit for name in names(then) for bit in bits(case, then, name, "a")}
    for bit in known:
        epoch = int(bit[:-1])
        late_enough = {bit for name, some in found.items() if state.epoch_of(name) >= epoch for bit in some}
        assert epoch < oldest or twins(case, bit) & late_enough, (bit, found)
