"""The terms of a batch about claims: its holder, and what else the scripts of claims take beside items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import split
from urifilter_redis.protocol import claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.holdings import Claim, Holdings
    from urifilter_redis.protocol.calls import Call
    from urifilter_redis.protocol.claims import Holding
    from urifilter_redis.protocol.config import Config
    from urifilter_redis.protocol.keys import ShardKeys
    from urifilter_redis.protocol.meta import View

__all__ = ["COMMANDS", "ClaimOptions"]

#: The commands of claims that are about items.
COMMANDS = ("claim", "commit", "release")


@dataclass(slots=True)
class ClaimOptions:
    """The terms of a batch of ``claim``, ``commit`` or ``release``.

    Attributes:
        holding: the holder and its lease.
        holdings: the hand that notes the answers; None: the caller keeps no books.
        claimed: claim: the claim of each item of the batch.
        kept: claim: what the filter keeps of each item of the batch.
        delay: release: ms before the items are offered again.
        failed: release: whether a failure of each item is counted.
        delay_holder: release: the nobody that has the items until then.
    """

    holding: Holding
    holdings: Holdings | None = None
    claimed: Sequence[Claim] = ()
    kept: Sequence[bytes] = ()
    delay: int = 0
    failed: bool = False
    delay_holder: str = field(default_factory=claims.new_delay_holder)

    def call(  # noqa: PLR0913, PLR0917 - what the scripts take
        self,
        command: str,
        config: Config,
        keys: ShardKeys,
        view: View,
        call_id: str,
        packed: bytes,
        positions: Sequence[int],
    ) -> Call:
        """Build the call of a script for the items of a batch at some positions, all of one shard."""
        if command == "claim":
            kept = [self.kept[position] for position in positions]
            return claims.claim(config, keys, view, call_id, packed, kept, self.holding)
        if command == "commit":
            return claims.commit(config, keys, view, call_id, packed, self.holding)
        return claims.release(
            config.uid,
            keys,
            call_id,
            packed,
            self.holding,
            delay_holder=self.delay_holder,
            delay=self.delay,
            failed=self.failed,
        )

    def note(self, command: str, shard: int, packed: bytes, positions: Sequence[int], answers: Sequence[int]) -> None:
        """Let the hand note the answers of a call for the items of a batch at some positions."""
        if self.holdings is None:
            return
        released = False
        for digest, position, answer in zip(split(packed), positions, answers, strict=True):
            if command != "claim":
                self.holdings.drop(shard, digest)
                released = released or (command == "release" and answer == 1)
            elif answer == 0:
                self.holdings.take(shard, digest, self.claimed[position])
        if released:
            self.holdings.note_released(shard, self.delay / 1000)

    def doubt(self, command: str, shard: int, packed: bytes) -> None:
        """Note a call that has no answer, and may still run."""
        if self.holdings is not None and command == "claim":
            self.holdings.doubt(shard, split(packed), in_doubt=True)
