"""``python -m bench``: a small run from the command line, what it counts, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import executable

from bench.__main__ import main
from bench.kbest import Rule
from bench.measuring import WrongAnswer, attempt
from bench.peers import MANY
from bench.sections import Settings
from bench.streams import Try
from bench.usage import ServerCounters, Watch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def test_a_small_run(tmp_path):
    """The files have each peer with each mix and batch that it takes; what is left out is named; a run goes on."""
    executable("redis70")
    options = ["--quick", "--server", "redis", "--tries", "3", "--mixes", "seen", "links", "--batches", "1", "50"]
    options += ["--peers", "blocked", "SADD", "scrapy-redis", "BF.ADD", "--out", str(tmp_path)]
    done = bench(*options, "--sections", "calls")
    results = json.loads((tmp_path / "results.json").read_text())["sections"]["calls"]
    cells = {(cell["mix"], cell["batch"], cell["peer"]): cell for cell in results["cells"]}
    assert {*cells} == {
        (mix, batch, peer)
        for mix in ("seen", "links")
        for batch, peer in [(1, "blocked"), (1, "SADD"), (1, "scrapy-redis"), (50, "blocked"), (50, "SADD")]
    }
    assert {*results["left_out"]} == {"BF.ADD"}
    assert "BF.ADD is left out: the server has no RedisBloom" in done.stderr
    for (mix, batch, peer), cell in cells.items():
        assert cell["wall"]["tries"] == 3
        assert cell["wall"]["converged"] == (cell["wall"]["spread"] <= results["settings"]["rule"]["tolerance"])
        assert cell["items_a_second"] == pytest.approx(1e6 / cell["wall"]["value"])
        assert 0 < cell["server"]["value"] < cell["wall"]["value"]
        assert (cell["new_items"] > 0) == (mix == "links")
        assert peer == "blocked" or cell["false_positives"] == 0
        assert cell["longest"] > 0
        assert cell["p99"] is None if batch == 50 else 0 < cell["p50"] <= cell["p99"]
    # SADD of one URI of 66 bytes: *3, $4 SADD, $10 bench-sadd, $66 and the URI; its reply: :0 or :1
    assert cells["seen", 1, "SADD"]["received"] == 4 + 10 + 17 + 73
    assert cells["seen", 1, "SADD"]["sent"] == 4
    memory = {row["peer"]: row["memory"] for row in results["filters"]}
    assert {*memory} == {*results["versions"]} - {"server"} == {"blocked", "SADD", "scrapy-redis"}
    assert memory["SADD"] > 66 * 10_000
    assert results["machine"]["processors"] > 0
    page = (tmp_path / "tables.md").read_text()
    assert page == done.stdout
    assert page.count("| blocked |") == 5
    assert "\n### links, 50 a call\n" in page
    bench(*options, "--sections", "persistence")
    both = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert both["calls"] == results
    assert {*both} == {"calls", "persistence"}


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_a_run_writes(tmp_path, monkeypatch, capsys):
    """A quick run, and one of another folder, leave the bench alone; one of a section replaces its part of the page."""
    executable("redis70")
    here = tmp_path / "bench"
    shutil.copytree(ROOT / "bench" / "charts", here / "charts")
    shutil.copy(ROOT / "bench" / "RESULTS.md", here)
    monkeypatch.setattr("bench.__main__.HERE", here)
    monkeypatch.setattr("bench.sections.persistence.ITEMS", 500)
    before = files(here)
    options = ["--server", "redis", "--peers", "SADD", "--sections", "persistence"]
    main(["--quick", *options])
    main(["--out", str(tmp_path / "out"), *options])
    assert files(here) == before
    assert {*files(tmp_path / "out")} == {"results.json", "tables.md"}
    capsys.readouterr()
    main(options)
    after = files(here)
    assert after.pop("results/tables.md") == capsys.readouterr().out
    assert {*json.loads(after.pop("results/results.json"))["sections"]} == {"persistence"}
    assert {*after} == {*before}
    assert [name for name in before if after[name] != before[name]] == ["RESULTS.md"]
    (old, new) = (
        re.split("(<!-- section: persistence -->\n|<!-- section: links -->\n)", made["RESULTS.md"])
        for made in (before, after)
    )
    assert (new[:2], new[3:]) == (old[:2], old[3:])
    assert new[2].endswith("\n| SADD | 104.0 | 73.1 | 0.0 | 0.0 |\n\n")
    assert "| blocked |" not in new[2]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--peers", "nobody"], 2, "invalid choice: 'nobody'"),
        (["--tries", "2"], 1, "wanted are 2 <= k <= tries"),
        (["--capacity", "20000"], 1, "do not hold the"),
        (["--sizes", "1000"], 1, "a filter for 1,000 items is too small"),
    ],
    ids=["peer", "tries", "capacity", "size"],
)
def test_what_cannot_be_measured(arguments, code, text):
    """It is refused before anything is started."""
    assert text in bench("--quick", "--peers", "awk", *arguments, code=code).stderr


def test_bytes_of_the_work_alone(admin):
    """The bytes and the time of the counters' own questions are left out, and those of all commands are in."""
    admin.ping()
    with ServerCounters(admin) as counters:
        nothing = Watch(counters).stop()
        watch = Watch(counters)
        for _ in range(3):
            admin.ping()
        used = watch.stop()
    assert (nothing.received, nothing.sent, nothing.server) == (0, 0, 0)
    assert (used.received, used.sent) == (3 * len("*1\r\n$4\r\nPING\r\n"), 3 * len("+PONG\r\n"))
    assert 0 <= used.server < used.wall


class Forgetful:
    """A peer that answers "new" each time."""

    name, compared_as, batches = "forgetful", "", MANY

    def insert(self, batch):
        return len(batch)


def test_wrong_answer(admin):
    """A peer that forgets is not measured: its work is another."""
    with ServerCounters(admin) as counters:
        assert attempt(Forgetful(), counters, Try(("a", "b"), 2), 1).missed == 0
        with pytest.raises(WrongAnswer, match="forgetful answered 2 times new, of 1 new items"):
            attempt(Forgetful(), counters, Try(("a", "a"), 1), 1)


def test_filters_that_are_too_small():
    """Settings whose items the filters do not hold are refused."""
    made = {"quick": True, "rule": Rule(tries=10), "peers": (), "mixes": ("new",), "batches": {1: 100}}
    assert Settings(**made, clients=(), sizes=(), capacity=11_000)
    with pytest.raises(ValueError, match="11,000 of this plan"):
        Settings(**made, clients=(), sizes=(), capacity=10_999)
