"""The package rbloom, in the process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import SINGLE
from bench.servers import Missing


class Rbloom:
    """Its ``Bloom``, which nobody else sees."""

    name = "rbloom"
    compared_as = "rbloom's Bloom in the process, not shared, with Python's hash: in, then add of one item a call"
    batches = SINGLE

    def __init__(self) -> None:
        self._bloom: Any = None

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - the filter is in the process
        """Make the filter, empty."""
        try:
            from rbloom import Bloom
        except ImportError:
            raise Missing("rbloom is missing: pip install rbloom") from None
        self._bloom = Bloom(capacity, error_rate)

    def version(self) -> str:
        """Return the package's version."""
        return f"rbloom {version('rbloom')}"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert the items that are not in it; ``add`` does not say whether an item was there."""
        bloom, new = self._bloom, 0
        for item in batch:
            if item not in bloom:
                bloom.add(item)
                new += 1
        return new

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``in``."""
        return sum(item in self._bloom for item in batch)

    def memory(self) -> int | None:
        """Return the bytes of its bits."""
        return int(self._bloom.size_in_bits) // 8

    def close(self) -> None:
        """Drop the filter."""
        self._bloom = None
