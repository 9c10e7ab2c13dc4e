"""The page of the service, in a real browser: nothing goes wrong on it in any of these tests (see ``Tab``)."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from support.browser import Tab, axe, expect
from support.page import rows, visit
from support.servers import Server, free_port, wait_until
from support.service import Service, known

from urifilter_redis import UriFilter, drop_filter
from urifilter_redis.service import tokens

MARKUP = "<img src=x onerror=window.hit=1>"

#: What the overview tells of the service.
SERVICE = {"version": "1", "workers": 1, "uptime": 5, "has_tokens": False}

pytestmark = pytest.mark.slow

#: Pairs of a text's colour and that of what is behind it.
READABLE = [
    *itertools.product(("text", "quiet", "accent", "warning", "danger"), ("ground", "raised")),
    ("raised", "accent"),
    ("ground", "text"),
]

#: What browsers say while nobody listens.
AWAY = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED")


@pytest.fixture(scope="module")
def redis():
    with Server("valkey") as server:
        yield server


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The address of the service's archive."""
    return tmp_path_factory.mktemp("archive").as_uri()


@pytest.fixture(scope="module")
def _service(redis, archive):
    with Service(redis.url, "--archive", archive) as service:
        yield service


@pytest.fixture
def service(_service, redis):
    """A service without tokens and without filters.

    It may remember figures of filters of earlier tests: those whose figures are looked at have names of their own.
    """
    redis.ask("flushall")
    return _service


@pytest.fixture
def make(service, redis, make_filter):
    """Make a filter."""

    def create(name: str = "news", capacity: int = 10_000, error_rate: float = 1e-4, **settings) -> UriFilter:
        return make_filter(name, redis=redis.url, capacity=capacity, error_rate=error_rate, **settings)

    return create


@pytest.fixture
def tab(browser, service):
    """A tab that is not at the page yet."""
    with Tab(browser, service.url) as opened:
        yield opened


def names(page) -> list[str]:
    """Return the names of the filters in the table, from its top."""
    return page.locator("#filters tbody .name").all_inner_texts()


def cells(page, name: str, *columns: str) -> list[str]:
    """Return what the table says of a filter, once it has its figures."""
    row = rows(page).filter(has=page.get_by_role("link", name=name, exact=True))
    expect(row.locator(".memory")).not_to_be_empty()
    return [row.locator(f".{each}").inner_text() for each in columns]


def figures(page, place: str = "figures") -> dict[str, list[str]]:
    """Return the figures of a filter's page, by their terms."""
    expect(page.locator(f"#{place} dd").first).not_to_be_empty()
    return {
        each.locator("dt").text_content(): each.locator("dd").all_text_contents()
        for each in page.locator(f"#{place} > div").all()
    }


def slices(page) -> list[list[str]]:
    """Return the rows of the filter's table: name, items, share of its capacity."""
    rows = page.locator("#slices tbody tr")
    return [[row.locator("th, td").nth(place).text_content() for place in (0, 2, 3)] for row in rows.all()]


def ask(page, command: str, uris: str) -> list[str]:
    """Try URIs, and return the outcome and the answers."""
    page.locator("#answers").evaluate("answers => answers.replaceChildren()")
    page.get_by_label("URIs, one a line").fill(uris)
    page.get_by_role("button", name={"contains": "Check"}.get(command, command)).click()
    expect(page.locator("#answers li")).to_have_count(len(uris.split("\n")))
    return [page.locator("#outcome").inner_text(), *page.locator("#answers b").all_inner_texts()]


def answer(tab, path: str, **reply) -> None:
    """Let a path of the service answer this, whatever the service would."""
    tab.page.route(f"**/v1/{path}", lambda route: route.fulfill(**reply))


def row_of(name: str, **more) -> dict:
    """Return a row of the overview."""
    settings = {"retention": "forever", "layout": "blocked", "capacity": 1000, "error_rate": 1e-4}
    numbers = {"items": 0, "memory": 1000, "full": 0.0, "fill": 0.0, "error_rate_now": 0.0}
    none = ("slices", "period", "archive", "checkpointed", "next_rotation", "full_in", "speed", "claims")
    return {"name": name, "problems": []} | settings | numbers | dict.fromkeys(none) | more


def told(*some: dict, now: float = 0.0, **more) -> dict:
    """Return how the service tells the overview."""
    return {"now": now, "access": "write", "latency": 0.001, "filters": some, "redis": None, "service": None} | more


def problem(code: str, level: str = "note") -> dict:
    return {"code": code, "level": level, "text": f"about {code}"}


def stop_time(tab) -> None:
    """Stop the page's time, so that it asks for nothing of itself, but for ``clock.run_for``."""
    tab.page.clock.install(time=0)
    tab.page.clock.pause_at(1)


def count_polls(tab):
    """Stop the page's time but for ``clock.run_for``; return where it shows how often it asked before.

    Not more than ten seconds may pass while a request is under way: it would be given up.
    """
    counter = itertools.count()
    stop_time(tab)
    tab.page.route("**/v1/overview", lambda route: route.fulfill(json=told(row_of("news", items=next(counter)))))
    return tab.page.locator("#filters tbody .items")


