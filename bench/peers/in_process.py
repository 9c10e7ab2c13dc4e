"""What the peers have in common that are filters of a package in the process: items are asked about one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import FILL, SINGLE
from bench.servers import Missing


class InProcess(ABC):
    """A filter that nobody else sees."""

    name = ""
    compared_as = ""
    batches = SINGLE
    fill = FILL

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

    @abstractmethod
    def insert(self, batch: Sequence[str]) -> int:
        """Insert items, and return how many were new."""

    def seen(self, batch: Sequence[str]) -> int:
        """Ask by ``in``."""
        return sum(item in self._bloom for item in batch)

    @abstractmethod
    def memory(self) -> int | None:
        """Return the bytes of its bits."""

    def close(self) -> None:
        """Drop the filter."""
        self._bloom = None
