"""Keeps the results of sections, each as soon as it is done: RESULTS.json, and the page and the charts made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import figures
from bench.report import page
from bench.sections import section

#: The files of a folder, and the folder of its charts.
DATA, PAGE, CHARTS = "RESULTS.json", "RESULTS.md", "charts"


class Results:
    """Results by the names of sections.

    Args:
        folder: holds the files; what is there already is kept, but for sections that are measured anew. None: no files.

    Raises:
        ValueError: the file is no result of a bench.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
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

    def page(self) -> str:
        """Return RESULTS.md."""
        return page(self.sections)

    def _write(self, folder: Path) -> None:
        (folder / CHARTS).mkdir(parents=True, exist_ok=True)
        _replace(folder / DATA, f"{json.dumps({'sections': self.sections}, indent=1)}\n")
        _replace(folder / PAGE, f"{self.page()}\n")
        drawn = {f"{name}.svg": chart for name, chart in figures(self.sections).items()}
        for old in (folder / CHARTS).glob("*.svg"):
            if old.name not in drawn:
                old.unlink()
        for name, chart in drawn.items():
            _replace(folder / CHARTS / name, chart)


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
