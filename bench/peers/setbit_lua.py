"""A Lua script of k SETBITs an item: the filter that one would write first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers.setbits import Setbits, digests_of

SCRIPT = (Path(__file__).parents[1] / "setbit.lua").read_text()
ASKS = SCRIPT.replace("'SETBIT', KEYS[1], x, 1", "'GETBIT', KEYS[1], x")


class SetbitLua(Setbits):
    """``setbit.lua``, called by EVALSHA."""

    name = "SETBIT in Lua"
    compared_as = "a Lua script of k SETBITs an item, without any checks, called once with the digests of a batch"
    keys = "bench-setbit-lua"
    fill = 1000  # ten milliseconds a call: with more, nobody else would get a word in

    def prepare(self, capacity: int, error_rate: float) -> None:
        """Compute the sizes and load the scripts."""
        super().prepare(capacity, error_rate)
        self._insert, self._seen = self.client.script_load(SCRIPT), self.client.script_load(ASKS)

    def _ask(self, script: str, batch: Sequence[str]) -> list[int]:
        packed = b"".join(digests_of(batch))
        return list(self.client.evalsha(script, 1, self.keys, packed, str(self.bits), str(self.k)))

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by the script."""
        return self._ask(self._insert, batch).count(0)

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by the same script, with GETBIT in the place of SETBIT."""
        return self._ask(self._seen, batch).count(1)
