"""Actions on the page of the service, and its tokens, in a real browser."""

from __future__ import annotations

import re

import pytest
from support.browser import Tab, axe, expect
from support.page import rows, sign_in, visit
from support.servers import Server
from support.service import Service, ask, known

from urifilter_redis import FilterNotFound, UriFilter
from urifilter_redis.service import tokens

pytestmark = pytest.mark.slow

#: By the token's name: its filters and its access.
TOKENS = {"boss": ("*", "admin"), "crawlers": ("*", "write"), "looker": ("*", "read"), "clerk": ("news", "admin")}


@pytest.fixture(scope="module")
def secrets():
    return {name: tokens.new() for name in TOKENS}


@pytest.fixture(scope="module")
def redis():
    with Server("valkey") as server:
        yield server


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return tmp_path_factory.mktemp("archive").as_uri()


@pytest.fixture(scope="module")
def service(redis, archive, secrets):
    settings = [known(name, secrets[name], access, [filters]) for name, (filters, access) in TOKENS.items()]
    with Service(redis.url, "--archive", archive, settings="".join(settings)) as running:
        yield running


@pytest.fixture
def tab(browser, service):
    with Tab(browser, service.url) as opened:
        yield opened


@pytest.fixture
def make(redis, make_filter, request):
    """Make a filter whose name has the test's in it, so that no other test has seen it."""

    def create(name: str = "news", capacity: int = 10_000, **settings) -> UriFilter:
        name = re.sub(r"[^\w-]", "-", f"{request.node.name}-{name}")
        return make_filter(name, redis=redis.url, capacity=capacity, error_rate=1e-4, seed=1, **settings)

    return create


def act(page, label: str):
    """Begin an action, and return its question."""
    page.locator("#actions").get_by_role("button", name=label).click()
    return page.get_by_role("dialog")


def agree(question, label: str) -> None:
    """Say yes to the question of an action."""
    question.get_by_role("button", name=label).click()


def outcome(page):
    return page.locator("#action-outcome")


def test_make_and_rotate(tab, make, redis, secrets):
    """An admin makes a ring, and rotates it from the epoch that the question names; Cancel changes nothing.

    While the filter cannot be made, the service's reason stands below the form, which keeps its values.
    """
    taken = make().name
    tab.allow("status of 409")
    page = sign_in(tab, secrets["boss"])
    page.get_by_text("Make a filter").click()
    page.get_by_label("Name", exact=True).fill(taken)
    page.get_by_label("Capacity").fill("20k")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("#make-error")).to_contain_text("capacity")
    expect(page.get_by_label("Capacity")).to_have_value("20k")
    expect(page.get_by_role("button", name="Make it")).to_be_enabled()

    page.get_by_label("Name", exact=True).fill("weather")
    page.get_by_label("Capacity").fill("0.5M")
    expect(page.locator("#new-slices")).to_be_hidden()
    page.get_by_label("Retention").select_option("ring")
    page.locator("#new-slices").fill("3")
    page.locator("#new-period").fill("12h")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("#name")).to_have_text("weather")
    expect(outcome(page)).to_have_text("weather: made")
    expect(page.locator("#kind")).to_contain_text("ring · 3 × 12h")
    with UriFilter.open("weather", redis=redis.url) as weather:
        assert weather.info().capacity == 500_000
        assert weather.info().error_rate == 0.0001
        for epoch in (1, 2):
            question = act(page, "Rotate")
            expect(question).to_contain_text(f"in epoch {epoch}. If all 3 slices are in use")
            if epoch == 1:
                question.get_by_role("button", name="Cancel").click()
                expect(question).to_be_hidden()
                assert weather.info().epoch == 0
                act(page, "Rotate")
            agree(question, "Rotate")
            expect(outcome(page)).to_have_text(f"weather: rotated: this is epoch {epoch}")
            assert weather.info().epoch == epoch
        expect(page.locator("#slices tbody tr")).to_have_count(3)


def test_checkpoint_and_restore(tab, make, archive, redis, secrets):
    """A checkpoint is written to the archive, from which the filter comes back when Redis has lost it."""
    news = make(archive=archive)
    news.insert_many(range(100))
    page = visit(sign_in(tab, secrets["boss"]), news.name)
    expect(act(page, "Checkpoint")).to_contain_text(f"All of it is written to {archive}")
    page.keyboard.press("Escape")
    assert news.info().checkpointed is None
    agree(act(page, "Checkpoint"), "Checkpoint")
    expect(outcome(page)).to_have_text(re.compile(rf"{news.name}: checkpoint 1 is written: 1 shard, [\d.]+ k?B"))
    assert news.info().checkpointed is not None
    redis.ask("flushall")
    question = act(page, "Restore")
    expect(question).to_contain_text(re.compile(r"after the last checkpoint( \(\d+ s ago\))? is new again"))
    agree(question, "Restore")
    expect(outcome(page)).to_have_text(f"{news.name}: whole: all that Redis lacked is back")
    with UriFilter.open(news.name, redis=redis.url, archive=archive) as again:
        assert again.contains_many(range(100)) == [True] * 100
    assert f"POST /v1/filters/{news.name}/restore" in tab.requests


