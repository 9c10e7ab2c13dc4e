"""The charts of the bench: they show all peers and figures as text, and are the same in each run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from bench.peers import ALL
from bench.plots import COLOURS, MARKS, Axis, Bar, Series, bars, lines, number

ITEMS, TIME = Axis("items", "", log=True), Axis("time of an item", "µs")
HOSTILE = ("a & b", "<b>", "$x_1$", "ü ∞")


def texts_of(svg: str) -> list[str]:
    return ["".join(each.itertext()).strip() for each in ET.fromstring(svg).iterfind(".//{*}text")]


@pytest.mark.slow
def test_lines():
    """A chart has the name of each peer, by the order of the ends, and the axes with their units."""
    pytest.importorskip("matplotlib")
    series = [
        Series(name, [(1e8, value + 1), (1e5, value)], ours=not value) for value, name in enumerate([*ALL, "new"])
    ]
    drawn = lines("Time", ITEMS, TIME, series)
    assert drawn == lines("Time", ITEMS, TIME, series)
    texts = texts_of(drawn)
    assert {"Time", "items", "time of an item, µs", "1 million", "100 million"} <= {*texts}
    assert [text for text in texts if text in {*ALL, "new"}] == ["new", *reversed(ALL)]
    assert lines("Time", ITEMS, Axis("time", "µs", log=True), series) != drawn


@pytest.mark.slow
def test_a_logarithmic_axis_of_less_than_a_decade():
    """Its ticks are numbers, and no formulas."""
    pytest.importorskip("matplotlib")
    series = [Series("blocked", [(0, 250_000), (50_000_000, 180_000), (1e8, 900_000)])]
    texts = texts_of(lines("Filling", Axis("items", ""), Axis("items a second", "", log=True), series))
    assert {"200,000", "300,000", "600,000"} <= {*texts}
    assert not [text for text in texts if "$" in text]


@pytest.mark.slow
def test_bars():
    """Bars have their names and figures, the longest on top; a mark says which is not sure."""
    pytest.importorskip("matplotlib")
    values = [Bar("SADD", 50, sure=False), Bar("blocked", 2.5, ours=True), Bar("x", 229_123), Bar("y", 0)]
    texts = texts_of(bars("Memory", "MB", values))
    assert [text for text in texts if text in {"SADD", "blocked", "x", "y"}] == ["x", "SADD", "blocked", "y"]
    assert {"Memory", "MB (? the fastest tries do not agree)", "229,000", "50 ?", "2.5", "0"} <= {*texts}
    assert "MB" in texts_of(bars("Memory", "MB", values[1:]))
    assert {*HOSTILE} <= {*texts_of(bars("", "", [Bar(name, 1) for name in HOSTILE]))}
    assert not re.search(r"url\((?!#)|href=\"(?!#)|@import", bars("Memory", "MB", values))


def test_each_peer_has_its_own_look():
    """No two peers have the same colour and mark."""
    looks = {(COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]) for place in range(len(COLOURS) * len(MARKS))}
    assert len(looks) == len(COLOURS) * len(MARKS) > len(ALL)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0125, "0.0125"),
        (1e-7, "0.0000001"),
        (2.999, "3"),
        (-40, "-40"),
        (228_731, "229,000"),
        (999_999, "1 million"),
        (1_234_567, "1.23 million"),
    ],
)
def test_numbers(value, text):
    """Numbers have three digits, and a word for the large ones."""
    assert number(value) == text
