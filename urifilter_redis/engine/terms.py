"""The terms of a batch about claims: its holder, and what else the scripts of claims take beside items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
            self.hand.end(call.shard, call, in_doubt=request.in_doubt)

    def _note(self, hand: Hand, batch: Batch, call: OpenCall) -> None:
        for number, position in enumerate(call.positions):
            digest = call.packed[16 * number : 16 * number + 16]
            answer = batch.answers[position]
            if batch.command != "claim":
                if batch.command == "commit" or answer:
                    hand.drop(call.shard, digest)
            elif answer == 0:
                hand.take(call.shard, digest, self.claimed[position])
