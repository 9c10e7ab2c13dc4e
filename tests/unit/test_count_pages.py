"""The tables of ``docs/how-to/count-pages.md`` are true."""

from __future__ import annotations

import re
from pathlib import Path

from urifilter_redis.bloom.normalize import NORMALIZATIONS, normalizer
from urifilter_redis.bloom.url_parts import INDEX_PAGES

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "count-pages.md").read_text()

loose = normalizer("loose")


def pairs(heading: str) -> list[tuple[str, str]]:
    """The first two codes of each row of the section's table."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(re.findall(r"`([^`]+)`", row)) for row in rows]


def test_the_urls_that_are_one():
    """Each row is one item under ``loose``; the last five under ``sorted``, and the last under ``whatwg``."""
    rows = pairs("The URLs that are one page")
    assert [loose(one) == loose(other) for one, other in rows] == [True] * len(rows)
    for name, least in (("sorted", 5), ("whatwg", 1)):
        same = [normalizer(name)(one) == normalizer(name)(other) for one, other in rows]
        assert same[-least:] == [True] * least
        assert same[-least - 1] is False
    section = PAGE.split("The index pages are ")[1].split(", in\n")[0]
    assert set(re.findall(r"`([^`]+)`", section)) == INDEX_PAGES


def test_the_urls_that_stay_two():
    """Each row is two items."""
    rows = [row[:2] for row in pairs("The URLs that stay two")]
    assert [loose(one) != loose(other) for one, other in rows] == [True] * len(rows)


def test_beside_other_programs():
    """Each row is one item under the normalisation that it names and those after it, and under none before."""
    section = PAGE.split("## Beside other programs\n")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    for row in rows:
        one, other, least = (cell.strip("` ") for cell in row.split(" | ")[:3])
        one = one.removeprefix("| `")
        first = NORMALIZATIONS.index(least) if least in NORMALIZATIONS[1:] else len(NORMALIZATIONS)
        same = [normalizer(name)(one) == normalizer(name)(other) for name in NORMALIZATIONS[1:]]
        assert same == [at >= first for at in range(1, len(NORMALIZATIONS))], row
    assert len(rows) == 33


def test_the_pages_that_are_merged_wrongly():
    """Each row is one item; every normalisation is listed."""
    rows = pairs("The pages that `loose` merges wrongly")
    assert [loose(one) == loose(other) for one, other in (row for row in rows if len(row) == 2)] == [True] * 5
    assert tuple(row[0] for row in rows if len(row) == 1 and row[0] in NORMALIZATIONS) == NORMALIZATIONS