def hide(page, *, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_no_filter(tab, make):
    """Whoever has no filter is told how to make one, and can copy that; those made later appear by themselves."""
    tab.page.clock.install()
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.open()
    expect(page.locator("#none code")).to_have_text("urifilter create news --capacity 10M")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "urifilter create news --capacity 10M"
    make("first")
    page.clock.run_for(2000)
    assert cells(page, "first", "items", "problems") == ["0", ""]
    expect(page.locator("#none")).to_be_hidden()


def test_filters(tab, make, redis):
    """Filters of each retention are shown as the library has them, with one request for all.

    One that is lost has its problem in the table, and the others have their figures.
    """
    make("ever", 1000).insert_many(range(900))
    make("growing", 1000, retention="growing", error_rate=1e-8).insert_many(range(1200))
    ring = make("ring", 3000, retention="ring", slices=3, period="1d", error_rate=1e-8)
    ring.insert_many(range(400))
    make("rolling", 2000, retention="rolling", slices=30, period="1w", error_rate=1e-8).insert_many(range(10))
    make("lost")
    redis.ask("delete", "urifilter:{lost:0}:today")
    page = tab.open()
    expect(rows(page)).to_have_count(5)
    expect(rows(page).first.locator(".problems")).to_have_text("bitmap lost")
    assert names(page) == ["lost", "ever", "growing", "ring", "rolling"]  # the problems first, and the others by name
    assert cells(page, "ever", "retention", "items", "full", "problems") == ["forever", "900", "90 %", "near capacity"]
    assert cells(page, "growing", "items", "full", "rotation", "problems") == ["1,200", "grows", "", ""]
    assert cells(page, "ring", "retention", "items", "full", "rotation") == ["ring 3 × 1d", "400", "20 %", "in 24 h"]
    assert cells(page, "rolling", "full", "rate", "rotation") == ["0.5 %", "< 1 in a billion", "in 7 d"]
    drop_filter("lost", redis=redis.url)
    expect(rows(page)).to_have_count(4)
    expect(page.locator("#problems-title")).to_have_text("1 of 4 filters has problems")
    expect(page.locator("#findings")).to_contain_text("persistence")
    expect(page.locator("#servers")).to_contain_text(re.compile(r"Valkey 9.* a command takes .* 1 worker"))
    assert {each for each in tab.requests if "/v1/" in each} == {"GET /v1/overview"}


def test_search_and_sort(tab, make):
    """Problems stand first; the table is searched and sorted, and a page of it has thirty rows."""
    many = [row_of(f"filter-{number:02}", items=number, speed=number / 7) for number in range(60)]
    many[40] |= {"problems": [problem("over_capacity", "danger"), problem("rotation_late")], "full": 1.2}
    many[50] |= {"problems": [problem("near_capacity")], "full_in": 7200.0, "retention": "ring"}
    many[55] |= {"problems": [problem("near_capacity")], "full_in": 600.0}
    many.append({"name": "lost", "problems": [problem("slice_lost", "danger")]})
    answer(tab, "overview", json=told(*many))
    page = tab.open()
    expect(rows(page)).to_have_count(30)
    assert names(page)[:5] == ["filter-40", "lost", "filter-50", "filter-55", "filter-00"]
    expect(page.locator("#problems-title")).to_have_text("4 of 61 filters have problems")
    chips = page.locator("#kinds button")
    assert chips.all_inner_texts() == ["1 over capacity", "1 bitmap lost", "2 near capacity", "1 rotation late"]
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="More").click()
    expect(page.locator("#place")).to_have_text("61 to 61 of 61")
    assert names(page) == ["filter-59"]

    chips.nth(2).click()
    assert names(page) == ["filter-50", "filter-55"]
    page.get_by_role("button", name="Full in").click()
    assert names(page) == ["filter-55", "filter-50"]
    expect(page.locator("#column-full_in")).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#count")).to_have_text("2 of 61")
    chips.nth(2).click()
    page.get_by_role("button", name="Items").click()
    assert names(page)[:2] == ["filter-59", "filter-58"]
    page.get_by_role("button", name="Items").click()
    assert names(page)[:2] == ["filter-00", "filter-01"]
    search = page.get_by_role("searchbox", name="Search")
    search.fill("capacity RING")
    assert names(page) == ["filter-50"]
    search.fill("-4 filter")
    assert names(page) == [f"filter-4{number}" for number in range(10)]
    search.fill("nothing")
    expect(rows(page)).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 800})
    search.fill("")
    page.get_by_label("Sort by").select_option("Sort by filter")
    assert names(page)[0] == "filter-00"
    assert page.evaluate("document.scrollingElement.scrollHeight") < 2000


