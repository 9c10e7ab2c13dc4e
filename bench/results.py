"""Keeps the results of sections, each as soon as it is done, and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import OVERVIEW, figures, overview
from bench.plots import AVAILABLE
from bench.report import page, part, with_part
from bench.sections import section

#: The files of a run, and the folder of its charts.
DATA, TABLES, CHARTS = "results.json", "tables.md", "charts"

#: The page that the docs quote.
PAGE = "RESULTS.md"


class Results:
    """Results by the names of sections.

    Args:
        folder: holds the raw results, all tables and all charts; what is there already is kept, but for sections that
            are measured anew. None: no files.
        shown: the folder of RESULTS.md and of those charts that the docs show. None: they stay as they are.

    Raises:
        ValueError: the file is no result of a bench.
    """

    def __init__(self, folder: Path | None, shown: Path | None = None) -> None:
        self._folder, self._shown = folder, shown
        self.sections: dict[str, Mapping[str, Any]] = _read(folder / DATA) if folder else {}

    def add(self, name: str, found: Mapping[str, Any]) -> None:
        """Take the results of a section, in the place of older ones, and write the files.

        A section that is measured in parts (``merged``) keeps those that are not measured anew.
        """
        made = json.loads(json.dumps(found, allow_nan=False))
        old, merged = self.sections.get(name), getattr(section(name), "merged", None)
        self.sections[name] = merged(old, made) if old and merged else made
        if self._folder:
            self._write(self._folder)

    def show(self, name: str) -> None:
        """Replace a section's part of RESULTS.md, and those of its charts that are shown.

        Raises:
            LookupError: the results have not all tables that the docs quote; nothing is written.
        """
        if not self._shown:
            return
        found, path = self.sections[name], self._shown / PAGE
        _replace(path, with_part(path.read_text() if path.exists() else "", name, part(name, found)))
        drawn = figures({name: found}) | {OVERVIEW: lambda: overview(path.read_text())}
        for chart, draw in drawn.items():
            if AVAILABLE and (there := self._shown / CHARTS / f"{chart}.svg").exists():
                _replace(there, draw())

    def page(self) -> str:
        """Return all tables."""
        return page(self.sections)

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / DATA, f"{json.dumps({'sections': self.sections}, indent=1)}\n")
        _replace(folder / TABLES, f"{self.page()}\n")
        charts = {f"{name}.svg": draw for name, draw in figures(self.sections).items()} if AVAILABLE else {}
        for old in (folder / CHARTS).glob("*.svg"):
            if old.name not in charts:
                old.unlink()
        for name, draw in charts.items():
            (folder / CHARTS).mkdir(exist_ok=True)
            _replace(folder / CHARTS / name, draw())


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text())["sections"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} has no sections of a bench: move it away") from None


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole: a run that is broken off leaves the older one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)
