"""Every retention, with all its slices full: the server's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.measuring import ask, cut
from bench.peers.ours import Ours
from bench.sections import MIXES, Row, Say, Settings
from bench.sections.script import server_columns
from bench.stand import stand
from bench.streams import Uris
from bench.tables import grouped, table

TITLE = "Retentions"
ABOUT = (
    "One client, 500 items a call, on filters that hold their capacity: each live slice of a window has its share."
    " The items of seen lie in all slices alike. The ratio is of the server's time, to forever."
)
QUOTED = ()

BATCH, ITEMS = 500, 5000
CAPACITY, QUICK_CAPACITY = 1_000_000, 40_000

#: A filter that grows begins with so many times fewer items.
GROWTH = 8

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "forever": {},
    "growing": {"retention": "growing"},
    "rolling": {"retention": "rolling", "slices": 30, "period": "1d"},
    "ring of 7": {"retention": "ring", "slices": 7, "period": "1d"},
    "ring of 7, writes all": {"retention": "ring", "slices": 7, "period": "1d", "write": "all"},
}


class Retention(Ours):
    """A filter with a retention."""

    compared_as = "this library, layout blocked"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.settings = name, SETTINGS[name]

    def open(self, capacity: int, error_rate: float, server: str) -> None:
        """Make the filter, empty."""
        super().open(capacity // GROWTH if self.name == "growing" else capacity, error_rate, server)

    def fill_up(self, items: int) -> None:
        """Put items in, of each live slice as many."""
        slices = self.news.config.slices or 1
        for number in range(slices):
            if number:
                self.news.rotate()
            uris = Uris(range(items * number // slices, items * (number + 1) // slices))
            ask(self.insert, cut(uris, self.fill))


def measure(settings: Settings, say: Say) -> Row:
    """Measure all retentions."""
    capacity = QUICK_CAPACITY if settings.quick else CAPACITY
    filters = map(Retention, SETTINGS)
    with stand(settings.server, filters, capacity, settings.error_rate, lambda each: each.fill_up(capacity)) as here:
        kinds = [(mix, BATCH, ITEMS) for mix in MIXES]
        cells = here.race(kinds, settings, say, known=capacity, figure="server")
        made = {"capacity": capacity, "rule": asdict(settings.rule), "batch": BATCH, "items": ITEMS}
        return here.found(made, cells, [{"peer": name, "memory": each.memory()} for name, each in here.peers.items()])


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix."""
    memory = {row["peer"]: row["memory"] for row in found["filters"]}
    for (mix,), cells in grouped(found["cells"], "mix").items():
        yield f"\n### {mix}\n"
        columns = server_columns(cells[0]["server"]["value"], "retention")
        yield from table([*columns, ("memory, MB", lambda cell: f"{memory[cell['peer']] / 1e6:.2f}")], cells)
