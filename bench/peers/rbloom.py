"""The package rbloom, in the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.in_process import InProcess


class Rbloom(InProcess):
    """Its ``Bloom``."""

    name = "rbloom"
    compared_as = "rbloom's Bloom in the process, not shared, with Python's hash: in, then add of one item a call"

    def make(self, capacity: int, error_rate: float) -> Any:
        """Return the package's filter."""
        from rbloom import Bloom

        return Bloom(capacity, error_rate)

    def insert(self, batch: Sequence[str]) -> int:
        """Insert the items that are not in it; ``add`` does not say whether an item was there."""
        bloom, new = self._bloom, 0
        for item in batch:
            if item not in bloom:
                bloom.add(item)
                new += 1
        return new

    def memory(self) -> int | None:
        """Return the bytes of its bits."""
        return int(self._bloom.size_in_bits) // 8
