"""The sections of the bench: each measures on a real server, with few items."""

from __future__ import annotations

import json

import pytest
from support.servers import executable

from bench import servers
from bench.crowd import Crowd
from bench.filling import Filler
from bench.kbest import Rule
from bench.peers import ALL
from bench.sections import Settings, section
from bench.sections.sizes import size_of
from bench.streams import Try, Uris
from bench.usage import ServerCounters

pytestmark = pytest.mark.slow

SETTINGS = Settings(
    quick=True,
    rule=Rule(k=2, tolerance=0.5, tries=2),
    peers=("blocked", "SADD"),
    mixes=("new", "seen"),
    batches={500: 500},
    clients=(1, 2),
    sizes=(25_000,),
    capacity=50_000,
)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer items than in a quick run."""
    executable("redis70")
    for name, value in {
        "clients.QUICK_TRIES": {500: 1000},
        "script.QUICK_CAPACITY": 50_000,
        "script.ITEMS": 500,
        "retentions.QUICK_CAPACITY": 7000,
        "retentions.ITEMS": 500,
        "segments.QUICK_BATCHES": {100: 500},
        "segments.FILLED": 2000,
        "persistence.QUICK_ITEMS": 500,
        "links.QUICK_CAPACITY": 50_000,
        "links.QUICK_STREAMS": {"far": {500: 1000}},
    }.items():
        module, constant = name.split(".")
        monkeypatch.setattr(section(module), constant, value)


def measured(name, settings=SETTINGS):
    """Return the results of a section as they stand in the file, and its tables."""
    found = json.loads(json.dumps(section(name).measure(settings, print), allow_nan=False))
    return found, "\n".join(section(name).tables(found))


def test_clients():
    """Each number of processes inserts as many items, and none is new to two of them."""
    found, text = measured("clients")
    assert {(cell["clients"], cell["mix"], cell["peer"]) for cell in found["cells"]} == {
        (clients, mix, peer) for clients in (1, 2) for mix in ("new", "seen") for peer in SETTINGS.peers
    }
    for cell in found["cells"]:
        assert cell["items"] == 1000
        assert 0 < cell["server"]["value"] < 1e6
        assert cell["new_items"] == (2000 if cell["mix"] == "new" else 0)
        assert cell["false_positives"] <= 2
    assert "### new, 500 a call, 2 clients\n" in text


def test_script():
    """Both servers are measured, or the one that is missing is named."""
    found, text = measured("script")
    assert {cell["server_name"] for cell in found["cells"]} | {*found["left_out"]} == {"redis", "valkey"}
    assert {cell["peer"] for cell in found["cells"]} == {"SETBIT in Lua", "blocked", "classic"}
    assert "### new, redis\n" in text
    assert found["versions"]["redis"] in found["versions"]["server"]


def test_drivers():
    """BF.MADD is measured with hiredis and without, or is named as missing."""
    found, text = measured("drivers")
    peers = {"blocked", "BF.MADD", "BF.MADD, plain"}
    assert {cell["peer"] for cell in found["cells"]} | {*found["left_out"]} == peers
    assert "### seen, 5,000 a call" in text


def test_retentions():
    """Every retention knows all that was put in, in whichever slice it lies."""
    found, text = measured("retentions")
    cells = {(cell["peer"], cell["mix"]): cell for cell in found["cells"]}
    assert len(cells) == 2 * len(section("retentions").SETTINGS)
    for (_, mix), cell in cells.items():
        assert cell["new_items"] == (1000 if mix == "new" else 0)
    assert "| retention | server µs | ratio |" in text


def test_segments():
    """The large filter has its bitmaps in one shard, and in several; no answer differs."""
    found, text = measured("segments")
    assert [row["segments"] for row in found["filters"]] == [1, 3, 3]
    for cell in found["cells"]:
        assert cell["new_items"] == (1000 if cell["mix"].endswith("new") else 0)
    for mix in ("new", "seen", "claim, new", "claim, seen", "contains, new", "contains, seen"):
        assert f"### {mix}, 100 a call" in text


def test_persistence():
    """A set's file has each new item once; one that knows all items appends none."""
    found, text = measured("persistence")
    sizes = {row["peer"]: row for row in found["filters"]}
    # SADD of one URI of 66 bytes: *3, $4 SADD, $10 bench-sadd, $66 and the URI
    assert sizes["SADD"]["new, 1"] == 4 + 10 + 17 + 73
    assert sizes["SADD"]["seen, 500"] == 0
    assert sizes["blocked"]["new, 500"] > 48
    assert "| SADD | 104.0 |" in text


