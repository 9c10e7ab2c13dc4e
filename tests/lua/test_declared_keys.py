"""Every key that a script touches is declared in KEYS, as a Redis Cluster and its proxies want it."""

from __future__ import annotations

import hashlib

import pytest

from urifilter_redis import UriFilter
from urifilter_redis.bloom import sizing
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.protocol import scripts

#: What stands before a script: its calls are checked, and all else is as it is.
CHECKED = """
local declared = {}
for _, key in ipairs(KEYS) do declared[key] = true end
local server = redis
local redis = setmetatable({
  call = function(command, ...)
    local arguments = { ... }
    local first, last = 1, 1
    if command == 'TIME' then last = 0 end
    if command == 'RENAME' then last = 2 end
    if command == 'UNLINK' or command == 'DEL' then last = #arguments end
    if command == 'BITOP' then first, last = 2, #arguments end
    for i = first, last do
      if not declared[arguments[i]] then
        error('undeclared: ' .. command .. ' ' .. tostring(arguments[i]))
      end
    end
    return server.call(command, ...)
  end,
}, { __index = server })
"""

TIMED = {"slices": 3, "period": "1d"}
FILTERS = {
    "blocked": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "segments": {"retention": "ring"} | TIMED,
    "growing": {"retention": "growing"},
    "ring": {"retention": "ring"} | TIMED,
    "all": {"retention": "ring", "write": "all"} | TIMED,
    "rolling": {"retention": "rolling", "expire_after": "last-seen"} | TIMED,
}


@pytest.fixture
def called(monkeypatch):
    """Let every script check its calls; return the names of those that are called."""
    perform, names = driver.perform_step, set()
    known = {each.sha1: each for each in scripts.variants(BLOCKED_K)}

    def checked(command):
        if command[:2] == ("SCRIPT", "LOAD"):
            return (*command[:2], CHECKED + command[2])
        if command[0] == "EVALSHA":
            script = known[command[1]]
            names.add(script.name.partition(":")[0])
            return (command[0], hashlib.sha1((CHECKED + script.source).encode()).hexdigest(), *command[2:])
        return command

    def perform_checked(step, sender):
        return perform(Send(list(map(checked, step.commands))) if isinstance(step, Send) else step, sender)

    monkeypatch.setattr(driver, "perform_step", perform_checked)
    return names


def test_the_check_finds_what_is_not_declared(any_server):
    """A key that is left out is found."""
    source = CHECKED + "return redis.call('GET', 'a')"
    with any_server.client() as client:
        assert client.eval(source, 1, "a") is None
        with pytest.raises(Exception, match="undeclared: GET a"):
            client.eval(source, 1, "b")


@pytest.mark.sampled
@pytest.mark.parametrize("name", FILTERS)
def test_all_scripts(called, any_server, name, monkeypatch):
    """A filter's whole life, with every script that it uses."""
    if name == "segments":
        monkeypatch.setattr(sizing, "SEGMENT_LIMIT", 200)
    settings = FILTERS[name] | {"capacity": 300, "error_rate": 1e-6, "shards": 2}
    with UriFilter.create(name, redis=any_server.url, **settings) as news:
        assert (news.config.segments > 8) == (name == "segments")
        for day in range(5):
            assert 0 in news.insert_ages(range(100 * day, 100 * day + 150))
            news.contains_many(range(50))
            news.forget(range(100 * day, 100 * day + 5))
            news.insert_many(range(100 * day, 100 * day + 3))
            if name == "counting":
                news.remove([100 * day + 20])
            if "period" in settings:
                assert news.rotate().problems == ()
        if name != "counting":
            with UriFilter.create("other", redis=any_server.url, **news.settings) as other:
                other.insert_many(range(5000, 5100))
                other.forget([5000])
                news.union("other", over_capacity=True)
        assert news.info().forgotten > 0
        news.drop()
    assert {"create", "insert", "contains", "forget", "drop"} < called
