"""What is no item, and arguments of the wrong type: each public method refuses them by name, and does nothing."""

from __future__ import annotations

import pytest
from support.blocked import Clients

from urifilter_redis import Timeouts, UriFilter, drop_filter, list_filters
from urifilter_redis.sdk import FilterAPIClient

#: Of no argument the right type.
NOTHING = object()


@pytest.fixture
def news(make_filter):
    return make_filter(capacity=1000)


@pytest.fixture
def api(service_for_admins):
    service, token = service_for_admins
    with FilterAPIClient(service.url, token) as client:
        client.create("news", capacity=1000)
        yield client


#: Methods that take a list of items, of both clients and of claims.
OF_LISTS = ("insert_many", "insert_ages", "unique", "contains_many", "ages", "forget", "commit", "release")


def refused(name: str, call, *values: object) -> None:
    """A call refuses each value, and its error has the argument's name."""
    for value in values:
        with pytest.raises((TypeError, ValueError), match=name) as caught:
            call(value)
        assert not isinstance(caught.value, UnicodeError)


@pytest.mark.parametrize("name", OF_LISTS)
def test_lists_and_functions(news, name):
    """A list is a collection, and a key a function."""
    method = getattr(news, name)
    refused("a list of items is wanted", method, None, 5, "text", b"bytes", NOTHING)
    refused("key is a function", lambda key: method(["a"], key=key), "url", 5, [])


def test_arguments_of_a_filter(news):
    """Each by its name; what is no flag is not taken for True."""
    refused("call_key is a str", lambda value: news.insert_many(["a"], call_key=value), b"a", 5)
    refused("failed is True or False", lambda value: news.release(["a"], failed=value), "no", None, 1)
    refused("dry_run is True or False", lambda value: news.rotate(dry_run=value), "no", None)
    refused("expected_epoch is a whole number", news.rotate, "0", 1.5, [True])
    refused("over_capacity is True or False", lambda value: news.union("other", over_capacity=value), "no", None)
    refused("a filter's name", news.union, None, 5, b"other")
    refused("full is True or False", lambda value: news.checkpoint(full=value), "no", None)
    refused("keep_archive is True or False", lambda value: news.drop(keep_archive=value), "no", None)
    refused("a holder is", news.beat, None, 5, b"0123456789abcdef")
    refused("on_progress is a function", lambda value: setattr(news, "on_progress", value), None, 5)
    refused("limit is", news.dead_letters, None, "5", [True])
    assert news.insert("a") is True


def test_arguments_of_claims(news):
    """Each by its name. A reason of None would commit the items without a note."""
    refused("name is a str", lambda value: news.claims(name=value), 5, b"mine")
    refused("beats is True or False", lambda value: news.claims(beats=value), "no", None)
    refused("pauses is True or False", lambda value: news.claims(pauses=value), "no", None)
    refused("a holder is", lambda value: news.claims(holder=value), 5, b"0123456789abcdef")
    with news.claims(beats=False) as mine:
        assert mine.claim("a")
        refused("reason is a str", lambda value: mine.reject(["a"], value), None, b"answers 500", 5)
        refused("payload is a function", lambda value: mine.claim_many(["b"], payload=value), "text", 5)
        refused("failed is True or False", lambda value: mine.release(["a"], failed=value), "no", None)
        refused("within is a number", mine.outstanding, "5", [True], NOTHING)
        assert [claim.item for claim in mine.held] == ["a"]
        assert mine.reject(["a"], "answers 500") == [True]


def test_where_a_filter_is(any_server):
    """The arguments of ``create``, ``open``, ``drop_filter``, ``list_filters``: nothing is made, opened or dropped."""
    url = any_server.url
    UriFilter.create("any", capacity=1000, redis=url).close()  # the name that stands for the server alone

    def create(**wrong):
        UriFilter.create(**{"name": "made", "capacity": 1000, "redis": url} | wrong)

    for call in (create, lambda name: UriFilter.open(name, redis=url), lambda name: drop_filter(name, redis=url)):
        refused("a filter's name", lambda value, call=call: call(name=value), None, 5, b"any")
    refused("a key prefix", lambda value: list_filters(redis=url, prefix=value), None, 5, b"urifilter")
    refused("timeouts is", lambda value: create(timeouts=value), 5, [], {})
    refused("total is a number", lambda value: Timeouts(total=value), "5", [True])
    refused("restoring is a number", lambda value: Timeouts(restoring=value), None, "5")
    for name, wanted, values in (
        ("archive", "a str, or None", (5, [], b"file:///a")),
        ("items", "a str, or None", (5, b"urls")),
        ("large", "True or False", ("no", None)),
        ("error_rate", "from", (None, "1e-4")),
    ):
        refused(f"{name} is {wanted}", lambda value, name=name: create(**{name: value}), *values)
    assert list_filters(redis=url) == ["any"]


def test_whether_calls_are_sent_together(any_server):
    """That is an argument of the awaited client alone; for all others one code makes both."""
    with Clients("asyncio") as clients, pytest.raises(TypeError, match="coalesce is True or False"):
        clients.create("made", capacity=1000, redis=any_server.url, coalesce="no")
    assert list_filters(redis=any_server.url) == []


def test_arguments_over_http(api):
    """The SDK refuses by the same names, before it sends anything."""
    refused("filter_typeid is a str", api.info, None, 5, b"news")
    refused("filter_typeid is a str", api.claims, None, 5)
    refused("max_age is a whole number", lambda value: api.ages("news", ["a"], max_age=value), "1", b"1", [True])
    refused("expected_epoch is a whole number", lambda value: api.rotate("news", value), "1", 1.5)
    refused("dry_run is True or False", lambda value: api.rotate("news", dry_run=value), "no", None)
    refused("full is True or False", lambda value: api.checkpoint("news", full=value), "no")
    refused("uid is a str", lambda value: api.drop("news", value), None, 5)
    refused("a source is a str", lambda value: api.union("news", value), None, 5)
    refused("large is True or False", lambda value: api.create("more", large=value, capacity=1000), "no")
    refused("url is a str", FilterAPIClient, 5, b"http://127.0.0.1:1")
    refused("access_token is a str", lambda value: FilterAPIClient(None, value), 5, b"token")
    with api.claims("news") as mine:
        assert mine.claim("a")
        refused("reason is a str", lambda value: mine.reject(["a"], value), None, b"answers 500")
        refused("payload is a function", lambda value: mine.claim_many(["b"], payload=value), "text")
        refused("failed is True or False", lambda value: mine.release(["a"], failed=value), "no")
    assert "more" not in api.filters()