def test_a_filters_page(tab, make, redis):
    """It has an address of its own, which a reload keeps, and says all of the filter."""
    ring = make("ring", 3000, retention="ring", slices=3, period="1d", error_rate=1e-8)
    for items in (range(400), range(400, 500), range(500, 800)):
        ring.insert_many(items)
        if items.stop < 800:
            ring.rotate()
    with ring.claims() as mine:
        mine.claim_many(["a", "b"])
        page = visit(tab.open(), "ring")
        page.reload()
        expect(page).to_have_url(re.compile("#/filters/ring$"))
        expect(page).to_have_title("ring – urifilter")
        expect(page.locator("#kind")).to_have_text("ring · 3 × 1d · blocked · 1 shard")
        expect(page.locator("#bar span")).to_have_text("capacity: 3,000")
        rates = page.locator("#slices tbody td:nth-child(6)").all_text_contents()
        assert rates == ["< 1 in a billion"] * 3
        found = figures(page)
        assert found["Items"] == ["800", "27 % of 3,000"]
        assert found["Error rate now"] == ["less than 1 in a billion", "promised 1 in 100 million"]
        assert found["Next rotation"] == ["in 24 h", "every 1d"]
        assert found["Last checkpoint"] == ["never", "no archive"]
        assert slices(page) == [["today", "300", "15 %"], ["history_1", "100", "5 %"], ["history_2", "400", "20 %"]]
        assert figures(page, "claims")["In flight"] == ["2", "1 living holder"]
        settings = figures(page, "settings")
        assert (settings["Capacity"][0], settings["Uid"][0]) == ("3,000", ring.info().uid)
        expect(page.locator("#pastes")).to_contain_text("HGETALL 'urifilter:{ring:0}:meta'")
        expect(page.locator("#pastes")).to_contain_text(f"{page.url.split('/#')[0]}/v1/filters/ring/contains")
    page.get_by_role("link", name="All filters").click()
    expect(rows(page)).to_have_count(1)
    assert names(page) == ["ring"]
    tab.allow("status of 404")
    page.goto(page.url.replace("#/", "#/filters/nobody"))
    expect(page.locator("#gone")).to_contain_text("there is no such filter")
    expect(page.locator("#known")).to_be_hidden()


def test_nothing_is_of_no_use(tab, make):
    """A slice that is fuller than the window is named; plots without samples, and Tokens, are left out."""
    ring = make("crowded", 3000, retention="ring", slices=3, period="1d")
    ring.insert_many(range(2400))
    page = tab.open()
    assert cells(page, "crowded", "full") == ["120 %"]
    expect(page.get_by_role("link", name="Metrics")).to_be_visible()
    expect(page.get_by_role("link", name="Tokens")).to_be_hidden()
    visit(page, "crowded")
    assert figures(page)["Items"] == ["2,400", "80 % of 3,000; the fullest slice: 120 %"]
    expect(page.locator("#plots")).to_be_hidden()
    expect(page.get_by_text("There is nothing to plot yet")).to_be_visible()


def test_rules(tab, make):
    """A filter's page says how it normalises, and by which rules; one without rules says nothing of them."""
    make(
        "ruled",
        normalize="loose",
        rules=[
            {"drop": ["sid", "<b>*"], "cut_suffix": ";jsessionid=*"},
            {"domain": "www.Shop.example", "keep": ["page", "id"]},
            {"host": "news.shop.example", "drop_all": True, "cut_prefix": "/amp", "lower_path": True},
            {"host": "ü.example"},
        ],
    )
    make("plain", normalize="sorted")
    page = visit(tab.open(), "ruled")
    settings = figures(page, "settings")
    assert (settings["Normalize"][0], settings["Rules"][0]) == ("loose", "4 rules")
    page.locator("#rules").get_by_text("Rules").click()
    assert sorted(page.locator("#rules li").all_inner_texts()) == [
        "all other hosts: cut_suffix ;jsessionid=*; drop <b>*, sid",
        "news.shop.example: cut_prefix /amp; drop_all; lower_path",
        "shop.example and below: keep id, page",
        "xn--tda.example: no rule",
    ]
    page.get_by_role("link", name="All filters").click()
    visit(page, "plain")
    settings = figures(page, "settings")
    assert (settings["Normalize"][0], "Rules" in settings) == ("sorted", False)
    expect(page.locator("#rules")).to_be_hidden()


