"""The sections of a run: each can be measured alone, and stands in the results as soon as it is done.

A section is a module with a ``TITLE``, a text ``ABOUT`` it, ``measure``, ``tables``, which turns its results into the
lines of a page, and ``QUOTED``, the titles of those tables that the docs quote. One that takes long has ``parts``,
which divides its settings, and ``merged``, which puts the results of parts together. ``NAMES`` has them in the order
of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from bench.kbest import Rule
from bench.streams import WARM

#: A row of results, as it stands in results.json.
Row = Mapping[str, Any]

NAMES = ("calls", "clients", "script", "drivers", "retentions", "segments", "persistence", "links", "sizes")

#: The mixes of those sections that do not ask the command line for them.
MIXES = ("new", "seen")

#: Says how far a section is.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for.

    Attributes:
        quick: whether the run is to take a minute.
        rule: when tries agree.
        peers: the names of the peers.
        mixes: names of ``bench.streams.MIXES``.
        batches: the items of one call, with the items of one try.
        clients: numbers of processes.
        sizes: numbers of items in a filter.
        capacity: of filters in sections that do not say another one.
        error_rate: of all filters.
        seed: draws the orders and the URIs.
        server: a name of ``bench.servers.NAMES``.

    Raises:
        ValueError: the filters cannot hold all items.
    """

    quick: bool
    rule: Rule
    peers: tuple[str, ...]
    mixes: tuple[str, ...]
    batches: Mapping[int, int]
    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    capacity: int = 1_000_000
    error_rate: float = 1e-4
    seed: int = 1
    server: str = "redis"

    def __post_init__(self) -> None:
        inserting = [mix for mix in self.mixes if mix != "seen"]
        most = WARM + len(inserting) * self.rule.tries * sum(self.batches.values())
        if most > self.capacity:
            raise ValueError(f"filters for {self.capacity:,} items do not hold the {most:,} of this plan")

    @property
    def kinds(self) -> list[tuple[str, int, int]]:
        """Each mix with each batch."""
        return [(mix, *batch) for mix in self.mixes for batch in self.batches.items()]


class Section(Protocol):
    """A module of this package.

    Attributes:
        TITLE: its heading.
        ABOUT: how it was measured, in a few sentences.
        QUOTED: the titles of those of its tables that the docs quote, which stand in RESULTS.md.
    """

    TITLE: str
    ABOUT: str
    QUOTED: Sequence[str]

    def measure(self, settings: Settings, say: Say) -> Row:
        """Measure.

        Returns:
            settings: what was measured.
            versions: of the server and the peers.
            cells: figures of calls (``bench.measuring.cell``).
            filters: figures of whole filters.
            left_out: the reason of each peer that is missing.

        Raises:
            ValueError: the settings cannot be measured.
            bench.servers.Missing: a server is not installed.
        """

    def tables(self, found: Row) -> Iterator[str]:
        """Yield the lines of its tables."""


def section(name: str) -> Section:
    """Return a section of ``NAMES``."""
    return cast("Section", import_module(f"bench.sections.{name}"))
