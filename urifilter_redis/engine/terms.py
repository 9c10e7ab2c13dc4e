"""The terms of a batch about claims: its holder, and what else the scripts of claims take beside items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import shards_of, split
from urifilter_redis.protocol import claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.batch import Batch, OpenCall
    from urifilter_redis.engine.hand import Claim, Hand
    from urifilter_redis.engine.retry import Request
    from urifilter_redis.engine.session import Session
    from urifilter_redis.protocol.calls import Call
    from urifilter_redis.protocol.claims import Holding

__all__ = ["COMMANDS", "Terms"]

#: The commands of claims that are about items.
COMMANDS = ("claim", "commit", "release")

#: The answer of ``claim`` for an item in somebody's hands.
IN_HAND = -1


@dataclass(slots=True)
class Terms:
    """The terms of a batch of ``claim``, ``commit`` or ``release``.

    Attributes:
        holding: the holder and its lease.
        hand: the hand that notes the answers; None: the caller keeps no books.
        claimed: claim: the claim of each item of the batch.
        kept: claim: what the filter keeps of each item of the batch.
        delay: release: ms before the items are offered again.
        failed: release: whether a failure of each item is counted.
        nobody: release: the nobody that has the items until then.
    """

    holding: Holding
    hand: Hand | None = None
    claimed: Sequence[Claim] = ()
    kept: Sequence[bytes] = ()
    delay: int = 0
    failed: bool = False
    nobody: str = field(default_factory=claims.new_nobody)

    def call(self, session: Session, batch: Batch, call: OpenCall, call_id: str) -> Call:
        """Build the call of a script for some items of the batch."""
        config, keys, view = session.config, session.keys.shard(call.shard), session.view(call.shard)
        if batch.command == "claim":
            kept = [self.kept[position] for position in call.positions]
            return claims.claim(config, keys, view, call_id, call.packed, kept, self.holding)
        if batch.command == "commit":
            return claims.commit(config, keys, view, call_id, call.packed, self.holding)
        more = {"nobody": self.nobody, "delay": self.delay, "failed": self.failed}
        return claims.release(config.uid, keys, call_id, call.packed, self.holding, **more)  # type: ignore[arg-type]

    def begin(self, window: Sequence[OpenCall]) -> None:
        """Note calls before they are sent."""
        if self.hand is not None:
            for call in window:
                self.hand.begin(call.shard, call)

    def end(self, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request]) -> None:
        """Note the answers of calls; those that were not answered may still run."""
        if self.hand is None:
            return
        for call, request in zip(window, requests, strict=True):
            if request.answered:
                self._note(self.hand, batch, call)
            elif batch.command == "claim" and request.in_doubt:
                self.hand.doubt(call.shard, split(call.packed), in_doubt=True)
            self.hand.end(call.shard, call, answered=request.answered, in_doubt=request.in_doubt)

    def leave(self, batch: Batch, known: Sequence[int | None], shards: int) -> None:
        """Leave the items that an interrupted claim has, or may have: the next beats give them back.

        Args:
            batch: the batch of the claim.
            known: the answers that the caller had before.
            shards: the filter's number of shards.
        """
        if self.hand is None:
            return
        self.hand.abandon()
        for call in batch.open:
            if call.call_id is not None:
                self.hand.doubt(call.shard, split(call.packed), in_doubt=call.in_doubt)
        digests = batch.digests
        for position, (shard, digest) in enumerate(zip(shards_of(digests, shards), digests, strict=True)):
            if batch.answers[position] == 0 and known[position] != 0:
                batch.answers[position] = IN_HAND  # for a retry, which must not offer it a second time
                self.hand.leave(shard, digest)

    def _note(self, hand: Hand, batch: Batch, call: OpenCall) -> None:
        released = False
        for digest, position in zip(split(call.packed), call.positions, strict=True):
            answer = batch.answers[position]
            if batch.command != "claim":
                hand.drop(call.shard, digest)
                released = released or (batch.command == "release" and answer == 1)
            elif answer == 0:
                hand.take(call.shard, digest, self.claimed[position])
        if released:
            hand.note_released(call.shard, self.delay / 1000)
