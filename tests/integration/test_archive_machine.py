"""Checkpoints, rotations, crashes and restores in any order, against a model of what must be seen.

Redis is emptied, comes back as it was at some earlier time, or loses a slice. What was seen when the last finished
checkpoint began, and has not expired, is seen once the filter is open again; what nobody ever inserted is new. What was
in flight then is in flight again, so that somebody gets it.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from support.archives import leftovers, let_restorers_die, sound
from support.in_flight import Holder, in_flight, let_lapse
from support.pipelines import pipelines

from urifilter_redis import SliceLost, UriFilter
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows import checkpoint, restore
from urifilter_redis.flows.reading import archive_bitmaps
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage import blobs, documents, slices
from urifilter_redis.storage.backends import open_backend

if TYPE_CHECKING:
    from support import servers

pytestmark = pytest.mark.slow

RETENTIONS = {
    "forever": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing", "capacity": 10},
    "ring newest": {"retention": "ring", "slices": 3, "period": "1d"},
    "ring all": {"retention": "ring", "slices": 3, "period": "1d", "write": "all"},
    "rolling": {"retention": "rolling", "slices": 3, "period": "1d"},
}
ITEMS = range(40)
items = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=8, unique=True)


@dataclass
class Model:
    """What is known of a filter.

    Attributes:
        window: epochs for which an item stays, from the one in which it was told to be new.
        epoch: of the filter.
        sure: items that were told to be new, with the epoch; they must be seen until they expire.
        maybe: items that may be seen; all others must be new.
        forgotten: items that may be listed as forgotten.
        hand: items that a living holder has.
        lapsed: items whose holder is dead.
    """

    window: float
    epoch: int = 0
    sure: dict[int, int] = field(default_factory=dict)
    maybe: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)
    hand: set[int] = field(default_factory=set)
    lapsed: set[int] = field(default_factory=set)

    def must_see(self) -> set[int]:
        return {item for item, epoch in self.sure.items() if self.epoch - epoch < self.window}

    def check(self, item: int, age: int) -> None:
        assert (age == -1) == (item in self.hand), f"{item} is in flight, or not"
        if item in self.hand | self.lapsed:
            assert age in {-1, 0}
            return
        assert age or item not in self.must_see(), f"{item} was lost"
        assert not age or item in self.maybe, f"nobody inserted {item}"

    def take_out(self, item: int) -> None:
        self.hand.discard(item)
        self.lapsed.discard(item)

    def seen(self, item: int) -> None:
        """It was inserted, or committed."""
        self.sure[item] = self.epoch
        self.maybe.add(item)
        self.forgotten.discard(item)
        self.take_out(item)


class Machine(RuleBasedStateMachine):
    """A filter of one shard with an archive in a folder."""

    options: ClassVar[dict] = {}
    server: ClassVar[servers.Server]
    folder: ClassVar

    @initialize()
    def create(self):
        self.server.ask("flushall")
        for folder in (self.folder, os.environ["URIFILTER_DATA_DIR"]):
            shutil.rmtree(folder, ignore_errors=True)
        self.where = {"redis": self.server.url, "archive": self.folder.as_uri()}
        made = {"capacity": 100, "error_rate": 1e-9, "seed": 1} | self.options
        self.news = UriFilter.create("news", **self.where, **made)
        self.live = Model(self.options.get("slices", math.inf))
        self.archived, self.number = copy.deepcopy(self.live), 0
        self.saved, self.ever, self.closed = None, set(), set()
        self.mine, self.claimed = Holder(self.news, payload="x" * 1500), set()

    def meta(self):
        return to_mapping(self.server.ask("hgetall", "urifilter:{news:0}:meta"))

    @rule(some=items)
    def insert(self, some):
        for item, age in zip(some, self.news.insert_ages(some), strict=True):
            self.live.check(item, age)
            if age == 0:
                self.live.seen(item)
            if age >= 0:
                self.live.maybe.add(item)
                self.live.forgotten.discard(item)
                self.ever.add(item)

    @rule(some=items)
    def claim(self, some):
        for item, age in zip(some, self.mine.claim(some), strict=True):
            self.live.check(item, age)
            if age == 0:
                self.live.lapsed.discard(item)
                self.live.hand.add(item)
                self.claimed.add(item)

    @rule(some=items)
    def commit(self, some):
        """Whoever has it in flight: it is final."""
        for item, age in zip(some, self.mine.commit(some), strict=True):
            if item in self.live.hand | self.live.lapsed:
                assert age == 0
            else:
                self.live.check(item, age)
            if age == 0:
                self.live.seen(item)
            self.live.maybe.add(item)
            self.live.forgotten.discard(item)
            self.ever.add(item)

    @rule(some=items)
    def release(self, some):
        for item, done in zip(some, self.mine.release(some, failed=True), strict=True):
            if done:
                assert item in self.live.hand | self.live.lapsed
                self.live.hand.discard(item)
                self.live.lapsed.add(item)

    @rule()
    def lapse(self):
        """All holders die."""
        with self.server.client() as admin:
            let_lapse(self.news, admin)
        self.mine = Holder(self.news, payload="x" * 1500)
        self.live.lapsed |= self.live.hand
        self.live.hand.clear()

    @rule()
    def reclaim(self):
        """What has lapsed is in flight again, all of it and nothing else; the holder's own stays."""
        found = {int(entry.kept.partition(b"|")[0]) for entry in self.mine.reclaim()}
        assert found <= self.live.lapsed
        with self.server.client() as admin:
            hand, lapsed = self.in_flight(admin)
        assert found <= hand
        assert hand | lapsed == self.live.hand | self.live.lapsed
        self.live.hand, self.live.lapsed = hand, lapsed

    def in_flight(self, admin) -> tuple[set[int], set[int]]:
        """Return the items that living holders have, and those of dead ones."""
        now, key = admin.time()[0] * 1000, self.news._session.keys.shard(0).holders
        there = in_flight(self.news, admin)
        living = {int(item) for item, (holder, _, _) in there.items() if admin.zscore(key, holder) > now}
        return living, set(map(int, there)) - living

    @rule()
    def look(self):
        for item, age in zip(ITEMS, self.news.ages(ITEMS), strict=True):
            self.live.check(item, age)

    @rule(some=items)
    def forget(self, some):
        for item, there in zip(some, self.news.forget(some), strict=True):
            if item in self.live.hand | self.live.lapsed:
                assert there
                self.live.take_out(item)
            else:
                self.live.check(item, int(there))
            self.live.sure.pop(item, None)
            self.live.maybe.discard(item)
            self.live.forgotten.add(item)

    @precondition(lambda self: "period" in self.options)
    @rule()
    def rotate(self):
        before = copy.deepcopy(self.live)
        self.live.epoch = self.news.rotate().epoch
        if self.options["retention"] == "rolling":  # the closed slice is written back, and the list of forgotten is not
            kept = before.sure.items()
            self.archived.sure |= {item: epoch for item, epoch in kept if item not in self.archived.forgotten}
            self.closed |= self.ever

    @rule(full=st.booleans())
    def write_back(self, full):
        self.archived = copy.deepcopy(self.live)
        self.number = self.news.checkpoint(full=full).number

    @rule(
        some=items,
        what=st.sampled_from(["insert", "claim", "commit", "release"]),
        steps=st.integers(1, 25),
        finish=st.booleans(),
    )
    def write_back_meanwhile(self, some, what, steps, finish):
        """Items are inserted, claimed, committed or released in the middle; then it finishes, or dies."""
        before = copy.deepcopy(self.live)
        running = pipelines(checkpoint.checkpoint(self.news._session), self.news._connector)
        for number, _ in enumerate(running):
            if number == steps:
                getattr(self, what)(some)
            if number > steps and not finish:
                running.close()
                return
        before.maybe |= set(some)  # a bit that was set before its piece was read is in the checkpoint
        if what in {"insert", "commit"}:  # what was taken out before its entry was read is not in the checkpoint
            before.hand -= set(some)
            before.lapsed -= set(some)
        self.archived, self.number = before, int(self.meta()["checkpoint"])

    @rule()
    def save(self):
        with self.server.client() as admin:
            dumped = {key: admin.dump(key) for key in admin.keys()}
        self.saved = (dumped, copy.deepcopy(self.live), int(self.meta().get("checkpoint", 0)))

    @rule(deaths=st.lists(st.integers(1, 60), max_size=2))
    def crash(self, deaths):
        """Redis comes back empty; restorers may die on the way."""
        if {key.kind for key in drive(open_backend(self.where["archive"]).keys("news"))} == {"filter"}:
            self.lose_without_a_copy("meta")
            return
        self.server.ask("flushall")
        self.reopen([self.archived], deaths)

    @precondition(lambda self: self.saved)
    @rule(some=items, work=st.sampled_from(["", "insert", "claim"]))
    def come_back_older(self, some, work):
        """Redis comes back as it was saved; it may be worked on before the filter is opened with its archive."""
        dumped, then, number = self.saved
        with self.server.client() as admin:
            admin.flushall()
            for key, value in dumped.items():
                admin.restore(key, 0, value)
        then = copy.deepcopy(then)
        known = [then] if number >= self.number else [self.archived]
        if work and self.options.get("layout") != "counting":
            self.news.close()
            with UriFilter.open("news", redis=self.server.url, archive="") as without:
                known = [*known, self.work(without, some, work, then)]
        # Of two that each have forgotten something: what only one has forgotten, perhaps long ago, is seen.
        self.reopen(known, doubtful=self.ever if work else set())

    def work(self, without, some, what, then) -> Model:
        """Insert or claim with the older state ``then``; return what must not be lost of that."""
        done = Model(then.window, then.epoch)
        self.mine.news = without
        ages = without.insert_ages(some) if what == "insert" else self.mine.claim(some)
        for item, age in zip(some, ages, strict=True):
            if age == 0 and what == "insert":
                then.take_out(item)
                done.sure[item] = then.sure[item] = without.epoch()
            elif age == 0:
                done.hand.add(item)
                self.claimed.add(item)
            elif age > 0 and item in then.sure:
                done.sure[item] = then.sure[item]
        return done

    @rule(which=st.integers(0, 5))
    def lose_a_slice(self, which):
        names = [each.split(":")[0] for each in self.meta()["slices"].split()]
        lost = "urifilter:{news:0}:" + names[which % len(names)]
        if not self.number:
            if lost.endswith("today"):  # a rolling filter's closed slices have the others
                self.lose_without_a_copy("today", lost)
            return
        self.server.ask("delete", lost)
        kept = {item: epoch for item, epoch in self.archived.sure.items() if item in self.live.sure}
        self.reopen([Model(self.live.window, sure=kept, hand=self.live.hand, lapsed=self.live.lapsed)])

    def lose_without_a_copy(self, what, *keys):
        """No checkpoint has these keys, or all: the filter is not opened until they are back."""
        with self.server.client() as admin:
            there = {key: admin.dump(key) for key in keys or admin.keys()}
            admin.delete(*there)
            with pytest.raises(SliceLost, match=f"has LOST {what}, and the archive has no checkpoint"):
                UriFilter.open("news", **self.where)
            for key, value in there.items():
                admin.restore(key, 0, value)

    def reopen(self, known, deaths=(), doubtful=frozenset()):
        """Open the filter; what each of ``known`` must see is seen, and of the ``doubtful`` anything may be."""
        self.news.close()
        for steps in deaths:
            self.die(steps)
        self.news = UriFilter.open("news", **self.where)
        epoch = int(self.meta()["epoch"])
        self.mine.news = self.news
        ages = dict(zip(ITEMS, self.news.ages(ITEMS), strict=True))
        live = Model(self.live.window, epoch, maybe={item for item, age in ages.items() if age > 0})
        live.forgotten = {item for item, age in ages.items() if not age and item in self.ever}
        with self.server.client() as admin:
            live.hand, live.lapsed = self.in_flight(admin)
        there = live.hand | live.lapsed
        assert there <= self.claimed
        assert {item for item, age in ages.items() if age == -1} == live.hand
        for each in known:
            assert each.hand | each.lapsed <= there, "a page was swallowed"
            each.epoch = epoch
            live.sure |= {item: each.sure[item] for item in each.must_see() if item not in there}
        inserted = (
            doubtful | self.closed | self.live.maybe | self.archived.maybe | set().union(*(each.sure for each in known))
        )
        inserted |= self.saved[1].maybe if self.saved else set()
        for item, age in ages.items():
            assert age or item not in live.must_see(), f"{item} was lost"
            assert age <= 0 or item in inserted, f"nobody inserted {item}"
        assert self.meta()["phase"] == "idle"
        self.live, self.saved = live, None
        self.write_back(full=False)
        sound(self.where["archive"])

    def die(self, steps):
        """Open the filter, and die after so many steps; others find the restorer silent for long."""
        flow = restore.ensure(self.news._session)
        for number, _ in enumerate(pipelines(flow, self.news._connector)):
            if number == steps:
                break
        let_restorers_die(self.server)

    def teardown(self):
        if hasattr(self, "news"):
            self.news.close()
            leftovers(self.where["archive"])
            sound(self.where["archive"])


@pytest.fixture(autouse=True)
def _small_pieces(request, monkeypatch):
    """Bitmaps of some pieces, though they are small (of blocked some hundred bytes, of the others some 100 kB)."""
    blocked = "layout" not in RETENTIONS[request.node.callspec.params["name"]]
    for module in (documents, blobs):
        monkeypatch.setattr(module, "PIECE", 120 if blocked else 100_000)
    for module in (blobs, restore):
        monkeypatch.setattr(module, "PIECES_AT_ONCE", 2)
    monkeypatch.setitem(archive_bitmaps.__kwdefaults__, "at_once", 2)
    monkeypatch.setattr(slices.BackendArchive, "at_once", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("examples", [4, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RETENTIONS)
def test_any_order(name, examples, any_server):
    """Nothing is lost that was written back, and nothing is seen that was not inserted."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncing takes long on a disk
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        run(RETENTIONS[name], any_server, Path(folder) / "archive", examples)


def run(options, server, folder, examples):
    known = {"options": options, "server": server, "folder": folder}
    run_state_machine_as_test(
        type("Machine", (Machine,), known),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes many minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
