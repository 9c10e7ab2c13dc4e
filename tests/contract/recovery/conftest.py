"""Each of the four clients, behind a network that loses what a test wants."""

from __future__ import annotations

import pytest
from support.recovering import ITEMS_A_REQUEST, PRECISE, Client
from support.surfaces import PYTHON, cases

from urifilter_redis.protocol import scripts

#: The commands of this suite. The server has their scripts, so that a reply that is lost is one to a call.
COMMANDS = {"insert", "contains", "forget", "claim", "commit", "release", "reclaim", "beat"}


@pytest.fixture
def make_filter_at(make_filter):
    """Make the filter on a server: ``make_filter_at(server)``; it is opened over a network that loses nothing."""

    def make(server):
        made = make_filter(redis=server.url, **PRECISE)
        with server.client() as admin, admin.pipeline(transaction=False) as loading:
            for each in scripts.variants((made.config.k,)):
                command, _, variant = each.name.partition(":")
                if command in COMMANDS and variant.partition("-")[0] in {"", "blocked"}:
                    loading.script_load(each.source)
            loading.execute()
        return made

    return make


@pytest.fixture
def news(any_server, make_filter_at):
    """The filter, opened by another client."""
    return make_filter_at(any_server)


@pytest.fixture(params=cases(*PYTHON))
def client(request, any_server, service, news, monkeypatch):
    """One of the four clients, of which a call about ``ITEMS`` has three requests."""
    monkeypatch.setattr("urifilter_redis.sdk.calls.ITEMS_A_REQUEST", ITEMS_A_REQUEST)
    with Client(request.param, any_server, service) as made:
        yield made