def test_lists_of_claims(tab, make):
    """What is in flight and the dead letters, in pages; and these are offered again on demand."""
    news = make("claimed")
    with news.claims() as mine:
        mine.claim_many([{"x": [1]}, b"odd\xff", MARKUP, *map(str, range(45))])
        mine.release(["44"], failed=True)
        mine.claim("44")
        page = visit(tab.open(), "claimed")
        hands = page.locator("#in-flight")
        expect(hands.locator("tbody tr")).to_have_count(0)
        hands.get_by_text("What is in flight").click()
        expect(hands.locator("tbody tr")).to_have_count(20)
        found = []
        for count in (20, 20, 8):
            expect(hands.locator("tbody tr")).to_have_count(count)
            expect(hands.get_by_role("button", name="More")).to_be_enabled(enabled=count == 20)
            found += hands.locator("tbody tr").all_inner_texts()
            if count == 20:
                first = hands.locator("tbody th").first.inner_text()
                hands.get_by_role("button", name="More").click()
                expect(hands.locator("tbody th").first).not_to_have_text(first)
        claimed = {'{"x":[1]}', "base64: b2Rk/w==", MARKUP, *map(str, range(45))}
        assert {each.split("\t")[0] for each in found} == claimed
        (failed,) = (each for each in found if each.startswith("44\t"))
        assert failed.split("\t")[:4] == ["44", mine.holder, "1", "0"]
        hands.get_by_role("button", name="Back").click()
        expect(hands.locator("tbody tr")).to_have_count(20)

        mine.reject(["44"], "answers 404")
        mine.reject([b"odd\xff"], MARKUP)
        page.reload()
        notes = page.locator("#dead-letters")
        notes.get_by_text("Dead letters").click()
        expect(notes.locator("tbody tr")).to_have_count(2)
        assert notes.locator("tbody tr").nth(1).inner_text().split("\t")[:4] == ["44", "answers 404", "1", "0"]
        assert notes.locator("tbody tr").first.inner_text().split("\t")[:2] == ["base64: b2Rk/w==", MARKUP]
        assert page.evaluate("[document.images.length, window.hit]") == [0, None]
        question = page.get_by_role("dialog")
        notes.get_by_role("button", name="Retry base64: b2Rk/w==").click()
        expect(question).to_contain_text("Retry base64: b2Rk/w==?")
        question.get_by_role("button", name="Cancel").click()
        assert len(news.dead_letters()) == 2
        notes.get_by_role("button", name="Retry base64: b2Rk/w==").click()
        question.get_by_role("button", name="Retry").click()
        expect(page.locator("#retry-outcome")).to_have_text("1 item offered once more")
        expect(notes.locator("tbody tr")).to_have_count(1)
        assert [each.item for each in news.dead_letters()] == ["44"]
        expect(page.locator("#claims")).to_contain_text(re.compile("Dead letters12 rejected in all"))
        notes.get_by_role("button", name="Retry all").click()
        expect(question).to_contain_text("Retry all dead letters in claimed?")
        question.get_by_role("button", name="Retry").click()
        expect(notes.locator("tbody tr")).to_have_count(0)
        assert {each.item for each in mine.reclaim()} == {"44", b"odd\xff"}


def test_plots(tab, make, redis):
    """What Redis has of the last day is plotted, and gaps in it stay gaps."""
    news = make()
    uid, now = news.info().uid, time.time()
    past = {}
    for number in range(60):
        at = now - 3600 + 60 * number + 1
        if not 20 <= number < 30:
            record = [uid, at, 0, 0, 120 * number, 120 * number, number / 100, number * 1e-7]
            past[int(at // 60)] = json.dumps(record)
    redis.ask("delete", "urifilter:{news:0}:rates")
    redis.ask("hset", "urifilter:{news:0}:rates", mapping=past)
    with Service(redis.url) as own, Tab(tab.context.browser, own.url) as fresh:
        page = visit(fresh.open(), "news")
        speed = page.get_by_role("img", name=re.compile("^New items a second"))
        expect(speed).to_have_accessible_name(re.compile("at most 2$"))
        line = speed.locator(".line").get_attribute("d")
        assert line.count("M") == 2
        speed.hover()
        expect(page.locator("#plots output").first).to_have_text(re.compile(r"^[\d.]+ at \d\d:\d\d$"))
        fill = page.get_by_role("img", name=re.compile("^Bits set"))
        expect(fill).to_have_accessible_name(re.compile("at most 59 %$"))
        page.get_by_role("button", name="Day").click()
        expect(page.get_by_role("button", name="Day")).to_have_attribute("aria-pressed", "true")
        assert speed.locator(".line").get_attribute("d") != line
        expect(page.locator("#plots-refused")).to_be_hidden()
        expect(page.locator("#no-samples")).to_be_hidden()


def test_checkpoint(tab, make, archive):
    """It is shown where a filter was written back to and when, or that it was not."""
    kept, forgotten = make("kept", archive=archive), make("forgotten", archive=archive)
    kept.insert_many(range(10))
    kept.checkpoint()
    page = tab.open()
    assert re.fullmatch(r"\d+ s ago", cells(page, "kept", "checkpoint")[0])
    assert cells(page, "forgotten", "checkpoint", "problems") == ["never", "no checkpoint"]
    visit(page, "forgotten")
    assert figures(page)["Last checkpoint"] == ["never", archive]
    expect(page.locator("#filter-problems")).to_contain_text("does urifilter worker run?")
    kept.drop()
    forgotten.drop()


def test_numbers(tab):
    """Figures are rounded to what a human reads."""
    now = 1_763_730_000.5
    hands = {"in_flight": 12_345, "lapsed": 0, "delayed": 0, "holders": 2, "oldest_lapse": None, "lease": 60}
    timed = {"retention": "ring", "slices": 3, "period": "1d", "next_rotation": now + 720}
    cases = {
        "usual": (
            {"items": 1_234_567, "full": 0.1234, "error_rate_now": 2.1e-7, "memory": 12_345_678, "speed": 12.34}
            | timed,
            {"items": "1.23M", "full": "12 %", "rate": "1 in 4.8 million", "memory": "12.3 MB", "speed": "12"}
            | {"rotation": "in 12 min", "retention": "ring 3 × 1d", "in_flight": "", "full_in": "", "checkpoint": ""},
        ),
        "over": (
            {"items": 25_000, "full": 2.5, "full_in": 0, "error_rate_now": 2e-4, "claims": hands, "speed": 0.001},
            {"items": "25,000", "full": "250 %", "full_in": "now", "rate": "1 in 5,000", "in_flight": "12,345"}
            | {"speed": "3.6 an hour"},
        ),
        "late": (
            {"error_rate_now": 0.0234, "archive": "file:///a", "checkpointed": now - 10_800, "full_in": 11_000}
            | timed
            | {"next_rotation": now - 7200},
            {"rate": "1 in 43", "rotation": "2 h late", "checkpoint": "3 h ago", "full_in": "3 h", "speed": "–"},
        ),
        "precise": (
            {"error_rate_now": 1e-12, "fill": 1e-9, "full": 1e-6, "archive": "redis", "full_in": 1e12},
            {"rate": "< 1 in a billion", "full": "< 0.01 %", "checkpoint": "", "full_in": "31,688 years"},
        ),
        "empty": ({}, {"rate": "none yet", "full": "0 %", "items": "0"}),
    }
    answer(tab, "overview", json=told(*(row_of(name, **shown) for name, (shown, _) in cases.items()), now=now))
    page = tab.open()
    for name, (_, expected) in cases.items():
        assert dict(zip(expected, cells(page, name, *expected), strict=True)) == expected


def test_totals(tab):
    """All filters together: their speed and memory, and how full the fullest server is of what it may use."""
    master = {"name": "", "version": "Redis 7.0.15", "memory": 300, "limit": 1000, "uptime": 9, "persistence": "aof"}
    others = [master | {"name": "b", "limit": 400}, master | {"name": "c", "limit": None}]
    usual = [row_of("news", speed=1.25), row_of("ring", speed=0.25), row_of("new")]
    texts = {
        "Redis uses 30 % of its maxmemory of 1 kB": [master],
        "the fullest of 3 masters uses 75 % of its maxmemory of 400 B": [master, *others],
        "no maxmemory": others[1:],
    }
    answer(tab, "overview", json=told(*usual))
    page = tab.open()
    expect(page.locator("#totals")).to_have_text("new items: 1.5 a second · memory: 3 kB")
    for text, masters in texts.items():
        answer(tab, "overview", json=told(*usual, redis={"masters": masters, "findings": []}, service=SERVICE))
        expect(page.locator("#totals")).to_have_text(f"new items: 1.5 a second · memory: 3 kB · {text}")


def test_a_row_is_not_cut(tab):
    """All problems of a filter can be read at any width; a phone's list has speed and next rotation, too."""
    both = [problem("over_capacity", "danger"), problem("no_checkpoint"), problem("rotation_late")]
    row = row_of("news", problems=both, speed=12.34, retention="ring", slices=3, period="1d", next_rotation=720.0)
    answer(tab, "overview", json=told(row, row_of("n" * 64)))
    page = tab.open()
    too_wide = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.innerText)"
    for width in (360, 390, 700, 960, 1000, 1160, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        problems = rows(page).first.locator(".problems")
        expect(problems).to_have_text("over capacity, no checkpoint, rotation late")
        assert problems.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), width
        if width > 960:
            assert page.locator("#filters thead th").evaluate_all(too_wide) == [], width
        for name, text in (("speed", "12"), ("rotation", "in 12 min")):
            cell = rows(page).first.locator(f".{name}")
            expect(cell).to_be_visible()
            expect(cell).to_have_text(text)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), width


