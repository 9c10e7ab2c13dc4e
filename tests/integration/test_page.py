"""The page of the service, in a real browser: nothing goes wrong on it in any of these tests (see ``Tab``)."""

from __future__ import annotations

import itertools
import re

import pytest
from support.browser import Tab, expect, launched
from support.servers import Server, free_port, wait_until
from support.service import Service

from urifilter_redis import UriFilter
from urifilter_redis.service import tokens

MARKUP = "<img src=x onerror=window.hit=1>"

#: Pairs of a text's colour and that of what is behind it.
READABLE = [
    *itertools.product(("text", "quiet", "accent", "warning"), ("ground", "raised")),
    ("raised", "accent"),
    ("raised", "warning"),
]

#: What browsers say while nobody listens.
AWAY = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED")


@pytest.fixture(scope="module")
def browser():
    with launched() as running:
        yield running


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
    with redis.client() as admin:
        admin.flushall()
    return _service


@pytest.fixture
def make(service, redis):
    """Make a filter."""
    made = []

    def create(name: str = "news", capacity: int = 10_000, **settings) -> UriFilter:
        made.append(UriFilter.create(name, capacity=capacity, redis=redis.url, **settings))
        return made[-1]

    yield create
    for each in made:
        each.close()


@pytest.fixture
def tab(browser, service):
    """A tab that is not at the page yet."""
    with Tab(browser, service.url) as opened:
        yield opened


def card(page, name: str):
    return page.get_by_role("article", name=f"Filter {name}", exact=True)


def texts(page, name: str, *fields: str) -> list[str]:
    """Return what a filter's card says, once it says something."""
    shown = card(page, name)
    expect(shown.locator("summary")).not_to_be_empty()
    return [shown.locator(f"[data-field={field}]").first.inner_text() for field in fields]


def slices(page, name: str) -> list[list[str]]:
    """Return the rows of a filter's table: age, name, items, share of its capacity."""
    rows = card(page, name).locator("tbody tr")
    expect(rows).not_to_have_count(0)
    return [
        [row.locator(f"[data-field={field}]").text_content() for field in ("age", "slice", "items", "full")]
        for row in rows.all()
    ]


def ask(page, command: str, uris: str) -> list[str]:
    """Try URIs, and return the outcome and the answers."""
    page.locator("#answers").evaluate("answers => answers.replaceChildren()")
    page.get_by_label("URIs, one a line").fill(uris)
    page.get_by_role("button", name={"contains": "Check"}.get(command, command)).click()
    expect(page.locator("#answers li")).to_have_count(len(uris.split("\n")))
    return [page.locator("#outcome").inner_text(), *page.locator("#answers b").all_inner_texts()]


def answer(tab, path: str, **reply) -> None:
    """Let a path below that of the filters answer this, whatever the service would."""
    tab.page.route(f"**/v1/filters{path}", lambda route: route.fulfill(**reply))


def told(info, now: float = 0.0) -> dict:
    """Return how the service tells a filter's info, twenty seconds after it was measured."""
    return {"now": now, "measured": now - 20, "answered": {"new": 0, "seen": 0}, "info": info}


def stop_time(tab) -> None:
    """Stop the page's time, so that it asks for nothing of itself, but for ``clock.run_for``."""
    tab.page.clock.install(time=0)
    tab.page.clock.pause_at(1)


def count_polls(tab, name: str, info):
    """Stop the page's time but for ``clock.run_for``; return where it shows how often it asked for a filter before.

    Not more than ten seconds may pass while a request is under way: it would be given up.
    """
    counter = itertools.count()
    stop_time(tab)
    tab.page.route(f"**/v1/filters/{name}", lambda route: route.fulfill(json=told(info | {"inserted": next(counter)})))
    return card(tab.page, name).locator("[data-field=items]").first


