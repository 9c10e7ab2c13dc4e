"""A server that runs the model in place of the scripts: what flows send is answered by ``urifilter_redis.model``.

It knows the commands that flows about items, growth and rotation send, and nothing else; ``send`` is a connector's.
"""

from __future__ import annotations

import re
import time

from redis.exceptions import ResponseError

from support.model import ModelShard, Refused
from urifilter_redis.bloom.sizing import BLOCKED_K
from urifilter_redis.protocol import scripts

NAMES = {script.sha1: script.name.split(":")[0] for script in scripts.variants(BLOCKED_K)}


class _Shard:
    """The model of a shard and what its ``meta`` has beside."""

    def __init__(self, meta: dict[str, str]) -> None:
        self.meta = meta
        self.closed: list[tuple[int, int]] = []
        self.stored: dict[str, dict[str, bytes]] = {}
        self.replies: dict[tuple[str, str], tuple] = {}
        self.model = ModelShard.of(meta)

    def names(self) -> list[str]:
        model, live = self.model, len(self.model.slices)
        if model.retention == "rolling":
            closed = ["history", "history_1"] if live == 3 else [self._closed_name()]
            return [*closed[: live - 1], "today"]
        return [*(f"history_{n}" for n in range(live - 1, 0, -1)), "today"]

    def _closed_name(self) -> str:
        return "history_1" if self.model.phase == "rotating" else "history"

    def to_meta(self) -> dict[str, str]:
        model = self.model
        geometry = ":".join(self.meta["slices"].split(":")[1:])
        last_seen = model.expire_after == "last-seen"
        closed = [
            f"{epoch}:0:0:{count}{f':{model.closed[epoch]}' if last_seen else ''}"
            for epoch, count in self.closed
            if epoch >= model.oldest
        ]
        changing = {
            "epoch": model.epoch,
            "phase": model.phase,
            "token": model.token,
            "inserted": model.inserted,
            "oldest": model.oldest,
            "opened": model.opened,
            "written": model.written,
            "created": 0,
            "closed": " ".join(closed),
            "slices": " ".join(f"{name}:{geometry}" for name in self.names()),
            "late": int(model.late),
        }
        changing |= {"new": model.new} if last_seen else {}
        changing |= {} if model.pieces is None else {"pieces": model.pieces}
        changing |= {} if model.limit is None else {"limit": model.limit}
        return self.meta | {name: str(value) for name, value in changing.items()}