def test_acknowledge(tab, make, archive, redis, secrets):
    """What a restore that nobody asked for may have lost stands on the page until an admin knows of it."""
    news = make(archive=archive)
    news.insert_many(range(100))
    news.checkpoint()
    with redis.client() as admin:
        admin.flushall()
    with UriFilter.open(news.name, redis=redis.url, archive=archive) as again:
        assert again.info().loss is not None
        page = visit(sign_in(tab, secrets["boss"]), news.name)
        expect(page.locator("#filter-problems")).to_contain_text("urifilter acknowledge")
        question = act(page, "Acknowledge")
        expect(question).to_contain_text("What came after the checkpoint may be new once more.")
        agree(question, "Acknowledge")
        expect(outcome(page)).to_have_text(f"{news.name}: acknowledged")
        expect(page.locator("#actions").get_by_role("button", name="Acknowledge")).to_be_hidden()
        assert again.info().loss is None


def test_unite(tab, make, secrets):
    """The items of several other filters are inserted; an action that fails says why, and can be tried again."""
    news, one, other = make(), make("one"), make("other")
    one.insert_many(range(100))
    other.insert_many(range(100, 300))
    tab.allow("status of 422")
    page = visit(sign_in(tab, secrets["boss"]), news.name)
    question = act(page, "Unite")
    expect(question.get_by_role("button", name="Unite")).to_be_disabled()
    question.get_by_role("textbox").fill(news.name)
    agree(question, "Unite")
    expect(outcome(page)).to_have_class("danger")
    expect(outcome(page)).not_to_be_empty()
    expect(page.locator("#action-buttons button").first).to_be_enabled()

    act(page, "Unite")
    question.get_by_role("textbox").fill(f"{one.name}, {other.name}")
    agree(question, "Unite")
    expect(outcome(page)).to_have_text(re.compile(rf"{news.name}: about (29\d|30\d) items added"))
    assert news.contains_many(range(300)) == [True] * 300


def test_unite_over_capacity(tab, make, secrets):
    """The question says what would come of it; Cancel merges nothing, a yes does."""
    news, more = make(capacity=150), make("more", capacity=150)
    news.insert_many(range(100))
    more.insert_many(range(100, 250))
    tab.allow("status of 409")
    page = visit(sign_in(tab, secrets["boss"]), news.name)
    for answer in ("Cancel", "Unite all the same"):
        question = act(page, "Unite")
        question.get_by_role("textbox").fill(more.name)
        agree(question, "Unite")
        expect(question).to_contain_text("nothing was merged")
        question.get_by_role("button", name=answer).click()
        if answer == "Cancel":
            expect(outcome(page)).to_contain_text("nothing was merged")
            assert news.inserted() == 100
    expect(outcome(page)).to_have_text(re.compile(rf"{news.name}: about 1\d\d items added"))
    assert news.contains_many(range(250)) == [True] * 250


def test_drop(tab, make, redis, service, secrets):
    """Once its name is typed, and not before, a filter is dropped, and the list says so; the audit log says by whom."""
    news = make()
    page = visit(sign_in(tab, secrets["boss"]), news.name)
    question = act(page, "Drop")
    drop = question.get_by_role("button", name="Drop")
    expect(drop).to_be_disabled()
    question.get_by_role("textbox").fill(news.name[:-1])
    expect(drop).to_be_disabled()
    question.get_by_role("textbox").press("Enter")
    question.get_by_role("textbox").fill(news.name)
    expect(drop).to_be_enabled()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert news.contains("a") is False  # it is there yet

    tab.allow("status of 404")
    act(page, "Drop")
    expect(drop).to_be_disabled()
    question.get_by_role("textbox").fill(news.name)
    drop.click()
    expect(page.locator("#notice")).to_have_text(f"{news.name}: dropped")
    expect(page).to_have_url(re.compile("#/$"))
    expect(page.locator("#filter")).to_be_hidden()
    expect(page.get_by_role("link", name=news.name)).to_have_count(0)
    page.get_by_role("link", name="Tokens").click()
    expect(page.locator("#notice")).to_be_hidden()
    with pytest.raises(FilterNotFound):
        UriFilter.open(news.name, redis=redis.url)
    [line] = [each for each in service.log().splitlines() if f"filter={news.name} " in each and "action=drop" in each]
    assert "token=boss" in line
    assert "result=ok" in line


def test_many_tried_uris(tab, make, secrets):
    """Their answers scroll in a box of their own, so that the actions stay where they are."""
    page = visit(sign_in(tab, secrets["boss"]), make().name)
    tops = []
    for count in (5, 203):
        page.get_by_label("URIs, one a line").fill("\n".join(f"https://example.com/{each}" for each in range(count)))
        page.get_by_role("button", name="Check").click()
        expect(page.locator("#answers li")).to_have_count(count)
        tops.append(page.locator("#actions").evaluate("box => box.getBoundingClientRect().top + scrollY"))
    assert tops[1] - tops[0] < 300
    last = page.locator("#answers li").last
    page.locator("#answers").press("End")
    expect(last).to_be_in_viewport()
    assert axe()(page) == []