def test_links():
    """The cache is asked in vain when a link comes again too late, and it has the size that its documentation says."""
    found, text = measured("links")
    assert {cell["peer"] for cell in found["cells"]} >= {"blocked", "near cache"}
    assert {cell["new_items"] for cell in found["cells"]} == {1000}
    assert 50 < found["filters"][0]["memory"] < 200
    assert "### far, 500 a call\n" in text


def test_sizes():
    """Filters are full, remember all, and have the error rate that was asked for, by the order."""
    found, text = measured("sizes")
    rows = {row["peer"]: row for row in found["filters"]}
    assert {*rows} == {*SETTINGS.peers}
    for peer, row in rows.items():
        assert row["false_negatives"] == 0
        assert row["known"] >= 20_000
        assert row["filling"]["rates"][-1][0] == row["filling"]["items"] == size_of(25_000, quick=True).before
        assert row["appended"] > 48
        assert row["false_positives"] <= (20 if peer == "blocked" else 0)
    assert rows["SADD"]["memory"] > 66 * 25_000 > rows["blocked"]["memory"]
    assert {(cell["mix"], cell["batch"]) for cell in found["cells"]} == {
        (mix, batch) for mix in ("new", "seen") for batch in (1, 500)
    }
    assert "### 25,000 items: seen, 500 a call\n" in text


def test_items_of_a_size():
    """What is put in before and while calls are measured is what the filter is made for."""
    for items in (25_000, 10**5, 10**6, 10**8):
        size = size_of(items, quick=False)
        assert items / 2 < size.before < items
        assert size.before + size.tries * sum(size.batches.values()) + size.append == items
    assert size_of(10**8, quick=False).ours == 20_000_000
    with pytest.raises(ValueError, match="too small"):
        size_of(24_000, quick=False)


def test_a_crowd():
    """Processes share one filter: each item is new to one of them. One that fails is told to whoever gave the work."""
    with servers.server("redis") as client, ServerCounters(client) as counters:
        at = servers.address(client)
        peer = ALL["blocked"]()
        peer.open(10_000, 1e-6, at)
        try:
            with Crowd(2, 10_000, 1e-6, at) as crowd:
                found = crowd.attempt("blocked", counters, Try(("a", "a", "b", "b"), 2), 1)
                filled = Filler(crowd, counters).fill(peer, 1001, 3)
                again = Filler(crowd, counters).do(peer, "insert", range(1001))
                with pytest.raises(RuntimeError, match="blocked: .*no_such_method"):
                    crowd.do("blocked", "no_such_method", [("a",), ("b",)], 1)
        finally:
            peer.close()
    assert (found.items, found.new, found.missed, len(found.calls)) == (4, 2, 0, 4)
    assert found.used.server > 0
    assert (filled["items"], filled["passed"], [items for items, _ in filled["rates"]]) == (1001, 0, [333, 667, 1001])
    assert [each.total for each in again] == [0, 0]
    assert peer.name == "blocked"


def test_shares_are_the_whole():
    """The URIs of a range are those of its parts."""
    assert [*Uris(range(7))] == [*Uris(range(3)), *Uris(range(3, 7))]


def test_what_scripts_call_counts_once(make_server):
    """The server counts a command of a script in the time of EVALSHA, too."""
    with make_server("redis70").client() as client:
        work = client.script_load("for i = 1, 10000 do redis.call('SETBIT', KEYS[1], i, 1) end")
        with ServerCounters(client) as counters:
            counters.reset()
            before = counters.read()
            client.evalsha(work, 1, "bits")
            usec = counters.read().since(before)[0]
        told = client.info("commandstats")
        assert told["cmdstat_setbit"]["usec"] > 0
        assert usec == told["cmdstat_evalsha"]["usec"]
