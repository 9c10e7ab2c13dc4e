"""The results of the bench: what is kept, what a page says, and which charts are drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.figures import figures
from bench.goals import CHANCE, COMPILED, Claim, judged
from bench.kbest import Rule
from bench.machine import machine
from bench.measuring import Attempt, cell, percentiles
from bench.report import page, with_part
from bench.results import Results
from bench.sections import NAMES, section
from bench.usage import Used

BENCH = Path(__file__).parents[2] / "bench"

RULE = Rule(k=2, tolerance=0.02, tries=4)


def figures_of(peer: str, mix: str = "new", batch: int = 500, *, wall: float = 1.0, server: float = 0.5, **more):
    """Return a cell as it stands in the file; times are microseconds an item."""
    best = [{"value": value, "spread": 0.01, "converged": True, "tries": 3} for value in (wall, 0.2, server)]
    made = {"peer": peer, "mix": mix, "batch": batch, "items": 1000, "received": 16.0, "sent": 4.0, "longest": 2000.0}
    made |= dict(zip(("wall", "client", "server"), best, strict=True))
    made |= {"p50": 100.0, "p99": 200.0, "p999": None, "false_positives": 1, "new_items": 3000, "clients": 1}
    return made | {"items_a_second": 1e6 / wall} | more


def filter_of(peer: str, size: int, **more):
    """Return the figures of a whole filter."""
    filling = {"items": size, "processes": 2, "rates": [[size // 2, 2e5], [size, 1e5]], "longest": 3000.0}
    made = {"peer": peer, "size": size, "memory": 3 * size, "appended": 100.0, "filling": filling}
    return made | {"asked": 10**6, "false_positives": 90, "known": size, "false_negatives": 0} | more


def section_of(cells=(), filters=(), **settings):
    """Return a section as it stands in the file."""
    made = {"machine": machine(), "quick": False, "seconds": 12.0, "left_out": {"BF.ADD": "there is no module"}}
    settings = {"rule": {"k": 3, "tolerance": 0.02, "tries": 30}, "error_rate": 1e-4} | settings
    versions = {"server": "redis 7.0.15", "redis": "redis 7.0.15", "blocked": "1", "BF.MADD": "2", "rolling": "3"}
    return made | {"settings": settings, "versions": versions, "cells": [*cells], "filters": [*filters]}


SCRIPT = section_of(
    figures_of(peer, mix, server=server, server_name="redis")
    for mix in ("new", "seen")
    for peer, server in (("SETBIT in Lua", 10.0), ("blocked", 2.5))
)
SIZES = section_of(
    [
        figures_of(peer, batch=batch, wall=wall, size=size, p999=300.0 if batch == 1 else None)
        for size in (10**7, 10**8)
        for batch in (1, 5000)
        for peer, wall in (("blocked", 4.0), ("BF.MADD", 1.0))
    ],
    [filter_of(peer, size, memory=289_000_000) for size in (10**7, 10**8) for peer in ("blocked", "BF.MADD")],
    sizes=[],
)


def test_claims():
    """Each claim has its figure, or is not measured; those that are not kept say why."""
    claims = {claim.text: claim for claim in judged({"script": SCRIPT, "sizes": SIZES})}
    new, seen = (claims[f"blocked to the script of SETBITs, server time, {mix}, Redis"] for mix in ("new", "seen"))
    assert (new.measured, new.verdict, new.asked) == (0.25, "yes", "at most 0.3")
    assert (seen.measured, seen.verdict) == (0.25, "no")
    slower = claims["blocked to BF.MADD, items/s, new, 5,000 a call, 100 million items"]
    assert (slower.measured, slower.asked) == (0.25, "at least 0.32")
    assert slower.verdict == f"no: {COMPILED}"
    assert claims["false positives of 20 million, to the asked rate"].measured == pytest.approx(0.9)
    assert claims["memory of 100 million, MB"].kept
    assert claims["false negatives of 100 million"].kept
    assert claims["rolling to forever, server time, new"].verdict == "not measured"
    assert {claim.kept for claim in judged({})} == {None}
    assert 1 < CHANCE < 1.05


@pytest.mark.parametrize(("measured", "kept"), [(1.9, False), (2.0, True), (2.1, True), (None, None)])
def test_a_limit_belongs_to_it(measured, kept):
    """A figure at its limit keeps a claim, whichever side is the good one."""
    assert Claim("", 2.0, least=True, measured=measured).kept is kept
    assert Claim("", -2.0, least=False, measured=None if measured is None else -measured).kept is kept


def test_a_page():
    """The page has the claims, and of each section its machine, its tables, and what is left out."""
    retentions = section_of([figures_of("rolling")], [filter_of("rolling", 1)])
    text = page({"script": SCRIPT, "sizes": SIZES, "retentions": retentions})
    assert text.index("## Claims") < text.index("## The server's time") < text.index("## Full filters")
    assert "| blocked | 2.50 | 0.25 | 1.0% | 2,000 |" in text
    assert (
        "| blocked | 200,000 | 100,000 | 3,000 | 289.0 | 2.89 | 100.0 | 90 of 1,000,000 | 0.900 | 0 of 100,000,000 |"
        in text
    )
    assert "### 100,000,000 items: new, 5,000 a call" in text
    assert text.count("BF.ADD is left out: there is no module.") == 3
    assert "12 s; of at most 30 tries the 3 fastest within 2%." in text


def test_charts():
    """There is a chart for each figure that sizes have, with all peers that have it."""
    drawn = figures({"sizes": SIZES, "calls": section_of([figures_of("blocked"), figures_of("SADD", wall=0.5)])})
    assert {"calls-new-500", "sizes-rate-new-5000", "sizes-p999-new-1", "sizes-memory", "sizes-filling"} <= {*drawn}
    assert "sizes-p50-new-5000" not in drawn
    for name, draw in drawn.items():
        peers = {each.name for each in draw.args[-1]}
        assert peers == {"blocked", "SADD" if name.startswith("calls") else "BF.MADD"}
    assert figures({}) == {}


@pytest.mark.slow
def test_every_chart_can_be_drawn(tmp_path):
    """A run draws all charts anew, and those that the docs show where they lie."""
    pytest.importorskip("matplotlib")
    out, shown = tmp_path / "out", tmp_path / "charts"
    for folder in (out / "charts", shown):
        folder.mkdir(parents=True)
    (out / "charts" / "of-old.svg").touch()
    (shown / "sizes-memory.svg").write_text("older")
    whole = sizes_of(10**6, 10**8, rate=2.0)
    whole["cells"] = [cell | {"batch": 5000, "mix": mix} for cell in whole["cells"] for mix in ("new", "seen")]
    results = Results(out, tmp_path)
    results.add("sizes", whole)
    results.show("sizes")
    drawn = figures(results.sections)
    assert {path.name: path.read_text() for path in (out / "charts").iterdir()} == {
        f"{name}.svg": draw() for name, draw in drawn.items()
    }
    assert {path.name: path.read_text() for path in shown.iterdir()} == {"sizes-memory.svg": drawn["sizes-memory"]()}


@pytest.fixture
def without_charts(monkeypatch):
    """Draw none: a chart takes a second, and other tests draw each kind once."""
    monkeypatch.setattr("bench.results.AVAILABLE", False)


@pytest.mark.usefixtures("without_charts")
def test_a_run_that_goes_on(tmp_path):
    """A section that is measured anew takes the place of its older one; others stay."""
    Results(tmp_path / "out").add("script", SCRIPT)
    before = Results(tmp_path / "out")
    before.add("sizes", SIZES)
    again = Results(tmp_path / "out")
    again.add("script", SCRIPT | {"seconds": 99.0})
    kept = json.loads((tmp_path / "out" / "results.json").read_text())["sections"]
    assert kept["script"]["seconds"] == 99
    assert kept["sizes"] == json.loads(json.dumps(SIZES))
    text = (tmp_path / "out" / "tables.md").read_text()
    assert text == f"{again.page()}\n"
    assert "## Full filters" in text
    assert not [*tmp_path.rglob("*.draft")]


def parts_of(text: str) -> dict[str, str]:
    """Return the parts of RESULTS.md by their sections; what stands before them is that of ""."""
    head, *parts = re.split(r"^<!-- section: (\w+) -->\n", text, flags=re.MULTILINE)
    return {"": head} | dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_part_of_the_page(tmp_path):
    """Without raw results a section takes the place of its own part; each other one stays, byte by byte."""
    before = (BENCH / "RESULTS.md").read_text()
    (tmp_path / "RESULTS.md").write_text(before)
    results = Results(tmp_path / "results", tmp_path)
    cells = [figures_of("blocked", mix, batch, wall=7.0) for mix in ("new", "seen") for batch in (500, 5000)]
    results.add("drivers", section_of(cells))
    results.show("drivers")
    old, new = parts_of(before), parts_of((tmp_path / "RESULTS.md").read_text())
    assert [*old] == [*new] == ["", *NAMES]
    assert [name for name in new if new[name] != old[name]] == ["drivers"]
    assert new["drivers"].startswith(f"## {section('drivers').TITLE}\n")
    assert re.findall("^### (.*)", new["drivers"], re.MULTILINE) == ["new, 5,000 a call", "seen, 5,000 a call"]
    assert new["drivers"].count("| blocked | 142,857 |") == 2
    assert "12 s; of at most 30 tries the 3 fastest within 2%." in new["drivers"]
    assert new["drivers"].count("| – | not measured |") == 2
    assert new["drivers"].endswith("\nBF.ADD is left out: there is no module.\n\n")
    assert not [*tmp_path.rglob("*.draft")]


def test_a_new_page():
    """Parts stand in the order of a run, in whichever order they are made, each once."""
    text = ""
    for name, made in (("links", "older"), ("sizes", "S"), ("calls", "C"), ("links", "newer")):
        text = with_part(text, name, f"## {made}")
    assert text.startswith("# Results of the bench\n")
    assert parts_of(text) | {"": ""} == {"": "", "calls": "## C\n\n", "links": "## newer\n\n", "sizes": "## S\n"}


def test_a_part_that_is_not_whole(tmp_path):
    """Sizes are done one by one: the page keeps its part until all tables that the docs quote are there."""
    (tmp_path / "RESULTS.md").write_text("older")
    results = Results(None, tmp_path)
    results.add("sizes", sizes_of(10**6, rate=1.0))
    with pytest.raises(LookupError, match="there is no table of 100,000,000 items"):
        results.show("sizes")
    assert {path.read_text() for path in tmp_path.rglob("*.*")} == {"older"}
    whole = sizes_of(10**8, rate=2.0)
    whole["cells"] = [cell | {"batch": 5000, "mix": mix} for cell in whole["cells"] for mix in ("new", "seen")]
    results.add("sizes", whole)
    results.show("sizes")
    titles = re.findall("^### (.*)", (tmp_path / "RESULTS.md").read_text(), re.MULTILINE)
    assert titles == [*section("sizes").QUOTED]


def test_the_page_that_is_kept():
    """It has a part of each section with the tables that the docs quote; those charts are kept that the docs show."""
    text = (BENCH / "RESULTS.md").read_text()
    parts = parts_of(text)
    assert text == with_part(text, "links", parts["links"])
    assert parts[""].strip() == with_part("", "links", "").partition("\n<!--")[0].strip()
    titles = {name: re.findall("^### (.*)", part, re.MULTILINE) for name, part in parts.items() if name}
    assert titles == {name: [*section(name).QUOTED] for name in NAMES}
    for claim in judged({}):
        assert f"\n| {claim.text} | {claim.asked} | " in parts[claim.section]
    pages = "".join((BENCH.parent / name).read_text() for name in ("README.md", "docs/performance.md"))
    shown = re.findall(r"bench/charts/([\w-]+\.svg)", pages)
    assert sorted(shown) == sorted(path.name for path in (BENCH / "charts").iterdir())


def sizes_of(*sizes: int, rate: float, quick: bool = False):
    """Return results of filters of these sizes, whose calls take so many microseconds an item."""
    cells = [figures_of("blocked", wall=rate, size=size) for size in sizes]
    made = section_of(cells, [filter_of("blocked", size) for size in sizes])
    made["settings"] |= {"sizes": [{"items": size, "seconds": 10.0} for size in sizes]}
    return made | {"quick": quick}


@pytest.mark.usefixtures("without_charts")
def test_sizes_that_go_on(tmp_path):
    """A size that is measured anew takes the place of its older figures; others stay, but for those of a quick run."""
    results = Results(tmp_path)
    for made in (
        sizes_of(25_000, rate=9.0, quick=True),
        sizes_of(10**5, 10**6, rate=1.0),
        sizes_of(10**7, rate=2.0),
        sizes_of(10**6, rate=3.0),
    ):
        results.add("sizes", made)
    kept = results.sections["sizes"]
    assert [(cell["size"], cell["wall"]["value"]) for cell in kept["cells"]] == [(10**5, 1), (10**6, 3), (10**7, 2)]
    assert [row["size"] for row in kept["filters"]] == [10**5, 10**6, 10**7]
    assert [size["items"] for size in kept["settings"]["sizes"]] == [10**5, 10**6, 10**7]
    assert kept["seconds"] == 30


@pytest.mark.parametrize("text", ["[]", "{}", "{"])
def test_a_file_of_others(tmp_path, text):
    """A file that is no result is not written over."""
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match="has no sections of a bench"):
        Results(tmp_path)


def test_percentiles():
    """They are values that were measured; those that too few calls stand behind are left out."""
    assert percentiles([*range(1, 1001)]) == {"p50": 500, "p99": 990, "p999": 999}
    assert percentiles([*range(1, 1000)]) == {"p50": 500, "p99": 990, "p999": None}
    assert percentiles([3.0, 1.0]) == {"p50": 1.0, "p99": None, "p999": None}
    assert percentiles([]) == {"p50": None, "p99": None, "p999": None}


def test_a_cell():
    """Times are of the fastest try, bytes of the least, the longest command and the calls of all tries."""
    found = [
        Attempt(Used(wall, 0.001, 0.0 if wall == 2 else 0.01, 1000, 500, wall / 10), 100, 50, 1, [wall / 2] * 2)
        for wall in (2.0, 3.0, 2.01)
    ]
    made = cell("a", "new", 50, RULE, found)
    assert {*made} == {*figures_of("a")}
    assert made["wall"] == {"value": 20_000, "spread": pytest.approx(0.005), "converged": True, "tries": 3}
    assert (made["received"], made["sent"], made["longest"]) == (10, 5, 300_000)
    assert made["p50"] == pytest.approx(1_005_000)
    assert (made["p99"], made["false_positives"], made["new_items"]) == (None, 3, 150)
    assert made["items_a_second"] == 50
    assert made["server"]["spread"] is None