def test_a_long_action(tab, make, archive, secrets):
    """An action that takes long is asked for again until it is done; meanwhile no other one can be begun.

    What came of it stands on its own filter's page alone.
    """
    name, other = make(archive=archive).name, make("other").name
    held = []
    tab.page.route("**/checkpoint", lambda route: held.append(route) if not held else route.continue_())
    tab.allow("ERR_ABORTED")
    page = visit(sign_in(tab, secrets["boss"]), name)
    agree(act(page, "Checkpoint"), "Checkpoint")
    expect(outcome(page)).to_have_text("Checkpoint is under way …")
    expect(page.locator("#action-buttons button:enabled")).to_have_count(0)
    expect(outcome(page)).to_contain_text("checkpoint 1 is written", timeout=30_000)
    assert tab.requests.count(f"POST /v1/filters/{name}/checkpoint") == 2
    expect(page.locator("#action-buttons button:disabled")).to_have_count(0)
    page.get_by_role("link", name="All filters").click()
    visit(page, other)
    expect(outcome(page)).to_be_empty()
    assert page.locator("#action-buttons button").all_inner_texts() == ["Unite …", "Drop …"]


@pytest.mark.parametrize("name", ["crawlers", "looker"])
def test_no_admin(tab, make, secrets, name):
    """A token that may not act sees no action; one that may only read sees no button that writes."""
    news = make()
    page = sign_in(tab, secrets[name])
    expect(rows(page).first).to_be_visible()
    expect(page.locator("#making")).to_be_hidden()
    visit(page, news.name)
    expect(page.locator("#actions")).to_be_hidden()
    written = ["Insert", "Forget"] if name == "crawlers" else []
    assert page.locator("button.write:visible").all_inner_texts() == written


def test_use(tab, make, service, secrets):
    """Of each token the last use is shown, and of each refused address how often it was."""
    make()
    assert ask(service, "GET", "/v1/filters", token="wrong").status == 401
    page = sign_in(tab, secrets["looker"])
    page.get_by_role("link", name="Tokens").click()
    lines = page.locator("#tokens tbody tr")
    expect(lines).to_have_count(len(TOKENS))
    assert page.title() == "Tokens – urifilter"
    shown = {each.locator("th").inner_text(): each.locator("td").all_inner_texts() for each in lines.all()}
    assert {name: texts[:2] for name, texts in shown.items()} == {name: list(each) for name, each in TOKENS.items()}
    assert re.fullmatch(r"\d+ (s|min) ago", shown["looker"][2])
    expect(page.locator("#refusals tbody th")).to_have_text(["127.0.0.1"])
    assert int(page.locator("#refusals tbody td").first.inner_text()) >= 1
    page.get_by_role("link", name="All filters").click()
    expect(rows(page).first).to_be_visible()


def test_use_is_for_tokens_of_all_filters(tab, secrets):
    """A token of some filters has no link to it, and the address says why."""
    tab.allow("status of 403")
    page = sign_in(tab, secrets["clerk"])
    expect(page.locator("#none")).to_be_visible()
    expect(page.get_by_role("link", name="Tokens")).to_be_hidden()
    expect(page.get_by_role("link", name="Metrics")).to_be_hidden()
    page.evaluate("location.hash = '#/tokens'")
    expect(page.locator("#banner")).to_contain_text("for tokens of all filters")
    expect(page.locator("#access")).to_be_hidden()


def test_metrics(tab, secrets):
    """The link to the metrics works with the token of the tab, which no address has in it."""
    tab.allow("another origin: blob:", "ERR_ABORTED")  # the page may be asking as it is left
    page = sign_in(tab, secrets["looker"])
    page.get_by_role("link", name="Metrics").click()
    page.wait_for_url(re.compile("^blob:"))
    expect(page.locator("body")).to_contain_text("urifilter_redis_up 1.0")
    assert not any(secrets["looker"] in each for each in tab.requests)
    page.go_back()
    expect(page.locator("#servers")).to_contain_text("Valkey")


def test_accessible(tab, make, archive, secrets):
    """A phone shows the form whole; axe-core finds nothing to mend in it, the actions, a question and the tokens."""
    find, wrong = axe(), []
    news = make(archive=archive)
    page = sign_in(tab, secrets["boss"])
    page.get_by_text("Make a filter").click()
    page.get_by_label("Retention").select_option("ring")
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        wrong += find(page)
        visit(page, news.name)
        wrong += find(page)
        act(page, "Drop")
        wrong += find(page)
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_role("link", name="Tokens").click()
        expect(page.locator("#tokens tbody tr")).to_have_count(len(TOKENS))
        wrong += find(page)
        page.get_by_role("link", name="All filters").click()
        expect(rows(page).first).to_be_visible()
    assert wrong == []