def test_the_focus_goes_along(tab, make):
    """Enter on a link puts the focus on the heading of what it leads to; later answers leave the focus alone."""
    make("news")
    page = tab.open()
    page.get_by_role("link", name="news", exact=True).press("Enter")
    expect(page.locator("#name")).to_be_focused()
    box = page.get_by_label("URIs, one a line")
    box.focus()
    with page.expect_response("**/detail"):
        pass
    with page.expect_response("**/detail"):  # what the one before it told is shown by now
        pass
    expect(box).to_be_focused()
    page.get_by_role("link", name="All filters").press("Enter")
    expect(page.locator("#problems-title")).to_be_focused()


def test_the_search_is_in_the_address(tab):
    """A reload, the link back from a filter, and the browser's way back keep what is searched for."""
    answer(tab, "overview", json=told(row_of("news"), row_of("a b&c"), row_of("ring")))
    answer(tab, "filters/**", status=404, json={"error_code": "filter_not_found", "error": "gone"})
    tab.allow("status of 404")
    page = tab.open()
    search = page.get_by_role("searchbox", name="Search")
    search.fill("b&c")
    expect(page).to_have_url(re.compile(r"#/\?search=b%26c$"))
    page.reload()
    expect(rows(page)).to_have_count(1)
    expect(search).to_have_value("b&c")
    page.get_by_role("link", name="a b&c").click()
    expect(page.locator("#gone")).to_have_text("gone")
    page.get_by_role("link", name="All filters").click()
    expect(rows(page)).to_have_count(1)
    page.go_back()
    page.go_back()
    expect(rows(page)).to_have_count(1)
    expect(search).to_have_value("b&c")
    page.get_by_role("link", name="urifilter", exact=True).click()
    expect(rows(page)).to_have_count(3)
    expect(search).to_have_value("")
    assert page.url.endswith("#/")


