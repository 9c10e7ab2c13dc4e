"""Layout redisbloom: calls of any size, with items that come twice, answer what a model of sets answers.

Sizes lie around those at which the scripts go another way. Items are known, fresh, forgotten, in flight, or
of holders that have died, and each come several times in a call.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from redis.exceptions import ResponseError
from support.leases import in_flight_of_holder, leases_of
from support.model import Refused
from support.model_claims import ClaimingShard
from support.shard import KEYS, Shard, geometry, md5

from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.flows.turn import Turn
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.claims import NO_HOLDER, Holding
from urifilter_redis.protocol.keys import FilterKeys

LOOKED_FOR = 32  # items of a call that are all looked for, whatever the first of them are
SIZES = [1, 2, 7, 8, 9, 31, 32, 33, 40, 100, 249, 250, 251, 499, 500]
HOLDERS = [Holding("01" * 8, 600_000), Holding("ff" * 8, 600_000)]
RING = {"retention": "ring", "period": "1d", "write": "newest", "expire_after": "first-seen"}
RETENTIONS = {
    "forever": {},
    "growing": {"retention": "growing", "capacity": 1500},
    **{f"ring of {number}": RING | {"slices": number} for number in (2, 3, 4)},
}
UNITS = 150_000  # of a slice: so many that of the few items here none is seen by chance


class Run:
    """A shard, its model, and dice."""

    def __init__(self, client, retention: str, seed: int, segments: int, *, claims: bool) -> None:
        self.client, self.dice, self.claims = client, random.Random(f"{retention} {seed} {claims}"), claims
        more = RETENTIONS[retention] | {"error_rate": 1e-9, "segments": segments}
        self.shard = Shard(client, geometry(REDISBLOOM, 14, UNITS // segments, **more))
        self.model = ClaimingShard.of(self.shard.meta())
        self.calls = self.items = self.made = 0
        self.known: list[bytes] = []
        self.of_own: list[bytes] = []  # forgotten, or in flight

    def some(self) -> list[bytes]:
        """Return the items of a call: a share is new, a share comes from each of the others, some come again."""
        size = self.dice.choice(SIZES)
        fresh, special = self.dice.choice([(0, 0.1), (0.02, 0), (0.5, 0.2), (0.9, 0.05), (1, 0), (0.97, 0)])
        found = []
        for _ in range(size):
            roll = self.dice.random()
            if found and self.dice.random() < 0.08:
                found.append(self.dice.choice(found))
            elif self.of_own and roll > 1 - special:
                found.append(self.dice.choice(self.of_own))
            elif not self.known or roll < fresh:
                self.made += 1
                found.append(md5(b"%d" % self.made))
            else:
                found.append(self.dice.choice(self.known))
        order = self.dice.random()
        if order < 0.3:  # those that are new stand in front
            found.sort(key=self.known.__contains__)
        elif order < 0.7:  # as clients send them
            found.sort(key=lambda digest: digest[:13:-1])
        self.known = [*self.known, *dict.fromkeys(found)][-3000:]
        return found

    def step(self) -> None:
        commands = [self.insert] * 8 + [self.contains] * 2 + [self.forget] * 2
        if self.model.retention == "ring":
            commands += [self.turn]
        if self.claims:
            commands += [self.claim] * 3 + [self.commit] * 2 + [self.reject, self.release, self.release_all, self.die]
        self.dice.choice(commands)()
        self.compare()

    def insert(self):
        digests, age = self.some(), self.max_age()
        self.ask("insert", NO_HOLDER, digests, lambda: self.model.insert(digests, age), max_age=age)

    def contains(self):
        digests, age = self.some(), self.max_age()
        self.model.now = self.shard.now()
        assert self.shard.ask("contains", digests, max_age=age) == self.model.contains(digests, age)

    def forget(self):
        digests = self.some()[:40]
        self.ask("forget", NO_HOLDER, digests, lambda: self.model.forget(digests))
        self.of_own = [*self.of_own, *digests][-200:]

    def claim(self):
        holding, digests = self.dice.choice(HOLDERS), self.some()
        kept = [b"%d" % number for number in range(len(digests))]
        expected = (bytes.fromhex(holding.holder), holding.lease, digests, kept)
        self.ask("claim", holding, digests, lambda: self.model.claim(*expected), kept=kept)
        self.of_own = [*self.of_own, *digests][-200:]

    def commit(self):
        holding, digests = self.dice.choice([*HOLDERS, NO_HOLDER]), self.some()
        whose = None if holding == NO_HOLDER else bytes.fromhex(holding.holder)
        self.ask("commit", holding, digests, lambda: self.model.commit(whose, holding.lease, digests))

    def reject(self):
        holding, digests = self.dice.choice(HOLDERS), self.some()
        expected = (bytes.fromhex(holding.holder), holding.lease, digests, b"404")
        self.ask("commit", holding, digests, lambda: self.model.commit(*expected), reason=b"404")

    def release(self):
        self._release(self.dice.choice(HOLDERS), self.some(), self.dice.choice([0, 600_000]))

    def release_all(self):
        self._release(NO_HOLDER, self.some(), 0)

    def _release(self, holding, digests, delay):
        whose = None if holding == NO_HOLDER else bytes.fromhex(holding.holder)
        delay_holder = f"00{self.calls:014x}"
        expected = (whose, holding.lease, bytes.fromhex(delay_holder), delay, digests)
        how = {"delay_holder": delay_holder, "delay": delay, "failed": False}
        self.ask("release", holding, digests, lambda: self.model.release(*expected, failed=False), **how)

    def die(self):
        holder = bytes.fromhex(self.dice.choice(HOLDERS).holder)
        self.client.zadd(KEYS.of_claims[2], {holder: 1}, xx=True)
        self.model.holders[holder] = 1

    def turn(self):
        config, state, token = self.shard.config, self.shard.state(), f"{self.calls:016x}"
        new, limit = config.today, state.limit or 0
        if config.retention == "growing" and new.segments > 1:  # as a filter grows
            new = replace(new, segments=new.segments * 2 ** min(state.epoch + 1, 2))
        session = SimpleNamespace(config=config, keys=FilterKeys("urifilter", "model"))
        for call in Turn(0, state, token, new, limit).calls(session):
            self.shard.call(call)
        self.model.allocate(state.epoch)
        self.model.turn(state.epoch, token, limit)
        self.calls += 1
        self.shard.refresh()

    def max_age(self) -> int:
        return self.dice.choice([0, 0, 1, 2, 3]) if self.model.retention == "ring" else 0

    def ask(self, command, holding, digests, expected, **more):
        """Ask both, perhaps twice as if the first reply was lost; a slice that is full is followed by the next."""
        self.calls += 1
        self.items += len(digests)
        self.model.now = self.shard.now()
        call_id = self.shard.call_id(sequence=self.calls)
        made = self.shard.made(command, digests, call_id, holding, **more)
        found = self.answers(made)
        if found is None:
            if not self.may_be_full_early(digests):
                with pytest.raises(Refused):
                    expected()
            self.turn()
            return
        answers = expected()
        assert found == answers, (command, len(digests))
        if command != "claim" and self.dice.random() < 0.3:
            again = self.shard.call(made)
            assert again == found or (found.count(0) == again.count(0) == 0 and command in {"insert", "commit"})
        self.shard.refresh()

    def answers(self, made: calls.Call):
        """Return the answers; None: today is full."""
        try:
            return self.shard.call(made)
        except ResponseError as error:
            if not str(error).startswith("FULL "):
                raise
            return None

    def may_be_full_early(self, digests) -> bool:
        """Of a filter with one slice some items are not looked for, and count as new."""
        room = self.model.limit - self.model.inserted
        return len(self.model.slices) == 1 and len(digests) > LOOKED_FOR and len(set(digests)) > room

    def compare(self):
        meta = self.shard.meta()
        assert str(self.model.inserted) == meta["inserted"]
        if self.model.retention != "ring":  # those that have expired go some at a time
            assert set(self.model.forgotten) == set(self.client.zrange(KEYS.forgotten, 0, -1))
        if self.claims:
            leases = leases_of(self.client)
            assert leases == self.model.leases
            assert sorted(in_flight_of_holder(self.client)) == sorted(
                (each.holder, digest) for digest, each in leases.items()
            )


def run(client, retention: str, seeds: range, segments: int, *, claims: bool) -> None:
    for seed in seeds:
        running = Run(client, retention, seed, segments, claims=claims)
        for _ in range(100):
            running.step()
        assert running.items > 2000


@pytest.mark.parametrize(("claims", "segments"), [(False, 1), (True, 6)], ids=["plain-1", "claims-6"])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_batches(bloom, retention, claims, segments):
    """Each answer, the count of items, and what is in flight are those of the model."""
    with bloom.client() as client:
        run(client, retention, range(1), segments, claims=claims)


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 6])
@pytest.mark.parametrize("claims", [False, True], ids=["plain", "claims"])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_batches_at_length(bloom, retention, claims, segments):
    """Likewise, in more runs."""
    with bloom.client() as client:
        run(client, retention, range(1, 8), segments, claims=claims)
