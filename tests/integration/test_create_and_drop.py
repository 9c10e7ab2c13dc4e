"""Creators and droppers of one filter beside each other: no one's filter is harmed, and nothing is left behind.

Each is a flow that is advanced a command at a time, so that any of them stalls, or dies, at any place.
"""

from __future__ import annotations

import functools
import random

import pytest
from support.in_flight import Holder
from support.interleaved import Actor
from support.shard_keys import shard_key

from urifilter_redis import UriFilter, drop_filter, list_filters
from urifilter_redis.errors import ConfigMismatch
from urifilter_redis.flows import dropping, lifecycle
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.outcomes import to_mapping

SHARDS = 3
SETTINGS = {"capacity": 1000, "error_rate": 1e-3, "shards": SHARDS, "seed": 1}

#: The keys of a shard with claims.
OF_CLAIMS = ("leases", "in_flight", "holders", "dead_letters", "dead_letters_at")

#: The next one to go on, and how far: of several schedules for two, after the first has done some steps.
BETWEEN = [(2, False), (7, False), (None, False), (None, True)]


class Scene:
    """Processes that begin beside each other: ``create``, ``drop`` by name, ``drop old``: of an object."""

    def __init__(self, server, kinds, *, there=True) -> None:
        self.server, self.admin, self.kinds = server, server.client(), kinds
        self.admin.flushall()
        self.old = {}
        if there:
            with UriFilter.create("news", redis=server.url, **SETTINGS) as news:
                assert Holder(news).claim(range(50)) == [0] * 50
                with news.claims() as mine:
                    mine.claim_many(range(50, 100))
                    mine.reject(range(50, 100))
                self.admin.delete(*self.admin.keys("*:replies"))
            self.old = to_mapping(self.admin.hgetall("urifilter:{news:0}:meta"))
        self.actors = [Actor(server, functools.partial(self.flow, kind)) for kind in kinds]
        self.died = False

    def flow(self, kind, session):
        if kind == "create":
            return lifecycle.create(session, Settings(**SETTINGS))
        if kind == "drop old":
            session.learn(self.old)
        return dropping.drop(session)

    def die(self, actor) -> None:
        self.died = self.died or not actor.ended
        actor.die()

    def end(self) -> None:
        """Run what is left, and check what there is; then create, and drop, once more."""
        for actor in self.actors:
            actor.run()
        self.check()
        with UriFilter.create("news", redis=self.server.url, **SETTINGS) as anew:
            self.check_whole(anew.config.uid)
        drop_filter("news", redis=self.server.url)
        assert self.admin.keys() == []
        self.admin.close()

    def check(self) -> None:
        """Whoever was given a filter has it, unless a dropper meant that one; that one is gone."""
        meant = set()
        for kind, actor in zip(self.kinds, self.actors, strict=True):
            if kind == "drop old" and actor.error is not None:
                assert isinstance(actor.error, ConfigMismatch)
            else:
                assert actor.error is None, actor.error
            if kind != "create":
                meant.add(self.old["uid"] if kind == "drop old" else (actor.first or {}).get("uid"))
        given = {actor.result.uid for actor in self.actors if isinstance(actor.result, Config)}
        for uid in given - meant:
            if self.died:  # perhaps between taking the name out and looking whether there is a new filter
                UriFilter.open("news", redis=self.server.url).close()
            self.check_whole(uid)
        if not self.died:
            assert not meant & set(self.uids())
            if not self.uids():
                assert self.admin.keys() == []

    def uids(self) -> list[str]:
        found = (self.admin.hget(shard_key("news", n, SHARDS, "meta"), "uid") for n in range(SHARDS))
        return [uid.decode() for uid in found if uid]

    def check_whole(self, uid) -> None:
        """There is this filter with all its keys, no other, and it is listed."""
        assert self.uids() == [uid] * SHARDS
        assert list_filters(redis=self.server.url) == ["news"]
        names = [shard_key("news", n, SHARDS, name) for n in range(SHARDS) for name in ("meta", "today")]
        of_claims = {shard_key("news", n, SHARDS, name) for n in range(SHARDS) for name in OF_CLAIMS}
        there = {"urifilter:filters", *names} | (of_claims if uid == self.old.get("uid") else set())
        assert {key.decode() for key in self.admin.keys()} == there
        assert {self.admin.hget(name, "phase") for name in names[::2]} == {b"idle"}


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize("kinds", [("drop", "create"), ("create", "drop"), ("drop", "drop"), ("create", "create")])
def test_two_with_a_stall_at_each_step(any_server, kinds, there, sample):
    """One stops at any step; the other goes on for some, or to its end; then the first goes on, or is dead."""
    scene = Scene(any_server, kinds, there=there)
    scene.actors[0].run()
    scene.end()
    assert scene.actors[0].steps > 2
    for steps in sample(range(scene.actors[0].steps + 1), 4):
        for between, dies in BETWEEN:
            scene = Scene(any_server, kinds, there=there)
            one, other = scene.actors
            one.run(steps)
            other.run(between)
            if dies:
                scene.die(one)
            scene.end()


@pytest.mark.sampled
@pytest.mark.parametrize("there", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("drop", "drop", "create"),
        ("drop old", "drop", "create"),
        ("drop old", "create", "create"),
        ("drop", "drop", "create", "create"),
    ],
    ids=", ".join,
)
def test_any_order(any_server, kinds, there, sample):
    """Any number, in any order, with stalls of any length; some die."""
    if not there and "drop old" in kinds:
        return
    for seed in sample(range(40), 10):
        chosen = random.Random(seed)
        scene = Scene(any_server, kinds, there=there)
        doomed = chosen.choice([None, *scene.actors])
        last = chosen.randrange(1, 20)
        while not all(actor.ended for actor in scene.actors):
            actor = chosen.choice(scene.actors)
            actor.run(chosen.choice([1, 1, 2, 5, 12]))
            if doomed is not None and doomed.steps >= last:
                scene.die(doomed)
        scene.end()


def test_a_live_filter_is_listed_again(any_server):
    """A dropper that took the name of a new filter out, and died before it looked: the next open lists it again."""
    scene = Scene(any_server, ["drop", "create"])
    dropper, creator = scene.actors
    for _ in range(2):  # the first one only tries whether this user may
        dropper.step()
        while dropper.next() != "SREM":
            dropper.step()
    creator.run()
    dropper.step()
    assert list_filters(redis=any_server.url) == []
    scene.die(dropper)
    scene.end()
