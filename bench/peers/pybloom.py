"""The package pybloom-live, in the process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import SINGLE
from bench.servers import Missing


class Pybloom:
    """Its ``BloomFilter``, which nobody else sees."""

    name = "pybloom-live"
    compared_as = "pybloom-live's BloomFilter in the process, not shared: add of one item a call"
    batches = SINGLE

    def __init__(self) -> None:
        self._bloom: Any = None

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - the filter is in the process
        """Make the filter, empty."""
        try:
            from pybloom_live import BloomFilter
        except ImportError:
            raise Missing("pybloom-live is missing: pip install pybloom-live") from None
        self._bloom = BloomFilter(capacity, error_rate)

    def version(self) -> str:
        """Return the package's version."""
        return f"pybloom-live {version('pybloom-live')}"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by ``add``, which says whether an item was there."""
        return sum(not self._bloom.add(item) for item in batch)

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``in``."""
        return sum(item in self._bloom for item in batch)

    def memory(self) -> int | None:
        """Return the bytes of its bits."""
        return int(self._bloom.num_bits) // 8

    def close(self) -> None:
        """Drop the filter."""
        self._bloom = None