def hide(page, *, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_no_filter(tab, make):
    """Whoever has no filter is told how to make one and has nothing to try; those made later appear by themselves."""
    tab.page.clock.install()
    page = tab.open()
    expect(page.locator("#none")).to_contain_text("urifilter create news --capacity 10M")
    expect(page.locator("#try")).to_be_hidden()
    make("first")
    page.clock.run_for(2000)
    assert texts(page, "first", "items") == ["0"]
    expect(page.locator("#none")).to_be_hidden()
    expect(page.locator("#try")).to_be_visible()
    expect(card(page, "first").locator("details")).to_have_attribute("open", "")
    card(page, "first").locator("summary").click()
    make("second")
    page.clock.run_for(2000)
    assert texts(page, "second", "items") == ["0"]
    expect(card(page, "first").locator("details")).not_to_have_attribute("open", "")


def test_filters(tab, make):
    """Filters of each retention are shown as the library has them."""
    ever = make("ever", 1000)
    ever.insert_many(range(900))
    make("counting", 10_000, layout="counting").insert_many(range(1500))
    make("growing", 1000, retention="growing", error_rate=1e-8).insert_many(range(1200))
    ring = make("ring", 3000, retention="ring", slices=3, period="1d", error_rate=1e-8)
    for items in (range(400), range(400, 500), range(500, 800)):
        ring.insert_many(items)
        if items.stop < 800:
            ring.rotate()
    every = make("all", 1000, retention="ring", slices=2, period="2h", write="all", error_rate=1e-8)
    every.insert_many(range(100))
    every.rotate()
    every.insert_many(range(150, 300))
    make("rolling", 2000, retention="rolling", slices=30, period="1w", error_rate=1e-8).insert_many(range(10))
    found = ever.info()
    page = tab.open()

    expect(page.get_by_role("article")).to_have_count(6)
    assert page.get_by_role("heading", level=2).all_inner_texts()[:6] == sorted(
        ["ever", "counting", "growing", "ring", "all", "rolling"]
    )
    rate = float(f"{1 / found.error_rate_now:.1e}")
    assert texts(page, "ever", "kind", "items", "room", "rate", "promised", "fill") == [
        "forever · blocked · 1 shard",
        f"{found.inserted:,}",
        "90 % of 1,000",
        f"1 in {rate:,.0f}",
        "promised 1 in 10,000",
        f"{found.fill:.0%} of bits set".replace("%", " %"),
    ]
    assert texts(page, "ever", "rotation", "period", "checkpoint", "archive", "warning") == [
        "none",
        "nothing expires",
        "never",
        "no archive",
        "",
    ]
    assert texts(page, "counting", "kind", "items") == ["forever · counting · 1 shard", "1,500"]
    assert slices(page, "growing") == [["1", "today", "200", "10 %"], ["2", "history_1", "1,000", "100 %"]]
    assert texts(page, "ring", "kind", "items", "promised", "rotation", "period") == [
        "ring · 3 × 1d · blocked · 1 shard",
        "800",
        "promised 1 in 100 million",
        "in 24 h",
        "every 1d",
    ]
    assert slices(page, "ring") == [
        ["1", "today", "300", "15 %"],
        ["2", "history_1", "100", "5 %"],
        ["3", "history_2", "400", "20 %"],
    ]
    assert texts(page, "all", "rotation") == ["in 2 h"]
    assert slices(page, "all") == [["1", "today", "150", "15 %"], ["2", "history_1", "250", "25 %"]]
    assert texts(page, "rolling", "kind", "room", "rotation") == [
        "rolling · 30 × 1w · blocked · 1 shard",
        "0.5 % of 2,000",
        "in 7 d",
    ]


@pytest.mark.slow
def test_checkpoint(tab, make, archive):
    """It is shown where a filter was written back to and when, or that it was not."""
    kept, forgotten = make("kept", archive=archive), make("forgotten", archive=archive)
    kept.insert_many(range(10))
    kept.checkpoint()
    page = tab.open()
    assert re.fullmatch(r"\d+ s ago", texts(page, "kept", "checkpoint")[0])
    assert texts(page, "kept", "archive", "warning") == [archive, ""]
    assert texts(page, "forgotten", "checkpoint", "archive", "warning") == [
        "never",
        archive,
        "Its archive has no checkpoint yet: does urifilter worker run?",
    ]
    kept.drop()
    forgotten.drop()


@pytest.mark.slow
def test_numbers(tab, make):
    """Figures are rounded to what a human reads, and warnings say what to do."""
    now = 1_763_730_000.5
    info = make("news", 3000, retention="ring", slices=3, period="1d").info().to_dict()
    (today,) = info["live_slices"]
    today |= {"opened": now - 3 * 3600, "inserted": 1_234_567, "capacity": 10_000_000, "error_rate_now": 2.1e-7}
    info |= {"inserted": 1_234_567, "capacity": 10_000_000, "next_rotation": now + 720}
    cases = {
        "usual": (
            info | {"error_rate_now": 2.1e-7, "memory": 12_345_678, "fill": 0.00123, "checkpointed": now - 3 * 3600},
            {
                "items": "1,234,567",
                "room": "12 % of 10,000,000",
                "rate": "1 in 4,800,000",
                "memory": "12.3 MB",
                "fill": "0.12 % of bits set",
                "rotation": "in 12 min",
                "checkpoint": "3 h ago",
                "warning": "",
                "opened": "3 h ago",
            },
        ),
        "over": (
            info | {"inserted": 25_000_000, "over_capacity": True, "error_rate_now": 2e-4},
            {
                "room": "250 % of 10,000,000",
                "rate": "1 in 5,000",
                "warning": "It holds more than it was made for: make a larger one. "
                "More items are wrongly seen than promised.",
            },
        ),
        "late": (
            info | {"next_rotation": now - 7200, "phase": "restoring", "error_rate_now": 0.0234, "write": "all"},
            {
                "kind": "ring · 3 × 1d · writes all · blocked · 1 shard · restoring …",
                "rotation": "2 h late",
                "rate": "2.3 %",
                "warning": "More items are wrongly seen than promised. "
                "It is being restored. If that has stopped: urifilter restore. "
                "Nothing expires: does urifilter worker run?",
            },
        ),
        "precise": (
            info | {"error_rate": 1e-12, "error_rate_now": 0.0, "archive": "redis", "next_rotation": now - 60},
            {
                "rate": "0 %",
                "promised": "promised 1 in 1 trillion",
                "rotation": "60 s late",
                "checkpoint": "never",
                "archive": "no archive",
                "warning": "",
            },
        ),
    }
    answer(tab, "", json={"filters": list(cases)})
    for name, (shown, _) in cases.items():
        answer(tab, f"/{name}", json=told(shown, now))
    page = tab.open()
    for name, (_, expected) in cases.items():
        card(page, name).locator("details").evaluate("details => { details.open = true }")
        assert dict(zip(expected, texts(page, name, *expected), strict=True)) == expected
    assert texts(page, "usual", "summary") == ["1 slice · measured 20 s ago"]


def test_updates(tab, service, make):
    """What is inserted is counted without a reload; nothing moves, and what is typed or open stays."""
    make("updated", 1000)
    page = tab.open()
    shown = card(page, "updated")
    assert texts(page, "updated", "items", "speed") == ["0", "–"]
    page.get_by_label("URIs, one a line").press_sequentially("https://example.com/half")
    shown.evaluate(
        """article => {
            const text = (field) => article.querySelector(`[data-field=${field}]`).textContent;
            window.speeds = [];
            new MutationObserver(() => speeds.push(`${text("speed")} ${text("novelty")}`))
                .observe(article, { subtree: true, childList: true });
        }"""
    )
    height = page.evaluate("document.scrollingElement.scrollHeight")
    uris = [f"https://example.com/{number}" for number in range(200)] * 2
    tab.context.request.post(f"{service.url}/v1/filters/updated/insert", data={"URI_list": uris})

    wait_until(
        lambda: any(re.fullmatch(r"[1-9]\d+ 50 % new", each) for each in page.evaluate("speeds")), "there is no speed"
    )
    expect(shown.locator("[data-field=items]").first).to_have_text("200")
    expect(shown.locator("[data-field=room]")).to_have_text("20 % of 1,000")
    assert slices(page, "updated") == [["1", "today", "200", "20 %"]]
    assert page.get_by_label("URIs, one a line").input_value() == "https://example.com/half"
    assert page.evaluate("document.scrollingElement.scrollHeight") == height
    expect(shown.locator("details")).to_have_attribute("open", "")


def test_try(tab, make):
    """URIs in the box are checked, inserted and forgotten in the filter that is chosen, and the ages are said."""
    make("aside")
    news = make(retention="ring", slices=3, period="1d", error_rate=1e-8)
    page = tab.open()
    page.get_by_label("Filter", exact=True).select_option("news")
    both = " https://example.com/a\nhttps://example.com/b"
    assert ask(page, "contains", both) == ["2 of 2 new in news", "new", "new"]
    assert news.ages(["https://example.com/a", "https://example.com/b"]) == [0, 0]
    assert ask(page, "insert", "https://example.com/a") == ["1 of 1 new and inserted into news", "new"]
    assert ask(page, "insert", both) == ["1 of 2 new and inserted into news", "seen (age 1)", "new"]
    assert news.rotate().epoch == 1
    assert ask(page, "contains", both) == ["0 of 2 new in news", "seen (age 2)", "seen (age 2)"]
    assert ask(page, "forget", "https://example.com/a\nhttps://example.com/c") == [
        "1 of 2 forgotten in news",
        "forgotten",
        "was not there",
    ]
    assert news.ages(["https://example.com/a", "https://example.com/b"]) == [0, 2]
    page.get_by_label("URIs, one a line").fill(both)
    page.get_by_label("URIs, one a line").press("Control+Enter")
    expect(page.locator("#answers b")).to_have_text(["new", "seen (age 2)"])


@pytest.mark.slow
def test_refused(tab, make):
    """A filter that is gone when it is asked: the reason is shown in place of answers."""
    news = make()
    stop_time(tab)  # or the page may notice before it is asked
    page = tab.open()
    assert ask(page, "contains", "https://example.com/") == ["1 of 1 new in news", "new"]
    tab.allow("status of 404")
    news.drop()
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("#outcome")).to_contain_text("filter 'news': there is no such filter")
    expect(page.locator("#answers li")).to_have_count(0)


