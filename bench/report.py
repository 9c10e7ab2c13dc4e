"""Writes a run as RESULTS.json and RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers import ALL

if TYPE_CHECKING:
    from bench.kbest import Best
    from bench.measuring import Cell, Plan

FIGURES = "items/s | ratio | spread | server µs | client µs | bytes in | bytes out"

#: Stands behind a figure whose fastest tries do not agree.
UNSURE = "?"


@dataclass(frozen=True, slots=True)
class Results:
    """A run.

    Attributes:
        machine: where it ran (``bench.machine.machine``).
        versions: of the server and the peers.
        plan: what was measured.
        cells: the figures.
        memory: bytes of each peer's filter after the run; None where that cannot be told.
        left_out: the reason of each peer that is missing.
    """

    machine: Mapping[str, object]
    versions: Mapping[str, str]
    plan: Plan
    cells: Sequence[Cell]
    memory: Mapping[str, int | None]
    left_out: Mapping[str, str]

    def to_json(self) -> str:
        """Return all of it as JSON."""
        made = asdict(self) | {"cells": [cell.to_json() for cell in self.cells]}
        return json.dumps(made, indent=1, allow_nan=False, default=dict)

    def write(self, folder: Path) -> None:
        """Write both files into a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "RESULTS.json").write_text(f"{self.to_json()}\n")
        (folder / "RESULTS.md").write_text(f"{self.to_markdown()}\n")

    def to_markdown(self) -> str:
        """Return the tables."""
        return "\n".join([*self._heading(), *self._tables(), *self._peers()])

    def _heading(self) -> Iterator[str]:
        rule, where = self.plan.rule, self.machine
        yield "# Results of the bench\n"
        yield f"{where['processor']}, {where['processors']} processors, {where['system']}, Python {where['python']},"
        yield f"{self.versions['server']}; {where['time']}, load {where['load']:.2f} at the beginning. Filters for"
        yield f"{self.plan.capacity:,} items at {self.plan.error_rate:g}, one client, seed {self.plan.seed}.\n"
        yield f"Each figure is the best of at most {rule.tries} tries. The {rule.k} fastest should agree within"
        yield f"{rule.tolerance:.0%}: the spread is between those. If they do not, {UNSURE} stands behind the figure."
        yield "The peers took turns in random order. The ratio is of items a second, to the first row. Times and bytes"
        yield "are for an item: of the server's commands, of the client's processor, on the wire."

    def _tables(self) -> Iterator[str]:
        for mix in self.plan.mixes:
            for batch in self.plan.batches:
                cells = [cell for cell in self.cells if (cell.mix, cell.batch) == (mix, batch)]
                if cells:
                    yield f"\n## {mix}, {batch:,} a call\n"
                    yield f"| peer | {FIGURES} |\n| --- |{' ---: |' * len(FIGURES.split('|'))}"
                    yield from (_row(cell, cells[0]) for cell in cells)

    def _peers(self) -> Iterator[str]:
        yield "\n## Peers\n"
        yield "| peer | version | memory, MB | false positives | compared as |\n| --- | --- | ---: | ---: | --- |"
        for name, memory in self.memory.items():
            wrong, new = (
                sum(getattr(cell, field) for cell in self.cells if cell.peer == name)
                for field in ("false_positives", "new_items")
            )
            used = "–" if memory is None else f"{memory / 1e6:.2f}"
            yield f"| {name} | {self.versions[name]} | {used} | {wrong:,} of {new:,} | {ALL[name]().compared_as} |"
        for name, reason in self.left_out.items():
            yield f"\n{name} is left out: {reason}."


def _row(cell: Cell, reference: Cell) -> str:
    ratio = cell.items_a_second / reference.items_a_second
    rate = f"{cell.items_a_second:,.0f}{'' if cell.wall.converged else UNSURE}"
    times = f"{_figure(cell.server)} | {_figure(cell.client)}"
    return (
        f"| {cell.peer} | {rate} | {ratio:.2f} | {cell.wall.spread:.1%} | {times} | {cell.received:.1f} |"
        f" {cell.sent:.1f} |"
    )


def _figure(best: Best) -> str:
    return f"{best.value:.2f}{'' if best.converged else UNSURE}"