class ModelServer:
    """Answers pipelines; one filter.

    ``replicas`` follow it unless ``replicating`` is false. They have, says WAIT, all of a pipeline that wrote nothing.
    """

    def __init__(self) -> None:
        self.shards: dict[str, _Shard] = {}
        self.replicas = 0
        self.replicating = True
        self._wrote = False

    def send(self, commands, _=None) -> list:
        self._wrote = False
        for shard in self.shards.values():
            shard.model.now = round(1000 * time.time())
        return [self._answer(*command) for command in commands]

    def _answer(self, command, *texts):
        arguments = [_number_in(each) for each in texts]
        if command == "EVALSHA":
            sha1, count, *rest = arguments
            try:
                return getattr(self, f"_{NAMES[sha1]}")(rest[:count], *rest[count:])
            except Refused as refusal:
                return ResponseError(str(refusal))
        return getattr(self, f"_{command.lower()}")(*arguments)

    def _probe(self, keys, word):
        return [[], [], []]

    def _info(self, section):
        return b""

    def _time(self):
        return divmod(time.time_ns() // 1000, 1_000_000)

    def _sadd(self, *_):
        return 1

    _sismember = _sadd

    def _wait(self, count, patience):
        return self.replicas if self.replicating or not self._wrote else 0

    def _hgetall(self, key):
        shard = self._of(key)
        return [text for pair in shard.to_meta().items() for text in pair] if shard else []

    def _exists(self, key):
        return int(self._of(key) is not None)

    def _getrange(self, key, first, last):
        shard, name = self._of(key), key.rsplit(":", 1)[1]
        return (
            bytes(shard.model.slices[shard.names().index(name)].data[first : last + 1])
            if name in shard.names()
            else b""
        )

    def _hset(self, key, *pairs):
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            setattr(self._of(key).model, name, value)

    def _hget(self, key, field):
        shard = self._of(key)
        return shard.stored.get(key, {}).get(field)

    def _bitcount(self, key, first, last, *_):
        return sum(byte.bit_count() for byte in self._getrange(key, first, last))

    def _create(self, keys, step, uid, size, *fields):
        if step == "make" and keys[0] not in self.shards:
            self.shards[keys[0]] = _Shard(dict(zip(fields[::2], fields[1::2], strict=True)) | {"uid": uid})
        return self._hgetall(keys[0])

    def _insert(self, keys, uid, call_id, max_age, encoding, packed):
        return self._recorded(keys, 3, call_id, packed, lambda model, some: model.insert(some, max_age))

    def _forget(self, keys, uid, call_id, max_age, encoding, packed):
        return self._recorded(keys, 3, call_id, packed, lambda model, some: model.forget(some))

    def _contains(self, keys, uid, call_id, max_age, encoding, packed):
        self._check_live(keys[2:])
        return self._of(keys[0]).model.contains(_digests(packed), max_age)

    def _recorded(self, keys, first_slice, call_id, packed, act):
        shard = self._of(keys[0])
        client, slot, sequence, deadline = call_id.split("/")
        recorded = shard.replies.get((client, slot), (0,))
        if recorded[0] > int(sequence):
            raise Refused("OLDCALL")
        if recorded[0] < int(sequence):
            self._check_live(keys[first_slice:])
            shard.replies[client, slot] = recorded = (int(sequence), packed, act(shard.model, _digests(packed)))
            self._wrote = True
        assert recorded[1] == packed
        self._wrote = self._wrote or "+" in deadline
        return recorded[2]

    def _check_live(self, keys):
        shard = self._of(keys[0])
        if [key.rsplit(":", 1)[1] for key in keys] != shard.names():
            slices = shard.to_meta()["slices"]
            raise Refused(f"STALE epoch {shard.model.epoch}, opened 0, claims 0, live slices {slices}")

    def _turn(self, keys, step, uid, epoch, token, units, size, limit, period, by, opened, segments):
        shard = self._of(keys[0])
        if step == "allocate":
            shard.model.allocate(epoch)
            return 1
        inserted = shard.model.inserted
        shard.model.turn(epoch, token, limit or None, by, period, opened)
        shard.closed.append((epoch, inserted))
        shard.stored = {key: fields for key, fields in shard.stored.items() if fields}
        return 1

    def _store(self, keys, step, uid, epoch, token, field, data):
        shard, number = self._of(keys[0]), int(keys[1].rsplit(":", 1)[1])
        if step == "delete":
            shard.model.delete(epoch, token, number)
            shard.stored.pop(keys[1], None)
        else:
            shard.model.store(epoch, token)
            shard.stored.setdefault(keys[1], {})[field] = data
        return 1

    def _build(self, keys, step, uid, epoch, token, number, oldest, offset, data, late, segment):
        assert segment == 0, "a slice of the model has one segment"
        model = self._of(keys[0]).model
        if step == "archived":
            model.archived(epoch, token, number)
        elif step == "piece":
            model.build(epoch, token, number, data, late=bool(late))
        else:
            model.finish(epoch, token, oldest, int(data or 0))
        return 1

    def _expire(self, keys, uid, limit):
        return 0  # the model's forgotten items expire as slices do

    def _of(self, key) -> _Shard | None:
        return self.shards.get(key.split("}:")[0] + "}:meta")


def _number_in(text):
    """Return the number that a short text is; else the text, such as a uid."""
    return int(text) if isinstance(text, str) and len(text) < 14 and re.fullmatch(r"-?\d+", text) else text


def _digests(packed: bytes) -> list[bytes]:
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]
