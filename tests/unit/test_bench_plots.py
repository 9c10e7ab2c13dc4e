"""The charts of the bench: they say and show their values, inside their area."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.plots import Axis, Bar, Series, bars, lines

ITEMS, TIME = Axis("items", "", log=True), Axis("time", "µs")


def test_lines_and_bars_are_xml():
    """Both say their title, and names that XML would take for its own."""
    for made in (
        lines("Time", ITEMS, TIME, [Series("a & <b>", [(1e5, 1.0), (1e8, 2.0)])]),
        bars("Time", "µs", [Bar("a & <b>", 2.0)]),
    ):
        root = ET.fromstring(made)
        assert root[0].text == "Time"
        assert "a & <b>" in {each.text for each in root.iterfind(".//{*}text")}


def test_nothing_to_draw():
    """A chart of nothing is refused."""
    with pytest.raises(ValueError, match="give at least one"):
        lines("Time", ITEMS, TIME, [])
    with pytest.raises(ValueError, match="give at least one"):
        bars("Time", "µs", [])
