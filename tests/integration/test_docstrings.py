"""Every public method has an example in its docstring, and the examples do what they say."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import urifilter_redis
from urifilter_redis import (
    AsyncClaims,
    AsyncUriFilter,
    Claims,
    Timeouts,
    UriFilter,
    drop_filter,
    errors,
    list_filters,
)  # fmt: skip
from urifilter_redis.archive import export, importing, maintenance
from urifilter_redis.base_client import BaseClient
from urifilter_redis.claiming.base import BaseClaims
from urifilter_redis.engine.driver import drive
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPI, FilterAPIClient
from urifilter_redis.sdk import Timeouts as SdkTimeouts
from urifilter_redis.sdk.aio import AsyncAdmin
from urifilter_redis.sdk.client import Admin
from urifilter_redis.service import settings
from urifilter_redis.storage import backends, registry
from urifilter_redis.worker import Worker

pytestmark = pytest.mark.slow

CLASSES = {
    "UriFilter": (BaseClient, UriFilter, BaseClaims, Claims),
    "AsyncUriFilter": (BaseClient, AsyncUriFilter, BaseClaims, AsyncClaims),
}
FILTERS = {
    "news": {},
    "counted": {"layout": "counting"},
    "daily": {"retention": "ring", "slices": 30, "period": "1d"},
    "archived": {},
}
WITHOUT_A_CLIENT = [
    export.export, importing.import_, export.ExportedFilter,
    backends.named_backend, backends.open_backend, registry.registered,
    maintenance.entries, maintenance.names, maintenance.prune, maintenance.show, maintenance.verify_all, Worker,
]  # fmt: skip
SDK_CLASSES = {"FilterAPIClient": (FilterAPIClient,), "AsyncFilterAPIClient": (AsyncFilterAPIClient,)}
ACTING = {"FilterAPIClient": (Admin,), "AsyncFilterAPIClient": (AsyncAdmin,)}
SDK_NAMES = {
    "FilterAPI": FilterAPI,
    "FilterAPIClient": FilterAPIClient,
    "AsyncFilterAPIClient": AsyncFilterAPIClient,
    "Timeouts": SdkTimeouts,
}
SERVICE = "http://localhost:8000"  # in the examples of the SDK
PAIRS = [
    (UriFilter, AsyncUriFilter),
    (Claims, AsyncClaims),
    (FilterAPIClient, AsyncFilterAPIClient),
    (Admin, AsyncAdmin),
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def documented(classes):
    """The public methods and properties of clients with their docstrings."""
    for name, owners in classes.items():
        for owner in owners:
            for each, member in vars(owner).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if (not each.startswith("_") or each == "__call__") and inspect.isfunction(function):
                    yield pytest.param(name, inspect.getdoc(function) or "", id=f"{name}.{owner.__name__}.{each}")


def documented_classes():
    """The public classes of the library with their docstrings; the asyncio client has its own filters."""
    for name in urifilter_redis.__all__:
        found = getattr(urifilter_redis, name)
        if inspect.isclass(found) and not issubclass(found, Exception):
            client = "AsyncUriFilter" if name.startswith("Async") else "UriFilter"
            yield pytest.param(client, inspect.getdoc(found) or "", id=name)


@pytest.mark.parametrize("function", [drop_filter, list_filters, Timeouts], ids=lambda function: function.__name__)
def test_example_of_a_function(any_server, monkeypatch, function):
    """Each example of a function does what it says."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    UriFilter.create("news", capacity=10).close()
    names = {each.__name__: each for each in (drop_filter, list_filters, Timeouts)}
    asyncio.run(check(inspect.getdoc(function), names))


@pytest.mark.parametrize("name", errors.__all__)
def test_example_of_an_error(name):
    """Each error has an example in which a caller handles it."""
    sources = [each.source for each in doctest.DocTestParser().get_examples(inspect.getdoc(getattr(errors, name)))]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    handled = [ast.unparse(node.type) for node in nodes if isinstance(node, ast.ExceptHandler)]
    assert handled == [f"errors.{name}"]


@pytest.mark.parametrize("documented", WITHOUT_A_CLIENT, ids=lambda documented: documented.__name__)
def test_example_of_an_archive(any_server, monkeypatch, tmp_path, documented):
    """Each example of the archive and of the worker does what it says, on an archive of two filters."""
    monkeypatch.chdir(tmp_path)
    url = (tmp_path / "archive").as_uri()
    for name in ("images", "news"):
        with UriFilter.create(name, capacity=1_000_000, redis=any_server.url, archive=url) as made:
            made.insert("https://example.com/a")
            made.checkpoint()
    backend = backends.open_backend(url)
    drive(export.export(backend, "news", Path("news.urifilter"), lambda *_: None))
    names = {each.__name__: each for each in WITHOUT_A_CLIENT} | {"drive": drive, "Path": Path, "backend": backend}
    own = {"file:///srv/uris": url, "redis://localhost:6379/0": any_server.url}
    asyncio.run(check(inspect.getdoc(documented), names, own))


@pytest.mark.parametrize("name", sorted({*settings.__all__} - {"is_loopback"}))
def test_example_of_a_setting(name):
    """Each example of the service's settings does what it says."""
    names = {each: getattr(settings, each) for each in settings.__all__}
    asyncio.run(check(inspect.getdoc(names[name]), names))


