"""The package pybloom-live, in the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.in_process import InProcess


class Pybloom(InProcess):
    """Its ``BloomFilter``."""

    name = "pybloom-live"
    compared_as = "pybloom-live's BloomFilter in the process, not shared: add of one item a call"

    def make(self, capacity: int, error_rate: float) -> Any:
        """Return the package's filter."""
        from pybloom_live import BloomFilter

        return BloomFilter(capacity, error_rate)

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by ``add``, which says whether an item was there."""
        return sum(not self._bloom.add(item) for item in batch)

    def memory(self) -> int | None:
        """Return the bytes of its bits."""
        return int(self._bloom.num_bits) // 8
