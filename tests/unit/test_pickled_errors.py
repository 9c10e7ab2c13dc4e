"""Errors go through pickle, so that a pool of processes can pass them on, and can be copied."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from urifilter_redis import errors
from urifilter_redis.errors import (
    AnswerLost,
    BadItem,
    ConfigMismatch,
    FilterAPIError,
    OverCapacity,
    TooLarge,
    UriFilterError,
)

MORE = {
    BadItem: {"indices": [1, 4]},
    ConfigMismatch: {"differences": {"capacity": (1000, 2000)}},
    FilterAPIError: {"error_code": "too_slow", "status": 503, "retry_after": 1.5, "indices": [2, 3]},
    OverCapacity: {"error_rate": 0.01},
    TooLarge: {"fits": True},
}
KINDS = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, UriFilterError)]
WAYS = {f"protocol {n}": lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in range(6)}
WAYS |= {"copy": copy.copy, "deepcopy": copy.deepcopy}


class Call:
    """What an error has of the call that failed; like the true one, it has what no pickle takes."""

    def __init__(self, items):
        self.items, self.answers, self.key, self.more = items, [0, None], None, lambda: None
        self.method = "commit"


class Link(str):
    """A parser's own kind of str, which has a page in flight."""

    __slots__ = ("page",)

    def __reduce_ex__(self, protocol):
        raise TypeError("cannot pickle a page")


def raise_one(kind, more):
    """What a worker of a pool does."""
    raise kind("it failed", **more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(kind, way):
    """Class, message, attributes, notes, and what had arrived and for which items."""
    error = kind("it failed", **MORE.get(kind, {}))
    error.batch = Call(["a", "b"])
    error.add_note("a note")
    again = WAYS[way](error)
    assert (type(again), str(again), again.args) == (kind, "it failed", ("it failed",))
    assert (again.answers, again.items, again.__notes__) == ([0, None], ["a", "b"], ["a note"])
    assert again.method == "commit"
    assert {name: getattr(again, name) for name in MORE.get(kind, {})} == MORE.get(kind, {})


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_call(kind):
    """There are no answers and no items, as before."""
    again = pickle.loads(pickle.dumps(kind("it failed", **MORE.get(kind, {}))))
    assert (again.answers, again.items, again.method) == (None, None, None)


def test_items_that_no_pickle_takes():
    """They arrive as what was filtered of them: a parser's kind of str as a str."""
    error = AnswerLost("lost")
    error.batch = Call([Link("https://example.com/"), {"at": Link("b")}])
    again = pickle.loads(pickle.dumps(error))
    assert again.items == error.items
    assert list(map(type, again.items)) == [str, dict]


@pytest.mark.slow
def test_pool_of_spawned_processes():
    """The error of a worker is raised where its result is wanted; nothing hangs, and the pool goes on."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind in (TooLarge, FilterAPIError, ConfigMismatch):
            with pytest.raises(kind, match="it failed") as caught:
                pool.submit(raise_one, kind, MORE[kind]).result(60)
            assert {name: getattr(caught.value, name) for name in MORE[kind]} == MORE[kind]
        assert pool.submit(len, "abc").result(60) == 3
