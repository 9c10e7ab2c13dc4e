"""Every retention against a model that remembers exact items with their epochs.

Inserts, forgets, rotations, lost replies, several rotators, crashes between any two steps and late commands of the
dead come in any order. The flows are the real ones; they run against the model of the scripts first, then against
each server.
"""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ConnectionError as ConnectionBroken
from support import servers
from support.model_server import ModelServer
from support.oracle import Oracle

from urifilter_redis import RotationConflict, Timeouts
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Send, Work
from urifilter_redis.flows import lifecycle, rotation
from urifilter_redis.flows.items import answer
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.outcomes import Unanswered, to_mapping
from urifilter_redis.storage import documents, slices
from urifilter_redis.transport.connections import Connector
from urifilter_redis.transport.url import Address

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

RETENTIONS = {
    "growing": {"retention": "growing", "capacity": 6},
    "ring newest": {"retention": "ring", "slices": 3},
    "ring newest last-seen": {"retention": "ring", "slices": 3, "expire_after": "last-seen"},
    "ring all": {"retention": "ring", "slices": 3, "write": "all"},
    "ring all last-seen": {"retention": "ring", "slices": 2, "write": "all", "expire_after": "last-seen"},
    "rolling": {"retention": "rolling", "slices": 4},
    "rolling last-seen": {"retention": "rolling", "slices": 3, "expire_after": "last-seen"},
    "rolling of two": {"retention": "rolling", "slices": 2},
}
items = st.lists(st.integers(0, 25), min_size=1, max_size=8)
#: For each pipeline that is sent: whether it runs, and whether its replies arrive.
faults = st.lists(st.sampled_from(["fine", "fine", "lost", "unsent"]), max_size=3)