def test_types_that_are_returned_are_public():
    """Each class of the library that a public method returns can be imported from its top."""
    hidden = set()
    for owner in {owner for owners in CLASSES.values() for owner in owners}:
        for member in vars(owner).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                hidden |= set(re.findall(r"[A-Z]\w+", str(inspect.signature(function).return_annotation)))
    assert hidden - {"Any", "Callable", "Iterator", "AsyncIterator", "None", "Opening", "Self", "T"} <= set(
        urifilter_redis.__all__
    )


async def run(source: str, names: dict[str, object]) -> str:
    """Run an example as a session does, with ``await`` where it stands; return what it prints."""
    printed = io.StringIO()
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with contextlib.redirect_stdout(printed):
        try:
            tree = ast.parse(source)
            kind = "eval" if isinstance(tree.body[0], ast.Expr) else "exec"
            result = eval(compile(source.strip(), "<example>", kind, flags), names)
            result = await result if inspect.isawaitable(result) else result
            if result is not None:
                printed.write(f"{result!r}\n")
        except Exception as error:
            printed.write("Traceback (most recent call last):\n" + traceback.format_exception_only(error)[-1])
    return printed.getvalue()


async def check(text: str, names: dict[str, object], own: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run the examples of a docstring in turn: each does what it says, where ``own`` has the test's addresses."""
    examples = doctest.DocTestParser().get_examples(text)
    assert examples, "there is no example"
    for example in examples:
        raised = example.exc_msg
        source, want = example.source, f"Traceback (most recent call last):\n{raised}" if raised else example.want
        for said, ours in own.items():
            source, want = source.replace(said, ours), want.replace(said, ours)
        found = await run(source, names)
        assert doctest.OutputChecker().check_output(want, found, FLAGS), (source, found)


@pytest.mark.parametrize(("name", "text"), [*documented(CLASSES), *documented_classes()])
def test_example(any_server, monkeypatch, folder, name, text):
    """Each example does what it says."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    monkeypatch.setenv("URIFILTER_ARCHIVE", "")

    async def session():
        names: dict[str, object] = {each: getattr(urifilter_redis, each) for each in urifilter_redis.__all__}
        names["time"] = time
        given = len(names)
        for each, chosen in FILTERS.items():
            archive = {"archive": folder} if each == "archived" else {}
            client = AsyncUriFilter if name.startswith("Async") else UriFilter
            made = client.create(each, capacity=1000, **chosen, **archive)
            names[each] = await made if inspect.isawaitable(made) else made
        names["mine"] = names["news"].claims(lease=60)
        opened = list(names.values())[: given - 1 : -1]
        await check(text, names, {"redis://localhost:6379/0": any_server.url})
        for each in opened:
            closed = each.close()
            if inspect.isawaitable(closed):
                await closed

    asyncio.run(session())


@pytest.mark.parametrize("name", SDK_NAMES)
def test_example_of_the_sdk(any_server, service, name):
    """Each example of the SDK's functions and classes does what it says."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000):
        check_with_the_service(service, inspect.getdoc(SDK_NAMES[name]), dict(SDK_NAMES))


@pytest.mark.parametrize(("name", "text"), list(documented(SDK_CLASSES)))
def test_example_of_a_client_of_the_service(any_server, service, name, text):
    """Each example of the SDK's methods does what it says."""
    with (
        UriFilter.create("news", redis=any_server.url, capacity=1000),
        UriFilter.create("queue", redis=any_server.url, capacity=1000, layout="counting"),
    ):
        check_with_the_service(service, text, {"api": SDK_NAMES[name](service.url)})


@pytest.mark.parametrize(("name", "text"), list(documented(ACTING)))
def test_example_of_an_action(any_server, service_for_admins, name, text):
    """Each example of an action does what it says, for a token that may do it."""
    running, secret = service_for_admins
    with UriFilter.create("news", redis=any_server.url, capacity=1000):
        check_with_the_service(running, text, {"api": SDK_NAMES[name](running.url, secret)})


def check_with_the_service(service, text, names) -> None:
    """Run the examples of a docstring against a service, and close the client that they ask."""

    async def session():
        await check(text, names, {SERVICE: service.url})
        closed = names["api"].close() if "api" in names else None
        if inspect.isawaitable(closed):
            await closed

    asyncio.run(session())


def described(function) -> str:
    """The text of a docstring before its example."""
    text, _, _ = (inspect.getdoc(function) or "").partition("Example:")
    text = re.sub(r"\n +coalesce: .*(\n {8,}.*)*", "", text)  # is for asyncio alone
    return text.replace("redis.asyncio.Redis", "redis.Redis").replace("of this event loop", "of this process")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_clients_say_the_same(pair):
    """The methods of the asyncio client are those of the blocking one, with the same arguments, answers and errors."""
    for name, member in vars(pair[0]).items():
        if name.startswith("_") or name == "iter_unique":
            continue
        texts = [described(getattr(client, name)) for client in pair]
        assert texts[0] == texts[1], name
        if not isinstance(member, property):
            blocking, awaited = (inspect.signature(getattr(client, name)) for client in pair)
            assert list(blocking.parameters) == [each for each in awaited.parameters if each != "coalesce"], name


def test_both_clients_of_the_service_are_made_alike():
    """The SDK's classes describe the same arguments and errors."""
    texts = [described(client).partition("Args:")[2] for client in (FilterAPIClient, AsyncFilterAPIClient)]
    assert texts[0] == texts[1]
    for argument in inspect.signature(FilterAPIClient).parameters:
        assert f"{argument}: " in texts[0], argument
