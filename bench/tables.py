"""Tables of Markdown, of the rows of sections and of scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: Stands in the place of a figure that there is not.
NOTHING = "–"

#: Stands behind a figure whose fastest tries do not agree.
UNSURE = "?"

#: A heading, and what stands below it.
Column = tuple[str, Callable[[Any], str]]


def table(columns: Sequence[Column], rows: Iterable[Any], words: int = 1) -> Iterator[str]:
    """Yield the lines of a table; all columns but the first ``words`` are of figures."""
    yield _row(heading for heading, _ in columns)
    yield f"|{' --- |' * words}{' ---: |' * (len(columns) - words)}"
    yield from (_row(written(row) for _, written in columns) for row in rows)


def figures(lines: Iterable[str | Mapping[str, str | float]]) -> Iterator[str]:
    """Yield texts as they are, and rows as lines of tables: another one begins where the columns are others.

    The columns before the first number are of words. A column becomes as wide as its widest cell so far.
    """
    columns: list[str] = []
    for line in lines:
        if isinstance(line, str):
            columns = []
            yield line
            continue
        cells = [each if isinstance(each, str) else _number(each) for each in line.values()]
        begins, columns = columns != [*line], [*line]
        if begins:
            words = next((n for n, each in enumerate(line.values()) if not isinstance(each, str)), len(cells))
            widths = [max(4, len(each)) for each in columns]
        widths = [max(pair) for pair in zip(widths, map(len, cells), strict=True)]
        aligned = [f"{'<' if n < words else '>'}{width}" for n, width in enumerate(widths)]
        if begins:
            yield _row(map(format, columns, aligned))
            yield _row("-" * width if n < words else f"{'-' * (width - 1)}:" for n, width in enumerate(widths))
        yield _row(map(format, cells, aligned))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else figure(value, 2 if abs(value) < 100 else 0)  # noqa: PLR2004


def figure(value: float | None, digits: int = 2) -> str:
    """Write a number with so many digits behind the point."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def best(value: Row, digits: int = 2) -> str:
    """Write a figure of ``bench.kbest.Best``."""
    return f"{figure(value['value'], digits)}{'' if value['converged'] else UNSURE}"


def rate(cell: Row) -> Row:
    """Return the items a second of a cell as a figure of ``bench.kbest.Best``."""
    return {**cell["wall"], "value": cell["items_a_second"]}


def cells_table(cells: Sequence[Row]) -> Iterator[str]:
    """Yield a table of cells, which have one mix and one batch; the ratio is to the first one."""
    reference = cells[0]["items_a_second"]
    columns: list[Column] = [
        ("peer", lambda cell: cell["peer"]),
        ("items/s", lambda cell: best(rate(cell), 0)),
        ("ratio", lambda cell: f"{cell['items_a_second'] / reference:.2f}"),
        ("spread", lambda cell: f"{cell['wall']['spread']:.1%}"),
        ("server µs", lambda cell: best(cell["server"])),
        ("client µs", lambda cell: best(cell["client"])),
        ("bytes in", lambda cell: f"{cell['received']:.1f}"),
        ("bytes out", lambda cell: f"{cell['sent']:.1f}"),
        ("p50", lambda cell: figure(cell["p50"], 0)),
        ("p99", lambda cell: figure(cell["p99"], 0)),
        ("p99.9", lambda cell: figure(cell["p999"], 0)),
        ("longest", lambda cell: figure(cell["longest"] if cell["server"]["value"] else None, 0)),  # of a server
    ]
    yield from table(columns, cells)


def cells_tables(found: Row) -> Iterator[str]:
    """Yield a table of a section's cells for each mix and batch."""
    for (mix, batch), some in grouped(found["cells"], "mix", "batch").items():
        yield f"\n### {mix}, {batch:,} a call\n"
        yield from cells_table(some)


def quoted(page: str) -> dict[tuple[str, str, str], str]:
    """Return the figures of a page of tables by the heading above, the first cell of the row, and the column."""
    found: dict[tuple[str, str, str], str] = {}
    heading, columns = "", list[str]()
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = line.strip("| ").split(" | ")
        else:
            name, *values = line.strip("| ").split(" | ")
            found |= {(heading, name, column): value for column, value in zip(columns[1:], values, strict=False)}
    return found


def grouped(cells: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by the values of some keys, in the order of their first rows."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for each in cells:
        found.setdefault(tuple(each[key] for key in keys), []).append(each)
    return found
