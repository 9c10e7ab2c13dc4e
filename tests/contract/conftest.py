"""The suite "answers": each promise is one module, and holds on every surface that has the word for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import servers
from support.service import Service
from support.started import slices
from support.surfaces import ALL, Surface, cases

#: Workers that share the modules; each starts a service of its own, which takes longer than most tests.
GROUPS = 4


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let as few workers as there usually are share the modules."""
    here = f"{Path(__file__).parent}{os.sep}"
    modules: dict[str, int] = {}
    for item in items:
        if (path := str(item.path)).startswith(here):
            group = modules.setdefault(path, len(modules)) % GROUPS
            item.add_marker(pytest.mark.xdist_group(f"contract {group}"))


@pytest.fixture(scope="package")
def service(clean_server):
    """The HTTP service over a server; a filter of it has few slices at most."""
    with Service(clean_server(servers.DEFAULT).url, **{slices.VARIABLE: "yes"}) as running:
        yield running


@pytest.fixture(params=cases(*ALL))
def surface(request, any_server, service):
    """One of the six ways to ask about filters of a server that is empty."""
    with Surface(request.param, any_server, service) as made:
        yield made


@pytest.fixture
def make(surface, make_filter):
    """Make a filter by the library, and return an object of the surface about it: ``make(retention="growing")``."""

    def made(name: str = "news", **settings):
        surface.made = make_filter(name, **{"shards": 3} | settings)
        return surface.open(name)

    return made


@pytest.fixture
def news(make):
    """An object about a filter of three shards."""
    return make()


@pytest.fixture
def other(news, surface):
    """Another object about the same filter."""
    return surface.open()
