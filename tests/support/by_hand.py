"""Flows without a server: sessions that know a filter that was never made, and a driver that is told each outcome."""

from __future__ import annotations

from types import SimpleNamespace

from redis.connection import DefaultParser

from urifilter_redis.engine import driver
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Pause, Timeouts
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import ShardState

NOW = 1_700_000_000_000


def config_of(archive: str | None = None, **settings) -> Config:
    return Config.new(Settings(**({"capacity": 1000} | settings)), archive)


def meta_of(config: Config, **more) -> dict[str, str]:
    """The fields of ``meta`` as they are just after the filter was made, and some that are otherwise."""
    made = dict(zip(*[iter(config.to_meta(0, "idle"))] * 2, strict=True)) | {"uid": config.uid, "created": str(NOW)}
    return made | {name: str(value) for name, value in more.items()}


def state_of(config: Config, **more) -> ShardState:
    return ShardState.from_meta(meta_of(config, **more), "news")


def session_of(config: Config | None = None, **timeouts) -> Session:
    """A session that has opened a filter."""
    session = Session(FilterKeys("urifilter", "news"), "server", Timeouts(**timeouts))
    session.learn(meta_of(config or config_of()))
    return session


def said(text: str) -> Exception:
    """What redis-py makes of an error that a server answers."""
    return DefaultParser.parse_error(text)


class Hand:
    """Does the steps of a flow: what is sent gets the next of the outcomes, a pause only moves the clock."""

    def __init__(self, monkeypatch, *modules) -> None:
        """Let modules that look at the clock look at this one."""
        self.now, self.sent, self.pauses = 1000.0, [], []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in modules:
            monkeypatch.setattr(module, "time", clock)

    def drive(self, flow, *rounds, took: float = 0.0):
        """Run a flow; each round is the outcomes of one pipeline, or called with its commands, and lasts ``took``."""
        left = iter(rounds)

        def perform(step, _):
            if isinstance(step, Pause):
                self.pauses.append(step.seconds)
                self.now += step.seconds
                return None
            self.sent.append(step.commands)
            self.now += took
            outcomes = next(left)
            return outcomes(step.commands) if callable(outcomes) else outcomes

        done = driver.drive(flow, perform=perform)
        assert list(left) == [], "less was sent than is answered"
        return done


def settle(routes, found) -> None:
    """Have routes know a map, as after a search."""
    searching = routes.begin()
    routes.find(found, searching)
    searching.ended = True
