"""The runner of the bench's scripts: options of a function's parameters, and tables of its rows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
from support.pages import PAGES

from bench.runner import SCRIPTS, options, turns
from bench.tables import figures


def measure(
    *, items: int = 5, way: Annotated[Sequence[str], ("a", "b")] = ("a",), out: Path | None = None, quick: bool = False
) -> None:
    """Measure.

    Options:
        items: of a try
    """


def parsed(*arguments: str) -> dict[str, object]:
    return options(measure, "bench", "About it.", arguments)


def test_options_are_parameters(capsys):
    """They have the types, defaults and choices of the parameters, and their help."""
    assert parsed() == {"items": 5, "way": ("a",), "out": None, "quick": False}
    assert parsed("--items", "7", "--way", "b", "a", "--out", "x", "--quick") == {
        "items": 7,
        "way": ["b", "a"],
        "out": Path("x"),
        "quick": True,
    }
    for wrong, text in ((["--way", "c"], "invalid choice: 'c'"), (["--items", "x"], "invalid int value: 'x'")):
        with pytest.raises(SystemExit):
            parsed(*wrong)
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parsed("--help")
    said = capsys.readouterr().out
    assert "About it." in said
    assert "of a try (5)" in said


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name):
    """Each says what it measures, and can be called without options."""
    if name == "spark":
        pytest.importorskip("pyspark")
    script = import_module(f"bench.scripts.{name}")
    assert script.__doc__
    defaults = {each.name: each.default for each in inspect.signature(script.main).parameters.values()}
    assert options(script.main, name, script.__doc__, []) == defaults


def test_pages_name_scripts():
    """Each command of a page is a script's, or the run of all sections."""
    named = {each for page in PAGES for each in re.findall(r"python -m bench (\w+)", page.read_text())}
    assert named <= {*SCRIPTS}
    assert len(named) > 10


def test_tables():
    """Rows with other columns are another table; words stand on the left, and numbers on the right."""
    rows = [{"way": "one", "us": 7.25, "items": 5}, {"way": "another", "us": 12345.6, "items": 12345}]
    assert list(figures(["a text", *rows, {"way": "one", "share": "3%"}])) == [
        "a text",
        "| way  |   us | items |",
        "| ---- | ---: | ----: |",
        "| one  | 7.25 |     5 |",
        "| another | 12,346 | 12,345 |",
        "| way  | share |",
        "| ---- | ----- |",
        "| one  | 3%    |",
    ]


def test_ways_take_turns():
    """Each round has each way once, in their order."""
    order: list[str] = []
    found = turns({way: lambda way=way: order.append(way) or len(order) for way in "ab"}, 2)
    assert order == ["a", "b", "a", "b"]
    assert found == {"a": [1, 3], "b": [2, 4]}
