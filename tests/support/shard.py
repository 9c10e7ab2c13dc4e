"""One shard on a real server, spoken to by the calls that the library makes."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from support.states import dumped
from urifilter_redis.bloom.digest import hasher
from urifilter_redis.bloom.sizing import REDISBLOOM, bytes_of, module_bytes
from urifilter_redis.protocol import calls, claims
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
    size = module_bytes(units, 1e-4) if layout == REDISBLOOM else bytes_of(layout, k, units)
    given = known | plain | more
    return Config(layout=layout, k=k, units=units, bytes=size, **{"segments": given["shards"]} | given)


class Shard:
    def __init__(self, client, config: Config) -> None:
        self.client, self.config = client, config
        client.flushall()
        self.call(calls.create("make", config, KEYS, config.to_meta(0, "idle")))
        for number in range(1, config.today.segments):
            self.call(calls.create("allocate", config, KEYS, [str(number)]))
        self.refresh()

    def call(self, call: calls.Call):
        script = call.script
        if not self.client.script_exists(script.sha1)[0]:
            self.client.script_load(script.source)
        return self.client.execute_command(*call.command())

    def ask(self, command: str, digests, call_id: str = "-", max_age: int = 0):
        return self.call(calls.items(command, self.config, KEYS, self.view, call_id, digests, max_age))

    def made(
        self, command: str, digests, call_id: str = "-", holding: claims.Holding = claims.NO_HOLDER, **more
    ) -> calls.Call:
        """Return the call of a command about items; ``more``: its other arguments."""
        uid = self.config.uid
        if command == "claim":
            return claims.claim(self.config, KEYS, self.view, call_id, digests, more["kept"], holding)
        if command == "commit":
            return claims.commit(self.config, KEYS, self.view, call_id, digests, holding, more.get("reason"))
        if command == "release":
            how = {name: more[name] for name in ("delay", "failed", "again") if name in more}
            delay_holder = more.get("delay_holder", claims.new_delay_holder())
            return claims.release(uid, KEYS, call_id, digests, holding, delay_holder=delay_holder, **how)
        if command == "reclaim":
            return claims.reclaim(uid, KEYS, call_id, holding, more.get("limit", 100))
        return calls.items(command, self.config, KEYS, self.view, call_id, digests, more.get("max_age", 0))

    def claim(self, holding: claims.Holding, digests, kept=None, call_id: str = "-"):
        kept = kept or [b""] * (len(digests) // 16 if isinstance(digests, bytes) else len(digests))
        answers = self.call(self.made("claim", digests, call_id, holding, kept=kept))
        self.refresh()  # the first claim of a shard changes the scripts of the others
        return answers

    def commit(self, holding: claims.Holding, digests, call_id: str = "-"):
        return self.call(self.made("commit", digests, call_id, holding))

    def reject(self, holding: claims.Holding, digests, reason: bytes = b"", call_id: str = "-"):
        return self.call(self.made("commit", digests, call_id, holding, reason=reason))

    def retry(self, digests, call_id: str = "-"):
        return self.release(claims.NO_HOLDER, digests, call_id, again=True)

    def release(self, holding: claims.Holding, digests, call_id: str = "-", **how):
        return self.call(self.made("release", digests, call_id, holding, **how))

    def reclaim(self, holding: claims.Holding, call_id: str = "-", limit: int = 100):
        return claims.entries_of(self.call(self.made("reclaim", b"", call_id, holding, limit=limit)))

    def beat(self, holding: claims.Holding) -> int:
        return self.call(claims.beat(self.config.uid, KEYS, holding))

    def now(self) -> int:
        """The server's time, ms."""
        seconds, microseconds = self.client.time()
        return seconds * 1000 + microseconds // 1000

    def call_id(self, slot: int = 0, sequence: int = 1, ahead: int = 60_000) -> str:
        return f"0123456789abcdef/{slot}/{sequence}/{self.now() + ahead}"

    def age(self, slot: int, ms: int) -> None:
        """Let the record of a slot be older; below 0: younger."""
        make_old = """local values = {cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))}
            values[2] = values[2] - ARGV[2]
            redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(unpack(values)))"""
        self.client.eval(make_old, 1, KEYS.replies, f"0123456789abcdef/{slot}", ms)

    def state(self) -> ShardState:
        return ShardState.from_meta(self.meta(), "model")

    def today(self) -> bytes:
        return self.client.getrange(KEYS.slice("today"), 0, -1)

    def refresh(self) -> None:
        """Learn the live slices."""
        self.view = View.from_meta(self.meta(), "model")

    def meta(self) -> dict[str, str]:
        return to_mapping(self.client.hgetall(KEYS.meta))


def refused(shard: Shard, call: calls.Call, word: str = "BADPHASE") -> str:
    """Send a call that must be refused with ``word``, and check that nothing changed; return the server's text."""
    before = dumped(shard.client)
    with pytest.raises(ResponseError, match=f"^{word} ") as refusal:
        shard.call(call)
    assert before == dumped(shard.client)
    return str(refusal.value)
