"""What a caller says to ``create`` and ``open``: their signatures, the settings' among them, and the options."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from urifilter_redis import AsyncUriFilter, FilterSettings, UriFilter
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.protocol.config import Settings

CLIENTS = pytest.mark.parametrize("client", [UriFilter, AsyncUriFilter])


@CLIENTS
def test_the_signature_of_create(client):
    """``help`` shows the settings, which type checkers take from ``FilterSettings``, with their defaults."""
    shown, settings = inspect.signature(client.create).parameters, Settings(capacity=1)
    opened = list(inspect.signature(client.open).parameters)
    assert list(shown) == ["name", *FilterSettings.__annotations__, "large", "items", *opened[1:]]
    given = {name: each.default for name, each in shown.items() if each.default is not inspect.Parameter.empty}
    assert shown.keys() - given.keys() == {"name", "capacity"}
    assert all(getattr(settings, name) == given[name] for name in FilterSettings.__annotations__ if name != "capacity")


@CLIENTS
def test_create_describes_all_arguments(client):
    """Also those of ``open``, which refers to it."""
    described = inspect.getdoc(client.create)
    assert [name for name in inspect.signature(client.create).parameters if f"    {name}: " not in described] == []


def test_the_options_are_the_arguments_of_open():
    """In their order, in which both methods pass them on."""
    arguments = inspect.signature(AsyncUriFilter.open).parameters
    assert [each.name for each in fields(ClientOptions)] == [each for each in arguments if each != "near_cache_seconds"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": None}, ValueError),
        ({"prefix": "{"}, ValueError),
        ({"timeouts": 3}, TypeError),
        ({"rotate": "often"}, ValueError),
        ({"coalesce": 1}, TypeError),
    ],
)
def test_impossible_options(wrong, error):
    """They are refused before anything is connected, or an embedded server started."""
    with pytest.raises(error):
        ClientOptions(**{"name": "news"} | wrong)
