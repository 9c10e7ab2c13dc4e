"""Figures of the bench stand in the docs as RESULTS.md has them."""

from __future__ import annotations

import re
import tomllib

import pytest
from support.pages import PAGES, ROOT

from bench.figures import BESIDE, OVERVIEW, SHOWN
from bench.plots import number
from bench.tables import UNSURE, quoted

RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()
MEASURED = quoted(RESULTS)
FIGURES = tomllib.loads((ROOT / "docs" / "figures.toml").read_text())

#: The parts of the page about performance that quote RESULTS.md alone.
FROM_RESULTS = ("Beside its peers", "Layouts and servers", "Near cache")

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def value_of(text: str) -> float:
    return float(_NUMBER.search(text)[0].replace(",", ""))


def as_written(figure: str, value: float) -> bool:
    """Whether a figure is the value, rounded to the digits that the figure has; thousands may be cut off."""
    shown, digits = value_of(figure), len(_NUMBER.search(figure)[0].partition(".")[2])
    zeros = 0 if digits else len(str(int(shown))) - len(str(int(shown)).rstrip("0"))
    return any(round(each, digits or -zeros) == shown for each in (value, value / 1e3, value / 1e6))


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure(figure):
    """It is what RESULTS.md has, and each of its pages has it."""
    heading, row, column, *pages = FIGURES[figure]
    measured = MEASURED[heading, row, column]
    assert as_written(figure, value_of(measured)), measured
    texts = {page: " ".join((ROOT / page).read_text().split()) for page in pages}
    assert [page for page, text in texts.items() if not re.search(rf"(?<![\d.,]){figure}\b", text)] == []


def test_no_page_has_another():
    """New items a second, and the server's time beside RedisBloom's, are those of the file."""
    known = {figure.partition(" ")[0] for figure in FIGURES}
    wrong = []
    for page in PAGES:
        for part in re.split(r"\n\n|\n- ", page.read_text()):
            found = set(re.findall(r"([\d,]+,000) new (?:items|UR[IL]s) a second", " ".join(part.split())))
            if re.search(r"BF\.M?ADD", part) and "µs" in part and not part.startswith("|"):
                found |= set(re.findall(r"([\d.]+) µs", part))
            wrong += [(page.name, each) for each in found - known]
    assert wrong == []


def test_tables_of_performance():
    """Each figure of the tables that quote RESULTS.md stands there, rounded."""
    values = {value_of(each) for text in MEASURED.values() for each in _NUMBER.findall(text)}
    page = (ROOT / "docs" / "performance.md").read_text()
    parts = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    cells = [
        each
        for title in FROM_RESULTS
        for line in re.findall(r"^\|(.*)\|$", parts[title], re.MULTILINE)
        for cell in line.split("|")[1:]
        for each in _NUMBER.findall(re.sub(r"[\d.]+ (million|in 10,000)|(Redis|Valkey) [\d.]+", "", cell))
    ]
    assert len(cells) > 50
    assert [each for each in cells if not any(as_written(each, value) for value in values)] == []


def test_the_chart_of_the_readme():
    """It has the figures of RESULTS.md, as text, with the mark of those whose tries do not agree."""
    drawn = re.findall(r">([^<>]+)</text>", (ROOT / "bench" / "charts" / f"{OVERVIEW}.svg").read_text())
    names = [name for name, _ in BESIDE]
    quoted_there = [MEASURED[table, peer, column] for _, table, column in SHOWN for _, peer in BESIDE]
    wanted = [number(value_of(each)) + (f" {UNSURE}" if each.endswith(UNSURE) else "") for each in quoted_there]
    assert [text for text in drawn if text in names] == names
    assert [text for text in drawn if _NUMBER.match(text)] == wanted
    assert all(title in drawn for title, *_ in SHOWN)