def test_hidden_findings(tab, make):
    """One is hidden for a day, in this browser; it can be shown again, and one that gets worse is another."""
    now = 1_763_730_000_000
    tab.page.clock.install(time=now)
    findings = [{"level": "note", "subject": each, "text": f"about {each}"} for each in ("replication", "rights")]
    state = {"masters": [], "findings": [*findings, {"level": "ok", "subject": "disk", "text": "well"}]}
    answer(tab, "overview", json=told(row_of("news"), redis=state, service=SERVICE))
    page = tab.open()
    shown, hidden = page.locator("#findings li"), page.locator("#hidden-findings")
    expect(shown).to_have_count(2)
    expect(hidden).to_be_hidden()
    page.get_by_role("button", name="Hide for a day: rights").click()
    expect(shown).to_have_count(1)
    expect(hidden).to_have_text("1 finding hidden. Show")
    page.reload()
    expect(hidden).to_be_visible()
    expect(shown).to_have_count(1)
    page.get_by_role("button", name="Show").click()
    expect(shown).to_have_count(2)
    page.get_by_role("button", name="Hide for a day: replication").click()
    expect(shown).to_have_count(1)
    page.clock.fast_forward("25:00:00")
    expect(shown).to_have_count(2)
    page.get_by_role("button", name="Hide for a day: rights").click()
    expect(shown).to_have_count(1)
    findings[1]["level"] = "danger"
    answer(tab, "overview", json=told(row_of("news"), redis=state, service=SERVICE))
    page.clock.run_for(2000)
    expect(shown).to_have_count(2)


def test_updates(tab, service, make):
    """What is inserted is counted without a reload; nothing moves, and what is typed stays."""
    make("updated", 1000)
    page = visit(tab.open(), "updated")
    page.get_by_label("URIs, one a line").press_sequentially("https://example.com/half")
    height = page.evaluate("document.scrollingElement.scrollHeight")
    uris = [f"https://example.com/{number}" for number in range(200)] * 2
    tab.context.request.post(f"{service.url}/v1/filters/updated/insert", data={"items": uris})
    expect(page.locator("#figures dd").first).to_have_text("200")
    expect(page.locator("#slices tbody td").nth(1)).to_have_text("200")
    assert slices(page) == [["today", "200", "20 %"]]
    assert page.get_by_label("URIs, one a line").input_value() == "https://example.com/half"
    assert page.evaluate("document.scrollingElement.scrollHeight") == height


def test_try(tab, make):
    """URIs in the box are checked, inserted and forgotten in the filter of the page, and the ages are said."""
    make("aside")
    news = make(retention="ring", slices=3, period="1d", error_rate=1e-8)
    page = visit(tab.open(), "news")
    both = " https://example.com/a\nhttps://example.com/b"
    assert ask(page, "contains", both) == ["2 of 2 new in news", "new", "new"]
    assert news.ages(["https://example.com/a", "https://example.com/b"]) == [0, 0]
    assert ask(page, "insert", "https://example.com/a") == ["1 of 1 new and inserted into news", "new"]
    assert ask(page, "insert", both) == ["1 of 2 new and inserted into news", "seen (age 1)", "new"]
    assert news.rotate().epoch == 1
    assert ask(page, "contains", both) == ["0 of 2 new in news", "seen (age 2)", "seen (age 2)"]
    forgotten = ask(page, "forget", "https://example.com/a\nhttps://example.com/c")
    assert forgotten == ["1 of 2 forgotten in news", "forgotten", "was not there"]
    assert news.ages(["https://example.com/a", "https://example.com/b"]) == [0, 2]
    page.get_by_label("URIs, one a line").fill(both)
    page.get_by_label("URIs, one a line").press("Control+Enter")
    expect(page.locator("#answers b")).to_have_text(["new", "seen (age 2)"])
    page.get_by_role("link", name="All filters").click()
    visit(page, "aside")
    expect(page.locator("#answers li")).to_have_count(0)


def test_refused(tab, make):
    """A filter that is gone when it is asked: the reason is shown in place of answers."""
    news = make()
    page = visit(tab.open(), "news")
    stop = "window.setInterval = () => 0; for (let id = 1; id < 1000; id += 1) clearInterval(id)"
    page.evaluate(stop)  # or the page may notice before it is asked
    assert ask(page, "contains", "https://example.com/") == ["1 of 1 new in news", "new"]
    tab.allow("status of 404")
    news.drop()
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("#outcome")).to_contain_text("filter 'news': there is no such filter")
    expect(page.locator("#answers li")).to_have_count(0)


def test_docs(browser, redis, make):
    """Swagger UI describes the API without any other origin, with the token of the tab, and tries a request."""
    make("news")
    secret = tokens.new()
    with Service(redis.url, settings=known("writer", secret, "write")) as service, Tab(browser, service.url) as tab:
        tab.allow("status of 401", "v1/overview")  # which is not waited for
        page = tab.open()
        page.goto(f"{service.url}/docs")
        page.get_by_role("link", name="Give this tab a token first").click()
        page.get_by_label("Token", exact=True).fill(secret)
        page.get_by_role("button", name="Use it in this tab").click()
        page.get_by_role("link", name="API").click()
        page.locator("#operations-items-contains").get_by_role("button").first.click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        answered = page.locator(".live-responses-table").first
        expect(answered).to_contain_text("200")
        expect(answered).to_contain_text('"seen": 0')


