"""Filters of packages in the process: items are asked about one by one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bench.peers import SINGLE, Peer
from bench.servers import Missing


class InProcess(Peer):
    """A filter that nobody else sees.

    Attributes:
        made_by: the module and the name of the package's filter.
        bits: the name of that attribute of it which has the number of its bits.
    """

    batches = SINGLE
    made_by = ("", "")
    bits = ""

    _bloom: Any = None

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - the filter is in the process
        """Make the filter, empty."""
        module, name = self.made_by
        try:
            self._bloom = getattr(import_module(module), name)(capacity, error_rate)
        except ImportError:
            raise Missing(f"{self.package} is missing: pip install {self.package}") from None

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``in``."""
        return sum(item in self._bloom for item in batch)

    def memory(self) -> int | None:
        """Return the bytes of its bits."""
        return int(getattr(self._bloom, self.bits)) // 8

    def close(self) -> None:
        """Drop the filter."""
        self._bloom = None


class Pybloom(InProcess):
    """Its ``BloomFilter``."""

    name = package = "pybloom-live"
    compared_as = "pybloom-live's BloomFilter in the process, not shared: add of one item a call"
    made_by = ("pybloom_live", "BloomFilter")
    bits = "num_bits"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by ``add``, which says whether an item was there."""
        return sum(not self._bloom.add(item) for item in batch)


class Rbloom(InProcess):
    """Its ``Bloom``."""

    name = package = "rbloom"
    compared_as = "rbloom's Bloom in the process, not shared, with Python's hash: in, then add of one item a call"
    made_by = ("rbloom", "Bloom")
    bits = "size_in_bits"

    def insert(self, batch: Sequence[str]) -> int:
        """Insert the items that are not in it; ``add`` does not say whether an item was there."""
        bloom, new = self._bloom, 0
        for item in batch:
            if item not in bloom:
                bloom.add(item)
                new += 1
        return new
