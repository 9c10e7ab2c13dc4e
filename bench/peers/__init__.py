"""The peers: filters side by side, each as its users drive it.

A file has those of a kind, in the order of the tables; ``ALL`` names them. A peer says in ``compared_as`` how it is
driven, and ``batches`` bounds the items of one of its calls: a peer whose users ask for one item a time is not measured
with more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version

#: The items that a peer takes in one call.
MANY = range(1, 1_000_001)

#: One item a call.
SINGLE = MANY[:1]

#: Programs read whole files: a run for a few lines is nobody's way.
FILES = MANY[4999:]


class Peer(ABC):
    """A filter that is measured.

    Attributes:
        name: its name in options and tables.
        compared_as: how it is driven, in a sentence.
        package: the name of the package that answers, if it is one of Python.
        batches: how many items one call takes.
        fill: items of a call while the filter is filled; a peer of single items makes so many calls.
    """

    name = ""
    compared_as = ""
    package = ""
    batches = MANY
    fill = 5000

    def __init__(self) -> None:
        self._closing = ExitStack()

    @abstractmethod
    def open(self, capacity: int, error_rate: float, server: str) -> None:
        """Make the filter, empty.

        Args:
            capacity: the number of items that it has to hold.
            error_rate: the probability, at capacity, that an unseen item is answered "seen".
            server: the URL of a Redis; a peer in the process needs none.

        Raises:
            bench.servers.Missing: a package or a module is not installed.
        """

    def version(self) -> str:
        """Return the name and the version of the package, the module or the program that answers."""
        return f"{self.package} {version(self.package)}"

    @abstractmethod
    def insert(self, batch: Sequence[str]) -> int:
        """Insert items, and return how many were new. A batch has at most ``batches[-1]`` items."""

    @abstractmethod
    def seen(self, batch: Sequence[str]) -> int:
        """Return how many items were seen, and insert none."""

    @abstractmethod
    def memory(self) -> int | None:
        """Return the bytes that the filter takes where it is kept; None if that cannot be told."""

    def close(self) -> None:
        """Give up connections and files; without effect on a peer that is not open."""
        self._closing.close()


def _named() -> dict[str, type[Peer]]:
    """Return the classes that have a name, file after file."""
    from bench.peers import in_process, ours, programs, redisbloom, setbits, sets

    files = (ours, redisbloom, setbits, sets, in_process, programs)
    classes = (each for file in files for each in vars(file).values() if isinstance(each, type))
    return {each.name: each for each in classes if issubclass(each, Peer) and each.name}


#: The peers by name; the first one is the reference of ratios.
ALL = _named()


def chosen(names: Iterable[str]) -> list[Peer]:
    """Return peers of ``ALL``."""
    return [ALL[name]() for name in names]