def test_tokens(browser, redis, make):
    """A token is asked for, kept in this tab alone and forgotten on demand; it shows only what it is for."""
    make("news").claims(lease=3600).claim("in flight")
    make("pages")
    secrets = {name: tokens.new() for name in ("read", "write", "other")}
    settings = known("reader", secrets["read"], "read", ["news"]) + known("writer", secrets["write"], "write")
    settings += known("other", secrets["other"], "write", ["weather*"])
    with Service(redis.url, settings=settings) as service, Tab(browser, service.url) as tab:
        tab.allow("status of 401")
        page = tab.open()
        field = page.get_by_label("Token", exact=True)
        expect(field).to_be_focused()
        expect(page.locator("#token-error")).to_be_empty()
        expect(page.locator("#overview")).to_be_hidden()

        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("Wrong token: the service does not know it.")
        assert page.evaluate("sessionStorage.length") == 0

        field.fill(secrets["read"])
        page.get_by_role("button", name="Use it in this tab").click()
        expect(rows(page)).to_have_count(1)
        expect(field).to_be_hidden()
        expect(page.locator("#status")).to_be_hidden()
        visit(page, "news")
        assert ask(page, "contains", "https://example.com/") == ["1 of 1 new in news", "new"]
        assert page.locator("#tools button").all_inner_texts() == ["Check"]
        expect(page.locator("#claims")).to_contain_text("In flight1")
        expect(page.locator("#in-flight")).to_be_hidden()  # payloads are for those who may claim
        expect(page.locator("#dead-letters")).to_be_hidden()
        expect(page.locator("#pastes")).to_contain_text("Bearer TOKEN")
        assert page.evaluate("[localStorage.length, document.cookie, location.search]") == [0, "", ""]

        tab.allow("ERR_ABORTED")
        page.get_by_role("button", name="Forget token").click()
        expect(field).to_be_visible()
        expect(page.locator("#filter")).to_be_hidden()
        assert page.evaluate("sessionStorage.length") == 0

        field.fill(secrets["write"])
        field.press("Enter")
        expect(page.locator("#tools button")).to_have_text(["Check", "Insert", "Forget"])
        assert ask(page, "insert", "https://example.com/") == ["1 of 1 new and inserted into news", "new"]
        page.get_by_role("link", name="All filters").click()
        expect(rows(page)).to_have_count(2)
        page.reload()
        expect(rows(page)).to_have_count(2)
        expect(page.locator("#servers")).to_contain_text("Valkey")

        page.get_by_role("button", name="Forget token").click()
        field.fill(secrets["other"])
        field.press("Enter")
        expect(page.locator("#none-title")).to_have_text("There is no filter for this token")
        expect(page.locator("#none code")).to_be_hidden()


def expect_stale(page, reason: str) -> None:
    """Check that a banner says why all is grey, and of when, over what was known: 123 items in "news"."""
    expect(page.locator("#banner")).to_have_text(re.compile(rf"^{reason}The figures are from \d\d:\d\d:\d\d.$"))
    expect(page.locator("body")).to_contain_class("stale")
    assert cells(page, "news", "items") == ["123"]


def expect_fresh(page) -> None:
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("body")).not_to_contain_class("stale")


@pytest.mark.usefixtures("usual_timeouts")
def test_redis_away(browser):
    """While Redis is away all is grey, with the time of the last answer; when it is back all goes on."""
    with Server("valkey", appendonly="yes", appendfsync="always") as own:
        with UriFilter.create("news", redis=own.url, capacity=1000) as news:
            news.insert_many(range(123))
        with Service(own.url) as service, Tab(browser, service.url) as tab:
            page = tab.open()
            assert cells(page, "news", "items") == ["123"]
            tab.allow("status of 503")
            own.kill()
            expect_stale(page, "Redis is away.*")
            own.start()
            expect_fresh(page)
            with UriFilter.open("news", redis=own.url) as news:
                news.insert("one more")
            expect(page.locator("#filters tbody .items")).to_have_text("124")


def test_service_away(browser, redis, make):
    """A service that is killed: a banner says so over what was known; when it is back all goes on."""
    make("news").insert_many(range(123))
    port = free_port()
    with Service(redis.url, "--port", port) as service, Tab(browser, service.url) as tab:
        tab.page.clock.install()
        page = tab.open()
        assert cells(page, "news", "items") == ["123"]
        expect(page.locator("#banner")).to_be_hidden()
        page.get_by_role("searchbox").fill("e")
        tab.allow(*AWAY)
        service.kill()
        page.clock.run_for(2000)
        expect_stale(page, "The service cannot be reached. ")
        with Service(redis.url, "--port", port):
            make("pages")
            page.clock.run_for(2000)
            expect_fresh(page)
            expect(rows(page)).to_have_count(2)
            assert page.get_by_role("searchbox").input_value() == "e"