@pytest.mark.slow
def test_tokens(browser, redis, make):
    """A token is asked for, kept in this tab alone and forgotten on demand; it shows only what it is for."""
    make("news")
    make("pages")
    secrets = {access: tokens.new() for access in tokens.ACCESS}
    known = [
        tokens.Token("reader", tokens.digest(secrets["read"]), ("news",), "read"),
        tokens.Token("writer", tokens.digest(secrets["write"]), ("*",), "write"),
    ]
    settings = "\n".join(token.toml() for token in known)
    with Service(redis.url, settings=settings) as service, Tab(browser, service.url) as tab:
        tab.allow("status of 401", "status of 403")
        page = tab.open()
        field = page.get_by_label("Token", exact=True)
        expect(field).to_be_focused()
        expect(page.locator("#token-error")).to_be_empty()
        expect(page.locator("#try")).to_be_hidden()

        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("Wrong token: the service does not know it.")
        assert page.evaluate("sessionStorage.length") == 0

        field.fill(secrets["read"])
        page.get_by_role("button", name="Use it in this tab").click()
        expect(page.get_by_role("article")).to_have_count(1)
        expect(field).to_be_hidden()
        assert ask(page, "contains", "https://example.com/") == ["1 of 1 new in news", "new"]
        page.get_by_role("button", name="Insert").click()
        expect(page.locator("#outcome")).to_have_text("this token may only read")
        expect(page.locator("#answers li")).to_have_count(0)
        assert page.evaluate("[localStorage.length, document.cookie, location.search]") == [0, "", ""]

        tab.allow("ERR_ABORTED")
        page.get_by_role("button", name="Forget token").click()
        expect(field).to_be_visible()
        expect(page.get_by_role("article")).to_have_count(0)
        assert page.evaluate("sessionStorage.length") == 0

        field.fill(secrets["write"])
        field.press("Enter")
        expect(page.get_by_role("article")).to_have_count(2)
        page.reload()
        expect(page.get_by_role("article")).to_have_count(2)
        assert ask(page, "insert", "https://example.com/") == ["1 of 1 new and inserted into news", "new"]


