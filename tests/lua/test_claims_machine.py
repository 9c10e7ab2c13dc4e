"""Claims, in any order, beside all else that a shard does: the scripts do what the model does, and no item is lost.

Time passes for the server by a clock of the test's. Slices are so small that items are often seen by chance.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ResponseError
from support import servers
from support.clock import Clock
from support.leases import dead_letters_of, holders_of, in_flight_of_holder, leases_of
from support.model import Refused
from support.model_claims import ClaimingShard, ModelEntry
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.bloom.sizing import REDISBLOOM, Slice
from urifilter_redis.flows.turn import names_after
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.claims import NO_HOLDER, Holding

if TYPE_CHECKING:
    from collections.abc import Callable

#: Leases and delays end half-way between the times to which the clock is set: calls may take their time.
STEP = 100  # seconds
DAY = 86_400_000
LEASES = [50_000, 150_000, 1_250_000]  # ms
DELAYS = [0, 50_000, 350_000]
ITEMS = [md5(b"%d" % number) for number in range(12)]
HOLDERS = ["01" * 8, "0a" + "ff" * 7, "ff" * 8]
KEPT = [b"", b"an item", b"k" * 1024, b"l" * 1025, b"m" * 70_000]

TIMED = {"retention": "ring", "slices": 3, "period": "1d"}
RETENTIONS = {
    "forever": {},
    "growing": {"retention": "growing", "capacity": 12},
    "ring": TIMED | {"write": "newest", "expire_after": "first-seen"},
    "ring, last seen": TIMED | {"write": "newest", "expire_after": "last-seen"},
    "ring, all written": TIMED | {"write": "all", "expire_after": "first-seen"},
    "rolling": TIMED | {"retention": "rolling", "slices": 2, "expire_after": "first-seen"},
    "rolling, last seen": TIMED | {"retention": "rolling", "slices": 2, "expire_after": "last-seen"},
}
GEOMETRIES = [("blocked", 8, 1), ("blocked", 12, 3), ("blocked", 16, 40), ("classic", 7, 60), ("counting", 3, 30)]
WITH_A_MODULE = ["forever", "growing", "ring"]

some = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=6)
holdings = st.builds(Holding, st.sampled_from(HOLDERS), st.sampled_from(LEASES))
perhaps_nobodys = st.one_of(holdings, holdings, st.just(NO_HOLDER))
encodings = st.booleans()


class Machine(RuleBasedStateMachine):
    """A shard, and the model of it. ``to_fetch`` are the items that were claimed and must not be lost."""

    def __init__(self, client, clock: Clock, layout: str) -> None:
        super().__init__()
        self.client, self.clock, self.layout = client, clock, layout
        self.ahead = self.calls = 0
        self.to_fetch: set[bytes] = set()
        self.final: set[bytes] = set()
        self.last: tuple[str, Holding, list[bytes], Callable[[], calls.Call], list] | None = None
        self.set_clock()

    def set_clock(self):
        """Set the server's clock. Valkey answers TIME from a time that it may have read shortly before."""
        self.clock.ahead(self.ahead)
        servers.wait_until(lambda: abs(self.client.time()[0] - time.time() - self.ahead) < STEP / 4, "another time")

    @initialize(made=st.sampled_from(GEOMETRIES), retention=st.sampled_from(sorted(RETENTIONS)))
    def make(self, made, retention):
        if self.layout == REDISBLOOM:
            made, retention = (REDISBLOOM, 14, 200), WITH_A_MODULE[sorted(RETENTIONS).index(retention) % 3]
        more = RETENTIONS["forever" if made[0] == "counting" else retention]
        self.shard = Shard(self.client, geometry(*made, **more))
        self.model = ClaimingShard.of(self.shard.meta())

    @rule(holding=holdings, digests=some, kept=st.sampled_from(KEPT), packed=encodings)
    def claim(self, holding, digests, kept, packed):
        texts = [kept + b"%d" % number if kept else kept for number in range(len(digests))]
        expected = (bytes.fromhex(holding.holder), holding.lease, digests, texts)
        answers = self.ask("claim", holding, digests, lambda: self.model.claim(*expected), kept=texts, packed=packed)
        for digest, answer in zip(digests, answers[: len(digests)], strict=True):
            assert (digest in self.to_fetch) <= (answer <= 0)
            if answer == 0:
                assert digest not in self.final
                self.to_fetch.add(digest)

    @rule(holding=perhaps_nobodys, digests=some, packed=encodings)
    def commit(self, holding, digests, packed):
        expected = (whose(holding), holding.lease, digests)
        answers = self.ask("commit", holding, digests, lambda: self.model.commit(*expected), packed=packed)
        self.became_final(digests, answers)

    @rule(holding=holdings, digests=some, reason=st.sampled_from([b"", b"a\0\n\xff", b"r" * 200]), packed=encodings)
    def reject(self, holding, digests, reason, packed):
        expected = (whose(holding), holding.lease, digests, reason)
        answers = self.ask(
            "commit", holding, digests, lambda: self.model.commit(*expected), packed=packed, reason=reason
        )
        self.became_final(digests, answers)

    @rule(digests=some, packed=encodings, max_age=st.integers(0, 3))
    def insert(self, digests, packed, max_age):
        max_age = max_age if self.model.retention == "ring" else 0
        answers = self.ask(
            "insert", NO_HOLDER, digests, lambda: self.model.insert(digests, max_age), packed=packed, max_age=max_age
        )
        self.became_final(digests, answers, max_age)

    @rule(holding=perhaps_nobodys, digests=some, delay=st.sampled_from(DELAYS), failed=st.booleans(), packed=encodings)
    def release(self, holding, digests, delay, failed, packed):
        delay_holder = f"00{self.calls:014x}"
        expected = (whose(holding), holding.lease, bytes.fromhex(delay_holder), delay, digests)
        how = {"delay_holder": delay_holder, "delay": delay, "failed": failed}
        self.ask(
            "release", holding, digests, lambda: self.model.release(*expected, failed=failed), packed=packed, **how
        )

    @rule(digests=some, delay=st.sampled_from(DELAYS), packed=encodings)
    def retry(self, digests, delay, packed):
        delay_holder = f"00{self.calls:014x}"
        expected = (bytes.fromhex(delay_holder), delay, digests)
        how = {"delay_holder": delay_holder, "delay": delay, "again": True}
        answers = self.ask("release", NO_HOLDER, digests, lambda: self.model.retry(*expected), packed=packed, **how)
        again = {digest for digest, answer in zip(digests, answers, strict=True) if answer == 1}
        self.final -= again
        self.to_fetch |= again

    @rule(holding=holdings, limit=st.sampled_from([1, 2, 3, 100]))
    def reclaim(self, holding, limit):
        self.ask("reclaim", holding, [], lambda: self.model.reclaim(whose(holding), holding.lease, limit), limit=limit)

    @rule(holding=holdings)
    def beat(self, holding):
        self.model.now = self.shard.now()
        assert self.model.beat(whose(holding), holding.lease) == self.shard.beat(holding)
        self.compare()

    @rule(digests=some, packed=encodings, max_age=st.integers(0, 3))
    def contains(self, digests, packed, max_age):
        max_age = max_age if self.model.retention == "ring" else 0
        self.model.now = self.shard.now()
        asked = b"".join(digests) if packed else digests
        assert self.model.contains(digests, max_age) == self.shard.ask("contains", asked, max_age=max_age)

    @rule(digests=some, packed=encodings)
    def forget(self, digests, packed):
        self.ask("forget", NO_HOLDER, digests, lambda: self.model.forget(digests), packed=packed)
        self.to_fetch -= set(digests)
        self.final -= set(digests)

    @precondition(lambda self: self.model.layout == "counting")
    @rule(digests=some, packed=encodings)
    def remove(self, digests, packed):
        self.ask("remove", NO_HOLDER, digests, lambda: self.model.remove(digests), packed=packed)
        self.to_fetch -= set(digests)
        self.final.clear()  # what seemed to be there may have hidden others

    @rule(steps=st.integers(1, 14))
    def time_passes(self, steps):
        self.ahead += steps * STEP
        self.set_clock()

    @precondition(lambda self: self.model.retention != "forever")
    @rule(by=st.sampled_from([1, 1, 2, 4]))
    def turn(self, by):
        """By hand, or, as if it was so long ago that the shard was opened and written to, past periods."""
        config, state, token = self.shard.config, self.shard.state(), f"{self.calls:016x}"
        new, limit = Slice("today", config.units, config.bytes), state.limit or 0
        by, times = 1 if limit else by, {}
        if by > 1:
            now = self.shard.now()
            self.client.hset(KEYS.meta, mapping={"opened": now - (by + 1) * DAY, "written": now - by * DAY})
            times = {"period": DAY, "by": by, "opened": now - DAY}
            call = self.shard.made("insert", ITEMS[:1], self.shard.call_id(10**9, self.calls + 1) + "*")
            with pytest.raises(ResponseError, match="^DUE "):
                self.shard.call(call)
        names = names_after(state, config.retention, config.slices, by)
        names += [each.name for each in state.view.slices if each.name not in names]
        if self.layout == REDISBLOOM:
            times["rate"] = 1e-5
        for step in ("allocate", "turn"):
            self.shard.call(calls.turn(step, KEYS, state, token, new, limit=limit, names=names, **times))
        self.model.allocate(state.epoch)
        self.model.turn(state.epoch, token, limit, by)
        if config.retention == "rolling":  # with two slices the history is the slice that was closed
            state, pieces = self.shard.state(), len(list(self.model.spans()))
            self.shard.call(calls.build("archived", KEYS, state, number=pieces))
            counted = {"data": b"7"} if config.expire_after == "last-seen" else {}
            self.shard.call(calls.build("finish", KEYS, state, number=pieces, oldest=state.epoch - 1, **counted))
            self.model.archived(state.epoch, token, pieces)
            self.model.finish(state.epoch, token, state.epoch - 1, 7)
        if config.retention != "growing":
            self.final.clear()
        self.shard.call(calls.expire(config.uid, KEYS))
        self.calls += 1
        self.shard.refresh()
        self.compare()

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self):
        """The reply was lost. Nothing is done again; a holder has answers about what it still has, and lives on."""
        command, holding, digests, make, first = self.last
        self.model.now = self.shard.now()
        answers = self.shard.call(make())
        if command == "claim":
            count = len(digests)
            assert answers[count:] == self.model.counts(digests, answers[:count])
            for digest, was, answer in zip(digests, first[:count], answers[:count], strict=True):
                assert (answer == 0) == (was == 0 and self.model.leases.get(digest, NO_ENTRY).holder == whose(holding))
                assert answer == -1 or was == 0 or answer > 0
        elif command == "reclaim":
            still = [each for each, *_ in first if self.model.leases.get(each, NO_ENTRY).holder == whose(holding)]
            present = [self.model.leases[each] for each in still]
            values = [(a, b.failures, b.lapses, b.kept) for a, b in zip(still, present, strict=True)]
            assert list(zip(*[iter(answers)] * 4, strict=True)) == values
        elif command in {"insert", "commit"} and 0 not in first:
            assert 0 not in answers
        else:
            assert first == answers
        if whose(holding):
            self.model.beat(whose(holding), holding.lease)
        self.compare()

    def ask(self, command, holding, digests, expected, *, packed=False, **more):
        """Ask the model and the shard; both answer the same, or both refuse."""
        self.calls += 1
        self.model.now = self.shard.now()
        call_id = self.shard.call_id(sequence=self.calls)
        asked = b"".join(digests) if packed else digests
        make = partial(self.shard.made, command, asked, call_id, holding, **more)  # of the live slices of then
        try:
            answers = expected()
        except Refused as refusal:
            self.last = None
            with pytest.raises(ResponseError, match=f"^{refusal} "):
                self.shard.call(make())
        else:
            found = self.shard.call(make())
            if command == "reclaim":
                found = list(zip(*[iter(found)] * 4, strict=True))
            assert answers == found, (answers, found)
            self.last = (command, holding, digests, make, found)
            self.shard.refresh()
            self.compare()
            return answers
        self.compare()
        return [-1] * len(digests)

    def became_final(self, digests, answers, max_age=0):
        """An item becomes final once, until it is forgotten or expires."""
        for digest, answer in zip(digests, answers, strict=True):
            if answer == 0:
                assert digest not in self.final or max_age
                self.final.add(digest)
                self.to_fetch.discard(digest)

    def compare(self):
        leases, holders = leases_of(self.client), holders_of(self.client)
        assert self.model.leases == leases
        assert self.model.dead_letters == dead_letters_of(self.client)
        assert self.model.total == int(self.shard.meta().get("rejected", 0))
        having = {holder for holder, _ in in_flight_of_holder(self.client)}
        assert having <= set(holders)
        for holder in having:  # from here on to the ms, because reclaim takes the earliest first
            assert abs(holders[holder] - self.model.holders[holder]) < STEP * 1000 / 2
        self.model.holders = {holder: holders[holder] for holder in having}
        for number, each in enumerate(self.shard.view.slices if self.layout != REDISBLOOM else ()):
            assert bytes(self.model.slices[number].data) == self.client.getrange(KEYS.slice(each.name), 0, -1)
        assert set(self.model.forgotten) == set(self.client.zrange(KEYS.forgotten, 0, -1))
        assert str(self.model.inserted) == self.shard.meta()["inserted"]
        if self.model.expire_after == "last-seen":
            state = self.shard.state()
            assert (self.model.new, self.model.closed) == (state.new, {each.epoch: each.new for each in state.closed})

    @invariant()
    def nothing_is_lost(self):
        """What was claimed and is not final is in flight, or can be claimed; hands and leases agree."""
        leases = leases_of(self.client)
        assert self.to_fetch <= set(leases)
        assert sorted(in_flight_of_holder(self.client)) == sorted(
            (entry.holder, digest) for digest, entry in leases.items()
        )


NO_ENTRY = ModelEntry(b"", 0, 0, b"")


def whose(holding: Holding) -> bytes | None:
    return None if holding == NO_HOLDER else bytes.fromhex(holding.holder)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [servers.DEFAULT, *servers.FURTHER])
def test_claims(make_server, tmp_path, kind):
    """A few examples."""
    run(make_server, tmp_path, kind, 12, 25)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", servers.KINDS)
def test_claims_at_length(make_server, tmp_path, kind):
    """Many, and longer ones."""
    run(make_server, tmp_path, kind, 150, 50)


@pytest.mark.slow
def test_claims_in_a_module(make_server, tmp_path):
    """Likewise for layout redisbloom."""
    run(make_server, tmp_path, servers.BLOOM, 40, 40, REDISBLOOM)


def run(make_server, tmp_path, kind, examples, steps, layout=""):
    clock = Clock(tmp_path)
    with make_server(kind, environment=clock.environment).client() as client:
        run_state_machine_as_test(
            lambda: Machine(client, clock, layout), settings=settings(max_examples=examples, stateful_step_count=steps)
        )