def test_markup(tab, make):
    """Markup and broken text, from the service or the user, are shown as what they are."""
    news = make()
    answer(tab, "overview", json=told(row_of("news", retention=MARKUP), row_of(MARKUP, problems=[problem(MARKUP)])))
    page = tab.open()
    expect(rows(page)).to_have_count(2)
    assert names(page) == [MARKUP, "news"]
    assert rows(page).nth(1).locator(".retention").inner_text() == MARKUP
    visit(page, "news")
    page.evaluate(
        "markup => { document.getElementById('uris').value = `https://example.com/\\ud800\\n${markup}`; }", MARKUP
    )
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("#answers b")).to_have_text(["new", "new"])
    expect(page.locator("#answers span").last).to_have_text(MARKUP)
    assert page.evaluate("document.querySelector('#answers span').textContent === 'https://example.com/\\ud800'")
    assert news.ages(["https://example.com/\ud800", MARKUP]) == [1, 1]

    tab.allow("status of 409")
    answer(tab, "filters/news/contains", status=409, json={"error_code": "refused", "error": MARKUP})
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#outcome")).to_have_text(MARKUP)
    assert page.evaluate("[document.images.length, window.hit]") == [0, None]


def test_hidden(tab):
    """The page polls every two seconds, not at all while it is hidden, and at once when it is seen again."""
    items = count_polls(tab)
    page = tab.open()
    for polled in range(3):
        expect(items).to_have_text(str(polled))
        page.clock.run_for(1900)
        expect(items).to_have_text(str(polled))
        page.clock.run_for(100)
    expect(items).to_have_text("3")
    hide(page, hidden=True)
    before = tab.requests.copy()
    page.clock.run_for(8000)
    assert tab.requests == before
    hide(page, hidden=False)
    expect(items).to_have_text("4")


def test_one_poll_at_a_time(tab, make):
    """An answer that takes long is not asked for again meanwhile, and another address is asked at once after it."""
    make("news")
    stop_time(tab)
    held = []

    def hold(route) -> None:
        held.append(route)

    tab.page.route("**/v1/overview", hold)
    page = tab.open()
    for _ in range(3):
        page.clock.run_for(2000)
    wait_until(lambda: page.wait_for_timeout(10) or len(held) == 1, "nothing is asked")
    page.evaluate("location.hash = '#/filters/news'")
    held[0].fulfill(json=told(row_of("of all")))
    expect(page.locator("#figures dd").first).to_have_text("0")
    expect(page.locator("#overview")).to_be_hidden()
    assert len(held) == 1


def test_accessible(tab, make):
    """axe-core finds nothing to mend: with no filter, with many, and on the page of one; light and dark."""
    find = axe()
    page = tab.open()
    expect(page.locator("#none")).to_be_visible()
    wrong = find(page)
    ring = make("ring", 1000, retention="ring", slices=3, period="1d")
    ring.insert_many(range(900))
    mine = ring.claims()
    mine.claim_many(["a", "b"])
    mine.reject(["b"], "404")
    make("news")
    expect(rows(page)).to_have_count(2)
    for scheme, width in itertools.product(("light", "dark"), (390, 1280)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        wrong += find(page)
        visit(page, "ring")
        for name in ("#in-flight", "#dead-letters"):
            page.locator(f"{name} summary").click()
            expect(page.locator(f"{name} tbody tr")).to_have_count(1)
        wrong += find(page)
        page.get_by_role("link", name="All filters").click()
        expect(rows(page)).to_have_count(2)
    assert wrong == []


def test_looks(tab, make, tmp_path):
    """Long names, many slices and long URIs fit phones and desktops, light and dark, and can be read."""
    make("n" * 64)
    month = make("month", 1000, retention="ring", slices=30, period="1d")
    for turn in range(29):
        month.insert_many(range(10 * turn, 10 * turn + 5 + turn % 7))
        month.rotate()
    mine = month.claims(lease=3600)
    mine.claim_many(["x" * 60_000, "y" * 1000])
    mine.reject(["y" * 1000], "z" * 200)
    blank = len(tab.page.screenshot())
    page = tab.open()
    for name in ("n" * 64, "month"):
        cells(page, name)
    looks(page, tmp_path / "all", 4 * blank)
    visit(page, "n" * 64)
    figures(page)
    looks(page, tmp_path / "long", 4 * blank)
    page.get_by_role("link", name="All filters").click()
    visit(page, "month")
    expect(page.locator("#slices tbody tr")).to_have_count(30)
    ask(page, "contains", f"https://example.com/{'x' * 200}\nhttps://example.com/")
    for name in ("#in-flight", "#dead-letters"):
        page.locator(f"{name} summary").click()
        expect(page.locator(f"{name} tbody tr")).to_have_count(1)
    looks(page, tmp_path / "one", 4 * blank)


def looks(page, folder, size: int) -> None:
    """Check that nothing is wider than the screen, and that all colours can be read."""
    for width, scheme in itertools.product((360, 390, 768, 1280), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), width
        assert len(page.screenshot(path=folder / f"{width}-{scheme}.png")) > size
        ratios = {pair: contrast(*(colour(page, name) for name in pair)) for pair in READABLE}
        assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}
        assert (luminance(colour(page, "ground")) < luminance(colour(page, "text"))) == (scheme == "dark")


def colour(page, name: str) -> list[int]:
    """Return red, green and blue of one of the page's colours."""
    shown = page.evaluate(
        """name => {
            document.getElementById("banner").style.outlineColor = `var(--${name})`;
            return getComputedStyle(document.getElementById("banner")).outlineColor;
        }""",
        name,
    )
    return [int(part) for part in re.findall(r"\d+", shown)]


def luminance(rgb: list[int]) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[int], other: list[int]) -> float:
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)
