"""One shard on a real server, spoken to by the calls that the library makes."""

from __future__ import annotations

from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.sizing import bytes_of
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import ShardState, View
from urifilter_redis.protocol.outcomes import to_mapping

KEYS = FilterKeys("urifilter", "model").shard(0)


def md5(data: bytes) -> bytes:
    return hasher("md5", "")([data])[0]


def geometry(layout: str, k: int, units: int, **more) -> Config:
    known = {"uid": "0123456789abcdef", "retention": "forever", "capacity": 1000, "error_rate": 1e-4, "shards": 1}
    plain = {"normalize": "none", "hash": "md5", "seed": ""}
    return Config(layout=layout, k=k, units=units, bytes=bytes_of(layout, k, units), **known | plain | more)


class Shard:
    def __init__(self, client, config: Config) -> None:
        self.client, self.config = client, config
        client.flushall()
        self.call(calls.create("make", config, KEYS, config.to_meta(0, "idle")))
        self.refresh()

    def call(self, call: calls.Call):
        script = call.script
        if not self.client.script_exists(script.sha1)[0]:
            self.client.script_load(script.source)
        return self.client.execute_command(*call.command())

    def ask(self, command: str, digests, call_id: str = "-", max_age: int = 0):
        return self.call(calls.items(command, self.config, KEYS, self.view, call_id, digests, max_age))

    def state(self) -> ShardState:
        return ShardState.from_meta(self.meta(), "model")

    def today(self) -> bytes:
        return self.client.getrange(KEYS.slice("today"), 0, -1)

    def refresh(self) -> None:
        """Learn the live slices."""
        self.view = View.from_meta(self.meta(), "model")

    def meta(self) -> dict[str, str]:
        return to_mapping(self.client.hgetall(KEYS.meta))
