"""Scripts refuse keys that are mixed up, before they write anything."""

from __future__ import annotations

import dataclasses

import pytest
from redis.exceptions import ResponseError
from support.shard import KEYS, Shard, geometry, md5
from support.states import dumped

from urifilter_redis.protocol import calls, claims
from urifilter_redis.protocol.keys import FilterKeys

A, B = md5(b"a"), md5(b"b")
HOLDING = claims.Holding(claims.new_holder(), 60_000)
OTHER = FilterKeys("urifilter", "other").shard(0)


@pytest.fixture(params=["blocked", "classic", "counting", "blocked, with claims", "counting, with claims"])
def shard(request, client):
    """A shard with records, with something forgotten, and perhaps with something in flight."""
    layout, _, claimed = request.param.partition(", ")
    shard = Shard(client, geometry(layout, 12, 1000))
    shard.ask("insert", A + B)
    shard.ask("forget", A)
    if claimed:
        shard.claim(HOLDING, A)
    return shard


def made(shard: Shard) -> dict[str, calls.Call]:
    """Return a call of each script whose keys have fixed names, as the library makes it."""
    config, state, uid = shard.config, shard.state(), shard.config.uid
    found = {
        command: calls.items(command, config, KEYS, shard.view, "-", B)
        for command in ("insert", "contains", "forget", *(["remove"] if config.layout == "counting" else []))
    }
    if config.layout != "counting":
        found["merge"] = calls.merge("forget", config, KEYS, state, data=B)
    about_items = {command: shard.made(command, B, holding=HOLDING) for command in ("commit", "release", "reclaim")}
    return (
        found
        | about_items
        | {
            "claim": shard.made("claim", B, holding=HOLDING, kept=[b"b"]),
            "beat": claims.beat(uid, KEYS, HOLDING),
            "turn": calls.turn("allocate", KEYS, state, "token", shard.view.slices[0], names=["history_1", "today"]),
            "build": calls.build("archived", KEYS, state, number=0),
            "store": calls.store("write", KEYS, state, 5, "3", b"data"),
            "expire": calls.expire(uid, KEYS),
            "create": calls.create("finish", config, KEYS),
            "drop": calls.drop("begin", shard.meta(), KEYS),
            "restore": calls.restore("arrange", uid, KEYS, "token", names=["today"]),
            "checkpoint": calls.checkpoint("begin", uid, KEYS, 3),
            "tend": calls.tend("take", uid, KEYS, "token", 1000),
            "reopen": calls.reopen(uid, KEYS),
            "refill": calls.refill("allocate", uid, KEYS, "token", number=1, offset=8, slices=[KEYS.slice("today")]),
        }
    )


def mixed_up(keys: tuple[str, ...], fixed: int) -> list[tuple[str, ...]]:
    """Return the keys with each of the first ``fixed`` replaced by meta, by another shard's, or by its neighbour."""
    found = [(KEYS.base, *keys[1:]), (KEYS.replies, *keys[1:])]
    for i in range(1, fixed):
        other = OTHER.slice(keys[i].removeprefix(KEYS.base))
        found += [(*keys[:i], wrong, *keys[i + 1 :]) for wrong in (keys[0], other)]
        if i + 1 < len(keys):
            found.append((*keys[:i], keys[i + 1], keys[i], *keys[i + 2 :]))
    return found


FIXED = {
    **dict.fromkeys(("drop", "checkpoint", "tend", "reopen"), 1),
    **dict.fromkeys(("contains", "expire", "store", "turn", "restore"), 2),
    "build": 4,
    "merge": 4,
    "create": 9,
    **dict.fromkeys(("claim", "commit", "release"), 8),
    "reclaim": 5,
    "refill": 6,
}


def fixed(name: str, call: calls.Call) -> int:
    """How many of the first keys of a call have fixed names."""
    more = {"contains": 2, "insert": 3}.get(name, 5) if call.script.name.endswith(":claims") else 0
    return FIXED.get(name, 3) + more


@pytest.mark.sampled
def test_mixed_up_keys_are_refused(shard):
    """BADARG for every script and every key whose name is fixed; nothing changes."""
    before = dumped(shard.client)
    for name, call in made(shard).items():
        for keys in mixed_up(call.keys, fixed(name, call)):
            with pytest.raises(ResponseError, match="^BADARG "):
                shard.call(dataclasses.replace(call, keys=keys))
            assert before == dumped(shard.client), (name, keys)


def test_too_few_keys_are_refused(shard):
    """BADARG: meta alone is no list of keys."""
    before = dumped(shard.client)
    for name, call in made(shard).items():
        if FIXED.get(name, 3) == 1 or name in {"store", "restore"}:  # no key beside meta has a fixed name
            continue
        with pytest.raises(ResponseError, match="^BADARG "):
            shard.call(dataclasses.replace(call, keys=call.keys[:1]))
        assert before == dumped(shard.client), name