@pytest.mark.slow
def test_service_away(browser, redis, make):
    """A service that is killed: a banner says so over what was known; when it is back all goes on."""
    make("news").insert_many(range(123))
    port = free_port()
    with Service(redis.url, "--port", port) as service, Tab(browser, service.url) as tab:
        tab.page.clock.install()
        page = tab.open()
        assert texts(page, "news", "items") == ["123"]
        expect(page.locator("#banner")).to_be_hidden()
        page.get_by_label("URIs, one a line").fill("https://example.com/half")
        tab.allow(*AWAY)
        service.kill()
        page.clock.run_for(2000)
        expect(page.get_by_role("status")).to_have_text(
            re.compile(r"^the service cannot be reached. The figures are from \d\d:\d\d:\d\d.$")
        )
        expect(card(page, "news")).to_contain_class("stale")
        assert texts(page, "news", "items") == ["123"]
        with Service(redis.url, "--port", port):
            make("pages")
            page.clock.run_for(2000)
            expect(page.locator("#banner")).to_be_hidden()
            expect(card(page, "pages")).to_be_visible()
            expect(card(page, "news")).not_to_contain_class("stale")
            assert page.get_by_label("URIs, one a line").input_value() == "https://example.com/half"


@pytest.mark.slow
def test_not_served(tab, make):
    """What the service refuses for a while, of one filter or of all, is said in its words, until it answers again."""
    make("news")
    make("pages")
    away = {"status": 503, "json": {"error_code": "server_unavailable", "error": "127.0.0.1:6379: it is away"}}
    tab.page.clock.install()
    page = tab.open()
    texts(page, "news")
    tab.allow("status of 503")

    answer(tab, "/news", **away)
    page.clock.run_for(2000)
    expect(page.get_by_role("status")).to_have_text("127.0.0.1:6379: it is away")
    expect(card(page, "news")).to_contain_class("stale")
    expect(card(page, "pages")).not_to_contain_class("stale")

    answer(tab, "", **away)
    page.clock.run_for(2000)
    expect(page.get_by_role("status")).to_contain_text("127.0.0.1:6379: it is away. The figures are from")
    expect(card(page, "pages")).to_contain_class("stale")

    page.unroute_all()
    page.clock.run_for(2000)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("article.stale")).to_have_count(0)