class Machine(RuleBasedStateMachine):
    """Clients and rotators of one shard."""

    options: ClassVar[dict] = {}
    connect: Callable  # returns a fresh server's ``send``

    @initialize()
    def create(self):
        self.send = self.connect()
        timed = {} if self.options["retention"] == "growing" else {"period": "1d"}
        made = Settings(**{"capacity": 100, "error_rate": 1e-9} | timed | self.options)
        self.session = self.new_session()
        self.drive(lifecycle.create(self.session, made))
        self.oracle = Oracle(made.retention, made.slices, made.write, made.expire_after)
        self.rotators = []
        self.late = []
        self.started = self.finished = self.doubtful = 0
        self.look()

    def new_session(self):
        keys, by_hand = FilterKeys("urifilter", "machine"), RotationTimer("never")
        return Session(keys, "nowhere", Timeouts(total=60), rotation_timer=by_hand)

    def drive(self, flow, faults=()):
        """Run a flow; of its first pipelines some are lost before or after they ran."""
        left, outcome = list(faults), None
        try:
            step = next(flow)
            while True:
                outcome = None
                if isinstance(step, Send):
                    fault = left.pop(0) if left else "fine"
                    broken = [Unanswered(ConnectionBroken("lost"))] * len(step.commands)
                    outcome = broken if fault == "unsent" else self.send(step.commands)
                    outcome = broken if fault == "lost" else outcome
                step = flow.send(step.do() if isinstance(step, Work) else outcome)
        except StopIteration as stop:
            return stop.value
        finally:
            self.look()

    def perform(self, step):
        if isinstance(step, Work):
            return step.do()
        return self.send(step.commands) if isinstance(step, Send) else None

    def look(self):
        """Tell the oracle how far the filter is."""
        if hasattr(self, "oracle"):
            (reply,) = self.send([("HGETALL", "urifilter:{machine:0}:meta")])
            meta = to_mapping(reply)
            oldest = int(meta["oldest"])
            self.state = meta
            for epoch in range(self.oracle.epoch + 1, int(meta["epoch"])):
                self.oracle.turned(epoch, self.oracle.oldest)
            made = [int(entry.split(":")[0]) for entry in meta.get("closed", "").split()]
            self.oracle.turned(int(meta["epoch"]), oldest, [*made, int(meta["epoch"])])

    @rule(some=items, faults=faults, max_age=st.integers(0, 3))
    def insert(self, some, faults, max_age):
        max_age = min(max_age, self.options["slices"]) if self.options["retention"] == "ring" else 0
        if self.options["retention"] == "growing":
            self.insert_growing(some, faults)
            return
        answers = self.drive(answer(self.session, "insert", some, max_age or None), faults)
        assert answers == [self.oracle.insert(item, max_age) for item in some]

    def insert_growing(self, some, faults):
        """A growing filter may turn between the script calls of an insert; they may then run in another order."""
        before = {item: self.oracle.age(item) for item in some}
        answers = self.drive(answer(self.session, "insert", some), faults)
        told = collections.Counter(item for item, answer in zip(some, answers, strict=True) if answer == 0)
        assert told == {item: 1 for item, age in before.items() if age == 0}
        for item in some:  # exact ages are checked by contains, once it is known where each item went
            if before[item] == 0:
                (age,) = self.drive(answer(self.session, "contains", [item]))
                assert age >= 1
                self.oracle.written.setdefault(item, set()).add(self.oracle.epoch - age + 1)
                self.oracle.forgotten.discard(item)

    @rule(some=items, max_age=st.integers(0, 3))
    def contains(self, some, max_age):
        max_age = min(max_age, self.options["slices"]) if self.options["retention"] == "ring" else 0
        answers = self.drive(answer(self.session, "contains", some, max_age=max_age or None))
        assert answers == [self.oracle.age(item, max_age) for item in some]

    @rule(some=items, faults=faults)
    def forget(self, some, faults):
        answers = self.drive(answer(self.session, "forget", some), faults)
        assert answers == [self.oracle.forget(item) for item in some]

    @precondition(lambda self: self.options["retention"] != "growing" and len(self.rotators) < 3)
    @rule()
    def start_rotator(self):
        flow = rotation.rotate(self._opened(self.new_session()))
        self.rotators.append((flow, next(flow)))
        self.started += 1

    def _opened(self, session):
        self.drive(lifecycle.open_(session))
        return session

    @precondition(lambda self: self.rotators)
    @rule(
        which=st.integers(0, 2),
        steps=st.integers(1, 40),
        fate=st.sampled_from([*["go on"] * 3, "lose a reply", "die", "die, half sent", "die, commands late"]),
    )
    def step_rotator(self, which, steps, fate):
        which %= len(self.rotators)
        flow, step = self.rotators.pop(which)
        try:
            for _ in range(steps):
                step = flow.send(self.perform(step))
                self.look()
            if fate == "lose a reply" and isinstance(step, Send):
                self.send(step.commands)
                self.look()
                self.doubtful += 1  # it may take the turn of another for its own, rather than turn twice
                step = flow.send([Unanswered(ConnectionBroken("lost"))] * len(step.commands))
        except StopIteration:
            self.finished += 1
            return
        if fate.startswith("die"):
            flow.close()
            if fate.endswith("half sent") and isinstance(step, Send):
                self.send(step.commands[: len(step.commands) // 2])
                self.look()
            if fate.endswith("late") and isinstance(step, Send):
                self.late.append(step.commands)
        else:
            self.rotators.insert(which, (flow, step))

    @precondition(lambda self: self.options["retention"] != "growing")
    @rule(periods=st.integers(1, 5), faults=faults)
    def rotate_late(self, periods, faults):
        """It is so long ago that the shard was opened and written to; whoever rotates then passes over that."""
        opened, before = int(1000 * (time.time() - periods * 86_400)) - 1, int(self.state["epoch"])
        idle = self.state["phase"] == "idle"
        self.send([("HSET", "urifilter:{machine:0}:meta", "opened", opened, "written", opened)])
        self.drive(rotation.rotate_due(self._opened(self.new_session())), faults)
        passed = int(self.state["epoch"]) - before
        assert passed == (periods if idle else 0)
        assert self.state["phase"] == "idle"
        self.started, self.finished = self.started + passed, self.finished + passed

    @precondition(lambda self: self.late)
    @rule()
    def deliver_late_commands(self):
        self.send(self.late.pop(0))
        self.look()

    @precondition(lambda self: self.options["retention"] != "growing")
    @rule()
    def resume(self):
        """Whoever comes next with the epoch that was wanted brings the shard there."""
        epoch = int(self.state["epoch"])
        if self.state["phase"] == "rotating":
            self.drive(rotation.rotate(self._opened(self.new_session()), expected_epoch=epoch - 1))
        else:
            with pytest.raises(RotationConflict):
                self.drive(rotation.rotate(self._opened(self.new_session()), expected_epoch=epoch - 1))
        self.look()
        assert self.state["phase"] == "idle"
        first = max(0, epoch - self.options["slices"] + 1)
        assert self.oracle.oldest == first

    @invariant()
    def each_rotation_happens_once(self):
        if hasattr(self, "started") and self.options["retention"] != "growing":
            assert self.finished - self.doubtful <= self.oracle.epoch <= self.started

    def teardown(self):
        for flow, _ in getattr(self, "rotators", ()):
            flow.close()


def run(connect, options, examples, steps):
    run_state_machine_as_test(
        type("Machine", (Machine,), {"options": options, "connect": staticmethod(connect)}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes many minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Bitmaps of some pieces, though they are small."""
    monkeypatch.setattr(documents, "PIECE", 120)
    monkeypatch.setattr(slices.RedisArchive, "at_once", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("examples", [10, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RETENTIONS)
def test_in_the_model(name, examples):
    """The state machine itself is right."""
    run(lambda: ModelServer().send, RETENTIONS[name], examples, 60)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("redis70", 6),
        pytest.param("redis70", 40, marks=pytest.mark.slow),
        *(pytest.param(kind, 10, marks=pytest.mark.slow) for kind in servers.KINDS if kind != "redis70"),
    ],
)
@pytest.mark.parametrize("name", RETENTIONS)
def test_on_a_server(name, kind, examples, _shared):  # noqa: PT019 - its value is wanted
    """The scripts do what the model does."""
    run_on(_shared, kind, RETENTIONS[name], examples)


@pytest.mark.parametrize("name", ["growing", "ring newest"])
def test_in_a_module(name, _shared):  # noqa: PT019 - likewise
    """Layout redisbloom likewise."""
    run_on(_shared, servers.BLOOM, RETENTIONS[name] | {"layout": "redisbloom"}, 15)


def run_on(running, kind, options, examples):
    if kind not in running:
        running[kind] = servers.Server(kind)
    server = running[kind]
    with contextlib.closing(Connector(Address(server.url), Timeouts())) as connector:

        def connect():
            server.ask("flushall")
            return connector.send

        run(connect, options, examples, 60)
