"""One shard on a real server, spoken to by the calls that the library makes."""

from __future__ import annotations

from urifilter_redis import calls
from urifilter_redis.config import Config, View
from urifilter_redis.digest import hasher
from urifilter_redis.keys import FilterKeys
from urifilter_redis.replies import to_mapping
from urifilter_redis.sizing import slice_bytes

KEYS = FilterKeys("urifilter", "model").shard(0)


def md5(data: bytes) -> bytes:
    return hasher("md5", "")([data])[0]


def geometry(layout: str, k: int, units: int) -> Config:
    size = slice_bytes(layout, k, units)
    return Config("0123456789abcdef", layout, "forever", 1000, 1e-4, 1, k, units, size, "none", "md5", "")


class Shard:
    def __init__(self, client, config: Config) -> None:
        self.client, self.config = client, config
        client.flushall()
        self.call(calls.create("make", config, KEYS, config.to_meta(0, "idle")))
        self.view = View.from_meta(self.meta(), "model")

    def call(self, call: calls.Call):
        script = call.script
        if not self.client.script_exists(script.sha1)[0]:
            self.client.script_load(script.source)
        return self.client.execute_command(*call.command())

    def ask(self, command: str, digests, call_id: str = "-"):
        return self.call(calls.items(command, self.config, KEYS, self.view, call_id, digests))

    def today(self) -> bytes:
        return self.client.getrange(KEYS.slice("today"), 0, -1)

    def meta(self) -> dict[str, str]:
        return to_mapping(self.client.hgetall(KEYS.meta))