@pytest.mark.slow
def test_markup(tab, make):
    """Markup and broken text, from the service or the user, are shown as what they are."""
    news = make()
    info = news.info().to_dict() | {"layout": MARKUP, "archive": MARKUP, "phase": MARKUP}
    info["live_slices"][0]["name"] = MARKUP
    answer(tab, "/news", json=told(info))
    page = tab.open()
    assert texts(page, "news", "kind", "archive", "slice") == [
        f"forever · {MARKUP} · 1 shard · {MARKUP} …",
        MARKUP,
        MARKUP,
    ]
    page.evaluate(
        "markup => { document.getElementById('uris').value = `https://example.com/\\ud800\\n${markup}`; }", MARKUP
    )
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("#answers b")).to_have_text(["new", "new"])
    expect(page.locator("#answers span").last).to_have_text(MARKUP)
    assert page.evaluate("document.querySelector('#answers span').textContent === 'https://example.com/\\ud800'")
    assert news.ages(["https://example.com/\ud800", MARKUP]) == [1, 1]

    tab.allow("status of 409")
    answer(tab, "/news/contains", status=409, json={"error_code": "refused", "error": MARKUP})
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#outcome")).to_have_text(MARKUP)
    assert page.evaluate("[document.images.length, window.hit]") == [0, None]


@pytest.mark.slow
def test_hidden(tab, make):
    """The page polls every two seconds, not at all while it is hidden, and at once when it is seen again."""
    items = count_polls(tab, "news", make().info().to_dict())
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


@pytest.mark.slow
def test_one_poll_at_a_time(tab, make):
    """A filter whose answer takes long is not asked again meanwhile, and holds up no other."""
    items = count_polls(tab, "quick", make("slow").info().to_dict())
    answer(tab, "", json={"filters": ["quick", "slow"]})
    held = []

    def hold(route) -> None:
        held.append(route)

    tab.page.route("**/v1/filters/slow", hold)
    page = tab.open()
    for polled in range(3):
        expect(items).to_have_text(str(polled))
        assert len(held) == 1
        page.clock.run_for(2000)
    expect(card(page, "slow").locator("summary")).to_be_empty()
    held[0].continue_()
    assert texts(page, "slow", "items") == ["0"]


@pytest.mark.slow
def test_looks(tab, make, tmp_path):
    """Long names, many slices and long URIs fit phones and desktops, light and dark, and can be read."""
    make("n" * 64)
    month = make("month", 1000, retention="ring", slices=30, period="1d")
    for turn in range(29):
        month.insert_many(range(10 * turn, 10 * turn + 5 + turn % 7))
        month.rotate()
    blank = len(tab.page.screenshot())
    page = tab.open()
    card(page, "month").locator("details").evaluate("details => { details.open = true }")
    assert len(slices(page, "month")) == 30
    ask(page, "contains", f"https://example.com/{'x' * 200}\nhttps://example.com/")
    for width, scheme in itertools.product((360, 390, 768, 1280), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), width
        assert len(page.screenshot(path=tmp_path / f"{width}-{scheme}.png")) > 4 * blank
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
