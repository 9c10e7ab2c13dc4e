"""Filters of packages in the process: items are asked about one by one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import SINGLE, Peer
from bench.servers import Missing


class InProcess(Peer):
    """A filter that nobody else sees."""

    batches = SINGLE

    def __init__(self) -> None:
        self._bloom: Any = None

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - the filter is in the process
        """Make the filter, empty."""
        try:
            self._bloom = self.make(capacity, error_rate)
        except ImportError:
            raise Missing(f"{self.name} is missing: pip install {self.name}") from None

    @abstractmethod
    def make(self, capacity: int, error_rate: float) -> Any:
        """Return the package's filter; ImportError: the package is missing."""

    def version(self) -> str:
        """Return the package's version."""
        return f"{self.name} {version(self.name)}"

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``in``."""
        return sum(item in self._bloom for item in batch)

    def close(self) -> None:
        """Drop the filter."""
        self._bloom = None


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
