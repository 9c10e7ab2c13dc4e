"""The service while its archive is away: Redis's filters are answered, and it is said, until it is back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.browser import Tab, expect, launched
from support.servers import silent_port, wait_until
from support.service import NEWS, NEWS_TABLE, Service, ask, known, make
from support.shard_keys import shard_key

from urifilter_redis import UriFilter
from urifilter_redis.service import tokens

FILTERS = "/v1/filters"


@pytest.fixture
def nowhere():
    """The address of an archive that nobody serves."""
    return f"mongodb://127.0.0.1:{silent_port()}/urifilter?serverSelectionTimeoutMS=200"


class Disk:
    """The disk of an archive in a folder."""

    def __init__(self, folder: Path) -> None:
        self.point, self._aside = folder / "archive", folder / "aside"
        self.url = self.point.as_uri()

    def unmount(self, *, point: bool) -> None:
        self.point.rename(self._aside)
        if point:
            self.point.mkdir()

    def mount(self) -> None:
        if self.point.exists():
            self.point.rmdir()
        self._aside.rename(self.point)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def give_archive(server, name, archive) -> None:
    """Let a filter be one that was made with an archive, which is away."""
    with server.client() as admin:
        for key in admin.scan_iter(f"urifilter:{{{name}:*}}:meta"):
            admin.hset(key, "archive", archive.partition("?")[0])


def insert(service, name, items):
    return ask(service, "POST", f"{FILTERS}/{name}/insert", {"items": items})


def listed(service) -> dict:
    answer = ask(service, "GET", FILTERS)
    assert answer.status == 200, (answer, service.log())
    return answer.json()


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", NEWS_TABLE], ids=["found", "wanted"])
def test_an_archive_that_nobody_serves(any_server, nowhere, settings):
    """It starts, lists and answers the filters that Redis has, and names those whose archive is away; of others 503."""
    make(any_server.url, "news", ["a"])
    make(any_server.url, "plain", ["a"])
    give_archive(any_server, "news", nowhere)
    with Service(any_server.url, "--archive", nowhere, settings=settings) as service:
        for name in ("news", "plain"):
            assert insert(service, name, ["a", "b"]).json()["ages"] == [1, 0]
        found = listed(service)
        assert (found["filters"], list(found["problems"])) == (["news", "plain"], ["news"])
        assert "its archive is away" in found["problems"]["news"]
        assert ask(service, "GET", f"{FILTERS}/news").json()["problem"] == found["problems"]["news"]
        answer = insert(service, "other", ["a"])
        assert (answer.status, answer.json()["error_code"]) == (503, "archive_unavailable")
        assert ask(service, "GET", "/readyz").status == 200
        assert service.log().count("filter 'news' is answered from Redis alone") in {1, 2}  # before it listened, too
        assert "WARNING the archive cannot be asked" in service.log()
    assert "Traceback" not in service.log()


@pytest.mark.slow
def test_a_filter_that_is_not_there_yet(any_server, nowhere):
    """One of the settings that can only be made with its archive: 503 and not a refused start."""
    with Service(any_server.url, "--archive", nowhere, settings=NEWS_TABLE) as service:
        answer = insert(service, "news", ["a"])
        assert (answer.status, answer.json()["error_code"]) == (503, "archive_unavailable")
        assert ask(service, "GET", "/readyz").json()["error_code"] == "not_ready"
        assert ask(service, "GET", "/healthz").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("point", [True, False], ids=["empty", "gone"])
def test_an_archive_that_comes_back(any_server, disk, point):
    """Filters are opened with it again by themselves; what only it has, is listed and restored."""
    make(any_server.url, "news", ["a"], archive=disk.url)
    make(any_server.url, "other", ["a"], archive=disk.url)
    any_server.ask("delete", "urifilter:{other:0}:meta", "urifilter:{other:0}:today")
    disk.unmount(point=point)
    try:
        with Service(any_server.url, "--archive", disk.url) as service:
            assert insert(service, "news", ["a", "b"]).json()["ages"] == [1, 0]
            assert list(listed(service)["problems"]) == ["news"]
            assert insert(service, "other", ["a"]).status in {404, 503}
            disk.mount()
            wait_until(lambda: "problems" not in listed(service), "it does not find its archive again")
            assert service.log().count("WARNING the archive is back") == (not point)  # an empty folder is no outage
            assert insert(service, "news", ["a", "b", "c"]).json()["ages"] == [1, 1, 0]
            assert "other" in listed(service)["filters"]
            assert insert(service, "other", ["a", "b"]).json()["ages"] == [1, 0]
    finally:
        if disk._aside.exists():
            disk.mount()


@pytest.mark.slow
def test_an_archive_that_goes_away(any_server, disk):
    """Filters that are open are answered as before, and listed, those that only it has too."""
    make(any_server.url, "news", ["a"], archive=disk.url)
    make(any_server.url, "asleep", ["a"], archive=disk.url)
    any_server.ask("delete", "urifilter:{asleep:0}:meta", "urifilter:{asleep:0}:today")
    any_server.ask("srem", "urifilter:filters", "asleep")
    with Service(any_server.url, "--archive", disk.url) as service:
        assert wait_until(lambda: listed(service)["filters"] == ["asleep", "news"], "not listed")
        assert insert(service, "news", ["a"]).json()["ages"] == [1]
        assert "problems" not in listed(service)
        assert "the archive is back" not in service.log()
        disk.unmount(point=False)
        found = listed(service)
        assert found["filters"] == list(found["problems"]) == ["asleep", "news"]
        assert "nothing is written back" in ask(service, "GET", f"{FILTERS}/news").json()["problem"]
        assert insert(service, "news", ["a", "b"]).json()["ages"] == [1, 0]


@pytest.mark.slow
def test_the_page_shows_it(any_server, nowhere):
    """The page of all filters says what is wrong, and the figures are there."""
    make(any_server.url, "news", ["a"])
    give_archive(any_server, "news", nowhere)
    with (
        Service(any_server.url, "--archive", nowhere) as service,
        launched() as browser,
        Tab(browser, service.url) as tab,
    ):
        shown = tab.open().locator("#filters tbody tr").filter(has_text="news")
        expect(shown.locator(".problems")).to_contain_text("archive")
        expect(shown.locator(".items")).to_have_text("1")


def test_a_lost_bitmap(server, disk):
    """It is restored, which nobody overlooks: log, page, info and metrics tell it until it is acknowledged.

    A call of which a shard has answered is not repeated, because what it inserted would be answered "seen".
    """
    items, path = [f"u{each}" for each in range(20)], f"{FILTERS}/news/insert"
    with UriFilter.create("news", redis=server.url, archive=disk.url, shards=2, **NEWS) as news:
        news.insert_many(["a", "b"])
        news.checkpoint()
    secret = tokens.new()
    asked = partial(ask, token=secret)
    with Service(server.url, "--archive", disk.url, settings=known("admin", secret, "admin")) as service:
        assert asked(service, "POST", path, {"items": ["a", "b"]}).json()["ages"] == [1, 1]
        # A sample that looks at the bitmaps might find the loss before the call; after the first one none does so soon.
        wait_until(lambda: server.ask("exists", shard_key("news", 0, 2, "rates")), "the service takes no sample")
        server.ask("delete", shard_key("news", 1, 2, "today"))
        answer = asked(service, "POST", path, {"items": items})
        assert (answer.status, answer.json()["error_code"]) == (503, "answer_lost")
        assert set(answer.json()["ages"]) == {0, None}
        ages = asked(service, "POST", path, {"items": ["a", "b", *items]}).json()["ages"]
        assert ages == [1, 1, *(0 if each is None else 1 for each in answer.json()["ages"])]
        assert service.log().count("urifilter acknowledge news") == 1
        told = asked(service, "GET", f"{FILTERS}/news").json()["info"]["loss"]
        assert told["shards"] == 1
        (row,) = asked(service, "GET", "/v1/overview").json()["filters"]
        assert [(each["code"], each["level"]) for each in row["problems"]] == [("lost_items", "danger")]
        assert (
            'urifilter_filter_restored_unacknowledged{filter="news"} 1.0'
            in asked(service, "GET", "/metrics").body.decode()
        )
        assert asked(service, "POST", f"{FILTERS}/news/acknowledge", {}).json() == {"filter": "news", "shards": 1}
        assert asked(service, "GET", f"{FILTERS}/news").json()["info"]["loss"] is None


@pytest.mark.slow
def test_a_lost_bitmap_without_a_checkpoint(server, disk):
    """Nothing is restored, and everybody gets 503, again and again."""
    UriFilter.create("news", redis=server.url, archive=disk.url, **NEWS).close()
    with Service(server.url, "--archive", disk.url) as service:
        assert insert(service, "news", ["a"]).json()["ages"] == [0]
        server.ask("delete", shard_key("news", 0, 1, "today"))
        for _ in range(3):
            answer = insert(service, "news", ["a"])
            assert (answer.status, answer.json()["error_code"]) == (503, "slice_lost")
